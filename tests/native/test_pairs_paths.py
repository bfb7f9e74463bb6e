# SPDX-License-Identifier: Apache-2.0
"""corem's quick paths at AVX-512 of atan2, hypot and pow: single rows, constants, a proof.

The paths are plain C and need no more than FMA; pow's look-ups are not those of AVX2.
"""

import itertools
import math
import re
import subprocess

import numpy as np
import pytest
from bounds import COREM, FLAGS, as_gappa, changed_corem, gappa, largest, needs_fma, needs_gappa
from toolchain import SOURCES

COMMON = COREM.folder / "common"
HYPOT = COREM.folder / "hypot"
#: Arguments that stand for all kinds.
SPECIAL = [
    0.0, 2.0**-149, 2.0**-127, 2.0**-126, 2.0**-90, 2.0**-41, 2.0**-40, 0.7, 1.0, 3.0, 2.0**60,
    2.0**87, 2.0**88, 2.0**126, 2.0**127, math.inf, math.nan,
]  # fmt: skip
#: Quotients around the ends of rows, and others.
QUOTIENTS = [2.0**-30, 2.0**-10, 0.01588, 0.04764, 0.3, 0.5, 0.78768, 0.99]
NAMES = ("atan2", "hypot", "pow")
#: The rounding test of each path.
TEST = "upper != lower"
#: The square of what t lacks counts for these; a path that left it out was wrong.
LONG_PRODUCTS = [
    ("0x1.00023ap+64", "0x1.e9beccp-1"), ("0x1.0001a6p+32", "0x1.f43b7ap+0"),
    ("0x1.ffe128p-65", "0x1.f2394ep-1"), ("0x1.00116p+16", "0x1.f7bc94p+1"),
]  # fmt: skip
#: Around the ends of intervals, 1, and others.
BASES = [2.0**-100, 0.1, 0.7034, 0.97, 0.9843, 0.99999, 1.00001, 1.0078, 1.4, 2.5, 2.0**90]


def lines(name, count):
    """Pairs from which on some first arguments are taken, and their count; in all octants."""
    if name == "pow":
        for x, t in itertools.product(BASES, (-63.0, -9.3, -0.3, 1e-6, 1.7, 5.0, 62.0)):
            y = min(1000.0, max(-1000.0, t / math.log2(x)))
            yield f"{x.hex()} {y.hex()} {count}"
        # Negative bases: odd and even exponents.
        for x, y in itertools.product((-0.7034, -1.4, -2.5), (-3.0, 2.0, 5.0)):
            yield f"{x.hex()} {y.hex()} {count}"
        return
    for q, size in itertools.product(QUOTIENTS, (1.0, 1.37)):
        for one, other in itertools.product((q * size, -q * size), (size, -size)):
            yield f"{one.hex()} {other.hex()} {count}"
            yield f"{other.hex()} {one.hex()} {count}"


def run(folder, name, source, given):
    """Return what quick_pairs.c counts in all lines: pairs, decided ones, wrong ones."""
    program = folder / "pairs"
    defines = [f'-DSOURCE="{source}"', f"-DQUICK=udf_{name}f_wide", f"-DEXACT={name}l"]
    command = ["clang-19", "-O2", *FLAGS["avx512"], "-ffp-contract=off", *defines]
    subprocess.run([*command, "-o", program, SOURCES / "quick_pairs.c", "-lm"], check=True)
    ran = subprocess.run([program], input=given, capture_output=True, text=True, check=True)
    return np.loadtxt(ran.stdout.splitlines(), dtype=int, ndmin=2).sum(axis=0)


@needs_fma
@pytest.mark.parametrize("name", NAMES)
def test_a_path_of_pairs_is_right_in_all_octants(tmp_path, name):
    source = COREM.folder / name / f"{name}f_wide.c"
    assert COREM.functions[name, "float32"].own_quick("avx512") == (f"udf_{name}f_wide", source)
    every, decided, wrong = run(tmp_path, name, source, "\n".join(lines(name, 4000)))
    assert wrong == 0
    # Where an interval of pow ends, its width is larger.
    assert (0.95 if name == "pow" else 0.98) * every < decided


@needs_fma
@pytest.mark.parametrize("name", NAMES)
def test_a_path_of_pairs_without_a_rounding_test_is_seen(tmp_path, name):
    file = f"{name}/{name}f_wide.c"
    source = changed_corem(tmp_path, file, TEST, "0") / file
    assert run(tmp_path, name, source, "\n".join(lines(name, 4000)))[2] > 0


@needs_fma
@pytest.mark.parametrize("name", NAMES)
def test_special_pairs_are_right_or_left_to_the_fast_path(tmp_path, name):
    every = [*SPECIAL, *(-v for v in SPECIAL)]
    given = "\n".join(f"{x.hex()} {y.hex()} 1" for x, y in itertools.product(every, every))
    source = COREM.folder / name / f"{name}f_wide.c"
    assert run(tmp_path, name, source, given)[2] == 0


