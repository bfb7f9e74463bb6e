# SPDX-License-Identifier: Apache-2.0
"""The error bound of tanh's path at AVX-512, proved by Gappa on pieces of all intervals.

The arithmetic is that of odd_quick.h without a low part of the slope, and so is the proof: Gappa
bounds the roundings (``udfs/corem/common/odd_quick.gappa``), mpmath the error of the polynomials.
The sum must stay below the margin of each interval. Near zero the margin is one of the terms from
x^3 on (``udfs/corem/tanh/wide.gappa``).
"""

from functools import partial
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from bounds import (
    HAS_FMA,
    Interval,
    as_gappa,
    gappa,
    halved,
    largest,
    needs_fma,
    needs_gappa,
    run_path,
)
from mpmath import mpf
from path_constants import UNIT, read, source, value
from test_odd_quick_bounds import between_half_and_twice, polynomial_error, rounding_error

HEADER = "tanh/wide_constants.h"
STEPS, SHIFT = 32, 20
END = 9.0625
#: Below it the argument is the result: x^3/3 is less than a quarter of its last place.
TINY = 2.0**-12
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 5


def intervals():
    """Yield the intervals, from the constants in C."""
    found, columns = read(HEADER).without("TANH_WIDE_")
    origin = found["ORIGIN"]
    first, last = (int(np.float32(x + origin).view(np.uint32)) >> SHIFT for x in (0.0, END))
    assert last - first < STEPS
    for i in range(first, last + 1):
        low, high = (max(0.0, value(k << SHIFT) - origin) for k in (i, i + 1))
        entries = {n: v[i % STEPS] for n, v in columns.items()} | {"slope_low": 0.0}
        # The sum is rounded, so an argument beside the end may be of the next interval.
        low, high = max(0.0, low - 2**-21), min(high + 2**-21, END)
        if low < high:
            yield Interval(low, high, entries)


def share_near_zero(interval, part, r):
    """Return the share of the margin that the terms from x^3 on take, whose error it is."""
    e = interval.entries
    printed = gappa(
        source("tanh/wide.gappa"), {n: e[n] for n in ("p3", "p5")} | {"r": as_gappa(*r)}
    )
    rounding = float(largest(printed, "low -/ LOW"))
    surplus = []
    for i in range(21):
        x = r[0] + (mpf(r[1]) - r[0]) * i / 20
        surplus.append(float(1 - (e["p3"] * x**3 + e["p5"] * x**5) / (mpmath.tanh(x) - x)))
    # low is negative, and larger than what it stands for by this part of it.
    least, most = min(surplus) - UNIT / 50, max(surplus) + UNIT / 50
    # The other side of the test is rounded once more; its width is one of the argument.
    other = -e["width"] / (r[1] ** 2 / 3)
    return max(rounding / (least * part), (most + rounding + UNIT * (1 + 2.0**-18)) / other)


def share(interval, part, r):
    """Return the share of the margin that the error takes at most in a piece."""
    if interval.entries["center"] == 0:
        return share_near_zero(interval, part, r)
    rounding = rounding_error(interval.entries, r)
    error, least = polynomial_error("tanh", interval, r)
    # What is above the true value by less than twice the margin is found.
    return (rounding + error) / (-interval.entries["width"] / 2 * part * least * (1 - 2.0**-20))


def pieces(interval):
    """Yield pieces of an interval, in r."""
    c = interval.entries["center"]
    low, high = interval.low - c, interval.high - c
    if c == 0:
        yield from pairwise([TINY, *(high * x for x in (0.25, 0.5, 0.8, 0.9, 1.0))])
    else:
        yield from pairwise([low + (high - low) * i / 4 for i in range(5)])


def shares(interval, part=1.0, halvings=HALVINGS):
    """Yield parts of pieces, each after the share of a part of the margin that its error takes."""
    for piece in pieces(interval):
        yield from halved(piece, partial(share, interval, part), halvings)


def test_the_tables_are_such_that_differences_are_exact():
    found = list(intervals())
    assert found[0].low == 0.0
    assert found[-1].high == END == read("tanh/tanhf_wide.c").macros["TANH_WIDE_MAX"]
    assert all(a.high >= b.low for a, b in pairwise(found))
    for interval in found:
        e = interval.entries
        ends = [interval.low - e["center"], interval.high - e["center"]]
        high = [e["value"] + x * (e["slope"] + e["p2"] * x) for x in ends]
        assert e["value"] == 0 or between_half_and_twice(high, e["value"])
        r = max(map(abs, ends))
        # a - center is a multiple of the smaller unit in the last place of the two.
        unit = float(np.spacing(np.float32(interval.low + 2**-20)))
        assert e["center"] == 0 or r < 2**24 * unit
        assert e["center"] % unit == 0


def test_the_terms_near_zero_are_those_that_are_proved():
    e = next(intervals()).entries
    assert [e["value"], e["slope"], e["p2"], e["p4"], e["p6"]] == [0, 1, 0, 0, 0]
    assert TINY**2 / 3 < 2.0**-25


@needs_gappa
@pytest.mark.slow
def test_the_error_stays_below_the_margin(tmp_path):
    """By Gappa, but for a few pieces whose arguments are run."""
    proved, left = [], []
    with mpmath.workprec(120):
        for interval in intervals():
            c = interval.entries["center"]
            every = list(shares(interval))
            proved += [found for found, _ in every if found < 1]
            left += [(c + r[0] - 2**-20, c + r[1] + 2**-20) for found, r in every if found >= 1]
    # Margins many times as wide as the error would cost speed.
    assert max(proved) > 0.9
    assert len(left) <= len(proved) / 4
    if left and HAS_FMA:
        every, decided, wrong = run_path(tmp_path, "tanh", "avx512", left)
        assert wrong == 0
        assert 0.9 * every < decided


@needs_fma
def test_small_and_large_arguments_are_right(tmp_path):
    ranges = [(TINY, 1.001 * TINY), (2.0**-41, 1.001 * 2.0**-41), (9.0, 9.2), (1e30, 1.0001e30)]
    every, decided, wrong = run_path(tmp_path, "tanh", "avx512", ranges)
    assert wrong == 0
    assert 0.99 * every < decided


@needs_gappa
@pytest.mark.parametrize("place", [0, 1, 9])
def test_a_part_of_the_margin_is_too_little(place):
    interval = list(intervals())[place]
    with mpmath.workprec(120):
        assert max(found for found, _ in shares(interval, 0.4, 0)) > 1
