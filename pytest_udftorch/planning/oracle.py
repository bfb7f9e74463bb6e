"""Find, keep and apply the fastest way to run a model that a measurement supports.

``oracle(model, inputs)`` measures uniform executors (the whole model one way), cuts the model
into units, measures each unit in its place under each executor that can still win, and
searches segments of neighbouring units (see ``plans.segment_search``). The winner must beat the
best uniform executor in a fresh, interleaved measurement; otherwise the plan *is* that
executor, so that applying a plan never makes a model slower than the best uniform choice.

"In its place" means: on CUDA all units are captured in one graph with event nodes between
them, so that a unit's time contains its neighbours' effect on caches and none of the launch.
On CPU the clock is read between the units of a running chain.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import functools
import io
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils import _pytree as pytree

from pytest_udftorch.errors import UdfError
from pytest_udftorch.planning import executors as registry
from pytest_udftorch.planning import plans, roofline
from pytest_udftorch.planning.cuda_graph import capture
from pytest_udftorch.planning.executor import convert, to_channels_last
from pytest_udftorch.planning.fusion import UntraceableModelError
from pytest_udftorch.planning.pairs import (
    Member,
    ModelPair,
    _limits,
    check_inputs,
    copied,
    copies,
    model_pair,
    writes_inputs,
)
from pytest_udftorch.planning.plans import Choice, PlanMismatchError, StoredPlan
from pytest_udftorch.planning.segments import Units
from pytest_udftorch.timing.layers import positional
from pytest_udftorch.timing.statistics import FEWEST_RUNS, median
from pytest_udftorch.timing.timers import Comparison, SyncTimer, cuda_event, require_device, untyped

__all__ = [
    "JournalError",
    "OracleOptionError",
    "Plan",
    "PlanInputsError",
    "PlanMismatchError",
    "oracle",
]

#: Executors of segments and, applied to the whole model, the uniform ones.
EXECUTORS: Final = {
    "cpu": ("eager", "eager+channels_last", "compile", "compile+channels_last"),
    "cuda": (
        "eager",
        "eager+channels_last",
        "compile",
        "compile+channels_last",
        "eager+fused+streams",
        "eager+fused+channels_last+streams",
        "compile+fused+channels_last",
    ),
}

#: An executor whose uniform time is more than this many times the best one's is not tried on
#: units: a unit would have to differ from the model's average by as much.
HOPELESS: Final = 1.4

#: A plan must be predicted at least this much faster than the best uniform executor before
#: longer segments are compiled for it.
WORTHWHILE: Final = 0.999

#: Longer segments compiled at most for one plan.
MOST_SEGMENTS: Final = 8

#: Prefix of the profiler ranges, so that they are told from the model's own.
_RANGE: Final = "udftorch::unit::"

Guard = Callable[[], AbstractContextManager[Any]]


class OracleOptionError(UdfError):
    """Options that make no plan."""


class JournalError(UdfError):
    """The journal of a search cannot be written, or is a file of something else."""


class PlanInputsError(UdfError):
    """A plan that was read from a file is applied without inputs, which the file does not hold."""


class _Text(str):
    """A string that is its own repr."""

    __slots__ = ()
    __repr__ = str.__str__


def _describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        # Tensors within a list or dict are described too, and not their values.
        return repr(pytree.tree_map_only(torch.Tensor, lambda t: _Text(_describe(t)), value))
    layout = ""
    if value.dim() == 4 and not value.is_contiguous():
        layout = " channels_last"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{layout}"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    from pytest_udftorch.native.machine import cpu_model

    return cpu_model()


def _home(inputs: Sequence[Any]) -> torch.device:
    tensors = [t for t in pytree.tree_leaves(list(inputs)) if isinstance(t, torch.Tensor)]
    return tensors[0].device if tensors else torch.device("cpu")


class _Chain(nn.Module):
    """Segments run one after the other; what crosses a boundary is one value."""

    def __init__(self, calls: Sequence[Callable[..., Any]]) -> None:
        super().__init__()
        self.calls = list(calls)

    def forward(self, *inputs: Any) -> Any:
        value = self.calls[0](*inputs)
        for call in self.calls[1:]:
            value = call(value)
        return value


@dataclass
class Plan:
    """A plan that can be applied, kept, and read again.

    Attributes:
        stored: what :meth:`save` writes.
        inputs: those that the plan was made with; None after :meth:`load`.
    """

    stored: StoredPlan
    inputs: tuple[Any, ...] | None = field(default=None, repr=False, compare=False)

    @property
    def report(self) -> dict[str, Any]:
        """What was measured when the plan was made."""
        return self.stored.report

    @property
    def uniform(self) -> str | None:
        """The executor of the whole model, or None for a plan of several segments."""
        only = self.stored.segments
        return only[0][2] if len(only) == 1 else None

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        self.stored.save(path)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan; see :meth:`StoredPlan.load` for the errors."""
        return cls(StoredPlan.load(path))

    def apply(
        self, model: nn.Module, inputs: Sequence[Any] | torch.Tensor | None = None
    ) -> Callable[..., Any]:
        """Return a callable that runs a copy of ``model`` by the plan, without gradients.

        On CUDA the callable replays a graph: its output is overwritten by the next call.

        Args:
            model: of the architecture the plan was made for; its weights may be others.
            inputs: a tensor or the positional arguments, of the shapes the plan was made for;
                by default those that it was made with.

        Raises:
            PlanMismatchError: another model, shapes, device or torch version.
            PlanInputsError: no inputs, and the plan was read from a file.
        """
        if inputs is None and self.inputs is None:
            raise PlanInputsError(
                "A plan's file holds no inputs. Give some of the shapes that it was made for: "
                f"plan.apply(model, inputs) with {', '.join(self.stored.inputs)}."
            )
        arguments = positional(model, self.inputs if inputs is None else inputs)
        traced = copied(model).eval()
        units = None
        if len(self.stored.bounds) > 2:
            with contextlib.suppress(UntraceableModelError):
                units = Units(traced, arguments, bounds=self.stored.bounds)
        # A model that cannot be traced is another one than was cut into units.
        self.stored.check(
            model=_fingerprint(traced, units),
            inputs=[_describe(t) for t in arguments],
            device=_device_name(_home(arguments)),
            torch=str(torch.__version__),
        )
        name = self.uniform
        if name is not None:
            full = f"{name}+cudagraph" if self.stored.cuda_graph else name
            # Tracing calls the model, which may keep state: its first call is still to come.
            own = copied(model).eval()
            with torch.no_grad():
                call = registry.make(registry.resolve(full), own, copies(arguments))
            return call if self.stored.cuda_graph else _guarded(call)
        assert units is not None
        bench = _Bench(units, arguments)
        chain = bench.chain(list(self.stored.segments))
        return capture(chain, arguments) if self.stored.cuda_graph else _guarded(chain)


