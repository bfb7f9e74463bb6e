# SPDX-License-Identifier: Apache-2.0
"""Gradients of pooling that stock adds atomically on GPUs, as docs/reproduce/contract.md orders."""

from __future__ import annotations

from typing import Any

from pytest_udftorch.swap.overrides.python_override import stock
from pytest_udftorch.swap.overrides.tape import constant


@constant
def _windows(size: int, out: int, device: Any) -> tuple[Any, Any, Any]:
    """Return which windows of an adaptive pooling hold a place, in one direction.

    Args:
        size: places of the input.
        out: windows.
        device: of the result.

    Returns:
        as rows the first window of each place, the second one, ...; whether there is one; and how
        many places each window has, in float32.
    """
    import torch

    windows = [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]
    held = [[w for w, (a, b) in enumerate(windows) if a <= p < b] for p in range(size)]
    most = max(map(len, held))
    rows = torch.tensor([h + [0] * (most - len(h)) for h in held]).T.contiguous()
    there = torch.tensor([[True] * len(h) + [False] * (most - len(h)) for h in held]).T
    counts = torch.tensor([float(b - a) for a, b in windows])
    return rows.to(device), there.contiguous().to(device), counts.to(device)


def _added(shares: Any, self: Any, indices: Any = None) -> Any:
    """Add to each place what its windows share out, row by row, one after the other.

    Args:
        shares: of each window, float32.
        self: the input of the pooling.
        indices: the place that a window gives its share to; None for all of its places.
    """
    import torch

    height, width = self.shape[-2:]
    rows, row_there, _ = _windows(height, shares.shape[-2], self.device)
    columns, column_there, _ = _windows(width, shares.shape[-1], self.device)
    place = torch.arange(height * width, device=self.device).view(height, width)
    found = torch.zeros(self.shape, dtype=torch.float32, device=self.device)
    for row, has_row in zip(rows, row_there, strict=True):
        for column, has_column in zip(columns, column_there, strict=True):
            takes = has_row[:, None] & has_column
            if indices is not None:
                chosen = indices.index_select(-2, row).index_select(-1, column)
                takes = takes & (chosen == place)
            share = shares.index_select(-2, row).index_select(-1, column)
            found = torch.where(takes, found + share, found)
    return found


def _taken(grad_output: Any, self: Any) -> bool:
    return bool(
        str(grad_output.dtype) == str(self.dtype) == "torch.float32"
        and grad_output.dim() == self.dim() >= 3
        and grad_output.shape[:-2] == self.shape[:-2]
        and grad_output.numel()
        and self.numel()
    )


def adaptive_avg_pool2d_backward(grad_output: Any, self: Any) -> Any:
    """Return the gradient: the sum of each place's windows, over their rows and their columns."""
    if not _taken(grad_output, self):
        return stock(grad_output, self)
    sizes = zip(self.shape[-2:], grad_output.shape[-2:], strict=True)
    rows, columns = (_windows(*pair, self.device)[2] for pair in sizes)
    return _added(grad_output / rows[:, None] / columns, self)


def adaptive_max_pool2d_backward(grad_output: Any, self: Any, indices: Any) -> Any:
    """Return the gradient: the sum of the windows whose largest a place is."""
    if not _taken(grad_output, self) or indices.shape != grad_output.shape:
        return stock(grad_output, self, indices)
    return _added(grad_output, self, indices)


def max_pool2d_backward(
    grad_output: Any, self: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, indices: Any,
) -> Any:  # fmt: skip
    """Return the gradient by the kernel for contiguous tensors, which adds in order."""
    import torch

    rest = (kernel_size, stride, padding, dilation, ceil_mode)
    if all(t.is_contiguous() for t in (grad_output, self, indices)):
        return stock(grad_output, self, *rest, indices)
    given = (grad_output.contiguous(), self.contiguous(), *rest, indices.contiguous())
    found = stock(*given)
    last = self.dim() == 4 and self.is_contiguous(memory_format=torch.channels_last)
    return found.contiguous(memory_format=torch.channels_last) if last else found
