# SPDX-License-Identifier: Apache-2.0
"""Write the tables of atanf_eight.c.

    python udfs/corem/common/atan_eight.py > udfs/corem/atan/eight_constants.h

SCALE v, rounded to an integer, numbers eight rows of [0, 1]. Around the center c of one,
atan(c + r) = value + slope r + p2 r^2 + ... The center is such that value is nearly a multiple of
2^-23, so that the float nearest to pi/2 less value is a float, and p2 is nearly one. What the
roundings of the coefficients take away, the others make up for.
"""

from __future__ import annotations

import math

import numpy as np
from intervals import UNIT, chebyshev, fit, header, round_in_turn, single, tables
from mpmath import mp, mpf

mp.prec = 150

ROWS = 8
DEGREE = 6
SCALE = 7.46875
#: Points to which the coefficients are fitted.
FITTED = 24
#: A width is relative to r^2, plus this part of v.
PART = 2.0**-9
#: Points at which an error is looked at.
LOOKED_AT = 101
#: The share of a row, around its middle, in which its center is looked for.
SHARE = 0.3
#: How near a value is to a multiple of PLACE.
NEAR = 2.0**-40
PLACE = 2.0**-23
#: What a width has above the errors that are counted.
MARGIN = 1.3


def center(low: float, high: float) -> float:
    """Return the center of a row."""
    if low == 0:
        return 0.0
    middle, half = (low + high) / 2, (high - low) / 2
    # The difference to the center must be exact.
    unit = 2.0 ** (math.floor(math.log2(high)) - 23)
    count = int(SHARE * half / unit)
    c = (round(middle / unit) + np.arange(-count, count + 1)) * unit
    value = np.arctan(c.astype(np.longdouble))
    c = c[np.abs(value - np.round(value / PLACE) * PLACE) < NEAR]
    points = chebyshev(-half, half, FITTED)
    polynomial = fit(points, [mp.atan(middle + x) for x in points], range(DEGREE + 1))
    derivative = [math.comb(k, 2) * float(polynomial[k]) for k in range(2, DEGREE + 1)]
    p2 = np.polynomial.polynomial.polyval(c - middle, derivative)
    return float(c[np.argmin(np.abs(p2 - p2.astype(np.float32)))])


def row(low: float, high: float) -> tuple[float, ...]:
    """Return the entries of a row: center, value, slope in two parts, p2 to p6, width."""
    c = center(low, high)
    points = chebyshev(mpf(low) - c, mpf(high) - c, FITTED)
    value = float(mp.nint(mp.atan(c) / PLACE)) * PLACE
    # In the first row the error is relative to r.
    weights = [1 / x for x in points] if c == 0 else None
    free = list(range(1, DEGREE + 1))
    every = [mpf(value)] + [mpf(0)] * DEGREE
    values = [mp.atan(c + x) - value for x in points]
    if c == 0:
        free.remove(2)

    for n, v in zip(free, fit(points, values, free, weights), strict=True):
        every[n] = v
    round_in_turn(every, [n for n in free if n > 1], free, points, values, weights)
    slope = single(every[1])
    slope_low = single(every[1] - slope)
    every[1] = mpf(slope) + slope_low
    # Four roundings of the terms from r^3 on.
    width = 0.0
    for x in chebyshev(mpf(low) - c, mpf(high) - c, LOOKED_AT):
        wrong = abs(sum(v * x**n for n, v in enumerate(every)) - mp.atan(c + x))
        cubic = sum(abs(every[n] * x**n) for n in range(3, DEGREE + 1))
        width = max(width, float((wrong + 4 * UNIT * cubic) / (x**2 + PART * (c + x))))
    step = 2.0 ** (math.floor(math.log2(width)) - 4)
    width = math.ceil(MARGIN * width / step) * step
    return (c, value, slope, slope_low, *(single(v) for v in every[2:]), width)


def text() -> str:
    """Return the header."""
    ends = [0.0, *((n + 0.5) / SCALE for n in range(ROWS))]
    columns = zip(*(row(*ends[n : n + 2]) for n in range(ROWS)), strict=True)
    names = ["center", "value", "slope", "slope_low", "p2", "p3", "p4", "p5", "p6", "width"]
    half_pi = single(mp.pi / 2)
    lines = [
        f"#define UDF_ATAN_EIGHT_SCALE {SCALE.hex()}f",
        f"#define UDF_ATAN_EIGHT_PART {PART.hex()}f",
        f"#define UDF_ATAN_EIGHT_HALF_PI {half_pi.hex()}f",
        f"#define UDF_ATAN_EIGHT_HALF_PI_LOW {single(mp.pi / 2 - half_pi).hex()}f",
        *tables("udf_atan_eight", dict(zip(names, map(list, columns), strict=True))),
    ]
    return header(__file__, "UDF_ATAN_EIGHT_CONSTANTS_H", lines)


if __name__ == "__main__":
    print(text())
