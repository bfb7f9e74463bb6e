# SPDX-License-Identifier: Apache-2.0
"""``grid_sample``: sums over the neighbours of each place, one after the other.

The places and weights are torch's formulas, each operation rounded. In the gradient of the input
the terms of a place are those of its own sample, by their places and then by neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, Final, NamedTuple

from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.sums import over
from pytest_udftorch.swap.overrides.python_override import stock as unwatched

#: torch's numbers of the modes.
_NEAREST: Final = 1
_CUBIC: Final = 2
_BORDER: Final = 1
_REFLECTION: Final = 2

#: The parameter of the cubic kernel.
_A: Final = -0.75

#: A place that no input has.
_NOWHERE: Final = -1e9


class _Axis(NamedTuple):
    """The neighbours of places in one direction.

    Attributes:
        at: for each neighbour its places, as integers in float32.
        weight: its weights.
        slope: the derivatives of the weights.
        step: the derivative of the coordinate; one number, or one for each place.
    """

    at: list[Any]
    weight: list[Any]
    slope: list[Any]
    step: Any


def _bounded(x: Any, size: int, padding: int, corners: bool) -> tuple[Any, Any]:
    """Return coordinates that padding moves inside, and their derivative."""
    import torch

    slope = torch.ones_like(x)
    if padding == _REFLECTION:
        low, span = (0.0, float(size - 1)) if corners else (-0.5, float(size))
        if not span:
            return torch.zeros_like(x), torch.zeros_like(x)
        away = x - low
        slope = torch.where(away < 0, -slope, slope)
        away = away.abs()
        flips, extra = (away / span).floor(), away.fmod(span)
        even = flips.fmod(2) == 0
        x = torch.where(even, extra + low, span - extra + low)
        slope = torch.where(even, slope, -slope)
    if padding in (_BORDER, _REFLECTION):
        inside = (x > 0) & (x < size - 1)
        slope = torch.where(inside, slope, torch.zeros_like(slope))
        x = torch.where(x > 0, x, torch.zeros_like(x)).clamp(max=size - 1)
    return x, slope


def _axis(x: Any, size: int, mode: int, padding: int, corners: bool) -> _Axis:
    """Return the neighbours of coordinates from -1 to 1."""
    import torch

    step: Any = (size - 1) / 2 if corners else size / 2
    x = (x + 1) / 2 * (size - 1) if corners else ((x + 1) * size - 1) / 2
    if mode == _CUBIC:
        first = x.floor()
        index = [
            _safe(_bounded(first + k, size, padding, corners)[0].round()) for k in range(-1, 3)
        ]
        return _Axis(index, *_cubic(x - first), step)
    x, slope = _bounded(x, size, padding, corners)
    if mode == _NEAREST:
        return _Axis([_safe(x.round())], [torch.ones_like(x)], [torch.zeros_like(x)], step)
    first = x.floor()
    ones = torch.ones_like(x)
    return _Axis(
        [_safe(first), _safe(first + 1)], [first + 1 - x, x - first], [-ones, ones], step * slope
    )


def _safe(index: Any) -> Any:
    """Return places as numbers that an integer holds; NaN is none."""
    return index.nan_to_num(nan=_NOWHERE).clamp(_NOWHERE, -_NOWHERE)


def _cubic(t: Any) -> tuple[list[Any], list[Any]]:
    """Return the four weights of the cubic kernel, and their derivatives.

    Keys, Cubic convolution interpolation for digital image processing, 1981.
    """
    far = [(((x - 5) * x + 8) * x - 4) * _A for x in (t + 1, 2 - t)]
    near = [((_A + 2) * x - (_A + 3)) * x * x + 1 for x in (t, 1 - t)]
    far_slope = [((3 * x - 10) * x + 8) * _A for x in (t + 1, 2 - t)]
    near_slope = [(3 * (_A + 2) * x - 2 * (_A + 3)) * x for x in (t, 1 - t)]
    weights = [far[0], near[0], near[1], far[1]]
    return weights, [far_slope[0], near_slope[0], -near_slope[1], -far_slope[1]]


class _Neighbour(NamedTuple):
    """One neighbour of each place.

    Attributes:
        at: its position in a dense image, of shape (samples, places).
        inside: whether there is one.
        weights: by direction.
        slopes: their derivatives.
    """

    at: Any
    inside: Any
    weights: list[Any]
    slopes: list[Any]


def _neighbours(
    sizes: Sequence[int], grid: Any, mode: int, padding: int, corners: bool
) -> tuple[list[_Neighbour], list[Any]]:
    """Return the neighbours of all places, and the derivatives of coordinates, by direction.

    Directions are those of the image; the last coordinate of a grid is of the first of them.
    """
    flat = grid.flatten(1, -2)
    axes = [
        _axis(flat[..., len(sizes) - 1 - d].contiguous(), size, mode, padding, corners)
        for d, size in enumerate(sizes)
    ]
    found = []
    for which in product(*(range(len(axis.at)) for axis in axes)):
        index = [axis.at[k] for axis, k in zip(axes, which, strict=True)]
        pairs = list(zip(index, sizes, strict=True))
        inside = math.prod((((i >= 0) & (i < size)) for i, size in pairs[1:]),
                           start=(pairs[0][0] >= 0) & (pairs[0][0] < pairs[0][1]))  # fmt: skip
        at = index[0].clamp(0, sizes[0] - 1).long()
        for i, size in pairs[1:]:
            at = at * size + i.clamp(0, size - 1).long()
        found.append(
            _Neighbour(
                at, inside,
                [axis.weight[k] for axis, k in zip(axes, which, strict=True)],
                [axis.slope[k] for axis, k in zip(axes, which, strict=True)],
            )
        )  # fmt: skip
    return found, [axis.step for axis in axes]


def _weight(one: _Neighbour, without: int | None = None) -> Any:
    """Return the product of a neighbour's weights; of one direction, its derivative instead."""
    factors = [s if d == without else w
               for d, (w, s) in enumerate(zip(one.weights, one.slopes, strict=True))]  # fmt: skip
    return math.prod(factors[1:], start=factors[0])


