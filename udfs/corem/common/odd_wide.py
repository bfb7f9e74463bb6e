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

import argparse
import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from mpmath import mpf
from odd_quick import (
    BIAS,
    FUNCTIONS,
    MARGIN,
    OTHER_ROUNDINGS,
    POINTS,
    UNIT,
    Function,
    Row,
    chebyshev,
    chosen,
    fit,
    single,
    table,
)

STEPS = 8
SIZE = 32
DEGREE = 6
FITTED = 18
#: What is added to |x|: 5/8 at least, and less than 10 with the last argument.
ORIGINS = {"tanh": 0.6484375}
#: Of an interval, around its middle, where its center is looked for.
SHARES = (0.1, 0.25, 0.5, 0.9)
CANDIDATES = 1 << 21
#: The margin near zero, of the terms from x^3 on, which are negative.
REST_MARGIN = 2.0**-22


@dataclass(frozen=True)
class Interval:
    """The arguments from low to high of a function times 1 + margin."""

    function: Function
    low: float
    high: float
    margin: float = 0.0

    def exact(self, x: mpf) -> mpf:
        """Return the function times 1 + margin."""
        if self.low == 0:
            return x + (self.function.exact(x) - x) * (1 - mpf(REST_MARGIN))
        return self.function.exact(x) * (1 + mpf(self.margin))

    def center(self, share: float) -> float:
        """Return the center whose value, slope and p2 are nearest to floats."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        unit = float(np.spacing(np.float32(middle + share * half)))
        c = middle + np.linspace(-share, share, CANDIDATES) * half
        c = np.unique(np.round(c / unit) * unit)
        angles = np.pi * (2 * np.arange(DEGREE + 1) + 1) / (2 * (DEGREE + 1))
        f = self.function.double
        p = np.polynomial.Polynomial.fit(
            middle + half * np.cos(angles),
            f(middle + half * np.cos(angles)) * (1 + self.margin),
            DEGREE,
            domain=[self.low, self.high],
        )
        value = f(c) * (1 + self.margin)
        reach = half + np.abs(c - middle)

        def wrong(v: np.ndarray) -> np.ndarray:
            return np.abs(v - v.astype(np.float32))

        slope, p2 = p.deriv()(c), p.deriv(2)(c) / 2
        total = (2 * wrong(value) + wrong(slope) * reach + wrong(p2) * reach**2) / value
        return float(c[np.argmin(total)])

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
        points = [x for x in chebyshev(-self.high, self.high, FITTED) if x > 0]
        powers = range(3, DEGREE + 1, 2)
        values = [(self.exact(x) - x) / x**3 for x in points]
        every = [mpf(0)] * (DEGREE + 1)
        every[1] = mpf(1)
        for n, v in zip(powers, fit(points, values, [n - 3 for n in powers]), strict=True):
            every[n] = v
        return Row.of(0.0, every)

    def around(self, center: float) -> Row:
        """Return the entries for a center."""
        points = chebyshev(mpf(self.low) - center, mpf(self.high) - center, FITTED)
        value = single(self.exact(mpf(center)))
        values = [self.exact(center + x) - value for x in points]
        free = list(range(1, DEGREE + 1))
        every = [mpf(value), *fit(points, values, free)]
        for n in range(1, DEGREE):
            # What rounding takes away is made up for by the rest.
            every[n] = mpf(single(every[n]))
            free.remove(n)
            values = [v - every[n] * x**n for x, v in zip(points, values, strict=True)]
            for m, v in zip(free, fit(points, values, free), strict=True):
                every[m] = v
        return Row.of(center, every)

    def largest(self, row: Row) -> float:
        """Return the largest error at some points, that of the roundings included."""
        points = [x for x in chebyshev(self.low, self.high, POINTS) if x > 0]
        found = 0.0
        for x in points:
            r = float(x) - row.center
            cubic = sum(abs(v * r ** (n + 3)) for n, v in enumerate(row.p[1:]))
            exact = self.exact(x)
            error = abs(float(row.exact(x - row.center) / exact - 1))
            found = max(found, error + 3 * UNIT * cubic / float(exact))
        return found


def with_margin(interval: Interval) -> Interval:
    """Return the interval with a margin of few bits above its error."""
    if interval.low == 0:
        largest = interval.high**2 / 3 * REST_MARGIN
        assert MARGIN * interval.largest(interval.row()) < largest
        return replace(interval, margin=largest)
    least = MARGIN * interval.largest(interval.row()) + OTHER_ROUNDINGS
    step = 2.0 ** (math.floor(math.log2(least)) - 3)
    for n in itertools.count(math.ceil(0.9 * least / step)):
        found = replace(interval, margin=n * step)
        if MARGIN * found.largest(found.row()) + OTHER_ROUNDINGS <= found.margin:
            return found
    raise AssertionError


def intervals(name: str) -> dict[int, Interval]:
    """Return the intervals of the arguments, by their places in the tables."""
    function, origin = FUNCTIONS[name], ORIGINS[name]
    found: dict[int, Interval] = {}
    for i in range(-STEPS, 4 * STEPS):
        octave, step = divmod(i, STEPS)
        ends = [2.0**octave * (1 + (step + k) / STEPS) for k in (0, 1)]
        low, high = (max(0.0, b - origin) for b in ends)
        if low < function.end and high > 0:
            place = (BIAS * STEPS + i) % SIZE
            assert place not in found
            found[place] = Interval(function, low, min(high, function.end))
    return found


def text(name: str, kept: dict[int, tuple[float, float]] | None = None) -> str:
    """Return the header, with the centers and margins that are kept."""
    rows: dict[int, tuple[Row, float]] = {}
    for place, interval in intervals(name).items():
        if kept is not None:
            center, margin = kept[place]
            rows[place] = replace(interval, margin=margin).row(center), margin
        else:
            found = with_margin(interval)
            rows[place] = found.row(), found.margin
    empty = Row(0.0, 0.0, 0.0, 0.0, (0.0,) * (DEGREE - 1)), 0.0
    every = [rows.get(i, empty) for i in range(SIZE)]
    columns = {
        "center": [r.center for r, _ in every],
        "value": [r.value for r, _ in every],
        "slope": [r.slope for r, _ in every],
        **{f"p{n + 2}": [r.p[n] for r, _ in every] for n in range(DEGREE - 1)},
        # Both margins, one of which is in all entries; negative.
        "width": [-2 * m for _, m in every],
    }
    guard = f"UDF_{name.upper()}_WIDE_CONSTANTS_H"
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Generated by odd_wide.py; do not edit.",
        "// clang-format off",
        f"#ifndef {guard}",
        f"#define {guard}",
        f"#define UDF_{name.upper()}_WIDE_ORIGIN {ORIGINS[name].hex()}f",
        *(table(f"udf_{name}_wide_{what}", values) for what, values in columns.items()),
        f"#endif // {guard}",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("function", choices=ORIGINS)
    parser.add_argument("--keep", type=Path, help="header whose centers and margins are kept")
    options = parser.parse_args()
    kept = None
    if options.keep:
        kept = chosen(options.keep.read_text(encoding="utf-8").replace("_wide_", "_quick_"))
    print(text(options.function, kept))


if __name__ == "__main__":
    main()
