# SPDX-License-Identifier: Apache-2.0
"""The error bounds of the paths of sin and cos at AVX-512, proved by Gappa or run.

Both have the same tables and the same series. For each entry, Gappa bounds the roundings
(``udfs/corem/common/trig_wide.gappa``); mpmath bounds what the tables, the polynomial and the
remainder of the argument lack. Where the sum exceeds the width of the rounding test, all arguments
are run. So is sin where n is 0 and its width is smaller.
"""

import math
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from bounds import HAS_FMA, as_gappa, gappa, largest, merged, needs_fma, needs_gappa, run_path
from mpmath import mpf
from path_constants import read, source

STEPS, HALF = 32, 16
#: The magic sum counts n in units of it, and has room for these.
COUNT, MOST = 2.0**-22, 2**14
#: Pieces of r for each entry.
PIECES = 16
#: sin's width where n is 0 is in proportion to x^2; below it x is the result.
TINY = 2.0**-12


@cache
def header():
    """The macros and the tables without their prefix."""
    return read("common/trig_wide_constants.h").without("TRIG_WIDE_")


@cache
def width():
    """The width of both, which is absolute."""
    sine, cosine = (read(f"{n}/{n}f_wide.c").macros for n in ("sin", "cos"))
    found = cosine["COS_WIDE_WIDTH"]
    assert found == sine["SIN_WIDE_ELSEWHERE"] * sine["SIN_WIDE_WIDTH"]
    return found


def numbers(name, entry):
    """All n of an entry: those of cos are 16 less."""
    first = entry - (HALF if name == "cos" else 0)
    return np.arange(first - MOST, MOST + 1, STEPS)


def remainders(n, entry):
    """What the remainder of the argument lacks at most, for all n of an entry."""
    c, columns = header()
    step = mpmath.pi / STEPS
    left_out = abs(float(step - mpf(c["HIGH"]) * COUNT - mpf(c["LOW"]) * COUNT))
    # 39 bits, and a sum with the shift that is off by less than 2^-65.
    rest = n * (COUNT * c["LOW"]) + columns["shift"][entry]
    return abs(rest.astype(np.float32) - rest) + abs(n) * left_out + 2.0**-60


@cache
def radius(entry):
    """A bound of |r|: n is the integer nearest to x INVERSE, which is rounded once."""
    c, columns = header()
    step, most = COUNT / mpf(c["INVERSE"]), MOST + HALF
    nearest = step / 2 + most * abs(mpf(c["HIGH"]) * COUNT - step)
    rest = abs(columns["shift"][entry]) + most * abs(c["LOW"]) * COUNT
    return (float(nearest) + rest) * (1 + 2.0**-20)


def lacking(entry, r):
    """The largest error of the polynomial and the tables at many points of a piece."""
    c, columns = header()
    s, half, cosine = (mpf(columns[n][entry]) for n in ("sin", "half", "cos"))
    center = entry * mpmath.pi / STEPS + columns["shift"][entry]
    worst, points = mpf(0), 24
    for i in range(points + 1):
        x = r[0] + (mpf(r[1]) - r[0]) * i / points
        t = half * x + cosine
        path = s + t * x + x**3 * (t * c["T4"] + cosine * (c["C3"] + c["C5"] * x**2))
        worst = max(worst, abs(path - mpmath.sin(center + x)))
    return float(worst) * 1.02


def slope(entry, r):
    """A bound of the derivative in a piece."""
    columns = header()[1]
    most = max(map(abs, r))
    return min(1.0, abs(columns["cos"][entry]) + most * abs(2 * columns["half"][entry]) + 2.0**-12)


@cache
def error(entry, r):
    """A bound of all errors in a piece but for the remainder of the argument."""
    c, columns = header()
    s, half, cosine = (columns[n][entry] for n in ("sin", "half", "cos"))
    most = max(map(abs, r))
    r_low = 2.0 ** (math.floor(math.log2(most)) - 24)
    known = {n: as_gappa(c[n]) for n in ("C3", "C5", "T4")}
    known |= {"s": as_gappa(s + 0.0), "half": as_gappa(half), "c": as_gappa(cosine)}
    known |= {"width": as_gappa(width()), "r": as_gappa(*r), "r_low": as_gappa(-r_low, r_low)}
    printed = gappa(source("common/trig_wide.gappa"), known)
    rounding = max(largest(printed, f"{n} - {n.upper()}") for n in ("upper", "lower"))
    # What c + 2 half r lacks of the derivative, and r_low^2.
    beside = r_low * (abs(cosine) * most**2 / 2 + most**3 + 4 * r_low)
    return float(rounding) + lacking(entry, r) + beside


def pieces(entry):
    cuts = np.linspace(-radius(entry), radius(entry), PIECES + 1)
    return pairwise(map(float, cuts))


def left(name):
    """Return the ranges of x that are not proved, and the part of the pieces that is."""
    shifts, ranges, proved, every = header()[1]["shift"], [], 0, 0
    for entry in range(STEPS):
        n = numbers(name, entry)
        lack = remainders(n, entry)
        for r in pieces(entry):
            good = error(entry, r) + slope(entry, r) * lack < width()
            proved, every = proved + good.sum(), every + len(n)
            center = n[~good] * math.pi / STEPS + shifts[entry]
            beside = abs(center) * 2.0**-23
            ranges += zip(center + r[0] - beside, center + r[1] + beside, strict=True)
    return merged(ranges), proved / every


def test_what_the_paths_count_as_exact_is_exact():
    c, columns = header()
    # HIGH and arguments with n other than 0 are multiples of 2^-28, so that first is, below 2^-4.
    high = c["HIGH"] * COUNT
    assert high * 2**27 % 1 == 0
    assert high / 2 > 2**-5
    for entry in range(STEPS):
        assert radius(entry) < 2**-4
        # r_low: first is a multiple of the last place of the rest.
        rest = abs(columns["shift"][entry]) + (MOST + HALF) * abs(c["LOW"]) * COUNT
        assert rest < 2**-28 * 2**24
        s, half, cosine = (columns[n][entry] for n in ("sin", "half", "cos"))
        most = radius(entry)
        # c - t and high - s: multiples of the smaller unit in the last place.
        for whole, change in ((cosine, most * abs(half)), (s, most * (abs(cosine) + most))):
            if whole:
                least = abs(whole) - change
                assert change < 2.0**24 * float(np.spacing(np.float32(least * (1 - 2.0**-20))))


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_the_error_stays_below_the_width(tmp_path, name):
    """By Gappa, or for long remainders by a run."""
    ranges, proved = left(name)
    assert 0.5 < proved < 1
    if not HAS_FMA:
        return
    if name == "sin":
        ranges = merged([*ranges, (TINY, radius(0))])
    every, decided, wrong = run_path(tmp_path, name, "avx512", ranges)
    assert wrong == 0
    assert 0.99 * every < decided


@needs_fma
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_arguments_beyond_the_range_are_undecided(tmp_path, name):
    assert run_path(tmp_path, name, "avx512", [(1609.0, 1609.1), (-1e30, -0.9999e30)])[1] == 0


@needs_gappa
def test_a_quarter_of_the_width_is_not_proved():
    """Where the table is nearly exact, the roundings alone take more than that."""
    [r] = [r for r in pieces(12) if r[0] < 0.02 < r[1]]
    found = error(12, r)
    assert found < width()
    assert found > width() / 4
