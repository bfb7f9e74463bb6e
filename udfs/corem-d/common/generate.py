# SPDX-License-Identifier: Apache-2.0
"""Write trig_constants.h of the float64 sin and cos, and bound what the constants leave out.

    python udfs/corem-d/common/generate.py

mpmath computes the constants. The polynomials interpolate at Chebyshev nodes of z = r^2; their
errors are bounded by the sum of the Chebyshev coefficients of the difference from longer series.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import mpmath
import numpy as np
from mpmath import mpf

mpmath.mp.prec = 1600
HEADER: Final = Path(__file__).with_name("trig_constants.h")

#: Steps of the tables to pi.
STEPS: Final = 16
#: The fast path takes arguments up to that.
LIMIT: Final = 2.0**23
#: Largest |r|: half a step, and what rounding x / step may add.
RADIUS: Final = mpmath.pi / (2 * STEPS) * (1 + mpf(2) ** -24)
#: Bits of the second part of a step: its products with n < 2^26 are exact.
MIDDLE_BITS: Final = 27
#: Coefficients of the polynomials of the quick path: sin(r) = r + r^3 s(z) and
#: cos(r) = 1 - z/2 + z^2 c(z).
TERMS: Final = {"sin": 5, "cos": 4}
#: Coefficients of f in the fast path: sin(r) = r - r^3/6 + r^5 f(z).
FIFTH_TERMS: Final = 5
#: The same functions' series.
SERIES: Final = {
    "sin": [mpf(-1) ** (n + 1) / mpmath.factorial(2 * n + 3) for n in range(20)],
    "cos": [mpf(-1) ** n / mpmath.factorial(2 * n + 4) for n in range(20)],
}
SERIES["fifth"] = SERIES["sin"][1:]
#: Coefficients of the accurate path's series, 1/(2n+1)! and 1/(2n)!.
LONG_TERMS: Final = 23
#: Words of 2/pi: bits before the last exponent of a double, 320 that a window holds, and one word.
WORDS: Final = 23


def nearest(value: mpf) -> float:
    """Return the nearest double."""
    return float(mpmath.mpf(value))


def coefficients(name: str, count: int) -> list[float]:
    """Return a polynomial in z, the constant term first, as doubles."""
    middle = RADIUS**2 / 2
    nodes = [middle * (1 + mpmath.cos((2 * i + 1) * mpmath.pi / (2 * count))) for i in range(count)]
    rows = mpmath.matrix([[z**power for power in range(count)] for z in nodes])
    values = mpmath.matrix([np.polynomial.polynomial.polyval(z, SERIES[name]) for z in nodes])
    return [nearest(c) for c in mpmath.lu_solve(rows, values)]


def polynomial_error(name: str, found: list[float]) -> mpf:
    """Return a bound of the polynomial's error over 0 <= z <= RADIUS^2."""
    length = len(SERIES[name])
    difference = SERIES[name].copy()
    for power, c in enumerate(found):
        difference[power] -= mpf(c)
    # z = middle (1 + t): powers of 1 + t in Chebyshev polynomials of t, which are at most 1.
    middle = RADIUS**2 / 2
    total = [mpf(0)] * length
    power_of_t = [mpf(1)] + [mpf(0)] * length
    for n in range(length):
        for i, share in enumerate(power_of_t[:length]):
            total[i] += difference[n] * middle**n * share
        shifted = [*power_of_t[:length], mpf(0)]
        for i, share in enumerate(power_of_t[:length]):
            if i == 0:
                shifted[1] += share
            else:
                shifted[i - 1] += share / 2
                shifted[i + 1] += share / 2
        power_of_t = shifted
    return sum(abs(c) for c in total) + 2 * abs(SERIES[name][-1]) * RADIUS ** (2 * length)


def table(function: str) -> list[tuple[float, float, float]]:
    """Return three floats for each j, nearly sin or cos(j pi / STEPS); two make a double."""
    found = []
    for j in range(STEPS):
        # Exact where it is 0 or 1.
        whole = mpf(mpmath.nstr(getattr(mpmath, f"{function}pi")(mpf(j) / STEPS), 400))
        high = float(np.float32(nearest(whole)))
        if mpf(high) == whole:
            found.append((high, 0.0, 0.0))
            continue
        place = mpf(2) ** (int(np.frexp(high)[1]) - 49)
        low = float(np.float32(nearest(mpmath.nint((whole - mpf(high)) / place) * place)))
        assert mpf(high) + mpf(low) == mpf(high + low)
        found.append((high, low, float(np.float32(nearest(whole - mpf(high) - mpf(low))))))
    return found


