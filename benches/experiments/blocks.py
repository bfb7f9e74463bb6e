# SPDX-License-Identifier: Apache-2.0
"""Interleaved blocks of training steps, to measure the profiler's cost.

A block runs every contender once, in a random order, for the same number of steps of the same
training. Its sample of a contender is the median step of the run. The first steps do not count:
they find the caches as the previous contender left them. Samples are paired within a block, so that
a disturbance that lasts longer than a block affects all of them. Intervals are
bootstrapped over blocks (``pytest_udftorch.measure``).

:func:`against` measures differences of a percent. The base runs between any two contenders, and
each contender is compared with the two runs of the base beside it, so that a machine that slows
down or speeds up favours none of them. Each run opens its contender again, so the interval includes
the differences between two openings.

Two clocks run: the wall clock, and the processor time of all threads of the process, which
other processes disturb less.
"""

from __future__ import annotations

import functools
import gc
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from benches.experiments.training import Task, Training
from pytest_udftorch.measure.timing.statistics import FEWEST_RUNS

#: Returns what a contender's steps run in; what it yields is given to ``after``.
Contender = Callable[[], AbstractContextManager[Any]]


#: What a step is timed with; both count ns.
CLOCKS: Final = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}

#: Clock -> contender -> median step of each block.
Samples = dict[str, dict[str, list[float]]]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: the scheduling of other threads is the largest source of noise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Runner:
    """One training that all contenders work on."""

    def __init__(self, task: Task, steps: int, warm_up: int, seed: int, *, learning: bool) -> None:
        self._steps, self._warm_up = steps, warm_up
        self._training = Training(task, seed)
        self._batches: Iterator[torch.Tensor] = task.batches(seed)
        if not learning:
            for group in self._training.optimizer.param_groups:
                group["lr"], group["weight_decay"] = 0.0, 0.0
            self._batches = itertools.repeat(next(self._batches))

    def prepare(self, contenders: Iterable[Contender]) -> None:
        """Build libraries and make the optimizer's state before anything is timed."""
        for context in contenders:
            with context():
                self._training.step(next(self._batches))

    def run(
        self, contender: Contender, after: Callable[[Any, list[int]], None] | None = None
    ) -> dict[str, float]:
        """Return clock -> median step in ns of one run."""
        wall, cpu = CLOCKS.values()
        times: dict[str, list[int]] = {clock: [] for clock in CLOCKS}
        with contender() as entered:
            for _ in range(self._warm_up + self._steps):
                batch = next(self._batches)
                start, start_cpu = wall(), cpu()
                self._training.step(batch)
                times["cpu"].append(cpu() - start_cpu)
                times["wall"].append(wall() - start)
            if after is not None:
                after(entered, times["cpu"])
        return {c: statistics.median(values[self._warm_up :]) for c, values in times.items()}


def _block_numbers(blocks: int, seconds: float | None) -> Iterator[int]:
    """Count blocks until there are enough or the time is over."""
    begin = time.monotonic()
    for done in range(blocks):
        late = seconds is not None and time.monotonic() - begin > seconds
        if late and done >= FEWEST_RUNS:
            break
        yield done


def measure(
    task: Task,
    contenders: Mapping[str, Contender],
    *,
    blocks: int,
    steps: int,
    seconds: float | None = None,
    learning: bool = True,
    after: Callable[[str, Any, list[int]], None] | None = None,
    seed: int = 0,
) -> Samples:
    """Time training steps under each contender, interleaved.

    Args:
        task: one model and one optimizer serve all contenders, so that none has a better
            place in memory.
        contenders: by name.
        blocks: how many samples of each, at most.
        steps: timed in a run; one more runs before them.
        seconds: no block begins later than this after the first, except the few that an interval
            needs. None runs all blocks.
        learning: whether the weights change; if not, every step works on the same values.
        after: called after the steps of each run, still within its context, with the
            contender's name, what its context yielded, and the processor times of all its steps.
        seed: of weights, batches and order.

    Returns:
        Clock -> contender -> median step of each block, in ns.
    """
    runner = _Runner(task, steps, 1, seed, learning=learning)
    runner.prepare(contenders.values())
    rng = random.Random(seed)
    samples: Samples = {clock: {name: [] for name in contenders} for clock in CLOCKS}
    with _no_collection():
        for _ in _block_numbers(blocks, seconds):
            for name in rng.sample(list(contenders), k=len(contenders)):
                found = runner.run(
                    contenders[name],
                    None if after is None else functools.partial(after, name),
                )
                for clock, value in found.items():
                    samples[clock][name].append(value)
    return samples


@dataclass(frozen=True)
class Ratios:
    """What :func:`against` measured.

    Attributes:
        base: clock -> median steps of the base's runs, in ns.
        contenders: clock -> contender -> its ratio to the base in each block.
        steps: clock -> contender -> its median step in each block, in ns.
    """

    base: dict[str, list[float]]
    contenders: Samples
    steps: Samples


def against(
    task: Task,
    base: Contender,
    contenders: Mapping[str, Contender],
    *,
    blocks: int,
    steps: int,
    warm_up: int,
    seconds: float | None = None,
    seed: int = 0,
) -> Ratios:
    """Time training steps under each contender between two runs of the base.

    Args:
        task: as for :func:`measure`.
        base: what the contenders are compared with. For the A/A control, it is also one of them.
        contenders: by name.
        blocks: how many ratios of each, at most.
        steps: timed in a run.
        warm_up: steps before them.
        seconds: as for :func:`measure`.
        seed: of weights, batches and order.

    Returns:
        The ratio of a contender's median step to the geometric mean of the base's two beside
        it, for each block, and the base's steps.
    """
    runner = _Runner(task, steps, warm_up, seed, learning=True)
    runner.prepare([base, *contenders.values()])
    rng = random.Random(seed)
    ratios, own = ({c: {name: [] for name in contenders} for c in CLOCKS} for _ in range(2))
    found = Ratios({c: [] for c in CLOCKS}, ratios, own)
    with _no_collection():
        before = runner.run(base)
        for _ in _block_numbers(blocks, seconds):
            for name in rng.sample(list(contenders), k=len(contenders)):
                times, later = runner.run(contenders[name]), runner.run(base)
                for clock in CLOCKS:
                    beside = math.sqrt(before[clock] * later[clock])
                    found.contenders[clock][name].append(times[clock] / beside)
                    found.steps[clock][name].append(times[clock])
                    found.base[clock].append(later[clock])
                before = later
    return found
