# SPDX-License-Identifier: Apache-2.0
"""Write the tables of atan2f_wide.c.

    python udfs/corem/common/atan2_wide.py > udfs/corem/atan2/wide_constants.h
    python udfs/corem/common/atan2_wide.py --keep udfs/corem/atan2/wide_constants.h

The second form keeps the centers and margins that another run found.

A row is an interval of a quotient v in [-1, 1] around a center c, and atan(c + r) is value + slope r
+ p2 r^2 + ... in it. Multiples of pi/2 are added to the value, and so that these sums are exact, it is
a multiple of UNIT. The center is chosen so that atan(c) and the slope are near to such numbers (after
S. Gal, Accurate tables, 1986). The margin of a row is added: see atan2f_wide.c.

Another pair of constants makes 1 / d from the encoding of d, by two steps of Newton's method.
"""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import mpmath
import numpy as np
from mpmath import mp, mpf
from odd_quick import chebyshev, single, table
from rows_wide import weighted

mp.prec = 200

ROWS = 32
#: The row of v is that of the integer next to SCALE v.
SCALE = 15.484375
DEGREE = 5
#: pi, too, begins with a multiple of it, so that all sums are.
UNIT = 2.0**-22
#: Half a unit in the last place of float, relative.
HALF = 2.0**-24
#: The share of an interval, around its middle, in which its center is looked for.
SHARE = 0.75
#: What a margin has above the error that is estimated, and above that.
MARGIN = 1.0625
OTHER_ROUNDINGS = 2.0**-42
#: Points at which an error is looked at, and to which coefficients are fitted.
POINTS = 60
FITTED = 24
#: A width is that of the test over the result, which counts as CAP where it is larger.
CAP = 33 / 1024
#: Half of pi begins with a multiple of UNIT, and the rest is the share LOW of that.
HALF_PI = round(math.pi / 2 / UNIT) * UNIT
#: What is added to the rest, so that the error of its roundings is on one side.
LIFT = 2.0**-45
LOW = single(mp.pi / 2 / HALF_PI - 1 + LIFT)
#: Constants that are tried for the first step: the encoding, and what is near to 2.
MAGICS = range(0x7EE00000, 0x7F000000, 0x800)
STEPS = 2 + np.arange(0, 0.004, 2.0**-14)


@dataclass(frozen=True)
class Row:
    """The entries of one row: floats. p begins with p2."""

    center: float
    value: float
    slope: float
    p: tuple[float, ...]

    def exact(self, r: mpf) -> mpf:
        """Return the value of the polynomial."""
        p = sum(mpf(v) * r ** (n + 2) for n, v in enumerate(self.p))
        return self.value + r * mpf(self.slope) + p


@dataclass(frozen=True)
class Interval:
    """The quotients of one row. The margin is one of atan(v), or in the first row of 1."""

    number: int
    margin: float = 0.0

    @property
    def low(self) -> float:
        """Return the least quotient."""
        return max(-1.0, (self.number - 0.5) / SCALE)

    @property
    def high(self) -> float:
        """Return the largest quotient."""
        return min(1.0, (self.number + 0.5) / SCALE)

    def share(self, v: mpf) -> mpf:
        """Return the share of the margin that is added to atan(v)."""
        return mpf(1) if self.number else v * v / self.high

    def exact(self, v: mpf) -> mpf:
        """Return the arc tangent and the margin."""
        return mpmath.atan(v) + mpf(self.margin) * self.share(v)

    def center(self) -> float:
        """Return the center whose value and slope are near to what is exact, and the rest short."""
        if not self.number:
            return 0.0
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        # The difference to the center must be exact.
        most = 2.0**24 * float(np.spacing(np.float32(min(abs(self.low), abs(self.high)))))
        share = min(SHARE, most / half - 1 - 2.0**-20)
        spacing = float(np.spacing(np.float32(abs(middle) + share * half)))
        c = np.arange(middle - share * half, middle + share * half, spacing)
        c = np.unique(c.astype(np.float32)).astype(np.float64)
        value = np.arctan(c) + self.margin
        slope = 1 / (1 + c * c)
        largest = half + np.abs(c - middle)
        wrong = np.abs(value - np.round(value / UNIT) * UNIT)
        wrong += np.abs(slope - slope.astype(np.float32)) * largest
        # The rest of the polynomial, whose roundings count, is long where the center is not in
        # the middle.
        wrong += 3 * HALF * np.abs(c) * slope**2 * largest**2
        return float(c[np.argmin(wrong)])

    def row(self, center: float) -> Row:
        """Return the entries for a center."""
        points = chebyshev(mpf(self.low) - center, mpf(self.high) - center, FITTED)
        free = list(range(2, DEGREE + 1))
        value = round(float(self.exact(mpf(center))) / UNIT) * UNIT
        slope = single(1 / (1 + mpf(center) ** 2))
        values = [self.exact(center + x) - value - slope * x for x in points]
        # In the first row the error counts relative to the square.
        weights = [mpf(1) if self.number else 1 / x**2 for x in points]
        found: list[float] = []
        while free:
            weighed = [w * v for w, v in zip(weights, values, strict=True)]
            fitted = weighted(points, weighed, free, weights)
            # What rounding takes away is made up for by the rest.
            found.append(single(fitted[0]))
            values = [v - found[-1] * x ** free[0] for x, v in zip(points, values, strict=True)]
            free.pop(0)
        return Row(center, value, slope, tuple(found))

    def largest(self, row: Row) -> float:
        """Return the largest error at some points, that of the roundings included.

        What counts of these is three times half a unit in the last place of the terms from r^2
        on: of their polynomial, of r^2, and of their product.
        """
        found = 0.0
        for v in chebyshev(mpf(self.low), mpf(self.high), POINTS):
            r = v - row.center
            error = abs(row.exact(r) - self.exact(v))
            rest = abs(sum(p * r ** (n + 2) for n, p in enumerate(row.p)))
            found = max(found, float((error + 3 * HALF * rest) / self.share(v)))
        return found

    def needed(self, row: Row) -> float:
        """Return the margin that a row should have."""
        return MARGIN * self.largest(row) + OTHER_ROUNDINGS


