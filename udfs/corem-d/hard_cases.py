# SPDX-License-Identifier: Apache-2.0
"""Write FUNCTION/hard.txt, arguments whose result lies near the middle of two doubles.

    python udfs/corem-d/hard_cases.py [FUNCTION ...]

Some cases come from a search of ours that is complete in an interval where it is cheap, others are
published: FUNCTION/published.txt names where. The files hold thresholds and special values too.

exp, |x| < 2^-30: a middle 1 + h has one double next to log(1 + h) on each side, and there are only
2^23 middles. log, |x - 1| < 2^-30: there are fewer than 2^24 doubles. sin and cos: for every
exponent, an argument next to a multiple of pi/2, which tries the reduction. It is near no middle.
exp2 and log2: published cases moved by whole numbers and scaled by powers of 2, which leaves them
hard. tanh, |x| < 2^-20, and log1p, |x| < 2^-40: x - tanh(x) and the like grow slowly there, and are
half-way between multiples of the last place for few x.
pow has pairs: x next to 1, and the y nearest to what gives a middle next to 1, of which few are
nearly doubles; published ones; exact powers and middles; and special values.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import gmpy2
import numpy as np
import numpy.typing as npt

FOLDER: Final = Path(__file__).parent
#: The searches cover arguments nearer than 2^-RANGE to 0 or 1.
RANGE: Final = 30
Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def exp_middles(sign: int) -> Integers:
    """Return every h with |h| < 2^-RANGE and 1 + h between two doubles, in units of 2^-54."""
    step = 2 if sign > 0 else 1  # doubles above 1 are twice as far apart
    odd = np.arange(1, 2 ** (54 - RANGE) // step, 2, dtype=np.int64)
    return sign * step * odd


def exp_distances(h: Integers) -> tuple[Doubles, Doubles]:
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


def exp_search(sign: int) -> tuple[Doubles, Doubles]:
    """Return the arguments of one sign next to middles, and how far exp is from the middle."""
    return exp_distances(exp_middles(sign))


def log_search(sign: int) -> tuple[Doubles, Doubles]:
    """Return the doubles on one side of 1, and how far log is from a middle, relative.

    With h = n 2^-53 (2^-52 above 1) and b the bits of n, |log(1 + h)| has its last place at
    2^(b - 106), 2^(b - 105) above 1, for all n but powers of two above 1, which cannot be hard.
    There h is a whole number, h^2/2 has a remainder that int64 gives exactly, and the rest is below
    2^-7.
    """
    unit = 52 if sign > 0 else 53
    n = np.arange(1, 2 ** (unit - RANGE), dtype=np.int64)
    bits = np.frexp(n.astype(np.float64))[1].astype(np.int64)
    h = np.ldexp(n.astype(np.float64), -unit)
    # h^2/2 is n^2 2^-(2 unit + 1).
    dropped = (unit - 52) + bits
    square = n * n
    remainder = np.ldexp((square & ((np.int64(1) << dropped) - 1)).astype(np.float64), -dropped)
    small = np.ldexp(h**3 / 3 - sign * h**4 / 4, unit + 53 - bits)
    fraction = (small - sign * remainder) % 1
    power = (n & (n - 1)) == 0
    off = np.where(power, 0.5, np.abs(fraction - 0.5))
    return 1 + sign * h, off / np.ldexp(h, unit + 53 - bits)


def next_to_multiples(sign: int) -> tuple[Doubles, Doubles]:
    """Return, for every exponent, a double that is very near a multiple of pi/2, and how near.

    Numerators m of x = m 2^e are denominators of convergents of 2^e 2/pi, times a whole number.
    """
    found, distances = [], []
    with gmpy2.context(precision=3000):
        ratio = 2 / gmpy2.const_pi()
        for exponent in range(-52, 972):
            rest = gmpy2.mul_2exp(ratio, exponent)
            before, last = 0, 1
            while True:
                rest = 1 / (rest - gmpy2.floor(rest))
                after = int(gmpy2.floor(rest)) * last + before
                if after >= 1 << 53:
                    break
                before, last = last, after
            m = last * (((1 << 53) - 1) // last)
            multiples = gmpy2.mul_2exp(ratio * m, exponent)
            found.append(sign * float(gmpy2.mul_2exp(gmpy2.mpfr(m), exponent)))
            distances.append(float(abs(multiples - gmpy2.rint(multiples))))
    return np.array(found), np.array(distances)


def from_middle(function: str, *x: float) -> float:
    """Return how far a result is from the nearest middle of two doubles, relative."""
    with gmpy2.context(precision=400) as context:
        _, mantissa = gmpy2.frexp(getattr(context, function)(*map(gmpy2.mpfr, x)))
        scaled = gmpy2.mul_2exp(abs(mantissa), 53)
        return float(abs(scaled - gmpy2.floor(scaled) - gmpy2.mpfr(0.5)) / scaled)


def moved(function: str, sign: int) -> tuple[Doubles, Doubles]:
    """Return published cases of exp2 or log2 moved to results of one sign, and their distances."""
    listed = [x for part in published(function).values() for x in doubles(part)]
    if function == "exp2":
        fractions = {x % 1 for x in listed if x >= 512}
        found = [sign * n + f for n in range(1, 1000, 3) for f in fractions]
    else:
        found = [x * 2.0 ** (sign * n) for n in range(1, 510) for x in listed]
    return np.array(found), np.array([from_middle(function, x) for x in found])


def tanh_search(sign: int) -> tuple[Doubles, Doubles]:
    """Return the doubles below 2^-20 next to where tanh is a middle, and their distances.

    With u the last place of x, x - tanh(x) is (j + 1/2) u there. Where tanh(x) is below a power of
    two and x is not, all doubles are tried.
    """
    found = []
    with gmpy2.context(precision=200):
        for exponent in range(-28, -20):
            power = gmpy2.mul_2exp(gmpy2.mpfr(1), exponent)
            place = gmpy2.mul_2exp(gmpy2.mpfr(1), exponent - 52)
            low, high = ((end - gmpy2.tanh(end)) / place for end in (power, 2 * power))
            for j in range(int(low - 0.5), int(high) + 1):
                lost = (j + gmpy2.mpfr(0.5)) * place
                x = gmpy2.mpfr(0)
                for _ in range(6):
                    x = gmpy2.cbrt(3 * (lost + 2 * x**5 / 15 - 17 * x**7 / 315))
                if power <= x < 2 * power:
                    found.append(float(x))
            found += [float(power + i * place) for i in range(int(low) + 2)]
    found = sorted({*found})
    return sign * np.array(found), np.array([from_middle("tanh", x) for x in found])


def log1p_search(sign: int) -> tuple[Doubles, Doubles]:
    """Return the doubles below 2^-40 next to where log1p is a middle, and their distances.

    With u the last place of x, |x - log1p(x)| is (j + 1/2) u there. Where x and log1p(x) have
    powers of two between them, all doubles are tried.
    """
    found = []
    with gmpy2.context(precision=200):
        for exponent in range(-54, -40):
            power = gmpy2.mul_2exp(gmpy2.mpfr(1), exponent)
            place = gmpy2.mul_2exp(gmpy2.mpfr(1), exponent - 52)
            most = abs(2 * power - abs(gmpy2.log1p(2 * sign * power))) / place
            for j in range(int(most) + 1):
                lost = (j + gmpy2.mpfr(0.5)) * place
                x = gmpy2.mpfr(0)
                for _ in range(6):
                    x = gmpy2.sqrt(2 * (lost + sign * x**3 / 3 - x**4 / 4))
                if power <= x < 2 * power:
                    found.append(float(x))
            first = power if sign > 0 else 2 * power
            found += [float(first + sign * i * place) for i in range(int(most) + 2)]
    x = sign * np.array(sorted({*found}))
    return x, np.array([from_middle("log1p", float(v)) for v in x])


@dataclass(frozen=True)
class Function:
    """Where a function's cases come from.

    Attributes:
        search: sign -> arguments and their distances from a middle, relative, or from multiples of
            pi/2, in units of it.
        interval: what was searched, in words.
        kept: cases of the search that are kept, for either sign.
        ends: thresholds of the implementation and of the formats; neighbours are added, and the
            same with the other sign.
    """

    search: Callable[[int], tuple[Doubles, Doubles]]
    interval: str
    kept: int
    ends: tuple[float, ...]


FUNCTIONS: Final = {
    "exp": Function(
        exp_search,
        f"|x| < 2^-{RANGE}, all middles tried",
        200,
        (2.0**-54, 2.0**-53, 709.782712893384, 745.1332191019412, 708.3964185322641, 1.0,
         float(np.log(2))),
    ),
    "log": Function(
        log_search,
        f"|x - 1| < 2^-{RANGE}, all doubles tried",
        40,
        # Ends of the intervals of the tables, and of what is scaled.
        (*np.arange(0.703125, 1, 2**-5).tolist(), *np.arange(1.03125, 1.42, 2**-4).tolist(),
         *np.arange(1.40625, 2, 2**-4).tolist(), 1.0, 2.0, 0.5, 2.0**-1021, 2.0**1023, float(np.e)),
    ),
    "sin": Function(
        next_to_multiples, "Next to multiples of pi/2, for every exponent", 1024,
        (2.0**-27, 2.0**-26, 2.0**-9, 2.0**-4, 2.0**23, float(np.pi), float(np.pi) / 2),
    ),
    "cos": Function(
        next_to_multiples, "Next to multiples of pi/2, for every exponent", 1024,
        (2.0**-27, 2.0**-26, 2.0**-9, 2.0**-4, 2.0**23, float(np.pi), float(np.pi) / 2),
    ),
    "exp2": Function(
        partial(moved, "exp2"), "Published cases, moved by whole numbers", 60,
        (2.0**-54, 2.0**-53, 1024.0, 1075.0, 1074.0, 1022.0, 1023.0, 1.0, 0.5),
    ),
    "log2": Function(
        partial(moved, "log2"), "Published cases, scaled by powers of 2", 30,
        (*np.arange(0.703125, 1, 2**-5).tolist(), *np.arange(1.03125, 1.42, 2**-4).tolist(),
         1.0, 2.0, 0.5, 2.0**-1021, 2.0**1023, 2.0**-1073),
    ),
    "tanh": Function(
        tanh_search, "|x| < 2^-20, all middles tried", 100,
        (2.0**-28, 2.0**-27, 2.0**-26, float(np.log(2)) / 64, float(np.log(2)) / 2, 1.0, 19.0, 20.0,
         19.061547465398498),
    ),
    "log1p": Function(
        log1p_search, "|x| < 2^-40, all middles tried", 100,
        (2.0**-54, 2.0**-53, 1.0, 2.0**53, 2.0**54, 2.0**200, 2.0**1000, 2.0**1023,
         1 - 2.0**-53, 0.5, *(n / 32 for n in range(-9, 13))),
    ),
}  # fmt: skip


def search(function: str, sign: int) -> tuple[list[float], float]:
    """Return the hardest arguments of one sign, and the distance of the hardest."""
    x, distance = FUNCTIONS[function].search(sign)
    order = np.argsort(distance, kind="stable")[: FUNCTIONS[function].kept]
    return [float(v) for v in x[order]], float(distance[order[0]])


def bits_beyond(function: str, x: float) -> int:
    """Return how many equal bits follow the rounding bit of a result, or the last bit."""
    with gmpy2.context(precision=400) as context:
        _, mantissa = gmpy2.frexp(getattr(context, function)(gmpy2.mpfr(x)))
        scaled = gmpy2.mul_2exp(abs(mantissa), 54)
        gap = abs(scaled - gmpy2.rint(scaled))
        return int(-gmpy2.floor(gmpy2.log2(gap))) - 2 if gap else 400


def encodings(values: Iterable[float]) -> list[int]:
    """Return the encodings of doubles."""
    return [int(v) for v in np.array(list(values), dtype=np.float64).view(np.uint64)]


def doubles(encoded: list[int]) -> list[float]:
    """Return doubles of their encodings."""
    return [float(v) for v in np.array(encoded, dtype=np.uint64).view(np.float64)]


def thresholds(function: str) -> list[float]:
    """Return zeros, the ends of the ranges and what lies beside them."""
    ends = [0.0, 2.0**-1074, 2.0**-1022, float(np.finfo(np.float64).max), np.inf]
    ends += FUNCTIONS[function].ends
    with np.errstate(over="ignore"):  # the largest double is one of them
        near = [float(v) for e in ends for v in (np.nextafter(e, 0), e, np.nextafter(e, np.inf))]
    return sorted({*near, *(-v for v in near)})


def published(function: str) -> dict[str, list[int]]:
    """Return the published cases, by their source."""
    found: dict[str, list[int]] = {}
    lines = (FOLDER / function / "published.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("# "):
            title = line[2:]
            found[title] = []
        else:
            found[title] += encodings([float.fromhex(each) for each in line.split(",")])
    return found


#: Pairs of pow that are kept.
PAIRS: Final = 400
#: |x - 1| in last places; and |h| in half last places, for the middles 1 + h.
NEAR_ONE: Final = (*range(1, 64), *(2**n + d for n in range(6, 24, 3) for d in (-1, 0, 1)))
MIDDLES: Final = (*range(1, 64, 2), *(2**n + d for n in range(7, 24, 4) for d in (-1, 1)))


def pow_search() -> tuple[list[tuple[float, float]], float]:
    """Return pairs near 1 whose powers are nearest to a middle without meeting it, and how near."""
    found = {}
    signs = ((1, 1), (1, -1), (-1, 1), (-1, -1))
    with gmpy2.context(precision=400):
        for k, n, (side, other) in itertools.product(NEAR_ONE, MIDDLES, signs):
            x = 1 + k * 2.0 ** (-52 if side > 0 else -53) * side
            middle = n * 2.0 ** (-53 if other > 0 else -54) * other
            y = float(gmpy2.log1p(gmpy2.mpfr(middle)) / gmpy2.log(gmpy2.mpfr(x)))
            found[x, y] = from_middle("pow", x, y)
    found = {pair: distance for pair, distance in found.items() if distance > 0}
    kept = sorted(found, key=lambda pair: (found[pair], pair))[:PAIRS]
    return kept, found[kept[0]]


def pow_exact() -> list[tuple[float, float]]:
    """Return powers that are doubles or middles of two, subnormal ones among them."""
    odd = [(float(a), float(n)) for a in range(3, 64, 2) for n in range(2, 12)]
    odd += [(float(a**n), 1.0 / n) for a in (3, 5, 7, 9, 11, 4099) for n in (2, 4)]
    odd += [(float(a**4), 0.75) for a in (3, 5, 7, 9, 11)]
    # Odd numbers of 27 bits have squares of 54.
    odd += [(float(a), 2.0) for a in range(2**27 - 99, 2**27, 2)]
    scaled = [(a * 2.0**-k, n) for a, n in odd[:40] for k in (350, 400, 530, 537, 538)]
    twos = [(2.0**b, float(y)) for b in (1, -1, 3, -1074) for y in (1023, 1024, -1074, -1075, 0.5)]
    return [*odd, *scaled, *((-a, n) for a, n in odd[:40]), *twos]


def write_pow() -> None:
    """Write the file of pow, whose lines have two encodings."""
    near, nearest = pow_search()
    special = [0.0, 2.0**-1074, 2.0**-1022, 0.5, 1 - 2.0**-53, 1.0, 1 + 2.0**-52, 2.0, 3.0, 2.5,
               2.0**51 + 0.5, 2.0**51 + 1, 2.0**53 - 1, 2.0**53, float(np.finfo(np.float64).max),
               np.inf]  # fmt: skip
    special = [*special, *(-v for v in special), np.nan]
    title, listed = next(iter(published("pow").items()))
    pairs = doubles(listed)
    parts = {
        f"x next to 1; none nearer than 2^{np.log2(nearest):.2f}": near,
        f"Published: {title}": list(zip(pairs[::2], pairs[1::2], strict=True)),
        "Exact powers and middles": pow_exact(),
        "Special values": [(x, y) for x in special for y in special],
    }
    lines = []
    for title, part in parts.items():
        lines += [f"# {title}", *(" ".join(f"{n:016x}" for n in encodings(pair)) for pair in part)]
    (FOLDER / "pow" / "hard.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Write the files."""
    if not sys.argv[1:] or "pow" in sys.argv[1:]:
        write_pow()
    for function in [n for n in sys.argv[1:] or FUNCTIONS if n != "pow"]:
        above, nearest_above = search(function, 1)
        below, nearest_below = search(function, -1)
        parts = {
            f"{FUNCTIONS[function].interval}; none nearer than "
            f"2^{np.log2(min(nearest_above, nearest_below)):.2f}": encodings(above + below),
            **{f"Published: {title}": part for title, part in published(function).items()},
            "Thresholds and special values": encodings([*thresholds(function), np.nan]),
        }
        lines = []
        for title, part in parts.items():
            lines += [f"# {title}", *(f"{each:016x}" for each in part)]
        file = FOLDER / function / "hard.txt"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