def _values(image: Any, one: _Neighbour) -> Any:
    """Return what a neighbour has, of shape (samples, channels, places); 0 where there is none."""
    at = one.at.unsqueeze(1).expand(-1, image.shape[1], -1)
    return image.gather(2, at).masked_fill(~one.inside.unsqueeze(1), 0.0)


def grid_sampler(
    input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """Return an image at the places of a grid."""
    contract()
    out = unwatched(input, grid, interpolation_mode, padding_mode, align_corners)
    if not out.numel():
        return out
    image = input.flatten(2)
    given = input.shape[2:], grid, interpolation_mode, padding_mode, align_corners
    total: Any = None
    for one in _neighbours(*given)[0]:
        term = _values(image, one) * _weight(one).unsqueeze(1)
        total = term if total is None else total + term
    return out.copy_(total.view(out.shape))


def grid_sampler_backward(
    grad_output: Any, input: Any, grid: Any, interpolation_mode: int, padding_mode: int,
    align_corners: bool, output_mask: Any,
) -> Any:  # fmt: skip
    """Return the gradients of the image and of the grid."""
    import torch

    given = input.shape[2:], grid, interpolation_mode, padding_mode, align_corners
    neighbours, steps = _neighbours(*given)
    grad, image = grad_output.flatten(2), input.flatten(2)
    of_image = torch.zeros_like(image, memory_format=torch.contiguous_format)
    if output_mask[0]:
        made = contract()
        at = torch.stack([one.at for one in neighbours], -1).flatten(1)
        weights = [_weight(one).masked_fill(~one.inside, 0.0) for one in neighbours]
        terms = torch.stack([grad * w.unsqueeze(1) for w in weights], -1).flatten(2)
        for sample in range(len(image)):
            y = image.new_zeros(image.shape[2], image.shape[1])
            of_image[sample] = made.scatter(y, at[sample], terms[sample].mT).mT
    of_grid = torch.zeros_like(grid, memory_format=torch.contiguous_format)
    if output_mask[1] and interpolation_mode != _NEAREST:
        shares = [over(grad * _values(image, one), [1]) for one in neighbours]
        for d, step in enumerate(steps):
            total: Any = None
            for one, share in zip(neighbours, shares, strict=True):
                term = share * _weight(one, d)
                total = term if total is None else total + term
            of_grid[..., len(steps) - 1 - d] = (total * step).view(grid.shape[:-1])
    found = of_image.view(input.shape) if output_mask[0] else None
    return found, of_grid
