# SPDX-License-Identifier: Apache-2.0
"""Write constants.h of the float64 log, and bound what the constants leave out.

    python udfs/corem-d/log/generate.py

mpmath computes the constants. The polynomial interpolates at Chebyshev nodes; its error is bounded
by the sum of the Chebyshev coefficients of its difference from a longer Taylor polynomial.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import mpmath
import numpy as np
from mpmath import mpf

mpmath.mp.prec = 400
HEADER: Final = Path(__file__).with_name("constants.h")

#: Intervals of the table.
STEPS: Final = 16
#: The smallest significand m of the reduction; the largest is below twice that. 1 lies in an
#: interval that begins at 1 - 2^-6 and ends at 1 + 2^-5.
START: Final = 0.703125
#: Most bits of a reciprocal after the point. m c - 1 is then a multiple of 2^-58, or of 2^-59 where
#: m < 1, and a double if it is small enough: exactly().
RECIPROCAL_BITS: Final = 6
#: Coefficients of the polynomial of the fast path.
TERMS: Final = 9
#: Bits of log(2)'s high part after the point: its products with the exponents are exact.
LN2_BITS: Final = 42
#: The same of the quick path; its logarithms of the table are multiples of 2^-QUICK_BITS too.
QUICK_BITS: Final = 43
#: Terms of the accurate path's polynomial.
SERIES: Final = 26
#: The accurate path adds up in units of 2^-UNIT.
UNIT: Final = 181


@dataclass(frozen=True)
class Step:
    """An interval of significands, its reciprocal c, and the ends of r = m c - 1 in it."""

    first: float
    end: float
    c: float

    @property
    def radius(self) -> float:
        """The largest |r|, exact."""
        return max(abs(self.first * self.c - 1), abs(self.end * self.c - 1))

    @property
    def exactly(self) -> bool:
        """Whether every r is a double."""
        c_bits = next(n for n in range(53) if float(self.c * 2**n).is_integer())
        m_bits = 53 if self.first < 1 else 52
        if self.c == 1:
            return True
        return self.radius <= 2.0 ** (53 - m_bits - c_bits)


def edges() -> list[float]:
    """Return the ends of the intervals; their encodings are evenly spaced."""
    first = int(np.float64(START).view(np.uint64))
    ends = first + (np.arange(STEPS + 1, dtype=np.uint64) << np.uint64(52)) // np.uint64(STEPS)
    return [float(v) for v in ends.astype(np.uint64).view(np.float64)]


def steps() -> list[Step]:
    """Return the intervals in the order of their index, with the reciprocals that serve best."""
    ends = edges()
    found = []
    for first, end in pairwise(ends):
        if first < 1 < end:
            found.append(Step(first, end, 1.0))
            continue
        candidates = [Step(first, end, n / 2**RECIPROCAL_BITS) for n in range(40, 100)]
        found.append(min((s for s in candidates if s.exactly), key=lambda s: s.radius))
    return found


#: Largest |r|.
RADIUS: Final = max(mpf(s.radius) for s in steps())
#: q(r) = 1/3 - r/4 + ..., what comes after it below 2^-200.
TAYLOR: Final = [mpf(-1) ** n / (n + 3) for n in range(40)]


def nearest(value: mpf) -> float:
    """Return the nearest double."""
    return float(mpmath.mpf(value))


def cubic_factor(radius: mpf = RADIUS, terms: int = TERMS) -> list[float]:
    """Return q with log(1 + r) = r - r^2/2 + r^3 q(r): doubles, the constant term first."""
    nodes = [radius * mpmath.cos((2 * i + 1) * mpmath.pi / (2 * terms)) for i in range(terms)]
    rows = mpmath.matrix([[x**power for power in range(terms)] for x in nodes])
    values = mpmath.matrix([np.polynomial.polynomial.polyval(x, TAYLOR) for x in nodes])
    return [nearest(c) for c in mpmath.lu_solve(rows, values)]


def polynomial_error(coefficients: list[float], radius: mpf = RADIUS) -> mpf:
    """Return a bound of |q(r) - coefficients(r)| over |r| <= radius."""
    length = len(TAYLOR)
    difference = TAYLOR.copy()
    for power, c in enumerate(coefficients):
        difference[power] -= mpf(c)
    # Powers of t = r / radius in Chebyshev polynomials, which are at most 1.
    total = [mpf(0)] * length
    power_of_t = [mpf(1)] + [mpf(0)] * length
    for n in range(length):
        for i, share in enumerate(power_of_t[:length]):
            total[i] += difference[n] * radius**n * share
        shifted = [mpf(0)] * (length + 1)
        for i, share in enumerate(power_of_t[:length]):
            if i == 0:
                shifted[1] += share
            else:
                shifted[i - 1] += share / 2
                shifted[i + 1] += share / 2
        power_of_t = shifted
    return sum(abs(c) for c in total) + 2 * radius**length / (length + 3)


def split(whole: mpf) -> tuple[float, float, float]:
    """Return three floats whose sum is nearly a number; the sum of the first two is a double."""
    if not whole:
        return 0.0, 0.0, 0.0
    high = float(np.float32(nearest(whole)))
    place = mpf(2) ** (int(np.frexp(high)[1]) - 49)
    low = float(np.float32(nearest(mpmath.nint((whole - mpf(high)) / place) * place)))
    assert mpf(high) + mpf(low) == mpf(high + low)
    return high, low, float(np.float32(nearest(whole - mpf(high) - mpf(low))))


def quick_split(whole: mpf) -> tuple[float, float, float]:
    """Return three floats whose sum is nearly a number; the first two are multiples of a power."""
    fixed = mpmath.ldexp(mpmath.nint(mpmath.ldexp(whole, QUICK_BITS)), -QUICK_BITS)
    high = float(np.float32(nearest(fixed)))
    low = float(np.float32(nearest(fixed - mpf(high))))
    assert mpf(high) + mpf(low) == fixed
    return high, low, float(np.float32(nearest(whole - fixed)))


def ln2_parts(bits: int = LN2_BITS) -> tuple[float, float]:
    """Return log(2) in two doubles, the first with so many bits after the point."""
    ln2 = mpmath.log(2)
    high = nearest(mpmath.ldexp(mpmath.nint(mpmath.ldexp(ln2, bits)), -bits))
    return high, nearest(ln2 - mpf(high))


def words(value: mpf, bits: int, count: int) -> list[int]:
    """Return floor(value 2^bits + 1/2) in words of 64 bits, modulo 2^(64 count), highest first."""
    whole = int(mpmath.floor(mpmath.ldexp(value, bits) + mpf(1) / 2)) % (1 << 64 * count)
    return [whole >> 64 * i & (1 << 64) - 1 for i in reversed(range(count))]


def array(kind: str, name: str, values: list[str]) -> list[str]:
    """Return the lines of a constant table."""
    return [f"static const {kind} {name}[] = {{", *(f"    {v}," for v in values), "};"]


def tables(name: str, logarithms: Iterable[tuple[float, float, float]]) -> list[str]:
    """Return the lines of three tables, with a part of each logarithm."""
    columns = zip(*logarithms, strict=True)
    return [
        line
        for part, column in zip(("high", "low", "rest"), columns, strict=True)
        for line in array("float", f"{name}_{part}", [f"{v.hex()}f" for v in column])
    ]


def two(value: mpf, bits: int) -> str:
    """Return a constant of 128 bits as a C expression."""
    high, low = words(value, bits, 2)
    return f"UDF_WORDS(0x{high:016x}, 0x{low:016x})"


def three(value: mpf, unit: int = UNIT) -> str:
    """Return a number in units of 2^-unit as an initialiser of udf_log_sum."""
    high, middle, low = words(value, unit, 3)
    return f"{{UDF_WORDS(0x{high:016x}, 0x{middle:016x}), UINT64_C(0x{low:016x})}}"


def lines() -> list[str]:
    """Return the lines of the header."""
    coefficients = cubic_factor()
    table = steps()
    logarithms = [-mpmath.log(mpf(s.c)) for s in table]
    high, low = ln2_parts()
    quick_high, quick_low = ln2_parts(QUICK_BITS)
    error = mpmath.log(polynomial_error(coefficients), 2)
    return [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Generated by generate.py; do not edit.",
        "// clang-format off",
        "#ifndef UDF_LOG_D_CONSTANTS_H",
        "#define UDF_LOG_D_CONSTANTS_H",
        f"// |r| <= 2^{mpmath.nstr(mpmath.log(RADIUS, 2), 5)}; "
        f"q(r): error < 2^{mpmath.nstr(error, 5)}.",
        f"#define LOG_STEPS {STEPS}",
        f"#define LOG_STEP_SHIFT {52 - STEPS.bit_length() + 1}",
        f"#define LOG_START UINT64_C(0x{int(np.float64(START).view(np.uint64)):016x})",
        f"#define LOG_LN2_HI {high.hex()}",
        f"#define LOG_LN2_LO {low.hex()}",
        f"#define LOG_LN2_QUICK_HI {quick_high.hex()}",
        f"#define LOG_LN2_QUICK_LO {quick_low.hex()}",
        *(f"#define LOG_Q{i} {value.hex()}" for i, value in enumerate(coefficients)),
        *array("float", "udf_log_reciprocal", [f"{s.c.hex()}f" for s in table]),
        *tables("udf_log", map(split, logarithms)),
        *tables("udf_log_quick", map(quick_split, logarithms)),
        f"// log(2), and what the table gives of -log(c), in units of 2^-{UNIT}.",
        f"static const udf_log_sum udf_log_ln2 = {three(mpmath.log(2))};",
        *array("udf_log_sum", "udf_log_exact", [three(v) for v in logarithms]),
        f"// 1/{SERIES}, ..., 1/2, 1 in units of 2^-127.",
        *array("udf_u128", "udf_log_inverse",
               [two(mpf(1) / n, 127) for n in range(SERIES, 0, -1)]),
        "#endif // UDF_LOG_D_CONSTANTS_H",
    ]  # fmt: skip


if __name__ == "__main__":
    HEADER.write_text("\n".join(lines()) + "\n", encoding="utf-8")
