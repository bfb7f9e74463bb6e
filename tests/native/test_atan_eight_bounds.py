# SPDX-License-Identifier: Apache-2.0
"""The error bound of the quick path of atan at AVX2, proved by Gappa on pieces of its rows.

Gappa bounds the roundings (``udfs/corem/atan/eight.gappa``); the Taylor series of atan bounds what
the polynomials lack. The sum must stay below the width of the rounding test. Arguments of pieces
that are left open are run.
"""

from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import mpmath
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
from path_constants import UNIT, read, series_bound, source

ROWS, DEGREE = 8, 6
#: Below it an argument is its own result.
TINY = 2.0**-12
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 3
#: The terms of the series of atan that are looked at.
TERMS = 40
mpmath.mp.prec = PRECISION = 160


@dataclass(frozen=True)
class Row:
    """An interval of v in one branch, and its entries."""

    low: float
    high: float
    entries: dict[str, float]
    inverse: bool


@cache
def header():
    """The macros and the tables without their prefix."""
    found, columns = read("atan/eight_constants.h", "atan/atanf_eight.c").without("ATAN_EIGHT_")
    assert all(len(column) == ROWS for column in columns.values())
    return found, columns


@cache
def rows():
    """The rows of both branches, from the constants in C."""
    c, columns = header()
    found = []
    for i in range(ROWS):
        # The number of the row is rounded once.
        low, high = ((i + side) / c["SCALE"] for side in (-0.5, 0.5))
        low, high = max(low - 2**-24, 0.0), min(high + 2**-24, 1.0)
        entries = {n: v[i] + 0.0 for n, v in columns.items()}
        found += [Row(low, high, entries, inverse) for inverse in (False, True)]
    assert found[-1].high == 1
    return found


def lacking(row):
    """The coefficients of what the polynomial lacks of atan around a center, and a rest."""
    e = row.entries
    c = mpf(e["center"])
    angle, size = mpmath.atan(1 / c) if c else mpmath.pi / 2, mpmath.sqrt(1 + c * c)
    exact = [mpmath.atan(c)]
    exact += [(-1) ** (n - 1) * mpmath.sin(n * angle) / (n * size**n) for n in range(1, TERMS)]
    known = [mpf(e["value"]), mpf(e["slope"]) + e["slope_low"]]
    known += [mpf(e[f"p{n}"]) for n in range(2, DEGREE + 1)]
    return [x - (known[n] if n < len(known) else 0) for n, x in enumerate(exact)]


def polynomial_error(row, r):
    """The largest error of the polynomial in a piece; relative to v where the center is 0."""
    coefficients, most = lacking(row), max(map(abs, r))
    rest = mpf(most) ** (TERMS - 1)
    if row.entries["center"]:
        return series_bound(coefficients, rest, r)
    assert coefficients[0] == 0
    return most * series_bound(coefficients[1:], rest, r)


def signed(row):
    """The value of a row with its branch, and what is added to the low part."""
    c = header()[0]
    if not row.inverse:
        return row.entries["value"], 0.0
    return c["HALF_PI"] - row.entries["value"], c["HALF_PI_LOW"]


def share(row, r, factor=1.0):
    """Return the share of the width, times a factor, that the error takes at most in a piece."""
    c, e = header()[0], row.entries
    value, more = signed(row)
    most, base = max(map(abs, r)), c["HALF_PI"] if row.inverse else 0.0
    # A quotient that is subnormal lacks more of itself, but less than this of a piece's end.
    beside = UNIT * (1 + 2.0**-20) if row.inverse else 0.0
    width = e["width"] * factor
    known = e | {"value": value, "more": more, "base": base, "width": width}
    known |= {"MORE": c["MORE"], "PART": c["PART"], "signed_r": "-r" if row.inverse else "r"}
    known |= {"r": as_gappa(*r), "beside": as_gappa(-beside, beside)}
    printed = gappa(source("atan/eight.gappa"), known)
    rounding = max(largest(printed, f"{n} - {n.upper()}") for n in ("upper", "lower"))
    error = polynomial_error(row, r)
    v = (e["center"] + r[0], e["center"] + r[1])
    if row.inverse:
        error += abs(mpmath.pi / 2 - base - more)
        # The derivative has three times r^2 (p3 + ...), and atan is bent.
        bend = sum((n - 3) * abs(e[f"p{n}"]) * most ** (n - 1) for n in range(4, DEGREE + 1))
        bend += 2 * abs(e["slope_low"]) + 2 * UNIT + 2.0**-24
        error += v[1] * beside * (bend + 2 * beside)
    least = 0.0 if r[0] <= 0 <= r[1] else min(map(abs, r)) ** 2
    least = ((base * c["MORE"] + v[0]) * c["PART"] + least) * width
    return float((rounding + error) / (least * (1 - 2.0**-18)))


