# SPDX-License-Identifier: Apache-2.0
"""The error bound of hypot's quick path, proved by Gappa on boxes that cover all arguments.

Gappa bounds the roundings (``udfs/corem/hypot/eight.gappa``). Of sqrt(s) = r + c / (1 + c / 2 r),
where c is the correction (s - r^2) / 2 r, the path takes r + c; what that lacks is bounded here.
Powers of two change nothing, so that the larger argument lies between 1 and 2.
"""

import math
import re

import pytest
from bounds import as_gappa, gappa, largest, needs_gappa

from pytest_udftorch.swap.library.description import find_library

FOLDER = find_library("corem").folder / "hypot"
TEMPLATE = (FOLDER / "eight.gappa").read_text(encoding="utf-8")
#: Boxes along each argument.
PIECES = 12


def share(x, y, width):
    """Return the share of the margin that the error takes at most in a box."""
    least, most = x[0] ** 2 + y[0] ** 2, x[1] ** 2 + y[1] ** 2
    # The sum and its root are rounded.
    beside = (1 - 2.0**-22, 1 + 2.0**-22)
    sums = [v * b for v, b in zip((least, most), beside, strict=True)]
    roots = [math.sqrt(v) * b for v, b in zip((least, most), beside, strict=True)]
    known = {"x": as_gappa(*x), "y": as_gappa(*y), "sum": as_gappa(*sums), "r": as_gappa(*roots)}
    printed = gappa(TEMPLATE, known | {"width": as_gappa(width)})
    rounding = float(largest(printed, "rest - REST") + largest(printed, "test - TEST"))
    correction = float(largest(printed, "remainder + LOW")) / (2 * roots[0])
    lacking = correction**2 / (2 * roots[0]) * (1 + 2.0**-20)
    return (rounding + lacking) / (width * roots[0])


def shares(width):
    """Yield the share of each box; the order of the arguments does not count."""
    for i in range(PIECES):
        x = [1 + i / PIECES, 1 + (i + 1) / PIECES]
        for j in range(2 * PIECES):
            y = [j / PIECES, (j + 1) / PIECES]
            if y[0] < x[1]:
                yield share(x, y, width)


def margin():
    """The width of the rounding test in C."""
    text = (FOLDER / "hypotf_eight.c").read_text(encoding="utf-8")
    return float.fromhex(re.search(r"#define HYPOT_EIGHT_WIDTH (\S+)f", text)[1])


@needs_gappa
@pytest.mark.slow
def test_the_error_stays_below_the_margin():
    assert max(shares(margin())) < 1


@needs_gappa
def test_half_of_the_margin_is_too_little():
    assert share([1.0, 1.0625], [0.0, 0.0625], margin() / 2) > 1
