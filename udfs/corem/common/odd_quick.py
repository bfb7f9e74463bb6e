# SPDX-License-Identifier: Apache-2.0
"""Write the tables of odd_quick.h for one function.

    python udfs/corem/common/odd_quick.py erf > quick_constants.h
    python udfs/corem/common/odd_quick.py erf --keep udfs/corem/erf/quick_constants.h

The first form takes minutes; the second keeps the centers and margins that another run found.

The method is that of intervals.py. A center suits the value and p2, and the slope is cut into two
floats: see odd_quick.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import mpmath
import numpy as np
from intervals import (
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
    round_in_turn,
    single,
    tables,
)
from mpmath import mp, mpf

mp.prec = 200

OCTAVES = 4
#: The exponent field of 1.0f.
BIAS = 127
#: Shares of an interval, around its middle, in which its center is looked for.
SHARES = (0.1, 0.25, 0.5, 0.9)
#: Of these, those whose p2 is looked at: all have a value within 2^-38 of a float.
KEPT = 64
#: Points at which an error is looked at.
POINTS = 100


@dataclass(frozen=True)
class Function:
    """An odd function, exact and in double, and an argument from which on it is constant."""

    exact: Callable[[mpf], mpf]
    double: Callable[[np.ndarray], np.ndarray]
    end: float


@dataclass(frozen=True)
class Level:
    """What depends on how long tables may be.

    Attributes:
        steps: intervals of equal length in each octave of b = scale x + origin; from 1 on there
            are four octaves.
        degree: of the polynomials.
        points: to which the coefficients of an interval are fitted.
    """

    steps: int
    degree: int
    scale: float
    origin: float
    points: int


FUNCTIONS = {
    "erf": Function(mpmath.erf, np.vectorize(math.erf), 3.9375),
    "tanh": Function(mpmath.tanh, np.tanh, 9.0625),
}
LEVELS = {
    "erf": {"__AVX512F__": Level(8, 6, 3.75, 1.0625, 24)},
    "tanh": {"__AVX512F__": Level(8, 6, 1.640625, 1.0625, 18)},
}


@dataclass(frozen=True, kw_only=True)
class OddInterval(Interval):
    """Arguments of an odd function from zero on.

    Attributes:
        fitted: points to which the coefficients are fitted.
    """

    function: Function
    degree: int
    fitted: int

    #: Centers that are tried.
    candidates: ClassVar[int] = 1 << 20
    #: The first coefficient that is rounded before others are fitted again.
    rounded_from: ClassVar[int] = 2

    def exact(self, x: mpf) -> mpf:
        """Return the function times 1 + margin."""
        return self.function.exact(x) * (1 + mpf(self.margin))

    def double(self, x: np.ndarray) -> np.ndarray:
        """Return the function times 1 + margin, in double."""
        return self.function.double(x) * (1 + self.margin)

    def row(self, center: float | None = None) -> Row:
        """Return the best entries, or those for a center."""
        if self.low == 0:
            return self.first()
        if center is not None:
            return self.around(center)
        # The difference to the center must be exact.
        shares = [s for s in SHARES if self.half * (1 + s) < self.reach]
        return min((self.around(self.center(s)) for s in shares), key=self.largest)

    def first(self) -> Row:
        """Return the entries of the interval that begins at zero: the error is relative to x."""
        points = [x for x in chebyshev(-self.high, self.high, self.fitted) if x > 0]
        powers = range(1, self.degree + 1, 2)
        values = [self.exact(x) / x for x in points]
        every = [mpf(0)] * (self.degree + 1)
        for n, v in zip(powers, fit(points, values, [n - 1 for n in powers]), strict=True):
            every[n] = v
        return Row.of(0.0, every)

    def near(self, share: float) -> np.ndarray:
        """Return the centers in a share of the interval, around its middle, that are tried."""
        unit = float(np.spacing(np.float32(self.middle + share * self.half)))
        c = self.middle + np.linspace(-share, share, self.candidates) * self.half
        return np.unique(np.round(c / unit) * unit)

    def center(self, share: float) -> float:
        """Return the center whose value and p2 are nearest to floats, from a share of all."""
        c = self.near(share)
        value = self.double(c)
        wrong = np.abs(value - value.astype(np.float32)) / value
        c = c[np.argsort(wrong, kind="stable")[:KEPT]]

        def total(candidate: float) -> float:
            value = float(self.double(np.array(candidate)))
            p2 = self._p2(candidate)
            wrong = 2 * abs(value - single(value)) + abs(p2 - single(p2)) * self.half**2
            return wrong / value

        return min(map(float, c), key=total)

    def _p2(self, center: float) -> float:
        """Return p2 by interpolation, in double."""
        n = self.degree + 1
        angles = np.pi * (2 * np.arange(n) + 1) / (2 * n)
        x = self.middle - center + self.half * np.cos(angles)
        p = np.polynomial.polynomial.polyfit(x / self.half, self.double(center + x), n - 1)
        return float(p[2] / self.half**2)

    def around(self, center: float) -> Row:
        """Return the entries for a center."""
        points = self.points(center, self.fitted)
        value = single(self.exact(mpf(center)))
        values = [self.exact(center + x) - value for x in points]
        free = list(range(1, self.degree + 1))
        every = [mpf(value), *fit(points, values, free)]
        round_in_turn(every, range(self.rounded_from, self.degree), free, points, values)
        return Row.of(center, every)

    def errors(self, row: Row) -> list[tuple[mpf, float]]:
        """Return some points, and the relative error of the polynomial there."""
        points = [x for x in chebyshev(self.low, self.high, POINTS) if x > 0]
        return [(x, abs(float(row.exact(x - row.center) / self.exact(x) - 1))) for x in points]

    def largest(self, row: Row) -> float:
        """Return the largest error at some points, that of the roundings included.

        What counts of these is three times half a unit in the last place of the terms from r^3
        on: of their polynomial, of r^2, and of their product.
        """
        found = 0.0
        for x, error in self.errors(row):
            r = float(x) - row.center
            cubic = sum(abs(v * r ** (n + 3)) for n, v in enumerate(row.p[1:]))
            found = max(found, error + 3 * UNIT * cubic / float(self.exact(x)))
        return found


def intervals(function: Function, level: Level) -> dict[int, OddInterval]:
    """Return the intervals of the arguments, by their places in the tables."""
    size = OCTAVES * level.steps
    found = {}
    for i in range(size):
        octave, step = divmod(i, level.steps)
        ends = [2.0**octave * (1 + (step + k) / level.steps) for k in (0, 1)]
        low, high = (max(0.0, (b - level.origin) / level.scale) for b in ends)
        if low < function.end and high > 0:
            place = (BIAS * level.steps + i) % size
            found[place] = OddInterval(
                low=low,
                high=min(high, function.end),
                function=function,
                degree=level.degree,
                fitted=level.points,
            )
    return found


def level_lines(name: str, level: Level, found: Kept | None) -> list[str]:
    """Return the constants of one level."""
    size = OCTAVES * level.steps
    every = columns(intervals(FUNCTIONS[name], level), size, level.degree, found, slope_low=True)
    macro = f"#define UDF_{name.upper()}_QUICK"
    return [
        f"{macro}_STEPS {size}",
        f"{macro}_SHIFT {23 - int(math.log2(level.steps))}",
        f"{macro}_SCALE {level.scale.hex()}f",
        f"{macro}_ORIGIN {level.origin.hex()}f",
        *tables(f"udf_{name}_quick", every),
    ]


def text(name: str, found: Kept | None = None) -> str:
    """Return the header, with the centers and margins that are kept."""
    lines = []
    for macro, level in LEVELS[name].items():
        lines += [f"#ifdef {macro}", *level_lines(name, level, found), "#endif"]
    return header(__file__, f"UDF_{name.upper()}_QUICK_CONSTANTS_H", lines)


if __name__ == "__main__":
    NAME, HEADER = command_line(__doc__, FUNCTIONS)
    print(text(str(NAME), kept(HEADER)))
