# SPDX-License-Identifier: Apache-2.0
"""The error bounds of the paths of asinh and acosh at AVX-512, proved by Gappa on pieces.

Gappa bounds the roundings of the argument f + e (``udfs/corem/common/asinh_wide_root.gappa``), of
its logarithm (``log1p_wide.gappa``) and of the series of asinh (``asinh_wide_series.gappa``). The
sums are too large on purpose; the errors must stay below this surplus, and both together below the
width of the rounding test. All arguments of pieces that are left open are run, and those of the
series of acosh, which are few.
"""

import re
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from bounds import (
    HAS_FMA,
    as_gappa,
    ends,
    gappa,
    halved,
    largest,
    merged,
    needs_fma,
    needs_gappa,
    run_path,
)
from mpmath import mpf
from path_constants import UNIT, encoding, read, source, value
from test_log1p_wide_bounds import (
    RECIPROCALS,
    SECOND,
    START,
    Path,
    Piece,
    base_of,
    larger_share,
    reach,
    series_range,
    share,
)

FUNCTIONS = ("asinh", "acosh")
FOUND = read("common/log1p_wide_constants.h", *(f"{f}/{f}f_wide.c" for f in FUNCTIONS))
M, TABLES = FOUND.macros, FOUND.tables
ROOT, SERIES = (source(f"common/asinh_wide_{name}.gappa") for name in ("root", "series"))
END = M["LOG1P_WIDE_PAIR_END"]
LIMIT = M["ASINH_WIDE_LIMIT"]
#: All k are below; f ends at twice the limit.
BEYOND = 14
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 2
#: A smaller argument of asinh is its own result, and both sums round to it.
TINY = 2.0**-13


@dataclass(frozen=True)
class Root:
    """What is known for a piece of the arguments: f, the size of e, and its error."""

    f: tuple[mpf, mpf]
    e: mpf
    error: mpf


def logarithm():
    """The constants of the logarithm of a pair."""
    macros, columns = FOUND.without("LOG1P_WIDE_")
    assert macros["PAIR_CUBE"] * macros["PAIR_CUBIC"] == END * 2 * macros["PAIR_LINEAR"]
    return Path(
        unit=mpf(1),
        macros=macros | {"SHARE": macros["PAIR_SHARE"]},
        tables=columns | {"low": columns["pair_low"]},
        slope_low=macros["SLOPE_LOW"],
        width=macros["PAIR_CUBIC"],
        size=macros["PAIR_CUBE"],
        added="rnd(d * rnd(r * r + rnd(1 - r)) + rnd(base))",
        ADDED="d * (r * r + (1 - r)) + base",
    )


@cache
def inverse_error():
    """The largest error of the path's 1 / (2 x), relative, of all mantissas."""
    p = TABLES["log1p_wide_pair_inverse"]
    [seed] = re.findall(r"PAIR_SEED UINT32_C\((\w+)\)", source("common/log1p_wide_constants.h"))
    one, found = encoding(1.0), 0.0
    for part in np.split(np.arange(one, one + 2**23, dtype=np.uint32), 16):
        x = part.view(np.float32)
        y = (np.uint32(int(seed, 16)) - part).view(np.float32)
        z = (x * y).astype(float)
        # Products of two floats are exact in double, and the rounding of sums is in the slack.
        q = (p[2] * z + p[1]).astype(np.float32).astype(float)
        q = (q * z + p[0]).astype(np.float32).astype(float)
        found = max(found, float(np.abs(2.0 * x.astype(float) * y * q - 1).max()))
    return found + 2 * UNIT


def root(function, v):
    """The argument of the logarithm for a piece of the arguments; for acosh, less 1."""
    known = {"square": "v * v + 1", "sum": "c + v"}
    if function == "acosh":
        known = {"square": "v * (v + 2)", "sum": "c + v + 1"}
    # The product of the rest with y is rounded, too.
    known |= {"v": as_gappa(*map(float, v)), "eps": inverse_error() + 2 * UNIT}
    printed = gappa(ROOT, known)
    f, c = (tuple(ends(printed, f"  {name}")) for name in ("f", "c"))
    # The root of c^2 + REST is c + HALF less this.
    square = largest(printed, "|HALF|") ** 2 / (2 * c[0]) * (1 + mpf(2) ** -10)
    return Root(f, largest(printed, "|e|"), largest(printed, "|e - E|") + square)


