# SPDX-License-Identifier: Apache-2.0
"""Whether a rewritten graph is faster than the graph it came from: measured, with a margin.

The contenders take turns, as :class:`.timers.SyncTimer` has it. Each has to
beat the best one before it: by the margin, and by more than the noise of the measurement.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.deadline import NEVER, Deadline
from pytest_udftorch.measure.timing.statistics import FEWEST_RUNS
from pytest_udftorch.measure.timing.timers import Comparison, SyncTimer

#: How many times as fast as the graph it came from a graph has to be.
GAIN: Final = 1.02
#: Seconds that measuring one graph's contenders may take, unless the fewest runs take more.
SECONDS: Final = 5.0
#: Runs of a graph that takes little time, and the fewest.
RUNS: Final = (20, FEWEST_RUNS + 1)
#: The name of the graph as it was, which is the first contender.
ORIGINAL: Final = "original"


def kept(timing: Comparison, gain: float) -> str:
    """Return the name of the contender to keep.

    Args:
        timing: of the contenders, each after those that it came from.
        gain: how many times as fast as the best one before it a contender has to be; 0 keeps the
            last one, whatever its time.
    """
    first, *others = timing.timings
    if not gain:
        return [first, *others][-1]
    best = first
    for name in others:
        faster = timing.verdict(name, best) == "faster"
        if faster and timing.speedup(name, best).value >= gain:
            best = name
    return best


def why_not(timing: Comparison, name: str, best: str, gain: float) -> str:
    """Return why a contender is not kept, in words."""
    found = timing.speedup(name, best)
    return (
        f"measured {found.value:.2f} times as fast ({found.low:.2f} to {found.high:.2f}) as the "
        f"{best} graph; it has to be {gain:g} times as fast, and by more than the noise"
    )


def measured(
    contenders: Mapping[str, Callable[..., Any]],
    inputs: Sequence[Any],
    deadline: Deadline = NEVER,
) -> Comparison:
    """Time graphs on the inputs of a call, in turns.

    Args:
        contenders: what takes the inputs, by name; the graph as it was is the first.
        inputs: of the call.
        deadline: after which no turn is begun; too few turns decide nothing.
    """
    devices = {t.device for t in inputs if isinstance(t, torch.Tensor)}
    home = next((d for d in devices if d.type == "cuda"), torch.device("cpu"))
    calls = {name: functools.partial(call, *inputs) for name, call in contenders.items()}
    with graphs.own_numbers(inputs), torch.no_grad():
        once = SyncTimer(home, runs=1, rounds=1, warmup=1, gpu_state=False)
        took = once.time(next(iter(calls.values()))).median_ns / 1e9
        rounds = 5 if took < SECONDS / 1000 else 1
        most, fewest = RUNS
        fits = int(min(SECONDS, deadline.left()) / max(took * len(calls) * (rounds + 1), 1e-9))
        runs = min(most, max(fewest, fits))
        left = max(deadline.left(), 1e-9)
        limit = None if math.isinf(left) else left
        timer = SyncTimer(home, runs=runs, rounds=rounds, warmup=1, gpu_state=False, seconds=limit)
        found = timer.compare(calls).complete()
    done = len(next(iter(found.timings.values())).runs_ns)
    if done < fewest:
        deadline.missed.append(f"{fewest - done} of {fewest} turns of the measurement")
    return found
