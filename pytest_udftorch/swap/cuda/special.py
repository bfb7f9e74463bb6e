# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: special functions that are no formula of one tensor.

The stock kernel runs first: dtypes, strides, resizing and errors are torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_udftorch.swap.cuda.launcher import Launcher, handled, stock_kernel
from pytest_udftorch.swap.cuda.pointwise import common_dtype, overwrite, run_dense
from pytest_udftorch.swap.operators.calls import plain
from pytest_udftorch.swap.operators.row import Operator
from pytest_udftorch.swap.operators.table import SCALED
from pytest_udftorch.swap.operators.tensors import may_share

_Kernels = dict[str, Callable[..., Any]]
#: Computes an operator of a tensor and its other arguments into a tensor.
_Fill = Callable[..., None]


def _forms(op: Operator, fill: _Fill, place: int = 0) -> _Kernels:
    """Return overload -> kernel of an operator with a tensor at ``place`` of its arguments."""

    def functional(stock: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: Any) -> Any:
            y = stock(*args)
            fill(args, y)
            return y

        return kernel

    def into(stock: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: Any, out: Any) -> Any:
            kept = [*args]
            if may_share(args[place], out):
                kept[place] = args[place].clone()
            stock(*args, out=out)
            fill(kept, out)
            return out

        return kernel

    def inplace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: Any) -> Any:
            x = args[0]
            kept = [x.clone(), *args[1:]]
            stock(*args)
            fill(kept, x)
            return x

        return kernel

    return {
        name: (into if name.endswith(".out") else inplace if name.endswith("_") else functional)(
            stock_kernel(name)
        )
        for name in op.overloads
    }


def scaled_kernels(launcher: Launcher, op: Operator) -> _Kernels:
    """Return overload -> kernel of a function that is stock's without a factor, times the factor.

    What stock computes without the factor is algebraic: i0e, i1e, and erfcx of positive numbers.
    """
    without = stock_kernel(SCALED[op])

    def fill(args: Any, y: Any) -> None:
        if common_dtype(args[:1]) in handled():
            x = args[0].float()
            given = x.abs() if op.name == "special_erfcx" else x
            # In float64, so that the product has one rounding more, and not stock's several.
            other = without(given.double()).float()
            overwrite(launcher, op.name, (x, other), y, plain(op.kernels[0]))

    return _forms(op, fill)


def polygamma_kernels(launcher: Launcher, op: Operator) -> _Kernels:
    """Return overload -> kernel of polygamma, whose orders from 2 on stay stock."""

    def fill(args: Any, y: Any) -> None:
        order, x = args
        if order < len(op.kernels):
            overwrite(launcher, op.name, (x,), y, plain(op.kernels[order]))

    return _forms(op, fill, 1)


def log_cumulative_kernels(launcher: Launcher, op: Operator) -> _Kernels:
    """Return overload -> kernel of logcumsumexp.

    Each of log2(n) steps adds what stands 1, 2, 4, ... places before (Hillis and Steele, Data
    parallel algorithms, 1986): fewer roundings lie behind each result than in a running sum.
    """
    import torch

    def fill(args: Any, y: Any) -> None:
        x, dim = args
        if y.dtype not in handled() or not x.dim() or not x.numel():
            return
        values = x.to(device=y.device, dtype=torch.float32).movedim(dim, 0).contiguous()
        step = 1
        while step < len(values):
            made = torch.empty_like(values)
            made[:step] = values[:step]
            pair = values[step:], values[:-step]
            run_dense(launcher, op.name, pair, made[step:], plain(op.kernels[0]))
            values, step = made, 2 * step
        y.copy_(values.movedim(0, dim))

    return _forms(op, fill)
