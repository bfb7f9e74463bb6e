# SPDX-License-Identifier: Apache-2.0
"""The error bounds of the quick paths of asinh and acosh at AVX2, proved by Gappa on pieces.

Gappa bounds the roundings of the argument f + e (``udfs/corem/common/log_eight_root.gappa``), of
its logarithm (``log_eight.gappa``) and of the series for small results
(``log_eight_small.gappa``); intervals bound what polynomials lack. The sum must stay below the
width of the rounding test. All arguments of pieces that are left open are run.
"""

from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import mpmath
import pytest
from bounds import HAS_FMA, as_gappa, ends, gappa, halved, largest, needs_gappa, run_path
from mpmath import mpf
from path_constants import half_unit, series_bound, source, value
from test_log_eight_bounds import STEPS, TABLES, M, Piece, share

mpmath.mp.prec = PRECISION = 150
FUNCTIONS = ("asinh", "acosh")
ROOT, SMALL = (source(f"common/log_eight_{name}.gappa") for name in ("root", "small"))
#: The k that go together.
GROUPS = [(0, 0), (1, 1), (2, 4), (5, 13)]
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 2
#: A smaller argument of asinh is its own result, and both sums round to it.
TINY = 2.0**-13


@dataclass(frozen=True)
class Root:
    """What is known for a piece of the arguments: f, c, and errors of e and of the root."""

    f: tuple[mpf, mpf]
    c: tuple[mpf, mpf]
    e: mpf
    e_error: mpf
    low: mpf
    low_error: mpf


def root(function, v):
    """The argument of the logarithm for a piece of the arguments; for acosh, less 1."""
    known = {"square": "v * v + 1", "sum": "c + v"}
    if function == "acosh":
        known = {"square": "v * (v + 2)", "sum": "c + v + 1"}
    printed = gappa(ROOT, known | {"v": as_gappa(*map(float, v))})
    f, c = (tuple(ends(printed, f"  {name}")) for name in ("f", "c"))
    half = largest(printed, "|RATIO|") / 2
    # The root of c^2 + REST is c + half less this.
    square = half**2 / (2 * c[0]) * (1 + mpf(2) ** -10)
    e_error = largest(printed, "|e - E|") + square
    low_error = largest(printed, "|ratio - RATIO|") / 2 + square
    return Root(f, c, largest(printed, "|e|"), e_error, half, low_error)


@cache
def roots(function):
    """What is known for pieces that cover all arguments."""
    limit, small = mpf(M[f"{function.upper()}_EIGHT_LIMIT"]), M[f"{function.upper()}_EIGHT_SMALL"]
    least = mpf(small) if function == "asinh" else mpf(2) ** -23
    cuts = [limit if function == "asinh" else limit - 1]
    while cuts[-1] > least:
        cuts.append(max(cuts[-1] / 2, least))
    return [root(function, (low, high)) for high, low in pairwise(cuts)]


def first_argument(function):
    """The least f of the arguments whose results are no series."""
    small = mpf(M[f"{function.upper()}_EIGHT_SMALL"])
    return (mpmath.sqrt(1 + small**2) + small) * (1 - mpf(2) ** -22)


def beside(function, piece, r):
    """How much second / (1 + r) and e lack, and the largest size of second inverse."""
    c = mpf(TABLES["log_eight_reciprocal"][piece.j])
    # f = 2^k (1 + r) / c; e and its error are relative to it.
    f = [mpf(2) ** k * (1 + mpf(x)) / c for k, x in zip(piece.k, r, strict=True)]
    near = [x for x in roots(function) if x.f[0] <= f[1] and f[0] <= x.f[1]]
    e = max(x.e / max(x.f[0], f[0]) for x in near)
    e_error = max(x.e_error / max(x.f[0], f[0]) for x in near)
    i0, i1 = map(mpf, TABLES["log_eight_inverse"])
    inverse = series_bound([mpf(0), 1 + i0, i0 + i1, i1], 0, r) + mpf(2) ** -22
    return e * (inverse + e + mpf(2) ** -23) + e_error, e * (1 + mpf(2) ** -9)


def log_pieces(function):
    """Yield pieces of the argument of the logarithm."""
    start, width = int(M["LOG_EIGHT_START"]), 1 << int(M["LOG_EIGHT_SHIFT"])
    for k in GROUPS:
        for j in range(STEPS):
            c = TABLES["log_eight_reciprocal"][j]
            ends_of_r = [value(start + (j + i) * width - i) * c - 1 for i in (0, 1)]
            if k == (0, 0):
                ends_of_r[0] = max(ends_of_r[0], float(first_argument(function) * c - 1))
            if ends_of_r[0] < ends_of_r[1]:
                low, high = ends_of_r
                cuts = [low + (high - low) * i / 4 for i in range(5)]
                yield from (Piece(k, j, r) for r in pairwise(cuts))


