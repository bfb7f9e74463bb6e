# SPDX-License-Identifier: Apache-2.0
"""The error bounds of the paths of atan, asin and acos at AVX-512, proved by Gappa or run.

For each row, Gappa bounds the roundings (``udfs/corem/common/rows_wide.gappa``); mpmath bounds the
error of the polynomial. The sum must stay below the margin of the row, which grows with the result
in a row in which the function is zero. The arguments of asin and acos beyond 1/2 are so few that
they are run.
"""

import math
from dataclasses import dataclass
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
from path_constants import UNIT, read, source

ROWS, HALF_OF_ROWS = 32, 16
#: The branches that are proved: function, place of the row of v = 0, and the ends of v.
BRANCHES = {
    "atan": ((mpmath.atan, 0, 0.0, 1.0), (lambda v: mpmath.pi / 2 - mpmath.atan(v), 16, 0.0, 1.0)),
    "asin": ((mpmath.asin, 0, 0.0, 0.5),),
    "acos": ((mpmath.acos, 0, -0.5, 0.5),),
}
#: What is run.
RUNS = {"asin": [(0.5, 1.0)], "acos": [(0.5, 1.0), (-1.0, -0.5)]}
#: Below it asin and atan are their argument: x^3/3 is less than a quarter of its last place.
TINY = 2.0**-12
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 2


@dataclass(frozen=True)
class Row:
    """An interval of v, its entries, and what the value lacks; v is a quotient in some."""

    low: float
    high: float
    entries: dict[str, float]
    more: float
    quotient: bool


@cache
def rows(name):
    """The rows that are proved, with their functions."""
    constants, columns = read(f"{name}/wide_constants.h").without(f"{name}_wide_")
    found = []
    for exact, first, start, end in BRANCHES[name]:
        for k in range(-HALF_OF_ROWS, HALF_OF_ROWS):
            low, high = ((k + side) / constants["SCALE"] for side in (-0.5, 0.5))
            # The number of the row is rounded once.
            low, high = max(low - 2**-24, start), min(high + 2**-24, end)
            if low < high:
                entries = {n: v[(first + k) % ROWS] for n, v in columns.items()}
                more = entries.get("low", constants["MORE"] if first else 0.0)
                found.append((exact, Row(low, high, entries, more, bool(first))))
    return found


def known_of(row):
    """What Gappa's script needs of a row."""
    e = row.entries
    known = {n: as_gappa(v) for n, v in e.items()} | {"MORE": as_gappa(row.more)}
    known |= {"more": known["MORE"], "shifted": "r", "SHIFTED": "r", "P5": known["p5"]}
    if row.quotient:
        known |= {
            "more": f"rnd({known['slope']} * d + {known['MORE']})",
            "shifted": "rnd(d * 2 + r)",
            "SHIFTED": "d * 2 + r",
        }
    if "p6" in e:
        known |= {"p5": f"rnd(r * {known['p6']} + {known['p5']})",
                  "P5": f"(r * {known['p6']} + {known['p5']})"}  # fmt: skip
    return known


def margin(row, v):
    """The margin at an argument, relative."""
    m = -mpf(row.entries["width"]) / 2
    return m if row.entries["value"] else m * v / row.high


def polynomial(row, r):
    e = row.entries
    powers = sum(mpf(e[f"p{n}"]) * r**n for n in range(2, 7) if f"p{n}" in e)
    return mpf(e["value"]) + row.more + e["slope"] * mpf(r) + powers


def polynomial_error(exact, row, r):
    """The largest error of the polynomial at many points of a piece, and the least margin."""
    worst, least, points = mpf(0), mpf("inf"), 30
    for i in range(points + 1):
        x = (mpf(r[0]) + r[1]) / 2 - (mpf(r[1]) - r[0]) / 2 * mpmath.cos(mpmath.pi * i / points)
        v = row.entries["center"] + x
        true, m = exact(v), margin(row, v)
        worst = max(worst, abs(polynomial(row, x) - true * (1 + m)))
        least = min(least, m * true)
    # The error has a maximum about every sixth of the interval.
    return float(worst) * 1.02, float(least)


