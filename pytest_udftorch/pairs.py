"""Interpreted and compiled forms of one model, checked against each other and timed.

``model_pair(model, inputs, executors=...)`` makes each executor's callable from a copy of the
model, and reports for each: whether its result is no farther from a float64 reference than
the interpreted one's, what the first call took (which is where compiling happens), what a
call takes after that, and after how many calls compiling has paid. An executor that fails is
kept with its reason; the others go on.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from pytest_udftorch import executors as registry
from pytest_udftorch.errors import UdfError, nearest
from pytest_udftorch.executors import Executor, ExecutorUnavailableError
from pytest_udftorch.rounding import ulp_distance
from pytest_udftorch.timers import Comparison, describe_device, require_device, sync_timer, untyped

__all__ = [
    "Accuracy",
    "DisagreementError",
    "Member",
    "MemberFailedError",
    "ModelPair",
    "NoReferenceError",
    "PairInputError",
    "accuracy",
    "model_pair",
    "reference",
]

#: How much farther from the float64 reference than the eager result a member may be. Another
#: order of summation changes the distance by a factor near 1; 2 leaves room for it.
TOLERANCE: Final = 2.0

#: Compiled code of many members hangs on the same Python code; the default limit of 8 would
#: make the ninth run interpreted without a word.
RECOMPILE_LIMIT: Final = 256


class PairInputError(UdfError):
    """Model and inputs make no pair: training mode, several devices, or no tensor at all."""


class NoReferenceError(UdfError):
    """The model does not run in float64, so that nothing tells how exact its forms are."""


class DisagreementError(UdfError):
    """A member's result is farther from the reference than allowed."""


class MemberFailedError(UdfError):
    """A member was asked for that could not be made, or that does not exist."""


@dataclass(frozen=True)
class Accuracy:
    """How far a result lies from the float64 reference.

    Attributes:
        distance: norm of the difference over the norm of the reference, over all outputs;
            infinite where the structure, a shape or a non-finite value differs.
        worst_ulp: largest ULP distance of an element to the reference rounded to its dtype.
        problem: what differs other than in rounding, or None.
    """

    distance: float
    worst_ulp: int
    problem: str | None = None


@dataclass
class Member:
    """One executor's part in a pair.

    Attributes:
        name: the executor's.
        call: takes the model's inputs; None when making it, or its first call, failed.
        error: why it failed, or None.
        stage: what was under way when it failed: ``making`` or ``first call``.
        first_call_ns: making the callable and its first call, until the device had finished.
            Caches of a compiler that earlier members filled are used.
        graph_breaks: places where torch.compile went back to the interpreter.
        accuracy: None when it failed.
        agrees: whether the accuracy is within the pair's tolerance.
    """

    name: str
    call: Callable[..., Any] | None = None
    error: str | None = None
    stage: str | None = None
    first_call_ns: int = 0
    graph_breaks: int = 0
    accuracy: Accuracy | None = None
    agrees: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        result: dict[str, Any] = {"name": self.name}
        if self.error is not None:
            return {**result, "error": self.error, "stage": self.stage}
        assert self.accuracy is not None
        distance = self.accuracy.distance
        return {
            **result,
            "first_call_ns": self.first_call_ns,
            "graph_breaks": self.graph_breaks,
            "distance_to_float64": distance if math.isfinite(distance) else str(distance),
            "worst_ulp": self.accuracy.worst_ulp,
            "problem": self.accuracy.problem,
            "agrees": self.agrees,
        }


def _double(value: Any) -> Any:
    def widen(t: torch.Tensor) -> torch.Tensor:
        if t.is_complex():
            return t.to(torch.complex128)
        return t.double() if t.is_floating_point() else t

    return registry.convert(value, widen)


