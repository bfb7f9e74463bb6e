# SPDX-License-Identifier: Apache-2.0
"""Write the tables of rows_wide.h for one function.

    python udfs/corem/common/rows_wide.py atan > udfs/corem/atan/wide_constants.h
    python udfs/corem/common/rows_wide.py atan --keep udfs/corem/atan/wide_constants.h

The second form keeps the centers and margins that another run found.

The method is that of intervals.py, for an argument v. A center suits the value and the slope: see
rows_wide.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import mpmath
import numpy as np
from intervals import (
    MARGIN,
    OTHER_ROUNDINGS,
    UNIT,
    Interval,
    Kept,
    Row,
    chebyshev,
    columns,
    command_line,
    fit,
    header,
    kept,
    single,
    tables,
)
from mpmath import mp, mpf

mp.prec = 200

ROWS = 32
#: The share of an interval, around its middle, in which its center is looked for.
SHARE = 0.5
CANDIDATES = 1 << 21
#: The margin of a row that begins with a value that is no float.
TOP_MARGIN = 1.5 * 2.0**-36
#: Points at which an error is looked at, and to which coefficients are fitted.
POINTS = 60
FITTED = 24


@dataclass(frozen=True)
class Branch:
    """Some rows of one function of v.

    Attributes:
        first: place of the row of v = 0.
        low: the least v, at most 0.
        high: the largest v.
        exact: the function.
        double: the same in double.
        slope: its derivative in double.
        top: the value at 0, which is no float: its row has its center there, all rows of the
            branch have what it lacks in common.
    """

    first: int
    low: float
    high: float
    exact: Callable[[mpf], mpf]
    double: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    top: mpf | None = None

    @property
    def more(self) -> float:
        """Return what is added to the values of all rows, which has a margin at 0."""
        if self.top is None:
            return 0.0
        return single(self.top * (1 + mpf(TOP_MARGIN)) - single(self.top))


@dataclass(frozen=True)
class Function:
    """A function as branches, whose rows have the length 1 / scale.

    With pairs, a table holds what the value of each row lacks, so that only the slope matters for
    the choice of the center.
    """

    branches: tuple[Branch, ...]
    scale: float
    degree: int
    pairs: bool = False


def root(x: np.ndarray) -> np.ndarray:
    """Return the derivative of the arc sine."""
    return 1 / np.sqrt((1 - x) * (1 + x))


def double_root(x: np.ndarray) -> np.ndarray:
    """Return twice that."""
    return 2 * root(x)


FUNCTIONS = {
    "atan": Function(
        (
            Branch(0, 0.0, 1.0, mpmath.atan, np.arctan, lambda x: 1 / (1 + x * x)),
            Branch(
                16,
                0.0,
                1.0,
                lambda x: mp.pi / 2 - mpmath.atan(x),
                lambda x: np.pi / 2 - np.arctan(x),
                lambda x: -1 / (1 + x * x),
                mp.pi / 2,
            ),
        ),
        15.484375,
        5,
    ),
    "asin": Function(
        (
            Branch(0, 0.0, 0.5, mpmath.asin, np.arcsin, root),
            Branch(
                16,
                0.0,
                0.5,
                lambda x: mp.pi / 2 - 2 * mpmath.asin(x),
                lambda x: np.pi / 2 - 2 * np.arcsin(x),
                lambda x: -double_root(x),
                mp.pi / 2,
            ),
        ),
        30.96875,
        5,
    ),
    "acos": Function(
        (
            Branch(
                0,
                -0.5,
                0.5,
                mpmath.acos,
                np.arccos,
                lambda x: -root(x),
            ),
            Branch(
                8, 0.0, 0.5, lambda x: 2 * mpmath.asin(x), lambda x: 2 * np.arcsin(x), double_root
            ),
            Branch(
                16,
                0.0,
                0.5,
                lambda x: mp.pi - 2 * mpmath.asin(x),
                lambda x: np.pi - 2 * np.arcsin(x),
                lambda x: -double_root(x),
            ),
        ),
        14.96875,
        6,
        pairs=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class BranchInterval(Interval):
    """The arguments of one row, of one branch."""

    branch: Branch
    degree: int
    pairs: bool

    def exact(self, v: mpf) -> mpf:
        """Return the function times 1 + margin, or 1 + margin v / high from 0 on."""
        share = v / self.high if self.relative else 1
        return self.branch.exact(v) * (1 + mpf(self.margin) * share)

    @cached_property
    def relative(self) -> bool:
        """Whether the function is zero at 0, where the row begins."""
        return self.low == 0 and self.branch.exact(mpf(0)) == 0

    def center(self) -> float:
        """Return the center whose value and slope are near to floats, and the rest short."""
        middle, half = self.middle, self.half
        share = SHARE
        if self.low <= 0 <= self.high and (self.low < 0 or self.pairs):
            return 0.0
        if self.low > 0 or self.high < 0:
            # The difference to the center must be exact.
            share = min(share, self.reach / half - 1 - 2.0**-20)
        c = middle + half * np.linspace(-share, share, CANDIDATES).astype(np.float32)
        c = c.astype(np.float32)
        c = np.unique(c).astype(np.float64)
        value = self.branch.double(c) * (1 + self.margin) - self.branch.more
        slope = self.branch.slope(c) * (1 + self.margin)
        wrong = 0.0 if self.pairs else np.abs(value - value.astype(np.float32))
        largest = half + np.abs(c - middle)
        wrong += np.abs(slope - slope.astype(np.float32)) * largest
        # The rest of the polynomial, whose roundings count, is long where the center is not in
        # the middle.
        wrong += 3 * UNIT * np.abs(np.gradient(slope, c) / 2) * largest**2
        return float(c[np.argmin(wrong)])

    def row(self, center: float | None = None) -> Row:
        """Return the best entries, or those for a center."""
        if center is None:
            center = 0.0 if self.relative else self.center()
        points = self.points(center, FITTED)
        more = self.branch.more
        free = list(range(2, self.degree + 1))
        if self.relative:
            # The slope at 0 is exact, and the margin begins with p2.
            value, slope = 0.0, single(self.branch.exact(mpf(2) ** -60) * mpf(2) ** 60)
            values = [self.exact(x) - slope * x for x in points]
            weights = [1 / x**2 for x in points]
        else:
            value = single(self.exact(mpf(center)) - more)
            if self.pairs:
                more = single(self.exact(mpf(center)) - value)
            slope = single(self.branch.slope(np.float64(center)) * (1 + self.margin))
            values = [self.exact(center + x) - value - more - slope * x for x in points]
            weights = None
        every: dict[int, mpf] = {}
        for n in free:
            # What rounding takes away is made up for by the rest.
            rest = [m for m in free if m >= n]
            found = fit(points, values, rest, weights)[0]
            every[n] = mpf(single(found))
            values = [v - every[n] * x**n for x, v in zip(points, values, strict=True)]
        return Row(center, value, slope, tuple(float(every[n]) for n in free), more=more)

    def largest(self, row: Row) -> float:
        """Return the largest error at some points, that of the roundings included.

        What counts of these is three times half a unit in the last place of the terms from r^2
        on: of their polynomial, of r^2, and of their product.
        """
        found = 0.0
        for x in chebyshev(self.low, self.high, POINTS):
            r = x - row.center
            true = self.exact(x)
            error = abs(float(row.exact(r) / true - 1))
            square = abs(float(sum(v * r ** (n + 2) for n, v in enumerate(row.p)) / true))
            # The margin grows with v from 0 on.
            share = float(x) / self.high if self.relative else 1.0
            found = max(found, (error + 3 * UNIT * square) / share)
        return found

    def with_margin(self) -> tuple[Interval, Row]:
        """Return the interval with a margin of few bits above its error, and its entries."""
        if self.low != 0 or self.branch.top is None:
            return super().with_margin()
        found = replace(self, margin=TOP_MARGIN)
        row = found.row(0.0)
        assert MARGIN * found.largest(row) + OTHER_ROUNDINGS <= found.margin
        return found, row


def intervals(function: Function) -> dict[int, BranchInterval]:
    """Return the rows by their places in the tables."""
    found = {}
    for b in function.branches:
        for k in range(-ROWS, ROWS):
            low = max(b.low, (k - 0.5) / function.scale)
            high = min(b.high, (k + 0.5) / function.scale)
            if low < high:
                place = (b.first + k) % ROWS
                assert place not in found
                found[place] = BranchInterval(
                    low=low, high=high, branch=b, degree=function.degree, pairs=function.pairs
                )
    return found


def text(name: str, found: Kept | None = None) -> str:
    """Return the header, with the centers and margins that are kept."""
    function = FUNCTIONS[name]
    macro = f"#define UDF_{name.upper()}_WIDE"
    more = [] if function.pairs else [f"{macro}_MORE {function.branches[1].more.hex()}f"]
    every = columns(intervals(function), ROWS, function.degree, found, more=function.pairs)
    lines = [f"{macro}_SCALE {function.scale.hex()}f", *more, *tables(f"udf_{name}_wide", every)]
    return header(__file__, f"UDF_{name.upper()}_WIDE_CONSTANTS_H", lines)


if __name__ == "__main__":
    NAME, HEADER = command_line(__doc__, FUNCTIONS)
    print(text(str(NAME), kept(HEADER)))
