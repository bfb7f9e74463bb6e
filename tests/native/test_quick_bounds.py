# SPDX-License-Identifier: Apache-2.0
"""The error bounds of corem's quick paths, proved by Gappa over pieces that cover all arguments.

Gappa bounds the roundings (``udfs/corem/common/log_quick.gappa``); mpmath bounds what the constants
and the polynomial leave out. The sum must stay below the margin of the rounding test.
"""

import math
import re
import shutil
from dataclasses import dataclass, replace
from functools import cache

import mpmath
import numpy as np
import pytest
from bounds import as_gappa, ends, gappa, largest, needs_gappa, run_range

from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level

COREM = find_library("corem")
COMMON = COREM.folder / "common"
TEMPLATE = (COMMON / "log_quick.gappa").read_text(encoding="utf-8")
mpmath.mp.prec = PRECISION = 200
LEVELS = ("baseline", "avx2", "avx512")
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 5

#: What multiplies the pair, the names of the tables, and of the pair added k times.
FUNCTIONS = {
    "log": (None, "udf_log_quick", "LN2", mpmath.log),
    "log2": ("LOG2E", "udf_log2_quick", None, lambda x: mpmath.log(x, 2)),
    "log10": ("LOG10E", "udf_log10_quick", "LOG10_2", mpmath.log10),
    "log1p": (None, "udf_log_quick", "LN2", mpmath.log),
}
#: Of these, the functions that have a quick path.
IN_USE = [name for name in FUNCTIONS if COREM.functions[name, "float32"].quick is not None]


@dataclass(frozen=True)
class Piece:
    """Where r, a and low lie; ``extra`` bounds the errors that are no roundings of the template."""

    r: tuple[float, float]
    a: tuple[float, float]
    low: tuple[float, float]
    extra: float


@cache
def constants(level):
    """The macros and the tables of the header at one level."""
    text = (COMMON / "log_quick_constants.h").read_text(encoding="utf-8")
    shared, rest = text.split("#ifdef __AVX512F__\n")
    wide, narrow = rest.split("#else\n")
    text = shared + {"avx512": wide, "avx2": narrow.split("#endif")[0]}[level]
    scalars = {
        name: float.fromhex(value) if "0x" in value else int(value)
        for name, value in re.findall(
            r"#define UDF_LOG_QUICK_(\w+) (?:UINT32_C\()?(-?[\w.+-]*?\d)f?\)?$", text, re.M
        )
    }
    tables = {
        name: [float.fromhex(v) for v in re.findall(r"(-?\w[\w.+-]*)f,", body)]
        for name, body in re.findall(r"float (\w+)\[\] = \{(.*?)\};", text, re.S)
    }
    return scalars, tables


def value(encoding):
    return float(np.uint32(encoding).view(np.float32))


def rounding_error(function, level, piece):
    """Return bounds of the rounding errors and of the least |high| in a piece."""
    scalars, tables = constants(level)
    p = tables["udf_log_quick_poly"]
    multiplier = FUNCTIONS[function][0]
    known = {f"p{i}": as_gappa(c) for i, c in enumerate(p)}
    if multiplier is None:
        known |= {"g": "hi", "scaled": "lo_sum", "SCALED": "LO_SUM"}
    else:
        high, low = (as_gappa(scalars[f"{multiplier}_{part}"]) for part in ("HI", "LO"))
        known["g"] = f"rnd(hi * {high})"
        known["scaled"] = f"rnd(lo_sum * {high} + rnd(hi * {low} + (hi * {high} - g)))"
        known["SCALED"] = f"LO_SUM * {high} + (hi * {low} + (hi * {high} - g))"
    d = 0.0
    if function == "log1p":
        # What rounding r leaves: half a unit in its last place.
        d = math.ulp(max(map(abs, piece.r))) * 2**28
        known |= {"lo": "rnd(lo_series + rnd(d - d * r))", "LO": "LO_SERIES + (d - d * r)"}
    else:
        known |= {"lo": "lo_series + d", "LO": "LO_SERIES + d"}
    if piece.a == (0.0, 0.0):
        known |= {"high": "g", "rest": "lo", "REST": "LO"}
    else:
        known |= {
            "high": "rnd(a + g)",
            "rest": "rnd(((a + g) - high) + rnd(lo + low))",
            "REST": "((a + g) - high) + (LO + low)",
        }
    known |= {
        "margin": as_gappa(scalars["MARGIN"]),
        "r": as_gappa(*piece.r),
        "a": as_gappa(*piece.a),
        "low": as_gappa(*piece.low),
        "d": as_gappa(-d, d),
    }
    printed = gappa(TEMPLATE, known)
    return float(largest(printed, "t - T")), float(ends(printed, "|high|")[0])


