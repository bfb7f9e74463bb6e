# SPDX-License-Identifier: Apache-2.0
"""The error bounds of the paths of exp and exp2 at AVX-512, proved by Gappa.

Gappa bounds the roundings of the polynomial (``udfs/corem/common/exp_wide.gappa``); intervals of
mpmath bound what its coefficients and the tables lack. With t taken out, low is P + e but for
roundings, where e is the error of high. The rounding test takes the true value to be between
1 - WIDTH and 1 times low; P is therefore larger than it should be by half of that.
"""

from functools import cache, partial
from itertools import pairwise

import mpmath
import pytest
from bounds import as_gappa, ends, gappa, halved, largest, needs_fma, needs_gappa, run_path
from mpmath import iv, mpf
from path_constants import UNIT, high, hull, low, read, single, source

STEPS = 32
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 3
#: exp's n are taken together in bands of so many: its s depends on them.
BAND = 128
#: exp is proved up to it. Beyond, s r^2/2 differs more from what C2 has of it, and all arguments
#: are run.
NEAR = 16.0
iv.prec = mpmath.mp.prec = PRECISION = 120


@cache
def header():
    """The constants without their prefix, those of a step among them, and the tables."""
    found, columns = read("common/exp_wide_constants.h").without("EXP_WIDE_")
    assert found["STEPS"] == STEPS
    assert all(0 < j - STEPS * mpmath.log(t, 2) < 2**-15 for j, t in enumerate(columns["power"]))
    # What n is multiplied by, in place of n/32.
    found["INV_STEP"] = found["LOG2E"] * STEPS
    found["STEP_HI"], found["STEP_LO"] = found["LN2_HI"] / STEPS, found["LN2_LO"] / STEPS
    return found, columns


def kappa():
    """The part of P that is its surplus: half of the width, relative to P."""
    half = (1 - mpf(header()[0]["LESS"])) / 2
    return half / (1 + half)


def logarithm(j):
    """log(2^(j/32) / t) of an entry."""
    return j * mpmath.log(2) / STEPS - mpmath.log(header()[1]["power"][j])


def last_step():
    """The largest n that is proved."""
    return int(NEAR * header()[0]["INV_STEP"]) + 1


@cache
def radius():
    """A bound of |r|: n is the integer nearest to x INV_STEP, which is rounded once."""
    c = header()[0]
    step = 1 / mpf(c["INV_STEP"])
    most = step / 2 + last_step() * abs(mpf(c["STEP_HI"]) - step)
    return float(most * (1 + mpf(2) ** -40))


def exp_parts():
    """Yield Gappa's names, s, sigma and (1 - kappa) s - sigma, for bands of n."""
    c, columns = header()
    logs, most = [logarithm(j) for j in range(STEPS)], last_step()
    for start in range(-most, most + 1, BAND):
        s, sigma, surplus = [], [], []
        for n in range(start, min(start + BAND, most + 1)):
            j = n % STEPS
            s.append(mpf(columns["rest"][j]) - n * mpf(c["STEP_LO"]))
            sigma.append(logs[j] - n * (mpmath.log(2) / STEPS - c["STEP_HI"]))
            surplus.append((1 - kappa()) * s[-1] - sigma[-1])
        known = {n: as_gappa(c[n]) for n in ("C2", "C3", "C4")}
        known |= {"first": "s", "second": "s", "FIRST": "s0", "SECOND": "s0"}
        known["s"] = as_gappa(float(min(s)) * (1 - 2**-50), float(max(s)) * (1 + 2**-50))
        yield known, hull(sigma), hull(surplus)


def exp_surplus(sigma, surplus, r):
    """(1 - kappa) P - P*, where P* is what P should be: exp(r + sigma) - 1 - r."""
    c = [(1 - kappa()) * header()[0][n] - 1 / mpmath.factorial(n[1]) for n in ("C2", "C3", "C4")]
    r = iv.mpf(r)
    rest = r**5 / 120 * iv.exp(r * iv.mpf([0, 1]))
    series = r**2 * c[0] + r**3 * c[1] + r**4 * c[2] - rest
    square = sigma**2 / 2 * iv.exp(r + sigma * iv.mpf([0, 1]))
    quadratic = r**2 / 2 * iv.exp(r * iv.mpf([0, 1]))
    return series + surplus * (1 + r) - sigma * quadratic - square


def exp2_parts():
    """Yield Gappa's names, and what (1 - kappa) P - P* needs, for the steps."""
    c, columns = header()
    names = {"C2": "D2", "C3": "D3", "C4": "D4"}
    for j in range(STEPS):
        first, second = columns["rest_d"][j], columns["rest"][j]
        known = {n: as_gappa(c[d]) for n, d in names.items()}
        known |= {"first": as_gappa(first), "second": as_gappa(second), "s": "1, 1"}
        known |= {"FIRST": known["first"], "SECOND": known["second"]}
        t = columns["power"][j]
        yield known, logarithm(j), mpf(single(t * c["LN2"])) / t, first, second


