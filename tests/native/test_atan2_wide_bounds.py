# SPDX-License-Identifier: Apache-2.0
"""The error bound of the path of atan2 at AVX-512, proved by Gappa for all quotients.

Gappa bounds the roundings (``udfs/corem/atan2/wide.gappa``) on pieces of the rows, in each case of
base and sign; the Taylor series of atan bounds what the polynomials lack. The sum must stay below
the width of the rounding test.
"""

import math
import re
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from bounds import as_gappa, gappa, halved, is_exact, largest, needs_gappa
from mpmath import mpf
from path_constants import encoding, read, series_bound, source

ROWS, DEGREE = 32, 4
#: Multiples of pi/2 that are the base, and the sign of the quotient.
CASES = ((0, 1), (1, 1), (1, -1), (2, -1))
#: A result that is smaller, but not 0, is left to the fast path.
LEAST = 2.0**-40
#: A bound of the error of the reciprocal, relative.
RECIPROCAL = 2.0**-12.5
#: Pieces of a row, which are halved until their bound holds, this often at most.
PIECES, HALVINGS = 8, 4
#: The terms of the series of atan that are looked at.
TERMS = 30
mpmath.mp.prec = PRECISION = 140


@dataclass(frozen=True, eq=False)
class Row:
    """An interval of the size of the quotient, and its entries."""

    low: float
    high: float
    entries: dict[str, float]


@cache
def header():
    """The macros and the tables without their prefix."""
    return read("atan2/wide_constants.h").without("ATAN2_WIDE_")


@cache
def rows():
    """The rows, from the constants in C."""
    c, columns = header()
    found = []
    for i in range(ROWS):
        # The number of the row is rounded once.
        low, high = ((i + side) / c["SCALE"] for side in (-0.5, 0.5))
        low, high = max(low - 2**-24, 0.0), min(high + 2**-24, 1.0)
        found.append(Row(low, high, {n: v[i] + 0.0 for n, v in columns.items()}))
    assert found[-1].high == 1
    return found


@cache
def lacking(row):
    """The coefficients of what the polynomial lacks of atan around a center."""
    e = row.entries
    c = mpf(e["center"])
    angle, size = mpmath.atan(1 / c) if c else mpmath.pi / 2, mpmath.sqrt(1 + c * c)
    exact = [mpmath.atan(c)]
    exact += [(-1) ** (n - 1) * mpmath.sin(n * angle) / (n * size**n) for n in range(1, TERMS)]
    known = [mpf(e[n]) for n in ("value", "slope", "p2", "p3", "p4")]
    return [x - (known[n] if n < len(known) else 0) for n, x in enumerate(exact)]


def polynomial_error(row, r):
    """The largest error of the polynomial in a piece; relative to r where the center is 0."""
    most = max(map(abs, r))
    rest = mpf(most) ** (TERMS - 1)
    if row.entries["center"]:
        return series_bound(lacking(row), rest, r)
    assert lacking(row)[0] == 0
    return most * series_bound(lacking(row)[1:], rest, r)


