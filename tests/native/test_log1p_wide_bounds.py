# SPDX-License-Identifier: Apache-2.0
"""The error bound of log1p's path at AVX-512, proved by Gappa on pieces.

Gappa bounds the roundings (``udfs/corem/common/log1p_wide.gappa``) in all intervals, for k = 0, 1
and -1 and for the other k in groups. The sum is too large on purpose, by a share of a, and by some
r and r^3; intervals bound this surplus with what the polynomial and the tables lack. The roundings
must stay below the surplus, and both together below the width of the rounding test. All arguments
of pieces that are left open are run.
"""

import re
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from bounds import (
    HAS_FMA,
    as_gappa,
    gappa,
    halved,
    largest,
    merged,
    needs_fma,
    needs_gappa,
    run_path,
)
from mpmath import mpf
from path_constants import half_unit, read, single, source, value
from test_log_eight_bounds import is_exact

mpmath.mp.prec = PRECISION = 150
TEMPLATE = source("common/log1p_wide.gappa")
FOUND = read("common/log1p_wide_constants.h", "log1p/log1pf_wide.c")
M, TABLES = FOUND.macros, FOUND.tables
STEPS, SHIFT = 32, int(M["LOG1P_WIDE_SHIFT"])
#: k is counted from -BIAS on, and the reciprocals have the factor 2^BIAS.
BIAS = 126 - (int(M["LOG1P_WIDE_START"]) >> 23)
START = int(M["LOG1P_WIDE_START"]) + (BIAS << 23)
RECIPROCALS = [c * 2.0**-BIAS for c in TABLES["log1p_wide_reciprocal"]]
#: The k that go together. 1 + x is a multiple of 2^-24, and ends at 2^120.
GROUPS = [(0, 0), (1, 1), (-1, -1), (2, 3), (-3, -2), (4, 15), (-24, -4), (16, 120)]
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 3
#: A smaller argument is its own result, and both sums round to it.
TINY = 2.0**-27
#: What is left of 1 + x is below this when it joins r.
SECOND = 2.0**-24
#: What the roundings of the second part of r and of d change at most. Both are exact where a = 0.
SECOND_ERROR = mpf(2) ** -47


@dataclass(frozen=True)
class Path:
    """The constants of a path: the logarithm's factor, its tables, and the rounding test's width.

    The width is relative to the result, or to ``size`` if that is no zero. ``added`` and ``ADDED``
    are what low begins with, in Gappa and without its roundings.
    """

    unit: mpf
    macros: dict[str, float]
    tables: dict[str, list[float]]
    slope_low: float
    width: float
    size: float = 0.0
    added: str = "rnd(d * rnd(1 - r) + rnd(base))"
    ADDED: str = "d * (1 - r) + base"


@dataclass(frozen=True)
class Piece:
    """k between two numbers, an interval of the table, and where r lies."""

    k: tuple[int, int]
    j: int
    r: tuple[float, float]


def log1p():
    """The constants of log1p."""
    macros, columns = FOUND.without("LOG1P_WIDE_")
    [factor] = re.findall(r"_WIDTH \(([\d.]+)f \* UDF_", source("log1p/log1pf_wide.c"))
    return Path(mpf(1), macros, columns, macros["SLOPE_LOW"], float(factor) * macros["WIDTH"])


def series_range(coefficients, rest, r, parts=4):
    """The least and the largest value of a polynomial between two numbers, a rest apart.

    As in ``series_bound``, parts of the interval are bounded around their middles.
    """
    low, high = map(mpf, r)
    half = (high - low) / (2 * parts)
    found = []
    for i in range(parts):
        middle = low + (2 * i + 1) * half
        shifted = list(map(mpf, coefficients))
        for n in range(len(shifted) - 1):
            for m in range(len(shifted) - 2, n - 1, -1):
                shifted[m] += middle * shifted[m + 1]
        aside = sum(abs(c) * half**n for n, c in enumerate(shifted) if n) + rest
        found += [shifted[0] - aside, shifted[0] + aside]
    return min(found), max(found)


def series_surplus(path, r):
    """By how many r the series is too large, between two numbers: the least and the largest."""
    macros, p = path.macros, path.tables["poly"]
    assert p[0] == 0
    assert [macros["SLOPE"], macros["SQUARE"]] == [path.unit, -path.unit / 2]
    known = [mpf(path.slope_low), mpf(0), *map(mpf, p[1:])]
    known += [mpf(0)] * (40 - len(known))
    for n in range(2, len(known)):
        known[n] -= (-1) ** n * path.unit / (n + 1)
    return series_range(known, path.unit * mpf(max(map(abs, r))) ** 40, r)


