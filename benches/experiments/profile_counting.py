# SPDX-License-Identifier: Apache-2.0
"""How often LeNet takes a log and an exp on MNIST, and on which range.

    python -m benches.experiments.profile_counting [--mnist DIR] [--store FILE]

The profiler counts while LeNet trains for ten epochs and is tested after each, under std and
under corem. The operator calls of one forward pass give the count for the whole of MNIST, with
its 60,000 / 50 + 10,000 / 1000 = 1,210 passes an epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

from benches.experiments import command
from benches.experiments.blocks import one_thread
from benches.experiments.training import Task, Training, lenet
from pytest_udftorch import patched
from pytest_udftorch.watch import Profile

LIBRARIES = ("std", "corem")
EPOCHS = 10

#: Forward passes of an epoch on the whole of MNIST: training and test images over batches.
FULL_PASSES = 60_000 // 50 + 10_000 // 1000

#: Of LeNet over ten epochs on the whole of MNIST, as published with UDF-LibTorch.
PUBLISHED = {
    "passes_per_epoch": 1210,
    "log": 12_100,
    "exp": 48_400,
    "log_range": "1 to 9.24",
    "exp_range": "-58 to -79, up to 0",
}

#: What the study calls exp; ELU uses expm1.
EXPONENTIALS = ("exp", "expm1")


def operator_calls(profile: Profile, functions: Sequence[str], stage: str) -> int:
    """Return how many operator calls used one of the functions; each counts once."""
    contexts = {
        (row.key["operator"], row.key["module"])
        for row in profile.rows("function", "operator", "module", "stage")
        if row.key["function"] in functions and row.key["stage"] == stage
    }
    return sum(
        row.operator_calls
        for row in profile.rows("operator", "module", "stage")
        if row.key["stage"] == stage and (row.key["operator"], row.key["module"]) in contexts
    )


def watch(task: Task, library: str, epochs: int, seed: int = 0) -> dict[str, Any]:
    """Train and test under the profiler; return counts, ranges and where they come from.

    The loop itself counts ``passes``; the profiler counts everything else.
    """
    training, batches = Training(task, seed), task.batches(seed)
    tests = len(task.samples.test_inputs.split(task.test_batch))
    passes = 0
    with patched(library, profile="counters") as session:
        for _ in range(epochs):
            for batch in islice(batches, len(task.samples.train_targets) // task.batch):
                training.step(batch)
                passes += 1
            training.test()
            passes += tests
    profile = session.profile
    counts = {
        "log": operator_calls(profile, ("log",), "forward"),
        "exp": operator_calls(profile, EXPONENTIALS, "forward"),
    }
    ranges = []
    for row in profile.rows("function", "operator", "stage"):
        low, high = row.limits("in") or (None, None)
        ranges.append(
            {**row.key, "calls": row.operator_calls, "elements": row.elements,
             "low": low, "high": high}
        )  # fmt: skip
    return {
        "passes": passes,
        "operator_calls": counts,
        "per_pass": {name: count / passes for name, count in counts.items()},
        "full_size": {
            name: count / passes * FULL_PASSES * EPOCHS for name, count in counts.items()
        },
        "ranges": ranges,
    }


def run(task: Task, epochs: int) -> dict[str, Any]:
    """Watch the task under each library and return the figures, ready for JSON."""
    with one_thread():
        libraries = {name: watch(task, name, epochs) for name in LIBRARIES}
    for name, found in libraries.items():
        print(name, found)
    return {
        "label": task.label,
        "data": str(task.samples),
        "epochs": epochs,
        "full_passes_per_epoch": FULL_PASSES,
        "full_epochs": EPOCHS,
        "published": PUBLISHED,
        "libraries": libraries,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("profile_counting", __doc__, "mnist")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args(arguments)
    return command.run(
        "profile_counting", options, lambda: run(lenet(options.mnist), options.epochs)
    )


if __name__ == "__main__":
    sys.exit(main())