@needs_fma
def test_atan2_decides_where_one_argument_is_zero(tmp_path):
    source = COREM.folder / "atan2" / "atan2f_wide.c"
    given = "0 1 1\n-0 1 1\n0 -1 1\n-0 -1 1\n1 0 1\n-1 0 1\n1 -0 1\n1 1 1\n1 -1 1"
    assert list(run(tmp_path, "atan2", source, given)) == [9, 9, 0]


@needs_fma
def test_pow_decides_negative_bases_with_whole_exponents_alone(tmp_path):
    source = COREM.folder / "pow" / "powf_wide.c"
    given = "-1.5 3 1\n-1.5 -2 1\n-1.5 2.5 1\n-1.5 0.5 1"
    assert list(run(tmp_path, "pow", source, given)) == [4, 2, 0]


@needs_fma
def test_pow_takes_the_square_of_what_the_product_lacks(tmp_path):
    given = "\n".join(f"{x} {y} 1" for x, y in LONG_PRODUCTS)
    file = "pow/powf_wide.c"
    assert run(tmp_path, "pow", COREM.folder / file, given)[2] == 0
    without = changed_corem(tmp_path, file, "u = __builtin_fmaf(u * 0.5f, u, u);", "") / file
    assert run(tmp_path, "pow", without, given)[2] > 0


def reciprocal_error():
    """Return the largest error of root_wide.h's 1 / (2 v), relative, of all mantissas."""
    text = (COMMON / "root_wide_constants.h").read_text(encoding="utf-8")
    magic = int(re.search(r"MAGIC UINT32_C\((\w+)\)", text)[1], 16)
    step = float.fromhex(re.search(r"STEP (\S+)f", text)[1])
    found = 0.0
    for part in np.split(np.arange(0x3F000000, 0x40000000, dtype=np.uint32), 16):
        v = part.view(np.float32).astype(np.float64)
        y = (np.uint32(magic) - part).view(np.float32).astype(np.float64)
        # Products of two floats, and this difference, are exact in double.
        inner = (step - v * y).astype(np.float32).astype(np.float64)
        half = (y * inner).astype(np.float32).astype(np.float64)
        found = max(found, float(np.abs(2 * v * half - 1).max()))
    return found


def share(a, b, width, error):
    """Return the share of the way to a boundary that a term may take which the width is too
    small for, in a box; error is that of the reciprocal.

    Of sqrt(s) = r + c - c^2 / 2 r + ..., where c is the correction, the path takes r + c.
    """
    least, most = a[0] ** 2 + b[0] ** 2, a[1] ** 2 + b[1] ** 2
    # The sum and its root are rounded.
    beside = (1 - 2.0**-22, 1 + 2.0**-22)
    sums = [v * f for v, f in zip((least, most), beside, strict=True)]
    roots = [math.sqrt(v) * f for v, f in zip((least, most), beside, strict=True)]
    known = {"a": as_gappa(*a), "b": as_gappa(*b), "sum": as_gappa(*sums), "r": as_gappa(*roots)}
    template = (HYPOT / "wide.gappa").read_text(encoding="utf-8")
    printed = gappa(template, known)
    correction = float(largest(printed, "TERM")) / (2 * roots[0])
    rounding = float(largest(printed, "term - TERM")) / (2 * roots[0])
    constant = (rounding + correction**2 / (2 * roots[0])) * (1 + 2.0**-10)
    # In proportion to the term: the reciprocal, and the rounding of the product.
    left = width - (error + 2.0**-23) / (1 - error)
    if left <= 0:
        return math.inf
    # r is a float, and the next boundary is 2^-25 of it away at least.
    return (constant / left * (1 + width) + constant) / (2.0**-25 * roots[0])


def width_of_hypot():
    """The width of the rounding test in C."""
    text = (HYPOT / "hypotf_wide.c").read_text(encoding="utf-8")
    return float.fromhex(re.search(r"#define HYPOT_WIDE_WIDTH (\S+)f", text)[1])


#: Boxes along each argument.
PIECES = 6


@needs_gappa
def test_the_error_of_hypot_stays_below_the_width():
    width, error = width_of_hypot(), reciprocal_error()
    for i in range(PIECES):
        a = [1 + i / PIECES, 1 + (i + 1) / PIECES]
        for j in range(2 * PIECES):
            b = [j / PIECES, (j + 1) / PIECES]
            if b[0] < a[1]:
                assert share(a, b, width, error) < 1


@needs_gappa
def test_half_of_the_width_of_hypot_is_too_little():
    assert share([1.0, 1.25], [0.0, 0.25], width_of_hypot() / 2, reciprocal_error()) > 1
