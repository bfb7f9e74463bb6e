# SPDX-License-Identifier: Apache-2.0
"""Sums of docs/reproduce/contract.md on a GPU, by the kernel ``sums`` of ``triton_kernels``."""

from __future__ import annotations

import functools
import math
from typing import Any, Final

from pytest_udftorch.swap.contract.launches import Launch

#: Terms of a sum that a program adds up: 2^11 of a row, 2^6 of columns, or all of up to 2^9, since
#: another launch takes longer than narrow loads.
ROW: Final = 11
COLUMN: Final = 6
WHOLE: Final = 9


def log2(n: int) -> int:
    """Return the logarithm of the least power of two that is not below n."""
    return max(n - 1, 0).bit_length()


@functools.lru_cache(maxsize=8192)
def _sum_launches(
    shape: tuple[int, ...], dim: int, device: Any, dtype: Any
) -> tuple[tuple[int, ...], tuple[tuple[Launch, tuple[int, ...]], ...]]:
    """Return the shape of sums over one dimension, and launches with the shapes of their results.

    There is no launch for sums of one term. The last one is compiled for the dtype of the sums.
    """
    outer, n, inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
    left = (*shape[:dim], *shape[dim + 1 :])
    found = []
    while n > 1:
        along = inner == 1
        log = log2(n)
        if along or log > WHOLE:
            log = min(log, ROW if along else COLUMN)
        blocks = -(-n >> log)
        if along:
            lanes, groups, given = outer, 1, (0, n, 1, 0, 1, blocks)
        else:
            lanes, groups = inner, outer
            given = (n * inner, 1, inner, blocks * inner, inner, 1)
        width = max(1, 1 << min(log2(lanes), max(0, (11 if along else 12) - log)))
        programs = groups * -(-lanes // width) * blocks
        numbers = (n, lanes, groups, blocks, *given)
        made = Launch("sums", programs, device, numbers, {"LANES": width, "LOG": log}, 4)
        n = blocks
        found.append((made, left if n == 1 else (outer, blocks, inner)))
    return left, tuple(found)


def sums(x: Any, dim: int, *, dtype: Any = None) -> Any:
    """Return the sums over one dimension, which the result lacks, rounded once to a dtype."""
    if not x.numel():
        return x.new_zeros((*x.shape[:dim], *x.shape[dim + 1 :]), dtype=dtype)
    x = x.contiguous()
    left, launches = _sum_launches(x.shape, dim, x.device, dtype)
    if not launches:
        return x.reshape(left).to(dtype or x.dtype, copy=True)
    for made, shape in launches:
        y = x.new_empty(shape, dtype=dtype if made is launches[-1][0] else None)
        made(x, y)
        x = y
    return x
