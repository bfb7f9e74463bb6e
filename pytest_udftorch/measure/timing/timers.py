# SPDX-License-Identifier: Apache-2.0
"""Synchronised timing of callables, interleaved between contenders.

On CUDA a round is: synchronise, (flush the L2,) start the clocks, call, stop the clocks. There are
two clocks: the wall clock around call and synchronisation, and a pair of CUDA events around the
call. The time until the call returns is kept as launch time: with an L2 flush the launches overlap
the flush, so that the event time no longer contains them. On CPU the clock is
``time.perf_counter_ns``.

A run is one settling call and ``rounds`` rounds of one contender; the contenders take turns,
in a new random order each run. A run counts as its median; a result is the median of runs.

The defaults, twenty runs of ten rounds, are those of the thesis "Evaluating the PyTorch
Compiler in the Vision Domain".
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

import torch

from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.base.units import time_text
from pytest_udftorch.errors import DeviceMissingError, MeasureError, nearest
from pytest_udftorch.measure.timing.gpu_state import GpuState, read_gpu_state
from pytest_udftorch.measure.timing.statistics import (
    FEWEST_RUNS,
    Interval,
    Verdict,
    bootstrap,
    compare,
    median,
    ratio,
    spread,
)

Call = Callable[[], object]
Progress = Callable[[int, int, str], None]

#: A time differs from an empty call's if it is longer by this many standard deviations.
NOISE_SIGMAS: Final = 3.0


def require_device(device: str | torch.device) -> torch.device:
    """Return the device.

    Raises:
        DeviceMissingError: no such device here; the message serves as the reason of a skip.
        MeasureError: no device has that name, or it cannot be timed.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        why = str(error).strip().partition("\n")[0].rstrip(".")
        raise MeasureError(f"{device!r} is not a device: {why}. Use cpu or cuda.") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        build = torch.version.cuda
        why = f"torch sees no GPU (built for CUDA {build})" if build else "torch is a CPU build"
        raise DeviceMissingError(
            f"CUDA was asked for, but {why}. Run on a machine with a GPU, or time on cpu."
        )
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise DeviceMissingError(f"{found} was asked for, but the number of GPUs is {count}.")
    if found.type not in ("cpu", "cuda"):
        raise MeasureError(f"{found.type} cannot be timed. Use cpu or cuda.")
    return found


def untyped(function: Any) -> Any:
    """Return a function of torch that has no annotations, for the type checker."""
    return function


def cuda_event(*, external: bool = False) -> torch.cuda.Event:
    """Return an event with timing; a graph's replays record it if it is ``external``."""
    found: torch.cuda.Event = untyped(torch.cuda.Event)(enable_timing=True, external=external)
    return found


@dataclass(frozen=True, repr=False)
class Timing(Result):
    """What one contender took: medians of rounds, one number per run.

    Attributes:
        name: the contender.
        device: cpu or cuda.
        wall_ns: wall clock around call and synchronisation; with an L2 flush it contains
            the flush, and only the event time is the call's.
        event_ns: between two CUDA events around the call; empty on CPU.
        launch_ns: until the call returned; empty on CPU.
        empty_ns: what an empty call took by the same protocol.
        synchronised: False if the timer was told not to wait, to show the error of that.
    """

    name: str
    device: str
    wall_ns: tuple[float, ...]
    event_ns: tuple[float, ...] = ()
    launch_ns: tuple[float, ...] = ()
    empty_ns: tuple[float, ...] = ()
    synchronised: bool = True

    @property
    def runs_ns(self) -> tuple[float, ...]:
        """The runs that a comparison uses: event times on CUDA, wall times on CPU."""
        return self.event_ns or self.wall_ns

    @property
    def median_ns(self) -> float:
        """Median over runs of :attr:`runs_ns`."""
        return median(self.runs_ns)

    @property
    def interval_ns(self) -> Interval:
        """95 % bootstrap interval of :attr:`median_ns`."""
        return bootstrap(self.runs_ns)

    @property
    def below_noise(self) -> bool:
        """Whether the time cannot be told from that of an empty call."""
        if not self.empty_ns:
            return False
        noise = NOISE_SIGMAS * max(spread(self.empty_ns), spread(self.runs_ns))
        return self.median_ns <= median(self.empty_ns) + noise

    @property
    def under_reports(self) -> bool:
        """Whether the wall clock stopped before the device had finished.

        A synchronised wall clock contains the event time. A shorter wall time was read while the
        device was still at work.
        """
        if not self.event_ns:
            return False
        slack = NOISE_SIGMAS * (spread(self.wall_ns) + spread(self.event_ns))
        return median(self.wall_ns) + slack < median(self.event_ns)

    @property
    def caveats(self) -> list[str]:
        """What a reader of the number must know."""
        found = []
        if len(self.runs_ns) < FEWEST_RUNS:
            found.append(f"{len(self.runs_ns)} runs, fewer than {FEWEST_RUNS}: no verdict")
        if self.below_noise:
            found.append("below the noise: not told apart from an empty call")
        if self.under_reports:
            found.append("the wall clock stopped before the device had finished")
        return found

    def _shown(self) -> Shown:
        return Shown(f"{self.name} on {self.device}: {self.median_text}", notes=self.caveats)

    @property
    def median_text(self) -> str:
        """The median with its interval, for people."""
        found = self.interval_ns
        low, high = (time_text(edge) for edge in (found.low, found.high))
        return f"{time_text(self.median_ns)} ({low} to {high}), {len(self.runs_ns)} runs"

    def document(self) -> dict[str, Any]:
        """Return plain data with the medians, the interval, the runs and the caveats."""
        interval = self.interval_ns
        result: dict[str, Any] = {
            "name": self.name,
            "median_ns": round(self.median_ns, 1),
            "low_ns": round(interval.low, 1),
            "high_ns": round(interval.high, 1),
            "wall_ns": round(median(self.wall_ns), 1),
            "runs_ns": [round(v, 1) for v in self.runs_ns],
            "caveats": self.caveats,
        }
        if self.launch_ns:
            result["launch_ns"] = round(median(self.launch_ns), 1)
        if self.empty_ns:
            result["empty_ns"] = round(median(self.empty_ns), 1)
        return result


