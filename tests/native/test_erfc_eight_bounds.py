# SPDX-License-Identifier: Apache-2.0
"""The error bound of the path of erfc at AVX2, proved by Gappa on pieces of its intervals.

Gappa bounds the roundings of the logarithm (``udfs/corem/erfc/eight.gappa``) and those of the
exponential (``eight_exp.gappa``); series bound what the exponential lacks, and mpmath what the
polynomial of the logarithm does. Their sum must stay below half of the width of the rounding test,
by which erfc(|x|) is moved up. Where it does not, all arguments are run.
"""

import math
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from bounds import (
    HAS_FMA,
    Interval,
    as_gappa,
    difference,
    gappa,
    is_exact,
    largest,
    merged,
    needs_fma,
    needs_gappa,
    run_path,
)
from mpmath import mpf
from path_constants import UNIT, half_unit, read, series_bound, single, source

STEPS = 8
#: Pieces of d for the logarithm, and parts of each of these, so that r is short in one.
PIECES, PARTS = 64, 64
#: Ends of pieces of |r|, as parts of the largest.
CUTS = (0.0, 0.25, 0.5, 0.625, 0.75, 0.8125, 0.875, 0.9375, 1.0)
#: Points of a piece at which the error of the polynomial is looked at.
POINTS = 4
#: Negative arguments from -WHOLE down are run: low parts of 2 - erfc(|x|) are long for the width.
WHOLE = 2.5
#: The terms of the series of the exponential that are looked at.
TERMS = 16
mpmath.mp.prec = PRECISION = 120


@cache
def header():
    """The macros and the tables of the path, and the macros of the exponential."""
    path = read("erfc/eight_constants.h", "erfc/erfcf_eight.c").without("ERFC_EIGHT_")
    exp, columns = read("common/exp_eight_constants.h").without("EXP_EIGHT_")
    return *path, exp, columns["rest"]


@cache
def margin():
    """By how much the result is moved up."""
    return -header()[0]["WIDTH"] / 2


@cache
def intervals():
    """All intervals."""
    c, columns, *_ = header()
    slope, curve, last = c["SLOPE"], c["CURVE"], c["LAST"]
    found, low = [], 0.0
    for i in range(STEPS):
        beside = slope**2 - 4 * curve * (i + 0.5)
        high = min(last, (slope - math.sqrt(beside)) / (2 * curve)) if beside > 0 else last
        entries = {n: v[i] for n, v in columns.items()}
        # The number is rounded twice.
        found.append(Interval(max(0.0, low - 2**-20), min(high + 2**-20, last), entries))
        low = high
    assert low == last
    return found


def horner(e, d, first):
    """The polynomial in d of the entries from a degree on."""
    found = 0.0
    for n in reversed(range(first, 9)):
        found = e[f"p{n}"] + d * found
    return found


def polynomial(e, d):
    """The half of the logarithm but for the steps and the rest."""
    return d * (e["slope"] + e["slope_low"] + d * horner(e, d, 2))


@cache
def radius():
    """A bound of |r|: k is the integer nearest to high INV_STEP, which is rounded once."""
    exp = header()[2]
    return float(mpf(exp["STEP_HI"]) / 2 + 32 * abs(1 - mpf(exp["INV_STEP"]) * exp["STEP_HI"]))


@cache
def logarithm_error(interval, d):
    """What the logarithm lacks at most in a piece, and a bound of its low part."""
    e = interval.entries
    known = {n: as_gappa(v) for n, v in e.items()} | {"d": as_gappa(*d)}
    v, u, t = (
        [entry + x * horner(e, x, first) for x in d]
        for entry, first in ((e["p3"], 4), (e["p2"], 3), (e["slope"], 2))
    )
    known["inexact_v"] = difference(e["p3"], "v", f"q * d + {known['p3']}", v)
    known["inexact_u"] = difference(e["p2"], "u", f"v * d + {known['p2']}", u)
    known["inexact_t"] = difference(e["slope"], "t", f"u * d + {known['slope']}", t)
    printed = gappa(source("erfc/eight.gappa"), known)
    steps = e["steps"] - 1.5 * 2**23
    moved = mpmath.log1p(e["rest"]) - margin() + steps * mpmath.log(2) / STEPS
    worst = mpf(0)
    for i in range(POINTS + 1):
        x = mpf(d[0]) + (mpf(d[1]) - d[0]) * i / POINTS
        true = mpmath.log(mpmath.erfc(e["center"] + x))
        worst = max(worst, abs(2 * polynomial(e, x) + moved - true))
    rounding, low = largest(printed, "low - LOW"), largest(printed, "|low|")
    return float(2 * rounding + worst * 1.02), 2 * float(low)


