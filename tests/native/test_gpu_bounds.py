# SPDX-License-Identifier: Apache-2.0
"""The error bounds of corem's paths for GPUs: Gappa bounds roundings, mpmath the rest.

A path's margin is in units in the last place of its double. What Gappa does not see are the errors
of the polynomials and of the GPU's approximations; of these, PTX ISA states a relative error of
2^-22.9 for rsqrt.approx.ftz.f32 and one unit in the last place for rcp.approx.ftz.f32.
rcp.approx.ftz.f64 takes 20 bits of the significand and gives 20 bits; that these are the nearest
ones is an assumption.
"""

import math
import re
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from bounds import as_gappa, gappa, largest, needs_gappa
from mpmath import mpf

from pytest_udftorch.swap.library.description import find_library

FOLDER = find_library("corem").folder
UNIT = mpf(2) ** -53
#: Half a unit in the last place of a float, relative.
SINGLE = mpf(2) ** -24
RSQRT_ERROR = mpf(2) ** mpf("-22.9")
RCP_ERROR = mpf(2) ** -23
PIECES = 32
mpmath.mp.prec = PRECISION = 200

pytestmark = [
    pytest.mark.slow,
    needs_gappa,
]


def coefficients(name):
    """The coefficients C0, C1, ... of a polynomial, as far as the header has them."""
    text = (FOLDER / "common" / "gpu_constants.h").read_text(encoding="utf-8")
    found = re.findall(rf"#define UDF_GPU_{name}_C(\d+) (-?0x[\da-f.]+p[+-]?\d+)f?$", text, re.M)
    assert [int(n) for n, _ in found] == list(
        range(int(found[0][0]), len(found) + int(found[0][0]))
    )
    return {f"C{n}": float.fromhex(value) for n, value in found}


def macro(path, name):
    text = (FOLDER / path).read_text(encoding="utf-8")
    [value] = re.findall(rf"#define {name} (-?[\da-fx.]+(?:p[+-]?\d+)?)f?$", text, re.M)
    return mpf(float.fromhex(value) if "0x" in value else float(value))


def margin(function):
    text = (FOLDER / function / f"{function}f_gpu.c").read_text(encoding="utf-8")
    [bits] = re.findall(r"_GPU_MARGIN \(UINT32_C\(1\) << (\d+)\)", text)
    return 2 ** int(bits)


def rounding_error(script, known):
    """The bound of the one expression that Gappa prints of a script."""
    values = {
        n: as_gappa(*map(float, v)) if isinstance(v, tuple) else as_gappa(float(v))
        for n, v in known.items()
    }
    return largest(gappa((FOLDER / script).read_text(encoding="utf-8"), values), "")


def polynomial_error(ours, series, rest, low, high):
    """A bound of the difference of two polynomials on an interval, and of what the second lacks.

    A polynomial of degree n is at most 1 / cos(n pi / 2m) times what it is at m > n Chebyshev
    points (Ehlich and Zeller, Schwankung von Polynomen zwischen Gitterpunkten, 1964).
    """
    size = max(len(ours), len(series))
    padded = ([mpf(c) for c in p] + [mpf(0)] * (size - len(p)) for p in (ours, series))
    difference = [a - b for a, b in zip(*padded, strict=True)]
    points = 8 * size
    worst = max(
        abs(
            np.polynomial.polynomial.polyval(
                (low + high + (high - low) * mpmath.cos(angle)) / 2, difference
            )
        )
        for angle in (mpmath.pi * (2 * i + 1) / (2 * points) for i in range(points))
    )
    return worst / mpmath.cos(mpmath.pi * (size - 1) / (2 * points)) + rest


def unit_of(result):
    """The unit in the last place of a double beside a result, the smaller of two."""
    return mpf(math.ulp(float(result * (1 - mpf(2) ** -30)))) if result else mpf(0)


