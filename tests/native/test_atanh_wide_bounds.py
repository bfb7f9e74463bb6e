# SPDX-License-Identifier: Apache-2.0
"""The error bound of atanh's path at AVX-512, proved by Gappa on pieces.

The sum is that of log1p with half of its tables, and so is the proof
(``udfs/corem/common/log1p_wide.gappa``). The quotient y = 2 a / (1 - a) is a pair, whose low part
joins d. All arguments of pieces that are left open are run.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from bounds import needs_fma, needs_gappa, run_path
from mpmath import mpf
from path_constants import UNIT, half_unit, read, value
from test_log1p_wide_bounds import (
    RECIPROCALS,
    SECOND_ERROR,
    START,
    Path,
    Piece,
    prove_or_run,
    reach,
    share,
)

FOUND = read("common/log1p_wide_constants.h", "atanh/atanhf_wide.c")
#: The k that go together; 1 + y begins at 1.
GROUPS = [(0, 0), (1, 1), (2, 3), (4, 23)]
#: A smaller y is twice its result, and both sums round to half of it.
TINY = 2.0**-26


def atanh():
    """The constants of atanh."""
    macros, columns = FOUND.without("ATANH_WIDE_")
    added = "rnd(d * rnd(rnd(r * 0.5 - 0.5) * r + 0.5) + rnd(base))"
    return Path(
        unit=mpf(0.5),
        macros=macros,
        tables=columns,
        slope_low=macros["SLOPE_LOW"],
        width=FOUND.macros["LOG1P_WIDE_WIDTH"],
        added=added,
        ADDED="d * ((r * 0.5 - 0.5) * r + 0.5) + base",
    )


def atanh_share(path, piece, r):
    """The share of what is allowed that the error takes at most in a piece.

    y is rounded, and so is its divisor: each errs by UNIT. y_low errs by UNIT for each of three
    roundings, and by two more, as it takes y for the quotient.
    """
    most, c = mpf(max(map(abs, r))), RECIPROCALS[piece.j]
    # y and what it lacks, in the units of r.
    y = max(1 + mpf(r[1]) - mpf(2) ** k * c for k in (-piece.k[0], -piece.k[1]))
    lost = y * 2 * UNIT * (1 + mpf(2) ** -20)
    error = lost * 5 * UNIT * (1 + mpf(2) ** -20)
    d = lost
    if piece.k != (0, 0) or c != 1:
        # Half a unit in the last place of r; d is rounded.
        d += half_unit(most)
        error += SECOND_ERROR + d * UNIT
    # 1 / (1 + r) less 1 - r + r^2, and d^2.
    error += d * (most**3 / (1 - most) + d)
    return share(path, piece, r, d * (1 + mpf(2) ** -20), error / 2)


def pieces():
    """Yield pieces that cover all arguments, except those that are their own results."""
    for k in GROUPS:
        for j, c in enumerate(RECIPROCALS):
            low, high = reach(j)
            if k == (0, 0) and c > 1:
                continue
            if k == (0, 0) and c == 1:
                cuts = [high]
                while cuts[-1] > TINY:
                    cuts.append(cuts[-1] * (0.8 if cuts[-1] > 2.0**-9 else 0.25))
                yield from (Piece(k, j, (a, b)) for b, a in pairwise(cuts))
                continue
            parts = 4 if k == (0, 0) else 1
            cuts = [low + (high - low) * i / parts for i in range(parts + 1)]
            yield from (Piece(k, j, r) for r in pairwise(cuts))


def arguments(piece, r):
    """Yield the arguments of a piece, and some around them."""
    for k in range(piece.k[0], piece.k[1] + 1):
        f = [mpf(2) ** k * (1 + mpf(x)) / RECIPROCALS[piece.j] for x in r]
        low, high = ((x - 1) / (x + 1) for x in f)
        yield float(low * (1 - mpf(2) ** -20)), float(high * (1 + mpf(2) ** -20))


def test_the_intervals_are_those_that_are_proved():
    """1 + y ends where the groups of k do, and is exact as a sum of two floats there."""
    limit = FOUND.macros["ATANH_WIDE_LIMIT"]
    last = float(np.nextafter(np.float32(limit), np.float32(0)))
    f = 1 + 2 * last / (1 - last)
    assert f < value(START) * 2.0 ** (GROUPS[-1][1] + 1)
    assert f < 2.0**24 * (1 - UNIT)


@needs_gappa
@pytest.mark.slow
def test_the_error_stays_below_the_width(tmp_path):
    """By Gappa, but for the interval above that of 1, where pieces are left and run."""
    share_of = partial(atanh_share, atanh())
    prove_or_run(tmp_path, "atanh", share_of, pieces(), arguments)


@needs_fma
def test_small_arguments_are_right(tmp_path):
    """They are their own results, as x^3/3 is less than a quarter of the last place."""
    ranges = [(2.0**n, 2.0**n * 1.001) for n in (-27, -28, -60, -100, -126, -140)]
    every, decided, wrong = run_path(tmp_path, "atanh", "avx512", ranges)
    assert wrong == 0
    assert decided == every


@needs_gappa
def test_less_is_not_proved():
    """Half of the width above the interval of 1, and that interval without SLOPE_LOW."""
    path = atanh()
    above = RECIPROCALS.index(max(c for c in RECIPROCALS if c < 1))
    piece = Piece((0, 0), above, (0.0041, 0.0042))
    whole, less = (
        atanh_share(p, piece, piece.r) for p in (path, replace(path, width=path.width / 2))
    )
    assert whole < 1 < less
    piece = Piece((0, 0), RECIPROCALS.index(1), (0.0086, 0.0087))
    whole, less = (atanh_share(p, piece, piece.r) for p in (path, replace(path, slope_low=0.0)))
    assert whole < 1 < less
