# SPDX-License-Identifier: Apache-2.0
"""The bound of corem-d's fast exp: Gappa bounds roundings, mpmath what constants leave out."""

import re
import runpy
import shutil
import subprocess

import mpmath
import pytest
from mpmath import mpf

from pytest_udftorch.library.description import find_library

FOLDER = find_library("corem-d").folder / "exp"
#: How the products are rounded that FMA does not round; a multiple of 2^-4000 is as good as exact.
PRODUCTS = {"fma": "fixed<-4000, ne>", "no fma": "float<ieee_64, ne>"}
#: Above all n: the range of x is below 746.
COUNT = 17_300

pytestmark = pytest.mark.skipif(shutil.which("gappa") is None, reason="needs gappa (Debian)")


def header():
    """The macros of constants.h as numbers, and the sizes of rest and T in its tables."""
    text = (FOLDER / "constants.h").read_text(encoding="utf-8")
    macros = re.findall(r"#define EXP_(\w+) (-?0x[\d.a-f]+p[+-]\d+)", text)
    tables = re.findall(r"float udf_exp_(\w+)\[\] = \{(.*?)\};", text, re.DOTALL)
    columns = {n: [float.fromhex(v) for v in re.findall(r"(\S+)f,", b)] for n, b in tables}
    return {name: float.fromhex(value) for name, value in macros}, columns


def rounding(macros, product, radius, margin):
    """A bound of the rounding errors, by Gappa, for r of either sign."""
    known = {name: value.hex() for name, value in macros.items()}
    found = []
    for ends in ((-radius, 0.0), (0.0, radius)):
        known |= {
            "product": PRODUCTS[product],
            "MARGIN": margin.hex(),
            "r": ", ".join(e.hex() for e in ends),
        }
        script = (FOLDER / "exp.gappa").read_text(encoding="utf-8")
        for name, value in known.items():
            script = script.replace(f"@{name}@", value)
        ran = subprocess.run(["gappa"], input=script, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr + script
        bound = re.search(r"\|sum - SUM\| in \[.*, (\d+)b(-\d+)", ran.stderr)
        found.append(mpf(int(bound[1])) * mpf(2) ** int(bound[2]))
    return max(found)


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_error_of_the_fast_path_is_below_its_margin(product):
    mpmath.mp.prec = 300
    generator = runpy.run_path(str(FOLDER / "generate.py"))
    macros, columns = header()
    source = (FOLDER / "exp.c").read_text(encoding="utf-8")
    margin = float.fromhex(re.search(r"#define EXP_MARGIN (\S+)", source)[1])
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
    roundings = rounding(macros, product, radius, margin)

    def error(coefficients):
        polynomial = generator["polynomial_error"](coefficients)
        return largest * (polynomial + constants + neglected) + roundings

    assert error(q) < margin
    # Negative controls: the margin is not idle, and a wrong coefficient breaks it.
    assert error(q) > margin / 2
    assert error([q[0] + 2.0**-52, *q[1:]]) > margin
