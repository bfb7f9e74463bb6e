# SPDX-License-Identifier: Apache-2.0
"""Write the constants of trig_wide.h.

    python udfs/corem/common/trig_wide.py > trig_wide_constants.h
    python udfs/corem/common/trig_wide.py --keep udfs/corem/common/trig_wide_constants.h

The first form takes minutes; the second keeps the shifts and the cosines that another run found.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import mpmath
import numpy as np
from mpmath import mpf

mpmath.mp.prec = 200

#: Intervals to half a circle.
STEPS = 32
HALF = STEPS // 2
#: The largest remainder, with a shift.
RADIUS = mpf("0.04912")
#: A shift is a multiple of this, and at most COUNT times as much.
GRID = mpf(2) ** -38
#: The same for the odd multiples of pi/4, where sine and cosine change by the same amount.
COARSE = mpf(2) ** -36
COUNT = 2**24
#: Units of the sum that gives the number of the interval: its last bit is one.
UNIT = mpf(2) ** -22
#: Errors of tan(r), as a part of the terms from r^3 on.
ROUNDINGS = mpf(2) ** mpf("-22.7")


def single(value: mpf) -> mpf:
    """Return the nearest float."""
    with mpmath.workprec(24):
        return +value


def shift(number: int) -> mpf:
    """Return the shift of an interval for which sine and cosine are nearly floats."""
    if number % HALF == 0:
        return mpf(0)
    grid = COARSE if number % HALF == HALF // 2 else GRID
    multiples = np.arange(-COUNT, COUNT + 1)
    offsets = multiples * float(grid)
    center = number * mpmath.pi / STEPS
    sine, cosine = (float(f(center)) for f in (mpmath.sin, mpmath.cos))
    changes = offsets - offsets**3 / 6
    sines = sine + (cosine * changes - sine * offsets**2 / 2)
    cosines = cosine - (sine * changes + cosine * offsets**2 / 2)
    errors = abs(sines - sines.astype(np.float32)) + float(RADIUS) * abs(
        cosines - cosines.astype(np.float32)
    )
    return int(multiples[errors.argmin()]) * grid


def cosine_of_quotient(number: int) -> mpf:
    """Return a float near cos(c) whose product with tan(c) is nearly a float."""
    if number % HALF == 0:
        return mpf(number == 0)
    center = number * mpmath.pi / STEPS
    cosine = single(mpmath.cos(center))
    unit, sine_unit = (
        mpf(2) ** (mpmath.frexp(f(center))[1] - 24) for f in (mpmath.cos, mpmath.sin)
    )
    ratio = abs(mpmath.tan(center)) * unit / sine_unit
    # Sines as multiples of 2^-64 units; what is above a unit overflows.
    multiples = np.arange(2**23, int(abs(cosine) / unit), dtype=np.uint64)
    parts = multiples * np.uint64(int(ratio * 2**64) % 2**64)
    errors = np.minimum(parts, -parts) / multiples
    return mpmath.sign(cosine) * int(multiples[errors.argmin()]) * unit


def fit(target: Callable[[mpf], mpf], powers: Sequence[int], points: int = 40) -> list[mpf]:
    """Return rounded coefficients of powers that have the least squares of errors."""
    free, found = list(powers), {}
    nodes = [RADIUS * mpmath.cos(mpmath.pi * (2 * i + 1) / (4 * points)) for i in range(points)]
    values = [target(x) for x in nodes]
    while free:
        rows = mpmath.matrix([[x**n for n in free] for x in nodes])
        solved = mpmath.lu_solve(rows, mpmath.matrix(values))
        n = free.pop(0)
        found[n] = single(solved[0])
        values = [v - found[n] * x**n for v, x in zip(values, nodes, strict=True)]
    return [found[n] for n in powers]


def text_of(value: mpf) -> str:
    """Return a literal."""
    return float(value).hex() + "f"


def table(name: str, values: Sequence[mpf], negative_zero: bool = False) -> str:
    """Return the definition of a table."""
    literals = [text_of(-0.0 if negative_zero and v == 0 else v) for v in values]
    rows = ["    " + " ".join(v + "," for v in literals[i : i + 4]) for i in range(0, STEPS, 4)]
    return "\n".join([f"static const float {name}[] = {{", *rows, "};"])


def width_of_tangent(number: int) -> mpf:
    """Return the width of the rounding test of tan, relative to the result."""
    center = number * mpmath.pi / STEPS
    error = RADIUS**3 / 3 * ROUNDINGS
    if number % HALF == 0:
        return single(RADIUS**2 / 3 * ROUNDINGS)
    least = min(abs(mpmath.sin(2 * (center + r))) / 2 for r in (-RADIUS, mpf(0), RADIUS))
    return single(error / least)


def text(shifts: Sequence[mpf], cosines: Sequence[mpf]) -> str:
    """Return the header."""
    centers = [n * mpmath.pi / STEPS for n in range(STEPS)]
    moved = [c + d for c, d in zip(centers, shifts, strict=True)]
    sines = [
        single(c * mpmath.tan(x)) if n % HALF else mpf(n > 0)
        for n, (c, x) in enumerate(zip(cosines, centers, strict=True))
    ]
    step = mpmath.pi / STEPS
    high = single(step)
    low = single(step - high)
    # For tan the rest is positive, so that zero keeps its sign.
    below = high - mpf(2) ** -27
    middle = round((step - below) * mpf(2) ** 37) * mpf(2) ** -37
    sine = fit(lambda x: mpmath.sin(x) - x, (3, 5))
    cosine = fit(lambda x: mpmath.cos(x) - 1 + x**2 / 2, (4,))
    tangent = fit(lambda x: mpmath.tan(x) - x, (3, 5))
    constants = {
        "INVERSE": single(UNIT / step),
        "HIGH": high / UNIT,
        "LOW": low / UNIT,
        "TAN_HIGH": below / UNIT,
        "TAN_MIDDLE": middle / UNIT,
        "TAN_LOW": single(step - below - middle) / UNIT,
        "C3": single(sine[0] + 2 * cosine[0]),
        "C5": sine[1],
        "T4": single(-2 * cosine[0]),
        "TAN3": tangent[0],
        "TAN5": tangent[1],
    }
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Generated by trig_wide.py; do not edit.",
        "// clang-format off",
        "#ifndef UDF_TRIG_WIDE_CONSTANTS_H",
        "#define UDF_TRIG_WIDE_CONSTANTS_H",
        f"#define UDF_TRIG_WIDE_STEPS {STEPS}",
        *(f"#define UDF_TRIG_WIDE_{n} {text_of(v)}" for n, v in constants.items()),
        table("udf_trig_wide_shift", shifts),
        table("udf_trig_wide_sin", [single(mpmath.sin(x)) for x in moved], negative_zero=True),
        table(
            "udf_trig_wide_cos",
            [single(mpmath.cos(x)) if n != HALF else mpf(0) for n, x in enumerate(moved)],
        ),
        table("udf_trig_wide_half", [-single(mpmath.sin(x)) / 2 for x in moved]),
        table("udf_trig_wide_tan_sin", sines, negative_zero=True),
        table("udf_trig_wide_tan_cos", cosines),
        table("udf_trig_wide_tan_width", [width_of_tangent(n) for n in range(STEPS)]),
        "#endif // UDF_TRIG_WIDE_CONSTANTS_H",
    ]
    return "\n".join(lines)


def kept(header: str, name: str) -> list[mpf]:
    """Return a table of a header."""
    [body] = re.findall(name + r"\[\] = {(.*?)};", header, re.DOTALL)
    return [mpf(float.fromhex(v)) for v in re.findall(r"(-?0x\S+)f,", body)]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="header whose shifts and cosines are kept")
    options = parser.parse_args()
    if options.keep:
        header = options.keep.read_text(encoding="utf-8")
        print(text(kept(header, "wide_shift"), kept(header, "tan_cos")))
    else:
        numbers = range(STEPS)
        print(text([shift(n) for n in numbers], [cosine_of_quotient(n) for n in numbers]))


if __name__ == "__main__":
    main()
