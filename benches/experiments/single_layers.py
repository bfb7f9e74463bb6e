# SPDX-License-Identifier: Apache-2.0
"""Layers taken out of a model: what they are, their inputs, and each kind on its own."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from benches.experiments.compile_models import build, images

#: Layers that compute nothing in evaluation mode, so that there is nothing to compare.
IDLE: Final = (nn.Dropout, nn.Identity, nn.Flatten)


@dataclass(frozen=True)
class Single:
    """One call of a layer in a model.

    Attributes:
        name: qualified name; calls after the first have ``#2`` and so on.
        module: the layer itself.
        shape: of its one input.
    """

    name: str
    module: nn.Module
    shape: tuple[int, ...]

    @property
    def kind(self) -> str:
        """The module's class."""
        return type(self.module).__name__

    @property
    def sort(self) -> str:
        """Text that is equal for two calls exactly when they do the same work."""
        return f"{self.kind}({self.module.extra_repr()}) on {'x'.join(map(str, self.shape))}"


@functools.cache
def singles(model: str, batch: int, size: int) -> tuple[Single, ...]:
    """Return the calls of layers with one tensor as input, in the order of a forward pass.

    Layers that compute nothing in evaluation mode are left out.
    """
    found: list[Single] = []
    counts: dict[str, int] = {}
    network = build(model)
    handles = []
    for name, module in network.named_modules():
        if next(module.children(), None) is not None or isinstance(module, IDLE):
            continue

        def hook(module: nn.Module, inputs: tuple[Any, ...], name: str = name) -> None:
            counts[name] = counts.get(name, 0) + 1
            label = name if counts[name] == 1 else f"{name}#{counts[name]}"
            if len(inputs) == 1 and isinstance(inputs[0], Tensor):
                found.append(Single(label, module, tuple(inputs[0].shape)))

        handles.append(module.register_forward_pre_hook(hook))
    with torch.no_grad():
        network(images(batch, "cpu", size))
    for handle in handles:
        handle.remove()
    return tuple(found)


def distinct(model: str, batch: int, size: int) -> dict[str, list[Single]]:
    """Return the calls by sort, in the order of their first occurrence."""
    found: dict[str, list[Single]] = {}
    for single in singles(model, batch, size):
        found.setdefault(single.sort, []).append(single)
    return found


def example(single: Single, device: str) -> Tensor:
    """Return a normally distributed input of the call's shape."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(single.shape, generator=generator).to(device)