def step_parts() -> tuple[float, float, float]:
    """Return pi / STEPS in three doubles, the second of MIDDLE_BITS bits."""
    step = mpmath.pi / STEPS
    high = nearest(step)
    rest = step - mpf(high)
    place = mpf(2) ** (int(np.frexp(nearest(rest))[1]) - MIDDLE_BITS)
    middle = nearest(mpmath.nint(rest / place) * place)
    return high, middle, nearest(rest - mpf(middle))


def words(value: mpf, bits: int, count: int) -> list[str]:
    """Return floor(value 2^bits) in words of 64 bits, the lowest first, as C expressions."""
    whole = int(mpmath.floor(mpmath.ldexp(value, bits)))
    assert 0 <= whole < 1 << 64 * count
    return [f"UINT64_C(0x{whole >> 64 * i & (1 << 64) - 1:016x})" for i in range(count)]


def wide(value: mpf, bits: int) -> str:
    """Return a number in units of 2^-bits as an initialiser of udf_wide."""
    return "{{" + ", ".join(words(value, bits, 3)) + "}}"


def array(kind: str, name: str, values: list[str]) -> list[str]:
    """Return the lines of a constant table."""
    return [f"static const {kind} {name}[] = {{", *(f"    {v}," for v in values), "};"]


def lines() -> list[str]:
    """Return the lines of the header."""
    high, middle, low = step_parts()
    polynomials = {name: coefficients(name, TERMS[name]) for name in TERMS}
    fifth = coefficients("fifth", FIFTH_TERMS)
    third = nearest(mpf(1) / 3)
    errors = {
        name: mpmath.nstr(mpmath.log(polynomial_error(name, found), 2), 5)
        for name, found in (*polynomials.items(), ("fifth", fifth))
    }
    return [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Generated by generate.py; do not edit.",
        "// clang-format off",
        "#ifndef UDF_TRIG_D_CONSTANTS_H",
        "#define UDF_TRIG_D_CONSTANTS_H",
        f"// |r| <= 2^{mpmath.nstr(mpmath.log(RADIUS, 2), 5)}; s(z): error < 2^{errors['sin']}, "
        f"c(z): 2^{errors['cos']}, f(z): 2^{errors['fifth']}.",
        f"#define TRIG_STEPS {STEPS}",
        f"#define TRIG_LIMIT {LIMIT.hex()}",
        f"#define TRIG_INV_STEP {nearest(STEPS / mpmath.pi).hex()}",
        f"#define TRIG_STEP_HI {high.hex()}",
        f"#define TRIG_STEP_MIDDLE {middle.hex()}",
        f"#define TRIG_STEP_LO {low.hex()}",
        *(
            f"#define TRIG_{name[0].upper()}{i} {value.hex()}"
            for name, found in polynomials.items()
            for i, value in enumerate(found)
        ),
        *(f"#define TRIG_F{i} {value.hex()}" for i, value in enumerate(fifth)),
        "// 1/3 in two doubles.",
        f"#define TRIG_THIRD_HI {third.hex()}",
        f"#define TRIG_THIRD_LO {nearest(mpf(1) / 3 - mpf(third)).hex()}",
        *(
            line
            for function in TERMS
            for part, column in zip(
                ("high", "low", "rest"), zip(*table(function), strict=True), strict=True
            )
            for line in array("float", f"udf_trig_{function}_{part}",
                              [f"{v.hex()}f" for v in column])
        ),
        "// 2/pi after 64 zero bits, the highest word first.",
        *array("uint64_t", "udf_trig_two_over_pi",
               ["UINT64_C(0x0000000000000000)", *words(2 / mpmath.pi, 64 * WORDS, WORDS)[::-1]]),
        "// pi/4 in units of 2^-192.",
        f"static const udf_wide udf_trig_quarter = {wide(mpmath.pi / 4, 192)};",
        "// 1/(2n+1)! and 1/(2n)! in units of 2^-191, the last first.",
        *(
            line
            for function, odd in (("sin", 1), ("cos", 0))
            for line in array(
                "udf_wide", f"udf_trig_{function}_series",
                [wide(1 / mpmath.factorial(2 * n + odd), 191)
                 for n in range(LONG_TERMS - 1, -1, -1)],
            )
        ),
        "#endif // UDF_TRIG_D_CONSTANTS_H",
    ]  # fmt: skip


if __name__ == "__main__":
    HEADER.write_text("\n".join(lines()) + "\n", encoding="utf-8")
