# SPDX-License-Identifier: Apache-2.0
"""Write the tables of odd_quick.h for one function.

    python udfs/corem/common/odd_quick.py erf > quick_constants.h
    python udfs/corem/common/odd_quick.py erf --keep udfs/corem/erf/quick_constants.h

The first form takes minutes; the second keeps the centers and margins that another run found.

Around the center c of an interval, f(c + r) is value + slope r + p2 r^2 + ... The center is chosen
so that value and p2 are floats but for errors that do not count (after S. Gal, Accurate tables,
1986); then slope, cut into two floats, and the other coefficients fit the function at Chebyshev
points by least squares. All are multiplied by 1 + margin: see odd_quick.h.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mpmath
import numpy as np
from mpmath import mp, mpf

mp.prec = 200

OCTAVES = 4
#: The exponent field of 1.0f.
BIAS = 127
#: Half a unit in the last place of float, relative.
UNIT = 2.0**-24
#: Shares of an interval, around its middle, in which its center is looked for.
SHARES = (0.1, 0.25, 0.5, 0.9)
CANDIDATES = 1 << 20
#: Of these, those whose p2 is looked at: all have a value within 2^-38 of a float.
KEPT = 64
#: What a margin has above the error that is estimated, and above that.
MARGIN = 1.0625
OTHER_ROUNDINGS = 2.0**-41
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


def single(x: mpf | float) -> float:
    """Round to float32, given as a double."""
    return float(np.float32(float(x)))


def chebyshev(low: mpf, high: mpf, n: int) -> list[mpf]:
    """Return n points of an interval, dense at its ends."""
    middle, half = (mpf(low) + high) / 2, (mpf(high) - low) / 2
    return [middle + half * mp.cos(mp.pi * (2 * i + 1) / (2 * n)) for i in range(n)]


def fit(points: Sequence[mpf], values: Sequence[mpf], powers: Sequence[int]) -> list[mpf]:
    """Return the coefficients of these powers that fit the values best."""
    matrix = mp.matrix(len(points), len(powers))
    for i, x in enumerate(points):
        for j, n in enumerate(powers):
            matrix[i, j] = x**n
    return list(mp.lu_solve(matrix, mp.matrix(values)))


@dataclass(frozen=True)
class Row:
    """The entries of one interval: floats."""

    center: float
    value: float
    slope: float
    slope_low: float
    p: tuple[float, ...]

    @classmethod
    def of(cls, center: float, every: Sequence[mpf]) -> Row:
        """Round the coefficients, the lowest first."""
        value, slope, *p = map(single, every)
        return cls(center, value, slope, single(every[1] - slope), tuple(p))

    def exact(self, r: mpf) -> mpf:
        """Return the value of the polynomial."""
        p = sum(mpf(v) * r ** (n + 2) for n, v in enumerate(self.p))
        return self.value + r * (mpf(self.slope) + self.slope_low) + p


@dataclass(frozen=True)
class Interval:
    """The arguments from low to high of a function times 1 + margin."""

    function: Function
    degree: int
    fitted: int
    low: float
    high: float
    margin: float = 0.0

    def exact(self, x: mpf) -> mpf:
        """Return the function times 1 + margin."""
        return self.function.exact(x) * (1 + mpf(self.margin))

    def double(self, x: np.ndarray) -> np.ndarray:
        """Return the function times 1 + margin, in double."""
        return self.function.double(x) * (1 + self.margin)

    def row(self, center: float | None = None) -> Row:
        """Return the best entries, or those for a center."""
        if self.low > 0 and center is not None:
            return self.around(center)
        if self.low > 0:
            # The difference to the center must be exact.
            half = (self.high - self.low) / 2
            most = 2.0**24 * float(np.spacing(np.float32(self.low)))
            rows = [self.around(self.center(s)) for s in SHARES if half * (1 + s) < most]
            return min(rows, key=self.largest)
        # The function is odd, and its error is relative to it.
        points = [x for x in chebyshev(-self.high, self.high, self.fitted) if x > 0]
        powers = range(1, self.degree + 1, 2)
        values = [self.exact(x) / x for x in points]
        every = [mpf(0)] * (self.degree + 1)
        for n, v in zip(powers, fit(points, values, [n - 1 for n in powers]), strict=True):
            every[n] = v
        return Row.of(0.0, every)

    def center(self, share: float) -> float:
        """Return the center whose value and p2 are nearest to floats, from a share of all."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        unit = float(np.spacing(np.float32(middle + share * half)))
        c = middle + np.linspace(-share, share, CANDIDATES) * half
        c = np.unique(np.round(c / unit) * unit)
        value = self.double(c)
        wrong = np.abs(value - value.astype(np.float32)) / value
        c = c[np.argsort(wrong, kind="stable")[:KEPT]]

        def total(candidate: float) -> float:
            value = float(self.double(np.array(candidate)))
            p2 = self._p2(candidate)
            wrong = 2 * abs(value - single(value)) + abs(p2 - single(p2)) * half**2
            return wrong / value

        return min(map(float, c), key=total)

    def _p2(self, center: float) -> float:
        """Return p2 by interpolation, in double."""
        n = self.degree + 1
        half = (self.high - self.low) / 2
        angles = np.pi * (2 * np.arange(n) + 1) / (2 * n)
        x = (self.low + self.high) / 2 - center + half * np.cos(angles)
        p = np.polynomial.polynomial.polyfit(x / half, self.double(center + x), n - 1)
        return float(p[2] / half**2)

    def around(self, center: float) -> Row:
        """Return the entries for a center."""
        points = chebyshev(mpf(self.low) - center, mpf(self.high) - center, self.fitted)
        value = single(self.exact(mpf(center)))
        values = [self.exact(center + x) - value for x in points]
        free = list(range(1, self.degree + 1))
        every = [mpf(value), *fit(points, values, free)]
        for n in range(2, self.degree):
            # What rounding takes away is made up for by the rest.
            every[n] = mpf(single(every[n]))
            free.remove(n)
            values = [v - every[n] * x**n for x, v in zip(points, values, strict=True)]
            for m, v in zip(free, fit(points, values, free), strict=True):
                every[m] = v
        return Row.of(center, every)

    def errors(self, row: Row) -> list[float]:
        """Return the relative error of the polynomial at some points."""
        points = [x for x in chebyshev(self.low, self.high, POINTS) if x > 0]
        return [abs(float(row.exact(x - row.center) / self.exact(x) - 1)) for x in points]

    def largest(self, row: Row) -> float:
        """Return the largest error at some points, that of the roundings included.

        What counts of these is three times half a unit in the last place of the terms from r^3
        on: of their polynomial, of r^2, and of their product.
        """
        points = [x for x in chebyshev(self.low, self.high, POINTS) if x > 0]
        found = 0.0
        for x, error in zip(points, self.errors(row), strict=True):
            r = float(x) - row.center
            cubic = sum(abs(v * r ** (n + 3)) for n, v in enumerate(row.p[1:]))
            found = max(found, error + 3 * UNIT * cubic / float(self.exact(x)))
        return found


