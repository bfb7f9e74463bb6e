# SPDX-License-Identifier: Apache-2.0
"""Convolutions on GPUs, and the gradients of their weights, each in one launch and a sum.

The kernels gather what the windows see by two tables, of the taps and of the results' places, so
that no copy of the input is padded, spread or unfolded.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

from pytest_udftorch.swap.contract import gpu
from pytest_udftorch.swap.contract.gpu import GPU, Plan, planned
from pytest_udftorch.swap.contract.launches import Launch
from pytest_udftorch.swap.contract.windows import Geometry
from pytest_udftorch.swap.overrides.tape import constant

#: More results than this are not numbered in one launch, nor partial gradients held at once.
_MOST: Final = 1 << 30
_ROOM: Final = 1 << 24

_DIRECTIONS: Final = 3


def _three(values: Sequence[int], fill: int) -> tuple[int, ...]:
    return (*(fill,) * (_DIRECTIONS - len(values)), *values)


@functools.lru_cache(maxsize=1024)
def _tables(
    sizes: tuple[int, ...], how: Geometry, channels: int, strides: tuple[int, ...], turned: bool,
    device: Any,
) -> tuple[Any, Any, bool]:  # fmt: skip
    """Return the tables of taps and of places, and whether a weight's taps are dense and in order.

    Args:
        sizes: of the input's positions.
        how: where the windows stand.
        channels: of a group.
        strides: of a weight's channels and taps.
        turned: the taps come in reverse order.
        device: where the tables go to.
    """
    import torch

    three = [_three(v, f) for v, f in ((how.taps, 1), (how.dilation, 1), (how.before, 0))]
    rows: list[list[int]] = []
    inner = math.prod(sizes)
    for channel in range(channels):
        for tap in itertools.product(*map(range, three[0])):
            at = [t * d - b for t, d, b in zip(tap, *three[1:], strict=True)]
            chosen = tap[_DIRECTIONS - len(how.taps) :]
            if turned:
                chosen = tuple(k - 1 - t for k, t in zip(how.taps, chosen, strict=True))
            factor = sum(s * t for s, t in zip(strides, (channel, *chosen), strict=True))
            rows.append([channel * inner, *at, factor])
    taps = torch.tensor(rows, dtype=torch.int32).T.contiguous()
    linear = [row[-1] for row in rows] == list(range(len(rows)))
    steps = _three(how.step, 1)
    each = [torch.arange(n, dtype=torch.int32) * s
            for n, s in zip(_three(how.result, 1), steps, strict=True)]  # fmt: skip
    places = torch.stack([g.flatten() for g in torch.meshgrid(*each, indexing="ij")])
    return taps.to(device), places.contiguous().to(device), linear


@constant
def _convolution(
    shape: tuple[int, ...], weight: tuple[int, ...], strides: tuple[int, ...], how: Geometry,
    turned: bool, biased: bool, device: Any, chunk: int,
) -> tuple[Launch, Plan, tuple[int, ...], Any, Any]:  # fmt: skip
    """Return the launch of a convolution, its plan, the shape of the result, and the tables.

    A launch is of tensors that are there or not, and of one chunk: hence the last arguments.
    """
    groups, m, channels = weight[:3]
    sizes, result = shape[2:], how.result
    taps, places, linear = _tables(sizes, how, channels, strides[2:], turned, device)
    count, inner = math.prod(result), math.prod(sizes)
    n, k = shape[0] * count, taps.shape[1]
    plan = planned(m, n, k, groups, device)
    numbers = (
        m, n, k, groups, plan.splits, count, *strides[:2], shape[1] * inner, channels * inner,
        *_three(sizes, 1), *_three(how.spread, 1),
    )  # fmt: skip
    kind = {"RANK": len(sizes), "GAPS": max(how.spread) > 1, "LINEAR": linear}
    constants = {**kind, **plan.constants}
    made = Launch("convolved", plan.programs, device, numbers, constants, 4, plan.stages)
    return made, plan, (shape[0], groups * m, *result), taps, places


def convolve(x: Any, weight: Any, bias: Any, how: Geometry, *, turned: bool = False) -> Any:
    """Return windows times a weight, plus a bias.

    Args:
        x: samples of channels, float32 on a GPU.
        weight: groups of rows of the group's channels of taps, with any strides.
        bias: a number for each row, or None.
        how: where the windows stand.
        turned: the taps come in reverse order.
    """
    import torch

    samples = x.shape[0]
    if samples > 1 and samples * math.prod(how.result) > _MOST:
        halves = x.split(samples // 2)
        return torch.cat([convolve(h, weight, bias, how, turned=turned) for h in halves])
    x = x.contiguous()
    made, plan, shape, taps, places = _convolution(
        x.shape, weight.shape, weight.stride(), how, turned, bias is not None, x.device, gpu._chunk
    )
    parts = x.new_empty(shape if plan.splits == 1 else (plan.splits, *shape))
    room = x.new_empty(plan.room) if plan.room else parts
    if plan.splits == 1:
        made(weight, x, parts, room, taps, places, None if bias is None else bias.contiguous())
        return parts
    made(weight, x, parts, room, taps, places, None)
    y = GPU.sums(parts, 0)
    return y if bias is None else y.add_(bias.view(-1, *(1,) * (len(shape) - 2)))


@constant
def _gradient(
    shape: tuple[int, ...], rows: int, how: Geometry, groups: int, device: Any, chunk: int
) -> tuple[Launch, Plan, tuple[int, ...], Any, Any]:
    """Return the launch of products for each sample, its plan, their shape, and the tables."""
    sizes, samples, channels = shape[2:], shape[0], shape[1] // groups
    dense = (math.prod(how.taps), *(math.prod(how.taps[d + 1 :]) for d in range(len(how.taps))))
    taps, places, _ = _tables(sizes, how, channels, dense, False, device)
    m, n, k = rows // groups, taps.shape[1], places.shape[1]
    plan = planned(m, n, k, samples * groups, device)
    inner = math.prod(sizes)
    numbers = (m, n, k, samples * groups, groups, plan.splits, shape[1] * inner, channels * inner,
               *_three(sizes, 1))  # fmt: skip
    constants = {"RANK": len(sizes), **plan.constants}
    made = Launch("convolved_weights", plan.programs, device, numbers, constants, 4, plan.stages)
    return made, plan, (samples, rows, channels, *how.taps), taps, places


def weight_gradient(x: Any, grad: Any, how: Geometry, groups: int) -> Any:
    """Return for each sample a product of a gradient and windows over positions, added up.

    Args:
        x: samples of channels, float32 on a GPU.
        grad: the gradient of the result of a convolution.
        how: where the windows stand.
        groups: the number of groups.

    Returns:
        The gradient: (rows of all groups, channels of one, taps).
    """
    samples, rows = grad.shape[:2]
    channels = x.shape[1] // groups
    size = rows * channels * math.prod(how.taps)
    if samples * size > _ROOM and samples > 1:
        half = 1 << (samples - 1).bit_length() - 1
        first = weight_gradient(x[:half], grad[:half], how, groups)
        return first.add_(weight_gradient(x[half:], grad[half:], how, groups))
    x, grad = x.contiguous(), grad.contiguous()
    made, plan, shape, taps, places = _gradient(x.shape, rows, how, groups, x.device, gpu._chunk)
    parts = x.new_empty(shape if plan.splits == 1 else (plan.splits, *shape))
    room = x.new_empty(plan.room) if plan.room else parts
    made(grad, x, parts, room, taps, places)
    return GPU.sums(parts if plan.splits == 1 else GPU.sums(parts, 0), 0)
