# SPDX-License-Identifier: Apache-2.0
"""The error bound of the path of pow at AVX-512, proved by Gappa for all that it decides.

The width of the rounding test has four parts. Those for |y| r^2 and |y| must be larger than |y|
times the error of log(x): Gappa bounds its roundings (``udfs/corem/pow/wide.gappa``), series what
its polynomial lacks. Those for d^2 and 1 must be larger than the error of the exponential with the
low part of the product t: ``udfs/corem/common/exp_wide.gappa`` bounds the polynomial's roundings.
"""

import itertools
import math
from functools import cache, partial
from itertools import pairwise

import mpmath
import pytest
from bounds import as_gappa, gappa, halved, largest, needs_gappa
from mpmath import iv, mpf
from path_constants import (
    UNIT,
    half_unit,
    mantissas,
    read,
    series_bound,
    single,
    source,
    unscaled,
)

STEPS = 32
#: |t| ends here, t being the exponent of 2 of the result.
MOST = 64.0
#: Ends of ranges of |log2(x)|, which are powers of two.
RANGES = ((0, 1), (1, 2), (2, 8), (8, 32), (32, 128))
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 3
#: The terms of the series of the logarithm that are looked at.
TERMS = 24
iv.prec = mpmath.mp.prec = PRECISION = 120


@cache
def header():
    """The macros without UDF, and the tables, as if r were not scaled."""
    files = [f"common/{n}.h" for n in ("log_wide_constants", "exp_wide_constants")]
    return unscaled(read(*files, "pow/wide_constants.h", "pow/powf_wide.c"))


@cache
def intervals():
    """For each interval its number, the ends of r, its high and low parts, and what they lack."""
    columns, found = header()[1], []
    rows = zip(columns["log_wide_reciprocal"], columns["log2_wide_high"],
               columns["log2_wide_low"], strict=True)  # fmt: skip
    for i, (reciprocal, high, low) in enumerate(rows):
        ends = [m * reciprocal - 1 for m in mantissas(i)]
        lacking = abs(float(-mpmath.log(mpf(reciprocal), 2) - high - low))
        found.append((i, ends, high, low, lacking))
    return found


@cache
def lacking():
    """The coefficients of what the polynomial lacks of log2(1 + r), and a rest for |r| < 1/32."""
    c = header()[0]
    known = [mpf(0), mpf(c["LOG2_WIDE_C1_HI"]) + mpf(c["LOG2_WIDE_C1_LO"])]
    known += [mpf(c[f"LOG2_WIDE_C{n}"]) for n in (2, 3, 4, 5)]
    exact = [mpf(0), *((-1) ** (n - 1) / (n * mpmath.log(2)) for n in range(1, TERMS))]
    return [x - (known[n] if n < len(known) else 0) for n, x in enumerate(exact)], mpf(2) ** -110


def logarithm_share(interval, most, r):
    """The share of the parts of the width for |y|, where |log2(x)| is below a power of two."""
    c, low = header()[0], interval[3]
    e = most / 2 * UNIT
    known = {n: as_gappa(c[f"LOG2_WIDE_{n}"]) for n in ("C1_LO", "C2", "C3", "C4", "C5")}
    known |= {"low": as_gappa(low + 0.0), "r": as_gappa(*r), "e": as_gappa(-e, e)}
    rounding = largest(gappa(source("pow/wide.gappa"), known), "more - MORE")
    error = float(rounding + series_bound(*lacking(), r)) + interval[4]
    return error * math.log(2) / (logarithm_width(r) * (1 - 2.0**-20))


def logarithm_width(r):
    """The least of the parts of the width for |y|, by |y|."""
    c = header()[0]
    least = 0.0 if r[0] <= 0 <= r[1] else min(map(abs, r)) ** 2
    return c["POW_WIDE_LOG"] * least + c["POW_WIDE_Y"]


def pieces_of(interval):
    """Yield pieces of r; they get shorter towards 0."""
    low, high = interval[1]
    inner = [0.0, *(end * 0.8**n for end in (low, high) for n in range(1, 12))]
    cuts = [low, *sorted(x for x in inner if low < x < high), high]
    yield from pairwise(cuts)


def least(interval):
    """The least |log2(x)| of an interval's arguments: 0 beside 1, where y may be large."""
    _, ends, high, _, _ = interval
    return min(abs(math.log2(1 + r) + high + k) for k in (-1, 0) for r in ends) if high % 1 else 0.0


def excess(interval, start, end):
    """What the error of log(x) has at most above its width, where |log2(x)| is in a range."""
    found = 0.0
    for piece in pieces_of(interval):
        for share, r in halved(piece, partial(logarithm_share, interval, end), HALVINGS):
            found = max(found, (share - 1) * logarithm_width(r))
    # y is at most so large.
    return found * MOST / max(start, least(interval))


def tail():
    """A bound of the low part of t, and of its rounding."""
    low = (MOST / 2 * UNIT + MOST * UNIT) * (1 + 2.0**-20)
    return low, float(half_unit(low))