def pieces(function, level):
    """Yield pieces that cover all arguments of a function, except exact results."""
    scalars, tables = constants(level)
    _, prefix, power, logarithm = FUNCTIONS[function]
    unit = (1.0, 0.0)
    if power is not None:
        unit = (scalars[f"{power}_HI"], scalars[f"{power}_LO"])
    steps, start = scalars["STEPS"], scalars["START"]
    width = 2 ** scalars["SHIFT"]
    polynomial = series_error(level)
    for j in range(steps):
        c = tables["udf_log_quick_reciprocal"][j]
        ends = [value(start + (j + i) * width - i) * c - 1 for i in (0, 1)]
        if function == "log1p":  # 1 + x was rounded before r was taken
            ends = [ends[0] - 2**-23, ends[1] + 2**-23]
        high, low = (tables[f"{prefix}_{part}"][j] for part in ("high", "low"))
        true = -logarithm(mpmath.mpf(c))
        for ks in ([0], [1], [-1], range(2, 8), range(-7, -1), range(8, 129), range(-127, -7)):
            a, lows, error = [], [], mpmath.mpf(0)
            for k in (ks[0], ks[-1]) if power is None else ks:
                unit = (
                    (1.0, 0.0)
                    if power is None
                    else (scalars[f"{power}_HI"], scalars[f"{power}_LO"])
                )
                a.append(k * unit[0] + high)
                assert a[-1] == float(np.float32(a[-1])), "the sum of the high parts is exact"
                lows.append(float(np.float32(k * unit[1] + low)))
                exact = k * (1 if power is None else -logarithm(mpmath.mpf(0.5))) + true
                error = max(error, abs(exact - a[-1] - lows[-1]))
            sides = [tuple(ends)]
            if a == [0.0]:
                # The result is as small as r: a piece for each binade of r. Where r is
                # below 2^-24, which log1p alone has, r^2 and the rest are too small to count.
                sides = [(s * 2.0**-e, s * 2.0 ** (1 - e)) for e in range(2, 25) for s in (1, -1)]
                sides = [tuple(sorted(s)) for s in sides]
                sides = [(max(s[0], ends[0]), min(s[1], ends[1])) for s in sides]
            for side in sides:
                if side[0] < side[1]:
                    biggest = max(map(abs, side))
                    # The tables and the polynomial; log1p leaves d r^2 out, and rounds d.
                    extra = float(error) - polynomial * math.log1p(-biggest)
                    if function == "log1p" and a != [0.0]:
                        extra += math.ulp(biggest) * 2**28 * biggest**2 * 1.05 + 2.0**-47
                    yield Piece(side, (min(a), max(a)), (min(lows), max(lows)), extra)


@cache
def series_error(level):
    """A bound of the polynomial's error, relative to log(1 + r), as in the header."""
    text = (COMMON / "log_quick_constants.h").read_text(encoding="utf-8")
    bounds = re.findall(r"error: below 2\^(-[\d.]+), relative", text)
    return 2.0 ** float(bounds[level == "avx2"])


def shares(function, level, piece, halvings=HALVINGS):
    """Yield pieces of a piece, with the share of the margin that the error takes at most."""
    rounding, least = rounding_error(function, level, piece)
    margin = constants(level)[0]["MARGIN"] * least
    share = (rounding + piece.extra) / margin if margin else math.inf
    if share < 1 or not halvings:
        yield share, piece
        return
    middle = (piece.r[0] + piece.r[1]) / 2
    for half in ((piece.r[0], middle), (middle, piece.r[1])):
        yield from shares(function, level, replace(piece, r=half), halvings - 1)


def arguments(function, level, piece):
    """The arguments with k = 0 of a piece, and some around them."""
    tables = constants(level)[1]
    at = tables[f"{FUNCTIONS[function][1]}_high"].index(piece.a[0])
    assert piece.a[0] == piece.a[1], "only k = 0 may be left open"
    c = tables["udf_log_quick_reciprocal"][at]
    low, high = ((1 + r) / c for r in piece.r)
    if function == "log1p":
        low, high = low - 1, high - 1
    return low - abs(low) * 2**-20, high + abs(high) * 2**-20


def run(folder, function, level, ranges, corem=COMMON.parent):
    """Return what quick_range.c counts in the ranges: all arguments, decided ones, wrong ones."""
    name = f"{function}f"
    flags = ["-march=" + {"avx512": "x86-64-v4", "avx2": "x86-64-v3"}[level]]
    source = corem / function / f"{name}.c"
    return run_range(folder, source, f"udf_{name}_quick", f"{function}l", ranges, flags)


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("level", ["avx512", "avx2"])
@pytest.mark.parametrize("function", IN_USE)
def test_the_error_of_a_quick_path_stays_below_its_margin(tmp_path, function, level):
    """By Gappa, but for a few pieces beside 1, all of whose arguments are run."""
    found = [s for piece in pieces(function, level) for s in shares(function, level, piece)]
    proved = [share for share, _ in found if share < 1]
    # A margin many times as wide as the error would cost speed.
    assert max(proved) > 0.3
    left = [arguments(function, level, piece) for share, piece in found if share >= 1]
    assert len(left) <= len(proved) / 4
    if left and level in LEVELS[: LEVELS.index(resolve_cpu_level(None)) + 1]:
        every, decided, wrong = run(tmp_path, function, level, left)
        assert wrong == 0
        assert 0.9 * every < decided


@needs_gappa
def test_gappa_sees_most_of_the_margin_used():
    """Beside the interval of 1, where the error is largest: half the margin is not proved."""
    level = "avx512"
    high = constants(level)[1]["udf_log_quick_high"][20]
    piece = next(p for p in pieces("log", level) if p.a == (high, high))
    share, _ = next(shares("log", level, replace(piece, r=(piece.r[0], piece.r[0] * 0.999))))
    assert 0.5 < share < 1


@pytest.mark.skipif(resolve_cpu_level(None) == "baseline", reason="no FMA")
def test_a_path_without_a_rounding_test_is_seen_over_a_range(tmp_path):
    folder = tmp_path / "corem"
    shutil.copytree(COMMON.parent, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    header = folder / "common" / "log_quick.h"
    header.write_text(header.read_text().replace("*undecided = one != other", "*undecided = 0"))
    good = run(tmp_path, "log", "avx2", [(1.0, 1.25)])
    bad = run(tmp_path, "log", "avx2", [(1.0, 1.25)], folder)
    assert good[2] == 0 < bad[2]
