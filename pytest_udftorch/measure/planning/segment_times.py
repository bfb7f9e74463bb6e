# SPDX-License-Identifier: Apache-2.0
"""Make the callables of segments, and time each segment in its place in the model.

"In its place" means: on CUDA all segments are captured in one graph with event nodes between
them, so that a segment's time contains its neighbours' effect on caches and none of the launch.
On CPU the clock is read between the segments of a running chain.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import io
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_udftorch.base.trees import tensors_in, to_channels_last
from pytest_udftorch.measure.planning import executors
from pytest_udftorch.measure.planning.cuda_graph import capture
from pytest_udftorch.measure.planning.identity import home
from pytest_udftorch.measure.planning.pairs import recompile_limits
from pytest_udftorch.measure.planning.plans import Choice
from pytest_udftorch.measure.planning.segments import Units
from pytest_udftorch.measure.timing.statistics import median
from pytest_udftorch.measure.timing.timers import SyncTimer, cuda_event, untyped

__all__ = ["SegmentBench", "without_gradients"]

#: Prefix of the profiler ranges, so that they are told from the model's own.
_RANGE: Final = "udftorch::unit::"

#: Passes that are run before those that count.
_SETTLING: Final = 3


class _Chain(nn.Module):
    """Segments run one after the other; each takes what the one before returns."""

    def __init__(self, calls: Sequence[Callable[..., Any]]) -> None:
        super().__init__()
        self.calls = list(calls)

    def forward(self, *inputs: Any) -> Any:
        value = self.calls[0](*inputs)
        for call in self.calls[1:]:
            value = call(value)
        return value


class SegmentBench:
    """Makes each segment's callable once, and times segments in their place.

    Attributes:
        units: the model, cut.
        inputs: those of the whole model.
        compile_ns: time to make a segment and call it first, by ``first:stop executor``.
    """

    def __init__(self, units: Units, inputs: tuple[Any, ...]) -> None:
        self.units, self.inputs = units, inputs
        self.on_cuda = home(inputs).type == "cuda"
        self._made: dict[Choice, Callable[..., Any]] = {}
        self.compile_ns: dict[str, int] = {}
        self._activations = units.activations(inputs)

    def make(self, choice: Choice) -> Callable[..., Any]:
        """Return the callable of a segment; make it and call it if it is new."""
        if choice not in self._made:
            first, stop, name = choice
            before = time.perf_counter_ns()
            arguments = self._activations[first]
            call = executors.make(
                executors.resolve(name), self.units.segment(first, stop), arguments
            )
            with torch.no_grad(), recompile_limits():
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

    def _steps(self, segments: Sequence[Choice]) -> list[Callable[..., Any]]:
        return [
            self.units.step(self.make((first, stop, name)), first, stop)
            for first, stop, name in segments
        ]

    def whole(self, segments: Sequence[Choice]) -> Callable[..., Any]:
        """Return the model as these segments: captured on CUDA, without gradients on CPU."""
        chain = _Chain(self._steps(segments))
        return capture(chain, self.inputs) if self.on_cuda else without_gradients(chain)

    def time_in_place(self, segments: Sequence[Choice], runs: int) -> list[float]:
        """Return the time of each segment within one pass over all, medians over ``runs``."""
        calls = self._steps(segments)
        rows = (self._cuda_rows if self.on_cuda else self._cpu_rows)(calls, runs + _SETTLING)
        return [median(column) for column in zip(*rows[_SETTLING:], strict=True)]

    def _cuda_rows(self, calls: Sequence[Callable[..., Any]], passes: int) -> list[list[float]]:
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
        for _ in range(passes):
            replay(*replay.inputs)
            torch.cuda.synchronize()
            rows.append([1e6 * a.elapsed_time(b) for a, b in itertools.pairwise(marks)])
        return rows

    def _cpu_rows(self, calls: Sequence[Callable[..., Any]], passes: int) -> list[list[float]]:
        rows = []
        with torch.no_grad():
            for _ in range(passes):
                marks = [time.perf_counter_ns()]
                value: Any = self.inputs
                for number, call in enumerate(calls):
                    value = call(*value) if number == 0 else call(value)
                    marks.append(time.perf_counter_ns())
                rows.append([float(b - a) for a, b in itertools.pairwise(marks)])
        return rows

    def profile_in_place(self, segments: Sequence[Choice], passes: int = 5) -> list[float]:
        """Return the profiler's time of each segment, medians over ``passes``.

        On CUDA this is the sum of the kernels' times: what runs side by side counts twice, and
        waiting for launches not at all. On CPU it is the host time of the segment's range.
        """
        calls = self._steps(segments)
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

    def switch_ns(self, unit: int, runs: int) -> dict[bool, float]:
        """Return what a change of memory format costs before ``unit``: to channels_last, back."""
        values = [t for t in tensors_in(self._activations[unit]) if t.dim() == 4]
        if not values:
            return {True: 0.0, False: 0.0}
        last = tuple(t.contiguous(memory_format=torch.channels_last) for t in values)
        plain = tuple(t.contiguous() for t in values)
        found = {}
        for to_last, source in ((True, plain), (False, last)):
            target = torch.channels_last if to_last else torch.contiguous_format

            def change(*given: torch.Tensor, target: Any = target) -> list[torch.Tensor]:
                return [t.contiguous(memory_format=target) for _ in range(10) for t in given]

            run: Callable[..., Any] = change
            if self.on_cuda:
                run = capture(change, source)
            arguments = getattr(run, "inputs", source)
            timer = SyncTimer(source[0].device, runs=3, rounds=runs, warmup=1, gpu_state=False)
            timed = timer.compare({"change": functools.partial(run, *arguments)}).complete()
            found[to_last] = timed["change"].median_ns / 10
        return found


def without_gradients(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the callable without gradients: with them compilers make other code."""

    def run(*arguments: Any) -> Any:
        with torch.no_grad():
            return call(*arguments)

    return run


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
