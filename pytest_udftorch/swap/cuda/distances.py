# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: distances and norms of any order, composed of pow as an operator.

The orders 0, 1, 2 and infinity evaluate no function, and stay stock's. So does float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from pytest_udftorch.swap.cuda.launcher import Launcher, handled, stock_kernel
from pytest_udftorch.swap.operators.row import Operator

_WITHOUT_POW: Final = (0.0, 1.0, 2.0, math.inf, -math.inf)

#: Differences that exist at a time.
_AT_ONCE: Final = 1 << 24


def _pieces(count: int, each: int) -> Iterator[slice]:
    """Yield slices of so many lines that their differences, ``each`` a line, fit."""
    step = max(1, _AT_ONCE // max(1, each))
    return (slice(start, start + step) for start in range(0, count, step))


def _distances(x: Any, z: Any, p: float, y: Any) -> None:
    """Compute ``y[..., i, j]``, the distance of ``x[..., i, :]`` and ``z[..., j, :]``."""
    each = y.numel() // y.shape[-2] * x.shape[-1]
    for piece in _pieces(y.shape[-2], each):
        difference = x[..., piece, None, :] - z[..., None, :, :]
        y[..., piece, :] = difference.abs_().pow_(p).sum(-1).pow_(1 / p)


def _gradient(grad: Any, x: Any, z: Any, p: float, distance: Any, gx: Any) -> None:
    """Compute the gradient of ``x``; where a distance or difference is 0, it is 0."""
    import torch

    each = grad.numel() // grad.shape[-2] * x.shape[-1]
    for piece in _pieces(grad.shape[-2], each):
        far = distance[..., piece, :]
        by = torch.where(far == 0.0, 0.0, grad[..., piece, :] / far.pow(p - 1))
        difference = x[..., piece, None, :] - z[..., None, :, :]
        power = difference.abs().pow_(p - 1).copysign_(difference)
        gx[..., piece, :] = (power.masked_fill_(difference == 0.0, 0.0) * by[..., None]).sum(-2)


def distance_kernels(launcher: Launcher, op: Operator) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of cdist, pdist and their gradients."""
    import torch

    stock = {name: stock_kernel(name) for name in op.overloads}

    def takes(y: Any, p: float) -> bool:
        return y.dtype is torch.float32 and float(p) not in _WITHOUT_POW and y.numel() > 0

    def cdist(x: Any, z: Any, p: float, mode: Any) -> Any:
        y = stock["_cdist_forward"](x, z, p, mode)
        if takes(y, p) and x.shape[-1]:
            _distances(x, z, p, y)
        return y

    def cdist_backward(grad: Any, x: Any, z: Any, p: float, distance: Any) -> Any:
        gx = stock["_cdist_backward"](grad, x, z, p, distance)
        if takes(gx, p) and grad.numel():
            _gradient(grad, x, z, p, distance, gx)
        return gx

    def pairs(x: Any) -> Any:
        return torch.triu_indices(len(x), len(x), 1, device=x.device)

    def pdist(x: Any, p: float = 2.0) -> Any:
        y = stock["_pdist_forward"](x, p)
        if takes(y, p) and x.shape[-1]:
            i, j = pairs(x)
            for piece in _pieces(len(y), x.shape[-1]):
                difference = (x[i[piece]] - x[j[piece]]).abs_()
                y[piece] = difference.pow_(p).sum(-1).pow_(1 / p)
        return y

    def pdist_backward(grad: Any, x: Any, p: float, distance: Any) -> Any:
        gx = stock["_pdist_backward"](grad, x, p, distance)
        if takes(gx, p):
            i, j = pairs(x)
            square = [x.new_zeros(len(x), len(x)) for _ in range(2)]
            for whole, known in zip(square, (grad, distance), strict=True):
                whole[i, j] = known
                whole[j, i] = known
            _gradient(square[0], x, x, p, square[1], gx)
        return gx

    made = cdist, cdist_backward, pdist, pdist_backward
    return dict(zip(op.overloads, made, strict=True))


def norm_kernels(launcher: Launcher, op: Operator) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of the norm of a vector, which norms and renorm call."""
    import torch

    def wrap(name: str) -> Callable[..., Any]:
        stock = stock_kernel(name)

        def kernel(x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False,
                   **given: Any) -> Any:  # fmt: skip
            out = given.get("out")
            p = order if isinstance(order, complex) else float(order)
            usual = p in _WITHOUT_POW or x.dtype not in handled()
            kept = x.clone() if not usual and out is not None else x
            y = stock(x, order, dim, keepdim, **given)
            if usual or y.dtype not in handled() or not y.numel() or not x.numel():
                return y
            wide = kept.to(torch.float32, copy=True).abs_().pow_(p)
            dims = [*range(x.dim())] if dim is None or len(dim) == 0 else dim
            return y.copy_(wide.sum(dims, keepdim).pow_(1 / p))

        return kernel

    return {name: wrap(name) for name in op.overloads}
