# SPDX-License-Identifier: Apache-2.0
"""Write constants.h of the float64 exp, and bound what the constants leave out.

    python udfs/corem-d/exp/generate.py

mpmath computes the constants. The polynomial interpolates at Chebyshev nodes; its error is bounded
by the sum of the Chebyshev coefficients of its difference from a longer Taylor polynomial.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import mpmath
import numpy as np
from mpmath import mpf

mpmath.mp.prec = 400
HEADER: Final = Path(__file__).with_name("constants.h")

#: Steps of the table to a factor of 2.
STEPS: Final = 16
#: Coefficients of the polynomial.
TERMS: Final = 6
#: Coefficients of the polynomial of the quick path, and the power of r that they are a factor of.
QUICK_TERMS: Final = 6
QUICK_POWER: Final = 2
#: Largest reduced argument: half a step, and what rounding x / step may add.
RADIUS: Final = mpmath.log(2) / (2 * STEPS) * (1 + mpf(2) ** -36)
#: Steps of the accurate path's table to 1.
CUTS: Final = 128
#: The last term of the accurate path's polynomial, r^13 / 13!.
LAST_POWER: Final = 13


def nearest(value: mpf) -> float:
    """Return the nearest double."""
    return float(mpmath.mpf(value))


def factor(after: int = 3, terms: int = TERMS) -> list[float]:
    """Return q with exp(r) = 1 + r + ... + r^after q(r): doubles, the constant term first."""
    nodes = [RADIUS * mpmath.cos((2 * i + 1) * mpmath.pi / (2 * terms)) for i in range(terms)]
    rows = mpmath.matrix([[x**power for power in range(terms)] for x in nodes])
    series = [1 / mpmath.factorial(n + after) for n in range(40)]
    values = mpmath.matrix([np.polynomial.polynomial.polyval(x, series) for x in nodes])
    return [nearest(c) for c in mpmath.lu_solve(rows, values)]


def polynomial_error(coefficients: list[float], after: int = 3) -> mpf:
    """Return a bound of |r^after (q(r) - coefficients(r))| over |r| <= RADIUS."""
    length = 30
    difference = [1 / mpmath.factorial(n + after) for n in range(length)]
    for power, c in enumerate(coefficients):
        difference[power] -= mpf(c)
    # Powers of t = r / RADIUS in Chebyshev polynomials, which are at most 1.
    total = [mpf(0)] * length
    power_of_t = [mpf(1)] + [mpf(0)] * length
    for n in range(length):
        for i, share in enumerate(power_of_t[:length]):
            total[i] += difference[n] * RADIUS**n * share
        shifted = [mpf(0)] * (length + 1)
        for i, share in enumerate(power_of_t[:length]):
            if i == 0:
                shifted[1] += share
            else:
                shifted[i - 1] += share / 2
                shifted[i + 1] += share / 2
        power_of_t = shifted
    rest = 2 * RADIUS**length / mpmath.factorial(length + after)
    return RADIUS**after * (sum(abs(c) for c in total) + rest)


def table() -> list[tuple[np.float32, np.float32, np.float32]]:
    """Return, for each j, two floats whose sum T is near 2^(j/STEPS), and log(2^(j/STEPS) / T)."""
    found = []
    for j in range(STEPS):
        power = mpf(2) ** (mpf(j) / STEPS)
        high = np.float32(nearest(power))
        low = np.float32(nearest(power - mpf(float(high))))
        whole = mpf(float(high)) + mpf(float(low))
        found.append((high, low, np.float32(nearest(mpmath.log(power / whole)))))
    return found


def threshold(value: mpf, *, above: bool) -> float:
    """Return the largest double below log(value), or the smallest above it."""
    near = nearest(mpmath.log(value))
    if (mpf(near) > mpmath.log(value)) == above:
        return near
    return float(np.nextafter(near, np.inf if above else -np.inf))


def words(value: mpf, bits: int) -> str:
    """Return floor(value 2^bits + 1/2), of 128 bits, as a C expression."""
    whole = int(mpmath.floor(mpmath.ldexp(value, bits) + mpf(1) / 2))
    assert 0 <= whole < 1 << 128
    return f"UDF_WORDS(0x{whole >> 64:016x}, 0x{whole & (1 << 64) - 1:016x})"


def array(kind: str, name: str, values: list[str]) -> list[str]:
    """Return the lines of a constant table."""
    return [f"static const {kind} {name}[] = {{", *(f"    {v}," for v in values), "};"]


def scalars() -> dict[str, float]:
    """Return the macros that are doubles."""
    step = mpmath.log(2) / STEPS
    step_high = nearest(step)
    largest = (mpf(2) - mpf(2) ** -53) * mpf(2) ** 1023
    return {
        "INV_STEP": nearest(1 / step),
        "STEP_HI": step_high,
        "STEP_LO": nearest(step - mpf(step_high)),
        "INV_LN2": nearest(1 / mpmath.log(2)),
        "LN2_HI": nearest(mpmath.log(2)),
        "LN2_LO": nearest(mpmath.log(2) - mpf(nearest(mpmath.log(2)))),
        "MAX": threshold(largest, above=False),
        "MIN": threshold(mpf(2) ** -1075, above=True),
        "NORMAL_MIN": threshold(mpf(2) ** -1022, above=True),
    }


def lines() -> list[str]:
    """Return the lines of the header."""
    coefficients = factor()
    quick = factor(QUICK_POWER, QUICK_TERMS)
    quick_error = mpmath.log(polynomial_error(quick, QUICK_POWER), 2)
    ln2 = mpmath.log(2)
    whole = int(mpmath.floor(mpmath.ldexp(ln2, 192) + mpf(1) / 2))
    columns = list(zip(*table(), strict=True))
    return [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Generated by generate.py; do not edit.",
        "// clang-format off",
        "#ifndef UDF_EXP_D_CONSTANTS_H",
        "#define UDF_EXP_D_CONSTANTS_H",
        f"// r^3 q(r): error < 2^{mpmath.nstr(mpmath.log(polynomial_error(coefficients), 2), 5)}.",
        f"#define EXP_STEPS {STEPS}",
        *(f"#define EXP_{name} {value.hex()}" for name, value in scalars().items()),
        *(f"#define EXP_Q{i} {value.hex()}" for i, value in enumerate(coefficients)),
        f"// r^2 p(r): error < 2^{mpmath.nstr(quick_error, 5)}.",
        *(f"#define EXP_P{i} {value.hex()}" for i, value in enumerate(quick)),
        *(
            line
            for name, column in zip(("high", "low", "rest"), columns, strict=True)
            for line in array("float", f"udf_exp_{name}", [f"{float(v).hex()}f" for v in column])
        ),
        "// ln(2) in units of 2^-128, and what is left of it in units of 2^-192.",
        f"#define EXP_LN2_WORDS UDF_WORDS(0x{whole >> 128:016x}, "
        f"0x{whole >> 64 & (1 << 64) - 1:016x})",
        f"#define EXP_LN2_REST UINT64_C(0x{whole & (1 << 64) - 1:016x})",
        f"#define EXP_CUTS {CUTS}",
        "// exp(i / EXP_CUTS) in units of 2^-127.",
        *array(
            "udf_u128",
            "udf_exp_cut",
            [words(mpmath.exp(mpf(i) / CUTS), 127) for i in range(int(ln2 * CUTS) + 1)],
        ),
        f"// 1/{LAST_POWER}!, ..., 1/2! in units of 2^-128.",
        *array(
            "udf_u128",
            "udf_exp_inverse_factorial",
            [words(1 / mpmath.factorial(n), 128) for n in range(LAST_POWER, 1, -1)],
        ),
        "#endif // UDF_EXP_D_CONSTANTS_H",
    ]


if __name__ == "__main__":
    HEADER.write_text("\n".join(lines()) + "\n", encoding="utf-8")
