# SPDX-License-Identifier: Apache-2.0
"""The bounds of corem-d's fast paths: Gappa bounds roundings, mpmath what constants leave out."""

import re
import runpy
import shutil
import subprocess

import mpmath
import pytest
from mpmath import mpf

from pytest_udftorch.library.description import find_library

FOLDER = find_library("corem-d").folder
#: How the products are rounded that FMA does not round; a multiple of 2^-4000 is as good as exact.
PRODUCTS = {"fma": "fixed<-4000, ne>", "no fma": "float<ieee_64, ne>"}
#: Above all n: the range of x is below 746.
COUNT = 17_300

pytestmark = pytest.mark.skipif(shutil.which("gappa") is None, reason="needs gappa (Debian)")


def header(function):
    """The macros of constants.h as numbers, and the columns of its tables of floats."""
    text = (FOLDER / function / "constants.h").read_text(encoding="utf-8")
    macros = re.findall(r"#define [A-Z]+_(\w+) (-?0x[\d.a-f]+p[+-]\d+)", text)
    tables = re.findall(r"float udf_[a-z]+_(\w+)\[\] = \{(.*?)\};", text, re.DOTALL)
    columns = {n: [float.fromhex(v) for v in re.findall(r"(\S+)f,", b)] for n, b in tables}
    return {name: float.fromhex(value) for name, value in macros}, columns


def source_macro(function, name):
    """A macro of the function's source, a number."""
    source = (FOLDER / function / f"{function}.c").read_text(encoding="utf-8")
    return float.fromhex(re.search(rf"#define \w+_{name} (\S+)", source)[1])


