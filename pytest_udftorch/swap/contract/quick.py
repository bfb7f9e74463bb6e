# SPDX-License-Identifier: Apache-2.0
"""Short ways from the dispatcher to loops, for calls that are mostly overhead.

A form takes what torch passes, and returns None for all but dense float32 on the CPU: then the
function itself is called. The bits are the same. Tests compare them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.sums import are_shaped, by_rows, layer_norm, layer_norm_backward


def form(name: str) -> Callable[..., Any] | None:
    """Return the short form of a function of the contract, if it has one."""
    return None if (make := _FORMS.get(name)) is None else make()


def _sum_all() -> Callable[..., Any]:
    import torch

    empty, wide, byref = torch.empty, torch.float32, ctypes.byref

    def quick(self: Any, *, dtype: Any = None) -> Any:
        if dtype is not None or self.dtype is not wide or self.is_cuda or not self.is_contiguous():
            return None
        made, y = contract(), empty((), dtype=wide)
        made.library.fast_sums(
            1, self.numel(), 1, self.data_ptr(), y.data_ptr(), byref(made.threads(b"aten::sum"))
        )
        return y

    return quick


def _sum_dims() -> Callable[..., Any]:
    import torch

    empty, wide, byref = torch.empty, torch.float32, ctypes.byref

    def quick(self: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
        if dtype is not None or self.dtype is not wide or self.is_cuda or not dim or len(dim) > 1:
            return None
        shape, at = self.shape, dim[0]
        rank = len(shape)
        if not -rank <= at < rank or not self.is_contiguous():
            return None
        at %= rank
        before, behind = shape[:at], shape[at + 1 :]
        made, y = contract(), empty((*before, *((1,) if keepdim else ()), *behind), dtype=wide)
        made.library.fast_sums(
            before.numel(), shape[at], behind.numel(), self.data_ptr(), y.data_ptr(),
            byref(made.threads(b"aten::sum")),
        )  # fmt: skip
        return y

    return quick


def _rows(name: str, operator: str, *, gradient: bool = False) -> Callable[..., Any]:
    import torch

    wide = torch.float32

    def quick(self: Any, dim: int, half_to_float: bool) -> Any:
        if self.dtype is not wide or not self.numel():
            return None
        return by_rows(name, operator, dim, self)

    def backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> Any:
        if output.dtype is not wide or grad_output.dtype is not wide or not output.numel():
            return None
        return by_rows(name, operator, dim, output, grad_output)

    return backward if gradient else quick


def _layer_norm() -> Callable[..., Any]:
    import torch

    wide = torch.float32

    def quick(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
        named = tuple(normalized_shape)
        if input.shape[-len(named) :] != named or not are_shaped(named, weight, bias):
            return None
        if not _dense(wide, input, weight, bias):
            return None
        return layer_norm(input, named, weight, bias, eps)

    return quick


def _layer_norm_backward() -> Callable[..., Any]:
    import torch

    wide = torch.float32

    def quick(
        grad_out: Any, input: Any, normalized_shape: Any, mean: Any, rstd: Any, weight: Any,
        bias: Any, output_mask: Any,
    ) -> Any:  # fmt: skip
        if not _dense(wide, grad_out, input, mean, rstd, weight, bias):
            return None
        return layer_norm_backward(
            grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask
        )

    return quick


def _dense(wide: Any, *tensors: Any) -> bool:
    return all(
        t is None or (t.dtype is wide and not t.is_cuda and t.is_contiguous() and t.numel())
        for t in tensors
    )


_FORMS: Final[dict[str, Callable[[], Callable[..., Any]]]] = {
    "sum_all": _sum_all,
    "sum_dims": _sum_dims,
    "softmax": lambda: _rows("softmax", "_softmax"),
    "log_softmax": lambda: _rows("log_softmax", "_log_softmax"),
    "softmax_backward": lambda: _rows("softmax_backward", "_softmax_backward_data", gradient=True),
    "log_softmax_backward": lambda: _rows(
        "log_softmax_backward", "_log_softmax_backward_data", gradient=True
    ),
    "layer_norm": _layer_norm,
    "layer_norm_backward": _layer_norm_backward,
}
