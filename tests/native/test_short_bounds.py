# SPDX-License-Identifier: Apache-2.0
"""The error bounds of the scalar forms' short paths: Gappa bounds roundings, mpmath the rest.

A bound is relative to the result, which has 53 bits: an error of 2^-e is below 2^(53 - e) units in
its last place, the unit of the margins.
"""

import math
import re
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from bounds import as_gappa, ends, gappa, largest, needs_gappa
from mpmath import mpf

from pytest_udftorch.swap.library.description import find_library

FOLDER = find_library("corem").folder
#: How the products are rounded that FMA does not round; a multiple of 2^-4000 is as good as exact.
PRODUCTS = {"fma": "fixed<-4000, ne>", "no fma": "float<ieee_64, ne>"}
UNIT = mpf(2) ** -53
mpmath.mp.prec = PRECISION = 200

pytestmark = needs_gappa


@cache
def header(path):
    """The macros of a header as numbers, the rows of its tables, and the bounds in its comments."""
    text = (FOLDER / path).read_text(encoding="utf-8")
    number = r"-?(?:0x[\d.a-f]+(?:p[+-]?\d+)?|\d+(?:\.\d+)?)"
    macros = re.findall(rf"#define UDF_([A-Z0-9_]+) (?:UINT32_C\()?({number})\)?$", text, re.M)
    tables = {
        name: [[as_float(v) for v in re.findall(number, row)] for row in body.splitlines()]
        for name, body in re.findall(r"udf_(\w+)\[\w*\] = \{\n(.*?)\n\};", text, re.S)
    }
    bounds = [2.0 ** float(b) for b in re.findall(r"below 2\^(-[\d.]+)", text)]
    return {name: as_float(value) for name, value in macros}, tables, bounds


def as_float(text):
    return float.fromhex(text) if "0x" in text else float(text)


def margin(path, name):
    """The margin of the rounding test in a source, as an error relative to the result."""
    text = (FOLDER / path).read_text(encoding="utf-8")
    [bits] = re.findall(rf"#define {name} \(UINT64_C\(1\) << (\d+)\)", text)
    return UNIT * 2 ** int(bits)


def printed_by(script, product, known):
    """What Gappa prints of a script for a kind of product."""
    text = (FOLDER / script).read_text(encoding="utf-8")
    return gappa(text, {"product": PRODUCTS[product], **known})


# exp and exp2 -----------------------------------------------------------------------------------


@cache
def exp_errors(product):
    """The errors of exp and exp2, relative."""
    macros, _, (exp_polynomial, exp2_polynomial) = header("common/exp_short_constants.h")
    radius = mpmath.log(2) / 256 * (1 + mpf(2) ** -29)
    known = {re.sub(r"_SHORT", "", n): v for n, v in macros.items() if re.search(r"_C\d$", n)}
    known |= {"EXP_RADIUS": float(radius), "EXP2_RADIUS": 1 / 256}
    printed = printed_by("common/exp_short.gappa", product, known)
    # What r lacks: the step is rounded, the difference too, and without FMA the product.
    count = 126 * 128 / mpmath.log(2)
    r = count * abs(mpmath.log(2) / 128 - macros["EXP_SHORT_STEP"]) + UNIT * radius
    if product == "no fma":
        r += UNIT * 128 * mpmath.log(2)
    # The table is rounded once.
    exp = exp_polynomial + largest(printed, "y -/ Y") + r + UNIT
    exp2 = exp2_polynomial + largest(printed, "z -/ Z") + UNIT
    return exp * (1 + mpf(2) ** -30), exp2 * (1 + mpf(2) ** -30)


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_short_exponentials_stay_below_their_margin(product):
    allowed = margin("common/exp_short.h", "UDF_EXP_SHORT_MARGIN")
    for error in exp_errors(product):
        # A margin many times as wide as the error would cost speed.
        assert allowed / 4 < error < allowed


# Logarithms -------------------------------------------------------------------------------------

LOGARITHMS = {"log": mpmath.log, "log2": lambda x: mpmath.log(x, 2), "log10": mpmath.log10}


