# SPDX-License-Identifier: Apache-2.0
"""Time inside a model: by hooks, by subtraction, by the profiler, and what each costs.

The thesis "Evaluating the PyTorch Compiler in the Vision Domain" has four methods: end to end
(``SyncTimer`` alone), layer timing (:func:`layer_times`), layer subtraction
(:func:`layer_subtraction`) and profiler data (:func:`layer_profile`).
:func:`instrument_overhead` measures what the instruments themselves cost (its Figure 5.7).

They work on any ``nn.Module`` that runs in Python: a layer is a call of a module that calls
no other one. The report says what they cannot see: work outside of any layer, layers
that are never called, and the inside of compiled or scripted regions, which hooks do not reach.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_udftorch.base import compat
from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.base.units import time_text
from pytest_udftorch.errors import MeasureError
from pytest_udftorch.measure.timing.statistics import Interval, bootstrap, median, ratio
from pytest_udftorch.measure.timing.timers import (
    Comparison,
    Interruptible,
    SyncTimer,
    Timing,
    check_counts,
    cuda_event,
    cut,
)

pytree: Any = compat.pytree()

Instrument: TypeAlias = Literal["pure", "sync", "timed", "timed_sync"]
Inputs: TypeAlias = Sequence[Any] | torch.Tensor
INSTRUMENTS: Final[tuple[Instrument, ...]] = ("pure", "sync", "timed", "timed_sync")

#: Prefix of the profiler ranges, which tells them from the model's own.
_RANGE: Final = "udftorch::layer::"

#: TorchScript takes no hooks. A parametrization is called when a layer reads its weight.
_UNWATCHED: Final = (torch.jit.ScriptModule, parametrize.ParametrizationList)

#: Why hooks see nothing inside a compiled module.
_COMPILED: Final = "a region of torch.compile"


@dataclass(frozen=True)
class Layer:
    """One call of a module that calls no other one.

    Attributes:
        name: qualified name; a second call of a shared module has ``#2`` appended.
        kind: the module's class.
        opaque: why a hook cannot look inside, or None.
    """

    name: str
    kind: str
    opaque: str | None = None


@dataclass(frozen=True, repr=False)
class LayerRow(Result):
    """A layer with its time, one number per run."""

    layer: Layer
    runs_ns: tuple[float, ...]

    @property
    def median_ns(self) -> float:
        """Median over runs."""
        return median(self.runs_ns)

    @property
    def interval_ns(self) -> Interval:
        """95 % bootstrap interval of the median."""
        return bootstrap(self.runs_ns)

    def _shown(self) -> Shown:
        return Shown(f"{self.layer.name} {self.layer.kind}: {time_text(self.median_ns)}")

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        interval = self.interval_ns
        return {
            "name": self.layer.name,
            "kind": self.layer.kind,
            "median_ns": round(self.median_ns, 1),
            "low_ns": round(interval.low, 1),
            "high_ns": round(interval.high, 1),
        }


@dataclass(frozen=True, repr=False)
class LayerReport(Result, Interruptible):
    """Times of the layers beside the time of the whole.

    Attributes:
        method: ``layer timing`` or ``layer subtraction``.
        rows: in the order of the calls; subtraction adds a row for what follows the last layer.
        end_to_end: the model without instruments, interleaved with the measurement.
        notes: what the method does not see in this model, as sentences.
        interrupted: whether Ctrl-C came before all runs were complete.
    """

    method: str
    rows: tuple[LayerRow, ...]
    end_to_end: Timing
    notes: tuple[str, ...] = field(default=())
    interrupted: bool = False

    @property
    def _sums_ns(self) -> list[float]:
        """The sum over the layers, of each run."""
        return [sum(times) for times in zip(*(row.runs_ns for row in self.rows), strict=True)]

    @property
    def arr_sum_ns(self) -> float:
        """Median over runs of the sum over the layers.

        Summed before the median is taken: medians of noisy differences do not add up.
        """
        return median(self._sums_ns)

    @property
    def share(self) -> float:
        """Median over runs of the layers' sum over the end-to-end time of the same run.

        Runs are paired, so that a slow run of a shared machine counts on both sides. Both times
        are of one clock: the wall clock for synchronised layers, events for prefixes on CUDA.
        """
        whole = self.end_to_end
        runs_ns = whole.wall_ns if self.method == "layer timing" else whole.runs_ns
        return ratio(self._sums_ns, runs_ns).value

    def _shown(self) -> Shown:
        rows = [(r.layer.name, r.layer.kind, time_text(r.median_ns)) for r in self.rows]
        title = f"{self.method}: {len(rows)} layers take {100 * self.share:.1f} % of "
        title += time_text(self.end_to_end.median_ns)
        return Shown(title, ("layer", "kind", "median"), rows, self.notes)

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "method": self.method,
            "arr_sum_ns": round(self.arr_sum_ns, 1),
            "end_to_end": self.end_to_end.document(),
            "share": round(self.share, 5),
            "interrupted": self.interrupted,
            "notes": list(self.notes),
            "layers": [row.document() for row in self.rows],
        }


@dataclass(frozen=True)
class ProfileRow:
    """Profiler data of one layer, nanoseconds per forward pass.

    Attributes:
        cuda_total_ns: all kernels started within the layer.
        cuda_self_ns: kernels attributed to the operators of the layer itself.
        cpu_self_ns: host time of the operators, without the profiler's own range.
    """

    layer: Layer
    cuda_total_ns: float
    cuda_self_ns: float
    cpu_self_ns: float


def _opaque(module: nn.Module) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return "TorchScript"
    if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None):
        return _COMPILED
    return None


def _watchable(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that hooks can watch, each once, by name; none inside opaque ones."""
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()

    def visit(name: str, module: nn.Module) -> None:
        if id(module) in seen or isinstance(module, _UNWATCHED):
            return
        seen.add(id(module))
        found[name or type(module).__name__] = module
        if not _opaque(module):
            for child_name, child in module.named_children():
                visit(f"{name}.{child_name}" if name else child_name, child)

    visit("", model)
    return found


