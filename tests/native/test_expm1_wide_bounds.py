# SPDX-License-Identifier: Apache-2.0
"""The error bounds of the paths of expm1, sinh and cosh at AVX-512, proved by Gappa or run.

Gappa bounds roundings (``udfs/corem/common/expm1_wide.gappa``); intervals of mpmath bound what the
polynomials and the tables lack. The rounding test has a width in proportion to low. Where low is
below half a unit of high in its last place, high is the result; so an error below the width times
the larger of the two is never seen.

Near zero, where n is 0, all three are proved, and expm1 up to 16. Elsewhere the worst roundings
together would exceed the width, by up to twice, and all arguments are run.
"""

import math
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from bounds import HAS_FMA, as_gappa, gappa, largest, merged, needs_fma, needs_gappa, run_path
from mpmath import iv, mpf
from path_constants import UNIT, encoding, high, low, read, single, source, value

STEPS = 32
#: expm1 is proved between these steps: t - 1 is exact, and s r^2/2 is small.
FIRST, LAST = -31, 738
#: n are taken together in bands of so many for Gappa.
BAND = 256
#: Ends of pieces of r have this ratio, and so many of each sign are not 0.
RATIO, CUTS = 0.87, 26
#: Below it terms of the second order do not count: high is the argument, or 1, and right.
TINY = 2.0**-40
#: The ends of the paths, and where expm1's results are -1.
ENDS = {"expm1": (-17.6, 89.5), "sinh": (-90.5, 90.5), "cosh": (-90.5, 90.5)}
iv.prec = mpmath.mp.prec = PRECISION = 120


@cache
def header():
    """The constants without their prefix, and expm1's tables by place."""
    found, columns = read("common/expm1_wide_constants.h").without("EXPM1_WIDE_")
    assert found["STEPS"] == STEPS
    columns["t"] = [
        value(encoding(abs(e)) ^ (j << 18) | 127 << 23) for j, e in enumerate(columns["power"])
    ]
    assert all(abs(j - STEPS * mpmath.log(t, 2)) < 2**-18 for j, t in enumerate(columns["t"]))
    return found, columns


def width(name):
    return read(f"{name}/{name}f_wide.c").macros[f"{name.upper()}_WIDE_WIDTH"]


@cache
def radius():
    """A bound of |r|: n is the integer nearest to x INV_STEP, which is rounded once."""
    c = header()[0]
    step = 1 / mpf(c["INV_STEP"])
    most = step / 2 + max(-FIRST, LAST) * abs(mpf(c["STEP_HI"]) - step)
    return float(most * (1 + mpf(2) ** -40))


def printed_by(goal, r, s=(0.0, 0.0)):
    """What Gappa prints for a goal."""
    names = ("C3", "C4", "SINH_C3", "SINH_C5", "COSH_C4")
    known = {n: as_gappa(header()[0][n]) for n in names}
    known |= {"r": as_gappa(*r), "s": as_gappa(*s), "goal": f"{goal} in ?"}
    return largest(gappa(source("common/expm1_wide.gappa"), known), goal)


# Where n is 0 -----------------------------------------------------------------------------------

#: The coefficients, and what they should be.
SERIES = {
    "expm1": {"C3": (3, 6), "C4": (4, 24)},
    "sinh": {"SINH_C3": (3, 6), "SINH_C5": (5, 120)},
    "cosh": {"COSH_C4": (4, 24)},
}
#: The power that low begins with, its factorial, and that of the first term left out.
TERMS = {"expm1": (2, 5), "sinh": (3, 7), "cosh": (2, 6)}


def share_near_zero(name, r):
    """The share of the width that the errors of low take, relative to low."""
    rounding = printed_by(f"{name} -/ {name.upper()}", r)
    first, left_out = TERMS[name]
    most = mpf(max(map(abs, r)))
    lacking = sum(
        abs(header()[0][c] - 1 / mpf(factorial)) * most ** (n - first)
        for c, (n, factorial) in SERIES[name].items()
    )
    lacking += most ** (left_out - first) / mpmath.factorial(left_out) * mpmath.exp(most)
    # low is at least this part of its first term.
    least = (1 - most) / mpmath.factorial(first)
    return float((rounding + lacking / least) * (1 + most) / width(name))


def pieces_near_zero():
    ends = [TINY, *(radius() * 2.0**-i for i in (2, 1, 0))]
    return [*pairwise(ends), *((-b, -a) for a, b in pairwise(ends))]


# expm1 elsewhere --------------------------------------------------------------------------------


def step(n):
    """Return t, s before its rounding, what s should be, and the difference, for a step."""
    c, columns = header()
    j, octave = n % STEPS, n // STEPS
    s = mpf(columns["rest"][j]) - n * mpf(c["STEP_LO"])
    rest = j * mpmath.log(2) / STEPS - mpmath.log(columns["t"][j])
    sigma = rest - n * (mpmath.log(2) / STEPS - c["STEP_HI"])
    return columns["t"][j] * 2.0**octave, float(s), float(sigma), float(abs(s - sigma))


def polynomial_error(r):
    """What the polynomial lacks of exp(r) - 1 - r."""
    c, x = header()[0], iv.mpf(r)
    series = x**3 * (c["C3"] - mpf(1) / 6) + x**4 * (c["C4"] - mpf(1) / 24)
    error = series - x**5 / 120 * iv.exp(x * iv.mpf([0, 1]))
    return float(max(abs(low(error)), abs(high(error))))


def binades(r, t):
    """Half a unit in the last place of the sums t - 1 + t r, in each of their binades."""
    sizes = sorted(abs(t - 1 + t * x) for x in r)
    first, last = (math.floor(math.log2(x)) for x in sizes)
    return [2.0 ** (k - 24) for k in range(first, last + 1)]