def log_share(function, piece, r, factor=1.0):
    """The share of the width that the error of the logarithm takes at most in a piece."""
    lost, d = beside(function, piece, r)
    piece = Piece(piece.k, piece.j, r, float(d))
    return share("log", function.upper(), piece, r, factor, lost)


def small_share(function, s, factor=1.0):
    """The share of the width that the error of the series takes at most in a piece of s."""
    coefficients = list(map(mpf, TABLES["asinh_eight_poly"]))
    margin = M[f"{function.upper()}_EIGHT_MARGIN"] * factor
    low, low_error = mpf(0), mpf(0)
    if function == "acosh":
        near = [x for x in roots(function) if x.c[0] <= s[1] and s[0] <= x.c[1]]
        assert near
        low, low_error = max(x.low for x in near), max(x.low_error for x in near)
        low = min(low, half_unit(s[1]) * (1 + mpf(2) ** -9) + low**2)
    known = {f"p{i}": c for i, c in enumerate(map(float, coefficients))} | {"MARGIN": margin}
    known |= {"s": as_gappa(*s), "s_low": as_gappa(float(-low), float(low))}
    printed = gappa(SMALL, known)
    lines = [line for line in printed.splitlines() if line.lstrip().startswith(("upper", "lower"))]
    assert len(lines) == 2
    rounding = max(largest(line, line.split(" in [")[0]) for line in lines)
    series = [mpf(0)] * 40
    for n in range(1, 20):
        number = (-1) ** n * mpmath.factorial(2 * n) / (4**n * mpmath.factorial(n) ** 2)
        series[2 * n + 1] = number / (2 * n + 1) - (coefficients[n - 1] if n <= 3 else 0)
    # s_low is multiplied by 1 instead of 1 / sqrt(1 + s^2).
    error = series_bound(series, mpf(s[1]) ** 40, s) + low * mpf(s[1]) ** 2 / 2 + low_error
    return float((rounding + error) / (margin * mpf(s[0])))


def small_pieces(function):
    """Yield pieces of s for the series."""
    end = M[f"{function.upper()}_EIGHT_SMALL"]
    # That of acosh(1 + 2^-23), rounded down.
    least = TINY if function == "asinh" else 2.0**-11 * (1 - 2.0**-20)
    while end > least:
        for low in (end * 0.75, end / 2):
            if end > least:
                yield max(low, least), end
            end = low


def arguments(function, f):
    """The arguments for which f, or for the series s, is in an interval, and some around them."""
    found = []
    for x in map(mpf, f):
        found.append((x - 1 / x) / 2 if function == "asinh" else (x + 1 / x) / 2)
    # Beyond the limit all are left to the fast path.
    end = min(found[1] * (1 + mpf(2) ** -20), mpf(M[f"{function.upper()}_EIGHT_LIMIT"]))
    return float(found[0] * (1 - mpf(2) ** -20)), float(end)


def left_open(function):
    """The shares that are proved, and the arguments of the other pieces."""
    proved, left = [], []
    for piece in log_pieces(function):
        for found, r in halved(piece.r, partial(log_share, function, piece), HALVINGS):
            if found < 1:
                proved.append(found)
                continue
            c = mpf(TABLES["log_eight_reciprocal"][piece.j])
            for k in range(piece.k[0], piece.k[1] + 1):
                left.append(arguments(function, [mpf(2) ** k * (1 + mpf(x)) / c for x in r]))
    for piece in small_pieces(function):
        for found, s in halved(piece, partial(small_share, function), HALVINGS):
            if found < 1:
                proved.append(found)
            else:
                left.append(arguments(function, [mpmath.sqrt(1 + mpf(x) ** 2) + x for x in s]))
    return proved, left


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_error_stays_below_the_width(tmp_path, function):
    """By Gappa; all arguments of the pieces that it leaves open are run."""
    proved, left = left_open(function)
    # A width many times as large as the error would cost speed.
    assert max(proved) > 0.6
    if left and HAS_FMA:
        every, decided, wrong = run_path(tmp_path, function, "avx2", left)
        assert wrong == 0
        assert 0.9 * every < decided


@needs_gappa
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_narrow_width_is_not_proved(function):
    piece = Piece((1, 1), 7, (0.03, 0.031))
    whole, narrow = (log_share(function, piece, piece.r, factor) for factor in (1, 0.4))
    assert whole < 1 < narrow
    whole, narrow = (small_share(function, (0.032, 0.033), factor) for factor in (1, 0.25))
    assert whole < 1 < narrow
