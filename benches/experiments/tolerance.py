# SPDX-License-Identifier: Apache-2.0
"""How many bits do the functions of each layer of three models need, and what time does that save?

    python -m benches.experiments.tolerance [--models lenet,resnet,transformer] [--store FILE]

Each model is trained under the stock functions. The metric is the mean negative log-likelihood of
some test samples, which may move by ``WITHIN``; as many others are held out. The time saved is that
of the functions: evaluations times measured ns per element.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benches.experiments import command

#: Nats by which the mean negative log-likelihood may move.
WITHIN = 1e-3

#: Model -> steps of training, and samples of the search and of the held-out data, each.
CASES = {"lenet": (240, 500), "resnet": (60, 100), "transformer": (200, 50)}


def _task(name: str) -> Any:
    from benches.experiments import training

    return training.resnet(width=8) if name == "resnet" else getattr(training, name)()


def _losses(name: str) -> tuple[str, Callable[[], float], Callable[[], float]]:
    """Train a model; return its label and the metric on both halves of the test samples."""
    import torch
    from torch.nn import functional as F

    from benches.experiments.training import Training

    steps, half = CASES[name]
    task = _task(name)
    training = Training(task, seed=0)
    batches = task.batches(seed=0)
    for _ in range(steps):
        training.step(next(batches))
    model, samples = training.model.eval(), task.samples
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(len(samples.test_targets), generator=generator)

    def loss(chosen: torch.Tensor) -> float:
        targets = samples.test_targets[chosen].flatten()
        with torch.no_grad():
            found = model(samples.test_inputs[chosen])
        return float(F.nll_loss(found.double().flatten(0, -2), targets))

    return task.label, partial(loss, order[:half]), partial(loss, order[half : 2 * half])


def row(name: str) -> dict[str, Any]:
    """Search for one model."""
    from pytest_udftorch.diagnose import cheapest_libraries

    label, metric, held_out = _losses(name)
    begin = time.perf_counter()
    found = cheapest_libraries(metric, within=WITHIN, held_out=held_out)
    seconds = time.perf_counter() - begin
    return {"model": label, "seconds": seconds, **found.document()}


def measure(models: Sequence[str]) -> dict[str, Any]:
    """Search for every model."""
    import torch

    torch.set_num_threads(1)
    rows = []
    for name in models:
        rows.append(row(name))
        print({k: v for k, v in rows[-1].items() if k != "needs"}, flush=True)
    return {"within": WITHIN, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("tolerance", __doc__)
    parser.add_argument("--models", default=",".join(CASES), help="by default all")
    options = parser.parse_args(arguments)
    return command.run("tolerance", options, lambda: measure(options.models.split(",")))


if __name__ == "__main__":
    sys.exit(main())
