# SPDX-License-Identifier: Apache-2.0
"""Write the tables of erfcf_wide.c.

    python udfs/corem/erfc/wide.py > wide_constants.h
    python udfs/corem/erfc/wide.py --keep udfs/corem/erfc/wide_constants.h

The first form takes minutes; the second keeps the centers that another run found.

erfc(a) = exp(-a^2) g(a). The tables of g are those of ``common/odd_quick.py``, which looks for
centers where value and p2 are floats; but g is not odd. In the interval of 0 the center is 0, where
value and p2 are 1. The tables of exp are those of ``common/exp_quick.sollya`` for 32 entries, the
first as encodings from which 2^18 an entry is taken.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import mpmath
import numpy as np
from mpmath import mp, mpf

sys.path.insert(0, str(Path(__file__).parents[1] / "common"))
from odd_quick import BIAS, OCTAVES, Function, Interval, Row, chebyshev, fit, single, table

STEPS = 8
DEGREE = 6
POINTS = 24
#: b = SCALE a + ORIGIN numbers the intervals of [0, END].
SCALE, ORIGIN = 1.9921875, 1.03125
END = 7.5
#: Entries of exp's tables.
J = 32
#: The width of the rounding test.
WIDTH = 0.625 * 2.0**-32


def g(x: mpf) -> mpf:
    """Return exp(x^2) erfc(x)."""
    return mpmath.exp(mpf(x) ** 2) * mpmath.erfc(mpf(x))


def interpolated(x: np.ndarray) -> np.ndarray:
    """Return g in double, by interpolation over what the arguments span."""
    low, high = float(np.min(x)), float(np.max(x))
    if low == high:
        return np.full_like(x, float(g(mpf(low))), dtype=float)
    n = 16
    nodes = np.cos(np.pi * (2 * np.arange(n) + 1) / (2 * n))
    middle, half = (low + high) / 2, (high - low) / 2
    values = np.array([float(g(mpf(middle) + mpf(half) * float(u))) for u in nodes])
    p = np.polynomial.chebyshev.chebfit(nodes, values, n - 1)
    return np.polynomial.chebyshev.chebval((x - middle) / half, p)


FUNCTION = Function(g, interpolated, END)


@dataclass(frozen=True)
class First(Interval):
    """The interval of 0, whose center is 0."""

    def row(self, center: float | None = None) -> Row:
        """Return the entries; value and p2 are exact."""
        points = chebyshev(0, self.high, self.fitted)
        values = [self.exact(x) - 1 - x**2 for x in points]
        powers = [1, *range(3, self.degree + 1)]
        found = dict(zip(powers, fit(points, values, powers), strict=True))
        return Row.of(0.0, [found.get(n, mpf(1)) for n in range(self.degree + 1)])


def intervals() -> dict[int, Interval]:
    """Return the intervals by their places in the tables."""
    size = OCTAVES * STEPS
    found: dict[int, Interval] = {}
    for i in range(size):
        octave, step = divmod(i, STEPS)
        ends = [2.0**octave * (1 + (step + k) / STEPS) for k in (0, 1)]
        low, high = (max(0.0, (b - ORIGIN) / SCALE) for b in ends)
        if low < END and high > 0:
            kind = First if low == 0 else Interval
            place = (BIAS * STEPS + i) % size
            found[place] = kind(FUNCTION, DEGREE, POINTS, low, min(high, END))
    return found


def encodings() -> list[float]:
    """Return 2^(j/J) rounded, j steps of 2^18 encodings lower."""
    powers = np.array([float(mpf(2) ** (mpf(j) / J)) for j in range(J)], np.float32)
    shifted = powers.view(np.uint32) - (np.arange(J, dtype=np.uint32) << (23 - int(math.log2(J))))
    return [float(v) for v in shifted.view(np.float32)]


def offsets() -> list[float]:
    """Return what the rounding of 2^(j/J) took away, and half of the width."""
    found = []
    for j in range(J):
        exact = mpf(2) ** (mpf(j) / J)
        found.append(single(mp.log(exact / single(exact)) + mpf(WIDTH) / 2))
    return found


def text(kept: Path | None) -> str:
    """Return the header, with the centers that are kept."""
    centers: list[float] = []
    if kept is not None:
        body = kept.read_text(encoding="utf-8").split("udf_erfc_wide_center[] = {")[1]
        entries = body.split("};")[0].split(",")
        centers = [float.fromhex(v.strip().removesuffix("f")) for v in entries if v.strip()]
    every = [Row(0.0, 0.0, 0.0, 0.0, (0.0,) * (DEGREE - 1))] * (OCTAVES * STEPS)
    worst = 0.0
    for place, interval in intervals().items():
        every[place] = interval.row(centers[place] if centers else None)
        worst = max(worst, interval.largest(every[place]))
        if not centers:
            print(interval.low, math.log2(interval.largest(every[place])), file=sys.stderr)
    columns = {
        "center": [r.center for r in every],
        "value": [r.value for r in every],
        "slope": [r.slope for r in every],
        "slope_low": [r.slope_low for r in every],
        **{f"p{n + 2}": [r.p[n] for r in every] for n in range(DEGREE - 1)},
        "power": encodings(),
        "offset": offsets(),
    }
    step = mp.log(2) / J
    high = single(step)
    macro = "#define UDF_ERFC_WIDE"
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Generated by wide.py; do not edit.",
        "// clang-format off",
        "#ifndef UDF_ERFC_WIDE_CONSTANTS_H",
        "#define UDF_ERFC_WIDE_CONSTANTS_H",
        f"// g errs by less than 2^{math.floor(10 * -math.log2(worst)) / -10}, relative.",
        f"{macro}_SHIFT {23 - int(math.log2(STEPS))}",
        f"{macro}_SCALE {SCALE.hex()}f",
        f"{macro}_ORIGIN {ORIGIN.hex()}f",
        f"{macro}_MAX {END.hex()}f",
        f"{macro}_INV_STEP {single(1 / step).hex()}f",
        f"{macro}_STEP_HI {high.hex()}f",
        f"{macro}_STEP_LO {single(step - high).hex()}f",
        # exp(r) = 1 + r + r^2 / 2 + ... on |r| <= ln(2)/64, as in exp_quick.sollya.
        f"{macro}_C3 {float.fromhex('0x1.5555c8p-3').hex()}f",
        f"{macro}_C4 {float.fromhex('0x1.5555acp-5').hex()}f",
        f"{macro}_WIDTH {WIDTH.hex()}f",
        *(table(f"udf_erfc_wide_{what}", values) for what, values in columns.items()),
        "#endif // UDF_ERFC_WIDE_CONSTANTS_H",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="header whose centers are kept")
    print(text(parser.parse_args().keep))


if __name__ == "__main__":
    main()
