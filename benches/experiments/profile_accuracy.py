# SPDX-License-Identifier: Apache-2.0
"""Accuracy under std and under corem over several seeds: does correct rounding change it?

    python -m benches.experiments.profile_accuracy [--mnist DIR] [--cifar DIR] [--seeds N]
        [--store FILE]

For each seed (fresh weights and order of the batches) a model is trained three times:

- under std;
- under std with one of its weights moved to the next float32, which is what any change in
  a last bit does to a training, right or wrong;
- under corem.

The differences to std, of accuracy and of the mean loss on the test samples, are paired by
seed. The result states their mean with the 95 % interval of Student's t (a paired test; n - 1
degrees of freedom) and the p-value of the exact, two-sided sign-flip permutation test of the
mean, which with five seeds cannot be below 1/16. A training that is repeated must end
with the same weights, bit for bit.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benches.experiments import command
from benches.experiments.training import Task, Training, lenet, resnet, transformer
from pytest_udftorch import UdfError, patched

ARMS = ("std", "std, one weight nudged", "corem")
SEEDS = 5

#: Passes over the training samples; enough for each model to be well above chance.
EPOCHS = {"lenet": 10, "resnet": 8, "transformer": 1}

#: Channels of the first stage, instead of ResNet-18's 64, so that thirty trainings take minutes.
NARROW = 8


class NotDeterministicError(UdfError):
    """A training that was repeated ended with other weights."""


@dataclass(frozen=True)
class Plan:
    """What is trained, and on what."""

    model: str
    epochs: int
    mnist: Path | None = None
    cifar: Path | None = None
    width: int = NARROW
    thinned: int = 1


@functools.cache
def task_of(plan: Plan) -> Task:
    """Return what a plan trains; a worker reads the data once."""
    make = {
        "lenet": lambda: lenet(plan.mnist),
        "resnet": lambda: resnet(plan.cifar, plan.width),
        "transformer": transformer,
    }
    task = make[plan.model]()
    return replace(task, samples=task.samples.thinned(plan.thinned))


@dataclass(frozen=True)
class Outcome:
    """What a training ended with.

    Attributes:
        accuracy: share of the test targets that are predicted correctly.
        loss: mean negative log-likelihood of the test targets.
        predictions: for each test target.
        weights: encodings of all parameters.
    """

    accuracy: float
    loss: float
    predictions: NDArray[np.int64]
    weights: NDArray[np.int32]

    def same(self, other: Outcome) -> bool:
        """Return whether both ended with the same weights, bit for bit."""
        return bool((self.weights == other.weights).all())


def train(plan: Plan, arm: str, seed: int) -> Outcome:
    """Train once, on one thread, and test."""
    torch.set_num_threads(1)
    task = task_of(plan)
    training = Training(task, seed)
    if arm == "std, one weight nudged":
        with torch.no_grad():
            first = next(training.model.parameters()).view(-1)[:1]
            first.copy_(torch.nextafter(first, torch.full_like(first, float("inf"))))
    with patched(arm.split(",")[0]):
        for batch in task.batches(seed, plan.epochs):
            training.step(batch)
        predictions, loss = training.test()
    right = predictions == task.samples.test_targets
    return Outcome(
        int(right.sum()) / right.numel(), loss, predictions.numpy(), training.weights().numpy()
    )


def paired(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Return mean of second - first with its 95 % t interval, and the sign-flip p-value.

    Raises:
        ValueError: fewer than two pairs, or samples of different sizes.
    """
    from scipy.stats import t

    differences = [b - a for a, b in zip(first, second, strict=True)]
    count = len(differences)
    if count < 2:
        raise ValueError("one pair has no spread")
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    half = float(t.ppf(0.975, count - 1)) * deviation / count**0.5
    # Rounding errors must not make a flip with the same mean look smaller.
    reached = abs(sum(differences)) * (1 - 1e-12)
    flips = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= reached
        for signs in itertools.product((1, -1), repeat=count)
    ]
    return {
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "deviation": deviation,
        "sign_flip_p": sum(flips) / len(flips),
    }


def run(plans: Sequence[Plan], seeds: int) -> dict[str, Any]:
    """Train everything, several trainings at once, and return the figures.

    Raises:
        NotDeterministicError: the first training, repeated, ended with other weights.
    """
    # Fresh worker processes inherit no session and no threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        waiting, again = {}, {}
        for plan in plans:
            again[plan.model] = pool.submit(train, plan, "std", 0)
            for arm, seed in itertools.product(ARMS, range(seeds)):
                waiting[plan.model, arm, seed] = pool.submit(train, plan, arm, seed)
        models = {}
        for plan in plans:
            found = {
                arm: [waiting[plan.model, arm, seed].result() for seed in range(seeds)]
                for arm in ARMS
            }
            if not again[plan.model].result().same(found["std"][0]):
                raise NotDeterministicError(
                    f"{plan.model} trained twice from seed 0 under std ended with other weights: "
                    "a difference between std and corem would mean nothing here."
                )
            accuracy = {arm: [o.accuracy for o in outcomes] for arm, outcomes in found.items()}
            loss = {arm: [o.loss for o in outcomes] for arm, outcomes in found.items()}
            task = task_of(plan)
            models[plan.model] = {
                "label": task.label,
                "data": str(task.samples),
                "epochs": plan.epochs,
                "test_targets": task.samples.test_targets.numel(),
                "accuracy": accuracy,
                "loss": loss,
                "parameters": found["std"][0].weights.size,
                "parameters_different": _differing(found, "weights"),
                "predictions_different": _differing(found, "predictions"),
                "accuracy_against_std": {
                    arm: paired(accuracy["std"], accuracy[arm]) for arm in ARMS[1:]
                },
                "loss_against_std": {arm: paired(loss["std"], loss[arm]) for arm in ARMS[1:]},
            }
            print(plan.model, models[plan.model]["accuracy_against_std"], file=sys.stderr)
    return {"seeds": seeds, "models": models}


def _differing(found: Mapping[str, Sequence[Outcome]], what: str) -> dict[str, list[int]]:
    """Return arm -> for each seed, how many weights or predictions are not those under std."""
    return {
        arm: [
            int((getattr(a, what) != getattr(b, what)).sum())
            for a, b in zip(found["std"], found[arm], strict=True)
        ]
        for arm in ARMS[1:]
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("profile_accuracy", __doc__, "mnist", "cifar")
    parser.add_argument("--width", type=int, default=NARROW, help="64 is ResNet-18 itself")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        parser.error("--seeds must be at least 2: one seed has no spread.")
    plans = [
        Plan(model, epochs, options.mnist, options.cifar, options.width)
        for model, epochs in EPOCHS.items()
    ]
    return command.run("profile_accuracy", options, lambda: run(plans, options.seeds))


if __name__ == "__main__":
    sys.exit(main())
