# SPDX-License-Identifier: Apache-2.0
"""The share of a training step's time that transcendental functions take.

    python -m benches.experiments.profile_time [--mnist DIR] [--cifar DIR] [--store FILE]

The share is measured in two ways that have only the clock in common:

- by the profiler at the depth ``timed``: time in the functions over the processor time of
  the steps, which on one thread is their time less what other processes took;
- by taking the functions away: the library ``benches/data/null`` binds functions that compute
  nothing, and the step under them is compared with the step under std and corem. What a
  call itself costs stays in both, and belongs to the function in the first way only.

Every step works on the same batch with weights that do not move (learning rate 0), so that
all contenders do the same work; they run interleaved (benches/experiments/blocks.py).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benches.experiments import blocks, command
from benches.experiments.training import Task, lenet, resnet, transformer
from pytest_udftorch import Session, patched
from pytest_udftorch.measure.timing.statistics import bootstrap

NULL = Path(__file__).parents[1] / "data" / "null"
LIBRARIES = ("std", "corem")

#: Blocks and steps of a run; some 90 s in all on two quiet cores.
SIZES = {"lenet": (40, 12), "resnet": (12, 4), "transformer": (30, 8)}

#: Of a training's time, as published with UDF-LibTorch.
PUBLISHED = {"std": "under 1 %", "corem": "under 4 %"}


def shares(
    task: Task, count: int, steps: int, runs: dict[str, list[float]] | None = None
) -> dict[str, dict[str, Any]]:
    """Return library -> its shares by both ways, with intervals, and its step.

    Args:
        task: what trains.
        count: of blocks.
        steps: in a run.
        runs: gets task and contender -> the median step of each block, in ns.
    """
    profiled: dict[str, list[float]] = {name: [] for name in LIBRARIES}
    functions: dict[str, dict[str, list[float]]] = {name: {} for name in LIBRARIES}

    def read(name: str, session: Session, times: list[int]) -> None:
        library, _, depth = name.partition(", ")
        if not depth:
            return
        profile, total = session.profile, sum(times)
        profiled[library].append(profile.time_ns / total)
        for row in profile.rows("function"):
            found = functions[library].setdefault(row.key["function"], [])
            found.append(row.time_ns / total)

    samples = blocks.measure(
        task,
        {
            **{name: lambda name=name: patched(name) for name in LIBRARIES},
            **{
                f"{name}, timed": lambda name=name: patched(name, profile="timed")
                for name in LIBRARIES
            },
            "null": lambda: patched(NULL),
        },
        blocks=count,
        steps=steps,
        learning=False,
        after=read,
    )
    if runs is not None:
        runs |= {f"{task.name}, {name}": steps for name, steps in samples["wall"].items()}
    return {
        name: {
            "step_ns": statistics.median(samples["wall"][name]),
            "profiler": asdict(bootstrap(profiled[name])),
            "functions": {f: statistics.median(v) for f, v in functions[name].items()},
            "functions_away": {
                clock: asdict(
                    bootstrap([1 - b / a for a, b in zip(found[name], found["null"], strict=True)])
                )
                for clock, found in samples.items()
            },
        }
        for name in LIBRARIES
    }


def run(
    tasks: Sequence[Task],
    sizes: dict[str, tuple[int, int]],
    runs: dict[str, list[float]] | None = None,
) -> dict[str, Any]:
    """Measure every task and return the figures, ready for JSON; ``runs`` as for ``shares``."""
    models = {}
    with blocks.one_thread():
        for task in tasks:
            count, steps = sizes[task.name]
            models[task.name] = {
                "label": task.label,
                "data": task.samples.source,
                "blocks": count,
                "steps": steps,
                "libraries": shares(task, count, steps, runs),
            }
            print(task.name, models[task.name]["libraries"], file=sys.stderr)
    return {"threads": 1, "published": PUBLISHED, "models": models}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("profile_time", __doc__, "mnist", "cifar")
    options = parser.parse_args(arguments)

    def measure() -> dict[str, Any]:
        tasks = [lenet(options.mnist), resnet(options.cifar, batch=10), transformer()]
        return run(tasks, SIZES)

    return command.run("profile_time", options, measure)


if __name__ == "__main__":
    sys.exit(main())