@dataclass(frozen=True)
class _Found:
    """The layers of a forward pass.

    Attributes:
        called: in the order of their calls.
        leaves: their modules by name.
        notes: what hooks do not see.
    """

    called: list[Layer]
    leaves: dict[str, nn.Module]
    notes: list[str]


def _find(model: nn.Module, inputs: tuple[Any, ...]) -> _Found:
    """Run the model once; a layer is a call in which no call of another module was seen.

    Its module may have children that are not called, such as attention's projection.
    """
    modules = _watchable(model)
    order: list[str] = []
    within: list[str] = []
    outer: set[str] = set()

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            if within and within[-1] != name:
                outer.add(within[-1])
            within.append(name)
            order.append(name)

        return hook

    def leave(*_: object) -> None:
        within.pop()

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for name, module in modules.items():
            hooks.enter_context(module.register_forward_pre_hook(enter(name)))
            hooks.enter_context(module.register_forward_hook(leave, always_call=True))
        model(*inputs)

    def childless(module: nn.Module) -> bool:
        return bool(_opaque(module)) or next(module.children(), None) is None

    leaves = {
        name: module
        for name, module in modules.items()
        if name not in outer and (childless(module) or (name in order and module is not model))
    }
    counts: dict[str, int] = {}
    called: list[Layer] = []
    for name in order:
        if name in leaves:
            count = counts[name] = counts.get(name, 0) + 1
            label = name if count == 1 else f"{name}#{count}"
            called.append(Layer(label, type(leaves[name]).__name__, _opaque(leaves[name])))
    if not called:
        raise MeasureError(
            f"{type(model).__name__} called no module within it that a hook could watch, so there "
            "is no layer to time. Time it end to end with sync_timer."
        )
    used = {name: leaves[name] for name in leaves if name in counts}
    return _Found(called, used, _notes(model, called, leaves))


