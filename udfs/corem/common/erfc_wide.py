# SPDX-License-Identifier: Apache-2.0
"""Write the tables of erfcf_wide.c.

    python udfs/corem/common/erfc_wide.py > udfs/corem/erfc/wide_constants.h

SLOPE x - CURVE x^2, rounded to an integer, numbers 32 intervals. Around the center c of one,
log(erfc(c + r)) is a polynomial in r. The center is chosen, as odd_quick.py does, so that the
coefficient of r^2 is a float but for an error that does not count. What the roundings of the
others take away, the lower ones make up for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mpmath
from intervals import chebyshev, fit, header, round_in_turn, single, tables
from mpmath import mp, mpf

mp.prec = 150

STEPS = 32
DEGREE = 7
SLOPE = 3.1796875
CURVE = 0.150390625
#: Arguments below the first are taken for it; the result is 2. From the second on, where results
#: are subnormal, all are hard; it ends the last interval but one.
FIRST, LAST = -3.84375, 9.1875
#: The step of the exponential, as exp_quick.h has it at AVX-512.
STEP = mp.log(2) / 32
#: What is left of the value at a center; the larger it is, the more its roundings count.
SMALL = 2.0**-13
#: Points to which the coefficients are fitted.
FITTED = 20
#: Centers that are tried.
CANDIDATES = 3000
#: The share of an interval, around its middle, in which its center is looked for.
SHARE = 0.2
#: Added to r where it multiplies the terms from r^3 on. In the interval of 0, whose center is 0 so
#: that the difference is exact, it makes the coefficient of r^2 a float.
SHIFT = 2.0**-22
#: Half of the width of the rounding test, and the part of it that exp_quick.h adds already.
MARGIN = 2.0**-35
EXP_MARGIN = 6 * 2.0**-38


def log_erfc(x: mpf) -> mpf:
    """Return what the tables hold."""
    return mp.log(mpmath.erfc(x))


def end(number: int) -> float:
    """Return the largest argument of an interval."""
    return (SLOPE - math.sqrt(SLOPE**2 - 4 * CURVE * (number + 0.5))) / (2 * CURVE)


@dataclass(frozen=True)
class Row:
    """The entries of one interval; log(erfc(center)) is steps, value and rest."""

    center: float
    steps: int
    value: float
    rest: float
    slope: float
    slope_low: float
    p: tuple[float, ...]


def term(x: mpf, n: int) -> mpf:
    """Return what the entry numbered n multiplies."""
    return x**n if n < 3 else x ** (n - 1) * (x + SHIFT)


def shifted(polynomial: list[mpf], c: mpf) -> list[mpf]:
    """Return the coefficients in x - c of a polynomial in x."""
    found = list(polynomial)
    for i in range(len(found)):
        for j in range(len(found) - 2, i - 1, -1):
            found[j] += c * found[j + 1]
    return found


def candidates(low: float, high: float) -> tuple[list[float], bool]:
    """Return centers to try, and whether erfc is near a step of the exponential at them."""
    middle, half = (low + high) / 2, (high - low) / 2
    if low < 0 < high:
        return [0.0], True
    # The difference to the center must be exact, and the center a float.
    unit = 2.0 ** (math.floor(math.log2(max(abs(low), abs(high)))) - 23)
    ends = [middle - SHARE * half, middle + SHARE * half]
    last, first = (log_erfc(mpf(x)) / STEP for x in ends)
    found = []
    whole = range(int(mp.ceil(first)), int(mp.floor(last)) + 1)
    for n in whole:
        root = mp.findroot(lambda x, n=n: log_erfc(x) - n * STEP, ends, solver="anderson")
        count = CANDIDATES // len(whole)
        width = SMALL / abs(mp.diff(log_erfc, root)) / count
        found += [root + width * (i - count / 2) for i in range(count)]
    if not whole:
        found = [ends[0] + (ends[1] - ends[0]) * i / CANDIDATES for i in range(CANDIDATES)]
    return [round(float(c) / unit) * unit for c in found], bool(whole)


def center(low: float, high: float) -> tuple[float, bool]:
    """Return the center whose coefficient of r^2 is nearest to a float."""
    middle = (mpf(low) + high) / 2
    points = chebyshev(low - middle, high - middle, FITTED)
    values = [log_erfc(middle + x) for x in points]
    polynomial = fit(points, values, range(DEGREE + 1), term=term)
    for n in range(3, DEGREE + 1):
        polynomial[n - 1] += polynomial[n] * SHIFT

    def lost(c: float) -> float:
        _, _, p2, p3, *_ = shifted(polynomial, c - middle)
        p2 -= p3 * SHIFT
        return abs(float(p2 - single(p2)))

    found, near = candidates(low, high)
    return min(found, key=lost), near


def row(low: float, high: float) -> Row:
    """Return the entries of an interval."""
    c, near = center(low, high)
    points = chebyshev(mpf(low) - c, mpf(high) - c, FITTED)
    values = [log_erfc(c + x) for x in points]
    free = list(range(DEGREE + 1))
    every = fit(points, values, free, term=term)
    round_in_turn(every, range(2, DEGREE + 1), free, points, values, term=term)
    value, slope, *p = every
    steps = int(mp.nint(value / STEP))
    high_part = 0.0
    if not near:
        # It differs from its sum with the next terms by a float if that is no less than its half.
        most = max(abs(log_erfc(mpf(x)) - value) for x in (low, high))
        steps = next(n for n in range(steps, steps + 8) if n * STEP - value > 2.125 * most)
        high_part = single(value - steps * STEP)
    rest = value - steps * STEP - high_part + MARGIN - EXP_MARGIN
    return Row(
        c,
        steps,
        high_part,
        single(rest),
        single(slope),
        single(slope - single(slope)),
        tuple(map(single, p)),
    )


def rows() -> dict[int, Row]:
    """Return the entries by their places in the tables."""
    first = round(SLOPE * FIRST - CURVE * FIRST**2)
    found = {}
    for number in range(first, first + STEPS - 1):
        low = max(FIRST, end(number - 1))
        found[number % STEPS] = row(low, end(number))
    return found


def text() -> str:
    """Return the header."""
    found = rows()
    hard = Row(0.0, 0, 0.0, math.nan, 0.0, 0.0, (0.0,) * (DEGREE - 1))
    every = [found.get(i, hard) for i in range(STEPS)]
    columns = {
        "center": [r.center for r in every],
        "slope": [r.slope for r in every],
        "slope_low": [r.slope_low for r in every],
        **{f"p{n + 2}": [r.p[n] for r in every] for n in range(DEGREE - 1)},
        # What rounds to an integer, plus the steps.
        "steps": [1.5 * 2**23 + r.steps for r in every],
        "value": [r.value for r in every],
        "rest": [r.rest for r in every],
    }
    lines = [
        f"#define UDF_ERFC_WIDE_FIRST {FIRST.hex()}f",
        f"#define UDF_ERFC_WIDE_SLOPE {SLOPE.hex()}f",
        f"#define UDF_ERFC_WIDE_CURVE {CURVE.hex()}f",
        f"#define UDF_ERFC_WIDE_SHIFT {SHIFT.hex()}f",
        "// Twice the margin; negative.",
        f"#define UDF_ERFC_WIDE_WIDTH {single(-2 * MARGIN).hex()}f",
        *tables("udf_erfc_wide", columns),
    ]
    made = header(__file__, "UDF_ERFC_WIDE_CONSTANTS_H", lines)
    return made.replace("    nanf,", '    __builtin_nanf(""),')


if __name__ == "__main__":
    print(text())
