# SPDX-License-Identifier: Apache-2.0
"""Interpreted and compiled forms of one model, checked against each other and timed.

``model_pair(model, inputs, executors=...)`` makes each executor's callable from a copy of the
model. It reports of each whether its result is no farther from a float64 reference than the
interpreted one's, what the first call took (compiling happens there), what later calls take, and
after how many calls compiling has paid. An executor that fails is kept with its reason; the
others go on.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.base import compat
from pytest_udftorch.base.plain_data import shown
from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.base.trees import convert, tensors_in
from pytest_udftorch.base.units import time_text
from pytest_udftorch.errors import (
    DisagreementError,
    ExecutorError,
    ExecutorUnavailableError,
    MeasureError,
    nearest,
)
from pytest_udftorch.measure.planning.executor import Executor
from pytest_udftorch.measure.planning.executors import resolve
from pytest_udftorch.measure.timing.device import describe_device
from pytest_udftorch.measure.timing.layers import compiled_part, positional
from pytest_udftorch.measure.timing.timers import (
    Comparison,
    Interruptible,
    SyncTimer,
    require_device,
)
from pytest_udftorch.prove.judge.accuracy import TOLERANCE, Accuracy, accuracy
from pytest_udftorch.prove.judge.double_precision import DoublePrecision
from pytest_udftorch.prove.judge.error_model import rounding_distances, unit_roundoff

pytree: Any = compat.pytree()


#: The compiled code of all members belongs to the same Python code. With the default limit of 8
#: the ninth member would run interpreted without a warning.
RECOMPILE_LIMIT: Final = 256


#: Whole numbers in Python can be larger than any float.
_MOST: Final = sys.float_info.max
_ANY: Final = math.inf


@dataclass(repr=False)
class Member(Result):
    """One executor's part in a pair.

    Attributes:
        name: the executor's name.
        call: takes the model's inputs; None when the member failed.
        error: why it failed, or None.
        stage: what failed: ``making``, ``first call`` or ``second call``; else None.
        first_call_ns: making the callable and its first call, until the device had finished.
            It uses the compiler caches that earlier members filled.
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

    def _shown(self) -> Shown:
        if self.accuracy is None:
            return Shown(f"{self.name} failed in its {self.stage}: {self.error}")
        agrees = "agrees" if self.agrees else "too far"
        return Shown(f"{self.name} {agrees}: {self.accuracy.title}")

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        if self.error is not None:
            return {"name": self.name, "error": self.error, "stage": self.stage}
        assert self.accuracy is not None
        return {
            "name": self.name,
            "first_call_ns": self.first_call_ns,
            "graph_breaks": self.graph_breaks,
            **self.accuracy.document(),
            "agrees": self.agrees,
        }


def _double(value: Any) -> Any:
    def widen(t: torch.Tensor) -> torch.Tensor:
        if t.is_complex():
            return t.to(torch.complex128)
        return t.double() if t.is_floating_point() else t

    return convert(value, widen)


def _in_double(model: nn.Module) -> nn.Module:
    """Return a float64 copy; ``double()`` leaves complex parameters as they are."""
    doubled: nn.Module = compat.convert(copy.deepcopy(model).double(), _double)
    return doubled


@dataclass(frozen=True)
class Reference:
    """What a model gives in float64.

    Attributes:
        results: of its first calls.
        left: why that is no truth: what leaves float64 nevertheless. Empty if nothing does.
    """

    results: tuple[Any, ...]
    left: str = ""


def reference(model: nn.Module, inputs: tuple[Any, ...], calls: int = 1) -> Reference:
    """Return the results of the first calls of a float64 copy of the model on float64 inputs.

    Shorter types that the model names compute in float64, too: see :class:`.DoublePrecision`.

    Raises:
        ExecutorError: the copy fails, for instance because it reads the bits of float32 numbers.
    """
    given = _double(inputs)

    def run() -> tuple[Any, ...]:
        exact = _in_double(model)
        return tuple(convert(exact(*copies(given)), torch.clone) for _ in range(calls))

    mode = DoublePrecision()
    with torch.no_grad():
        try:
            with mode:
                results = run()
            return Reference(results, f"{mode.left} leaves float64" if mode.left else "")
        except Exception:
            unseen = "it does not run under a mode of torch's dispatcher, which would look"
        try:
            return Reference(run(), unseen)
        except Exception as error:
            raise ExecutorError(
                "Forms of a model are judged by its result in float64, and this model fails in "
                f"float64: {_reason(error)}. Let tensors made in forward() take dtype and device "
                "from the inputs."
            ) from error


