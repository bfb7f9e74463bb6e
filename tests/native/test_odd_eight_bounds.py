# SPDX-License-Identifier: Apache-2.0
"""The error bounds of corem's quick paths by eight intervals, proved by Gappa on pieces of them.

Gappa bounds the roundings (``udfs/corem/common/odd_eight.gappa``); mpmath bounds the error of the
polynomials. The sum must stay below the margin of the rounding test. The paths are for AVX2.
"""

import itertools
import math
import re
import shutil
from functools import partial

import mpmath
import numpy as np
import pytest
from bounds import (
    COREM,
    HAS_FMA,
    Interval,
    as_gappa,
    difference,
    gappa,
    halved,
    is_exact,
    largest,
    needs_fma,
    needs_gappa,
    run_range,
)
from mpmath import mpf

COMMON = COREM.folder / "common"
TEMPLATE = (COMMON / "odd_eight.gappa").read_text(encoding="utf-8")

#: The functions, and the argument from which on the tables do not go on.
FUNCTIONS = {"erf": (mpmath.erf, 3.921875)}
STEPS = 8
DEGREE = 8
COLUMNS = ("center", "value", "slope", "slope_low", *(f"p{n}" for n in range(2, DEGREE + 1)))
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 5
#: Below 2^-BINADES the terms from r^5 on are too small to count.
BINADES = 24


def constants(name):
    """The macros of a header, and its tables."""
    text = (COREM.folder / name / "eight_constants.h").read_text(encoding="utf-8")
    macros = re.findall(r"#define UDF_\w+_EIGHT_(\w+) (\S+)f$", text, re.M)
    tables = {
        column: [float.fromhex(v) for v in re.findall(r"(-?0x\S+)f,", body)]
        for column, body in re.findall(rf"udf_{name}_eight_(\w+)\[\] = {{(.*?)}};", text, re.S)
    }
    assert set(tables) == set(COLUMNS)
    return {macro: float.fromhex(value) for macro, value in macros}, tables


def intervals(name):
    """Yield the intervals of a function, from the constants in C."""
    macros, tables = constants(name)
    slope, curve, end = macros["SLOPE"], macros["CURVE"], FUNCTIONS[name][1]
    low = 0.0
    for i in range(STEPS):
        beside = slope**2 - 4 * curve * (i + 0.5)
        high = min(end, (slope - math.sqrt(beside)) / (2 * curve)) if beside > 0 else end
        entries = {c: tables[c][i] for c in COLUMNS} | {"width": macros["WIDTH"]}
        # The number is rounded, so an argument beside the end may be of the next interval.
        yield Interval(max(0.0, low - 2**-20), min(high + 2**-20, end), entries)
        low = high
    assert low == end


def rounding_error(interval, r):
    """Return the sum of the bounds of the rounding errors where r lies between two numbers."""
    e = interval.entries
    known = {name: as_gappa(v) for name, v in e.items()}
    v = [e["p3"] + e["p4"] * x for x in r]
    u = [e["p2"] + y * x for x, y in zip(r, v, strict=True)]
    t = [e["slope"] + y * x for x, y in zip(r, u, strict=True)]
    known["inexact_v"] = difference(e["p3"], "v", f"{known['p4']} * r + {known['p3']}", v)
    known["inexact_u"] = difference(e["p2"], "u", f"v * r + {known['p2']}", u)
    known["inexact_t"] = difference(e["slope"], "t", f"u * r + {known['slope']}", t)
    known["r"] = as_gappa(*r)
    printed = gappa(TEMPLATE, known)
    return float(largest(printed, "low - LOW") + largest(printed, "test - TEST"))


def polynomial_error(name, interval, r):
    """Return the largest error of the polynomial, and the least value, at many points."""
    entries = {k: mpf(v) for k, v in interval.entries.items()}
    exact = FUNCTIONS[name][0]
    scale = 1 - entries["width"] / 2
    worst, least = mpf(0), mpf("inf")
    points = 60
    for i in range(points + 1):
        at = (mpf(r[0]) + r[1]) / 2 - (mpf(r[1]) - r[0]) / 2 * mpmath.cos(mpmath.pi * i / points)
        p = sum(entries[f"p{n}"] * at**n for n in range(2, DEGREE + 1))
        p += entries["value"] + at * (entries["slope"] + entries["slope_low"])
        true = exact(entries["center"] + at)
        worst, least = max(worst, abs(p - scale * true)), min(least, true)
    # The error has a maximum about every eighth of the interval.
    return float(worst) * 1.02, float(least)


