# SPDX-License-Identifier: Apache-2.0
"""Write the tables of a path like odd_quick.h with fewer vector instructions.

    python udfs/corem/common/odd_wide.py tanh > udfs/corem/tanh/wide_constants.h
    python udfs/corem/common/odd_wide.py tanh --keep udfs/corem/tanh/wide_constants.h

The first form takes minutes; the second keeps the centers and margins that another run found.

The intervals are numbered by the encoding of |x| + ORIGIN, eight to an octave, without a
factor. A center must suit three numbers: the value, the slope and p2 are floats but for errors
that do not count, so that the slope has no low part. Near zero the slope is 1, and the margin is
one of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from intervals import (
    MARGIN,
    Interval,
    Kept,
    Row,
    chebyshev,
    columns,
    command_line,
    fit,
    header,
    kept,
    tables,
)
from mpmath import mpf
from odd_quick import BIAS, FUNCTIONS, OddInterval

STEPS = 8
SIZE = 32
DEGREE = 6
FITTED = 18
#: What is added to |x|: 5/8 at least, and less than 10 with the last argument.
ORIGINS = {"tanh": 0.6484375}
#: The margin near zero, of the terms from x^3 on, which are negative.
REST_MARGIN = 2.0**-22


@dataclass(frozen=True, kw_only=True)
class SlopedInterval(OddInterval):
    """An interval whose slope is one float."""

    candidates: ClassVar[int] = 1 << 21
    rounded_from: ClassVar[int] = 1

    def exact(self, x: mpf) -> mpf:
        """Return the function times 1 + margin."""
        if self.low == 0:
            return x + (self.function.exact(x) - x) * (1 - mpf(REST_MARGIN))
        return super().exact(x)

    def center(self, share: float) -> float:
        """Return the center whose value, slope and p2 are nearest to floats."""
        c = self.near(share)
        angles = np.pi * (2 * np.arange(DEGREE + 1) + 1) / (2 * (DEGREE + 1))
        nodes = self.middle + self.half * np.cos(angles)
        p = np.polynomial.Polynomial.fit(
            nodes, self.double(nodes), DEGREE, domain=[self.low, self.high]
        )
        value = self.double(c)
        reach = self.half + np.abs(c - self.middle)

        def wrong(v: np.ndarray) -> np.ndarray:
            return np.abs(v - v.astype(np.float32))

        slope, p2 = p.deriv()(c), p.deriv(2)(c) / 2
        total = (2 * wrong(value) + wrong(slope) * reach + wrong(p2) * reach**2) / value
        return float(c[np.argmin(total)])

    def first(self) -> Row:
        """Return the entries of the interval that begins at zero, whose slope is 1."""
        points = [x for x in chebyshev(-self.high, self.high, FITTED) if x > 0]
        powers = range(3, DEGREE + 1, 2)
        values = [(self.exact(x) - x) / x**3 for x in points]
        every = [mpf(0)] * (DEGREE + 1)
        every[1] = mpf(1)
        for n, v in zip(powers, fit(points, values, [n - 3 for n in powers]), strict=True):
            every[n] = v
        return Row.of(0.0, every)

    def with_margin(self) -> tuple[Interval, Row]:
        """Return the interval with a margin of few bits above its error, and its entries."""
        if self.low > 0:
            return super().with_margin()
        largest, row = self.high**2 / 3 * REST_MARGIN, self.row()
        assert MARGIN * self.largest(row) < largest
        return replace(self, margin=largest), row


def intervals(name: str) -> dict[int, SlopedInterval]:
    """Return the intervals of the arguments, by their places in the tables."""
    function, origin = FUNCTIONS[name], ORIGINS[name]
    found: dict[int, SlopedInterval] = {}
    for i in range(-STEPS, 4 * STEPS):
        octave, step = divmod(i, STEPS)
        ends = [2.0**octave * (1 + (step + k) / STEPS) for k in (0, 1)]
        low, high = (max(0.0, b - origin) for b in ends)
        if low < function.end and high > 0:
            place = (BIAS * STEPS + i) % SIZE
            assert place not in found
            found[place] = SlopedInterval(
                low=low,
                high=min(high, function.end),
                function=function,
                degree=DEGREE,
                fitted=FITTED,
            )
    return found


def text(name: str, found: Kept | None = None) -> str:
    """Return the header, with the centers and margins that are kept."""
    lines = [
        f"#define UDF_{name.upper()}_WIDE_ORIGIN {ORIGINS[name].hex()}f",
        *tables(f"udf_{name}_wide", columns(intervals(name), SIZE, DEGREE, found)),
    ]
    return header(__file__, f"UDF_{name.upper()}_WIDE_CONSTANTS_H", lines)


if __name__ == "__main__":
    NAME, HEADER = command_line(__doc__, ORIGINS)
    print(text(str(NAME), kept(HEADER)))