def _rounding(
    model: nn.Module, inputs: tuple[Any, ...], exact: Reference
) -> list[tuple[float, ...]]:
    unit = unit_roundoff(model, inputs)
    return rounding_distances(_in_double(model), _double(inputs), exact.results, unit)


def copies(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return copies that a model may write into, in the same memory formats."""
    with torch.inference_mode(False), torch.no_grad():
        copied: tuple[Any, ...] = convert(inputs, torch.clone)
    return copied


def _decided_by(eager: Any, reference: Any) -> Any:
    """Return the reference with the integers and flags of the eager result.

    The reference cannot judge those: near a tie float64 may decide otherwise.
    """
    mine, structure = pytree.tree_flatten(eager)
    theirs, wanted = pytree.tree_flatten(reference)
    if structure != wanted:
        return reference
    leaves = [
        a if isinstance(a, torch.Tensor) and not (a.is_floating_point() or a.is_complex()) else b
        for a, b in zip(mine, theirs, strict=True)
    ]
    return pytree.tree_unflatten(leaves, structure)


def _reason(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"[:500]


@dataclass(repr=False)
class ModelPair(Result, Interruptible):
    """The members of one model: eager first, then in the order they were asked for.

    Attributes:
        inputs: the tuple that all members are called with.
        members: by executor name, the failed ones included.
        tolerance: see :func:`model_pair`.
        timing: the interleaved measurement; None before :meth:`measure`.
        interrupted: whether Ctrl-C came before all members were made; the rest failed.
        wanted: the references of the first two calls; see :meth:`judge`.
        left: why they are no truth, see :class:`Reference`; empty if they are.
        exact: the accuracy of the eager results of these calls.
        rounding: returns how far rounding may bring the outputs of these calls from the
            references; see :func:`error_model.rounding_distances`. It is called once, if a
            result is too far by the eager result alone.
    """

    inputs: tuple[Any, ...]
    members: dict[str, Member]
    tolerance: float
    device: torch.device
    timing: Comparison | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    wanted: Sequence[Any] = ()
    left: str = ""
    exact: Sequence[Accuracy] = ()
    rounding: Callable[[], list[tuple[float, ...]]] | None = field(default=None, repr=False)
    _earned: list[tuple[float, ...]] | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return a member's callable.

        Raises:
            ExecutorError: there is no such member, or it failed; the message says why.
        """
        if name not in self.members:
            raise ExecutorError(f"{name!r} is not in this pair. {nearest(name, self.members)}")
        member = self.members[name]
        if member.call is None:
            raise ExecutorError(f"{name} failed in its {member.stage}: {member.error}")
        return member.call

    @property
    def working(self) -> list[str]:
        """Names of the members that run."""
        return [name for name, member in self.members.items() if member.call is not None]

    @property
    def failures(self) -> dict[str, str]:
        """Reasons of the members that do not run."""
        return {name: m.error for name, m in self.members.items() if m.error is not None}

    def judge(self, member: Member, outputs: Sequence[Any]) -> None:
        """Set a member's accuracy from its first two calls, and whether it agrees.

        One eager result is one sample of a random error, so a result that is too far by that
        sample is judged again by how far rounding may bring any order of computation.

        The accuracy is that of the second call if only this call is out of tolerance.
        """
        found = [accuracy(mine, theirs) for mine, theirs in zip(outputs, self.wanted, strict=True)]
        agree = [
            mine.within(self.tolerance, eager) or mine.within(self.tolerance, self._rounded(call))
            for call, (mine, eager) in enumerate(zip(found, self.exact, strict=True))
        ]
        member.agrees = all(agree)
        member.accuracy = found[0]
        if agree == [True, False]:
            member.accuracy = replace(
                found[1],
                problem=f"the second call differs, {found[1].problem or 'in its values'}: does "
                "the model keep state from call to call, which this executor drops?",
            )

    def _rounded(self, call: int) -> Accuracy:
        """Return the eager accuracy of a call with the distances that rounding may reach."""
        if self.rounding is None:
            return self.exact[call]
        if self._earned is None:
            self._earned = self.rounding()
        eager = self.exact[call]
        earned = self._earned[call]
        if len(earned) != len(eager.distances):
            return eager
        return replace(eager, distances=tuple(map(max, eager.distances, earned)))

    def check(self) -> None:
        """Check that all working members agree.

        Raises:
            DisagreementError: names the members that do not, with their distances.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        wrong = []
        for name, member in self.members.items():
            found = member.accuracy
            if found is None or member.agrees:
                continue
            wrong.append(
                f"{name}: distance {found.distance:.3g}, worst {found.worst_ulp} ULP"
                + (f" ({found.problem})" if found.problem else "")
            )
        if wrong:
            eager = self.members["eager"].accuracy
            assert eager is not None
            raise DisagreementError(
                f"More than {self.tolerance:g} times as far from the float64 reference as the "
                f"eager result ({eager.distance:.3g}){self._explained()}: {'; '.join(wrong)}. "
                + (f"{self._no_truth()}. " if self.left else "")
                + "Leave the executor out, or give a larger tolerance if this model can bear it."
            )

    def _explained(self) -> str:
        """Say how far rounding explains a distance, if that was asked."""
        reached = max((far for call in self._earned or () for far in call), default=0.0)
        return f" and as rounding explains ({reached:.3g})" if reached else ""

    def _no_truth(self) -> str:
        return f"There is no truth, so no distance is an error: in the reference, {self.left}"

    def measure(self, **options: Any) -> Comparison:
        """Time the working members, interleaved, under ``no_grad``.

        Args:
            options: as for :func:`~pytest_udftorch.measure.sync_timer`.

        Raises:
            MeasureError: an unknown option, or options that make no measurement.
        """
        timer = SyncTimer(self.device, **options)
        calls = {name: functools.partial(self[name], *self.inputs) for name in self.working}
        with torch.no_grad(), recompile_limits():
            self.timing = timer.compare(calls)
        return self.timing

    def break_even_calls(self, name: str, over: str = "eager") -> int | None:
        """Return the number of calls after which ``name`` has cost less than ``over``.

        Both cost their first call, which includes making them, and every later call. The result
        is None if the measurement does not find ``name`` faster: it then never pays.

        Raises:
            ExecutorError: not measured, or a member failed.
        """
        if self.timing is None:
            raise ExecutorError("Nothing has been timed yet. Call measure() first.")
        self[name], self[over]
        if name == over or self.timing.verdict(name, over) != "faster":
            return None
        saved = self.timing[over].median_ns - self.timing[name].median_ns
        spent = self.members[name].first_call_ns - self.members[over].first_call_ns
        return max(1, 1 + math.ceil(spent / saved))

    def _shown(self) -> Shown:
        rows = []
        for name, member in self.members.items():
            if member.accuracy is None:
                rows.append((name, f"failed in its {member.stage}", "", "", member.error or ""))
                continue
            found = member.accuracy
            first = time_text(member.first_call_ns)
            took = (
                self.timing[name].median_text if self.timing and name in self.timing.timings else ""
            )
            rows.append((name, "agrees" if member.agrees else "too far", found.title, first, took))
        header = ("member", "result", "distance to float64, worst", "first call", "median")
        notes = ["Ctrl-C came before all members were made."] if self.interrupted else []
        notes += [f"{self._no_truth()}."] if self.left else []
        notes += [] if self.timing else ["measure() times the members."]
        count = f"{len(self.working)} of {len(self.members)} forms run"
        return Shown(f"{count}, on {self.device}", header, rows, notes)

    def document(self) -> dict[str, Any]:
        """Return plain data: environment, members, and the measurement if there is one."""
        members = {name: member.document() for name, member in self.members.items()}
        result: dict[str, Any] = {
            **self.environment,
            "tolerance": self.tolerance,
            "interrupted": self.interrupted,
            "no_truth": self.left,
            "members": members,
        }
        if self.timing is not None:
            result["measurement"] = self.timing.document()
            for name in self.working:
                members[name]["break_even_calls"] = self.break_even_calls(name)
        return result


def _same_bits(eager: Any, found: Any) -> bool:
    """Whether two results have the same structure, and tensors of the same kinds and bits."""
    (mine, form), (theirs, other) = (pytree.tree_flatten(result) for result in (eager, found))
    if form != other:
        return False
    for a, b in zip(mine, theirs, strict=True):
        if type(a) is not torch.Tensor or type(b) is not torch.Tensor:
            return False
        if any(getattr(a, what) != getattr(b, what) for what in ("shape", "dtype", "device")):
            return False
        if a.layout != torch.strided or b.layout != torch.strided or a.is_quantized:
            return False
        bytes_of = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
        if a.numel() and not torch.equal(*bytes_of):
            return False
    return True


def judge_call(model: nn.Module, inputs: tuple[Any, ...], call: Callable[..., Any]) -> str:
    """Return why a call is no form of the model on these inputs, by a pair's measure; or "".

    Raises:
        ExecutorError: the model fails in float64.
        Exception: whatever the call raises.
    """
    with torch.no_grad():
        eager = convert(copied(model)(*copies(inputs)), torch.clone)
        found = convert(call(*copies(inputs)), torch.clone)
    if _same_bits(eager, found):
        return ""  # without the float64 result, which costs several calls
    wanted = reference(model, inputs)
    pair = ModelPair(inputs, {}, TOLERANCE, torch.device("cpu"))
    pair.wanted = [_decided_by(eager, wanted.results[0])]
    pair.rounding = functools.partial(_rounding, model, inputs, wanted)
    pair.exact = [accuracy(eager, pair.wanted[0])]
    member = Member("call")
    pair.judge(member, [found])
    if member.agrees or member.accuracy is None:
        return ""
    own = member.accuracy
    return own.problem or (
        f"its distance to the float64 result is {own.distance:.3g}, eager's "
        f"{pair.exact[0].distance:.3g}"
    )


def recompile_limits() -> Any:
    """Return a context in which the code of many members stays compiled."""
    return compat.dynamo_config(
        recompile_limit=RECOMPILE_LIMIT, accumulated_recompile_limit=RECOMPILE_LIMIT
    )


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of the model.

    Raises:
        MeasureError: it cannot be copied.
    """
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise MeasureError(
            f"The model cannot be copied, and each of its forms needs a copy: {_reason(error)}. "
            "Keep locks, generators and open files out of it; after torch.nn.utils.weight_norm "
            "call it under no_grad, or use torch.nn.utils.parametrizations.weight_norm."
        ) from error


def on_device(
    model: nn.Module, inputs: tuple[Any, ...], device: str | torch.device | None
) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return model and inputs, or a copy of both on the device if one is given."""
    if device is None:
        return model, inputs
    target = require_device(device)
    return copied(model).to(target), convert(inputs, lambda t: t.to(target))


def writes_inputs(model: nn.Module, inputs: tuple[Any, ...]) -> bool:
    """Whether a call of the model changes what it is given."""
    given = copies(inputs)
    before = [compat.write_count(t) for t in tensors_in(given)]
    with torch.no_grad():
        copied(model)(*given)
    return [compat.write_count(t) for t in tensors_in(given)] != before


def check_inputs(model: nn.Module, inputs: tuple[Any, ...]) -> torch.device:
    """Return the device that model and inputs lie on.

    Raises:
        MeasureError: they make no pair; the message says why.
    """
    copied(model)
    compiled = compiled_part(model)
    if compiled is not None:
        raise MeasureError(
            f"{compiled} is compiled already, so compiling cannot be compared with anything. "
            "Give the model that torch.compile was given, or one made without model.compile()."
        )
    if model.training:
        raise MeasureError(
            "The model is in training mode: dropout and batch statistics would make its forms "
            "differ by chance. Call model.eval()."
        )
    tensors = tensors_in(inputs)
    devices = {t.device for t in (*model.parameters(), *model.buffers(), *tensors)}
    if not tensors or len(devices) != 1:
        where = ", ".join(sorted(map(str, devices))) or "nowhere"
        raise MeasureError(
            f"Model and inputs lie on: {where}. Give at least one tensor, and move model and "
            "inputs to one device."
        )
    return devices.pop()


def _make(
    executor: Executor, model: nn.Module, inputs: tuple[Any, ...]
) -> tuple[Member, tuple[Any, ...]]:
    """Return the member, and the results of its first two calls."""

    def wait() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    member = Member(executor.name, stage="making")
    breaks = compat.graph_breaks()
    outputs: list[Any] = []
    try:
        executor.check(inputs)
        own = copy.deepcopy(model)
        # Tracing calls the model too, and a model may write into its inputs.
        example, first, second = (copies(inputs) for _ in range(3))
        wait()
        before = time.perf_counter_ns()
        with torch.no_grad(), recompile_limits():
            call = executor.make_callable(own, example)
            member.stage = "first call"
            # A replay overwrites its outputs, so the outputs that are compared are copies.
            output = call(*first)
            wait()
            member.first_call_ns = time.perf_counter_ns() - before
            outputs.append(convert(output, torch.clone))
            member.stage = "second call"
            outputs.append(convert(call(*second), torch.clone))
        member.call, member.stage = call, None
    except Exception as error:
        member.error = str(error) if isinstance(error, ExecutorUnavailableError) else _reason(error)
    member.graph_breaks = compat.graph_breaks() - breaks
    return member, tuple(outputs)


def _random_state(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


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
        inputs: a tensor, or the positional arguments; left as they are.
        executors: names for ``executors.resolve`` or executors, one or more. ``eager`` is
            always made.
        device: if given, a copy of the model and the inputs are moved there first.
        tolerance: a member agrees if, in its first two calls, the distance of each output to the
            float64 reference is at most this many times the eager result's, or this many times
            what rounding explains (see ``judge.error_model``), or 4 units of its dtype's
            precision. Integers and flags have to equal the eager result's.
        progress: called with members made, members in all, and a text.

    Raises:
        DeviceMissingError: CUDA was asked for and is absent; the text can be a skip's reason.
        MeasureError: no module, training mode, tensors on several devices, a dict of keywords,
            random numbers in forward(), a part that is compiled already or cannot be copied,
            two executors of one name, or a tolerance below 0.
        ExecutorError: no such executor; the eager model itself fails; the model fails in float64.
        KeyboardInterrupt: on Ctrl-C before the eager model and its reference were made.
    """
    arguments = positional(model, inputs)
    if not (isinstance(tolerance, int | float) and (0 <= tolerance <= _MOST or tolerance == _ANY)):
        raise MeasureError(
            f"tolerance={shown(tolerance)}: give a number of at least 0. It says how many times "
            "the eager result's distance a member may have."
        )
    model, arguments = on_device(model, arguments, device)
    home = check_inputs(model, arguments)
    chosen = _resolved(executors)
    # Timed calls may write into their inputs, and must not write into the caller's.
    pair = ModelPair(copies(arguments), {}, tolerance, home, environment=describe_device(home))
    try:
        for done, executor in enumerate(chosen):
            if progress is not None:
                progress(done, len(chosen), f"making {executor.name}")
            drawn = _random_state(home)
            member, outputs = _make(executor, model, arguments)
            if executor.name == "eager":
                _check_eager(member, drawn, _random_state(home))
                doubled = reference(model, arguments, len(outputs))
                pair.left = doubled.left
                pair.wanted = list(map(_decided_by, outputs, doubled.results))
                pair.rounding = functools.partial(_rounding, model, arguments, doubled)
                pair.exact = list(map(accuracy, outputs, pair.wanted))
            if member.error is None:
                pair.judge(member, outputs)
            pair.members[executor.name] = member
    except KeyboardInterrupt:
        if not pair.members:
            raise
        pair.interrupted = True
        for executor in chosen:
            left = Member(executor.name, error="not made: interrupted", stage="making")
            pair.members.setdefault(executor.name, left)
    return pair


def _resolved(executors: str | Executor | Sequence[str | Executor]) -> list[Executor]:
    """Return the executors of a pair: eager first, each once."""
    several = isinstance(executors, Iterable) and not isinstance(executors, str)
    given: Any = executors if several else [executors]
    for one in (given := list(given)):
        resolve(one)  # before they are compared with each other
    chosen = [resolve(e) for e in dict.fromkeys(["eager", *given])]
    names = [e.name for e in chosen]
    for name in names:
        if names.count(name) > 1:
            raise MeasureError(
                f"Two executors are named {name!r}, and one would hide the other. Rename one."
            )
    return chosen


def _check_eager(
    member: Member, before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]
) -> None:
    """Check that the model runs, and that it left the state of the generators as it was."""
    if member.error is not None:
        raise ExecutorError(
            f"The model itself fails on these inputs, under no_grad: {member.error}"
        )
    if not all(map(torch.equal, before, after)):
        raise MeasureError(
            "The model draws random numbers in forward(), so its forms would differ by chance. "
            "Give it the noise as an input, or a constant."
        )