def pieces(interval):
    """Yield pieces of an interval, in r."""
    c = interval.entries["center"]
    low, high = interval.low - c, interval.high - c
    if c == 0:
        for n in range(BINADES):
            yield high / 2 ** (n + 1), high / 2**n
        return
    cuts = [low + (high - low) * i / 8 for i in range(9)]
    yield from itertools.pairwise(cuts)


def share(name, interval, r):
    """Return the share of the margin that the error takes at most in a piece."""
    rounding = rounding_error(interval, r)
    error, least = polynomial_error(name, interval, r)
    # What is above the true value by less than twice the margin is found.
    return (rounding + error) / (-interval.entries["width"] / 2 * least * (1 - 2.0**-20))


def shares(name, interval, r, halvings=HALVINGS):
    """Yield parts of a piece, each after the share of the margin that the error takes at most."""
    return halved(r, partial(share, name, interval), halvings)


def run(folder, name, ranges, source=None):
    """Return what quick_range.c counts: all arguments, decided ones, wrong ones."""
    source = source or COREM.folder / name / f"{name}f_eight.c"
    flags = ["-march=x86-64-v3"]
    return run_range(folder, source, f"udf_{name}f_eight", f"{name}l", ranges, flags)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_tables_are_such_that_differences_are_exact(name):
    for interval in intervals(name):
        e = interval.entries
        ends = [interval.low - e["center"], interval.high - e["center"]]
        high = [e["value"] + x * (e["slope"] + x * (e["p2"] + x * e["p3"])) for x in ends]
        assert is_exact(e["value"], high)
        r = max(map(abs, ends))
        # a - center is a multiple of the smaller unit in the last place of the two.
        unit = float(np.spacing(np.float32(interval.low + 2**-19)))
        assert e["center"] == 0 or r < 2**24 * unit
        assert e["center"] % unit == 0


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_error_of_a_path_by_eight_intervals_stays_below_its_margin(tmp_path, name):
    """By Gappa, but for a few pieces whose arguments are run."""
    proved, left = [], []
    with mpmath.workprec(120):
        for interval in intervals(name):
            c = interval.entries["center"]
            every = [s for piece in pieces(interval) for s in shares(name, interval, piece)]
            proved += [share for share, _ in every if share < 1]
            left += [(c + r[0] - 2**-20, c + r[1] + 2**-20) for share, r in every if share >= 1]
    # Margins many times as wide as the error would cost speed.
    assert max(proved) > 0.9
    assert len(left) <= len(proved) / 4
    if left and HAS_FMA:
        every, decided, wrong = run(tmp_path, name, left)
        assert wrong == 0
        assert 0.9 * every < decided


@needs_gappa
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gappa_sees_most_of_the_margin_used(name):
    """A margin half as wide is not proved where the result is smallest against the error."""
    interval = next(intervals(name))
    with mpmath.workprec(120):
        found = [s for piece in pieces(interval) for s, _ in shares(name, interval, piece, 0)]
    assert 0.5 < max(found) < 2


@needs_fma
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_path_by_eight_intervals_is_right_beside_their_ends(tmp_path, name):
    ends = [interval.low for interval in intervals(name)][1:]
    every, decided, wrong = run(tmp_path, name, [(x * 0.9995, x * 1.0005) for x in ends])
    assert wrong == 0
    assert 0.99 * every < decided


@needs_fma
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_path_by_eight_intervals_without_a_rounding_test_is_seen(tmp_path, name):
    folder = tmp_path / "corem"
    shutil.copytree(COREM.folder, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    header = folder / "common" / "odd_eight.h"
    text = header.read_text()
    changed = text.replace("*undecided = upper != lower", "*undecided = 0")
    assert changed != text
    header.write_text(changed)
    ranges = [(0.5, 0.75)]
    source = folder / name / f"{name}f_eight.c"
    good, bad = (run(tmp_path, name, ranges, s) for s in (None, source))
    assert good[2] == 0 < bad[2]
