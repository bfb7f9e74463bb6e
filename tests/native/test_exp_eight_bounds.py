# SPDX-License-Identifier: Apache-2.0
"""The error bounds of the quick paths of expm1, sinh and cosh at AVX2, proved by Gappa on pieces.

Gappa bounds the roundings (``udfs/corem/common/exp_eight_*.gappa``) for all steps n = 8 k + j of
the reduction x = n log(2)/8 + r: one by one, or for many k at once where 2^-k is small. Intervals
bound what series and tables lack. The sum must stay below the width of the rounding test.

The widths of expm1 and sinh shrink with r. Near r = 0 roundings are more than that, and expm1 has
them too where the result is nearly -1: all arguments of these pieces are run.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from bounds import HAS_FMA, as_gappa, ends, gappa, largest, needs_gappa, run_path
from mpmath import mpf
from path_constants import half_unit, read, series_bound, single, source

mpmath.mp.prec = PRECISION = 150
FUNCTIONS = ("expm1", "sinh", "cosh")
SCRIPTS = {name: source(f"common/exp_eight_{name}.gappa") for name in FUNCTIONS}
FOUND = read("common/exp_eight_constants.h", *(f"{f}/{f}f_eight.c" for f in FUNCTIONS))
#: The macros without what their names share.
M = {name.removeprefix("EXP_").replace("EIGHT_", ""): v for name, v in FOUND.macros.items()}
TABLES = {name.removeprefix("exp_eight_"): v for name, v in FOUND.tables.items()}
STEP = mpmath.log(2) / 8
#: The largest |r|: n = x INV_STEP + d, |d| <= 1/2.
RADIUS = float(mpf(M["STEP_HI"]) / 2 + 88 * abs(1 - mpf(M["INV_STEP"]) * M["STEP_HI"]))
#: The pieces of |r| for Gappa, as shares of it, downwards; what they leave out is run.
CUTS = {"expm1": (0.59, 0.42, 0.25, 0.09), "sinh": (0.52, 0.38, 0.22, 0.09), "cosh": (0.8, 0.65, 0)}
#: A smaller argument is its own result, and both sums of the rounding test round to it.
TINY = 2.0**-27
#: The k that go together; above, all arguments are run, and with negative k below the first ones.
GROUPS = {
    "expm1": [(k, k) for k in range(-5, 4)] + [(4, 6), (7, 12)],
    "sinh": [(k, k) for k in range(4)] + [(4, 6), (7, 12)],
    "cosh": [(0, 0), (1, 1), (2, 4), (5, 12)],
}


@dataclass(frozen=True)
class Step:
    """Steps n = 8 k + j, for k between two numbers."""

    k: tuple[int, int]
    j: int

    @property
    def zero(self):
        return self.k == (0, 0) and self.j == 0

    def s(self, table):
        """The interval of s as it is computed, and the largest size of what it lacks."""
        found, lost = [], []
        for k in self.k:
            n = 8 * k + self.j
            found.append(mpf(single(TABLES[table][self.j] - n * mpf(M["STEP_LO"]))))
            lost.append(abs(found[-1] - rest(table, self.j) - n * (M["STEP_HI"] - STEP)))
        if self.k[0] != self.k[1]:
            # Between the ends s has other roundings.
            lost.append(max(lost) + half_unit(max(map(abs, found))))
        return (min(found), max(found)), max(lost)

    def pieces(self, function):
        """Yield pieces of r."""
        cuts = [RADIUS * c for c in CUTS[function]]
        if self.zero and function != "cosh":
            # Here the error is relative to r.
            cuts[-1] = RADIUS / 8
            while cuts[-1] > TINY:
                cuts.append(cuts[-1] / 8)
        for end, begin in pairwise(cuts):
            yield begin, end
            if not self.zero or function == "expm1":
                yield -end, -begin


def entry(table, j):
    """2^(j/8) or 2^(-j/8) rounded: the entry with j 2^20 added to its encoding, or taken off."""
    bits = int(np.float32(TABLES[table][j]).view(np.uint32))
    bits += (j if table == "power" else -j) << 20
    return mpf(float(np.uint32(bits).view(np.float32))) * (1 if table == "power" else 4)


def rest(table, j):
    """What an entry of a table stands for."""
    up, down = mpmath.log(entry("power", j)), mpmath.log(entry("inverse", j))
    exact = {"rest": j * STEP - up, "shift": j * STEP + (down - up) / 2, "gain": -(up + down) / 2}
    return exact[table]


@cache
def lacking(function):
    """The coefficients of what the series of exp, cosh or sinh lacks, from r^0 on."""
    known = {0: 1, 1: 1, 2: mpf(0.5)} | {n: mpf(M[f"C{n}"]) for n in (3, 4, 5)}
    every = [1 / mpmath.factorial(n) - known.get(n, 0) for n in range(20)]
    if function == "exp":
        return every
    return [c if n % 2 == (function == "sinh") else mpf(0) for n, c in enumerate(every)]


def series_error(function, r):
    """The largest error of a series in a piece."""
    size = mpf(max(map(abs, r)))
    return series_bound(lacking(function), size**20 * mpf(2) ** -60, r)


def exp_error(step, r):
    """The interval of s, and what 1 + p + P_LOW lacks, relative to the entry of the table."""
    s, lost = step.s("rest")
    size, most = mpf(max(map(abs, r))), max(map(abs, s))
    error = series_error("exp", r)
    # s is multiplied by 1 + p instead of exp(r), and stands for exp(s) - 1.
    error += most * (size**3 / 6 + size * mpf(2) ** -24) * 1.1
    return s, error + (most**2 / 2 + lost) * mpmath.exp(size + most)


def scaled(step, power):
    """2^(power k), from the least on."""
    return sorted(mpf(2) ** (power * k) for k in step.k)


def assert_exact(first, second):
    """That the difference of floats in two intervals is a float, as it has few enough places."""
    least = min(*map(abs, first), *map(abs, second))
    assert min(*first, *second) > 0 or max(*first, *second) < 0
    size = max(abs(first[0] - second[1]), abs(first[1] - second[0]))
    assert size <= 2**25 * half_unit(least / (1 + mpf(2) ** -18))


def gappas(function, factor, r, intervals, more):
    """What Gappa prints, and the larger of the errors of the two sums of the rounding test."""
    width = f"{function.upper()}_WIDTH"
    known = {f"C{n}": M[f"C{n}"] for n in (3, 4, 5)} | {"WIDTH": M[width] * factor, **more}
    known |= {name: as_gappa(*map(float, v)) for name, v in {**intervals, "r": r}.items()}
    printed = gappa(SCRIPTS[function], known)
    size = "high" if function == "cosh" else "rest"
    sums = [
        f"{side} - ({size} * {as_gappa(sign * M[width] * factor)} + LOW)"
        for side, sign in (("upper", 1), ("lower", -1))
    ]
    lines = [line for line in printed.splitlines() if line.lstrip().startswith(("upper", "lower"))]
    assert len(lines) == len(sums)
    return printed, max(largest(line, line.split(" in [")[0]) for line in lines)


def expm1_share(step, r, factor=1.0):
    """The share of the width that the error takes at most in a piece."""
    t, one = entry("power", step.j), scaled(step, -1)
    s, error = exp_error(step, r)
    p = [x * (1 + x / 2) for x in map(mpf, r)]
    a = [mpf(single(t - x)) for x in reversed(one)]
    least = t * min(map(abs, p)) * (1 - mpf(2) ** -23)
    more = {"t": float(t), "a": "0", "high": "p", "error": "0"}
    if not step.zero:
        high = [a[0] + t * min(p), a[1] + t * max(p)]
        assert_exact(a, high)
        least -= half_unit(max(map(abs, high)))
        product = f"{as_gappa(float(t))} * p + a"
        more |= {"a": f"rnd({as_gappa(float(t))} - one)", "high": f"rnd({product})"}
        more["error"] = f"{product} - high"
    intervals = {"s": s, "one": one}
    _, rounding = gappas("expm1", factor, r, intervals, more)
    return float((rounding + t * error) / (M["EXPM1_WIDTH"] * factor * least))


def sinh_share(step, r, factor=1.0):
    """The share of the width that the error takes at most in a piece."""
    up, down = entry("power", step.j), [entry("inverse", step.j) * x for x in scaled(step, -2)]
    s, lost = step.s("shift")
    gain = TABLES["gain"][step.j]
    size, most = mpf(max(map(abs, r))), max(map(abs, s))
    total, difference = up + down[1], up - down[0]
    v = total - size / 2 * difference
    least = (up + down[0] - size / 2 * difference) * min(map(abs, r)) * (1 - mpf(2) ** -22)
    if not step.zero:
        ends_of_high = [up - down[1] + r[0] * total * 1.05, difference + r[1] * total * 1.05]
        assert_exact([mpf(single(up - x)) for x in reversed(down)], ends_of_high)
        least -= half_unit(max(map(abs, ends_of_high)))
    assert v > 0
    intervals = {"s": s, "down": down}
    more = {"up": float(up), "gain": gain}
    printed, rounding = gappas("sinh", factor, r, intervals, more)
    error = difference * series_error("cosh", r) + total * series_error("sinh", r)
    # The slope has two terms; s stands for the next power of it, and lacks something.
    error += most * (total * size**4 / 24 + difference * size**3 / 6) * 1.1
    result = difference * mpmath.cosh(size) + total * mpmath.sinh(size)
    error += (most**2 / 2 * result + lost * total) * 1.1
    # The gain multiplies high instead of the sum, for exp(gain) - 1.
    error += abs(gain) * largest(printed, "|LOW|") + mpf(gain) ** 2 / 2 * result * 1.1
    error += abs(gain - rest("gain", step.j)) * result
    return float((rounding + error) / (M["SINH_WIDTH"] * factor * least))


def cosh_share(step, r, factor=1.0):
    """The share of the width that the error takes at most in a piece."""
    t = entry("power", step.j)
    s, error = exp_error(step, r)
    intervals = {"s": s, "factor": scaled(step, -2)}
    printed, rounding = gappas("cosh", factor, r, intervals, {"t": float(t)})
    # The reciprocal moves the other way, by less. The third power of lack is left out.
    error = t * error + largest(printed, "|down|") * largest(printed, "|LACK|") ** 3 * 1.1
    least = ends(printed, "|high|")[0]
    return float((rounding + error) / (M["COSH_WIDTH"] * factor * least))


SHARES = {"expm1": expm1_share, "sinh": sinh_share, "cosh": cosh_share}


def beside(n, low, end):
    """The arguments with r in a piece, and some around them."""
    middle, more = n * mpf(M["STEP_HI"]), mpf(2) ** -18
    return float(middle + low - more), float(middle + end + more)


def left_out(function):
    """The arguments for which Gappa is not asked."""
    groups = GROUPS[function]
    first, last = 8 * groups[0][0], 8 * groups[-1][1] + 7
    most, least = (RADIUS * CUTS[function][i] for i in (0, -1))
    yield beside(last, RADIUS, RADIUS)[0], M[f"{function.upper()}_MAX"]
    if first < 0:
        yield M["EXPM1_MIN"], beside(first, -RADIUS, -RADIUS)[1]
    for n in range(first, last + 1):
        yield beside(n, most, RADIUS)
        # Negative arguments of sinh and cosh do not count.
        if n or function == "expm1":
            yield beside(n, -RADIUS, -most)
        if n and least:
            yield beside(n, -least, least)


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_error_stays_below_the_width(tmp_path, function):
    """By Gappa; all arguments of the pieces that it leaves open or is not asked for are run."""
    proved, left = [], []
    for step in (Step(k, j) for k in GROUPS[function] for j in range(8)):
        for r in step.pieces(function):
            share = SHARES[function](step, r)
            (proved if share < 1 else left).append((share, step, r))
    # A width many times as large as the error would cost speed.
    assert max(share for share, *_ in proved) > 0.6
    assert len(left) <= len(proved) / 4
    ranges = list(left_out(function))
    for _, step, r in left:
        ranges += [beside(8 * k + step.j, *r) for k in range(step.k[0], step.k[1] + 1)]
    if HAS_FMA:
        every, decided, wrong = run_path(tmp_path, function, "avx2", ranges)
        assert wrong == 0
        assert 0.99 * every < decided


@needs_gappa
@pytest.mark.parametrize("function", FUNCTIONS)
def test_half_of_the_width_is_not_proved(function):
    step = Step((2, 2), 2)
    assert SHARES[function](step, next(step.pieces(function)), 0.5) > 1


def test_what_is_clamped_has_the_result_minus_one():
    assert mpmath.exp(M["EXPM1_MIN"]) < mpf(2) ** -25
