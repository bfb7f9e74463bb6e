# SPDX-License-Identifier: Apache-2.0
"""Write the tables of erfcf_eight.c.

    python udfs/corem/common/erfc_eight.py > udfs/corem/erfc/eight_constants.h

SLOPE a - CURVE a^2, rounded to an integer, numbers eight intervals of a = |x|. Around the center c
of one, log(erfc(c + d)) is a polynomial in d. The center is such that erfc(c) is nearly a step of
the exponential, and, of many such, that with a coefficient of d^2 nearest to a float. What the
roundings of the coefficients take away, the others make up for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mpmath
import numpy as np
from intervals import chebyshev, fit, header, round_in_turn, single, tables
from mpmath import mp, mpf
from odd_eight import Numbering

mp.prec = 150

STEPS = 8
DEGREE = 8
#: How an argument leads to its interval, and the end of the last one.
NUMBERING = Numbering(1.53125, 0.07177734375, 7.609375)
#: The step of the exponential, as exp_eight.h has it.
STEP = mp.log(2) / 8
#: What is left of the value at a center; the larger it is, the more its roundings count.
SMALL = 2.0**-15
#: Points to which the coefficients are fitted.
FITTED = 24
#: The share of an interval, around its middle, in which its center is looked for.
SHARE = 0.12
#: Half of the width of the rounding test.
MARGIN = 2.0**-35


def log_erfc(x: mpf) -> mpf:
    """Return what the tables hold."""
    return mp.log(mpmath.erfc(x))


@dataclass(frozen=True)
class Row:
    """The entries of one interval; log(erfc(center)) is steps and rest."""

    center: float
    steps: int
    rest: float
    slope: float
    slope_low: float
    p: tuple[float, ...]


def candidates(low: float, high: float) -> np.ndarray:
    """Return the centers at which erfc is near a step of the exponential."""
    middle, half = (low + high) / 2, (high - low) / 2
    # The difference to the center must be exact.
    unit = 2.0 ** (math.floor(math.log2(high)) - 23)
    ends = [middle - SHARE * half, middle + SHARE * half]
    last, first = (log_erfc(mpf(x)) / STEP for x in ends)
    found = []
    for n in range(int(mp.ceil(first)), int(mp.floor(last)) + 1):
        root = mp.findroot(lambda x, n=n: log_erfc(x) - n * STEP, ends, solver="anderson")
        count = int(SMALL / abs(mp.diff(log_erfc, root)) / unit)
        found.append(round(float(root) / unit) + np.arange(-count, count + 1))
    return np.concatenate(found) * unit


def center(low: float, high: float) -> float:
    """Return the center whose coefficient of d^2 is nearest to a float."""
    if low == 0:
        return 0.0
    middle = (mpf(low) + high) / 2
    points = chebyshev(low - middle, high - middle, FITTED)
    polynomial = fit(points, [log_erfc(middle + x) for x in points], range(DEGREE + 1))
    every = candidates(low, high)
    derivative = [math.comb(k, 2) * float(polynomial[k]) for k in range(2, DEGREE + 1)]
    p2 = np.polynomial.polynomial.polyval(every - float(middle), derivative)
    return float(every[np.argmin(np.abs(p2 - p2.astype(np.float32)))])


def row(low: float, high: float) -> Row:
    """Return the entries of an interval."""
    c = center(low, high)
    points = chebyshev(mpf(low) - c, mpf(high) - c, FITTED)
    values = [log_erfc(c + x) for x in points]
    free = list(range(DEGREE + 1))
    every = fit(points, values, free)
    round_in_turn(every, range(2, DEGREE + 1), free, points, values)
    value, slope, *p = every
    steps = int(mp.nint(value / STEP))
    return Row(
        c,
        steps,
        single(mp.expm1(value - steps * STEP + MARGIN)),
        single(slope) / 2,
        single(slope - single(slope)) / 2,
        tuple(single(v) / 2 for v in p),
    )


def text() -> str:
    """Return the header."""
    ends = [0.0, *(min(NUMBERING.end, NUMBERING.last(n)) for n in range(STEPS))]
    every = [row(*ends[i : i + 2]) for i in range(STEPS)]
    columns = {
        "center": [r.center for r in every],
        "slope": [r.slope for r in every],
        "slope_low": [r.slope_low for r in every],
        **{f"p{n + 2}": [r.p[n] for r in every] for n in range(DEGREE - 1)},
        # What rounds to an integer, plus the steps.
        "steps": [1.5 * 2**23 + r.steps for r in every],
        "rest": [r.rest for r in every],
    }
    lines = [
        f"#define UDF_ERFC_EIGHT_SLOPE {NUMBERING.slope.hex()}f",
        f"#define UDF_ERFC_EIGHT_CURVE {NUMBERING.curve.hex()}f",
        "// Twice the margin; negative.",
        f"#define UDF_ERFC_EIGHT_WIDTH {single(-2 * MARGIN).hex()}f",
        *tables("udf_erfc_eight", columns),
    ]
    return header(__file__, "UDF_ERFC_EIGHT_CONSTANTS_H", lines)


if __name__ == "__main__":
    print(text())
