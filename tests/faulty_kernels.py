# SPDX-License-Identifier: Apache-2.0
"""A wrong operator, planted through the dispatcher."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_udftorch.diagnose import Side


def planted(operator: str, change: Callable[[Any], Any], at: int = 0, name: str = "wrong") -> Side:
    """A side in which one call of an operator gives something else.

    Args:
        operator: the overload (``aten::gelu``).
        change: gets the tensor that the call gave, and returns another one.
        at: which call of the operator, counted from the run's beginning.
    """

    class Planting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func.name() != operator:
                return result
            self.seen += 1
            return change(result) if self.seen == at + 1 else result

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        with Planting():
            yield

    return Side(name=name, around=around)


def next_number(value: torch.Tensor) -> torch.Tensor:
    """One ULP up in the first element."""
    changed = value.clone(memory_format=torch.contiguous_format)
    flat = changed.view(-1)
    flat[0] = torch.nextafter(flat[0], flat.new_tensor(float("inf")))
    return changed