def _fingerprint(model: nn.Module, units: Units | None) -> str:
    if units is not None:
        return units.fingerprint
    shapes = sorted((k, tuple(v.shape), str(v.dtype)) for k, v in model.state_dict().items())
    return f"{type(model).__name__} of {len(shapes)} tensors, {hash_text(repr(shapes))}"


def _guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the callable without gradients: with them compilers make other code."""

    def run(*arguments: Any) -> Any:
        with torch.no_grad():
            return call(*arguments)

    return run


def hash_text(text: str) -> str:
    """Return a short digest."""
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Bench:
    """Makes segments' callables, each once, and times units in their place."""

    def __init__(self, units: Units, inputs: tuple[Any, ...]) -> None:
        self.units, self.inputs = units, inputs
        self.on_cuda = _home(inputs).type == "cuda"
        self._made: dict[Choice, Callable[..., Any]] = {}
        self.compile_ns: dict[str, int] = {}
        self._activations = units.activations(inputs)

    def make(self, choice: Choice) -> Callable[..., Any]:
        """Return the callable of a segment, making and calling it if it is new."""
        if choice not in self._made:
            first, stop, name = choice
            before = time.perf_counter_ns()
            arguments = self._activations[first]
            call = registry.make(registry.resolve(name), self.units.segment(first, stop), arguments)
            with torch.no_grad(), _limits():
                call(*arguments)
                # What the segment meets after a neighbour in the other memory format. One that
                # cannot take it (a view of the pixels) still serves after other neighbours; FX
                # would print why it cannot.
                with contextlib.suppress(RuntimeError), contextlib.redirect_stderr(io.StringIO()):
                    call(*to_channels_last(arguments))
            key = f"{first}:{stop} {name}"
            self.compile_ns[key] = time.perf_counter_ns() - before
            self._made[choice] = call
        return self._made[choice]

    def chain(self, segments: Sequence[Choice]) -> _Chain:
        return _Chain([self.make(choice) for choice in segments])

    def time_in_place(self, segments: Sequence[Choice], runs: int) -> list[float]:
        """Return the time of each segment within one pass over all, medians over ``runs``."""
        calls = [self.make(choice) for choice in segments]
        if not self.on_cuda:
            return self._time_on_cpu(calls, runs)
        marks = [cuda_event(external=True) for _ in range(len(calls) + 1)]

        def run(*arguments: Any) -> Any:
            marks[0].record()
            value = calls[0](*arguments)
            marks[1].record()
            for call, mark in zip(calls[1:], marks[2:], strict=True):
                value = call(value)
                mark.record()
            return value

        replay = untyped(capture)(_plain_when_warm(run, calls), self.inputs)
        rows = []
        for _ in range(runs + 3):
            replay(*replay.inputs)
            torch.cuda.synchronize()
            rows.append([1e6 * a.elapsed_time(b) for a, b in itertools.pairwise(marks)])
        return [median(column) for column in zip(*rows[3:], strict=True)]

    def profile_in_place(self, segments: Sequence[Choice], passes: int = 5) -> list[float]:
        """Return the profiler's time of each segment, medians over ``passes``.

        On CUDA the sum of the kernels' times: what runs side by side counts twice, and waiting
        for launches not at all. On CPU the host time of the segment's range.
        """
        calls = [self.make(choice) for choice in segments]
        activities = [ProfilerActivity.CPU]
        if self.on_cuda:
            activities.append(ProfilerActivity.CUDA)
        with torch.no_grad(), profile(activities=activities, acc_events=True) as profiled:
            for _ in range(passes):
                value: Any = self.inputs
                for number, call in enumerate(calls):
                    with record_function(f"{_RANGE}{number}"):
                        value = call(*value) if number == 0 else call(value)
                        if self.on_cuda:
                            # The segment's kernels then lie within its range.
                            torch.cuda.synchronize()
        events = list(profiled.events())
        ranges = [e for e in events if e.name.startswith(_RANGE) and e.device_type.name == "CPU"]
        ranges.sort(key=lambda e: float(e.time_range.start))
        # The profiler counts microseconds.
        if self.on_cuda:
            spent = [0.0] * len(ranges)
            starts = [float(e.time_range.start) for e in ranges]
            for event in events:
                if event.device_type.name == "CUDA" and not event.is_user_annotation:
                    place = bisect.bisect_right(starts, float(event.time_range.start)) - 1
                    spent[max(place, 0)] += 1e3 * float(event.time_range.elapsed_us())
        else:
            spent = [1e3 * float(e.time_range.elapsed_us()) for e in ranges]
        return [median(spent[number :: len(calls)]) for number in range(len(calls))]

    def _time_on_cpu(self, calls: Sequence[Callable[..., Any]], runs: int) -> list[float]:
        rows = []
        with torch.no_grad():
            for _ in range(runs + 3):
                marks = [time.perf_counter_ns()]
                value: Any = self.inputs
                for number, call in enumerate(calls):
                    value = call(*value) if number == 0 else call(value)
                    marks.append(time.perf_counter_ns())
                rows.append([float(b - a) for a, b in itertools.pairwise(marks)])
        return [median(column) for column in zip(*rows[3:], strict=True)]

    def switch_ns(self, unit: int, runs: int) -> dict[bool, float]:
        """Return what a change of memory format costs before ``unit``: to channels_last, back."""
        value = self._activations[unit][0]
        if not isinstance(value, torch.Tensor) or value.dim() != 4:
            return {True: 0.0, False: 0.0}
        last = value.contiguous(memory_format=torch.channels_last)
        plain = value.contiguous()
        found = {}
        for to_last, source in ((True, plain), (False, last)):
            target = torch.channels_last if to_last else torch.contiguous_format

            def change(x: torch.Tensor, target: Any = target) -> list[torch.Tensor]:
                return [x.contiguous(memory_format=target) for _ in range(10)]

            run: Callable[..., Any] = change
            if self.on_cuda:
                run = capture(change, (source,))
            arguments = getattr(run, "inputs", (source,))
            timer = SyncTimer(source.device, runs=3, rounds=runs, warmup=1, gpu_state=False)
            timed = timer.compare({"change": functools.partial(run, *arguments)}).complete()
            found[to_last] = timed["change"].median_ns / 10
        return found