def reference(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """Return the output of a float64 copy of the model on the inputs in float64.

    Raises:
        NoReferenceError: the copy fails, by a dtype that the model writes out for instance.
    """
    try:
        with torch.no_grad():
            return copy.deepcopy(model).double()(*_double(inputs))
    except Exception as error:
        raise NoReferenceError(
            f"The model fails in float64, which its forms are judged by: {_reason(error)}. Let "
            "tensors made in forward() take dtype and device from the inputs."
        ) from error


def accuracy(result: Any, reference: Any) -> Accuracy:
    """Compare a result with a float64 reference of the same structure.

    Args:
        result: tensor, or tuples, lists, dicts and dataclasses of tensors known to pytree.
        reference: the same structure; floating-point tensors in float64.
    """
    leaves, shape = pytree.tree_flatten(result)
    wanted, wanted_shape = pytree.tree_flatten(reference)
    if len(leaves) != len(wanted):
        return Accuracy(math.inf, 0, f"structure {shape}, wanted {wanted_shape}")
    squares = total = 0.0
    worst = 0
    for number, (mine, theirs) in enumerate(zip(leaves, wanted, strict=True)):
        if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
            try:
                same = type(mine) is type(theirs) and bool(mine == theirs)
            except RuntimeError:
                # A class of the model's own, with tensors inside that pytree does not reach.
                return Accuracy(
                    math.inf,
                    0,
                    f"output {number} is a {type(mine).__name__}, whose tensors cannot be "
                    "compared: register it with torch.utils._pytree, or return a tuple or dict",
                )
            if not same:
                return Accuracy(math.inf, 0, f"output {number} is {mine!r}, wanted {theirs!r}")
            continue
        if mine.shape != theirs.shape:
            return Accuracy(
                math.inf, 0, f"output {number}: {list(mine.shape)}, wanted {list(theirs.shape)}"
            )
        if mine.is_complex() and theirs.is_complex():
            mine, theirs = torch.view_as_real(mine), torch.view_as_real(theirs)
        if not mine.is_floating_point():
            if not torch.equal(mine, theirs):
                return Accuracy(math.inf, 0, f"output {number}: other values of {mine.dtype}")
            continue
        mine, theirs = mine.detach(), theirs.detach()
        rounded = theirs.to(mine.dtype)
        same_special = torch.equal(mine.isnan(), rounded.isnan()) and torch.equal(
            mine.isinf() * mine.sign(), rounded.isinf() * rounded.sign()
        )
        if not same_special:
            return Accuracy(math.inf, 2**64 - 1, f"output {number}: other NaNs or infinities")
        finite = rounded.isfinite()
        apart = mine.double()[finite] - theirs[finite]
        squares += float(apart.square().sum())
        total += float(theirs[finite].square().sum())
        if mine.numel():
            worst = max(worst, int(ulp_distance(mine.contiguous(), rounded.contiguous()).max()))
    if total == 0:
        return Accuracy(0.0 if squares == 0 else math.inf, worst)
    return Accuracy(math.sqrt(squares / total), worst)


def _reason(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"[:500]


@dataclass
class ModelPair:
    """The members of one model, in the order they were asked for.

    Attributes:
        inputs: the tuple that all members are called with.
        members: by executor name, the failed ones included.
        tolerance: see :func:`model_pair`.
        timing: the interleaved measurement; None before :meth:`measure`.
        interrupted: whether Ctrl-C came before all members were made; the rest failed.
    """

    inputs: tuple[Any, ...]
    members: dict[str, Member]
    tolerance: float
    device: torch.device
    timing: Comparison | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return a member's callable.

        Raises:
            MemberFailedError: no such member, or it failed; says why.
        """
        if name not in self.members:
            raise MemberFailedError(f"{name!r} is not in this pair. {nearest(name, self.members)}")
        member = self.members[name]
        if member.call is None:
            raise MemberFailedError(f"{name} failed while {member.stage}: {member.error}")
        return member.call

    @property
    def working(self) -> list[str]:
        """Names of the members that run."""
        return [name for name, member in self.members.items() if member.call is not None]

    @property
    def failures(self) -> dict[str, str]:
        """Reasons of the members that do not run."""
        return {name: m.error for name, m in self.members.items() if m.error is not None}

    def complete(self) -> ModelPair:
        """Return the pair itself, for callers that are nothing without all its members.

        Raises:
            KeyboardInterrupt: Ctrl-C cut it short.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        return self

    def check(self) -> None:
        """Check that all working members agree.

        Raises:
            DisagreementError: names the members that do not, with their distances.
        """
        wrong = []
        for name in self.working:
            found = self.members[name].accuracy
            if found is None or self.members[name].agrees:
                continue
            wrong.append(
                f"{name}: distance {found.distance:.3g}, worst {found.worst_ulp} ULP"
                + (f" ({found.problem})" if found.problem else "")
            )
        if wrong:
            eager = self.members["eager"].accuracy
            assert eager is not None
            raise DisagreementError(
                f"Farther from the float64 reference than {self.tolerance:g} times the eager "
                f"result ({eager.distance:.3g}): {'; '.join(wrong)}. Leave the executor out, or "
                "state a larger tolerance if this model bears it."
            )

    def measure(self, **options: Any) -> Comparison:
        """Time the working members, interleaved, under ``no_grad``.

        Args:
            options: as for :func:`~pytest_udftorch.timers.sync_timer`.

        Raises:
            TimerOptionError: an unknown option, or options that make no measurement.
        """
        timer = sync_timer(self.device, **options)
        calls = {name: self._bind(name) for name in self.working}
        with torch.no_grad(), _limits():
            self.timing = timer.compare(calls)
        return self.timing

    def _bind(self, name: str) -> Callable[[], Any]:
        call = self[name]
        return lambda: call(*self.inputs)

    def break_even_calls(self, name: str, over: str = "eager") -> int | None:
        """Return the number of calls after which ``name`` has cost less than ``over``.

        First calls and steady state are counted. None when ``name`` is not faster by the
        verdict of the measurement, so that it never pays.

        Raises:
            MemberFailedError: not measured, or a member failed.
        """
        if self.timing is None:
            raise MemberFailedError("Nothing was timed yet. Call measure() first.")
        self[name], self[over]
        if name == over or self.timing.verdict(name, over) != "faster":
            return None
        saved = self.timing[over].median_ns - self.timing[name].median_ns
        spent = self.members[name].first_call_ns - self.members[over].first_call_ns
        return max(1, 1 + math.ceil(spent / saved))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object: environment, members, and the measurement if there is one."""
        members = {name: member.to_json() for name, member in self.members.items()}
        result: dict[str, Any] = {
            **self.environment,
            "tolerance": self.tolerance,
            "interrupted": self.interrupted,
            "members": members,
        }
        if self.timing is not None:
            result["measurement"] = self.timing.to_json()
            for name in self.working:
                members[name]["break_even_calls"] = self.break_even_calls(name)
        return result


def _limits() -> Any:
    return untyped(torch._dynamo.config.patch)(
        recompile_limit=RECOMPILE_LIMIT, accumulated_recompile_limit=RECOMPILE_LIMIT
    )


def _arguments(inputs: Any) -> tuple[Any, ...]:
    """Return positional arguments, of which a tensor alone is the only one."""
    if isinstance(inputs, Mapping):
        raise PairInputError(
            "inputs is a dict, but holds the positional arguments of the model. For a model that "
            "takes a dict give (inputs,); one that takes keywords needs a wrapper without them."
        )
    return (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)


def _check_inputs(model: nn.Module, inputs: tuple[Any, ...]) -> torch.device:
    if model.training:
        raise PairInputError(
            "The model is in training mode: dropout and batch statistics would make its forms "
            "differ by chance. Call model.eval()."
        )
    tensors = [t for t in pytree.tree_leaves(list(inputs)) if isinstance(t, torch.Tensor)]
    devices = {t.device for t in (*model.parameters(), *model.buffers(), *tensors)}
    if not tensors or len(devices) != 1:
        where = ", ".join(sorted(map(str, devices))) or "nowhere"
        raise PairInputError(
            f"Model and inputs lie on: {where}. Give at least one tensor, and move model and "
            "inputs to one device."
        )
    return devices.pop()


def _make(executor: Executor, model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Member, Any]:
    member = Member(executor.name, stage="making")
    wait = untyped(torch.cuda.synchronize) if torch.cuda.is_available() else lambda: None
    breaks = sum(counters["graph_break"].values())
    output = None
    try:
        executor.check(inputs)
        own = copy.deepcopy(model)
        wait()
        before = time.perf_counter_ns()
        with torch.no_grad(), _limits():
            call = executor.make(own, inputs)
            member.stage = "first call"
            # Replays overwrite their outputs, so the compared ones are copies.
            output = call(*inputs)
            wait()
            member.first_call_ns = time.perf_counter_ns() - before
            output = registry.convert(output, torch.clone)
        member.call, member.stage = call, None
    except Exception as error:
        member.error = str(error) if isinstance(error, ExecutorUnavailableError) else _reason(error)
    member.graph_breaks = sum(counters["graph_break"].values()) - breaks
    return member, output


def model_pair(
    model: nn.Module,
    inputs: Sequence[Any] | torch.Tensor,
    executors: str | Executor | Sequence[str | Executor] = ("eager", "compile"),
    *,
    device: str | torch.device | None = None,
    tolerance: float = TOLERANCE,
    progress: Callable[[int, int, str], None] | None = None,
) -> ModelPair:
    """Make interpreted and compiled forms of a model under one interface.

    On Ctrl-C the members made so far are returned, with the pair marked ``interrupted``.

    Args:
        model: in evaluation mode; left as it is, each member gets a copy.
        inputs: a tensor, or the positional arguments.
        executors: one or more names for ``executors.resolve``, or executors. ``eager`` is
            always made.
        device: if given, a copy of the model and the inputs are moved there first.
        tolerance: a member agrees if its distance to the float64 reference is at most this
            many times the eager result's, or 4 units of its dtype's precision.
        progress: called with members made, members in all, and a text.

    Raises:
        DeviceMissingError: CUDA was asked for and is absent; its text is a skip's reason.
        PairInputError: training mode, tensors on several devices, or a dict of keywords.
        UnknownExecutorError: no such executor.
        MemberFailedError: the eager model itself fails.
        NoReferenceError: the model fails in float64.
        KeyboardInterrupt: on Ctrl-C before the eager model and its reference were there.
    """
    arguments = _arguments(inputs)
    if device is not None:
        target = require_device(device)
        model = copy.deepcopy(model).to(target)
        arguments = registry.convert(arguments, lambda t: t.to(target))
    home = _check_inputs(model, arguments)
    given = [executors] if isinstance(executors, str | Executor) else executors
    chosen = [registry.resolve(e) for e in given]
    if all(e.name != "eager" for e in chosen):
        chosen.insert(0, registry.resolve("eager"))
    chosen.sort(key=lambda e: e.name != "eager")
    wanted = None
    pair = ModelPair(arguments, {}, tolerance, home, environment=describe_device(home))
    try:
        for done, executor in enumerate(chosen):
            if progress is not None:
                progress(done, len(chosen), f"making {executor.name}")
            member, output = _make(executor, model, arguments)
            if executor.name == "eager":
                if member.error is not None:
                    raise MemberFailedError(
                        f"The model itself fails on these inputs: {member.error}"
                    )
                wanted = reference(model, arguments)
            if member.error is None:
                eager = pair.members.get("eager", member)
                member.accuracy = accuracy(output, wanted)
                member.agrees = _agrees(member, eager, output, tolerance)
            pair.members[executor.name] = member
    except KeyboardInterrupt:
        if not pair.members:
            raise
        pair.interrupted = True
        for executor in chosen:
            left = Member(executor.name, error="not made: interrupted", stage="making")
            pair.members.setdefault(executor.name, left)
    return pair


def _agrees(member: Member, eager: Member, output: Any, tolerance: float) -> bool:
    assert member.accuracy is not None
    assert eager.accuracy is not None
    if member.accuracy.problem is not None:
        return False
    precisions = [
        torch.finfo(t.dtype).eps
        for t in pytree.tree_leaves(output)
        if isinstance(t, torch.Tensor) and t.is_floating_point()
    ]
    floor = 4 * max(precisions, default=0.0)
    return member.accuracy.distance <= max(tolerance * eager.accuracy.distance, floor)
