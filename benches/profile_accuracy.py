"""Accuracy under std and under corem over several seeds: does correct rounding change it?

    python -m benches.profile_accuracy [--mnist DIR] [--cifar DIR] [--seeds N] [--store FILE]

For each seed (fresh weights and order of the batches) a model is trained three times:

- under std;
- under std with one of its weights moved to the next float32, which is what any change in
  a last bit does to a training, right or wrong;
- under corem.

The differences to std are paired by seed. Stated are their mean with the 95 % interval of
Student's t (a paired test; n - 1 degrees of freedom) and the p-value of the exact sign-flip
permutation test of the mean, two-sided, which with five seeds cannot be below 1/16. A
training that is repeated must end with the same weights, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import multiprocessing
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches import stored
from pytest_udftorch import UdfError

ARMS = ("std", "std, one weight nudged", "corem")
SEEDS = 5

#: Passes over the training samples; enough for each model to be well above chance.
EPOCHS = {"lenet": 10, "resnet": 5, "transformer": 1}

#: Channels of the first stage, instead of ResNet-18's 64: some thirty trainings in minutes.
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

    def task(self) -> Any:
        """Return the training's task."""
        from dataclasses import replace

        from benches import training

        make = {
            "lenet": lambda: training.lenet(self.mnist),
            "resnet": lambda: training.resnet(self.cifar, self.width),
            "transformer": training.transformer,
        }
        task = make[self.model]()
        return replace(task, samples=task.samples.thinned(self.thinned))


def train(plan: Plan, arm: str, seed: int) -> tuple[float, str]:
    """Train once, on one thread; return the accuracy and a hash of the final weights."""
    import torch

    from benches.training import Training
    from pytest_udftorch import patched

    torch.set_num_threads(1)
    task = plan.task()
    training = Training(task, seed)
    if arm == "std, one weight nudged":
        with torch.no_grad():
            first = next(training.model.parameters()).view(-1)[:1]
            first.copy_(torch.nextafter(first, torch.full_like(first, float("inf"))))
    with patched(arm.split(",")[0]):
        for batch in task.batches(seed, plan.epochs):
            training.step(batch)
        accuracy = training.accuracy()
    digest = hashlib.sha256(training.weights().numpy().tobytes()).hexdigest()
    return accuracy, digest


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
    # Rounding of the sums must not make a flip that gives the same mean look smaller.
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


def run(plans: Sequence[Plan], seeds: int, processes: int | None = None) -> dict[str, Any]:
    """Train everything, several trainings at once, and return the figures.

    Raises:
        NotDeterministicError: the first training, repeated, ended with other weights.
    """
    # A fresh process for every worker: no session and no threads are inherited.
    context = multiprocessing.get_context("spawn")
    workers = processes or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = {
            (plan.model, arm, seed): pool.submit(train, plan, arm, seed)
            for plan in plans
            for arm in ARMS
            for seed in range(seeds)
        }
        again = {plan.model: pool.submit(train, plan, "std", 0) for plan in plans}
        models = {}
        for plan in plans:
            found = {
                arm: [waiting[plan.model, arm, seed].result() for seed in range(seeds)]
                for arm in ARMS
            }
            if again[plan.model].result() != found["std"][0]:
                raise NotDeterministicError(
                    f"{plan.model} trained twice from seed 0 under std ended with other weights: "
                    "a difference between std and corem would mean nothing here."
                )
            accuracy = {arm: [value for value, _ in pairs] for arm, pairs in found.items()}
            task = plan.task()
            models[plan.model] = {
                "label": task.label,
                "data": str(task.samples),
                "epochs": plan.epochs,
                "test_targets": task.samples.test_targets.numel(),
                "accuracy": accuracy,
                "same_weights": {
                    arm: sum(a == b for a, b in zip(found[arm], found["std"], strict=True))
                    for arm in ARMS[1:]
                },
                "against_std": {arm: paired(accuracy["std"], accuracy[arm]) for arm in ARMS[1:]},
            }
            print(plan.model, models[plan.model]["against_std"], file=sys.stderr)
    return {"seeds": seeds, "models": models}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benches.profile_accuracy")
    parser.add_argument("--mnist", type=Path, metavar="DIR", help="folder with MNIST/raw")
    parser.add_argument("--cifar", type=Path, metavar="DIR", help="folder of CIFAR-10")
    parser.add_argument("--width", type=int, default=NARROW, help="64 is ResNet-18 itself")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--store", type=Path, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        parser.error("--seeds must be at least 2: one seed has no spread.")
    plans = [
        Plan(model, epochs, options.mnist, options.cifar, options.width)
        for model, epochs in EPOCHS.items()
    ]
    try:
        figures = run(plans, options.seeds)
    except UdfError as error:
        print(f"profile_accuracy: {error}", file=sys.stderr)
        return 2
    if options.store:
        stored.save(options.store, "python -m benches.store profile_accuracy", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
