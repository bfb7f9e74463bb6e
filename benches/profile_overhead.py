"""What the profiler costs a training step, by depth.

    python -m benches.profile_overhead [--mnist DIR] [--cifar DIR] [--store FILE]

Contenders are sessions without a profile (``off``), the same once more (``off again``, the
A/A control: what the method itself takes for a difference), and with each depth. They run
interleaved on one training (benches/blocks.py). Stated is the median over the blocks of the
step's time over that of ``off`` in the same block, with its 95 % bootstrap interval; the
cost is within a bound when the whole interval is, above it when the whole interval is, and
otherwise the measurement is too coarse to tell. The same ratios of processor time stand
beside it; they decide nothing.

That nothing is left when profiling is off is no matter of time: the library that an
ordinary session binds is the same file, byte for byte, before and after profiled sessions,
and refers to nothing of the profiler.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from benches import blocks, command
from benches.training import Task, Training, lenet, resnet, transformer
from pytest_udftorch import UdfError, build_library, patched
from pytest_udftorch.samples import FEWEST_RUNS, Interval, ratio

LIBRARIES = ("std", "corem")
DEPTHS = ("counters", "timed", "events")

#: The largest ratio to ``off`` that is asked for.
BOUNDS = {"counters": 1.01, "timed": 1.02, "events": 1.05}

#: Blocks and steps of a run; some five minutes in all on two quiet cores.
SIZES = {"lenet": (50, 24), "resnet": (24, 6), "transformer": (50, 12)}


class ChangedResultError(UdfError):
    """A training under the profiler ended with other weights than without it."""


def verdict(interval: Interval, bound: float, count: int) -> str:
    """Say what a ratio's interval, from ``count`` blocks, tells about a bound."""
    if count < FEWEST_RUNS:
        return "too few blocks"
    if interval.high <= bound:
        return "within"
    return "above" if interval.low > bound else "cannot tell"


def overhead(task: Task, library: str, count: int, steps: int) -> dict[str, Any]:
    """Return contender -> ratio to ``off`` with its interval and, for a depth, the verdict."""
    depths: dict[str, bool | str] = {"off": False, "off again": False, **{d: d for d in DEPTHS}}
    samples = blocks.measure(
        task,
        {
            name: lambda depth=depth: patched(library, profile=depth)
            for name, depth in depths.items()
        },
        blocks=count,
        steps=steps,
    )
    found: dict[str, Any] = {"step_ns": statistics.median(samples["wall"]["off"]), "ratios": {}}
    for name in (n for n in depths if n != "off"):
        intervals = {clock: ratio(times[name], times["off"]) for clock, times in samples.items()}
        found["ratios"][name] = {clock: asdict(i) for clock, i in intervals.items()}
        if name in BOUNDS:
            found["ratios"][name]["verdict"] = verdict(intervals["wall"], BOUNDS[name], count)
    return found


def check_results(task: Task, library: str, steps: int) -> None:
    """Train with and without the profiler from one seed.

    Raises:
        ChangedResultError: the weights differ in a bit.
    """
    weights: dict[bool | str, torch.Tensor] = {}
    for depth in (False, *DEPTHS):
        training, batches = Training(task, seed=0), task.batches(0)
        with patched(library, profile=depth):
            for _ in range(steps):
                training.step(next(batches))
        weights[depth] = training.weights()
        if not torch.equal(weights[depth], weights[False]):
            raise ChangedResultError(
                f"{task.name} under {library!r} with profile={depth!r} ended with other weights "
                "than without a profile: the instrumented forms do not return what the others do."
            )


def builds() -> dict[str, Any]:
    """Return hashes of corem's ordinary library around a profiled session, and what they say."""

    def ordinary() -> str:
        with patched("corem") as session:
            assert session.build is not None
            return hashlib.sha256(session.build.path.read_bytes()).hexdigest()

    before = ordinary()
    with patched("corem", profile="counters") as session:
        assert session.build is not None
        instrumented = session.build.path.read_bytes()
    after = ordinary()
    return {
        "sha256_before": before,
        "sha256_after": after,
        "same": before == after,
        "ordinary_names_profiler": b"udfprof" in build_library("corem").path.read_bytes(),
        "instrumented_names_profiler": b"udfprof" in instrumented,
    }


def run(tasks: Sequence[Task], sizes: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """Measure every task under every library and return the figures, ready for JSON.

    Raises:
        ChangedResultError: as from :func:`check_results`.
    """
    models = {}
    with blocks.one_thread():
        for task in tasks:
            count, steps = sizes[task.name]
            libraries = {}
            for library in LIBRARIES:
                check_results(task, library, steps=3)
                libraries[library] = overhead(task, library, count, steps)
                print(task.name, library, libraries[library], file=sys.stderr)
            models[task.name] = {
                "label": task.label,
                "data": task.samples.source,
                "blocks": count,
                "steps": steps,
                "libraries": libraries,
            }
    return {"threads": 1, "bounds": BOUNDS, "builds": builds(), "models": models}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("profile_overhead", __doc__, "mnist", "cifar")
    options = parser.parse_args(arguments)
    try:
        tasks = [lenet(options.mnist), resnet(options.cifar, batch=10), transformer()]
        figures = run(tasks, SIZES)
    except UdfError as error:
        print(f"profile_overhead: {error}", file=sys.stderr)
        return 2
    command.store("profile_overhead", options, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