@cache
def roots(function):
    """What is known for pieces that cover the arguments of the logarithm, four to a binade."""
    # s is END where acosh begins, and x less 1 is about its square.
    least = mpf(END) if function == "asinh" else mpf(END) ** 2 / 2 * (1 - mpf(END) ** 2)
    cuts = [mpf(LIMIT if function == "asinh" else LIMIT - 1)]
    while cuts[-1] > least:
        cuts.append(mpf(float(cuts[-1] * 2**-0.25)))
    return [root(function, (low, high)) for high, low in pairwise(cuts)]


def log_share(path, function, piece, r):
    """The share of what is allowed that the error of the logarithm takes at most in a piece."""
    c, most = mpf(RECIPROCALS[piece.j]), mpf(max(map(abs, r)))
    # f = 2^k (1 + r) / c; e and its error are relative to it.
    f = [mpf(2) ** k * (1 + mpf(x)) / c for k, x in zip(piece.k, r, strict=True)]
    near = [x for x in roots(function) if x.f[0] <= f[1] and f[0] <= x.f[1]]
    second = (1 + most) * max(x.e / max(x.f[0], f[0]) for x in near)
    error = (1 + most) * max(x.error / max(x.f[0], f[0]) for x in near)
    # The rounding of second, 1 / (1 + r) less 1 - r + r^2, and the square of second.
    error += second * (UNIT + most**3 / (1 - most) + second)
    return share(path, piece, r, second * (1 + UNIT), error * (1 + most) ** 2)


def log_pieces():
    """Yield pieces of the argument of the logarithm, which are the same for both functions."""
    first = (mpmath.sqrt(1 + mpf(END) ** 2) + END) * (1 - mpf(2) ** -22)
    last = 2 * LIMIT * (1 + mpf(2) ** -22)
    for k in range(BEYOND):
        for j, c in enumerate(RECIPROCALS):
            # There is no rest of 1 + x here.
            low, high = (x + s * SECOND for x, s in zip(reach(j), (1, -1), strict=True))
            low, high = max(low, float(first * c / 2**k - 1)), min(high, float(last * c / 2**k - 1))
            parts = 4 if k == 0 else 1
            cuts = [low + (high - low) * i / parts for i in range(parts + 1)]
            if low < high:
                yield from (Piece((k, k), j, r) for r in pairwise(cuts))


def series_share(a, factor=1.0, coefficients=TABLES["asinh_wide_poly"][:3]):
    """The share of what is allowed that the error of the series takes at most in a piece."""
    width = M["LOG1P_WIDE_PAIR_CUBIC"] * factor
    known = {f"p{i}": c for i, c in enumerate(coefficients)} | {"width": width, "a": as_gappa(*a)}
    printed = gappa(SERIES, known)
    names = "low -/ LOW", "lower -/ LOWER", "cube -/ CUBE"
    low, lower, cube = (largest(printed, name) for name in names)
    # All others are relative to a^3, and polynomials in a^2.
    series = [mpf(c) for c in coefficients] + [mpf(0)] * 17
    square = [mpf(x) ** 2 for x in a]
    size = max(map(abs, series_range(series, 0, square)))
    for n in range(len(series)):
        m = n + 1
        number = (-1) ** m * mpmath.factorial(2 * m) / (4**m * mpmath.factorial(m) ** 2)
        series[n] -= number / (2 * m + 1)
    surplus = series_range(series, square[1] ** len(series), square)
    rounding = low * size
    other = rounding + lower * (width * (1 + cube) + size * (1 + low))
    return larger_share(rounding, other, surplus, width * (1 - cube))


def series_pieces():
    """Yield pieces of the argument of asinh for the series."""
    cuts = [END]
    while cuts[-1] > TINY:
        cuts.append(cuts[-1] * 0.75)
    yield from ((low, high) for high, low in pairwise(cuts))