def units(error, result, shrinking=None):
    """An error in units in the last place of a result that is at least so large.

    The error of a result that may be arbitrarily small shrinks with it; ``shrinking`` bounds the
    ratio of the two.
    """
    fixed = error / unit_of(result) if result else mpf("inf")
    return fixed if shrinking is None else min(fixed, shrinking / UNIT)


def cut(low, high, pieces=PIECES):
    yield from pairwise(low + (high - low) * i / pieces for i in range(pieces + 1))


def judge(function, shares):
    """Every error is below the margin, and the margin is not several times as wide."""
    worst = max(shares)
    assert margin(function) / 4 < worst < margin(function)


# exp ------------------------------------------------------------------------------------------


def exp_units():
    known = coefficients("EXP")
    series = [1 / mpmath.factorial(n) for n in range(24)]
    k = mpmath.ceil(-macro("exp/expf.c", "EXP_MIN") / mpmath.log(2))
    r_error = k * abs(macro("exp/constants.h", "EXP_LN2") - mpmath.log(2)) + UNIT
    # k is a rounded product, which may be off half-way between two numbers.
    radius = mpmath.log(2) / 2 * (1 + mpf(2) ** -40)
    rest = radius**24 / mpmath.factorial(24) * 2
    for low, high in cut(-radius, radius):
        polynomial = polynomial_error(list(known.values()), series, rest, low, high)
        rounding = rounding_error("common/gpu_exp.gappa", known | {"r": (low, high)})
        yield units(polynomial + rounding + r_error * mpmath.exp(high), mpmath.exp(low))


def test_exp_on_gpus_stays_below_its_margin():
    judge("exp", exp_units())


# erf ------------------------------------------------------------------------------------------


def erf_units():
    known = coefficients("ERF")
    center, end = macro("erf/constants.h", "ERF_CENTER"), macro("erf/erff.c", "ERF_MAX")
    # Beyond the end every result is 1.
    assert mpmath.erf(end) > 1 - mpf(2) ** -25
    terms = 110
    series = [
        2 / mpmath.sqrt(mpmath.pi) * (-1) ** n / (mpmath.factorial(n) * (2 * n + 1))
        for n in range(terms)
    ]
    # Ours is a polynomial in x^2 - center; so is the other one, moved.
    for i in range(terms):
        for j in range(terms - 2, i - 1, -1):
            series[j] += center * series[j + 1]
    rest = 2 * (end**2) ** terms / mpmath.factorial(terms)
    for low, high in cut(mpf(0), end**2, 8):
        moved = low - center, high - center
        polynomial = polynomial_error(list(known.values()), series, rest, *moved)
        more = {"CENTER": center, "u": (low, high)}
        rounding = rounding_error("erf/gpu.gappa", known | more)
        least = mpmath.erf(mpmath.sqrt(high)) / mpmath.sqrt(high)
        yield (polynomial + rounding) / least / UNIT + 1


def test_erf_on_gpus_stays_below_its_margin():
    judge("erf", erf_units())


# asin and acos --------------------------------------------------------------------------------


def square(d):
    """What a square lacks whose root lacks d, relative, or a little more."""
    return 2 * d + 2 * d**2


def root_errors(approximation):
    """What a root by one step lacks, and by how much its high part differs from it.

    With h = w (1 + d), w the root, and half the reciprocal (1 + e) / 2w, the sum h + (w^2 - h^2)
    (1 + e) / 2w is w (1 - d^2/2 - e (d + d^2/2)).
    """
    d = (1 + approximation) * (1 + SINGLE) - 1
    # The remainder and its product are rounded to float.
    e = (1 + approximation) * (1 + SINGLE) ** 2 - 1
    return d**2 / 2 + e * (d + d**2 / 2) + UNIT, d * (1 + mpf(2) ** -20)


