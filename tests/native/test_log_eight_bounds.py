# SPDX-License-Identifier: Apache-2.0
"""The error bounds of the quick paths of the logarithms at AVX2, proved by Gappa on pieces.

Gappa bounds the roundings (``udfs/corem/common/log_eight.gappa``) in all intervals, for k = 0, 1
and -1 and for the other k in groups; intervals bound what polynomials and tables lack. The sum must
stay below the width of the rounding test. All arguments of pieces that are left open are run.
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import mpmath
import pytest
from bounds import HAS_FMA, as_gappa, gappa, halved, largest, needs_gappa, run_path
from mpmath import mpf
from path_constants import half_unit, read, series_bound, single, source, value

mpmath.mp.prec = PRECISION = 150
TEMPLATE = source("common/log_eight.gappa")
LOGARITHMS = {"log": mpmath.log, "log2": lambda x: mpmath.log(x, 2), "log10": mpmath.log10}
#: The function whose tables each uses.
FUNCTIONS = {**{name: name for name in LOGARITHMS}, "log1p": "log"}
SOURCES = (*FUNCTIONS, "asinh", "acosh")
FOUND = read("common/log_eight_constants.h", *(f"{f}/{f}f_eight.c" for f in SOURCES))
M, TABLES = FOUND.macros, FOUND.tables
STEPS = 8
#: The k that go together; with larger ones the result is above the limit.
GROUPS = [(0, 0), (1, 1), (-1, -1), (2, 9), (-9, -2), (10, 126), (-126, -10)]
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 2
#: A smaller argument of log1p is its own result, and both sums round to it.
TINY = 2.0**-27


@dataclass(frozen=True)
class Piece:
    """k between two numbers, an interval of the table, and where r and d lie."""

    k: tuple[int, int]
    j: int
    r: tuple[float, float]
    d: float = 0.0


def tables(name):
    """The constants of a logarithm: macros without its name, and its tables."""
    prefix = f"{name.upper()}_EIGHT_"
    macros = {n.removeprefix(prefix): v for n, v in M.items() if n.startswith(prefix)}
    return macros, {t: TABLES[f"{name}_eight_{t}"] for t in ("poly", "high", "low")}


def polynomial_error(name, r):
    """The largest error of g(1 + r) in a piece."""
    macros, columns = tables(name)
    unit = 1 / {"log": mpf(1), "log2": mpmath.log(2), "log10": mpmath.log(10)}[name]
    known = [mpf(0), mpf(macros["SLOPE_HI"]) + macros["SLOPE_LO"]]
    known.append(mpf(macros["SQUARE"]) + columns["poly"][0])
    known += columns["poly"][1:]
    exact = [mpf(0)] + [-((-1) ** n) * unit / n for n in range(1, 40)]
    lacking = [e - (known[n] if n < len(known) else 0) for n, e in enumerate(exact)]
    return series_bound(lacking, mpf(max(map(abs, r))) ** 40 * unit, r)


def is_exact(a, high, size):
    """Whether a - high is a float, as it has few places; size is about its largest."""
    least = min(*map(abs, a), *map(abs, high))
    return size * (1 + mpf(2) ** -18) <= 2**25 * half_unit(least / (1 + mpf(2) ** -18))


def share(name, margins, piece, r, factor=1.0, beside=None):
    """The share of the width that the error takes at most where r lies between two numbers."""
    macros, columns = tables(name)
    g = LOGARITHMS[name]
    margin, cap = M[f"{margins}_EIGHT_MARGIN"] * factor, mpf(M[f"{margins}_EIGHT_CAP"])
    two, exact = g(mpf(2)), -g(mpf(TABLES["log_eight_reciprocal"][piece.j]))
    a, base, lost = [], [], mpf(0)
    for k in range(piece.k[0], piece.k[1] + 1):
        a.append(mpf(k * 2**23 * macros["TWO_HI"] + columns["high"][piece.j]))
        assert a[-1] == single(a[-1]), "the sum of the high parts is exact"
        base.append(mpf(single(k * 2**23 * mpf(macros["TWO_LO"]) + columns["low"][piece.j])))
        lost = max(lost, abs(k * two + exact - a[-1] - base[-1]))
    a, base = (min(a), max(a)), (min(base), max(base))
    terms = [mpf(x) * macros["SLOPE_HI"] + mpf(x) ** 2 * macros["SQUARE"] for x in r]
    near = 1 - mpf(2) ** -22, 1 + mpf(2) ** -22
    high = [a[i] + terms[i] for i in (0, 1)]
    high = [min(high[0] * x for x in near), max(high[1] * x for x in near)]
    assert high[0] * high[1] > 0
    size = sorted(map(abs, high))
    known = {f"p{i}": c for i, c in enumerate(columns["poly"])}
    known |= {"square": macros["SQUARE"], "slope": macros["SLOPE_HI"], "MARGIN": margin}
    slope_low = as_gappa(macros["SLOPE_LO"])
    known |= {"t_low": "rnd(tail)", "T_LOW": "tail"}
    if macros["SLOPE_LO"]:
        known |= {"t_low": f"rnd(rnd(tail) + {slope_low})", "T_LOW": f"tail + {slope_low}"}
    known["sum"] = "r * t" if a == (0, 0) else "r * t + a"
    known["inexact"] = "error"
    if a != (0, 0) and not is_exact(a, high, max(map(abs, terms))):
        known["inexact"] = "error + (rnd(a - high) - (a - high))"
    known |= {"added": "base", "ADDED": "base"}
    if piece.d:
        known |= {"added": "rnd(d + base)", "ADDED": "d + base"}
    w = [min(s, cap) for s in size]
    intervals = {"r": r, "a": a, "base": base, "d": (-piece.d, piece.d), "w": w}
    known |= {n: as_gappa(*map(float, v)) for n, v in intervals.items()}
    printed = gappa(TEMPLATE, known)
    lines = [line for line in printed.splitlines() if line.lstrip().startswith(("upper", "lower"))]
    assert len(lines) == 2
    rounding = max(largest(line, line.split(" in [")[0]) for line in lines)
    error = lost + polynomial_error(name, r)
    if beside is not None:
        error += beside
    elif piece.d:
        # The reciprocal of 1 + r, d^2, and the rounding of the second part of r, which is below
        # 2^-23, and zero where a is.
        error += piece.d * (mpf(2) ** -13 + piece.d) + (mpf(2) ** -47 if a != (0, 0) else 0)
    return float((rounding + error) / (margin * w[0]))


def pieces(function):
    """Yield pieces that cover all arguments, except exact results."""
    start, width = int(M["LOG_EIGHT_START"]), 1 << int(M["LOG_EIGHT_SHIFT"])
    for j in range(STEPS):
        c = TABLES["log_eight_reciprocal"][j]
        ends = [value(start + (j + i) * width - i) * c - 1 for i in (0, 1)]
        if function == "log1p":
            # The rest of 1 + x is in r.
            ends = [ends[0] - 2.0**-23, ends[1] + 2.0**-23]
        for k in GROUPS:
            if function == "log1p":
                # 1 + x is a multiple of 2^-24.
                k = (max(k[0], -24), k[1])
            if k != (0, 0) or c != 1:
                cuts = [ends[0] + (ends[1] - ends[0]) * i / 4 for i in range(5)]
                for r in pairwise(cuts):
                    yield Piece(k, j, r)
                continue
            least = TINY if function == "log1p" else 2.0**-24
            for end in ends:
                sign = 1 if end > 0 else -1
                while abs(end) > least:
                    middle = end / 2 if abs(end) > 2.0**-8 else end / 8
                    yield Piece(k, j, tuple(sorted((sign * max(abs(middle), least), end))))
                    end = middle


def shares(function, piece, halvings=HALVINGS, factor=1.0):
    """Yield parts of r, each after the share of the width that the error takes at most."""
    if function == "log1p":
        # What rounding r leaves: half a unit in its last place.
        piece = replace(piece, d=float(half_unit(max(map(abs, piece.r))) * 1.1))
    found = partial(share, FUNCTIONS[function], function.upper(), piece, factor=factor)
    return halved(piece.r, found, halvings)


def arguments(function, piece, r):
    """The arguments of a piece, and some around them."""
    for k in range(piece.k[0], piece.k[1] + 1):
        c = TABLES["log_eight_reciprocal"][piece.j]
        low, high = (mpf(2) ** k * (1 + mpf(x)) / c for x in r)
        if function == "log1p":
            low, high = low - 1, high - 1
        yield float(low - abs(low) * 2**-20), float(high + abs(high) * 2**-20)


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_error_stays_below_the_width(tmp_path, function):
    """By Gappa; all arguments of the pieces that it leaves open are run."""
    found = [(piece, *s) for piece in pieces(function) for s in shares(function, piece)]
    proved = [share for _, share, _ in found if share < 1]
    # A width many times as large as the error would cost speed.
    assert max(proved) > 0.6
    left = [(piece, r) for piece, share, r in found if share >= 1]
    assert len(left) <= len(proved) / 3
    ranges = [range_ for piece, r in left for range_ in arguments(function, piece, r)]
    if ranges and HAS_FMA:
        every, decided, wrong = run_path(tmp_path, function, "avx2", ranges)
        assert wrong == 0
        # With the largest k all are left to the fast path.
        assert 0.9 * every < decided


@needs_gappa
@pytest.mark.parametrize("function", FUNCTIONS)
def test_half_of_the_width_is_not_proved(function):
    """In the interval of 1, where r is largest and the width in proportion to it."""
    *_, piece = (p for p in pieces(function) if p.k == (0, 0) and p.j == 4 and max(p.r) > 0.04)
    piece = replace(piece, r=(0.04, 0.041))
    [(whole, _)] = shares(function, piece, 0)
    [(half, _)] = shares(function, piece, 0, 0.5)
    assert whole < 1 < half


@pytest.mark.parametrize("function", FUNCTIONS)
def test_special_arguments_are_beyond_the_limit(function):
    """Zero, subnormal, infinite, NaN and negative arguments seem to be very small or large."""
    unit = LOGARITHMS[FUNCTIONS[function]](mpf(2))
    assert 125.999 * unit > M[f"{function.upper()}_EIGHT_LIMIT"]
    start = int(M["LOG_EIGHT_START"])
    for first, last in ((0, 0x7FFFFF), (0x7F800000, 0x7FFFFFFF), (0x80000000, 0xFFFFFFFF)):
        for encoding in (first, last):
            k = ((encoding - start + 2**31) % 2**32 - 2**31) >> 23
            m = value((encoding - k * 2**23) % 2**32)
            assert 0.7 < m < 1.5
            assert abs(k + mpmath.log(mpf(m), 2)) > 125.999
