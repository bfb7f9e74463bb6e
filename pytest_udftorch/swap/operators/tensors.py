# SPDX-License-Identifier: Apache-2.0
"""How tensors lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def is_dense(tensor: Any) -> bool:
    """Return whether the elements fill their memory, each once, in any order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def alike(tensors: Sequence[Any]) -> bool:
    """Return whether tensors are dense and alike in dtype, device, shape and strides."""
    first = tensors[0]
    for other in tensors[1:]:
        if (
            other.dtype != first.dtype
            or other.device != first.device
            or other.shape != first.shape
            or other.stride() != first.stride()
        ):
            return False
    return is_dense(first)


def alignment(tensors: Sequence[Any]) -> bool | tuple[bool, ...]:
    """Return which tensors begin at a multiple of 16 bytes; True stands for all of them.

    Triton compiles a kernel for each such pattern: it accesses an aligned tensor 16 bytes at a
    time, which faults at any other address.
    """
    address = 0
    for t in tensors:
        address |= t.data_ptr()
    return address & 15 == 0 or tuple(t.data_ptr() & 15 == 0 for t in tensors)


def may_share(a: Any, b: Any) -> bool:
    """Return whether a write to one CUDA tensor may change the other."""
    return bool(a.is_cuda and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())