def with_margin(number: int) -> tuple[Interval, float]:
    """Return the interval with a margin of few bits above its error, and its center.

    The center depends on the margin and the error on the center, so that it takes some tries.
    """
    first = Interval(number)
    least = first.needed(first.row(first.center()))
    step = 2.0 ** (math.floor(math.log2(least)) - 3)
    n = math.ceil(0.9 * least / step)
    while True:
        found = replace(first, margin=n * step)
        center = found.center()
        if found.needed(found.row(center)) <= found.margin:
            return found, center
        n += 1


def chosen(header: str) -> dict[int, tuple[float, float]]:
    """Return center and margin by place, from a header that was written before."""
    columns = [
        [float.fromhex(v) for v in re.findall(r"(-?0x\S+)f,", body)]
        for what in ("center", "width")
        for body in re.findall(rf"_wide_{what}\[\] = {{(.*?)}};", header, re.DOTALL)
    ]
    return {
        i: (c, -w / 2 * (CAP if i else 1)) for i, (c, w) in enumerate(zip(*columns, strict=True))
    }


def inverse() -> tuple[int, float, float, float]:
    """Return three constants of 1 / d, and the error."""
    d = np.linspace(0.5, 2, 6001)[:-1].astype(np.float32)
    best = (1.0, 0, 0.0)
    for magic in MAGICS:
        y = (np.uint32(magic) - d.view(np.uint32)).view(np.float32).astype(np.float64)
        u = d * y
        once = u * (STEPS[:, None] - u) - 1
        error = np.abs(once).max(axis=1)
        i = int(np.argmin(error))
        best = min(best, (float(error[i]), magic, float(STEPS[i])))
    error, magic, step = best
    # The second step leaves the square of that on one side.
    unit = 2.0**-23
    second = 1 + round(error**2 / 2 / unit) * unit
    return magic, step, second, error**2 / 2 + unit


def text(kept: dict[int, tuple[float, float]] | None = None) -> str:
    """Return the header, with the centers and margins that are kept."""
    rows = [(Row(0.0, 0.0, 0.0, (0.0,) * (DEGREE - 1)), 0.0)] * ROWS
    for number in range(-ROWS // 2 + 1, ROWS // 2):
        place = number % ROWS
        if kept is not None:
            center, margin = kept[place]
            found = Interval(number, margin)
        else:
            found, center = with_margin(number)
        rows[place] = found.row(center), found.margin / (CAP if number else 1)
    columns = {
        "center": [r.center for r, _ in rows],
        "value": [r.value for r, _ in rows],
        "slope": [r.slope for r, _ in rows],
        **{f"p{n + 2}": [r.p[n] for r, _ in rows] for n in range(DEGREE - 1)},
        "width": [-2 * w for _, w in rows],
    }
    magic, step, second, error = inverse()
    guard = "UDF_ATAN2_WIDE_CONSTANTS_H"
    return "\n".join(
        [
            "// SPDX-License-Identifier: Apache-2.0",
            "// Generated by atan2_wide.py; do not edit.",
            "// clang-format off",
            f"#ifndef {guard}",
            f"#define {guard}",
            f"// 1 / d but for 2^{math.ceil(10 * math.log2(error)) / 10} of it.",
            f"#define UDF_ATAN2_WIDE_MAGIC UINT32_C({magic:#x})",
            f"#define UDF_ATAN2_WIDE_STEP {step.hex()}f",
            f"#define UDF_ATAN2_WIDE_SECOND {second.hex()}f",
            f"#define UDF_ATAN2_WIDE_SCALE {SCALE.hex()}f",
            f"#define UDF_ATAN2_WIDE_HALF_PI {HALF_PI.hex()}f",
            f"#define UDF_ATAN2_WIDE_LOW {LOW.hex()}f",
            f"#define UDF_ATAN2_WIDE_CAP {CAP.hex()}f",
            *(table(f"udf_atan2_wide_{what}", values) for what, values in columns.items()),
            f"#endif // {guard}",
        ]
    )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="header whose centers and margins are kept")
    options = parser.parse_args()
    kept = chosen(options.keep.read_text(encoding="utf-8")) if options.keep else None
    print(text(kept))


if __name__ == "__main__":
    main()