def base_of(path, k, j):
    """a and base of an interval and k, and by how much their sum is too large."""
    a = mpf((k + BIAS) * 2**23) * path.macros["TWO"] + path.tables["high"][j]
    assert a == single(a), "the sum of the high parts is exact"
    base = a * path.macros["SHARE"] + path.tables["low"][j]
    exact = path.unit * (k * mpmath.log(2) - mpmath.log(RECIPROCALS[j]))
    return a, base, a + base - exact


def share(path, piece, r, d=0, beside=0):
    """The share of what is allowed that the error takes at most where r lies between two numbers.

    d bounds the rest of r, and ``beside`` what else the sum lacks.
    """
    slope, square = path.macros["SLOPE"], path.macros["SQUARE"]
    rows = [base_of(path, k, piece.j) for k in range(piece.k[0], piece.k[1] + 1)]
    a, base = ((min(x), max(x)) for x in zip(*(row[:2] for row in rows), strict=True))
    terms = [mpf(x) * slope + mpf(x) ** 2 * square for x in r]
    sums = [row[0] + x for row in rows for x in terms]
    assert min(sums) * max(sums) > 0
    sign = 1 if sums[0] > 0 else -1
    near = 1 - mpf(2) ** -22, 1 + mpf(2) ** -22
    size = min(map(abs, sums)) * near[0], max(map(abs, sums)) * near[1]
    if path.size:
        size = path.size, path.size
    known = {f"p{i}": c for i, c in enumerate(path.tables["poly"])}
    known |= {
        "square": square,
        "slope": slope,
        "width": path.width,
        "t_low": "tail",
        "T_LOW": "tail",
    }
    if path.slope_low:
        slope_low = as_gappa(path.slope_low)
        known |= {"t_low": f"rnd(tail + {slope_low})", "T_LOW": f"tail + {slope_low}"}
    known |= {"sum": "r * t", "inexact": "error", "added": "base", "ADDED": "base"}
    if d:
        known |= {"added": path.added, "ADDED": path.ADDED}
    if a != (0, 0):
        known["sum"] = "r * t + a"
        if not is_exact(a, sums, max(map(abs, terms))):
            known["inexact"] = "error + (rnd(a - high) - (a - high))"
    intervals = {"r": r, "a": a, "base": base, "d": (-d, d), "size": size}
    known |= {n: as_gappa(*map(float, v)) for n, v in intervals.items()}
    printed = gappa(TEMPLATE, known)
    low, lower = (largest(printed, f"{n} - {n.upper()}") for n in ("low", "lower"))
    more = series_surplus(path, r)
    if a == (0, 0):
        # All is in proportion to r.
        assert base == (0, 0)
        least = min(map(abs, r))
        wide = path.width * min(slope + mpf(x) * square for x in r) * near[0]
        return larger_share((low + beside) / least, (lower + beside) / least, more, wide)
    products = [sign * mpf(x) * y for x in r for y in more]
    found = []
    for row in rows:
        surplus = [sign * row[2] + end(products) for end in (min, max)]
        wide = path.width * (path.size or min(abs(row[0] + x) for x in terms) * near[0])
        found.append(larger_share(low + beside, lower + beside, surplus, wide))
    return max(found)


def larger_share(low, lower, surplus, wide):
    """That of the surplus which its errors take, or that of the width which all takes."""
    return float(
        max(low / surplus[0] if surplus[0] > 0 else mpf("inf"), (lower + surplus[1]) / wide)
    )


def log1p_share(path, piece, r):
    """The share for log1p, where d is half a unit in the last place of r at most."""
    if piece.k == (0, 0) and RECIPROCALS[piece.j] == 1:
        return share(path, piece, r)
    most = mpf(max(map(abs, r)))
    d = half_unit(most)
    # 1 / (1 + r) less 1 - r, and d^2.
    return share(path, piece, r, d, d * (most**2 / (1 - most) + d) + SECOND_ERROR)


def reach(j):
    """The least and the largest r of an interval, with what the rest of 1 + x adds."""
    c, width = RECIPROCALS[j], 1 << SHIFT
    low, high = (value(START + (j + i) * width - i) * c - 1 for i in (0, 1))
    return low - SECOND, high + SECOND