def _plain_when_warm(run: Callable[..., Any], calls: Sequence[Callable[..., Any]]) -> Any:
    """Return ``run`` for the capture and the bare chain before it.

    External events may only be recorded while a graph is being captured.
    """
    chain = _Chain(calls)

    def either(*arguments: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            return run(*arguments)
        return chain(*arguments)

    return either


def _last(name: str) -> bool:
    return "channels_last" in name


@dataclass
class _Search:
    """State of one search; written to the journal after each step."""

    report: dict[str, Any] = field(default_factory=dict)
    journal: Path | None = None
    progress: Callable[[int, int, str], None] | None = None
    inputs: tuple[Any, ...] = ()
    began_ns: int = field(default_factory=time.perf_counter_ns)
    step: int = 0
    steps: int = 0

    def say(self, text: str) -> None:
        self.step += 1
        if self.progress is not None:
            self.progress(self.step, max(self.steps, self.step), text)

    def keep(self, **entries: Any) -> None:
        self.report.update(entries)
        if self.journal is not None:
            # Whole or not at all: a search may be stopped at any time.
            scratch = self.journal.with_name(f"{self.journal.name}.partial")
            try:
                scratch.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
                os.replace(scratch, self.journal)
            except OSError as error:
                raise JournalError(
                    f"{self.journal} cannot be written ({error.strerror}). Name a file in a "
                    "folder that may be written to and has room."
                ) from error


def _resume(journal: Path | None, key: dict[str, Any]) -> dict[str, Any]:
    """Return what a journal holds of the same search.

    Raises:
        JournalError: its folder is missing, or it is no journal and would be overwritten.
    """
    if journal is None:
        return {}
    if not journal.parent.is_dir():
        raise JournalError(f"{journal.parent}, the folder of the journal, does not exist. Make it.")
    if not journal.exists():
        return {}
    try:
        found = json.loads(journal.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not {"inputs", "device", "torch", "executors"} <= set(found):
        raise JournalError(
            f"{journal} is no journal of a search, and is left alone. Name another file, or "
            "delete it."
        )
    if any(found.get(k) != v for k, v in key.items()):
        return {}
    # Only what was measured is taken over; conclusions are drawn anew.
    kept = {k: found[k] for k in ("bounds", "unit_ns", "unit_profiled_ns") if k in found}
    try:
        count = len(kept.get("bounds", [])) - 1
        rows = [row for k in kept if k != "bounds" for row in kept[k].values()]
        fits = all(len(row) == count and min(row) > 0 for row in rows)
    except (TypeError, AttributeError, ValueError):
        fits = False
    if not fits:
        raise JournalError(
            f"{journal} is damaged: its times do not fit its units. Delete it; the search then "
            "starts anew."
        )
    return kept


def _graph(model: nn.Module) -> str:
    """Return a digest of what units are cut from: the traced model and its parameters' shapes."""
    try:
        traced = Units(copy.deepcopy(model), (), bounds=()).fingerprint
    except UntraceableModelError:
        return _fingerprint(model, None)
    return hash_text(traced)


def oracle(
    model: nn.Module,
    inputs: Sequence[Any] | torch.Tensor,
    *,
    executors: str | Sequence[str] | None = None,
    opponents: Sequence[str] | None = None,
    device: str | torch.device | None = None,
    max_units: int = 8,
    budget: float = 2.0,
    max_ulp: int | None = None,
    expected_calls: float = math.inf,
    runs: int = 20,
    rounds: int = 10,
    max_seconds: float = 600.0,
    journal: str | Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    compiling: Guard = contextlib.nullcontext,
    measuring: Guard = contextlib.nullcontext,
) -> Plan:
    """Make a plan for a model on these inputs.

    Args:
        model: in evaluation mode; left as it is. If FX cannot trace it, or it writes into its
            inputs, the plan is the best uniform executor.
        inputs: a tensor, or the positional arguments, on the device to plan for.
        executors: of segments; by default those of :data:`EXECUTORS`. On CUDA everything runs
            in a CUDA graph, and ``+cudagraph`` is not to be named.
        opponents: executors that plans are only measured against; by default, on CUDA, what a
            plain ``compile`` gives.
        device: if given, a copy of the model and the inputs are moved there first.
        max_units: at most this many units.
        budget: an executor whose uniform result is farther from the float64 reference than
            this many times the eager one's is not used, and neither is such a plan.
        max_ulp: likewise, for the largest ULP distance of an output element.
        expected_calls: how often the plan will be called; first-call time divided by it counts
            as cost of an executor. Infinite: compiling is free.
        runs: medians of a measurement; the last one is fresh and interleaved.
        rounds: timed calls in a run.
        max_seconds: no segment is compiled after this time; the search ends with what it has.
        journal: file for what was measured; a search of the same model and options over the
            same file goes on from it, and Ctrl-C leaves it complete.
        progress: called with steps done, steps in all, and a text; the first says about how
            long the search will take.
        compiling: context entered while executors are made; for machines shared by processes.
        measuring: context entered while the device is timed.

    Returns:
        The plan; its ``report`` holds every executor's time, the bounds, the other oracles'
        choices, the regret against the bound, and the fresh measurement.

    Raises:
        OracleOptionError: too few runs for a verdict, no unit, no call expected, executors with
            cudagraph, or an error budget that no executor keeps.
        JournalError: the journal's folder is missing, or the file is something else.
        DeviceMissingError, PairInputError, MemberFailedError, NoReferenceError,
            UnknownExecutorError: as from ``model_pair``.
    """
    arguments = positional(model, inputs)
    if device is not None:
        target = require_device(device)
        model = copied(model).to(target)
        arguments = convert(arguments, lambda t: t.to(target))
    home = _home(arguments)
    if home.type not in EXECUTORS:
        require_device(home)
    given = [executors] if isinstance(executors, str) else executors
    names = list(dict.fromkeys(given or EXECUTORS[home.type]))
    rivals = [opponents] if isinstance(opponents, str) else opponents
    for name in (*names, *(rivals or ())):
        if not isinstance(name, str):
            raise OracleOptionError(
                f"{name!r}: a plan keeps its executors by name. Add yours with "
                "executors.register(...) and give the name."
            )
        # Before the journal of an earlier search is written to.
        registry.resolve(name)
    check_inputs(model, arguments)
    whole = all(isinstance(n, int) for n in (runs, rounds, max_units))
    if not isinstance(max_seconds, int | float) or not max_seconds >= 0:
        raise OracleOptionError(f"max_seconds={max_seconds}: give seconds, 0 or more.")
    if not whole or rounds < 1 or not budget > 0 or (max_ulp is not None and max_ulp < 0):
        raise OracleOptionError(
            f"runs={runs}, rounds={rounds}, max_units={max_units}, budget={budget}, "
            f"max_ulp={max_ulp}: whole numbers of runs, rounds and units, at least one round, and "
            "an error budget that is positive."
        )
    if runs < FEWEST_RUNS or max_units < 1 or any("cudagraph" in name for name in names):
        raise OracleOptionError(
            f"runs={runs}, max_units={max_units}, executors={names}: a verdict needs "
            f"{FEWEST_RUNS} runs, a plan one unit, and CUDA graphs are added by the oracle."
        )
    if not expected_calls > 0:
        raise OracleOptionError(
            f"expected_calls={expected_calls}: what compiling costs is shared out over the calls "
            "that are expected. Give a positive number, or leave it out: compiling is then free."
        )
    if "eager" not in names:
        names.insert(0, "eager")
    suffix = "+cudagraph" if home.type == "cuda" else ""
    key = {
        "inputs": [_describe(t) for t in arguments],
        "device": _device_name(home),
        "torch": str(torch.__version__),
        "executors": names,
        "graph": _graph(model),
        "max_units": max_units,
    }
    state = _Search(journal=Path(journal) if journal else None, progress=progress, inputs=arguments)
    state.report = _resume(state.journal, key)
    state.keep(**key, cuda_graph=bool(suffix))

    if rivals is None:
        rivals = ["compile"] if suffix and any(n.startswith("compile") for n in names) else []
    state.steps = len(names) + len(rivals) + 5
    with compiling():
        pair = model_pair(
            model,
            arguments,
            [*(name + suffix for name in names), *rivals],
            tolerance=budget,
            progress=lambda done, of, text: state.say(text),
        ).complete()
    allowed = _within_budget(pair, names, suffix, max_ulp)
    with measuring():
        uniform = pair.measure(runs=runs, rounds=rounds, warmup=5).complete()
    whole_ns = {
        name: uniform[name + suffix].median_ns
        + pair.members[name + suffix].first_call_ns / expected_calls
        for name in allowed
    }
    best = min(whole_ns, key=whole_ns.__getitem__)
    state.keep(
        uniform={
            name: round(uniform[name + suffix].median_ns, 1)
            for name in names
            if name + suffix in uniform.timings
        },
        members={name: member.to_json() for name, member in pair.members.items()},
        best_uniform=best,
        uniform_measurement=uniform.to_json(),
    )
    state.say("the device's ceilings")
    with measuring():
        ceilings = roofline.ceilings(home)
    # It runs the model, whose state and inputs are the caller's.
    needed = roofline.work(copied(model), copies(arguments))
    least = roofline.bound_ns(needed, ceilings)
    state.keep(
        work=asdict(needed),
        ceilings=ceilings.to_json(),
        roofline_ns=round(least, 1),
        uniform_regret_over_roofline={
            name: round(timing.median_ns / least - 1, 4) if least else None
            for name, timing in uniform.timings.items()
        },
    )
    units = None
    if writes_inputs(model, arguments):
        # Units are timed on the same values again and again.
        state.keep(not_cut="the model writes into its inputs")
    else:
        units = _cut(model, arguments, max_units, state)
    if units is None or len(units) < 2:
        return _uniform_plan(best, units, model, key, state, bool(suffix))
    bench = _Bench(units, arguments)
    made_ns = sum(m.first_call_ns for m in pair.members.values())
    state.say(
        f"{len(units)} units; compiling units takes about as long again as the "
        f"{made_ns / 1e9:.0f} s of the whole models, at most {max_seconds:.0f} s"
    )
    costs, profiled, switch = _candidates(
        bench, units, whole_ns, state, compiling, measuring, runs, expected_calls
    )
    if not costs:
        return _uniform_plan(best, units, None, key, state, bool(suffix))
    deadline = state.began_ns + max_seconds * 1e9
    segments = _find(
        bench,
        units,
        costs,
        profiled,
        whole_ns,
        switch,
        best,
        deadline,
        state,
        compiling,
        measuring,
        runs,
    )
    return _contest(
        bench,
        pair,
        segments,
        best,
        allowed,
        rivals,
        suffix,
        key,
        state,
        compiling,
        measuring,
        runs,
        rounds,
        max_ulp,
    )


def _within_budget(
    pair: ModelPair, names: Sequence[str], suffix: str, max_ulp: int | None
) -> list[str]:
    """Return the executors that work and whose uniform result lies within the budget."""
    allowed = []
    for name in names:
        member = pair.members[name + suffix]
        if not member.agrees or member.accuracy is None:
            continue
        if max_ulp is not None and member.accuracy.worst_ulp > max_ulp:
            continue
        allowed.append(name)
    if not allowed:
        shown = []
        for name in names:
            found = pair.members[name + suffix]
            why = found.error
            if found.accuracy is not None:
                why = found.accuracy.problem or f"{found.accuracy.worst_ulp} ULP"
            shown.append(f"{name}: {why}")
        raise OracleOptionError(
            "No executor keeps within the error budget, not even eager. Give a larger max_ulp, or "
            f"mend the model where it is not a matter of rounding: {', '.join(shown)}"
        )
    return allowed


def _cut(model: nn.Module, inputs: tuple[Any, ...], limit: int, state: _Search) -> Units | None:
    try:
        # A resumed search must meet the same units, although times differ.
        bounds = state.report.get("bounds")
        units = Units(copy.deepcopy(model), inputs, limit, bounds=bounds)
    except UntraceableModelError as error:
        state.keep(not_cut=str(error))
        return None
    state.keep(bounds=list(units.bounds), units=units.names)
    return units


def _candidates(
    bench: _Bench,
    units: Units,
    whole: dict[str, float],
    state: _Search,
    compiling: Guard,
    measuring: Guard,
    runs: int,
    expected_calls: float,
) -> tuple[dict[str, list[float]], dict[str, list[float]], plans.Switch]:
    """Measure each unit in its place under each executor that is not hopeless.

    Returns:
        Times by the clock, times by the profiler, and the cost of switching.
    """
    least = min(whole.values())
    tried = [name for name, ns in whole.items() if ns <= HOPELESS * least or name == "eager"]
    state.keep(not_tried_on_units=sorted(set(whole) - set(tried)))
    costs: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    known: dict[str, list[float]] = state.report.get("unit_ns", {})
    state.steps += 3 * len(tried)
    rows: dict[str, list[Choice]] = {}
    for name in tried:
        state.say(f"units under {name}")
        rows[name] = [(u, u + 1, name) for u in range(len(units))]
        try:
            for choice in rows[name]:
                with compiling():
                    bench.make(choice)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
    with measuring():
        for name in tried:
            if name in failed:
                continue
            state.say(f"timing units under {name}")
            try:
                costs[name] = list(known[name]) if name in known else []
                costs[name] = costs[name] or bench.time_in_place(rows[name], runs)
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
                del costs[name]
            state.keep(unit_ns={k: [round(v, 1) for v in row] for k, row in costs.items()})
        profiled: dict[str, list[float]] = {}
        seen: dict[str, list[float]] = state.report.get("unit_profiled_ns", {})
        for name in costs:
            state.say(f"profiling units under {name}")
            try:
                profiled[name] = list(seen.get(name) or bench.profile_in_place(rows[name]))
            except Exception as error:
                state.keep(not_profiled=f"{name}: {type(error).__name__}: {str(error)[:300]}")
            state.keep(
                unit_profiled_ns={k: [round(v, 1) for v in row] for k, row in profiled.items()}
            )
        changes = [bench.switch_ns(unit, 5) for unit in range(len(units))]
    for name, row_ns in costs.items():
        for unit in range(len(row_ns)):
            spent = bench.compile_ns[f"{unit}:{unit + 1} {name}"]
            row_ns[unit] += spent / expected_calls
    state.keep(failed_on_units=failed)
    state.keep(format_change_ns=[[round(c[True], 1), round(c[False], 1)] for c in changes])

    def switch(unit: int, before: str, after: str) -> float:
        # Under "channels_last" only the entry converts; a plain executor takes what it gets,
        # but what it gets in channels_last it was not measured with, so both ways count.
        if _last(before) == _last(after):
            return 0.0
        return changes[unit][_last(after)]

    return costs, profiled, switch


def _find(
    bench: _Bench,
    units: Units,
    costs: dict[str, list[float]],
    profiled: dict[str, list[float]],
    whole: dict[str, float],
    switch: plans.Switch,
    best: str,
    deadline: float,
    state: _Search,
    compiling: Guard,
    measuring: Guard,
    runs: int,
) -> dict[str, list[Choice]]:
    """Return the segments of every oracle by its name; ours is absent if nothing can win."""

    def measure(first: int, stop: int, name: str) -> float:
        if time.perf_counter_ns() > deadline:
            return math.inf
        state.say(f"units {first} to {stop - 1} as one region under {name}")
        around = [(u, u + 1, name) for u in range(len(units))]
        row = [*around[:first], (first, stop, name), *around[stop:]]
        try:
            with compiling():
                bench.make((first, stop, name))
            with measuring():
                return bench.time_in_place(row, runs)[first]
        except Exception as error:
            failed = dict(state.report.get("failed_segments", {}))
            failed[f"{first}:{stop} {name}"] = f"{type(error).__name__}: {str(error)[:200]}"
            state.keep(failed_segments=failed)
            return math.inf

    reachable = {name: whole[name] for name in costs if name in whole}
    # Uniform times hold the copy of the inputs and the graph's launch, units' times do not.
    # Interpreted units fuse nothing, so their sum tells how much that is.
    outside = max(0.0, reachable["eager"] - sum(costs["eager"])) if "eager" in reachable else 0.0
    reachable = {name: ns - outside for name, ns in reachable.items()}
    limit = (whole[best] - outside) * WORTHWHILE
    found = plans.segment_search(costs, reachable, switch, measure, limit, MOST_SEGMENTS)
    single = {name: row for name, row in costs.items()}
    chosen: dict[str, list[Choice]] = {
        "layer-timed oracle": plans.unit_segments(plans.fastest(single)),
        "greedy": plans.unit_segments(plans.greedy(single, switch)),
        "programme over all executors": plans.unit_segments(plans.unit_programme(single, switch)),
    }
    # The thesis chooses between two, of which one is eager; that may be outside of the budget.
    if "eager" in single:
        by_time = sorted(reachable, key=reachable.__getitem__)
        compiled = next((n for n in by_time if n.startswith("compile")), by_time[0])
        two = {n: single[n] for n in ("eager", compiled)}
        chosen["best of two runs"] = plans.unit_segments(
            plans.best_of_two_runs(two, "eager", compiled)
        )
        chosen["thesis programme"] = plans.unit_segments(plans.unit_programme(two, switch))
        state.keep(unit_bound_of_two_ns=round(plans.layer_bound(two), 1))
    if profiled:
        chosen["profiler-timed oracle"] = plans.unit_segments(plans.fastest(profiled))
        state.keep(unit_bound_profiled_ns=round(plans.layer_bound(profiled), 1))
    bound = plans.layer_bound(single)
    state.keep(
        unit_bound_ns=round(bound, 1),
        segments_measured=found.measured,
        segments_pruned=found.pruned,
        predicted_ns=round(found.predicted_ns, 1),
        compile_ns=bench.compile_ns,
    )
    if found.segments is not None:
        chosen["ours"] = found.segments
    # What the units alone say, with neighbours of one executor joined to one region.
    joined = plans.joined_segments(plans.unit_programme(single, switch))
    if len(joined) > 1 and time.perf_counter_ns() < deadline:
        chosen["joined programme"] = joined
    return chosen


def _contest(
    bench: _Bench,
    pair: ModelPair,
    chosen: dict[str, list[Choice]],
    best: str,
    allowed: Sequence[str],
    opponents: Sequence[str],
    suffix: str,
    key: dict[str, Any],
    state: _Search,
    compiling: Guard,
    measuring: Guard,
    runs: int,
    rounds: int,
    max_ulp: int | None,
) -> Plan:
    """Measure all oracles' plans, then the best of ours afresh against the best uniform."""
    inputs = bench.inputs
    uniform_call = pair[best + suffix]
    calls: dict[str, Callable[..., Any]] = {}
    problems: dict[str, str] = {}
    distances: dict[str, float | str] = {}
    for name, segments in chosen.items():
        state.say(f"plan {name}")
        try:
            with compiling():
                chain = bench.chain(segments)
                call = capture(chain, inputs) if suffix else _guarded(chain)
                results = [convert(call(*inputs), torch.clone) for _ in range(2)]
        except Exception as error:
            problems[name] = f"{type(error).__name__}: {str(error)[:300]}"
            continue
        judged = Member(name)
        pair.judge(judged, results)
        found = judged.accuracy
        assert found is not None
        distances[name] = found.distance if math.isfinite(found.distance) else str(found.distance)
        if not judged.agrees or (max_ulp is not None and found.worst_ulp > max_ulp):
            problems[name] = found.problem or (
                f"outside the error budget: distance {found.distance:.3g}, "
                f"{found.worst_ulp} ULP, eager {pair.exact[0].distance:.3g}"
            )
            continue
        calls[name] = call

    def timed(contenders: dict[str, Callable[..., Any]], seed: int) -> Comparison:
        timer = SyncTimer(pair.device, runs=runs, rounds=rounds, warmup=5, seed=seed)
        with torch.no_grad(), _limits():
            return timer.compare(
                {name: functools.partial(call, *inputs) for name, call in contenders.items()}
            ).complete()

    stock = {name: pair[name] for name in opponents if name in pair.working}
    everyone = {name: pair[name] for name in pair.working}
    state.say("all plans, interleaved; then the best one against the uniform executors, afresh")
    with measuring():
        first = timed({"best uniform": uniform_call, **stock, **calls}, seed=1)
        ours = min(calls, key=lambda name: first[name].median_ns, default=None)
        fresh = timed({**everyone, "plan": calls[ours]}, seed=2) if ours is not None else first
    bound = float(state.report["unit_bound_ns"])
    least = float(state.report["roofline_ns"])
    state.keep(
        plans={name: [list(c) for c in segments] for name, segments in chosen.items()},
        plan_problems=problems,
        plan_distances=distances,
        plan_measurement=first.to_json(),
        regret={
            name: round(timing.median_ns / bound - 1, 4) for name, timing in first.timings.items()
        },
        regret_over_roofline={
            name: round(timing.median_ns / least - 1, 4) if least else None
            for name, timing in first.timings.items()
        },
    )
    if ours is None:
        return _uniform_plan(best, bench.units, None, key, state, bool(suffix))
    # The best of the fresh times, which is the harder opponent.
    best = min(allowed, key=lambda name: fresh[name + suffix].median_ns)
    gain = fresh.speedup("plan", over=best + suffix)
    verdict = fresh.verdict("plan", over=best + suffix)
    state.keep(
        seconds=round((time.perf_counter_ns() - state.began_ns) / 1e9, 1),
        chosen=ours,
        best_uniform=best,
        fresh_measurement=fresh.to_json(),
        fresh_speedup=[round(gain.value, 4), round(gain.low, 4), round(gain.high, 4)],
        fresh_verdict=verdict,
    )
    if verdict != "faster":
        return _uniform_plan(best, bench.units, None, key, state, bool(suffix))
    return _plan(tuple(chosen[ours]), bench.units, None, key, state, bool(suffix))


def _uniform_plan(
    best: str,
    units: Units | None,
    model: nn.Module | None,
    key: dict[str, Any],
    state: _Search,
    graph: bool,
) -> Plan:
    state.keep(replaced_by=best, seconds=round((time.perf_counter_ns() - state.began_ns) / 1e9, 1))
    count = len(units) if units is not None else 1
    return _plan(((0, count, best),), units, model, key, state, graph)


def _plan(
    segments: tuple[Choice, ...],
    units: Units | None,
    model: nn.Module | None,
    key: dict[str, Any],
    state: _Search,
    graph: bool,
) -> Plan:
    bounds: tuple[int, ...] = (0, 1)
    if units is not None and len(units) > 1:
        bounds = tuple(units.bounds)
    else:
        units = None
    assert units is not None or model is not None
    return Plan(
        StoredPlan(
            segments=segments,
            bounds=bounds,
            model=_fingerprint(model or nn.Module(), units),
            inputs=tuple(key["inputs"]),
            device=key["device"],
            torch=key["torch"],
            cuda_graph=graph,
            report=state.report,
        ),
        state.inputs,
    )
