# SPDX-License-Identifier: Apache-2.0
"""The error bounds of the quick paths of exp and exp2, proved by Gappa for all r and entries.

Gappa bounds the roundings (``udfs/corem/common/exp_quick.gappa``); the polynomial's bound is in the
header, from Sollya's supnorm; mpmath bounds what the tables and s lack. Their sum must stay below
half of the width of the rounding test, by which every result is moved up.
"""

import re
from functools import cache
from itertools import pairwise

import mpmath
import pytest
from bounds import as_gappa, gappa, largest, needs_gappa
from mpmath import mpf
from path_constants import half_unit, read, source

TEMPLATE = source("common/exp_quick.gappa")
SOURCES = [f"{function}/{function}f.c" for function in ("exp", "exp2")]
HEADER = "common/exp_quick_constants.h"
#: Pieces of r.
PIECES = 6
mpmath.mp.prec = PRECISION = 200


@cache
def constants(level):
    """The macros and the tables, and the bound of the polynomial."""
    bounds = re.findall(r"error < 2\^(-[\d.]+), relative \(supnorm\)", source(HEADER))
    return read(HEADER, *SOURCES, wide=level == "avx512"), mpf(2) ** float(bounds[level == "avx2"])


class Path:
    """A function at a CPU level: where r and s lie, and what s lacks."""

    def __init__(self, function, level, factor=1.0):
        self.function = function
        found, self.polynomial = constants(level)
        m = {name.removeprefix("EXP_QUICK_"): v for name, v in found.macros.items()}
        self.known = {name: m[name] for name in ("C3", "C4")} | {"WIDTH": m["WIDTH"] * factor}
        self.power = found.tables["exp_quick_power"]
        self.offset = found.tables["exp_quick_offset"]
        self.width, self.drawn = mpf(m["WIDTH"]) * factor, mpf(m["WIDTH"])
        self.steps = int(m["STEPS"])
        self.step = mpmath.log(2) / self.steps
        if function == "exp":
            # n = x INV_STEP + d with |d| <= 1/2; r is exact.
            end = mpmath.sqrt(m["MAX_SQUARE"]) * (1 + mpf(2) ** -20)
            high, low = mpf(m["STEP_HI"]), mpf(m["STEP_LO"])
            self.count = end * m["INV_STEP"] + 1
            self.radius = high / 2 + end * abs(1 - m["INV_STEP"] * high)
            self.s_beside = self.count * abs(low)
            self.s_lacks = self.count * abs(self.step - high - low)
            # Multiples of 2^-24 of the step's power of two, which is above the half step.
            unit = mpf(2) ** (mpmath.floor(mpmath.log(self.radius, 2)) + 1 - 24)
            assert mpmath.isint(high / unit)
            assert half_unit(self.radius) * 2 <= unit
            assert self.radius <= 2**24 * unit
            # Results are normal and finite, so that scaling is exact; below EXP_MIN they are 0.
            assert mpmath.exp(-end) > mpf(2) ** -126
            assert mpmath.exp(end) < mpf(2) ** 127
            assert mpmath.exp(m["EXP_MIN"]) < mpf(2) ** -150
        else:
            # x = n/J + d, exactly; d LN2_HI = r + an exact rest, unless that underflows.
            assert m["EXP2_QUICK_MAX_SQUARE"] == 126**2
            high, low = mpf(m["LN2_HI"]), mpf(m["LN2_LO"])
            d = mpf(1) / (2 * self.steps)
            self.radius = d * high * (1 + mpf(2) ** -24)
            beside = d * abs(low)
            inner = half_unit(beside + max(map(abs, self.offset)))
            self.s_beside = beside + inner + half_unit(self.radius)
            self.s_lacks = d * abs(mpmath.log(2) - high - low) + inner + mpf(2) ** -149
            assert m["EXP2_MIN"] < -150

    def shares(self, j, pieces=PIECES):
        """Yield the share of half of the width that errors take, for pieces of r with an entry."""
        t, offset = mpf(self.power[j]), mpf(self.offset[j])
        beside = self.s_beside * (1 + mpf(2) ** -20)
        s = [float(offset + sign * beside) for sign in (-1, 1)]
        # s before the shift, in logarithms, is exact but for this.
        rest = j * self.step - mpmath.log(t) + self.drawn / 2
        lacks = self.s_lacks + abs(offset - rest) + half_unit(max(map(abs, s)))
        radius = float(self.radius)
        # The range of the polynomial's bound.
        assert radius + max(map(abs, s)) < 1.0005 * self.step / 2
        cuts = [radius * (2 * i / pieces - 1) for i in range(pieces + 1)]
        for r in pairwise(cuts):
            known = {**self.known, "t": float(t), "r": as_gappa(*r), "s": as_gappa(*s)}
            printed = gappa(TEMPLATE, known)
            low, test = largest(printed, "low - LOW"), largest(printed, "test - TEST")
            yield self.share(t, r, max(map(abs, s)), lacks, low, test)

    def share(self, t, r, s, lacks, low, test):
        # C4 multiplies r where the polynomial has r + s.
        fourth = mpf(self.known["C4"]) * s * (abs(r[0]) + abs(r[1]) + s) ** 3
        relative = lacks * (1 + self.width) + self.polynomial * (1 + mpf(2) ** -10) + fourth * 1.1
        least, most = mpmath.exp(r[0] - mpf(s)), mpmath.exp(r[1] + mpf(s))
        half = self.width / 2
        # The upper sum is above the true value, the lower one below it.
        above = (relative + low / (t * least)) / (half * (1 - self.width))
        below = most * (self.drawn / 2 + relative) + test / t - half
        return float(max(above, below / half))


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("level", ["avx2", "avx512"])
@pytest.mark.parametrize("function", ["exp", "exp2"])
def test_the_error_stays_below_half_of_the_width(function, level):
    path = Path(function, level)
    found = [share for j in range(path.steps) for share in path.shares(j)]
    assert max(found) < 1
    # A width many times as large as the error would cost speed.
    assert max(found) > 0.6


@needs_gappa
@pytest.mark.parametrize("function", ["exp", "exp2"])
def test_a_narrower_width_is_not_proved(function):
    """Half of the width, with the shift of the results left as it is."""
    assert max(Path(function, "avx2", 0.5).shares(0, 2)) > 1