class Interruptible:
    """A result that Ctrl-C may have cut short; the runs or members in it are complete."""

    interrupted: bool

    def complete(self) -> Self:
        """Return the result itself, for callers that need all of it.

        Raises:
            KeyboardInterrupt: Ctrl-C cut it short.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        return self


@dataclass(frozen=True, repr=False)
class Comparison(Result, Interruptible):
    """Timings of one interleaved measurement, in the order the contenders were given."""

    timings: dict[str, Timing]
    gpu: tuple[GpuState, ...] = ()
    interrupted: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Timing:
        """Return one contender's timing.

        Raises:
            MeasureError: no such contender.
        """
        if name not in self.timings:
            raise MeasureError(f"{name!r} was not timed. {nearest(name, self.timings)}")
        return self.timings[name]

    @property
    def throttled(self) -> bool:
        """Whether the GPU said at any reading that it was slowed down."""
        return any(state.throttled for state in self.gpu)

    @property
    def fastest(self) -> str:
        """Name of the contender with the smallest median."""
        return min(self.timings, key=lambda name: self.timings[name].median_ns)

    def speedup(self, name: str, over: str) -> Interval:
        """Return how many times faster ``name`` is than ``over``, paired by run."""
        return ratio(self[over].runs_ns, self[name].runs_ns)

    def verdict(self, name: str, over: str) -> Verdict:
        """Say whether ``name`` is faster than ``over``, slower, or neither."""
        return compare(self[name].runs_ns, self[over].runs_ns)

    def _shown(self) -> Shown:
        if not self.timings:
            return Shown("nothing was timed")
        base = next(iter(self.timings))
        rows = []
        for name, timing in self.timings.items():
            times, verdict = "", ""
            if name != base:
                found = self.speedup(name, base)
                times = f"{found.value:.3g} ({found.low:.3g} to {found.high:.3g})"
                verdict = self.verdict(name, base)
            rows.append((name, timing.median_text, times, verdict, "; ".join(timing.caveats)))
        notes = ["The GPU was slowed down during the measurement."] if self.throttled else []
        notes += ["Ctrl-C cut the measurement short."] if self.interrupted else []
        header = ("contender", "median (95 % interval)", f"times as fast as {base}", "verdict", "")
        return Shown(f"{len(rows)} contenders, fastest: {self.fastest}", header, rows, notes)

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "options": self.options,
            "interrupted": self.interrupted,
            "throttled": self.throttled,
            "gpu": [state.document() for state in self.gpu],
            "timings": {name: timing.document() for name, timing in self.timings.items()},
        }


@contextlib.contextmanager
def _no_collection(device: torch.device) -> Iterator[None]:
    """Keep Python's garbage collector from running inside a timed round."""
    was_on = gc.isenabled()
    if device.type == "cuda":
        # Garbage may hold memory of the GPU, and a lack of that memory starts no collection. A
        # collection takes half a second once the compiler is loaded: skip it if memory suffices.
        free, total = torch.cuda.mem_get_info(device)
        if free < total / 2:
            gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _units(names: Iterable[str], together: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return what is shuffled: the groups, and each other name as a group of one."""
    if any(isinstance(group, str) for group in together):
        raise MeasureError(
            "together takes groups of names, but one of its items is a name. Give together="
            '[("a", "b")], even for one group.'
        )
    alone = dict.fromkeys(names)
    for name in itertools.chain.from_iterable(together):
        if name not in alone:
            raise MeasureError(
                f"together names {name!r}, which is not a contender or appears twice. Name "
                "contenders, each at most once."
            )
        del alone[name]
    return [*((name,) for name in alone), *together]


def _shuffled(units: Sequence[Sequence[str]], rng: random.Random) -> list[str]:
    order = rng.sample(units, k=len(units))
    return [name for unit in order for name in rng.sample(unit, k=len(unit))]


#: Name of the empty call among the contenders.
_EMPTY: Final = "\0empty"


@dataclass
class _Rounds:
    """Rounds of one contender in one run."""

    wall: list[int] = field(default_factory=list)
    launch: list[int] = field(default_factory=list)
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)
    alive: list[object] = field(default_factory=list)


class _Series:
    """Medians of one contender's rounds, in nanoseconds, one number per run."""

    def __init__(self, on_cuda: bool) -> None:
        self.wall: list[float] = []
        self.launch: list[float] = []
        self.event: list[float] = []
        self.kept = (self.wall, self.launch, self.event) if on_cuda else (self.wall,)

    def add(self, rounds: _Rounds) -> None:
        self.wall.append(median(rounds.wall))
        if rounds.events:
            self.launch.append(median(rounds.launch))
            # elapsed_time is in milliseconds.
            self.event.append(median([1e6 * a.elapsed_time(b) for a, b in rounds.events]))


def cut(rows: Sequence[list[Any]]) -> int:
    """Drop the run that Ctrl-C cut short; return the number of complete ones."""
    # Ctrl-C may have come between two contenders' entries of one run.
    complete = min(map(len, rows))
    for row in rows:
        del row[complete:]
    return complete


def check_counts(runs: int, rounds: int, warmup: int = 0) -> None:
    """Check that the numbers make a measurement.

    Raises:
        MeasureError: a number is not whole, runs or rounds are below 1, or warmup below 0.
    """
    whole = all(isinstance(n, int) for n in (runs, rounds, warmup))
    if not whole or runs < 1 or rounds < 1 or warmup < 0:
        raise MeasureError(
            f"runs={runs}, rounds={rounds}, warmup={warmup}: give whole numbers, and at least one "
            f"run of one round. A verdict needs {FEWEST_RUNS} runs."
        )


@dataclass(frozen=True, kw_only=True)
class TimerOptions:
    """How a :class:`SyncTimer` times; see :func:`check_counts` for the limits.

    Attributes:
        runs: medians that a result rests on; the contenders take turns between them.
        rounds: timed calls in a run.
        warmup: untimed calls of each contender before the first run.
        flush_l2: on CUDA, overwrite four times the L2's size before each round.
        synchronise: False leaves out the wait before the second reading of the wall clock.
            That is wrong on CUDA and exists so that it can be shown; see
            :attr:`Timing.under_reports`.
        seed: of the order in which contenders take turns.
        progress: called after each run with runs done, runs in all, and a text.
        gpu_state: read the GPU's clocks before and after.
        seconds: after which no further run is begun; the result has the runs that are complete, at
            least one.
    """

    runs: int = 20
    rounds: int = 10
    warmup: int = 10
    flush_l2: bool = False
    synchronise: bool = True
    seed: int = 0
    progress: Progress | None = None
    gpu_state: bool = True
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_counts(self.runs, self.rounds, self.warmup)
        if self.seconds is not None and not self.seconds > 0:
            raise MeasureError(
                f"seconds={self.seconds}: give the seconds after which no run is begun, above 0."
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the options of these names, or raise MeasureError."""
        known = [option.name for option in fields(cls)]
        for name in sorted(options):
            if name not in known:
                raise MeasureError(f"sync_timer has no option {name!r}. {nearest(name, known)}")
        return cls(**options)

    def kept(self) -> dict[str, Any]:
        """Return what a stored measurement keeps of the options."""
        names = ("runs", "rounds", "warmup", "flush_l2", "synchronise")
        return {name: getattr(self, name) for name in names}


class SyncTimer:
    """Times callables; see the module's docstring for the protocol.

    Args:
        device: cpu or cuda.
        options: those of :class:`TimerOptions`, by name.

    Raises:
        DeviceMissingError, MeasureError: see :func:`require_device`.
        MeasureError: an unknown option, or options that make no measurement.
    """

    def __init__(self, device: str | torch.device = "cpu", **options: Any) -> None:
        self.options = TimerOptions.of(options)
        self.device = require_device(device)
        self._flush: torch.Tensor | None = None
        if not self.options.flush_l2:
            return
        if not self._on_cuda:
            raise MeasureError("flush_l2 empties a GPU's L2 cache; there is none on cpu.")
        size = torch.cuda.get_device_properties(self.device).L2_cache_size
        # Filling this must also last longer than a slow launch, or the launch is not hidden.
        self._flush = torch.empty(4 * size, dtype=torch.uint8, device=self.device)

    @property
    def _on_cuda(self) -> bool:
        return self.device.type == "cuda"

    def _wait(self) -> None:
        if self._on_cuda:
            torch.cuda.synchronize(self.device)

    def _round(self, call: Call, into: _Rounds) -> None:
        clock = time.perf_counter_ns
        if not self._on_cuda:
            before = clock()
            output = call()
            into.wall.append(clock() - before)
            into.alive.append(output)
            return
        start = cuda_event()
        stop = cuda_event()
        self._wait()
        if self._flush is not None:
            self._flush.zero_()
        before = clock()
        start.record()
        output = call()
        returned = clock()
        stop.record()
        if self.options.synchronise:
            self._wait()
        into.wall.append(clock() - before)
        into.launch.append(returned - before)
        into.events.append((start, stop))
        into.alive.append(output)

    def _run(self, call: Call) -> _Rounds:
        rounds = _Rounds()
        rounds.alive.append(call())
        for _ in range(self.options.rounds):
            self._round(call, rounds)
        self._wait()
        return rounds

    def time(self, call: Call, name: str = "call") -> Timing:
        """Time one callable; see :meth:`compare`."""
        return self.compare({name: call})[name]

    def compare(
        self, contenders: Mapping[str, Call], *, together: Sequence[Sequence[str]] = ()
    ) -> Comparison:
        """Time the contenders, interleaved.

        Outputs of a run are kept until its clocks have been read, so that freeing them is
        not timed. On Ctrl-C the complete runs are returned, marked ``interrupted``.

        Args:
            contenders: callables without arguments, by name.
            together: groups of names. In each run those of a group take their turns one after
                the other, in random order: what slows a shared machine down for a while then
                falls on all of them.

        Raises:
            MeasureError: there is no contender, one cannot be called, or ``together`` names
                something else, names one twice, or holds names instead of groups.
            KeyboardInterrupt: on Ctrl-C before the first run was complete.
        """
        calls = _checked(contenders)
        order = _units(calls, together)
        series = {name: _Series(self._on_cuda) for name in calls}
        states = self._gpu_state()
        interrupted = False
        end = math.inf if self.options.seconds is None else time.monotonic() + self.options.seconds
        try:
            for call in calls.values():
                for _ in range(self.options.warmup):
                    call()
            self._wait()
            with _no_collection(self.device):
                self._take_turns(calls, order, series, end)
        except KeyboardInterrupt:
            if not cut([row for one in series.values() for row in one.kept]):
                raise
            interrupted = True
        states += self._gpu_state()
        empty = series[_EMPTY].event or series[_EMPTY].wall
        timings = {
            name: Timing(
                name,
                self.device.type,
                tuple(series[name].wall),
                tuple(series[name].event),
                tuple(series[name].launch),
                tuple(empty),
                self.options.synchronise,
            )
            for name in contenders
        }
        return Comparison(timings, tuple(states), interrupted, self.options.kept())

    def _take_turns(
        self,
        calls: Mapping[str, Call],
        order: Sequence[Sequence[str]],
        series: Mapping[str, _Series],
        end: float,
    ) -> None:
        rng = random.Random(self.options.seed)
        runs = self.options.runs
        for done in range(1, runs + 1):
            complete: dict[str, _Rounds] = {}
            for name in _shuffled(order, rng):
                rounds = self._run(calls[name])
                rounds.alive.clear()
                complete[name] = rounds
            for name, rounds in complete.items():
                series[name].add(rounds)
            if self.options.progress is not None:
                self.options.progress(done, runs, f"run {done} of {runs}")
            if time.monotonic() > end:
                break

    def _gpu_state(self) -> list[GpuState]:
        if not (self.options.gpu_state and self._on_cuda):
            return []
        return [read_gpu_state(self.device.index or 0)]


def _checked(contenders: Mapping[str, Call]) -> dict[str, Call]:
    """Return the contenders and the empty call."""
    if not contenders:
        raise MeasureError("There is nothing to time. Give at least one callable.")
    if not isinstance(contenders, Mapping) or not all(map(callable, contenders.values())):
        raise MeasureError(
            "A contender is called without arguments and reported by its name. Give "
            "{name: callable}; give time() one callable, such as lambda: model(x)."
        )
    return {**contenders, _EMPTY: _nothing}


def _nothing() -> None:
    """Do nothing: the cost of the protocol itself."""


def sync_timer(device: str | torch.device = "cpu", **options: Any) -> SyncTimer:
    """Return a :class:`SyncTimer`; the fixture of this name returns this function."""
    return SyncTimer(device, **options)
