# SPDX-License-Identifier: Apache-2.0
"""Write the tables of atan2f_wide.c.

    python udfs/corem/common/atan2_wide.py > udfs/corem/atan2/wide_constants.h
    python udfs/corem/common/atan2_wide.py --keep udfs/corem/atan2/wide_constants.h

The second form keeps the centers that another run found.

A row is an interval of a quotient v from 0 to 1 around a center c, and atan(c + r) is value + slope
r + p2 r^2 + ... in it. The value is added to 0, pi/2 or pi, or taken from it. It is a multiple of
UNIT, so that such sums are exact. The center is chosen so that the best value and slope are near to
such numbers (after S. Gal, Accurate tables, 1986). The other coefficients fit the function at
Chebyshev points by least squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mpmath
import numpy as np
from intervals import UNIT as HALF
from intervals import (
    Interval,
    Row,
    chebyshev,
    columns_of,
    command_line,
    entries,
    fit,
    header,
    single,
    tables,
)
from mpmath import mp, mpf

mp.prec = 200

ROWS = 32
#: The row of v is the integer next to SCALE v.
SCALE = 31.484375
DEGREE = 4
#: pi, too, begins with a multiple of it, so that all sums are.
UNIT = 2.0**-22
#: The share of an interval, around its middle, in which its center is looked for.
SHARE = 0.75
#: What a width has above the error that is estimated, and above that.
MARGIN = 1.35
OTHER_ROUNDINGS = 2.0**-42
#: Points at which an error is looked at, and to which coefficients are fitted.
POINTS = 40
FITTED = 24
#: Centers of a row whose width is looked at.
KEPT = 24
#: A width is that of the test over the result, which counts as CAP where it is larger. That is in
#: all rows but the first.
CAP = 65 / 4096
#: Half of pi begins with a multiple of UNIT, and the rest is the share LOW of that.
HALF_PI = round(math.pi / 2 / UNIT) * UNIT
LOW = single(mp.pi / 2 / HALF_PI - 1)


@dataclass(frozen=True, kw_only=True)
class Quotients(Interval):
    """The quotients of one row, without a margin."""

    number: int

    @classmethod
    def of(cls, number: int) -> Quotients:
        """Return those of the row of a number."""
        low, high = max(0.0, (number - 0.5) / SCALE), min(1.0, (number + 0.5) / SCALE)
        return cls(low=low, high=high, number=number)

    def slope(self, c: np.ndarray) -> np.ndarray:
        """Return the best slope for a center: what r^5 asks for is in it."""
        fifth = (1 - 10 * c**2 + 5 * c**4) / (5 * (1 + c**2) ** 5)
        return 1 / (1 + c**2) - 5 / 16 * fifth * self.half**4

    def center(self) -> float:
        """Return the center that gives the least width."""
        if not self.number:
            return 0.0
        middle, half = self.middle, self.half
        # The difference to the center must be exact.
        share = min(SHARE, self.reach / half - 1 - 2.0**-20)
        spacing = float(np.spacing(np.float32(middle + share * half)))
        c = np.arange(middle - share * half, middle + share * half, spacing)
        c = np.unique(c.astype(np.float32)).astype(np.float64)
        value = np.arctan(c)
        slope = self.slope(c)
        value = np.round(value / UNIT) * UNIT - value
        slope = slope.astype(np.float32) - slope
        ends = [np.abs(value + slope * (end - c)) for end in (self.low, self.high)]
        # The rest of the polynomial, whose roundings count, is long where the center is not in
        # the middle.
        rest = 3 * HALF * c / (1 + c * c) ** 2 * (half + np.abs(c - middle)) ** 2
        best = np.argsort(np.maximum(*ends) + rest, kind="stable")[:KEPT]
        return min(map(float, c[best]), key=lambda center: self.width(self.row(center)))

    def row(self, center: float | None = None) -> Row:
        """Return the best entries, or those for a center."""
        if center is None:
            center = self.center()
        points = self.points(center, FITTED)
        value = round(math.atan(center) / UNIT) * UNIT
        slope = single(self.slope(np.float64(center))) if self.number else 1.0
        values = [mpmath.atan(center + x) - value - slope * x for x in points]
        # In the first row the error counts relative to the result.
        weights = None if self.number else [1 / x for x in points]
        free = list(range(2, DEGREE + 1))
        found: list[float] = []
        while free:
            # What rounding takes away is made up for by the rest.
            found.append(single(fit(points, values, free, weights)[0]))
            n = free.pop(0)
            values = [v - found[-1] * x**n for x, v in zip(points, values, strict=True)]
        return Row(center, value, slope, tuple(found))

    def width(self, row: Row) -> float:
        """Return the width of the rounding test, over the result as it counts.

        What counts of the roundings is four times half a unit in the last place of the terms from
        r^2 on: of their polynomial, of r^2 twice, and of their product. In the first rows the term
        of r^3 has one more.
        """
        found = 0.0
        for v in chebyshev(mpf(self.low), mpf(self.high), POINTS):
            r = v - row.center
            terms = [p * r ** (n + 2) for n, p in enumerate(row.p)]
            error = abs(row.value + row.slope * r + sum(terms) - mpmath.atan(v))
            error += HALF * (4 * abs(sum(terms)) + abs(sum(terms[1:])))
            found = max(found, float(error / (CAP if self.number else v)))
        return MARGIN * found + OTHER_ROUNDINGS / CAP


def text(centers: list[float] | None = None) -> str:
    """Return the header, with the centers that are kept."""
    every = [Quotients.of(number) for number in range(ROWS)]
    rows = [q.row(None if centers is None else centers[q.number]) for q in every]
    widths = [single(q.width(row)) for q, row in zip(every, rows, strict=True)]
    lines = [
        f"#define UDF_ATAN2_WIDE_SCALE {SCALE.hex()}f",
        f"#define UDF_ATAN2_WIDE_HALF_PI {HALF_PI.hex()}f",
        f"#define UDF_ATAN2_WIDE_LOW {LOW.hex()}f",
        f"#define UDF_ATAN2_WIDE_CAP {CAP.hex()}f",
        *tables("udf_atan2_wide", columns_of(rows) | {"width": widths}),
    ]
    return header(__file__, "UDF_ATAN2_WIDE_CONSTANTS_H", lines)


if __name__ == "__main__":
    _, HEADER = command_line(__doc__)
    print(text(None if HEADER is None else entries(HEADER, "center")))
