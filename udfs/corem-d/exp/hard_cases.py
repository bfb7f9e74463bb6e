# SPDX-License-Identifier: Apache-2.0
"""Write hard.txt, arguments whose exp lies near the middle of two doubles.

    python udfs/corem-d/exp/hard_cases.py

For |x| < 2^-30 the search is complete. A middle 1 + h has one double next to log(1 + h) on each
side, and there are only 2^23 middles. The other cases are published; they are near to a double or
to the middle of two.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import gmpy2
import numpy as np
import numpy.typing as npt

FILE: Final = Path(__file__).with_name("hard.txt")
#: |x| < 2^-RANGE is searched.
RANGE: Final = 30
#: Cases of the search that are kept, for either sign.
KEPT: Final = 200
#: Data of LLVM's libc, libc/test/src/math/exp_test.cpp (TrickyInputs).
PUBLISHED: Final = (
    0x3FD79289C6E6A5C0,
    0x3FD05DE80A173EA0,
    0xBF1EB7A4CB841FCC,
    0xBF19A61FB925970D,
    0x3FDA7B764E2CF47A,
    0xC04757852A4B93AA,
    0x4044C19E5712E377,
    0xC039A74CDAB36C28,
    0xC085B3E4E2E3BBA9,
    0xC086960D591AEC34,
    0xC086232C09D58D91,
    0xC0874910D52D3051,
    0xC0867A172CEB0990,
)


def middles(sign: int) -> npt.NDArray[np.int64]:
    """Return every h with |h| < 2^-RANGE and 1 + h between two doubles, in units of 2^-54."""
    step = 2 if sign > 0 else 1  # doubles above 1 are twice as far apart
    odd = np.arange(1, 2 ** (54 - RANGE) // step, 2, dtype=np.int64)
    return sign * step * odd


def distances(h: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return log(1 + h) rounded to double, and how far it is from it.

    log(1 + h) is h - h^2/2 + h^3/3 - h^4/4. In units of x's last place h is a whole number, h^2/2
    has a remainder that int64 gives exactly, and the rest is below 2^-7: the distance is known to
    2^-52 units.
    """
    real = np.ldexp(h.astype(np.float64), -54)
    place = np.frexp(real)[1].astype(np.int64) - 53  # of the last bit of h and of x
    bits = (109 + place).astype(np.int64)  # h^2/2 has as many bits below the last place
    square = h * h
    remainder = np.ldexp((square & ((np.int64(1) << bits) - 1)).astype(np.float64), -bits)
    small = np.ldexp(real**3 / 3 - real**4 / 4, -place)
    below = small - remainder
    nearest = np.rint(below)
    units = np.ldexp(h.astype(np.float64), -54 - place) - (square >> bits) + nearest
    return np.ldexp(units, place), np.ldexp(np.abs(below - nearest), place)


def search(sign: int) -> tuple[list[float], float]:
    """Return the KEPT hardest arguments of one sign, and the distance of the hardest."""
    x, distance = distances(middles(sign))
    order = np.argsort(distance)[:KEPT]
    return [float(v) for v in x[order]], float(distance[order[0]])


def bits_beyond(x: float) -> int:
    """Return how many equal bits follow the rounding bit of exp(x)."""
    with gmpy2.context(precision=400):
        _, mantissa = gmpy2.frexp(gmpy2.exp(gmpy2.mpfr(x)))
        scaled = gmpy2.mul_2exp(mantissa, 53)
        gap = abs(scaled - gmpy2.floor(scaled) - gmpy2.mpfr(0.5))
        return int(-gmpy2.floor(gmpy2.log2(gap))) - 1 if gap else 400


def encodings(values: Iterable[float]) -> list[int]:
    """Return the encodings of doubles."""
    return [int(v) for v in np.array(list(values), dtype=np.float64).view(np.uint64)]


def thresholds() -> list[float]:
    """Return zeros, the ends of the ranges and what lies beside them."""
    ends = [0.0, 2.0**-1074, 2.0**-1022, 2.0**-54, 2.0**-53, 709.782712893384, 745.1332191019412]
    ends += [708.3964185322641, 1.0, float(np.log(2)), np.finfo(np.float64).max, np.inf]
    with np.errstate(over="ignore"):  # the largest double is one of them
        near = [float(v) for e in ends for v in (np.nextafter(e, 0), e, np.nextafter(e, np.inf))]
    return sorted({*near, *(-v for v in near)})


def main() -> None:
    """Write the file."""
    above, nearest_above = search(1)
    below, nearest_below = search(-1)
    published = np.array(PUBLISHED, dtype=np.uint64)
    parts = {
        f"|x| < 2^-{RANGE}, all middles tried; none nearer than "
        f"2^{np.log2(min(nearest_above, nearest_below)):.2f}": encodings(above + below),
        "Published in LLVM's libc, libc/test/src/math/exp_test.cpp": [int(v) for v in published],
        "Thresholds and special values": encodings([*thresholds(), np.nan]),
    }
    lines = []
    for title, part in parts.items():
        lines += [f"# {title}", *(f"{each:016x}" for each in part)]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
