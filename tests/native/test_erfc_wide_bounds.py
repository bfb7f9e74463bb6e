# SPDX-License-Identifier: Apache-2.0
"""The error bound of the path of erfc at AVX-512, proved by Gappa on pieces of its intervals.

Gappa bounds the roundings of the logarithm (``udfs/corem/erfc/wide.gappa``) and those of the
exponential (``wide_exp.gappa``); mpmath bounds what the polynomial of the logarithm lacks. Their
sum must stay below half of the width of the rounding test, by which the result is moved up. Where
it does not, all arguments are run.
"""

import math
import re
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
from path_constants import UNIT, half_unit, read, source

STEPS = 32
#: Pieces of d for the logarithm, and parts of each of these, so that r is short in one.
PIECES, PARTS = 16, 128
#: Ends of pieces of |r|, as parts of the largest.
CUTS = (0.0, 0.25, 0.5, 0.625, 0.75, 0.8125, 0.875, 0.9375, 1.0)
#: Points of a piece at which the error of the polynomial is looked at.
POINTS = 8
mpmath.mp.prec = PRECISION = 120


@cache
def header():
    """The macros and the tables of the path, and those of the exponential; and its polynomial."""
    exp = read("common/exp_quick_constants.h", wide=True).without("EXP_QUICK_")
    bounds = re.findall(r"error < 2\^(-[\d.]+), relative", source("common/exp_quick_constants.h"))
    path = read("erfc/wide_constants.h").without("ERFC_WIDE_")
    return *path, *exp, 2.0 ** float(bounds[0])


@cache
def intervals():
    """The intervals that are decided."""
    c, columns, *_ = header()
    slope, curve, first = c["SLOPE"], c["CURVE"], c["FIRST"]

    def end(number):
        return (slope - math.sqrt(slope**2 - 4 * curve * (number + 0.5))) / (2 * curve)

    least, found = round(slope * first - curve * first**2), []
    for number in range(least, least + STEPS - 1):
        # The number is rounded twice.
        low, high = max(first, end(number - 1) - 2**-20), end(number) + 2**-20
        entries = {n: v[number % STEPS] for n, v in columns.items() if len(v) == STEPS}
        entries["rest"] = rests()[number % STEPS]
        found.append(Interval(low, high, entries))
    return found


@cache
def rests():
    """The table of rests: a NaN, which is no number to read, is the last of the hard interval."""
    body = re.search(r"udf_erfc_wide_rest\[\] = \{(.*?)\};", source("erfc/wide_constants.h"), re.S)[
        1
    ]
    values = [v.strip().removesuffix("f") for v in body.split(",") if v.strip()]
    assert len(values) == STEPS
    return [math.nan if "nan" in v else float.fromhex(v) for v in values]


def cubic(e, d):
    """The factor of the terms from d^3 on."""
    return e["p3"] + d * (e["p4"] + d * (e["p5"] + d * (e["p6"] + d * e["p7"])))


def polynomial(e, d):
    """The logarithm's polynomial but for the steps and the rest."""
    shifted = d + header()[0]["SHIFT"]
    slope = e["slope"] + d * e["p2"] + e["slope_low"]
    return e["value"] + d * (slope + d * cubic(e, d) * shifted)


@cache
def margin():
    """By how much the result is moved up, and by how much in the exponential's table."""
    c, _, exp, *_ = header()
    return -mpf(c["WIDTH"]) / 2, mpf(exp["WIDTH"]) / 2


@cache
def radius():
    """A bound of |r|: k is the integer nearest to high INV_STEP, which is rounded once."""
    exp = header()[2]
    return float(mpf(exp["STEP_HI"]) / 2 + 16 * abs(1 - mpf(exp["INV_STEP"]) * exp["STEP_HI"]))


def logarithm_error(interval, d):
    """What the logarithm lacks at most in a piece, and a bound of its low part."""
    e, shift = interval.entries, header()[0]["SHIFT"]
    known = {n: as_gappa(v) for n, v in e.items()} | {"d": as_gappa(*d), "SHIFT": as_gappa(shift)}
    u = [e["p2"] + x * cubic(e, x) for x in d]
    t = [e["slope"] + x * y for x, y in zip(d, u, strict=True)]
    known["inexact_u"] = difference(e["p2"], "u", f"q * shifted + {known['p2']}", u)
    known["inexact_t"] = difference(e["slope"], "t", f"u * d + {known['slope']}", t)
    printed = gappa(source("erfc/wide.gappa"), known)
    steps = int(e["steps"] - 1.5 * 2**23)
    moved = mpf(e["rest"]) - margin()[0] + margin()[1] + steps * mpmath.log(2) / STEPS
    worst = mpf(0)
    for i in range(POINTS + 1):
        x = mpf(d[0]) + (mpf(d[1]) - d[0]) * i / POINTS
        true = mpmath.log(mpmath.erfc(e["center"] + x))
        worst = max(worst, abs(polynomial(e, x) + moved - true))
    return float(largest(printed, "low - LOW") + worst * 1.02), float(largest(printed, "|low|"))


def sizes(interval):
    """The largest size of high in an interval, and of k."""
    e, exp = interval.entries, header()[2]
    ends = [polynomial(e, x - e["center"]) for x in (interval.low, interval.high)]
    most = max(map(abs, ends)) * (1 + 2.0**-20) + 2.0**-24
    return most, math.ceil(most * exp["INV_STEP"])


@cache
def rest_of(interval, low):
    """A bound of the size of s in an interval by that of low, and what s lacks at most."""
    exp, offsets = header()[2], header()[3]["offset"]
    k = sizes(interval)[1]
    first = k * abs(exp["STEP_LO"]) + abs(interval.entries["rest"])
    second = first + max(map(abs, offsets))
    most = (second + low) * (1 + 2.0**-20)
    step = mpmath.log(2) / STEPS
    left_out = k * abs(step - mpf(exp["STEP_HI"]) - mpf(exp["STEP_LO"]))
    rounded = half_unit(first) + half_unit(second) + half_unit(most)
    return most, float(rounded + left_out) + table_error()


