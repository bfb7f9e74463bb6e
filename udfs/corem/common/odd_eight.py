# SPDX-License-Identifier: Apache-2.0
"""Write the tables of odd_eight.h for one function.

    python udfs/corem/common/odd_eight.py erf > eight_constants.h
    python udfs/corem/common/odd_eight.py erf --keep udfs/corem/erf/eight_constants.h

The first form takes minutes; the second keeps the centers and the margin that another run found.
The method is that of odd_quick.py. The terms up to r^4 are exact here, and all intervals have one
margin.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from intervals import (
    MARGIN,
    OTHER_ROUNDINGS,
    UNIT,
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
from mpmath import mpf
from odd_quick import FUNCTIONS, OddInterval

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


@dataclass(frozen=True, kw_only=True)
class LongInterval(OddInterval):
    """An interval whose terms up to r^4 have no errors of roundings."""

    def first(self) -> Row:
        """Return the entries of the interval that begins at zero."""
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
        found = 0.0
        for x, error in self.errors(row):
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
        found.append(
            LongInterval(low=low, high=high, function=function, degree=DEGREE, fitted=FITTED)
        )
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


def kept_rows(name: str, text: str) -> tuple[list[Row], float]:
    """Return the entries that belong to the centers and the margin of a header."""
    centers = entries(text, "center")
    [width] = re.findall(r"_EIGHT_WIDTH (\S+)f$", text, re.MULTILINE)
    margin = -float.fromhex(width) / 2
    return rows(name, margin, centers)[0], margin


def text(name: str, every: Sequence[Row], margin: float) -> str:
    """Return the header."""
    filled = [*every, *[Row.empty(DEGREE)] * (STEPS - len(every))]
    macro = f"UDF_{name.upper()}_EIGHT"
    numbering = NUMBERINGS[name]
    lines = [
        f"#define {macro}_SLOPE {single(numbering.slope).hex()}f",
        f"#define {macro}_CURVE {single(numbering.curve).hex()}f",
        "// Twice the margin; negative.",
        f"#define {macro}_WIDTH {(-2 * margin).hex()}f",
        *tables(f"udf_{name}_eight", columns_of(filled, slope_low=True)),
    ]
    return header(__file__, f"{macro}_CONSTANTS_H", lines)


if __name__ == "__main__":
    NAME, HEADER = command_line(__doc__, NUMBERINGS)
    FOUND = found_rows(str(NAME)) if HEADER is None else kept_rows(str(NAME), HEADER)
    print(text(str(NAME), *FOUND))
