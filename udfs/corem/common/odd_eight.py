# SPDX-License-Identifier: Apache-2.0
"""Write the tables of odd_eight.h for one function.

    python udfs/corem/common/odd_eight.py erf > eight_constants.h
    python udfs/corem/common/odd_eight.py erf --keep udfs/corem/erf/eight_constants.h

The first form takes minutes; the second keeps the centers and the margin that another run found.
The method is that of odd_quick.py. The terms up to r^4 are exact here, and all intervals have one
margin.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpmath import mpf
from odd_quick import (
    FUNCTIONS,
    MARGIN,
    OTHER_ROUNDINGS,
    POINTS,
    UNIT,
    Interval,
    Row,
    chebyshev,
    fit,
    single,
    table,
)

STEPS = 8
DEGREE = 8
#: Points to which the coefficients are fitted.
FITTED = 24


@dataclass(frozen=True)
class Numbering:
    """How an argument leads to its interval: slope a - curve a^2 is rounded to an integer.

    Attributes:
        end: the largest argument, from which on the function is constant in float.
    """

    slope: float
    curve: float
    end: float

    def last(self, number: int) -> float:
        """Return the largest argument of an interval."""
        beside = self.slope**2 - 4 * self.curve * (number + 0.5)
        return math.inf if beside < 0 else (self.slope - math.sqrt(beside)) / (2 * self.curve)


NUMBERINGS = {"erf": Numbering(2.953125, 0.267578125, 3.921875)}


@dataclass(frozen=True)
class LongInterval(Interval):
    """An interval whose terms up to r^4 have no errors of roundings."""

    def row(self, center: float | None = None) -> Row:
        """Return the best entries, or those for a center."""
        if self.low > 0:
            return super().row(center)
        points = [x for x in chebyshev(-self.high, self.high, self.fitted) if x > 0]
        values = [self.exact(x) / x for x in points]
        every = [mpf(0)] * (self.degree + 1)
        free = list(range(1, self.degree + 1, 2))
        while free:
            for n, v in zip(free, fit(points, values, [n - 1 for n in free]), strict=True):
                every[n] = v
            # What rounding takes away is made up for by the slope, a pair, and by what comes after.
            free.remove(n := 3 if 3 in free else free[-1])
            every[n] = mpf(single(every[n])) if n > 1 else every[n]
            values = [v - every[n] * x ** (n - 1) for x, v in zip(points, values, strict=True)]
        return Row.of(0.0, every)

    def largest(self, row: Row) -> float:
        """Return the largest error at some points, that of the roundings included.

        What counts of these is six times half a unit in the last place of the terms from r^5 on.
        """
        points = [x for x in chebyshev(self.low, self.high, POINTS) if x > 0]
        found = 0.0
        for x, error in zip(points, self.errors(row), strict=True):
            r = float(x) - row.center
            rest = sum(abs(v * r ** (n + 5)) for n, v in enumerate(row.p[3:]))
            found = max(found, error + 6 * UNIT * rest / float(self.exact(x)))
        return found


def intervals(name: str) -> list[LongInterval]:
    """Return the intervals of the arguments, in order."""
    function, numbering = FUNCTIONS[name], NUMBERINGS[name]
    found, low = [], 0.0
    for number in range(STEPS):
        high = min(numbering.last(number), numbering.end)
        found.append(LongInterval(function, DEGREE, FITTED, low, high))
        low = high
        if high == numbering.end:
            return found
    raise ValueError(f"The intervals of {name} end at {low}.")


def rounded_up(margin: float) -> float:
    """Return a margin of few bits."""
    step = 2.0 ** (math.floor(math.log2(margin)) - 4)
    return math.ceil(margin / step) * step


def rows(name: str, margin: float, centers: Sequence[float] | None) -> tuple[list[Row], float]:
    """Return the entries of every interval, and the margin that they need."""
    every, needed = [], 0.0
    for number, interval in enumerate(intervals(name)):
        marked = replace(interval, margin=margin)
        row = marked.row(None if centers is None else centers[number])
        every.append(row)
        needed = max(needed, MARGIN * marked.largest(row) + OTHER_ROUNDINGS)
    return every, needed


def found_rows(name: str) -> tuple[list[Row], float]:
    """Return the entries of every interval and their margin: centers and margin fit each other."""
    margin = 2.0**-35
    while True:
        every, needed = rows(name, margin, None)
        if needed <= margin:
            return every, margin
        margin = rounded_up(needed)


def kept_rows(name: str, header: str) -> tuple[list[Row], float]:
    """Return the entries that belong to the centers and the margin of a header."""
    [body] = re.findall(r"_eight_center\[\] = {(.*?)};", header, re.DOTALL)
    centers = [float.fromhex(v) for v in re.findall(r"(-?0x\S+)f,", body)]
    [width] = re.findall(r"_EIGHT_WIDTH (\S+)f$", header, re.MULTILINE)
    margin = -float.fromhex(width) / 2
    return rows(name, margin, centers)[0], margin


def text(name: str, every: Sequence[Row], margin: float) -> str:
    """Return the header."""
    empty = Row(0.0, 0.0, 0.0, 0.0, (0.0,) * (DEGREE - 1))
    filled = [*every, *[empty] * (STEPS - len(every))]
    columns = {
        "center": [r.center for r in filled],
        "value": [r.value for r in filled],
        "slope": [r.slope for r in filled],
        "slope_low": [r.slope_low for r in filled],
        **{f"p{n + 2}": [r.p[n] for r in filled] for n in range(DEGREE - 1)},
    }
    macro = f"UDF_{name.upper()}_EIGHT"
    numbering = NUMBERINGS[name]
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Generated by odd_eight.py; do not edit.",
        "// clang-format off",
        f"#ifndef {macro}_CONSTANTS_H",
        f"#define {macro}_CONSTANTS_H",
        f"#define {macro}_SLOPE {single(numbering.slope).hex()}f",
        f"#define {macro}_CURVE {single(numbering.curve).hex()}f",
        "// Twice the margin; negative.",
        f"#define {macro}_WIDTH {(-2 * margin).hex()}f",
        *(table(f"udf_{name}_eight_{what}", values) for what, values in columns.items()),
        f"#endif // {macro}_CONSTANTS_H",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("function", choices=NUMBERINGS)
    parser.add_argument("--keep", type=Path, help="header whose centers and margin are kept")
    options = parser.parse_args()
    name = options.function
    if options.keep:
        print(text(name, *kept_rows(name, options.keep.read_text(encoding="utf-8"))))
    else:
        print(text(name, *found_rows(name)))


if __name__ == "__main__":
    main()