def exp2_surplus(rho, slope, first, second, d):
    """(1 - kappa) P - P*, where P* is exp(rho) 2^d - 1 - slope d."""
    c, log2, less = header()[0], mpmath.log(2), 1 - kappa()
    d, factor = iv.mpf(d), mpmath.exp(rho)
    a = [less * second - (factor - 1), less * first - (factor * log2 - slope)]
    a += [less * c[f"D{n}"] - factor * log2**n / mpmath.factorial(n) for n in (2, 3, 4)]
    rest = (d * log2) ** 5 / 120 * factor * iv.exp(d * log2 * iv.mpf([0, 1]))
    return d * a[1] + d**2 * a[2] + d**3 * a[3] + d**4 * a[4] - rest + a[0]


def share(known, surplus, r):
    """Return the share of half of the width that the errors take at most in a piece."""
    printed = gappa(source("common/exp_wide.gappa"), known | {"r": as_gappa(*r)})
    p = iv.mpf(ends(printed, "  P"))
    assert low(p) > 4 * UNIT
    # All that follows is relative to P. e is at most half a unit of high in its last place, so
    # 2^-24 t, or 1.02 times that where t is below 1 or high above 2; it is rounded once.
    e = mpf(UNIT) * mpf(1.03) / low(p)
    rounding = iv.mpf([-1, 1]) * (largest(printed, "p - P") / low(p) + e * UNIT)
    error = surplus(r) / p + kappa() + rounding
    last = mpf(UNIT) * (1 + high(rounding) + e)
    width = 1 - mpf(header()[0]["LESS"])
    # The true value is below low, and above (1 - width) low.
    above = width * (1 - e - high(rounding) - last)
    return float(1 - min(low(error) - last, above - high(error) - last) / (width / 2))


def pieces(most):
    """Pieces of r of either sign: the terms with r^2 grow."""
    cuts = [-most, *(-most * 0.8**i for i in range(1, 20)), 0]
    cuts += [-c for c in reversed(cuts[:-1])]
    return pairwise(cuts)


PARTS = {"exp": (exp_parts, exp_surplus), "exp2": (exp2_parts, exp2_surplus)}


def extent(name):
    return radius() if name == "exp" else 1 / 64


def shares(name, halvings=HALVINGS):
    """Yield the share of half of the width in every piece."""
    parts, surplus = PARTS[name]
    for known, *part in parts():
        for r in pieces(extent(name)):
            each = partial(share, known, partial(surplus, *part))
            yield from (found for found, _ in halved(r, each, halvings))


def test_the_reductions_are_exact():
    """r and d are multiples of their last place, and so short that they are floats."""
    c = header()[0]
    # Arguments with n other than 0 are at least half a step, and multiples of 2^-30.
    assert c["STEP_HI"] / 2 > 2**-7
    assert c["STEP_HI"] * 2**30 % 1 == 0
    assert radius() < 2**-30 * 2**24
    # The sum with n has a last bit of 1/32.
    assert read("exp2/exp2f_wide.c").macros["EXP2_WIDE_MOST"] < 2**17


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_the_error_stays_below_the_width(name):
    assert 0.5 < max(shares(name)) < 1


def range_of(name):
    """The ends of a path."""
    macros = read(f"{name}/{name}f_wide.c").macros
    return [macros[f"{name.upper()}_WIDE_{end}"] for end in ("LEAST", "MOST")]


@needs_fma
@pytest.mark.slow
def test_the_arguments_that_are_not_proved_are_right(tmp_path):
    least, most = range_of("exp")
    every, decided, wrong = run_path(tmp_path, "exp", "avx512", [(least, -NEAR), (NEAR, most)])
    assert wrong == 0
    assert 0.999 * every < decided


@needs_fma
@pytest.mark.parametrize(("name", "zero"), [("exp", 104.0), ("exp2", 151.0)])
def test_arguments_beyond_the_range_are_undecided_or_zero(tmp_path, name, zero):
    least, most = range_of(name)
    beyond = [(most, most + 0.01), (least - 0.01, least), (-zero, 0.001 - zero), (200.0, 200.01)]
    assert run_path(tmp_path, name, "avx512", beyond)[1] == 0
    every, decided, wrong = run_path(tmp_path, name, "avx512", [(-zero - 0.1, -zero - 0.0001)])
    assert every == decided
    assert wrong == 0


@needs_gappa
@pytest.mark.parametrize(("name", "constant"), [("exp", "C2"), ("exp2", "D2")])
def test_a_wrong_constant_is_not_proved(monkeypatch, name, constant):
    """Some of the width is used, and a coefficient that is wrong by 2^-20 takes the rest."""
    parts, surplus = PARTS[name]
    most = extent(name)

    def found():
        *_, (known, *part) = parts()
        return share(known, partial(surplus, *part), (most * 0.9, most))

    assert 0.25 < found() < 1
    monkeypatch.setitem(header()[0], constant, header()[0][constant] * (1 - 2.0**-20))
    assert found() > 1.2
