# SPDX-License-Identifier: Apache-2.0
"""The error bound of the path of tan at AVX-512, proved by Gappa or run.

For each entry of the tables, Gappa bounds the roundings of top and bottom
(``udfs/corem/tan/wide.gappa``); series bound what the polynomial lacks, and the tables and the
remainder of the argument are taken with the precision of mpmath. Where the sum exceeds the width
of the rounding test, all arguments are run. So are those nearest to zeros and poles.
"""

import math
from functools import cache, partial
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
from path_constants import UNIT, read, series_bound, source

STEPS, HALF = 32, 16
#: The magic sum counts n in units of it, and has room for these.
COUNT, MOST = 2.0**-22, 2**14
#: Pieces of r for each entry, which are halved until their bound holds, this often at most.
PIECES, HALVINGS = 8, 2
#: Arguments so near to zeros and poles are run; around 0, all below it are their own result.
NEAR = 2.0**-12
#: The terms of the series of tan that are looked at.
TERMS = 40
mpmath.mp.prec = PRECISION = 140


@cache
def header():
    """The macros and the tables without their prefix."""
    return read("common/trig_wide_constants.h").without("TRIG_WIDE_")


@cache
def tables(entry):
    """Sine, cosine and width of an entry."""
    columns = header()[1]
    return tuple(columns[f"tan_{n}"][entry] + 0.0 for n in ("sin", "cos", "width"))


def numbers(entry):
    """All n of an entry."""
    return np.arange(entry - MOST, MOST, STEPS)


@cache
def radius():
    """A bound of |r|: n is the integer nearest to x INVERSE, which is rounded once."""
    c = header()[0]
    parts = [mpf(c[f"TAN_{n}"]) * COUNT for n in ("HIGH", "MIDDLE")]
    nearest = COUNT / (2 * mpf(c["INVERSE"])) + MOST * abs(sum(parts) - COUNT / mpf(c["INVERSE"]))
    return float(nearest) * (1 + 2.0**-20)


def rest(r):
    """A bound of the rest of the argument: the rounding of r, and the last part of n pi/32."""
    found = 2.0 ** (math.floor(math.log2(max(map(abs, r)))) - 24)
    return (found + MOST * COUNT * abs(header()[0]["TAN_LOW"])) * (1 + 2.0**-20)


@cache
def lacking():
    """The coefficients of what the polynomial lacks of tan."""
    c = header()[0]
    known = {1: 1, 3: mpf(c["TAN3"]), 5: mpf(c["TAN5"])}
    return [x - known.get(n, 0) for n, x in enumerate(mpmath.taylor(mpmath.tan, 0, TERMS))]


@cache
def left_out():
    """What is left of pi/32 after its three parts."""
    c = header()[0]
    parts = sum(mpf(c[f"TAN_{n}"]) for n in ("HIGH", "MIDDLE", "LOW"))
    return abs(float(mpmath.pi / STEPS - parts * COUNT))


def angle(entry):
    """What the tables lack of n pi/32, as an angle."""
    s, c, _ = tables(entry)
    return abs(float(mpmath.atan2(s, c) - entry * mpmath.pi / STEPS))


def division(top_low, bottom_low, width):
    """What the division adds, relative, by the sizes of low parts, relative to their sums.

    y is a product with a rounded reciprocal. Its miss has two parts, which are rounded, as are
    their sum and the last one; the reciprocal is rounded and has no low part.
    """
    first, second = 2 * UNIT, top_low + bottom_low
    miss = first + second
    return (UNIT * (3 * miss + width) + miss * (UNIT + bottom_low)) * (1 + 2.0**-18)


def share(entry, r, factor=1.0):
    """Return the share of the width, times a factor, that the error takes at most in a piece."""
    c = header()[0]
    s, cosine, width = tables(entry)
    most, rest_most = max(map(abs, r)), rest(r)
    known = {n: as_gappa(c[n]) for n in ("TAN3", "TAN5")}
    known |= {"s": as_gappa(s), "c": as_gappa(cosine), "r": as_gappa(*r)}
    known |= {"rest": as_gappa(-rest_most, rest_most)}
    printed = gappa(source("tan/wide.gappa"), known)
    u = [math.tan(x) for x in r]
    tops, bottoms = [s + cosine * x for x in u], [cosine - s * x for x in u]
    # Neither vanishes in a piece.
    assert tops[0] * tops[1] > 0
    assert bottoms[0] * bottoms[1] > 0
    top, bottom = (min(map(abs, x)) * (1 - 2.0**-18) for x in (tops, bottoms))
    low = [float(largest(printed, f"|{n}|")) for n in ("t", "b")]
    found = largest(printed, "t - T") / top + largest(printed, "b - B") / bottom
    found += division(low[0] / top, low[1] / bottom, width)
    # The path has 1 + r^2 as the derivative of tan, and rounds the rest once more.
    beside = rest_most * (UNIT + most**4 + 2 * rest_most) + MOST * left_out() + angle(entry)
    beside += series_bound(lacking(), mpf(most) ** TERMS, r)
    found += (s * s + cosine * cosine) * beside / (top * bottom)
    return float(found) / (width * factor * (1 - 2.0**-20))