def share(row, base, sign, r, factor=1.0):
    """Return the share of the width, times a factor, that the error takes at most in a piece."""
    c, e = header()[0], row.entries
    start, most = base * c["HALF_PI"], max(map(abs, r))
    value, size = start + sign * e["value"], (e["center"] + r[0], e["center"] + r[1])
    rest, width = 2.0 ** (math.floor(math.log2(size[1])) - 25), e["width"] * factor
    ends = [value + sign * e["slope"] * x for x in r]
    known = {n: as_gappa(e[n]) for n in ("slope", "p2", "p3", "p4")} | {"width": as_gappa(width)}
    known |= {"value": as_gappa(value), "s": "r" if sign > 0 else "-r"}
    known |= {"MORE": as_gappa(start * c["LOW"] / 2)}
    known |= {"more": f"rnd({known['MORE']})"}
    # The result is nearly the sum, so that one side of the cap counts but beside its end.
    small = max(ends) < c["CAP"]
    known["capped"] = "high" if small else as_gappa(c["CAP"])
    known |= {"r": as_gappa(*r), "rest": as_gappa(-rest, rest)}
    printed = gappa(source("atan2/wide.gappa"), known)
    rounding = max(largest(printed, f"{n} - {n.upper()}") for n in ("upper", "lower"))
    error = polynomial_error(row, r)
    error += abs(base * mpmath.pi / 2 - start * (1 + mpf(c["LOW"])))
    # The reciprocal, and two roundings; the polynomial takes the rest of r^2 to first order only.
    bend = abs(e["p2"]) * 2 * rest + most**2 * (abs(e["p3"]) + 3 * abs(e["p4"]) * most)
    slope = abs(e["slope"]) + 2 * abs(e["p2"]) * most
    error += 2 * rest * (slope * (RECIPROCAL + 2.0**-22) + 2 * bend)
    least = min(c["CAP"], *ends) * width
    return float((rounding + error) / (least * (1 - 2.0**-18)))


def pieces(row, base):
    """Yield pieces of a row, in r."""
    c = row.entries["center"]
    if c:
        yield from pairwise(map(float, np.linspace(row.low - c, row.high - c, PIECES + 1)))
        return
    cuts = [row.high]
    while cuts[-1] > LEAST:
        cuts.append(cuts[-1] * (0.8 if cuts[-1] > 2**-10 else 0.5))
    if base:
        cuts.append(0.0)
    yield from pairwise(reversed(cuts))


def half_inverse(v):
    """The reciprocal of root_wide.h; sums and products are rounded once from double."""
    path = "common/root_wide_constants.h"
    magic = int(re.search(r"MAGIC UINT32_C\((\w+)\)", source(path))[1], 16)
    y = (np.uint32(magic) - v.view(np.uint32)).view(np.float32)
    step = read(path).macros["ROOT_WIDE_STEP"]
    inner = (step - v.astype(np.float64) * y).astype(np.float32)
    return y * inner


def test_the_reciprocal_is_near_enough():
    """For all floats of a power of two, and some of others within the range of the path."""
    for power, step in ((0, 1), (-40, 1000), (87, 1000)):
        bits = np.arange(encoding(2.0**power), encoding(2.0 ** (power + 1)), step, dtype=np.uint32)
        v = bits.view(np.float32)
        assert np.abs(2 * half_inverse(v) * v.astype(np.float64) - 1).max() < RECIPROCAL
    near = np.array([-1.5], dtype=np.float32)
    assert half_inverse(near) == -half_inverse(-near)


def test_the_tables_are_such_that_differences_are_exact():
    c = header()[0]
    assert c["HALF_PI"] * 2**22 % 1 == 0
    assert 2 * c["HALF_PI"] < 4
    for row in rows():
        e = row.entries
        # So is the sum with a base.
        assert e["value"] * 2**22 % 1 == 0
        assert e["center"] == 0 or is_exact(e["center"], [row.low, row.high])
        for base, sign in CASES:
            value = base * c["HALF_PI"] + sign * e["value"]
            ends = [value + sign * e["slope"] * (x - e["center"]) for x in (row.low, row.high)]
            assert is_exact(value, [x * (1 - 2.0**-20) for x in ends])


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize(("base", "sign"), CASES)
def test_the_error_stays_below_the_width(base, sign):
    found = []
    for row in rows():
        for piece in pieces(row, base):
            found += [s for s, _ in halved(piece, partial(share, row, base, sign), HALVINGS)]
    assert 0.9 < max(found) < 1


@needs_gappa
@pytest.mark.parametrize("number", [0, 1, 20])
def test_three_quarters_of_a_width_are_not_proved(number):
    """A run of pairs found some wrong with that."""
    row = rows()[number]
    found = [(share(row, 0, 1, r), share(row, 0, 1, r, 0.74)) for r in list(pieces(row, 0))[-8:]]
    assert max(narrow for _, narrow in found) > 1
