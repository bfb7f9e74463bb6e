# SPDX-License-Identifier: Apache-2.0
"""In which layout torch's own kernels give a result, and which shapes and dimensions they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

#: Dimensions of a tensor -> torch's name of the format with its channels last.
_LAST: Final = {4: "channels_last", 5: "channels_last_3d"}


def has_channels_last(x: Any) -> bool:
    """Tell whether strides say that channels are last; with one channel, memory alone does not.

    torch's rule (``is_channels_last_strides_2d``): from the channels on through the positions from
    right to left to the samples, no stride is below the extent of the one before.
    """
    sizes, strides = x.shape, x.stride()
    if len(sizes) not in _LAST or not strides[1]:
        return False
    extent = 0
    for d in (1, *range(len(sizes) - 1, 1, -1), 0):
        if not sizes[d] or strides[d] < extent or (d == 0 and extent == strides[1]):
            return False
        extent = strides[d] * max(sizes[d], 1)
    return True


def suggested(x: Any) -> Any:
    """Return the format of memory that torch gives to what it makes of a tensor."""
    import torch

    return getattr(torch, _LAST[x.dim()]) if has_channels_last(x) else torch.contiguous_format


def spreads(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Tell whether a shape is broadcast to a wanted one."""
    if shape == wanted:
        return True
    ends = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(a in (1, b) for a, b in ends)


def has_dimension(x: Any, dim: int) -> bool:
    """Tell whether a dimension is one of a tensor; a single number has one, too."""
    rank = len(x.shape) or 1
    return -rank <= dim < rank