def asin_parts(root):
    """Yield the ends of t, the bound of P, and of t P, on pieces of t in [0, 1/2]."""
    known = coefficients("ASIN")
    series = [
        mpmath.binomial(2 * n, n) / (mpf(4) ** n * (2 * n + 1)) for n in range(44)
    ]  # of asin(t) / t in t^2
    t_error, d = root_errors(RSQRT_ERROR) if root else (mpf(0), mpf(0))
    for low, high in cut(mpf(0), mpf(1) / 2):
        rest = high ** (2 * len(series)) * 2
        polynomial = polynomial_error(list(known.values()), series, rest, low**2, high**2)
        more = {"w": (low**2, high**2), "d": (-square(d), square(d))}
        rounding = rounding_error("common/gpu_asin.gappa", known | more)
        moved = t_error * high / mpmath.sqrt(1 - high**2)
        yield low, high, high * (polynomial + rounding) + moved


def arc_units(function):
    """Where |x| > 1/2 the arc is that of a root, and taken off or not."""
    pi = mpmath.pi
    for root in (False, True):
        for low, high, error in asin_parts(root):
            arcs = mpmath.asin(low), mpmath.asin(high)
            if function == "asin" and root:
                bases = [(pi / 2, -2)]
            elif function == "asin":
                bases = [(mpf(0), 1)]
            else:
                bases = [(mpf(0), 2), (pi, -2)] if root else [(pi / 2, 1), (pi / 2, -1)]
            for base, factor in bases:
                ends = sorted(base + factor * arc for arc in arcs)
                # The constant is rounded, and so is the sum.
                rounded = UNIT * base + UNIT * ends[1]
                # asin(t) is t at least.
                shrinking = None if base else error / high + UNIT
                yield units(abs(factor) * error + rounded, ends[0], shrinking)


@pytest.mark.parametrize("function", ["asin", "acos"])
def test_asin_and_acos_on_gpus_stay_below_their_margin(function):
    judge(function, arc_units(function))


# atan -----------------------------------------------------------------------------------------


def float_unit(low, high):
    """A unit in the last place of floats between two numbers, relative."""
    start = mpf(2) ** mpmath.floor(mpmath.log(high, 2))
    return max(2 * SINGLE * start / x / (1 if x >= start else 2) for x in (low, max(low, start)))


def atan_cases():
    """Yield base, sign, and the largest |t|."""
    text = (FOLDER / "atan" / "atanf_gpu.c").read_text(encoding="utf-8")
    [found] = re.findall(r"one = a > (\S+)f, two = a < (\S+)f;", text)
    first, second = (mpf(float.fromhex(x)) for x in found)
    yield mpf(0), 1, first
    yield mpmath.pi / 4, -1, (1 - first) / (1 + first)
    yield mpmath.pi / 4, 1, (second - 1) / (second + 1)
    yield mpmath.pi / 2, -1, 1 / second


def quotient_errors(base, sign, low, high):
    """What t lacks, and by how much its float differs from it.

    t = t0 + (t - t0) (1 + e), where t0 = t (1 + d) and e is the error of the reciprocal.
    """
    product = float_unit(low, high) / 2 if low else SINGLE
    if base == 0:
        # The denominator is 1.
        reciprocal, d = RCP_ERROR, RCP_ERROR + product
    elif low == 0:
        reciprocal, d = 2 * RCP_ERROR, 4 * RCP_ERROR
    elif base > 1:
        # The numerator is 1.
        reciprocal = d = float_unit(low, high)
    else:
        bottom = sorted(2 / (1 - sign * t) for t in (low, high))
        top = low * bottom[0], high * bottom[1]
        arguments = [b - 1 for b in bottom]
        exact = arguments[0] >= mpf(1) / 2 and arguments[1] <= 2
        reciprocal = float_unit(1 / bottom[1], 1 / bottom[0]) + float_unit(*bottom) / 2
        d = reciprocal + product + (0 if exact else float_unit(*top) / 2)
    d *= 1 + mpf(2) ** -20
    return d * reciprocal * (1 + mpf(2) ** -20) + 3 * UNIT, d


