# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: glu, whose tensors are halves, and binary_cross_entropy, which sums.

The stock kernel runs first: shapes, strides, the device's assertions and errors are torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_udftorch.swap.cuda.launcher import Launcher, handled, stock_kernel
from pytest_udftorch.swap.cuda.pointwise import overwrite
from pytest_udftorch.swap.operators.calls import plain
from pytest_udftorch.swap.operators.row import Operator
from pytest_udftorch.swap.operators.tensors import may_share


def _kept(tensor: Any, out: Any) -> Any:
    return tensor.clone() if may_share(tensor, out) else tensor


def glu_kernels(launcher: Launcher, op: Operator) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of glu."""
    stock, stock_out = stock_kernel("glu"), stock_kernel("glu.out")

    def fill(x: Any, dim: int, y: Any) -> Any:
        overwrite(launcher, "glu", x.chunk(2, dim), y, plain("glu"))
        return y

    def functional(x: Any, dim: int = -1) -> Any:
        return fill(x, dim, stock(x, dim))

    def into(x: Any, dim: int = -1, *, out: Any) -> Any:
        kept = _kept(x, out)
        stock_out(x, dim, out=out)
        return fill(kept, dim, out)

    return {"glu": functional, "glu.out": into}


def glu_backward_kernels(launcher: Launcher, op: Operator) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of the gradient of glu."""
    import torch

    stock, stock_out = stock_kernel("glu_backward"), stock_kernel("glu_backward.grad_input")

    def fill(grad: Any, x: Any, dim: int, gx: Any) -> Any:
        if x.dtype not in handled():
            return gx
        value, gate = x.chunk(2, dim)
        of_value, of_gate = gx.chunk(2, dim)
        overwrite(launcher, op.name, (grad, gate), of_value, plain("glu_backward_value"))
        # In float32 up to the last product, which the result rounds.
        wide = torch.empty(grad.shape, dtype=torch.float32, device=grad.device)
        overwrite(
            launcher, op.name, (grad.float(), gate.float()), wide, plain("glu_backward_gate")
        )  # fmt: skip
        of_gate.copy_(wide.mul_(value))
        return gx

    def functional(grad: Any, x: Any, dim: int) -> Any:
        return fill(grad, x, dim, stock(grad, x, dim))

    def into(grad: Any, x: Any, dim: int, *, grad_input: Any) -> Any:
        kept = _kept(grad, grad_input), _kept(x, grad_input)
        stock_out(grad, x, dim, grad_input=grad_input)
        return fill(*kept, dim, grad_input)

    return {"glu_backward": functional, "glu_backward.grad_input": into}


def binary_cross_entropy_kernels(launcher: Launcher, op: Operator) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of binary_cross_entropy."""
    stock, stock_out = stock_kernel(op.name), stock_kernel(f"{op.name}.out")
    dtypes = handled()

    def computed(x: Any, target: Any, weight: Any, reduction: int) -> Any:
        # Without reduction, so that the values can be replaced before they are summed.
        loss = stock(x, target, None, 0)
        overwrite(launcher, op.name, (x, target), loss, plain(op.name))
        if weight is not None:
            loss.mul_(weight)
        return loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss

    def functional(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
        if x.dtype not in dtypes:
            return stock(x, target, weight, reduction)
        return computed(x, target, weight, reduction)

    def into(x: Any, target: Any, weight: Any = None, reduction: int = 1, *, out: Any) -> Any:
        loss = computed(x, target, weight, reduction) if x.dtype in dtypes else None
        stock_out(x, target, weight, reduction, out=out)
        return out if loss is None else out.copy_(loss)

    return {op.name: functional, f"{op.name}.out": into}