def pieces(entry):
    """Yield pieces of r; they get shorter towards a zero or a pole."""
    if entry % HALF:
        yield from pairwise(map(float, np.linspace(-radius(), radius(), PIECES + 1)))
        return
    cuts = [radius()]
    while cuts[-1] > NEAR:
        cuts.append(cuts[-1] * 0.75)
    yield from pairwise(reversed(cuts))
    yield from pairwise([-x for x in cuts])


def arguments(entry, r):
    """The arguments of a piece, and some around them, for all n."""
    center = numbers(entry) * math.pi / STEPS
    beside = (abs(center) + max(map(abs, r))) * 2.0**-22
    return zip(center + r[0] - beside, center + r[1] + beside, strict=True)


def test_what_the_path_counts_as_exact_is_exact():
    c = header()[0]
    high, middle = (c[f"TAN_{n}"] * COUNT for n in ("HIGH", "MIDDLE"))
    # HIGH and arguments with n other than 0 are multiples of 2^-28, so that first is, below 2^-4.
    assert high * 2**28 % 1 == 0
    assert high / 2 > 2**-5
    assert radius() + MOST * middle < 2**-4
    # All that the rest adds are multiples of 2^-37: n MIDDLE, and r - first, which is nearly that.
    assert middle * 2**37 % 1 == 0
    assert MOST * middle + 2**-29 < 2**24 * 2**-37
    u = math.tan(radius())
    for entry in range(STEPS):
        s, cosine, _ = tables(entry)
        # top - s and c - bottom: multiples of the smaller unit in the last place.
        for whole, change in ((s, abs(cosine) * u), (cosine, abs(s) * u)):
            if whole:
                least = (abs(whole) - change) * (1 - 2.0**-18)
                assert change < 2.0**24 * float(np.spacing(np.float32(least)))


@needs_gappa
@pytest.mark.slow
def test_the_error_stays_below_the_width(tmp_path):
    """By Gappa, or for long remainders and beside zeros and poles by a run."""
    proved, left, part = [], [], 0.0
    for entry in range(STEPS):
        for piece in pieces(entry):
            for found, r in halved(piece, partial(share, entry), HALVINGS):
                if found < 1:
                    proved.append(found)
                    part += (r[1] - r[0]) / (2 * radius() * STEPS)
                else:
                    left += arguments(entry, r)
        if entry % HALF == 0:
            # Around 0 an argument is its own result.
            left += [x for x in arguments(entry, (-NEAR, NEAR)) if x[0] > 0.01 or x[1] < -0.01]
    # Widths many times as large as the error would cost speed.
    assert max(proved) > 0.9
    assert 0.8 < part < 1
    if HAS_FMA:
        every, decided, wrong = run_path(tmp_path, "tan", "avx512", merged(left))
        assert wrong == 0
        assert 0.99 * every < decided


@needs_fma
def test_tiny_arguments_are_right(tmp_path):
    ranges = [(NEAR / 1.001, NEAR), (2.0**-41, 1.001 * 2.0**-41), (-(2.0**-130), -(2.0**-131))]
    every, decided, wrong = run_path(tmp_path, "tan", "avx512", ranges)
    assert wrong == 0
    assert every == decided


@needs_fma
def test_arguments_beyond_the_range_are_undecided(tmp_path):
    assert run_path(tmp_path, "tan", "avx512", [(1609.0, 1609.1), (-1e30, -0.9999e30)])[1] == 0


@needs_gappa
@pytest.mark.parametrize("entry", [3, 8, 16])
def test_half_of_a_width_is_not_proved(entry):
    """Where remainders are long."""
    r = (0.8 * radius(), 0.81 * radius())
    assert share(entry, r) < 1 < share(entry, r, 0.5)