def atan_units():
    known = coefficients("ATAN")
    series = [mpf(-1) ** n / (2 * n + 1) for n in range(34)]
    for base, sign, end in atan_cases():
        for low, high in cut(mpf(0), end):
            rest = high ** (2 * len(series))
            polynomial = polynomial_error(list(known.values()), series, rest, low**2, high**2)
            t_error, d = quotient_errors(base, sign, low, high)
            more = {"w": (low**2, high**2), "d": (-square(d), square(d))}
            rounding = rounding_error("common/gpu_atan.gappa", known | more)
            error = high * (polynomial + rounding + t_error)
            ends = sorted(base + sign * mpmath.atan(t) for t in (low, high))
            rounded = UNIT * base + UNIT * ends[1]
            shrinking = None if base else (error + rounded) / ends[1]
            yield units(error + rounded, ends[0], shrinking)


def test_atan_on_gpus_stays_below_its_margin():
    judge("atan", atan_units())


# Logarithms -----------------------------------------------------------------------------------


def reciprocal_error(low, high):
    """Of 20 bits of a number between two, cut off, and 20 bits of its reciprocal, rounded."""

    def unit(x):
        return mpf(2) ** (mpmath.floor(mpmath.log(x, 2)) - 20)

    return (1 + unit(high) / low) / (1 - unit(1 / low * (1 - mpf(2) ** -60)) / 2 * high) - 1


def log_parts():
    """Yield the ends of s, and the error of s P(s^2), where s = r / (r + 2)."""
    known = coefficients("LOG")
    series = [mpf(2) / (2 * n + 1) for n in range(18)]
    end = mpmath.sqrt(2) * (1 + mpf(2) ** -23)
    end = (end - 1) / (end + 1)
    for sign in (1, -1):
        for low, high in cut(mpf(0), end):
            rest = high ** (2 * len(series))
            ours = [2.0, *known.values()]
            polynomial = polynomial_error(ours, series, rest, low**2, high**2)
            rounding = rounding_error("common/gpu_log.gappa", known | {"s": (low, high)})
            b = sorted(2 / (1 - sign * s) for s in (low, high))
            # A step of Newton's method squares the error.
            s_error = reciprocal_error(b[0], b[1] - mpf(2) ** -60) ** 2 + 4 * UNIT
            slope = 2 / (1 - high**2)
            yield sign, low, high, high * (polynomial + rounding + slope * s_error)


def log_units(r_error):
    """Of log(1 + r) + k log(2), r with an absolute error where k is not 0."""
    unit = mpmath.log(2)
    constant = abs(macro("common/log_fast_constants.h", "UDF_LOG_LN2") - unit)
    for sign, low, high, error in log_parts():
        ends = sorted(2 * sign * mpmath.atanh(s) for s in (low, high))
        sizes = sorted(map(abs, ends))
        # log((1 + s) / (1 - s)) is 2 s at least.
        yield units(error + UNIT * sizes[1], sizes[0], error / high / 2 + UNIT)
        for k, last in ((1, 1), (2, 3), (4, 7), (8, 15), (16, 127)):
            for multiple in (k, -k):
                least = min(abs(multiple * unit + end) for end in ends)
                most = last * unit * 2
                rest = last * constant + 2 * UNIT * most + r_error * mpmath.sqrt(2) * 1.001
                yield units(error + rest, least)


def test_log1p_on_gpus_stays_below_its_margin():
    judge("log1p", log_units(2 * UNIT))


# Controls -------------------------------------------------------------------------------------


def test_a_coefficient_that_is_a_little_wrong_is_seen(monkeypatch):
    """Of exp, whose margin is the narrowest beside its error."""
    right = coefficients("EXP")
    monkeypatch.setitem(
        globals(), "coefficients", lambda name: right | {"C3": right["C3"] + 2**-34}
    )
    assert max(exp_units()) > margin("exp")


def test_a_reciprocal_of_fewer_bits_is_seen(monkeypatch):
    exact = reciprocal_error
    monkeypatch.setitem(globals(), "reciprocal_error", lambda low, high: 1.5 * exact(low, high))
    assert max(log_units(2 * UNIT)) > margin("log1p")