def exponential_share(j, other, d, taken=2):
    """The share of the parts of the width for d^2 and 1, for an entry and a piece of d.

    other is an error besides, and taken the terms of exp(u) - 1 that the path has.
    """
    c, columns = header()
    power = columns["exp_wide_power"][j]
    names = {"C2": c["POW_WIDE_D2"], "C3": c["EXP_WIDE_D3"], "C4": c["EXP_WIDE_D4"]}
    first, second = columns["exp_wide_rest_d"][j], columns["exp_wide_rest"][j]
    known = {n: as_gappa(v) for n, v in names.items()} | {"s": "1, 1", "r": as_gappa(*d)}
    for name, v in (("first", first), ("second", second)):
        known |= {name: as_gappa(v), name.upper(): as_gappa(v)}
    printed = gappa(source("common/exp_wide.gappa"), known)
    p = float(largest(printed, "  P")) + 2.0**-40
    # What P lacks: it should be 2^(j/32 + d) / power less 1 and the slope.
    exact = j * mpmath.log(2) / STEPS - mpmath.log(power)
    whole, log2 = mpmath.exp(exact), mpmath.log(2)
    slope = mpf(single(power * c["EXP_WIDE_LN2"])) / power
    series = [second - (whole - 1), first + slope - whole * log2]
    series += [mpf(names[f"C{n}"]) - whole * log2**n / mpmath.factorial(n) for n in (2, 3, 4)]
    series += [-whole * log2**n / mpmath.factorial(n) for n in range(5, 16)]
    error = other + float(largest(printed, "p - P") + series_bound(series, mpf(2) ** -110, d))
    # All that follows is relative to the power, and the result is at most 1.011 of it.
    t_low, rounded = tail()
    beside, size = t_low * math.log(2), 1.011
    low = power * p + float(half_unit(power * size))
    sums = float(half_unit(low)) + UNIT * float(half_unit(power * size))
    sums += float(half_unit(low + power * size * beside))
    # The sum of the pair, the product u with log(2), that constant and u + u^2/2 are rounded.
    left_out = beside ** (taken + 1) / math.factorial(taken + 1) * (1 + beside)
    error += sums / power + size * (beside * 4 * UNIT + rounded + left_out)
    # The last sum.
    far = max(map(abs, d))
    width = c["POW_WIDE_EXP"] * far**2 + c["POW_WIDE_ALL"]
    error += float(half_unit(low + power * (size * beside + width))) / power
    least = 0.0 if d[0] <= 0 <= d[1] else min(map(abs, d)) ** 2
    width = c["POW_WIDE_EXP"] * least + c["POW_WIDE_ALL"]
    return error / (width * (1 - 2.0**-20))


def pieces():
    """Pieces of d of either sign."""
    cuts = [0.9**n / 64 for n in range(20)]
    return pairwise([*(-x for x in cuts), 0.0, *reversed(cuts)])


@cache
def other():
    """What the logarithm may add to the error of the exponential at most."""
    far = (x for x in itertools.product(RANGES, intervals()) if x[0][0] or least(x[1]))
    return max(excess(interval, *ends) for ends, interval in far)


def test_what_the_path_counts_as_exact_is_exact():
    """As does test_log_wide_bounds: r, and base less the first sum, are those of log2."""
    c = header()[0]
    for _, (low, high), base, _, _ in intervals():
        assert all(k + base == single(k + base) for k in range(-149, 128))
        # The low part of the logarithm is what its sum loses: the first sum is the larger one.
        size = max(abs(low), abs(high))
        assert base == 0 or abs(base) - 1.45 * size > size**2
        assert size < 1 / 32
    # Sums with n have a last bit of 1/32.
    assert c["POW_WIDE_MAX"] == MOST < 2**17


@needs_gappa
@pytest.mark.slow
def test_the_error_of_the_logarithm_stays_below_its_width():
    """Beside 1, where y may be large."""
    found = []
    beside = [x for x in intervals() if not least(x)]
    assert len(beside) == 2
    for interval in beside:
        each = partial(logarithm_share, interval, RANGES[0][1])
        for piece in pieces_of(interval):
            found += [share for share, _ in halved(piece, each, HALVINGS)]
    assert 0.9 < max(found) < 1


@needs_gappa
@pytest.mark.slow
def test_the_error_of_the_exponential_stays_below_its_width():
    """With what other logarithms have above theirs."""
    found = []
    for j in range(STEPS):
        each = partial(exponential_share, j, other())
        for piece in pieces():
            found += [share for share, _ in halved(piece, each, HALVINGS)]
    assert 0.9 < max(found) < 1


@needs_gappa
def test_without_the_square_of_the_low_part_it_is_not_proved():
    with_it, without = (exponential_share(5, 0.0, (0.0, 2.0**-10), n) for n in (2, 1))
    assert with_it < 1 < without


@needs_gappa
def test_a_wrong_constant_is_not_proved(monkeypatch, request):
    """Of log(x), which y multiplies."""
    interval = intervals()[0]
    r = 0.9 * interval[1][1], 0.91 * interval[1][1]
    assert logarithm_share(interval, 1, r) < 1
    wrong = header()[0]["LOG2_WIDE_C2"] * (1 + 2.0**-22)
    monkeypatch.setitem(header()[0], "LOG2_WIDE_C2", wrong)
    lacking.cache_clear()
    request.addfinalizer(lacking.cache_clear)
    assert logarithm_share(interval, 1, r) > 1
