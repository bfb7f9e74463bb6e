# SPDX-License-Identifier: Apache-2.0
"""The error bounds of corem's quick paths by tables, proved by Gappa on pieces of all intervals.

Gappa bounds the roundings (``udfs/corem/common/odd_quick.gappa``); mpmath bounds the error of the
polynomials. The sum must stay below the margin of the rounding test of each interval. The paths
are for AVX-512; compiled for AVX2 with the same tables they have the same bits.
"""

import itertools
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
    gappa,
    halved,
    largest,
    needs_fma,
    needs_gappa,
    run_range,
)
from mpmath import mpf

COMMON = COREM.folder / "common"
TEMPLATE = (COMMON / "odd_quick.gappa").read_text(encoding="utf-8")

#: The functions, and the argument from which on the tables do not go on.
FUNCTIONS = {"erf": (mpmath.erf, 3.9375), "tanh": (mpmath.tanh, 9.0625)}
COLUMNS = ("center", "value", "slope", "slope_low", "p2", "p3", "p4", "p5", "p6", "width")
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 5
#: Below 2^-BINADES the terms from r^3 on are too small to count.
BINADES = 24


def single(x):
    return float(np.float32(x))


def intervals(name):
    """Yield the intervals of a function, from the constants in C."""
    text = (COREM.folder / name / "quick_constants.h").read_text(encoding="utf-8")
    scalars = dict(re.findall(r"#define UDF_\w+_QUICK_(\w+) (\S+)", text))
    tables = {
        column: [float.fromhex(v) for v in re.findall(r"(-?0x\S+)f,", body)]
        for column, body in re.findall(rf"udf_{name}_quick_(\w+)\[\] = {{(.*?)}};", text, re.S)
    }
    assert set(tables) == set(COLUMNS)
    steps, shift = int(scalars["STEPS"]), int(scalars["SHIFT"])
    scale, origin = (float.fromhex(scalars[n].rstrip("f")) for n in ("SCALE", "ORIGIN"))
    end = FUNCTIONS[name][1]
    first = np.float32(1).view(np.uint32) >> shift
    for i in range(steps):
        ends = [np.uint32((first + i + k) << shift).view(np.float32) for k in (0, 1)]
        low, high = (max(0.0, (float(b) - origin) / scale) for b in ends)
        if high > 0 and low < end:
            entries = {c: tables[c][(first + i) % steps] for c in COLUMNS}
            # b is rounded, so an argument beside the end may be of the next interval.
            yield Interval(max(0.0, low - 2**-22), min(high + 2**-22, end), entries)


def between_half_and_twice(values, x):
    return all(0.5001 * x <= v <= 1.9999 * x for v in values)


def rounding_error(entries, r):
    """Return the sum of the bounds of the rounding errors where r lies between two numbers."""
    known = {name: as_gappa(v) for name, v in entries.items()}
    # What rounding slope - t adds, where it is not exact.
    slope, t = known["slope"], [entries["slope"] + entries["p2"] * x for x in r]
    exact = between_half_and_twice(t, entries["slope"])
    known["inexact"] = "tail" if exact else f"tail + (rnd({slope} - t) - ({slope} - t))"
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
        p = sum(entries[f"p{n}"] * at**n for n in range(2, 7))
        p += entries["value"] + at * (entries["slope"] + entries["slope_low"])
        true = exact(entries["center"] + at)
        worst, least = max(worst, abs(p - scale * true)), min(least, true)
    # The error has a maximum about every sixth of the interval.
    return float(worst) * 1.02, float(least)


def pieces(interval):
    """Yield pieces of an interval, in r."""
    c = interval.entries["center"]
    low, high = interval.low - c, interval.high - c
    if c == 0:
        for n in range(BINADES):
            yield high / 2 ** (n + 1), high / 2**n
        return
    cuts = [low + (high - low) * i / 4 for i in range(5)]
    yield from itertools.pairwise(cuts)


def share(name, interval, r):
    """Return the share of the margin that the error takes at most in a piece."""
    rounding = rounding_error(interval.entries, r)
    error, least = polynomial_error(name, interval, r)
    # What is above the true value by less than twice the margin is found.
    return (rounding + error) / (-interval.entries["width"] / 2 * least * (1 - 2.0**-20))


def shares(name, interval, r, halvings=HALVINGS):
    """Yield parts of a piece, each after the share of the margin that the error takes at most."""
    return halved(r, partial(share, name, interval), halvings)


def run(folder, name, ranges, source=None):
    """Return what quick_range.c counts: all arguments, decided ones, wrong ones."""
    source = source or COREM.folder / name / f"{name}f.c"
    flags = ["-march=x86-64-v3", "-D__AVX512F__"]
    return run_range(folder, source, f"udf_{name}f_quick", f"{name}l", ranges, flags)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_tables_are_such_that_differences_are_exact(name):
    found = list(intervals(name))
    assert found[0].low == 0.0
    assert found[-1].high == FUNCTIONS[name][1]
    for interval in found:
        e = interval.entries
        ends = [interval.low - e["center"], interval.high - e["center"]]
        high = [e["value"] + x * (e["slope"] + e["p2"] * x) for x in ends]
        assert e["value"] == 0 or between_half_and_twice(high, e["value"])
        r = max(map(abs, ends))
        # a - center is a multiple of the smaller unit in the last place of the two.
        unit = float(np.spacing(np.float32(interval.low + 2**-21)))
        assert e["center"] == 0 or r < 2**24 * unit
        assert e["center"] % unit == 0


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_error_of_a_path_by_tables_stays_below_its_margin(tmp_path, name):
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
    interval = list(intervals(name))[1]
    with mpmath.workprec(120):
        found = [s for piece in pieces(interval) for s, _ in shares(name, interval, piece, 0)]
    assert 0.5 < max(found) < 1.5


@needs_fma
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_path_by_tables_is_right_beside_the_ends_of_intervals(tmp_path, name):
    ends = [interval.low for interval in intervals(name)][1:]
    every, decided, wrong = run(tmp_path, name, [(x * 0.9995, x * 1.0005) for x in ends])
    assert wrong == 0
    assert 0.99 * every < decided


@needs_fma
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_path_by_tables_without_a_rounding_test_is_seen(tmp_path, name):
    folder = tmp_path / "corem"
    shutil.copytree(COREM.folder, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    header = folder / "common" / "odd_quick.h"
    text = header.read_text()
    changed = text.replace("*undecided = upper != lower", "*undecided = 0")
    assert changed != text
    header.write_text(changed)
    ranges = [(0.5, 0.75)]
    source = folder / name / f"{name}f.c"
    good, bad = (run(tmp_path, name, ranges, s) for s in (None, source))
    assert good[2] == 0 < bad[2]
