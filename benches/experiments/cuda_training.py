# SPDX-License-Identifier: Apache-2.0
"""LeNet and a small transformer trained on a GPU under std and corem, side by side.

    python -m benches.experiments.cuda_training [--mnist DIR] [--store FILE]

Both libraries train the same weights on the same batches. They take turns of a few steps, so that a
disturbance of the machine affects both. A whole turn is timed between two synchronisations of the
device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from benches import stored
from benches.data.samples import Samples
from benches.experiments import command, training
from benches.experiments.cuda_digests import gpu
from pytest_udftorch import patched

LIBRARIES = ("std", "corem")
STEPS, TURN, SEEDS = 1000, 50, (0, 1, 2)


def on_gpu(task: training.Task) -> training.Task:
    """Return the task with its samples and models on the GPU."""
    samples = task.samples
    moved = Samples(
        samples.source,
        *(
            t.cuda()
            for t in (
                samples.train_inputs,
                samples.train_targets,
                samples.test_inputs,
                samples.test_targets,
            )
        ),
    )
    return replace(task, samples=moved, make=lambda: task.make().cuda())


def turn_ns(run: training.Training, batches: Sequence[torch.Tensor]) -> float:
    """Return the time of a step without the first one, which compiles or loads what is new."""
    run.step(batches[0])
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for batch in batches[1:]:
        run.step(batch)
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / (len(batches) - 1)


def train(task: training.Task, seed: int, steps: int) -> dict[str, Any]:
    """Train twice; return accuracy, loss and times per step by library."""
    runs = {library: training.Training(task, seed) for library in LIBRARIES}
    batches = task.batches(seed)
    times: dict[str, list[float]] = {library: [] for library in LIBRARIES}
    for turn in range(steps // TURN):
        chosen = [next(batches).cuda() for _ in range(TURN)]
        for library in LIBRARIES if turn % 2 else LIBRARIES[::-1]:
            with patched(library):
                times[library].append(turn_ns(runs[library], chosen))
    found: dict[str, Any] = {}
    for library, run in runs.items():
        with patched(library):
            predictions, loss = run.test()
        right = predictions == task.samples.test_targets
        found[library] = {
            "accuracy": float(right.double().mean()),
            "loss": loss,
            # The first turn loads kernels.
            "step_ns": stored.summary(times[library][1:]),
        }
    weights = [run.weights() for run in runs.values()]
    found["weights_that_differ"] = int((weights[0] != weights[1]).sum())
    found["weights"] = weights[0].numel()
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("cuda_training", __doc__, "mnist")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args(arguments)
    tasks = {}
    for task in (training.lenet(options.mnist), training.transformer()):
        moved = on_gpu(task)
        seeds = {str(seed): train(moved, seed, options.steps) for seed in SEEDS}
        tasks[task.name] = {
            "label": task.label,
            "source": str(task.samples),
            "steps": options.steps,
            "seeds": seeds,
        }
        for seed, found in seeds.items():
            print(task.name, seed, {
                n: (found[n]["accuracy"], round(found[n]["step_ns"]["median"] / 1e3))
                for n in LIBRARIES
            }, found["weights_that_differ"], flush=True)  # fmt: skip
        # After each model, so that an interrupted run keeps its results.
        command.store("cuda_training", options, {"device": gpu(), "tasks": tasks})
    return 0


if __name__ == "__main__":
    sys.exit(main())