def arguments(function, piece, r):
    """The arguments of a piece, and some around them; beyond the limit none is decided."""
    f = [mpf(2) ** piece.k[0] * (1 + mpf(x)) / RECIPROCALS[piece.j] for x in r]
    low, high = ((x - 1 / x) / 2 if function == "asinh" else (x + 1 / x) / 2 for x in f)
    return float(low * (1 - mpf(2) ** -20)), min(float(high * (1 + mpf(2) ** -20)), LIMIT)


def left_open(function):
    """The shares that are proved, and the arguments of the other pieces."""
    path, proved, left = logarithm(), [], []
    for piece in log_pieces():
        for found, r in halved(piece.r, partial(log_share, path, function, piece), HALVINGS):
            if found < 1:
                proved.append(found)
            else:
                left.append(arguments(function, piece, r))
    return proved, left


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_error_of_the_logarithm_stays_below_the_width(tmp_path, function):
    """By Gappa up to 16, and for most pieces beyond; those that are left are run."""
    proved, left = left_open(function)
    assert max(proved) > 0.9
    assert len(left) <= len(proved) / 4
    # The roundings of the low part grow with the result, and the width does not.
    assert min(low for low, _ in left) > 16
    if HAS_FMA:
        every, decided, wrong = run_path(tmp_path, function, "avx512", merged(left))
        assert wrong == 0
        assert 0.99 * every < decided


@needs_gappa
def test_the_error_of_the_series_of_asinh_stays_below_the_width():
    assert 0.8 < max(series_share(a) for a in series_pieces()) < 1


@needs_fma
def test_the_series_of_acosh_is_right(tmp_path):
    """All of its arguments."""
    end = float(mpmath.sqrt(1 + mpf(END) ** 2) * (1 + mpf(2) ** -20))
    every, decided, wrong = run_path(tmp_path, "acosh", "avx512", [(1.0, end)])
    assert wrong == 0
    assert 0.99 * every < decided


@needs_fma
def test_small_arguments_are_right(tmp_path):
    """They are the results of asinh, as x^3/6 is less than a quarter of the last place."""
    assert TINY**2 / 6 < 2.0**-26
    ranges = [(2.0**n, 2.0**n * 1.001) for n in (-13, -14, -60, -126, -140)]
    ranges.append((TINY * 0.999, TINY))
    every, decided, wrong = run_path(tmp_path, "asinh", "avx512", ranges)
    assert wrong == 0
    assert decided == every


def test_the_logarithms_end_where_the_limits_are():
    """And the root's square is below 2^24 there, so that one more or less is exact."""
    assert M["ASINH_WIDE_LIMIT"] == M["ACOSH_WIDE_LIMIT"] == LIMIT
    assert LIMIT**2 <= 2.0**24
    assert 2.0**BEYOND * value(START) > 2 * LIMIT
    path = logarithm()
    # In all intervals that are used, a is no zero.
    assert all(base_of(path, piece.k[0], piece.j)[0] > 0 for piece in log_pieces())


@needs_gappa
@pytest.mark.parametrize("function", FUNCTIONS)
def test_less_is_not_proved(function):
    """Half of the width of the logarithm, and its table of low parts as it is for log1p."""
    path, piece = logarithm(), Piece((1, 1), 24, (0.012, 0.013))
    low = FOUND.without("LOG1P_WIDE_")[1]["low"]
    others = (
        replace(path, width=path.width / 2),
        replace(path, tables=path.tables | {"low": low}),
    )
    assert log_share(path, function, piece, piece.r) < 1
    assert all(log_share(p, function, piece, piece.r) > 1 for p in others)


@needs_gappa
def test_less_is_not_proved_for_the_series():
    """Half of the width, and the polynomial without what is added."""
    *others, cube = TABLES["asinh_wide_poly"]
    piece = (0.0352, 0.0353)
    assert series_share(piece) < 1 < series_share(piece, factor=0.5)
    assert series_share(piece, coefficients=[cube, *others[1:]]) > 1
