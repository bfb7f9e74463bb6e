# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: softmax and its relatives, which work on rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from pytest_udftorch.swap.cuda.launcher import Launcher, handled, on_device, stock_kernel
from pytest_udftorch.swap.operators.row import Operator
from pytest_udftorch.swap.operators.table import LOG_SOFTMAX
from pytest_udftorch.swap.operators.tensors import alignment, alike, may_share

#: Elements of a program that has several short rows, and of a thread in any program.
_ROW_ELEMENTS: Final = 512
_ROW_PER_THREAD: Final = 16

#: Rows up to this length stay in registers.
ROW_IN_REGISTERS: Final = 32768


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _run_rows(launcher: Launcher, operator: str, name: str, tensors: tuple[Any, ...], dim: int,
              constants: dict[str, Any]) -> None:  # fmt: skip
    """Run an operator's kernel over the rows along ``dim`` of contiguous tensors of one shape."""
    y = tensors[-1]
    if y.numel() == 0:
        return
    index = y.get_device()
    if index != launcher.current_device():
        with on_device(y.device):
            _run_rows(launcher, operator, name, tensors, dim, constants)
        return
    n = y.shape[dim] if y.dim() else 1
    inner = math.prod(y.shape[dim + 1 :]) if y.dim() else 1
    outer = y.numel() // (n * inner)
    dtypes = tuple(t.dtype for t in tensors)
    short = inner == 1 and n <= ROW_IN_REGISTERS
    calls = f"{'log_' if constants.get('LOG') else ''}{name}_{'rows' if short else 'tiles'}"
    row = launcher.row(index, calls, operator)
    shared = (name, dtypes, alignment(tensors), n % 16 == 0, n == 1, n >= 2**31, index,
              row is None, *constants.values())  # fmt: skip
    if short:
        block = _power_of_two(n)
        rows = max(1, _ROW_ELEMENTS // block)
        warps = min(32, max(1, rows * block // (32 * _ROW_PER_THREAD)))
        launcher.launch(
            (*shared, block, outer >= 2**31), f"{name}_rows", -(-outer // rows),
            (*tensors, outer, n, row), {**constants, "BLOCK": block, "ROWS": rows}, warps,
        )  # fmt: skip
        return
    columns = min(_power_of_two(inner), 64)
    most = 8192 // columns if inner == 1 else 2048 // columns
    tile = max(min(_power_of_two(n), most), 256 // columns)
    blocks = -(-inner // columns)
    warps = min(16, max(1, tile * columns // 256))
    launcher.launch(
        (*shared, columns, tile, inner % 16 == 0, inner == 1, inner >= 2**31, blocks >= 2**31),
        f"{name}_tiles", outer * blocks, (*tensors, n, inner, blocks, row),
        {**constants, "TILE": tile, "COLUMNS": columns}, warps,
    )  # fmt: skip


def softmax_kernels(launcher: Launcher, op: Operator) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of softmax or log_softmax."""
    import torch

    name, log = op.name, op is LOG_SOFTMAX
    stock_new, stock_out = stock_kernel(name), stock_kernel(f"{name}.out")
    dtypes = handled()

    def fill(x: Any, dim: int, y: Any) -> None:
        direct = y.is_contiguous()
        target = y if direct else torch.empty(y.shape, dtype=y.dtype, device=y.device)
        _run_rows(
            launcher, name, "softmax", (x.contiguous(), target), dim % max(x.dim(), 1), {"LOG": log}
        )  # fmt: skip
        if not direct:
            y.copy_(target)

    def functional(x: Any, dim: int, half_to_float: bool) -> Any:
        usual = x.dtype in dtypes and not half_to_float and x.is_contiguous()
        if usual and -x.dim() <= dim < x.dim():
            y = torch.empty_like(x)
            fill(x, dim, y)
            return y
        y = stock_new(x, dim, half_to_float)
        if x.dtype in dtypes:
            fill(x, dim, y)
        return y

    def into(x: Any, dim: int, half_to_float: bool, *, out: Any) -> Any:
        kept = x.clone() if may_share(x, out) else x
        stock_out(x, dim, half_to_float, out=out)
        if x.dtype in dtypes:
            fill(kept, dim, out)
        return out

    return {name: functional, f"{name}.out": into}


def log_softmax_backward_kernels(launcher: Launcher, op: Operator) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of the gradient of log_softmax."""
    import torch

    name = op.name
    stock_new, stock_out = stock_kernel(name), stock_kernel(f"{name}.out")
    dtypes = handled()
    # The dispatcher passes a dtype as its number in c10::ScalarType.
    codes = {torch.float16: 5, torch.float32: 6, torch.bfloat16: 15}

    def fill(grad: Any, output: Any, dim: int, gx: Any) -> None:
        direct = gx.is_contiguous()
        target = gx if direct else torch.empty(gx.shape, dtype=gx.dtype, device=gx.device)
        tensors = (grad.contiguous(), output.contiguous(), target)
        _run_rows(launcher, name, "log_softmax_backward", tensors, dim % max(grad.dim(), 1), {})
        if not direct:
            gx.copy_(target)

    def functional(grad: Any, output: Any, dim: int, input_dtype: Any) -> Any:
        if (
            output.dtype in dtypes
            and input_dtype in (output.dtype, codes[output.dtype])
            and alike((grad, output))
            and grad.is_contiguous()
            and -grad.dim() <= dim < grad.dim()
        ):
            gx = torch.empty_like(grad)
            fill(grad, output, dim, gx)
            return gx
        gx = stock_new(grad, output, dim, input_dtype)
        if output.dtype in dtypes:
            fill(grad, output, dim, gx)
        return gx

    def into(grad: Any, output: Any, dim: int, input_dtype: Any, *, out: Any) -> Any:
        kept = [t.clone() if may_share(t, out) else t for t in (grad, output)]
        stock_out(grad, output, dim, input_dtype, out=out)
        if output.dtype in dtypes:
            fill(kept[0], kept[1], dim, out)
        return out

    return {name: functional, f"{name}.out": into}
