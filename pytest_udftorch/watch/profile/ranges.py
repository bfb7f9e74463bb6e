# SPDX-License-Identifier: Apache-2.0
"""What the cells of a row say about ranges: the largest value, and how far it is from overflow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from pytest_udftorch.swap.records import layout

if TYPE_CHECKING:
    from pytest_udftorch.swap.records.totals import Row

Side = Literal["in", "out"]
SIDES: Final[tuple[Side, Side]] = ("in", "out")

# Binary exponents where the normal numbers of a format begin, and where it overflows.
# IEEE 754-2019, table 3.5; bfloat16 has the exponents of float32.
FORMATS: Final = {
    "float32": (-149, -126, 128),
    "bfloat16": (-133, -126, 128),
    "half": (-24, -14, 16),
}

# A UDF at operator level has no known values and no known dtype.
_OVERFLOW: Final = {"float32": 128.0, "float64": 1024.0, "any": math.inf}


def histogram_of(row: Row, side: Side) -> NDArray[np.uint64]:
    """Return [sign, bin] counts; index 0 of the first axis holds positive values."""
    return np.asarray(row.cell[f"hist_{side}"])


def largest(row: Row) -> float:
    """Return log2 of the largest finite magnitude that went in or out; -inf if all was 0."""
    found = -math.inf
    for side in SIDES:
        limits = row.limits(side) or (0.0, 0.0)
        finite = [abs(x) for x in limits if math.isfinite(x) and x]
        if finite:
            found = max(found, math.log2(max(finite)))
        if not all(map(math.isfinite, limits)):
            # An infinity hides the largest finite value, but its bin may have been sampled.
            bins = np.flatnonzero(histogram_of(row, side).any(0))
            if len(bins):
                found = max(found, float(bins[-1] - layout.HIST_OFFSET))
    return found


def headroom(row: Row) -> float:
    """Return how many binades the largest magnitude is below overflow; 0 after an overflow."""
    if any(row.special(side, "inf") for side in SIDES):
        return 0.0
    return max(0.0, _OVERFLOW[row.key["dtype"]] - largest(row))


def half_shares(row: Row) -> tuple[float, float] | None:
    """Return which shares of the sampled values are too large and too small for half.

    Too small: below its smallest normal number, zeros not counted. None without a sample.
    """
    counts = sum(histogram_of(row, side).sum(0) for side in SIDES)
    total = int(np.sum(counts))
    if not total:
        return None
    _, normal, over = FORMATS["half"]
    counts = np.asarray(counts)
    high = int(counts[over + layout.HIST_OFFSET :].sum())
    low = int(counts[: normal + layout.HIST_OFFSET].sum())
    return high / total, low / total
