# SPDX-License-Identifier: Apache-2.0
"""Convolutions on the CPU, and the gradients of their weights, by compiled loops."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pytest_udftorch.contract.native import Contract

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

    before: Sequence[int]
    room: Sequence[int]
    taps: Sequence[int]
    step: Sequence[int]
    dilation: Sequence[int]
    spread: Sequence[int]

    @property
    def result(self) -> list[int]:
        """The number of windows."""
        return [
            (size - d * (k - 1) - 1) // s + 1
            for size, k, s, d in zip(self.room, self.taps, self.step, self.dilation, strict=True)
        ]


def _three(values: Sequence[int], fill: int) -> tuple[int, ...]:
    return (*(fill,) * (_DIRECTIONS - len(values)), *values)


def _described(
    x: Any, how: Geometry, sizes: tuple[int, int, int], w: tuple[int, Sequence[int]],
    bias: Any, y: Any,
) -> Any:  # fmt: skip
    """Return ``struct convolution`` as an array: all its members have 64 bits."""
    strides = x.stride()
    numbers = (
        x.shape[0], *sizes,
        *_three(x.shape[2:], 1), *_three(how.spread, 1), *_three(how.before, 0),
        *_three(how.room, 1), *_three(how.taps, 1), *_three(how.step, 1),
        *_three(how.dilation, 1), *_three(how.result, 1),
        x.data_ptr(), *strides[:2], *_three(strides[2:], 0),
        w[0], *w[1], 0 if bias is None else bias.data_ptr(), y.data_ptr(),
    )  # fmt: skip
    return (ctypes.c_int64 * len(numbers))(*numbers)


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

    groups, rows, depth = weight.shape[:3]
    at, strides = weight.data_ptr(), weight.stride()
    taps = strides[3:]
    if turned:
        last = sum((k - 1) * s for k, s in zip(how.taps, taps, strict=True))
        at, taps = at + _FLOAT_BYTES * last, [-s for s in taps]
    bias = None if bias is None else bias.contiguous()
    y = torch.empty(x.shape[0], groups * rows, *how.result)
    given = (at, (*strides[:3], *_three(taps, 0)))
    described = _described(x, how, (groups, rows, depth), given, bias, y)
    made.windows(described, reference=reference)
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
    y = torch.empty(rows, depth, *how.taps)
    given = (grad.data_ptr(), (0,) * 6)
    described = _described(x, how, (groups, rows // groups, depth), given, None, y)
    made.windows(described, gradient=True, reference=reference)
    return y