def value(encoding):
    return float(np.uint32(encoding).view(np.float32))


def log_parts(function):
    """The coefficients, and for each interval its ends in r and c, all with k = 0."""
    macros, tables, _ = header("common/log_short_constants.h")
    name = "log2" if function == "pow" else function
    start, width = int(macros["LOG_SHORT_START"]), 1 << int(macros["LOG_SHORT_SHIFT"])
    edges = range(start, start + 129 * width, width)
    for (c, log), (low, high) in zip(tables[f"{name}_short_table"], pairwise(edges), strict=True):
        c *= 2.0**-125
        yield c, log, (value(low) * c - 1, value(high - 1) * c - 1)


def log_bounds(function):
    """The polynomial's bounds: relative in the interval of 1, absolute in the others."""
    bounds = header("common/log_short_constants.h")[2]
    at = (*LOGARITHMS, "pow").index(function)
    return bounds[2 * at : 2 * at + 2]


def log_pieces(function):
    """Yield r, base and what constants leave out, for pieces that cover all normal arguments."""
    g = LOGARITHMS["log2" if function == "pow" else function]
    unit = g(mpf(2))
    parts = list(log_parts(function))
    missing = {c: abs(-g(mpf(c)) - log) for c, log, _ in parts}
    for c, log, ends_of_r in parts:
        if c != 1.0:
            yield ends_of_r, (log, log), missing[c]
            continue
        assert log == 0
        for exponent in range(9, 25):
            for sign in (1, -1):
                r = sorted((sign * 2.0**-exponent, sign * 2.0 ** (1 - exponent)))
                r = [min(max(end, ends_of_r[0]), ends_of_r[1]) for end in r]
                if r[0] < r[1]:
                    yield tuple(r), (0.0, 0.0), mpf(0)
    # With k log(2), which is rounded, as is its sum with the logarithm of c.
    r = min(ends_of_r[0] for *_, ends_of_r in parts), max(ends_of_r[1] for *_, ends_of_r in parts)
    logs = [log for _, log, _ in parts]
    for low, high in ((1, 1), (2, 3), (4, 15), (16, 127)):
        for sign in (1, -1):
            multiples = sorted((sign * low * unit, sign * high * unit))
            base = float(multiples[0] + min(logs)), float(multiples[1] + max(logs))
            yield r, base, max(missing.values()) + 2 * UNIT * max(map(abs, base))


@cache
def log_error(function, product, r_error=0.0, least=0.0):
    """The error of a logarithm, relative to the result or to ``least``, whichever is larger."""
    tables = header("common/log_short_constants.h")[1]
    near, far = log_bounds(function)
    first = "log" if function == "pow" else function
    known = {f"p{i}": c for i, [c] in enumerate(tables[f"{first}_short_poly"])}
    known |= {f"q{i}": c for i, [c] in enumerate(tables["pow_short_poly"])}
    names = ("l - L", "|L|") if function == "pow" else ("y - Y", "|Y|")
    worst = mpf(0)
    for r, base, missing in log_pieces(function):
        more = {"r": as_gappa(*r), "base": as_gappa(*base)}
        printed = printed_by("common/log_short.gappa", product, known | more)
        result = ends(printed, names[1])[0]
        polynomial = near * result * (1 + near) if base == (0.0, 0.0) else far
        if base != (0.0, 0.0):
            missing += r_error
        total = polynomial + missing + largest(printed, names[0])
        worst = max(worst, total / max(result, least))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("function", LOGARITHMS)
def test_the_short_logarithms_stay_below_their_margin(function, product):
    allowed = margin("common/log_short.h", "UDF_LOG_SHORT_MARGIN")
    assert allowed / 4 < log_error(function, product) < allowed


def test_half_way_entries_stay_half_way():
    """What stands for special arguments: no logarithm moves it."""
    text = (FOLDER / "common/log_short_constants.h").read_text(encoding="utf-8")
    entries = re.findall(r"\[253 \.\.\. 511\] = (\S+),", text)
    assert entries[3:] == ["__builtin_inf()"]
    for entry in map(float.fromhex, entries[:3]):
        assert math.ulp(entry) / 2 > 1
        assert np.float64(entry).view(np.uint64) % 2**29 == 2**28


