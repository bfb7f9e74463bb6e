# SPDX-License-Identifier: Apache-2.0
"""Tensors in nested containers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_udftorch.base import compat

pytree: Any = compat.pytree()


def convert(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply ``function`` to every tensor of a nested structure."""
    return pytree.tree_map_only(torch.Tensor, function, value)


def tensors_in(value: Sequence[Any]) -> list[torch.Tensor]:
    """Return the tensors of a nested structure, in the order of its leaves."""
    return [t for t in pytree.tree_leaves(list(value)) if isinstance(t, torch.Tensor)]


def to_channels_last(value: Any) -> Any:
    """Return the structure with its 4-d tensors in channels_last memory format."""
    return convert(
        value, lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t
    )