@cache
def table_error():
    """What the exponential's table of rests lacks at most."""
    return max(
        abs(float(j * mpmath.log(2) / STEPS - mpmath.log(power(j)) - offset))
        for j, offset in enumerate(header()[3])
    )


def power(number):
    """The path's power of two, whose logarithm is a number of steps."""
    return single(mpf(2) ** (mpf(number % STEPS) / STEPS)) * 2.0 ** (number // STEPS)


def rest_of(interval, low):
    """A bound of the size of s in an interval by that of low, and what s lacks at most."""
    e, (_, _, exp, offsets) = interval.entries, header()
    ends = [2 * polynomial(e, x - e["center"]) for x in (interval.low, interval.high)]
    k = math.ceil(max(map(abs, ends)) * exp["INV_STEP"])
    first = abs(e["rest"]) + k * abs(exp["STEP_LO"])
    most = (first + low + max(map(abs, offsets))) * (1 + 2.0**-20)
    rounded = float(half_unit(first) + half_unit(first + low) + half_unit(most))
    step = mpmath.log(2) / STEPS
    left_out = float(k * abs(step - mpf(exp["STEP_HI"]) - mpf(exp["STEP_LO"])))
    # 1 + s is the product of 1 + rest and of an exponential but for this.
    beside = most - abs(e["rest"])
    product = beside * (abs(e["rest"]) + beside)
    return most, rounded + left_out + product + table_error()


@cache
def lacking():
    """The coefficients by h of what the exponential lacks of exp(2 h)."""
    exp = header()[2]
    known = [1, 1, mpf(1) / 2, *(mpf(exp[f"C{n}"]) for n in (3, 4, 5))]
    exact = [1 / mpmath.factorial(n) for n in range(TERMS)]
    return [2**n * (x - (known[n] if n < 6 else 0)) for n, x in enumerate(exact)]


@cache
def exponentials():
    """Pieces of r of either sign, and for each what the exponential lacks, and a low part."""
    exp, most = header()[2], radius()
    pieces = [(a * most, b * most) for a, b in pairwise(CUTS)]
    pieces = [*((-b, -a) for a, b in reversed(pieces)), *pieces]
    found = []
    for r in pieces:
        h = (r[0] / 2, r[1] / 2)
        known = {"C3": 4 * exp["C3"], "C4": 8 * exp["C4"], "C5": 16 * exp["C5"]}
        printed = gappa(source("erfc/eight_exp.gappa"), known | {"h": as_gappa(*h)})
        lacks = series_bound(lacking(), mpf(most) ** TERMS, h)
        found.append((
            float(2 * largest(printed, "e_low - E_LOW") + lacks),
            2 * float(largest(printed, "|e_low|")),
        ))  # fmt: skip
    return pieces, found


@cache
def sum_error(j, i, s, negative, exponent=0):
    """What the last sums lack at most, relative to the power, for a piece of r numbered i.

    Two bounds: of the upper sum, and of the lower one with the width. Where the argument is
    negative the base is 2, and the low part may be half a unit in the last place of 2.
    """
    pieces, found = exponentials()
    error, e_low = found[i]
    t = power(j)
    size = t * math.exp(max(pieces[i])) * (1 + 2.0**-10)
    low = t * e_low + float(half_unit(size))
    # The error of y is rounded; y and its low part are added for the product with s.
    rounded = float(half_unit(low)) + UNIT * float(half_unit(size)) + s * UNIT * size
    last = low + s * size
    if negative:
        base = 2.0**-exponent * UNIT
        rounded += float(half_unit(low + base))
        last += base
    upper = rounded + float(half_unit(last))
    lower = float(half_unit(last + 2 * margin() * t))
    return (error * (1 + s) + upper / t), lower / t


def shares(interval, negative=False, pieces=PIECES):
    """Yield parts of an interval, each after the share of the margin that its error takes."""
    e, exp = interval.entries, header()[2]
    steps, half = int(e["steps"] - 1.5 * 2**23), margin()
    cuts = np.linspace(interval.low - e["center"], interval.high - e["center"], pieces + 1)
    found = [logarithm_error(interval, d) for d in pairwise(map(float, cuts))]
    s = rest_of(interval, max(low for _, low in found))[0]
    for (logarithm, low), ends in zip(found, pairwise(cuts), strict=True):
        lacks = rest_of(interval, low)[1]
        parts = np.linspace(*ends, PARTS + 1)
        high = 2 * polynomial(e, parts)
        # The path's high lacks a rounding, and what is in the low part.
        beside = np.abs(high).max() * 2 * UNIT + low
        for d, y in zip(pairwise(parts), pairwise(high), strict=True):
            least, most = min(y) - beside, max(y) + beside
            k = [round(v * exp["INV_STEP"] + x) for v, x in ((least, -2e-6), (most, 2e-6))]
            if k[0] == k[1]:
                least, most = (v - k[0] * exp["STEP_HI"] for v in (least, most))
            else:
                # The nearest multiple changes, and r may be of any size.
                least, most = -radius(), radius()
            share = 0.0
            for i, (a, b) in enumerate(exponentials()[0]):
                if b < least or a > most:
                    continue
                for n in k:
                    exponent, j = divmod(steps + n, STEPS)
                    upper, lower = sum_error(j, i, s, negative, exponent if negative else 0)
                    size = [math.exp(x) for x in (a - 2 * s, b + 2 * s)]
                    above = logarithm + lacks + upper / size[0]
                    below = size[1] * (half + logarithm + lacks) + upper + lower - half
                    share = max(share, above / half, below / half)
            yield share, (float(d[0]), float(d[1]))


def test_what_the_path_counts_as_exact_is_exact():
    exp = header()[2]
    # high, doubled, is a multiple of 2^-28 where k is not 0.
    assert exp["STEP_HI"] / 2 * (1 - 2**-10) > 2**-5
    assert exp["STEP_HI"] * 2**28 % 1 == 0
    assert radius() < 2**-4
    for interval in intervals():
        center = interval.entries["center"]
        assert center == 0 or is_exact(center, [interval.low, interval.high])
        # Low parts are not subnormal.
        assert mpmath.erfc(interval.high) > 2.0**-100


@needs_gappa
@pytest.mark.slow
def test_the_error_stays_below_the_margin(tmp_path):
    """By Gappa, or by a run of all arguments of the parts that are left open."""
    proved, left = [], []
    last = header()[0]["LAST"]
    for interval in intervals():
        for negative in (False, True):
            if negative and interval.low > WHOLE:
                continue
            for share, d in shares(interval, negative):
                if share < 1:
                    proved.append(share)
                    continue
                low, high = (interval.entries["center"] + x for x in d)
                low, high = low - 2.0**-22, high + 2.0**-22
                left.append((-high, -low) if negative else (low, high))
    # Margins many times as wide as the error would cost speed.
    assert max(proved) > 0.9
    assert len(proved) > 4 * len(left)
    if HAS_FMA:
        left.append((-1.01 * last, -WHOLE))
        every, decided, wrong = run_path(tmp_path, "erfc", "avx2", merged(left))
        assert wrong == 0
        assert 0.99 * every < decided


@needs_fma
def test_arguments_beyond_the_range_are_undecided_or_right(tmp_path):
    last = header()[0]["LAST"]
    assert run_path(tmp_path, "erfc", "avx2", [(last, 1.0001 * last), (20.0, 20.001)])[1] == 0
    every, decided, wrong = run_path(tmp_path, "erfc", "avx2", [(-1e30, -0.9999e30)])
    assert every == decided
    assert wrong == 0


@needs_gappa
def test_a_wrong_constant_is_not_proved():
    """Of p2, a few units in the last place."""
    interval = intervals()[5]
    assert max(found for found, _ in shares(interval, pieces=16)) < 1
    entries = interval.entries | {"p2": interval.entries["p2"] * (1 + 2.0**-20)}
    wrong = Interval(interval.low, interval.high, entries)
    assert max(found for found, _ in shares(wrong, pieces=16)) > 1