def pieces():
    """Yield pieces that cover all arguments, except those that are their own results."""
    for k in GROUPS:
        for j, c in enumerate(RECIPROCALS):
            low, high = reach(j)
            if k == (0, 0) and c == 1:
                for end in (low, high):
                    cuts = [end]
                    while abs(cuts[-1]) > TINY:
                        cuts.append(cuts[-1] * (0.8 if abs(cuts[-1]) > 2.0**-9 else 0.25))
                    yield from (Piece(k, j, tuple(sorted(r))) for r in pairwise(cuts))
                continue
            parts = 4 if k == (0, 0) else 1
            cuts = [low + (high - low) * i / parts for i in range(parts + 1)]
            yield from (Piece(k, j, r) for r in pairwise(cuts))


def arguments(piece, r):
    """Yield the arguments of a piece, and some around them."""
    for k in range(piece.k[0], piece.k[1] + 1):
        low, high = (mpf(2) ** k * (1 + mpf(x)) / RECIPROCALS[piece.j] - 1 for x in r)
        yield float(low - abs(low) * 2**-20), float(high + abs(high) * 2**-20)


def prove_or_run(folder, name, share_of, pieces, arguments):
    """Assert that Gappa proves a path but for the interval above that of 1, and run what is left.

    Args:
        folder: for the program that runs arguments.
        name: of the function.
        share_of: the share of the width in a piece, for a part of its r.
        pieces: what r is cut into.
        arguments: the ranges of arguments of a piece and a part of its r.
    """
    proved, left = [], []
    for piece in pieces:
        for found, r in halved(piece.r, partial(share_of, piece), HALVINGS):
            if found < 1:
                proved.append(found)
            else:
                assert piece.k == (0, 0)
                left.append((piece, r))
    assert max(proved) > 0.9
    assert {RECIPROCALS[piece.j] for piece, _ in left} == {max(c for c in RECIPROCALS if c < 1)}
    if HAS_FMA:
        ranges = merged(x for piece, r in left for x in arguments(piece, r))
        every, decided, wrong = run_path(folder, name, "avx512", ranges)
        assert wrong == 0
        assert 0.99 * every < decided


def test_the_intervals_are_those_that_are_proved():
    """r is exact for all mantissas, and the groups of k reach to the end of the range."""
    [beyond] = re.findall(r"_END - \(UINT32_C\((\d+)\) << 23", source("log1p/log1pf_wide.c"))
    end = int(M["LOG1P_WIDE_END"]) - (int(beyond) << 23)
    assert value(int(M["LOG1P_WIDE_START"]) + end) == 2.0 ** GROUPS[-1][1]
    offset = np.arange(2**23, dtype=np.uint32)
    m = (offset + np.uint32(START)).view(np.float32).astype(float)
    r = m * np.array(RECIPROCALS)[offset >> SHIFT] - 1
    assert (r.astype(np.float32) == r).all()
    for j in range(STEPS):
        inside = r[offset >> SHIFT == j]
        low, high = reach(j)
        assert (low + SECOND, high - SECOND) == (inside.min(), inside.max())
        assert max(-low, high) < 2.0**-5.39


@needs_gappa
@pytest.mark.slow
def test_the_error_stays_below_the_width(tmp_path):
    """By Gappa, but for the interval above that of 1, where pieces are left and run."""
    share_of = partial(log1p_share, log1p())
    prove_or_run(tmp_path, "log1p", share_of, pieces(), arguments)


@needs_fma
def test_small_arguments_are_right(tmp_path):
    """They are their own results, as x^2/2 is less than a quarter of the last place."""
    ranges = [(s * 2.0**n, s * 2.0**n * 1.001) for s in (1, -1) for n in (-27, -60, -126, -140)]
    ranges = [tuple(sorted(r)) for r in ranges]
    every, decided, wrong = run_path(tmp_path, "log1p", "avx512", ranges)
    assert wrong == 0
    assert decided == every


@needs_gappa
def test_less_is_not_proved():
    """A narrower width beside the interval of 1, and the interval without SLOPE_LOW."""
    path = log1p()
    below = RECIPROCALS.index(min(c for c in RECIPROCALS if c > 1))
    piece = Piece((0, 0), below, (0.0041, 0.0042))
    narrow = replace(path, width=path.width * 0.75)
    whole, less = (log1p_share(p, piece, piece.r) for p in (path, narrow))
    assert whole < 1 < less
    piece = Piece((0, 0), RECIPROCALS.index(1), (0.0086, 0.0087))
    whole, less = (log1p_share(p, piece, piece.r) for p in (path, replace(path, slope_low=0.0)))
    assert whole < 1 < less
