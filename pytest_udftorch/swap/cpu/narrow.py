# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: functions in 16 bits whose float32 result must not be rounded again.

torch's loops round the float32 result of a function to bfloat16 or half. For a few of the 65,536
inputs the second rounding is wrong; ``sixteen`` of the library names them. The operators of these
functions are overridden in the dtypes in question. Other dtypes go on to stock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pytest_udftorch.swap.cpu.loops import Loops
from pytest_udftorch.swap.cpu.pointwise import Kernels, kernels_of, overloads, stock_kernel
from pytest_udftorch.swap.operators.calls import Applied
from pytest_udftorch.swap.operators.row import Pointwise
from pytest_udftorch.swap.operators.table import BARE, POINTWISE

OPERATORS: Final = tuple(op for op in POINTWISE if op.name in BARE)


class _Narrow(Kernels):
    """The kernels of one operator."""

    def __init__(self, loops: Loops, op: Pointwise) -> None:
        super().__init__(loops, op)
        fixed = loops.fixed(op.name)
        self.numbers = {dtype: at for dtype, at in self.numbers.items() if fixed[at] is not None}

    def compute(self, formula: Applied, tensors: Sequence[Any], y: Any) -> None:
        if y.numel():
            self.loops.run_whole(self.op.name, self.op.name, tensors[0], y, self.numbers[y.dtype])


def narrow_kernels(
    loops: Loops, others: Mapping[str, Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel for the functions of ``loops`` that need it.

    Args:
        loops: has the functions.
        others: kernels of the session, which compute the other dtypes.
    """

    def below(name: str) -> Callable[..., Any]:
        return others[name] if name in others else stock_kernel(name)

    found: dict[str, Callable[..., Any]] = {}
    for op in OPERATORS:
        if op.name in loops.held and any(loops.fixed(op.name)):
            found |= kernels_of(_Narrow(loops, op), below)
    return found


#: Overload -> its operator.
_OF: Final = {name: op.name for op in OPERATORS for name in overloads(op)}


def computed(loops: Loops, overload: str) -> int:
    """Return a bit for each dtype, by its number, that the kernel of an overload computes."""
    fixed = loops.fixed(_OF[overload])
    return sum(1 << at for at, table in enumerate(fixed) if table is not None)
