# SPDX-License-Identifier: Apache-2.0
"""The error bounds of the quick paths of asin and acos at AVX2, proved by Gappa on pieces.

Gappa bounds the roundings (``udfs/corem/common/asin_eight.gappa``); intervals bound what the
polynomial lacks. The sum must stay below the margin of the rounding test, by which the sum of the
path is too large. All arguments of pieces that are left open are run.
"""

from dataclasses import dataclass
from functools import cache, partial

import mpmath
import pytest
from bounds import HAS_FMA, as_gappa, gappa, halved, largest, needs_gappa, run_path
from mpmath import mpf
from path_constants import half_unit, read, series_bound, source

mpmath.mp.prec = PRECISION = 150
TEMPLATE = source("common/asin_eight.gappa")
M, COLUMNS = read("common/asin_eight_constants.h", "common/asin_eight.h").without("ASIN_EIGHT_")
POLY = COLUMNS["poly"]
#: A piece is halved until its bound holds, this often at most.
HALVINGS = 2
#: A smaller argument of asin is its own result, and both sums round to it.
TINY = 2.0**-13
#: Arguments of acos below it are run, and below TINIEST both sums round to pi/2, as does acos.
LEAST, TINIEST = 2.0**-5, 2.0**-27
#: The terms of the series of asin that are looked at.
TERMS = 45


@dataclass(frozen=True)
class Case:
    """One of the sums that the paths take: base + t (1 + s U(s))."""

    function: str
    sign: int  # of t
    base: str  # the macro, or nothing
    root: bool  # whether t is the root


CASES = {
    "asin": [Case("asin", 1, "", False), Case("asin", -1, "HALF_PI", True)],
    "acos": [
        Case("acos", 1, "HALF_PI", False),
        Case("acos", -1, "HALF_PI", False),
        Case("acos", 1, "", True),
        Case("acos", -1, "PI", True),
    ],
}


@cache
def lacking(width):
    """The coefficients by s of what U lacks, when its excess by the margin is taken off."""
    exact = []
    for n in range(1, TERMS):
        number = mpmath.factorial(2 * n) / (4**n * mpmath.factorial(n) ** 2)
        exact.append(number / (2 * n + 1))
    known = [mpf(c) for c in POLY]
    known[0] += mpf(M["FIRST_LOW"]) + mpf(width) / 2
    return [e - (known[n] if n < len(known) else 0) for n, e in enumerate(exact)]


def filled(case, x, width, base, base_low):
    """What the template lacks, for one case and piece."""
    sign = "" if case.sign > 0 else "-"
    known = {f"p{i}": c for i, c in enumerate(POLY)} | {"first_low": M["FIRST_LOW"]}
    known |= {"half": float(-width / 2), "WIDTH": float(width), "base_low": float(base_low)}
    known |= {"s": "rnd(x * x)", "s_low": "x * x - s", "t": f"{sign}x"}
    known |= {"f_low": "rnd(rnd(v * s + u) * s_low + f_first)", "second": "second"}
    known |= {"F_LOW": "(V * s + u) * s_low + F_FIRST", "SECOND": "SECOND"}
    if case.root:
        known |= {"s": "0.25 * x", "s_low": "0", "t": f"{sign}root"}
        known |= {"f_low": "f_first", "F_LOW": "F_FIRST"}
        # Half of the remainder, less it, divided by the root: t_low has the sign of -t.
        other = "-" if case.sign > 0 else ""
        known["second"] = f"rnd({other}rnd(remainder / (2 * root)) * f + second)"
        known["SECOND"] = f"{other}(remainder / (2 * root)) * f + SECOND"
    more = as_gappa(M["MORE"])
    known["more"] = f"t * {more}" if case.function == "asin" else f"{sign}{more}"
    known["sum"] = f"t * f + {as_gappa(float(base))}" if case.base else "t * f"
    known |= {"first": "first", "FIRST": f"{known['sum']} - high"}
    if case.base:
        known["first"] = f"rnd(first + {as_gappa(float(base_low))})"
        known["FIRST"] += f" + {as_gappa(float(base_low))}"
    known["x"] = as_gappa(*map(float, x))
    return known


