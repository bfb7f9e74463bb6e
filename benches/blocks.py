"""Interleaved blocks of training steps: what the profiler's cost is measured with.

A block runs every contender once, in a random order, for the same number of steps of the
same training. Its sample of a contender is the median step of the run, the first step left
out, which finds the caches as the previous contender left them. Samples are paired within
a block, so that a disturbance of the machine that lasts longer than a block meets all of
them; intervals are bootstrapped over blocks (pytest_udftorch/samples.py).
"""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from benches.training import Task, Training

#: Returns what a contender's steps run in; what it yields is given to ``after``.
Contender = Callable[[], AbstractContextManager[Any]]


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
    learning: bool = True,
    after: Callable[[str, Any, list[int]], None] | None = None,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Time training steps under each contender, interleaved.

    Args:
        task: one model and one optimizer serve all contenders, so that none has a better
            place in memory.
        contenders: by name.
        blocks: how many samples of each.
        steps: timed in a run; one more runs before them.
        learning: whether the weights move; if not, every step works on the same values.
        after: called after the steps of each run, still within its context, with the
            contender's name, what its context yielded, and the times of all its steps in ns.
        seed: of weights, batches and order.

    Returns:
        Contender -> median step of each block, in ns.
    """
    training = Training(task, seed)
    if not learning:
        for group in training.optimizer.param_groups:
            group["lr"], group["weight_decay"] = 0.0, 0.0
    batches: Iterator[torch.Tensor] = task.batches(seed)
    if not learning:
        batches = itertools.repeat(next(batches))
    for _ in range(3):
        training.step(next(batches))
    rng = random.Random(seed)
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    clock = time.perf_counter_ns
    with _no_collection():
        for _ in range(blocks):
            for name in rng.sample(list(contenders), k=len(contenders)):
                with contenders[name]() as entered:
                    times = []
                    for _ in range(steps + 1):
                        batch = next(batches)
                        start = clock()
                        training.step(batch)
                        times.append(clock() - start)
                    if after is not None:
                        after(name, entered, times)
                samples[name].append(statistics.median(times[1:]))
    return samples