class _Watch:
    """Hooks around every layer; ``enter`` and ``leave`` get the number of the call."""

    def __init__(
        self,
        leaves: Mapping[str, nn.Module],
        enter: Callable[[int], None] | None = None,
        leave: Callable[[int], None] | None = None,
    ) -> None:
        self._leaves = leaves
        self._enter, self._leave = enter, leave
        self._hooks = contextlib.ExitStack()
        self.start()

    def __enter__(self) -> _Watch:
        for module in self._leaves.values():
            # A compiled module runs its hooks outside of the compiled region only if they
            # sit on the wrapper, which is what ``_find`` returns for it.
            self._hooks.enter_context(module.register_forward_pre_hook(self._before))
            # This hook runs before the model's own, which are not part of the layer, and also
            # after an error that the model catches.
            self._hooks.enter_context(
                module.register_forward_hook(self._after, prepend=True, always_call=True)
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def start(self) -> None:
        """Forget the calls of the last forward pass."""
        self._calls = 0
        self._open: list[int] = []

    def _before(self, *_: object) -> None:
        self._open.append(self._calls)
        self._calls += 1
        if self._enter is not None:
            self._enter(self._open[-1])

    def _after(self, *_: object) -> None:
        number = self._open.pop()
        if self._leave is not None:
            self._leave(number)


def positional(model: nn.Module, inputs: Any) -> tuple[Any, ...]:
    """Return the positional arguments; a tensor alone is the only one.

    Raises:
        MeasureError: the model is not a module, or the inputs are not a sequence of arguments.
    """
    if not isinstance(model, nn.Module):
        found = "the class" if isinstance(model, type) else f"a {type(model).__name__}"
        raise MeasureError(
            f"The model is {found} {getattr(model, '__name__', '')}".rstrip()
            + ", not an nn.Module. Give an instance; a function needs a module that calls it."
        )
    if isinstance(inputs, Mapping):
        raise MeasureError(
            "inputs is a dict, but must be the positional arguments of the model. For a model "
            "that takes a dict give (inputs,); one that takes keywords needs a wrapper."
        )
    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if isinstance(inputs, str) or not isinstance(inputs, Iterable):
        raise MeasureError(
            f"inputs is of type {type(inputs).__name__}. Give a tensor, or a tuple of the model's "
            "positional arguments."
        )
    return tuple(inputs)


def compiled_part(model: nn.Module) -> str | None:
    """Return the name of a part that torch.compile has compiled, or None."""
    named = model.named_modules()
    return next((name or "The model" for name, m in named if _opaque(m) == _COMPILED), None)


def _device_of(model: nn.Module, inputs: tuple[Any, ...]) -> torch.device:
    for tensor in (*model.parameters(), *pytree.tree_leaves(inputs)):
        if isinstance(tensor, torch.Tensor):
            return tensor.device
    return torch.device("cpu")


def _notes(model: nn.Module, called: Sequence[Layer], leaves: Mapping[str, nn.Module]) -> list[str]:
    names = {layer.name.split("#")[0] for layer in called}
    inside = tuple(f"{name}." for name in names)
    never = [name for name in leaves if name not in names and not name.startswith(inside)]
    shared = sorted({layer.name.split("#")[0] for layer in called if "#" in layer.name})
    notes = [
        f"{layer.name} is {layer.opaque}: hooks see it as one layer and nothing inside it"
        for layer in called
        if layer.opaque
    ]
    if never:
        notes.append(f"never called in this forward pass: {', '.join(never)}")
    if shared:
        notes.append(f"called more than once: {', '.join(shared)}")

    def modules(fits: Callable[[nn.Module], bool]) -> str:
        return ", ".join(name or "the model" for name, m in model.named_modules() if fits(m))

    if scripted := modules(lambda m: isinstance(m, torch.jit.ScriptModule)):
        notes.append(f"TorchScript, which takes no hooks, not timed: {scripted}")
    if unfused := modules(lambda m: isinstance(m, nn.TransformerEncoderLayer)):
        notes.append(
            "nn.TransformerEncoderLayer leaves its fused path where hooks are; end to end there "
            f"are none: {unfused}"
        )
    if own := modules(lambda m: not isinstance(m, _UNWATCHED) and compat.has_forward_hooks(m)):
        notes.append(f"hooks of the model's own, outside of the layers' times: {own}")
    return notes


def find_layers(model: nn.Module, inputs: Inputs) -> tuple[list[Layer], list[str]]:
    """Run ``model(*inputs)`` once; return its layers in call order, and notes.

    Raises:
        MeasureError: no module was called that a hook can watch.
    """
    found = _find(model, positional(model, inputs))
    return found.called, found.notes


class _Clock:
    """Start and stop marks of numbered layers, from events on CUDA or the wall clock."""

    def __init__(self, device: torch.device, *, events: bool, synchronise: bool) -> None:
        self._device, self._events = device, events and device.type == "cuda"
        self._synchronise = synchronise and device.type == "cuda"
        self._starts: dict[int, Any] = {}
        self._stops: dict[int, Any] = {}

    def wait(self, _: int = 0) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _mark(self) -> Any:
        if self._events:
            event = cuda_event()
            event.record()
            return event
        if self._synchronise:
            self.wait()
        return time.perf_counter_ns()

    def enter(self, number: int) -> None:
        self._starts[number] = self._mark()

    def leave(self, number: int) -> None:
        self._stops[number] = self._mark()

    def read_ns(self) -> list[float]:
        """Return the times in the order of the layers, and start afresh."""
        pairs = [(start, self._stops[number]) for number, start in self._starts.items()]
        self._starts, self._stops = {}, {}
        if self._events:
            self.wait()
            return [1e6 * start.elapsed_time(stop) for start, stop in pairs]
        return [float(stop - start) for start, stop in pairs]


def layer_times(
    model: nn.Module,
    inputs: Inputs,
    *,
    runs: int = 20,
    rounds: int = 10,
    warmup: int = 3,
    synchronise: bool = True,
) -> LayerReport:
    """Time each layer with hooks around its call.

    Args:
        model: any module; runs under ``no_grad``.
        inputs: a tensor, or the positional arguments of the model.
        runs: medians that a result rests on; interleaved with the model without hooks.
        rounds: forward passes in a run.
        warmup: passes before the first run.
        synchronise: on CUDA, wait for the device at both marks and read the wall clock
            ("timed_sync"); False records CUDA events and leaves the stream running.

    On Ctrl-C the complete runs are returned, with a note.

    Raises:
        MeasureError: the model is not a module, or the inputs are not arguments; the options make
            no measurement; see :func:`find_layers`; or another pass called other layers.
        KeyboardInterrupt: on Ctrl-C before the first run was complete.
    """
    inputs = positional(model, inputs)
    device = _device_of(model, inputs)
    check_counts(runs, rounds, warmup)
    found = _find(model, inputs)
    layers, notes = found.called, found.notes
    plain = SyncTimer(device, runs=1, rounds=rounds, warmup=0, gpu_state=False)
    clock = _Clock(device, events=not synchronise, synchronise=synchronise)
    per_layer: list[list[float]] = [[] for _ in layers]
    whole: list[Timing] = []
    with torch.no_grad():
        for _ in range(warmup):
            model(*inputs)
        try:
            for _ in range(runs):
                whole.append(plain.time(lambda: model(*inputs), "end to end"))
                collected: list[list[float]] = []
                with _Watch(found.leaves, clock.enter, clock.leave) as watch:
                    for _ in range(rounds):
                        watch.start()
                        model(*inputs)
                        collected.append(clock.read_ns())
                if any(len(times) != len(layers) for times in collected):
                    raise _other_path()
                for number, row in enumerate(per_layer):
                    row.append(median([times[number] for times in collected]))
        except KeyboardInterrupt:
            complete = cut([whole, *per_layer])
            if not complete:
                raise
            notes.append(f"interrupted after {complete} of {runs} runs")
    if device.type == "cuda" and not synchronise:
        notes.append("event times of a layer contain the wait for its launch, not only its work")
    rows = tuple(
        LayerRow(layer, tuple(times)) for layer, times in zip(layers, per_layer, strict=True)
    )
    stopped = len(whole) < runs
    return LayerReport("layer timing", rows, _joined(whole), tuple(notes), stopped)


def _other_path() -> MeasureError:
    return MeasureError(
        "The model called different layers in different forward passes. Time it end to end, or "
        "give inputs that take one path."
    )


def _combined(
    timings: Sequence[Timing], combine: Callable[[Iterable[tuple[float, ...]]], Iterable[float]]
) -> Timing:
    """Return one timing of several of the same contender, clock by clock."""
    clocks = ("wall_ns", "event_ns", "launch_ns", "empty_ns")
    found: dict[str, Any] = {c: tuple(combine(getattr(t, c) for t in timings)) for c in clocks}
    return replace(timings[0], **found)


def _joined(timings: Sequence[Timing]) -> Timing:
    """Return one timing of the runs of several, one after the other."""
    return _combined(timings, itertools.chain.from_iterable)


def _middle(timings: Sequence[Timing]) -> Timing:
    """Return one timing of several turns in the same runs: the median of each run."""
    return _combined(timings, lambda turns: map(median, zip(*turns, strict=True)))


class _Stop(BaseException):
    """A hook raises it when its layer has run; a model's ``except Exception`` lets it pass."""


def _prefixes(model: nn.Module, inputs: tuple[Any, ...], found: _Found) -> list[Callable[[], None]]:
    """Return callables that run the model up to its entry, to each layer, and to its end.

    Only the layer where a prefix stops carries a hook, since a hook on every layer would cost
    more than many layers take. Each call sets one hook, raises once and removes the hook. That
    costs the same in every prefix, and cancels in differences.
    """
    layers, leaves = found.called, found.leaves

    def make(module: nn.Module, occurrence: int, *, entry: bool, whole: bool) -> Callable[[], None]:
        def run() -> None:
            left = occurrence

            def stop(*_: object) -> None:
                nonlocal left
                left -= 1
                if left == 0 and not whole:
                    raise _Stop

            if entry:
                handle = module.register_forward_pre_hook(stop)
            else:
                handle = module.register_forward_hook(stop, prepend=True, always_call=True)
            try:
                model(*inputs)
                if left > 0:
                    raise _other_path()
                raise _Stop
            except _Stop:
                pass
            finally:
                # Also after an error or Ctrl-C: the hook would stop every later call.
                handle.remove()

        return run

    def target(layer: Layer) -> tuple[nn.Module, int]:
        name, _, count = layer.name.partition("#")
        return leaves[name], int(count or 1)

    first, last = target(layers[0]), target(layers[-1])
    return [
        make(*first, entry=True, whole=False),
        *(make(*target(layer), entry=False, whole=False) for layer in layers),
        make(*last, entry=False, whole=True),
    ]


#: Turns of the longest prefix and of the whole model in a run of layer subtraction: at least
#: the first number, and one for each so many layers as the second says. Prefixes are half a model
#: long on average, so that these turns take half of the time that the prefixes take.
_FEWEST_TURNS: Final = 20
_LAYERS_A_TURN: Final = 8


def layer_subtraction(
    model: nn.Module,
    inputs: Inputs,
    *,
    runs: int = 20,
    rounds: int = 10,
    warmup: int = 3,
    progress: Callable[[int, int, str], None] | None = None,
) -> LayerReport:
    """Time each layer as the run up to it less the run up to the layer before.

    All prefixes and the whole model are interleaved; a layer's sample is the difference of
    two prefixes within one run. Work between two layers counts as the later one's; what
    follows the last layer, and the return, is the row ``(after the last layer)``. No instrument
    inside slows the passes down, and on CUDA nothing waits between layers.

    The sum of all differences is the longest prefix less the shortest, whatever lies between.
    The longest prefix and the whole model, which the sum is compared with, therefore take
    several turns in each run, side by side. The time of the longest prefix is that of the whole
    model plus the median excess over the neighbour, so that a shared machine's slow moments cancel.

    Args:
        model: any module; runs under ``no_grad``.
        inputs: a tensor, or the positional arguments of the model.
        runs: paired runs, which the bootstrap intervals rest on.
        rounds: passes in a run.
        warmup: untimed passes of each prefix.
        progress: as in :class:`~pytest_udftorch.measure.SyncTimer`.

    Raises:
        MeasureError: see :func:`find_layers`; or another pass did not reach a layer.
    """
    inputs = positional(model, inputs)
    device = _device_of(model, inputs)
    timer = SyncTimer(device, runs=runs, rounds=rounds, warmup=warmup, progress=progress)
    found = _find(model, inputs)
    layers, notes = found.called, found.notes
    *prefixes, end = _prefixes(model, inputs, found)
    turns = range(max(_FEWEST_TURNS, len(layers) // _LAYERS_A_TURN))
    calls: dict[str, Callable[[], Any]] = {f"upto {n}": call for n, call in enumerate(prefixes)}
    pairs = [(f"end {turn}", f"whole {turn}") for turn in turns]
    for one, other in pairs:
        calls |= {one: end, other: lambda: model(*inputs)}
    with torch.no_grad():
        timed: Comparison = timer.compare(calls, together=pairs)
    whole = _middle([timed[name] for _, name in pairs])
    longer = [
        [a - b for a, b in zip(timed[one].runs_ns, timed[other].runs_ns, strict=True)]
        for one, other in pairs
    ]
    ends = [run + median(more) for run, *more in zip(whole.runs_ns, *longer, strict=True)]
    upto = [timed[f"upto {n}"].runs_ns for n in range(len(prefixes))]
    upto.append(tuple(ends))
    shown = [*layers, Layer("(after the last layer)", "")]
    rows = [
        LayerRow(layer, tuple(b - a for a, b in zip(before, after, strict=True)))
        for layer, (before, after) in zip(shown, itertools.pairwise(upto), strict=True)
    ]
    if timed.interrupted:
        notes.append(f"interrupted after {len(upto[0])} of {runs} runs")
    return LayerReport("layer subtraction", tuple(rows), whole, tuple(notes), timed.interrupted)


def _profiler(device: torch.device) -> profile:
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities, acc_events=True)


def _total(event: Any, attribute: str) -> float:
    own = float(getattr(event, attribute))
    return own + sum(_total(child, attribute) for child in event.cpu_children)


def layer_profile(
    model: nn.Module, inputs: Inputs, *, passes: int = 10, warmup: int = 3
) -> list[ProfileRow]:
    """Return the profiler's times of each layer, the medians over ``passes``.

    ``torch.profiler`` attributes kernels through the operators that launched them. Kernels of a
    replayed CUDA graph belong to no layer; profile the model that was captured.

    Raises:
        MeasureError: see :func:`find_layers`.
    """
    inputs = positional(model, inputs)
    device = _device_of(model, inputs)
    check_counts(passes, 1, warmup)
    found = _find(model, inputs)
    layers = found.called
    ranges: dict[int, Any] = {}

    def enter(number: int) -> None:
        ranges[number] = record_function(f"{_RANGE}{number}")
        ranges[number].__enter__()

    def leave(number: int) -> None:
        ranges.pop(number).__exit__(None, None, None)

    samples: dict[int, list[tuple[float, float, float]]] = {n: [] for n in range(len(layers))}
    with torch.no_grad():
        for _ in range(warmup):
            model(*inputs)
        with _Watch(found.leaves, enter, leave) as watch, _profiler(device) as profiled:
            for _ in range(passes):
                watch.start()
                model(*inputs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
    for event in profiled.events():
        # The range appears a second time among the device's events, without children.
        if not event.name.startswith(_RANGE) or event.device_type.name != "CPU":
            continue
        inside = event.cpu_children
        # The profiler counts microseconds.
        samples[int(event.name.removeprefix(_RANGE))].append(
            (
                1e3 * sum(float(child.device_time_total) for child in inside),
                1e3 * sum(_total(child, "self_device_time_total") for child in inside),
                1e3 * sum(_total(child, "self_cpu_time_total") for child in inside),
            )
        )
    return [
        ProfileRow(layer, *(median([s[k] for s in samples[n]]) for k in range(3)))
        for n, layer in enumerate(layers)
        if samples[n]
    ]


def _instrument(name: Instrument, leaves: Mapping[str, nn.Module], device: torch.device) -> _Watch:
    if name == "pure":
        return _Watch({})
    clock = _Clock(device, events=False, synchronise=name == "timed_sync")
    if name == "sync":
        return _Watch(leaves, leave=clock.wait)
    return _Watch(leaves, clock.enter, clock.leave)


def instrument_overhead(
    model: nn.Module,
    inputs: Inputs,
    *,
    runs: int = 20,
    rounds: int = 10,
    profiled: Sequence[bool] = (False, True),
    seed: int = 0,
) -> dict[str, Timing]:
    """Time the whole model under each instrument, with and without the profiler running.

    ``pure`` has no hooks; ``sync`` waits for the device after each layer; ``timed`` reads
    the wall clock around each layer without waiting; ``timed_sync`` does both.

    Returns:
        Timings by ``instrument`` or ``instrument, profiled``, interleaved by runs.
    """
    inputs = positional(model, inputs)
    device = _device_of(model, inputs)
    check_counts(runs, rounds)
    leaves = _find(model, inputs).leaves
    timer = SyncTimer(device, runs=1, rounds=rounds, warmup=1, gpu_state=False)
    modes = {f"{i}, profiled" if on else i: (i, on) for on in profiled for i in INSTRUMENTS}
    found: dict[str, list[Timing]] = {name: [] for name in modes}
    rng = random.Random(seed)
    with torch.no_grad():
        for _ in range(runs):
            for name in rng.sample(list(modes), k=len(modes)):
                instrument, on = modes[name]
                recording = _profiler(device) if on else contextlib.nullcontext()
                with _instrument(instrument, leaves, device) as watch, recording:

                    def call(watch: _Watch = watch) -> object:
                        watch.start()
                        return model(*inputs)

                    found[name].append(timer.time(call, name))
    return {name: _joined(timings) for name, timings in found.items()}