def gappa(function, known):
    """What Gappa prints of a function's script, with names between @ signs filled in."""
    script = (FOLDER / function / f"{function}.gappa").read_text(encoding="utf-8")
    for name, value in known.items():
        script = script.replace(f"@{name}@", value)
    ran = subprocess.run(["gappa"], input=script, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr + script
    return ran.stderr


def ends(printed, expression):
    """The two ends that Gappa printed for an expression."""
    found = re.search(re.escape(expression) + r" in \[(\S+?)(?: \{.*?\})?, (\S+?)[ \]]", printed)
    values = (re.fullmatch(r"(-?\d+)(?:b(-?\d+))?", end) for end in found.groups())
    return [mpf(int(v[1])) * mpf(2) ** int(v[2] or 0) for v in values]


def exp_rounding(macros, product, radius, margin):
    """A bound of the rounding errors, by Gappa, for r of either sign."""
    known = {name: value.hex() for name, value in macros.items()}
    known |= {"product": PRODUCTS[product], "MARGIN": margin.hex()}
    pieces = ((-radius, 0.0), (0.0, radius))
    return max(
        ends(gappa("exp", known | {"r": f"{a.hex()}, {b.hex()}"}), "|sum - SUM|")[1]
        for a, b in pieces
    )


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_error_of_the_fast_exp_is_below_its_margin(product):
    mpmath.mp.prec = 300
    generator = runpy.run_path(str(FOLDER / "exp" / "generate.py"))
    macros, columns = header("exp")
    margin = source_macro("exp", "MARGIN")
    radius = float(generator["RADIUS"] * (1 + mpf(2) ** -50))

    step = mpmath.log(2) / 16
    constants = COUNT * abs(step - macros["STEP_HI"] - macros["STEP_LO"]) + max(
        abs(mpmath.log(mpf(2) ** (mpf(j) / 16) / (mpf(high) + low)) - rest)
        for j, (high, low, rest) in enumerate(zip(*columns.values(), strict=True))
    )
    s = COUNT * mpf(abs(macros["STEP_LO"])) + max(map(abs, columns["rest"]))
    assert s < mpf(2) ** -44
    largest = max(columns["high"]) * (1 + mpf(2) ** -24)
    assert largest < float.fromhex("0x1.ea5p0")
    q = [macros[f"Q{i}"] for i in range(6)]
    # s^2/2, and six roundings of numbers below 2^-43 in s, s z, w.lo and e.
    neglected = s * s + 6 * mpf(2) ** (-43 - 53)
    roundings = exp_rounding(macros, product, radius, margin)

    def error(coefficients):
        polynomial = generator["polynomial_error"](coefficients)
        return largest * (polynomial + constants + neglected) + roundings

    assert error(q) < margin
    # Negative controls: the margin is not idle, and a wrong coefficient breaks it.
    assert error(q) > margin / 2
    assert error([q[0] + 2.0**-52, *q[1:]]) > margin


def log_terms(macros, product, generator, coefficients):
    """The relative error of r^3 q(r), and the largest |q|."""
    known = {name: value.hex() for name, value in macros.items()} | {"product": PRODUCTS[product]}
    known |= {f"Q{i}": c.hex() for i, c in enumerate(coefficients)}
    radius = float(generator["RADIUS"]).hex()
    neglected = generator["polynomial_error"](coefficients)
    errors, largest = [], []
    # r is zero or at least 2^-53.
    for piece in (f"-{radius}, -0x1p-53", f"0x1p-53, {radius}"):
        printed = gappa("log", known | {"r": piece})
        q = ends(printed, "  q")
        roundings = [max(map(abs, ends(printed, name)))
                     for name in ("cube -/ r * (r * r)", "cubic -/ cube * q")]  # fmt: skip
        whole = (ends(printed, "|q - Q|")[1] + neglected) / (min(q) - mpf(2) ** -50)
        errors.append((1 + whole) * (1 + roundings[0]) * (1 + roundings[1]) - 1)
        largest.append(max(q))
    return max(errors), max(largest)


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_error_of_the_fast_log_is_below_its_margin(product):
    mpmath.mp.prec = 300
    generator = runpy.run_path(str(FOLDER / "log" / "generate.py"))
    macros, columns = header("log")
    extent, width = (mpf(source_macro("log", name)) for name in ("EXTENT", "WIDTH"))
    steps, unit, ln2 = generator["steps"](), mpf(2) ** -53, mpmath.log(2)
    assert [s.c for s in steps] == columns["reciprocal"]

    # r is a double, and every fast two-sum has the larger term first, or a zero.
    assert all(s.exactly for s in steps)
    logs = [mpf(a) + b for a, b in zip(columns["high"], columns["low"], strict=True)]
    assert all(mpf(float(v)) == v for v in logs)
    assert all(s.c == 1 or abs(v) > s.radius for s, v in zip(steps, logs, strict=True))
    assert float(macros["LN2_HI"] * 2.0**42).is_integer()
    assert max(map(abs, logs)) < macros["LN2_HI"] / 2

    # All parts of low but r^3 q(r): what constants leave out, and roundings, against s.
    for k in (0, *(sign * 2**n for n in range(11) for sign in (-1, 1))):
        for step, value, rest in zip(steps, logs, columns["rest"], strict=True):
            exact = -mpmath.log(mpf(step.c))
            # Up to twice that k.
            left_out = 2 * abs(k) * abs(ln2 - macros["LN2_HI"] - macros["LN2_LO"])
            left_out += abs(exact - value - rest)
            smallest = min(abs(mpmath.log(mpf(2) ** k * mpf(m))) for m in (step.first, step.end))
            if step.c == 1 and k == 0:
                assert left_out == rest == value == 0
                continue
            tiny = 2 * abs(k) * abs(macros["LN2_LO"]) + abs(rest)
            # Six sums of these, of a.lo, s.lo and t.lo: each is below 2^-53 of s, or of twice a.
            low = tiny + 4 * unit * (2 * smallest + 1)
            assert left_out + 6 * unit * low < width * smallest * (1 - 4 * unit)
    # In the interval of 1 only t.lo is there, and s > r / 2.
    assert 6 * unit * 2 * unit < width / 2

    coefficients = [macros[f"Q{i}"] for i in range(generator["TERMS"])]

    def cubic(coefficients):
        error, largest = log_terms(macros, product, generator, coefficients)
        # The two sums that take it in, and low + margin.
        return (error + 3 * unit * (1 + error)) * largest * generator["RADIUS"]

    assert cubic(coefficients) < extent * (1 - 4 * unit)
    # Negative controls: the margin is not idle, and a wrong coefficient breaks it.
    assert cubic(coefficients) > extent / 2
    assert cubic([coefficients[0] + 2.0**-51, *coefficients[1:]]) > extent