def share(r, known, rounding, lacking):
    """Return the share of the width that the errors take at most, for a step in a piece of r."""
    t, s, sigma, difference = known
    most = max(map(abs, r))
    # s (1 + r) in place of exp(r) (exp(sigma) - 1), and the polynomial.
    error = difference * (1 + most) + sigma**2 * 0.51 + abs(sigma) * most**2 * 0.51
    error = t * (error + rounding + lacking) * (1 + 2.0**-30)
    c = header()[0]
    series = [x**2 * (0.5 + x * (c["C3"] + x * c["C4"])) for x in r]
    series = [0.0 if r[0] * r[1] <= 0 else min(series), max(series)]
    tail = sorted(s * (1 + x) for x in r)
    least = t * max(0.0, series[0] + tail[0], -series[1] - tail[1]) * (1 - 2.0**-30)
    # The error of high is rounded, and low is.
    return max(
        (error + UNIT * half) / ((width("expm1") - UNIT) * max(half, least - half - error))
        for half in binades(r, t)
    ) * (1 + 2.0**-18)  # fmt: skip


def shares():
    """Yield the share of the width for each step and piece, with these."""
    cuts = [radius() * RATIO**i for i in range(CUTS)]
    cuts = [*(-x for x in cuts), 0.0, *reversed(cuts)]
    for start in range(FIRST, LAST + 1, BAND):
        steps = {n: step(n) for n in range(start, min(start + BAND, LAST + 1)) if n}
        sizes = [s for _, s, *_ in steps.values()]
        for r in pairwise(cuts):
            rounding = float(printed_by("q - Q", r, (min(sizes), max(sizes))))
            lacking = polynomial_error(r)
            for n, known in steps.items():
                yield share(r, known, rounding, lacking), n, r


def arguments(n, r):
    """The arguments of a piece, and some around them."""
    center = n * header()[0]["STEP_HI"]
    beside = abs(center) * 2.0**-22
    return center + r[0] - beside, center + r[1] + beside


def powers():
    """Yield ranges of arguments for which high may be a power of two: its units change there."""
    for k in range(-7, 24):
        for sign in (-1, 1) if k < 0 else (1,):
            x = math.log1p(sign * 2.0**k)
            yield x - abs(x) * 2.0**-19, x + abs(x) * 2.0**-19


def test_what_the_paths_count_as_exact_is_exact():
    c, columns = header()
    # Arguments with n other than 0 are at least half a step, and multiples of 2^-30.
    assert c["STEP_HI"] / 2 > 2**-7
    assert c["STEP_HI"] * 2**30 % 1 == 0
    assert radius() < 2**-30 * 2**24
    for n in range(FIRST, LAST + 1):
        t = step(n)[0]
        assert single(t - 1) == t - 1
        # Its difference to high has multiples of the smaller unit in the last place.
        ends = [abs(t - 1), *(abs(t - 1 + t * r) for r in (-radius(), radius()))]
        unit = float(np.spacing(np.float32(min(ends) * (1 - 2.0**-20))))
        assert n == 0 or t * radius() < 2.0**24 * unit
    zero = [columns[n][0] for n in ("rest", "shift", "gain", "sinh_gain")]
    assert zero == [0.0] * 4


@needs_gappa
@pytest.mark.parametrize("name", TERMS)
def test_the_error_stays_below_the_width_near_zero(name):
    assert 0.3 < max(share_near_zero(name, r) for r in pieces_near_zero()) < 1


@needs_gappa
@pytest.mark.slow
def test_the_error_of_expm1_stays_below_the_width(tmp_path):
    """By Gappa, but for pieces in which low is near half a unit of high, which are run."""
    found = list(shares())
    left = [(n, r) for part, n, r in found if part >= 1]
    assert max(part for part, *_ in found if part < 1) > 0.9
    assert len(left) <= len(found) / 4
    # Gappa proves the larger part of the arguments.
    assert sum(r[1] - r[0] for _, r in left) < 0.2 * (LAST - FIRST) * 2 * radius()
    if not HAS_FMA:
        return
    every, decided, wrong = run_path(
        tmp_path, "expm1", "avx512", merged([*(arguments(n, r) for n, r in left), *powers()])
    )
    assert wrong == 0
    assert 0.98 * every < decided


@needs_fma
@pytest.mark.slow
@pytest.mark.parametrize("name", TERMS)
def test_arguments_that_are_not_proved_are_right(tmp_path, name):
    near = header()[0]["STEP_HI"] / 2 * (1 - 2.0**-18)
    ranges = [(near, ENDS[name][1])]
    if name == "expm1":
        ends = [(n + side) * header()[0]["STEP_HI"] for n, side in ((FIRST, -0.4), (LAST, 0.4))]
        ranges = [(ENDS[name][0], ends[0]), (ends[1], ENDS[name][1])]
    every, decided, wrong = run_path(tmp_path, name, "avx512", ranges)
    assert wrong == 0
    assert 0.95 * every < decided


@needs_fma
@pytest.mark.parametrize("name", TERMS)
def test_large_arguments_are_undecided(tmp_path, name):
    for x in (ENDS[name][1], 1e30):
        assert run_path(tmp_path, name, "avx512", [(x, x * 1.00001)])[1] == 0


@needs_gappa
def test_gappa_sees_most_of_the_width_used():
    """A coefficient that is wrong by 2^-14 is not proved in pieces that are."""
    r = (radius() * RATIO, radius())
    s = step(100)[1]
    rounding, lacking = float(printed_by("q - Q", r, (s, s))), polynomial_error(r)
    assert 0.4 < share(r, step(100), rounding, lacking) < 1
    assert share(r, step(100), rounding, lacking + r[1] ** 3 / 6 * 2.0**-12) > 1