@pytest.mark.slow
@pytest.mark.parametrize("product", PRODUCTS)
def test_the_short_inverse_hyperbolic_functions_stay_below_their_margin(product):
    """The logarithm of a double z: r is rounded where c is not 1, and z is."""
    allowed = margin("common/log_short.h", "UDF_LOG_SHORT_MARGIN")
    # A product near 1, and r.
    r_error = UNIT * (1 if product == "no fma" else 0) + UNIT * mpf(2) ** -8
    error = log_error("log", product, float(r_error))
    # acosh is 2^-11.01 at least; z has two roundings there, and one of the square root.
    assert error + 3 * UNIT / mpmath.acosh(1 + mpf(2) ** -23) < allowed
    # asinh is 2^-6.01 at least.
    assert error + 4 * UNIT / mpmath.asinh(mpf(2) ** -6) < allowed


@pytest.mark.slow
@pytest.mark.parametrize("product", PRODUCTS)
def test_the_short_power_stays_below_its_margin(product):
    allowed = margin("pow/powf_short.c", "POW_SHORT_MARGIN")
    exponent = 126 * mpmath.log(2) * (log_error("pow", product) + UNIT)
    error = (exponent + exp_errors(product)[1]) * (1 + mpf(2) ** -30)
    assert allowed / 4 < error < allowed


# sin, cos and asin ------------------------------------------------------------------------------


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_short_sine_and_cosine_stay_below_their_margin(product):
    allowed = margin("common/trig_short.h", "UDF_TRIG_SHORT_MARGIN")
    macros, _, polynomials = header("common/trig_short_constants.h")
    text = (FOLDER / "common/trig_short_constants.h").read_text(encoding="utf-8")
    quarters = [
        [float.fromhex(v) for v in re.findall(r"(-?0x\S+),\n", body)]
        for body in re.findall(r"\{\n((?:\s+-?0x\S+,\n)+)", text)
    ]
    assert quarters[0] == quarters[2]
    assert quarters[1] == quarters[3]
    # r: no float32 below 2^22 but 0 is nearer to a multiple of pi/2 than 2^-27.
    parts = ("HI", "LO") if product == "fma" else ("A", "B", "C")
    missing = abs(mpmath.pi / 2 - sum(mpf(macros[f"TRIG_SHORT_HALF_PI_{p}"]) for p in parts))
    count = 2**22
    lost = count * missing + (0 if product == "fma" else count * mpf(2) ** -57 * UNIT)
    r = lost * 2**27 + 2 * UNIT
    for coefficients, polynomial in zip(quarters[:2], polynomials, strict=True):
        known = {f"c{i}": c for i, c in enumerate(coefficients)}
        radius = float(mpmath.pi / 4 * (1 + mpf(2) ** -20))
        printed = printed_by("common/trig_short.gappa", product, known | {"RADIUS": radius})
        factor = largest(printed, "y - Y") / ends(printed, "Y")[0]
        # r cot(r) and r tan(r) are at most 1.
        assert polynomial + factor + r + UNIT < allowed
    assert max(polynomials) > allowed / 4


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_short_arcsine_stays_below_its_margin(product):
    allowed = margin("asin/asinf_short.c", "ASIN_SHORT_MARGIN")
    _, tables, [polynomial] = header("asin/short_constants.h")
    known = {f"p{i}": c for i, [c] in enumerate(tables["asin_short_poly"])}
    printed = printed_by("asin/short.gappa", product, known)
    # Below 1/2 the root is exact; above, it and what is taken off pi/2 are rounded.
    relative = polynomial + largest(printed, "q - Q") + 2 * UNIT
    above = (mpmath.pi / 3 * (relative + UNIT) + UNIT) / (mpmath.pi / 6) + UNIT
    assert allowed / 4 < above < allowed
