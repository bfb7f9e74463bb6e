# SPDX-License-Identifier: Apache-2.0
"""Write the tables of rows_wide.h for one function.

    python udfs/corem/common/rows_wide.py atan > udfs/corem/atan/wide_constants.h
    python udfs/corem/common/rows_wide.py atan --keep udfs/corem/atan/wide_constants.h

The second form keeps the centers and margins that another run found.

A row is an interval of an argument v around a center c, and f(c + r) is value + slope r + p2 r^2 +
... in it. The center is chosen so that value and slope are floats but for errors that do not count
(after S. Gal, Accurate tables, 1986); then the other coefficients fit the function at Chebyshev
points by least squares. All are multiplied by 1 + margin: see rows_wide.h.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import mpmath
import numpy as np
from mpmath import mp, mpf
from odd_quick import chebyshev, single, table

mp.prec = 200

ROWS = 32
#: Half a unit in the last place of float, relative.
UNIT = 2.0**-24
#: The share of an interval, around its middle, in which its center is looked for.
SHARE = 0.5
CANDIDATES = 1 << 21
#: What a margin has above the error that is estimated, and above that.
MARGIN = 1.0625
#: The margin of a row that begins with a value that is no float.
TOP_MARGIN = 1.5 * 2.0**-36
OTHER_ROUNDINGS = 2.0**-41
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


@dataclass(frozen=True)
class Row:
    """The entries of one row: floats. p begins with p2."""

    center: float
    value: float
    slope: float
    p: tuple[float, ...]
    more: float

    def exact(self, r: mpf) -> mpf:
        """Return the value of the polynomial."""
        p = sum(mpf(v) * r ** (n + 2) for n, v in enumerate(self.p))
        return self.value + self.more + r * mpf(self.slope) + p


@dataclass(frozen=True)
class Interval:
    """The arguments from low to high of a branch times 1 + margin."""

    branch: Branch
    degree: int
    pairs: bool
    low: float
    high: float
    margin: float = 0.0

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
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        share = SHARE
        if self.low <= 0 <= self.high and (self.low < 0 or self.pairs):
            return 0.0
        if self.low > 0 or self.high < 0:
            # The difference to the center must be exact.
            least = min(abs(self.low), abs(self.high))
            most = 2.0**24 * float(np.spacing(np.float32(least)))
            share = min(share, most / half - 1 - 2.0**-20)
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

    def row(self, center: float) -> Row:
        """Return the entries for a center."""
        points = chebyshev(mpf(self.low) - center, mpf(self.high) - center, FITTED)
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
            weights = [mpf(1)] * len(points)
        every: dict[int, mpf] = {}
        for n in free:
            # What rounding takes away is made up for by the rest.
            rest = [m for m in free if m >= n]
            scaled = [w * v for w, v in zip(weights, values, strict=True)]
            found = weighted(points, scaled, rest, weights)[0]
            every[n] = mpf(single(found))
            values = [v - every[n] * x**n for x, v in zip(points, values, strict=True)]
        return Row(center, value, slope, tuple(float(every[n]) for n in free), more)

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


def weighted(
    points: Sequence[mpf], values: Sequence[mpf], powers: Sequence[int], weights: Sequence[mpf]
) -> list[mpf]:
    """Return the coefficients of these powers that fit the values best, weighted."""
    matrix = mp.matrix(len(points), len(powers))
    for i, x in enumerate(points):
        for j, n in enumerate(powers):
            matrix[i, j] = weights[i] * x**n
    return list(mp.lu_solve(matrix, mp.matrix(values)))


def with_margin(interval: Interval) -> tuple[Interval, float]:
    """Return the interval with a margin of few bits above its error, and its center.

    The center depends on the margin and the error on the center, so that it takes some tries.
    """
    if interval.low == 0 and interval.branch.top is not None:
        found = replace(interval, margin=TOP_MARGIN)
        assert MARGIN * found.largest(found.row(0.0)) + OTHER_ROUNDINGS <= found.margin
        return found, 0.0
    center = 0.0 if interval.relative else interval.center()
    least = MARGIN * interval.largest(interval.row(center)) + OTHER_ROUNDINGS
    step = 2.0 ** (math.floor(math.log2(least)) - 3)
    n = math.ceil(0.9 * least / step)
    while True:
        found = replace(interval, margin=n * step)
        center = 0.0 if interval.relative else found.center()
        if MARGIN * found.largest(found.row(center)) + OTHER_ROUNDINGS <= found.margin:
            return found, center
        n += 1


def intervals(function: Function) -> dict[int, Interval]:
    """Return the rows by their places in the tables."""
    found = {}
    for b in function.branches:
        for k in range(-ROWS, ROWS):
            low = max(b.low, (k - 0.5) / function.scale)
            high = min(b.high, (k + 0.5) / function.scale)
            if low < high:
                place = (b.first + k) % ROWS
                assert place not in found
                found[place] = Interval(b, function.degree, function.pairs, low, high)
    return found


def chosen(header: str) -> dict[int, tuple[float, float]]:
    """Return center and margin by place, from a header that was written before."""
    columns = [
        [float.fromhex(v) for v in re.findall(r"(-?0x\S+)f,", body)]
        for what in ("center", "width")
        for body in re.findall(rf"_wide_{what}\[\] = {{(.*?)}};", header, re.DOTALL)
    ]
    return {i: (c, -w / 2) for i, (c, w) in enumerate(zip(*columns, strict=True))}


def text(name: str, kept: dict[int, tuple[float, float]] | None = None) -> str:
    """Return the header, with the centers and margins that are kept."""
    function = FUNCTIONS[name]
    rows: dict[int, tuple[Row, float]] = {}
    for place, interval in intervals(function).items():
        if kept is not None:
            center, margin = kept[place]
            rows[place] = replace(interval, margin=margin).row(center), margin
        else:
            found, center = with_margin(interval)
            rows[place] = found.row(center), found.margin
    empty = Row(0.0, 0.0, 0.0, (0.0,) * (function.degree - 1), 0.0), 0.0
    every = [rows.get(i, empty) for i in range(ROWS)]
    columns = {
        "center": [r.center for r, _ in every],
        "value": [r.value for r, _ in every],
        "slope": [r.slope for r, _ in every],
        **{f"p{n + 2}": [r.p[n] for r, _ in every] for n in range(function.degree - 1)},
        # Both margins, one of which is in all entries; negative.
        "width": [-2 * m for _, m in every],
    }
    if function.pairs:
        columns["low"] = [r.more for r, _ in every]
        more = []
    else:
        more = [f"#define UDF_{name.upper()}_WIDE_MORE {function.branches[1].more.hex()}f"]
    guard = f"UDF_{name.upper()}_WIDE_CONSTANTS_H"
    return "\n".join(
        [
            "// SPDX-License-Identifier: Apache-2.0",
            "// Generated by rows_wide.py; do not edit.",
            "// clang-format off",
            f"#ifndef {guard}",
            f"#define {guard}",
            f"#define UDF_{name.upper()}_WIDE_SCALE {function.scale.hex()}f",
            *more,
            *(table(f"udf_{name}_wide_{what}", values) for what, values in columns.items()),
            f"#endif // {guard}",
        ]
    )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("function", choices=FUNCTIONS)
    parser.add_argument("--keep", type=Path, help="header whose centers and margins are kept")
    options = parser.parse_args()
    kept = chosen(options.keep.read_text(encoding="utf-8")) if options.keep else None
    print(text(options.function, kept))


if __name__ == "__main__":
    main()