@cache
def table_error():
    """What the table of the exponential's rests lacks at most."""
    exp, columns = header()[2:4]
    worst = mpf(0)
    for j, (t, offset) in enumerate(zip(columns["power"], columns["offset"], strict=True)):
        true = j * mpmath.log(2) / STEPS - mpmath.log(t) + mpf(exp["WIDTH"]) / 2
        worst = max(worst, abs(true - offset))
    return float(worst)


def exponential_error(s, r):
    """What the exponential lacks at most for pieces of r, relative to its entry of the table.

    Two bounds: of the upper sum, and of the lower one with the width.
    """
    c, _, exp, columns, series = header()
    known = {n: as_gappa(exp[n]) for n in ("C3", "C4")}
    known |= {"r": as_gappa(*r), "s": as_gappa(-s, s)}
    printed = gappa(source("erfc/wide_exp.gappa"), known)
    p = float(largest(printed, "|p|"))
    most, width = max(map(abs, r)), abs(c["WIDTH"])
    # The polynomial's bound is for an argument that is shorter by s: its error grows as that of a
    # polynomial of degree five. The error of y is rounded to 2^-24 of its 2^-24.
    assert s < radius() / 64
    error = float(largest(printed, "p - P")) + series * 1.6 + 2 * UNIT * UNIT
    upper = lower = 0.0
    for t in columns["power"]:
        low = t * p + float(half_unit(t * (1 + most)))
        upper = max(upper, float(half_unit(low)) / t)
        lower = max(lower, float(half_unit(low + t * width)) / t)
    return error + upper, error + upper + lower


@cache
def exponentials(interval, low):
    """The errors of the exponential for an interval and all pieces of r, of either sign."""
    s, most = rest_of(interval, low)[0], radius()
    pieces = [(a * most, b * most) for a, b in pairwise(CUTS)]
    pieces = [*((-b, -a) for a, b in reversed(pieces)), *pieces]
    return pieces, [exponential_error(s, r) for r in pieces]


def shares(interval):
    """Yield parts of an interval, each after the share of the margin that its error takes."""
    e, exp = interval.entries, header()[2]
    cuts = np.linspace(interval.low - e["center"], interval.high - e["center"], PIECES + 1)
    found = [logarithm_error(interval, d) for d in pairwise(map(float, cuts))]
    low = max(low for _, low in found)
    lacks = rest_of(interval, low)[1]
    pieces, errors = exponentials(interval, low)
    half = float(margin()[0])
    for (logarithm, _), ends in zip(found, pairwise(cuts), strict=True):
        parts = np.linspace(*ends, PARTS + 1)
        high = polynomial(e, parts)
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
            for (a, b), (upper, lower) in zip(pieces, errors, strict=True):
                if b < least or a > most:
                    continue
                # The exponential without its entry.
                size = [math.exp(x) for x in (a - 2.0**-12, b + 2.0**-12)]
                above = logarithm + lacks + upper / size[0]
                below = size[1] * (half + logarithm + lacks) + lower - half
                share = max(share, above / half, below / half)
            yield share, (float(d[0]), float(d[1]))


def test_what_the_path_counts_as_exact_is_exact():
    exp = header()[2]
    # high is a multiple of 2^-30 where k is not 0.
    assert exp["STEP_HI"] / 2 * (1 - 2**-10) > 2**-7
    assert exp["STEP_HI"] * 2**30 % 1 == 0
    assert radius() < 2**-6
    for interval in intervals():
        e = interval.entries
        # Arguments less the center: multiples of the smaller unit in the last place.
        ends = [interval.low, interval.high]
        assert e["center"] == 0 or is_exact(e["center"], ends)
        high = [polynomial(e, x - e["center"]) for x in ends]
        assert is_exact(e["value"], [x * (1 - 2.0**-20) for x in high])
        # Results are normal.
        assert mpmath.erfc(interval.high) > 2.0**-126


@needs_gappa
@pytest.mark.slow
def test_the_error_stays_below_the_margin(tmp_path):
    """By Gappa, or by a run of all arguments of the parts that are left open."""
    proved, left = [], []
    for interval in intervals():
        for share, d in shares(interval):
            if share < 1:
                proved.append(share)
                continue
            ends = [interval.entries["center"] + x for x in d]
            left.append((ends[0] - 2.0**-22, ends[1] + 2.0**-22))
    # Margins many times as wide as the error would cost speed.
    assert max(proved) > 0.9
    assert len(proved) > len(left)
    # The result is 2 long before.
    assert min(left)[0] > -2
    if HAS_FMA:
        every, decided, wrong = run_path(tmp_path, "erfc", "avx512", merged(left))
        assert wrong == 0
        assert 0.99 * every < decided


@needs_fma
def test_arguments_before_the_first_interval_are_right(tmp_path):
    first = header()[0]["FIRST"]
    ranges = [(first * 1.0001, first), (-1e30, -0.9999e30)]
    every, decided, wrong = run_path(tmp_path, "erfc", "avx512", ranges)
    assert every == decided
    assert wrong == 0


@needs_gappa
def test_a_wrong_constant_is_not_proved():
    """Of p2, a few units in the last place."""
    interval = intervals()[5]
    assert max(found for found, _ in shares(interval)) < 0.5
    entries = interval.entries | {"p2": interval.entries["p2"] * (1 + 2.0**-20)}
    wrong = Interval(interval.low, interval.high, entries)
    assert max(found for found, _ in shares(wrong)) > 1