def share(exact, row, r):
    """Return the share of the margin that the error takes at most in a piece."""
    e = row.entries
    most = e["center"] + r[1]
    # The rounding of the quotient.
    d = 2.0 ** (math.floor(math.log2(most)) - 24) if row.quotient else 0.0
    known = known_of(row) | {"r": as_gappa(*r), "d": as_gappa(-d, d)}
    printed = gappa(source("common/rows_wide.gappa"), known)
    rounding = float(largest(printed, "low - LOW") + largest(printed, "test - TEST"))
    error, least = polynomial_error(exact, row, r)
    # d is rounded and lacks a square, and the polynomial takes it in r^2 only, to first order.
    reach = max(map(abs, r))
    bend = sum((n - 2) * abs(e[f"p{n}"]) * reach ** (n - 3) for n in (3, 4, 5))
    error += abs(e["slope"]) * d * 4 * UNIT + d * d + d * reach**2 * bend
    return (rounding + error) / (least * (1 - 2.0**-18))


def pieces(row):
    """Yield pieces of a row, in r."""
    c = row.entries["center"]
    low, high = row.low - c, row.high - c
    if row.entries["value"]:
        yield from pairwise([low + (high - low) * i / 4 for i in range(5)])
        return
    cuts = [high]
    while cuts[-1] > TINY:
        cuts.append(cuts[-1] * 0.8)
    yield from pairwise(reversed(cuts))


def shares(exact, row, halvings=HALVINGS):
    """Yield parts of pieces, each after the share of the margin that its error takes."""
    for piece in pieces(row):
        yield from halved(piece, partial(share, exact, row), halvings)


def arguments(row, r):
    """The arguments of a piece, and some around them."""
    low, high = (row.entries["center"] + x for x in r)
    if row.quotient:
        return 1 / (high * (1 + 2.0**-22)), 1 / (max(low, 2.0**-20) * (1 - 2.0**-22))
    return low - 2.0**-22, high + 2.0**-22


@pytest.mark.parametrize("name", BRANCHES)
def test_the_tables_are_such_that_differences_are_exact(name):
    for _, row in rows(name):
        e = row.entries
        ends = [row.low - e["center"], row.high - e["center"]]
        # v - center has multiples of the smaller unit in the last place of the two.
        if e["center"]:
            sizes = [abs(e["center"]), abs(row.low), abs(row.high)]
            unit = float(np.spacing(np.float32(min(sizes) * (1 - 2.0**-20))))
            assert max(map(abs, ends)) < 2**24 * unit
            assert row.low * row.high > 0
        if e["value"]:
            high = [e["value"] + e["slope"] * r for r in ends]
            unit = float(np.spacing(np.float32(min(e["value"], *high) * (1 - 2.0**-20))))
            assert max(abs(e["slope"] * r) for r in ends) < 2**24 * unit
        else:
            assert e["center"] == 0
            assert e["slope"] == 1


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("name", BRANCHES)
def test_the_error_stays_below_the_margin(tmp_path, name):
    """By Gappa, but for some pieces whose arguments are run."""
    proved, left = [], []
    with mpmath.workprec(120):
        for exact, row in rows(name):
            every = list(shares(exact, row))
            proved += [found for found, _ in every if found < 1]
            left += [arguments(row, r) for found, r in every if found >= 1]
    # Margins many times as wide as the error would cost speed.
    assert max(proved) > 0.9
    assert len(left) <= len(proved) / 4
    if left and HAS_FMA:
        every, decided, wrong = run_path(tmp_path, name, "avx512", merged(left))
        assert wrong == 0
        assert 0.9 * every < decided


@needs_fma
@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_arguments_that_are_not_proved_are_right(tmp_path, name):
    every, decided, wrong = run_path(tmp_path, name, "avx512", RUNS[name])
    assert wrong == 0
    assert 0.99 * every < decided


@needs_fma
@pytest.mark.parametrize("name", ["atan", "asin"])
def test_tiny_arguments_are_right(tmp_path, name):
    ranges = [(TINY / 1.001, TINY), (2.0**-41, 1.001 * 2.0**-41), (2.0**-140, 1.001 * 2.0**-140)]
    every, decided, wrong = run_path(tmp_path, name, "avx512", ranges)
    assert wrong == 0
    assert every == decided


@needs_gappa
@pytest.mark.parametrize("name", BRANCHES)
def test_half_of_the_margin_is_too_little(name):
    exact, row = rows(name)[2]
    with mpmath.workprec(120):
        assert 0.5 < max(share(exact, row, r) for r in pieces(row)) < 2
