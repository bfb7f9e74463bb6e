# SPDX-License-Identifier: Apache-2.0
"""What an operator of the reach table is, and the memory layouts that it is run with.

An operator says which elementary functions its definition needs. The reach table swaps them to
find out whether libtorch evaluates them through symbols. ``operators`` lists the operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

Dim = Literal["last", "middle", "first"]

TENSOR_DTYPES: Final = ("float32", "float64", "bfloat16", "float16")

#: Layouts of the input of an operator without ``dim``; those in ``BACKWARD`` also run backward.
#: 67 elements are four 16-lane blocks and an odd tail.
SHAPES: Final[dict[str, tuple[int, ...]]] = {
    "contiguous": (67,),
    "strided": (67,),
    "sliced": (7, 37),
    "transposed": (7, 37),
    "channels_last": (2, 5, 3, 7),
    "out=": (67,),
    "in place": (67,),
    "0-dim": (),
    "empty": (0,),
}
BACKWARD: Final = ("contiguous", "strided", "sliced", "transposed", "channels_last")

#: Shapes of the operators that mix a row, by the dimension they mix; the inner 37 elements
#: of the last two are two 16-lane blocks and an odd tail.
_ROWS: Final[dict[Dim, tuple[int, ...]]] = {"last": (3, 67), "middle": (2, 7, 37), "first": (7, 37)}


@dataclass(frozen=True)
class Operator:
    """One operator of torch.

    Attributes:
        name: as the table shows it.
        call: tensor (and, for an operator with ``dim``, the dimension's index) -> tensor.
        needs: elementary functions of its definition: ``"exp log1p|log"`` needs exp, and
            one of log1p and log. Empty if the operator needs none.
        needs_backward: the same for the derivative; None if there is none to run.
        domain: interval of the inputs, within which every element of the result depends on
            each function needed.
        dim: the dimension that it mixes, or None if it works element by element.
        inplace: its in-place form, or None.
        out: its ``out=`` form, called with the buffer second, or None.
        layouts: names in ``SHAPES`` that it runs with.
        dtypes: those that it runs with.
        random: whether it draws from torch's generator, which each run seeds first.

    Where a function is needed on one side of a branch only (elu), the domain lies there.
    """

    name: str
    call: Callable[..., Any]
    needs: str
    needs_backward: str | None = None
    domain: tuple[float, float] = (-3.0, 3.0)
    dim: Dim | None = None
    inplace: Callable[..., Any] | None = None
    out: Callable[..., Any] | None = None
    layouts: tuple[str, ...] = tuple(SHAPES)
    dtypes: tuple[str, ...] = TENSOR_DTYPES
    random: bool = False

    def shape(self, layout: str) -> tuple[int, ...]:
        """Return the shape of the input in ``layout``."""
        if self.dim is None or layout == "channels_last":
            return SHAPES[layout]
        return (0, 4, 6) if layout == "empty" else _ROWS[self.dim]

    def dim_index(self, layout: str) -> int:
        """Return the index of the mixed dimension in ``layout``."""
        if self.dim is None:
            raise ValueError(f"{self.name} mixes no dimension")
        rank = len(self.shape(layout))
        return {"last": rank - 1, "middle": 1, "first": 0}[self.dim]


def groups(needs: str) -> tuple[frozenset[str], ...]:
    """Split ``"exp log1p|log"`` into its groups of alternatives."""
    return tuple(frozenset(word.split("|")) for word in needs.split())


def place(values: Any, layout: str) -> Any:
    """Return a tensor with the values of the contiguous tensor ``values`` in ``layout``."""
    import torch

    if layout == "strided":
        storage = torch.zeros(*values.shape[:-1], 2 * values.shape[-1], dtype=values.dtype)
        return storage[..., ::2].copy_(values)
    if layout == "sliced":
        width = values.shape[-1]
        storage = torch.zeros(*values.shape[:-1], width + 8, dtype=values.dtype)
        return storage[..., 3 : 3 + width].copy_(values)
    if layout == "transposed":
        order = list(reversed(range(values.dim())))
        return values.permute(order).contiguous().permute(order)
    if layout == "channels_last":
        return values.contiguous(memory_format=torch.channels_last)
    return values.clone()