def share(case, x, factor=1.0):
    """The share of the margin that the error takes at most in a piece of x."""
    # The excess by the margin is in a constant and stays as it is.
    width = mpf(M["WIDTH"]) * factor
    x = tuple(map(mpf, x))
    if case.root:
        s, t = [v / 4 for v in x], [mpmath.sqrt(v) for v in x]
    else:
        s, t = [v * v for v in x], list(x)
    base = mpf(M[case.base]) if case.base else mpf(0)
    base_low = mpf(M[f"{case.base}_LOW"]) if case.base else mpf(0)
    known = filled(case, x, width, base, base_low)
    if case.base:
        size = mpmath.asin(mpmath.sqrt(s[1])) * (2 if case.root else 1)
        least = base - size if case.sign < 0 else base
        assert size <= 2**25 * half_unit(least / (1 + mpf(2) ** -18))
    printed = gappa(TEMPLATE, known)
    lines = [line for line in printed.splitlines() if line.lstrip().startswith("low")]
    assert len(lines) == 2
    rounding = max(largest(line, line.split(" in [")[0]) for line in lines)
    error = t[1] * s[1] * series_bound(lacking(M["WIDTH"]), mpf(2) ** -80, s)
    s_low = 0 if case.root else half_unit(s[1])
    # The derivative by s, its next term, and t_low times what f lacks.
    second = sum(n * abs(mpf(c)) * s[1] ** (n - 1) for n, c in enumerate(POLY[1:]))
    error += t[1] * s_low * (s[1] ** 2 * second + abs(mpf(M["FIRST_LOW"])) + s_low)
    if case.root:
        t_low = largest(printed, "|remainder|") / (2 * t[0]) * (1 + mpf(2) ** -20)
        error += t_low**2 / t[0] + t_low * largest(printed, "|F_LOW|")
    if case.base:
        exact = mpmath.pi / (1 if case.base == "PI" else 2)
        error += abs(exact - base - base_low)
    least = t[0] * (1 - mpf(2) ** -24)
    more = mpf(M["MORE"]) * (least if case.function == "asin" else 1)
    margin = -width / 2 * (least * s[0] + more) * (1 - mpf(2) ** -22)
    return float((rounding + error) / margin)


def pieces(case):
    """Yield pieces of x that cover the arguments of a case."""
    end = mpf(M["END"])
    if case.root:
        # From 2 - 2 END down to the argument before 1, or to what is run.
        high, least = 2 - 2 * end, mpf(2.0**-8 if case.base else 2.0**-23)
    else:
        high, least = end, mpf(TINY if case.function == "asin" else LEAST)
    while high > least:
        low = max(high / (2 if high < 0.01 else mpf(4) / 3), least)
        yield float(low), float(high)
        high = low


def arguments(case, x):
    """The arguments of a piece, and some around them."""
    a = [1 - mpf(v) / 2 for v in reversed(x)] if case.root else list(map(mpf, x))
    low, high = a[0] * (1 - mpf(2) ** -22), a[1] * (1 + mpf(2) ** -22)
    yield float(low), float(high)
    yield float(-high), float(-low)


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("function", CASES)
def test_the_error_stays_below_the_margin(tmp_path, function):
    """By Gappa; all arguments of the pieces that it leaves open are run."""
    proved, left = [], []
    # Where t s is small beside pi/2 or pi, roundings may be a little above the margin.
    left += arguments(CASES["asin"][1], (2.0**-23, 2.0**-8))
    if function == "acos":
        left += arguments(CASES["acos"][0], (TINIEST, LEAST))
    for case in CASES[function]:
        for piece in pieces(case):
            for found, x in halved(piece, partial(share, case), HALVINGS):
                if found < 1:
                    proved.append(found)
                    continue
                left += arguments(case, x)
    # A margin many times as wide as the error would cost speed.
    assert max(proved) > 0.6
    if left and HAS_FMA:
        every, decided, wrong = run_path(tmp_path, function, "avx2", left)
        assert wrong == 0
        assert 0.99 * every < decided


@needs_gappa
@pytest.mark.parametrize("function", CASES)
def test_a_narrow_margin_is_not_proved(function):
    """With the excess of the sum left as it is."""
    case = CASES[function][0]
    whole, narrow = (share(case, (0.4, 0.41), factor) for factor in (1, 0.5))
    assert whole < 1 < narrow