def with_margin(interval: Interval) -> Interval:
    """Return the interval with a margin of few bits above its error.

    The center depends on the margin and the error on the center, so that it takes some tries.
    """
    least = MARGIN * interval.largest(interval.row()) + OTHER_ROUNDINGS
    step = 2.0 ** (math.floor(math.log2(least)) - 3)
    for n in itertools.count(math.ceil(0.9 * least / step)):
        found = replace(interval, margin=n * step)
        if MARGIN * found.largest(found.row()) + OTHER_ROUNDINGS <= found.margin:
            return found
    raise AssertionError


def intervals(function: Function, level: Level) -> dict[int, Interval]:
    """Return the intervals of the arguments, by their places in the tables."""
    size = OCTAVES * level.steps
    found = {}
    for i in range(size):
        octave, step = divmod(i, level.steps)
        ends = [2.0**octave * (1 + (step + k) / level.steps) for k in (0, 1)]
        low, high = (max(0.0, (b - level.origin) / level.scale) for b in ends)
        if low < function.end and high > 0:
            place = (BIAS * level.steps + i) % size
            found[place] = Interval(
                function, level.degree, level.points, low, min(high, function.end)
            )
    return found


def table(name: str, values: Sequence[float]) -> str:
    """Return a table in C."""
    entries = [f"    {v.hex()}f," for v in values]
    return "\n".join([f"static const float {name}[] = {{", *entries, "};"])


Chosen = dict[int, tuple[float, float]]


def chosen(header: str) -> Chosen:
    """Return center and margin by place, from a header that was written before."""
    columns = [
        [float.fromhex(v) for v in re.findall(r"(-?0x\S+)f,", body)]
        for what in ("center", "width")
        for body in re.findall(rf"_quick_{what}\[\] = {{(.*?)}};", header, re.DOTALL)
    ]
    return {i: (c, -w / 2) for i, (c, w) in enumerate(zip(*columns, strict=True))}


def level_text(name: str, level: Level, kept: Chosen | None) -> str:
    """Return the constants of one level."""
    rows: dict[int, tuple[Row, float]] = {}
    for place, interval in intervals(FUNCTIONS[name], level).items():
        if kept is not None:
            center, margin = kept[place]
            rows[place] = replace(interval, margin=margin).row(center), margin
        else:
            found = with_margin(interval)
            rows[place] = found.row(), found.margin
    empty = Row(0.0, 0.0, 0.0, 0.0, (0.0,) * (level.degree - 1)), 0.0
    every = [rows.get(i, empty) for i in range(OCTAVES * level.steps)]
    columns = {
        "center": [r.center for r, _ in every],
        "value": [r.value for r, _ in every],
        "slope": [r.slope for r, _ in every],
        "slope_low": [r.slope_low for r, _ in every],
        **{f"p{n + 2}": [r.p[n] for r, _ in every] for n in range(level.degree - 1)},
        # Both margins, one of which is in all entries; negative.
        "width": [-2 * m for _, m in every],
    }
    macro = f"#define UDF_{name.upper()}_QUICK"
    return "\n".join(
        [
            f"{macro}_STEPS {OCTAVES * level.steps}",
            f"{macro}_SHIFT {23 - int(math.log2(level.steps))}",
            f"{macro}_SCALE {level.scale.hex()}f",
            f"{macro}_ORIGIN {level.origin.hex()}f",
            *(table(f"udf_{name}_quick_{what}", values) for what, values in columns.items()),
        ]
    )


def text(name: str, kept: Chosen | None = None) -> str:
    """Return the header, with the centers and margins that are kept."""
    guard = f"UDF_{name.upper()}_QUICK_CONSTANTS_H"
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Generated by odd_quick.py; do not edit.",
        "// clang-format off",
        f"#ifndef {guard}",
        f"#define {guard}",
    ]
    for macro, level in LEVELS[name].items():
        lines += [f"#ifdef {macro}", level_text(name, level, kept), "#endif"]
    return "\n".join([*lines, f"#endif // {guard}"])


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