def pieces(row):
    """Yield pieces of a row, in r."""
    c = row.entries["center"]
    low, high = row.low - c, row.high - c
    if c:
        cuts = [low * 0.7**i for i in range(12)] + [high * 0.7**i for i in reversed(range(12))]
        yield from pairwise(cuts)
        return
    cuts = [high]
    while cuts[-1] > TINY:
        cuts.append(cuts[-1] * 0.8)
    if row.inverse:
        cuts.append(0.0)
    yield from pairwise(reversed(cuts))


def arguments(row, r):
    """The arguments of a piece, and some around them."""
    low, high = (row.entries["center"] + x for x in r)
    if row.inverse:
        return 1 / (high * (1 + 2.0**-22)), 1 / (low * (1 - 2.0**-22))
    return low * (1 - 2.0**-22), high * (1 + 2.0**-22)


def test_the_tables_are_such_that_differences_are_exact():
    """By Sterbenz, if neither number is more than twice the other; or one of them is 0."""
    c = header()[0]
    for row in rows():
        e, value = row.entries, signed(row)[0]
        # The values and pi/2 are multiples of 2^-23 below 2.
        assert value * 2**23 % 1 == 0
        assert 0 <= value < 2
        ends = [row.low - e["center"], row.high - e["center"]]
        t = [e["slope"] + e["p2"] * r for r in ends]
        sums = [value + (-x if row.inverse else x) * r for x, r in zip(t, ends, strict=True)]
        pairs = [(e["center"], v) for v in (row.low, row.high)]
        pairs += [(e["slope"], x) for x in t] + [(value, x) for x in sums]
        for entry, x in pairs:
            assert entry == 0 or 0.501 < x / entry < 1.999
    assert c["HALF_PI"] * 2**23 % 1 == 0


@needs_gappa
@pytest.mark.slow
def test_the_error_stays_below_the_width(tmp_path):
    """By Gappa, but for some pieces whose arguments are run."""
    proved, left = [], []
    for row in rows():
        for piece in pieces(row):
            for found, r in halved(piece, partial(share, row), HALVINGS):
                if found < 1:
                    proved.append(found)
                else:
                    left.append(arguments(row, r))
    # Widths many times as large as the error would cost speed.
    assert max(proved) > 0.9
    assert len(left) <= len(proved) / 20
    if left and HAS_FMA:
        every, decided, wrong = run_path(tmp_path, "atan", "avx2", merged(left))
        assert wrong == 0
        assert 0.99 * every < decided


@needs_fma
def test_tiny_arguments_are_right(tmp_path):
    ranges = [(TINY / 1.001, TINY), (2.0**-41, 1.001 * 2.0**-41), (2.0**-140, 1.001 * 2.0**-140)]
    every, decided, wrong = run_path(tmp_path, "atan", "avx2", ranges)
    assert wrong == 0
    assert every == decided


@needs_gappa
@pytest.mark.parametrize("inverse", [False, True])
def test_half_of_a_width_is_not_proved(inverse):
    """In a row whose width is used."""
    row = next(row for row in rows() if row.low < 0.45 < row.high and row.inverse is inverse)
    r = tuple(v - row.entries["center"] for v in (0.438, 0.444))
    assert share(row, r) < 1 < share(row, r, 0.5)
