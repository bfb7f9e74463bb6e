# SPDX-License-Identifier: Apache-2.0
"""Convolutions on the CPU, and the gradients of their weights, by compiled loops."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pytest_udftorch.swap.contract.native import Contract

_DIRECTIONS: Final = 3
_FLOAT_BYTES: Final = 4


class Geometry(NamedTuple):
    """Where windows stand in an input, for each direction.

    Attributes:
        before: padding in front; less than 0 to leave positions out.
        room: the size of the input when it is padded and spread.
        taps: the size of the kernel.
        step: places from one window to the next.
        dilation: places from one tap to the next.
        spread: places from one position of the input to the next; those between them are +0.
    """

    before: tuple[int, ...]
    room: tuple[int, ...]
    taps: tuple[int, ...]
    step: tuple[int, ...]
    dilation: tuple[int, ...]
    spread: tuple[int, ...]

    @property
    def result(self) -> list[int]:
        """The number of windows."""
        return [
            (size - d * (k - 1) - 1) // s + 1
            for size, k, s, d in zip(self.room, self.taps, self.step, self.dilation, strict=True)
        ]


def _three(values: Sequence[int], fill: int) -> tuple[int, ...]:
    return (*(fill,) * (_DIRECTIONS - len(values)), *values)


#: Where in ``struct convolution`` the addresses of x, w, bias and y stand.
_ADDRESSES: Final = (28, 34, 41, 42)


@functools.lru_cache(maxsize=1024)
def _described(
    x: tuple[int, ...], strides: tuple[int, ...], how: Geometry, sizes: tuple[int, int, int],
    w: tuple[int, ...],
) -> tuple[Any, tuple[int, ...], list[int]]:  # fmt: skip
    """Return ``struct convolution`` without addresses as an array: its members have 64 bits.

    Also its type's members, and how many windows there are in each direction.
    """
    result = how.result
    numbers = (
        x[0], *sizes,
        *_three(x[2:], 1), *_three(how.spread, 1), *_three(how.before, 0),
        *_three(how.room, 1), *_three(how.taps, 1), *_three(how.step, 1),
        *_three(how.dilation, 1), *_three(result, 1),
        0, *strides[:2], *_three(strides[2:], 0),
        0, *w[:3], *_three(w[3:], 0), 0, 0,
    )  # fmt: skip
    return ctypes.c_int64 * len(numbers), numbers, result


def _filled(kind: Any, numbers: tuple[int, ...], x: Any, w: int, bias: Any, y: Any) -> Any:
    found = kind(*numbers)
    given = (x.data_ptr(), w, 0 if bias is None else bias.data_ptr(), y.data_ptr())
    for at, address in zip(_ADDRESSES, given, strict=True):
        found[at] = address
    return found


def convolve(
    made: Contract, x: Any, weight: Any, bias: Any, how: Geometry, *, turned: bool = False,
    reference: bool = False,
) -> Any:  # fmt: skip
    """Return windows times a weight, plus a bias.

    Args:
        made: the compiled contract.
        x: samples of channels, float32 on the CPU.
        weight: groups of rows of the group's channels of taps, with any strides.
        bias: a number for each row, or None.
        how: where the windows stand.
        turned: the taps come in reverse order.
        reference: take the scalar loop, which is the contract.
    """
    import torch

    at, strides = weight.data_ptr(), weight.stride()
    if turned:
        taps = strides[3:]
        at += _FLOAT_BYTES * sum((k - 1) * s for k, s in zip(how.taps, taps, strict=True))
        strides = (*strides[:3], *(-s for s in taps))
    sizes = tuple(weight.shape[:3])
    kind, numbers, result = _described(tuple(x.shape), x.stride(), how, sizes, strides)
    bias = None if bias is None else bias.contiguous()
    y = torch.empty(x.shape[0], sizes[0] * sizes[1], *result, dtype=torch.float32)
    made.windows(_filled(kind, numbers, x, at, bias, y), reference=reference)
    return y


def weight_gradient(
    made: Contract, x: Any, grad: Any, how: Geometry, groups: int, *, reference: bool = False
) -> Any:
    """Return for each sample a product of a gradient and windows over positions, added up.

    Args:
        made: the compiled contract.
        x: samples of channels, float32 on the CPU.
        grad: the gradient of the result of a convolution.
        how: where the windows stand.
        groups: the number of groups.
        reference: take the scalar loop, which is the contract.

    Returns:
        The gradient: (rows of all groups, channels of one, taps).
    """
    import torch

    grad = grad.contiguous()
    rows, depth = grad.shape[1], x.shape[1] // groups
    y = torch.empty(rows, depth, *how.taps, dtype=torch.float32)
    sizes = (groups, rows // groups, depth)
    kind, numbers, _ = _described(tuple(x.shape), x.stride(), how, sizes, (0,) * 6)
    described = _filled(kind, numbers, x, grad.data_ptr(), None, y)
    made.windows(described, gradient=True, reference=reference)
    return y
