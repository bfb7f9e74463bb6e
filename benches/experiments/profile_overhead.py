# SPDX-License-Identifier: Apache-2.0
"""What the profiler costs a training step, by depth.

    python -m benches.experiments.profile_overhead [--mnist DIR] [--cifar DIR] [--store FILE]

The base is a session without a profile. Contenders are the same once more (``off again``,
the A/A control, which shows what differences the method itself makes), and a session with each
depth. They run interleaved on one training, each between two runs of the base
(``against`` of benches/experiments/blocks.py), and each run opens its session again. The result
is the median over the blocks of the step's time over that of the base (the geometric mean of the
runs before and after), with its 95 % bootstrap interval. The cost is within a bound if the whole
interval is, and above it if the whole interval is; otherwise the measurement is too coarse to
decide. The ratios of processor time are shown, but decide nothing. Each model and library has a
share of the time, some seven minutes in all. Its figures are stored when it is done.

Memory is what the profiler's runtime itself has allocated after a few steps, and after four times
as many.

No timing is needed to show that nothing remains when profiling is off: the library that an ordinary
session binds is the same file, byte for byte, before and after profiled sessions, and it refers to
nothing in the profiler.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benches.experiments import blocks, command
from benches.experiments.training import Task, Training, lenet, resnet, transformer
from pytest_udftorch import UdfError, build_library, patched
from pytest_udftorch.measure.timing.statistics import FEWEST_RUNS, Interval, bootstrap
from pytest_udftorch.swap.native.runtime import runtime

LIBRARIES = ("std", "corem")
DEPTHS = ("counters", "timed", "events")

#: The largest ratio to ``off`` that is accepted.
BOUNDS = {"counters": 1.01, "timed": 1.02, "events": 1.05}


@dataclass(frozen=True)
class Size:
    """How much of a model is measured under each library.

    Attributes:
        blocks: at most.
        steps: timed in a run.
        warm_up: steps of a run before them.
        seconds: for all blocks.
    """

    blocks: int
    steps: int
    warm_up: int
    seconds: float


#: Some seven minutes in all, and half a minute for what is not timed.
SIZES = {
    "lenet": Size(300, 12, 4, 45.0),
    "resnet": Size(60, 2, 1, 105.0),
    "transformer": Size(200, 6, 2, 55.0),
}

#: Steps after which memory is read for the first time.
FEW_STEPS = 3


class ChangedResultError(UdfError):
    """A training under the profiler ended with other weights than without it."""


def verdict(interval: Interval, bound: float, count: int) -> str:
    """Return what a ratio's interval, from ``count`` blocks, says about a bound."""
    if count < FEWEST_RUNS:
        return "too few blocks"
    if interval.high <= bound:
        return "within"
    return "above" if interval.low > bound else "cannot tell"


def overhead(
    task: Task, library: str, size: Size, runs: dict[str, list[float]] | None = None
) -> dict[str, Any]:
    """Return contender -> ratio to ``off`` with its interval and, for a depth, the verdict.

    Args:
        task: what trains.
        library: of the session.
        size: how much is measured.
        runs: gets contender -> the median step of each block, in ns.
    """
    depths: dict[str, bool | str] = {"off again": False, **{d: d for d in DEPTHS}}
    ratios = blocks.against(
        task,
        lambda: patched(library),
        {
            name: lambda depth=depth: patched(library, profile=depth)
            for name, depth in depths.items()
        },
        blocks=size.blocks,
        steps=size.steps,
        warm_up=size.warm_up,
        seconds=size.seconds,
    )
    if runs is not None:
        runs |= {"off": ratios.base["wall"], **ratios.steps["wall"]}
    count = len(ratios.contenders["wall"]["off again"])
    step = statistics.median(ratios.base["wall"])
    found: dict[str, Any] = {"step_ns": step, "blocks": count, "ratios": {}}
    for name in depths:
        intervals = {clock: bootstrap(of[name]) for clock, of in ratios.contenders.items()}
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
                "than without a profile: the instrumented forms return other values."
            )


def memory(task: Task, steps: int) -> dict[str, dict[str, int]]:
    """Return depth -> bytes that the runtime allocates for a model, and that its file takes.

    Keys: ``few`` and ``many`` after ``steps`` and four times as many, ``file_few`` and
    ``file_many`` the size of the profile's file then. Contexts are kept for the life of the
    process, so the figures of a model are those of its first session.
    """
    found = {}
    allocated = runtime().cells.memory
    before = allocated()
    for depth in ("counters", "events"):
        training, batches = Training(task, seed=0), task.batches(0)
        sizes = {}
        with (
            tempfile.TemporaryDirectory() as folder,
            patched("std", profile=depth, profile_out=folder) as session,
        ):
            for name, count in (("few", steps), ("many", 3 * steps)):
                for _ in range(count):
                    training.step(next(batches))
                session.collector.flush()
                sizes[name] = allocated() - before
                sizes[f"file_{name}"] = sum(p.stat().st_size for p in Path(folder).iterdir())
        found[depth] = sizes
    return found


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


def run(
    tasks: Sequence[Task],
    sizes: Mapping[str, Size],
    keep: Callable[[dict[str, Any]], None] = lambda figures: None,
) -> dict[str, Any]:
    """Measure every task under every library and return the figures, ready for JSON.

    Args:
        tasks: models and what they are trained on.
        sizes: by the task's name.
        keep: is given the figures so far after each model and library.

    Raises:
        ChangedResultError: as from :func:`check_results`.
    """
    models: dict[str, Any] = {}
    figures = {"threads": 1, "bounds": BOUNDS, "builds": builds(), "models": models}
    with blocks.one_thread():
        for task in tasks:
            size = sizes[task.name]
            libraries: dict[str, Any] = {}
            models[task.name] = {
                "label": task.label,
                "data": task.samples.source,
                "steps": size.steps,
                "memory": memory(task, FEW_STEPS),
                "libraries": libraries,
            }
            for library in LIBRARIES:
                check_results(task, library, steps=2)
                libraries[library] = overhead(task, library, size)
                print(task.name, library, libraries[library], file=sys.stderr)
                keep(figures)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("profile_overhead", __doc__, "mnist", "cifar")
    options = parser.parse_args(arguments)

    def measure() -> dict[str, Any]:
        tasks = [lenet(options.mnist), transformer(), resnet(options.cifar, batch=10)]
        return run(tasks, SIZES, lambda f: command.store("profile_overhead", options, f))

    return command.run("profile_overhead", options, measure)


if __name__ == "__main__":
    sys.exit(main())
