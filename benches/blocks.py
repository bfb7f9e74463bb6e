"""Interleaved blocks of training steps: what the profiler's cost is measured with.

A block runs every contender once, in a random order, for the same number of steps of the
same training. Its sample of a contender is the median step of the run, the first step left
out, which finds the caches as the previous contender left them. Samples are paired within
a block, so that a disturbance of the machine that lasts longer than a block meets all of
them; intervals are bootstrapped over blocks (pytest_udftorch/samples.py).

Two clocks run: of the wall, and of the processor time of all the process's threads, which
other processes disturb less.
"""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch

from benches.training import Task, Training
from pytest_udftorch.samples import FEWEST_RUNS

#: Returns what a contender's steps run in; what it yields is given to ``after``.
Contender = Callable[[], AbstractContextManager[Any]]


#: What a step is timed with; both count ns.
CLOCKS: Final = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}

#: Clock -> contender -> median step of each block.
Samples = dict[str, dict[str, list[float]]]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: other threads' scheduling is the largest noise there is."""
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
        seconds: no block begins later than this after the first, but for the fewest that an
            interval needs; without it all blocks are run.
        learning: whether the weights move; if not, every step works on the same values.
        after: called after the steps of each run, still within its context, with the
            contender's name, what its context yielded, and the processor times of all its steps.
        seed: of weights, batches and order.

    Returns:
        Clock -> contender -> median step of each block, in ns.
    """
    training = Training(task, seed)
    if not learning:
        for group in training.optimizer.param_groups:
            group["lr"], group["weight_decay"] = 0.0, 0.0
    batches: Iterator[torch.Tensor] = task.batches(seed)
    if not learning:
        batches = itertools.repeat(next(batches))
    # Libraries are built, and the optimizer's state is made, before anything is timed.
    for context in contenders.values():
        with context():
            training.step(next(batches))
    rng = random.Random(seed)
    samples: Samples = {clock: {name: [] for name in contenders} for clock in CLOCKS}
    wall, cpu = CLOCKS.values()
    with _no_collection():
        begin = time.monotonic()
        for done in range(blocks):
            late = seconds is not None and time.monotonic() - begin > seconds
            if late and done >= FEWEST_RUNS:
                break
            for name in rng.sample(list(contenders), k=len(contenders)):
                times: dict[str, list[int]] = {clock: [] for clock in CLOCKS}
                with contenders[name]() as entered:
                    for _ in range(steps + 1):
                        batch = next(batches)
                        start, start_cpu = wall(), cpu()
                        training.step(batch)
                        times["cpu"].append(cpu() - start_cpu)
                        times["wall"].append(wall() - start)
                    if after is not None:
                        after(name, entered, times["cpu"])
                for clock, values in times.items():
                    samples[clock][name].append(statistics.median(values[1:]))
    return samples
