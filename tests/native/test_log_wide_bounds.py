# SPDX-License-Identifier: Apache-2.0
"""The error bounds of the paths of log, log2 and log10 at AVX-512, proved by Gappa.

Gappa bounds the roundings (``udfs/corem/common/log_wide.gappa``); mpmath bounds what the tables and
the polynomial lack. The sum must stay below the width of the rounding test, which has a part in
proportion to r^2 and one to the result, or in log to its product with the exponent k. A piece is a
range of r in one binade of the result, for all intervals and exponents but zero together; only
where the result is r itself, beside 1, r has its own.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from bounds import HAS_FMA, as_gappa, gappa, largest, merged, needs_gappa, run_path
from mpmath import iv, mpf
from path_constants import encoding, high, low, mantissas, read, single, source, unscaled

#: What a unit of the argument's logarithm is, and the prefix of the coefficients.
FUNCTIONS = {
    "log": (mpf(1), "LOG_WIDE_"),
    "log2": (1 / mpmath.log(2), "LOG2_WIDE_"),
    "log10": (1 / mpmath.log(10), "LOG10_WIDE_"),
}
#: A piece is cut until its bound holds or its ends have this ratio.
RATIO = 0.93
#: Or begins at 0 and is no longer than this.
SHORT = 2.0**-8
#: Results of this binade or a lower one are run, and proved only beside 1.
NEAR = -4
#: Of subnormal arguments, too.
EXPONENTS = range(-149, 128)
#: Powers of r that count.
DEGREE = 12
iv.prec = mpmath.mp.prec = PRECISION = 120


@cache
def header():
    """The macros of both headers without UDF, and the tables, as if r were not scaled."""
    return unscaled(read("common/log_wide_constants.h", "common/log_wide.h"))


@cache
def part_of_square(name):
    return read(f"{name}/{name}f_wide.c").macros[f"{name.upper()}_WIDE_SHARE"]


@cache
def coefficients(name):
    """Those of r, its high part first, and of the powers from r^2 on."""
    c, prefix = header()[0], FUNCTIONS[name][1]
    if name == "log":
        return 1.0, 0.0, [-0.5, *(c[f"{prefix}C{n}"] for n in (3, 4, 5))]
    return c[f"{prefix}C1_HI"], c[f"{prefix}C1_LO"], [c[f"{prefix}C{n}"] for n in (2, 3, 4, 5)]


@cache
def reaches():
    """The least and the largest r of each interval."""
    reciprocals = enumerate(header()[1]["log_wide_reciprocal"])
    return [tuple(m * c - 1 for m in mantissas(j)) for j, c in reciprocals]


def sums(name):
    """Yield k, the interval, base, rest, what both lack, and the ends of r."""
    c, columns = header()
    unit = FUNCTIONS[name][0]
    of_k = {
        "log": (c.get("LOG_WIDE_LN2_HI"), c.get("LOG_WIDE_LN2_LO")),
        "log2": (1.0, 0.0),
        "log10": (c.get("LOG_WIDE_LOG10_2_HI"), c.get("LOG_WIDE_LOG10_2_LO")),
    }[name]
    octave = unit * mpmath.log(2)
    rows = zip(columns["log_wide_reciprocal"], columns[f"{name}_wide_high"],
               columns[f"{name}_wide_low"], reaches(), strict=True)  # fmt: skip
    for i, (reciprocal, first, second, reach) in enumerate(rows):
        exact = -unit * mpmath.log(mpf(reciprocal))
        for k in EXPONENTS:
            base = k * of_k[0] + first
            assert base == single(base)
            rest = mpf(k) * of_k[1] + mpf(second)
            lacking = float(abs(k * octave + exact - base - rest))
            yield k, i, base, float(rest), lacking, reach


def binades(name, base, reach):
    """The binades of the results of an interval."""
    ends = sorted(abs(base + coefficients(name)[0] * r) for r in reach)
    first, last = ends[0] * (1 - 2.0**-20), ends[1] * (1 + 2.0**-20)
    return range(math.floor(math.log2(first)), math.floor(math.log2(last)) + 1)


@dataclass(frozen=True)
class Band:
    """Results of one binade, with the hull of rest, and what the tables lack.

    Beside 1 the binade is none: the result is r or its product with a constant. The second part of
    the width is in proportion to size: the result, or in log its product with k.
    """

    binade: int | None
    size: tuple[float, float]
    rest: tuple[float, float]
    lacking: float
    reach: tuple[float, float]


def sizes(name, k, results):
    """What the second part of the width is in proportion to, for results between two."""
    return tuple(abs(k) * x for x in results) if name == "log" else results


@cache
def bands(name):
    """The bands of a function, without those of results near 0."""
    found, shared = [], {}
    for k, _, base, rest, lacking, reach in sums(name):
        if base == 0:
            assert rest == lacking == 0
            continue
        for binade in binades(name, base, reach):
            size = sizes(name, k, (2.0**binade, 2.0 ** (binade + 1)))
            band = Band(binade, size, (rest, rest), lacking, reach)
            if binade > NEAR:
                shared.setdefault((binade, k == 0), []).append(band)
    for (binade, _), each in shared.items():
        hulls = [
            (min(a for a, _ in pairs), max(b for _, b in pairs))
            for pairs in zip(*((b.size, b.rest, b.reach) for b in each), strict=True)
        ]
        size, rest, reach = hulls
        found.append(Band(binade, size, rest, max(b.lacking for b in each), reach))
    return found


def polynomial_error(name, r):
    """What the terms from r on lack, by the coefficients of their difference."""
    unit, (first, second, rest) = FUNCTIONS[name][0], coefficients(name)
    path = dict(enumerate([first + mpf(second), *rest], 1))
    x, error = iv.mpf(r), iv.mpf(0)
    for n in range(1, DEGREE):
        error += x**n * (path.get(n, mpf(0)) - (-1) ** (n - 1) * unit / n)
    tail = float(unit) * max(map(abs, r)) ** DEGREE / DEGREE * 1.05
    return float(max(abs(low(error)), abs(high(error)))) + tail


def share(name, band, r):
    """Return the share of the width that the errors take at most in a piece."""
    binade = band.binade
    first, second, c = coefficients(name)
    square = part_of_square(name)
    macros = header()[0]
    by_k = macros["LOG_WIDE_SCALE"] ** -2
    ratio = by_k if name == "log" else single(macros["LOG_WIDE_RESULT"] / square)
    least = min(map(abs, r))
    if binade is not None:
        size, error = band.size, 2.0 ** (binade - 24)
    elif name == "log":
        # Beside 1 high is r, and k is -1 or 0.
        size, error = (0.0, max(map(abs, r))), 0.0
    else:
        size = sorted(abs(first * x) for x in r)
        error = 2.0 ** (math.floor(math.log2(size[1])) - 24)
    known = {f"C{n}": v for n, v in enumerate(c, 2)}
    known |= {"ratio": ratio, "share": square, "r": as_gappa(*r), "size": as_gappa(*size)}
    known |= {"e": as_gappa(-error, error), "rests": as_gappa(*band.rest)}
    # The product of k with the low part of the unit is rounded.
    exact_rest = name == "log2" or binade is None
    known |= {"rest": "rest" if exact_rest else "rnd(rest)", "REST": "rest"}
    if name == "log":
        known |= {"low": "rnd(square * q + first)", "LOW": "(r * r) * Q + FIRST"}
    else:
        tail = as_gappa(second)
        known["low"] = f"rnd(r * rnd(r * q + {tail}) + first)"
        known["LOW"] = f"r * (r * Q + {tail}) + FIRST"
    printed = gappa(source("common/log_wide.gappa"), known)
    rounding = max(largest(printed, f"{n} - {n.upper()}") for n in ("upper", "lower"))
    margin = square * (least**2 + ratio * size[0] * (1 - 2.0**-22))
    error = float(rounding) + band.lacking + polynomial_error(name, r)
    # Nothing is left for r = 0 where k is zero.
    return error / margin if margin else math.inf


def cut(name, band, r):
    """Yield the share of the width in a piece of r, or in parts of it."""
    found = share(name, band, r)
    near, far = sorted(map(abs, r))
    if found < 1 or near > RATIO * far or (far < SHORT and not near):
        yield found, band, r
        return
    sign, middle = 1 if r[1] > 0 else -1, max(math.sqrt(near * far), far / 4)
    for ends in ((near, middle), (middle, far)):
        yield from cut(name, band, tuple(sorted(sign * x for x in ends)))


def beside_one():
    """The band of the results beside 1: of the first interval, and of the last one below 1."""
    (_, above), *_, (below, _) = reaches()
    return Band(None, (0.0, 0.0), (0.0, 0.0), 0.0, (below, above))


def shares(name):
    """Yield the share of the width in pieces that cover all arguments, with the band and r."""
    one = beside_one()
    for sign, end in zip((-1, 1), one.reach, strict=True):
        cuts = [sign * 2.0**-24]
        while abs(cuts[-1]) < abs(end):
            # Beyond 2^-13 the parts with r^2 are the larger ones.
            cuts.append(cuts[-1] * (2**0.5 if abs(cuts[-1]) < 2.0**-13 else 1.14))
        for r in pairwise(cuts):
            yield from cut(name, one, tuple(sorted(r)))
    for band in bands(name):
        a, b = band.reach
        for r in ((a, min(b, 0.0)), (max(a, 0.0), b)):
            if r[0] < r[1]:
                yield from cut(name, band, r)


def in_band(name, band, k, base, reach):
    """Whether an interval has results of a band."""
    if name == "log" and k == 0 and band.size[0]:
        return False
    return band.binade in binades(name, base, reach)


def arguments(name, band, r):
    """Yield the arguments of a piece, and some around them."""
    for k, i, base, _, _, reach in sums(name):
        ends = max(r[0], reach[0]), min(r[1], reach[1])
        if ends[0] >= ends[1]:
            continue
        if base == 0 if band.binade is None else base and in_band(name, band, k, base, ends):
            factor = 2.0**k / header()[1]["log_wide_reciprocal"][i]
            yield (1 + ends[0] - 2.0**-22) * factor, (1 + ends[1] + 2.0**-22) * factor


@pytest.mark.parametrize("name", FUNCTIONS)
def test_high_is_a_sum_whose_error_is_exact(name):
    """Sterbenz; the last test has the intervals beside 1, where r is larger beside base."""
    slope = coefficients(name)[0]
    for k, _, base, _, _, reach in sums(name):
        if k not in (-1, 0):
            assert slope * max(map(abs, reach)) < abs(base) / 2 * (1 - 2.0**-20)


@needs_gappa
@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_error_stays_below_the_width(tmp_path, name):
    """By Gappa, but for a few pieces whose arguments are run."""
    found = list(shares(name))
    left = [(band, r) for part, band, r in found if part >= 1]
    assert max(part for part, *_ in found if part < 1) > 0.9
    assert len(left) <= len(found) / 2
    if HAS_FMA:
        ranges = [x for band, r in left for x in arguments(name, band, r)]
        near = 2.0 ** (NEAR + 1) / float(FUNCTIONS[name][0])
        ranges.append((math.exp(-near), math.exp(near)))
        every, decided, wrong = run_path(tmp_path, name, "avx512", merged(ranges))
        assert wrong == 0
        assert 0.98 * every < decided


@needs_gappa
@pytest.mark.parametrize("name", FUNCTIONS)
def test_half_of_the_width_is_too_little(name):
    """Beside 1, where the part in proportion to r^2 counts."""
    assert 0.5 < share(name, beside_one(), (0.0149, 0.015)) < 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_the_logarithms_count_as_exact_is_exact(name):
    """r, and base less high beside 1; elsewhere base is far larger than r."""
    columns = {n: np.array(v) for n, v in header()[1].items()}
    m = np.arange(2**23, dtype=np.uint32) + np.uint32(encoding(1.0))
    interval = m >> int(header()[0]["LOG_WIDE_SHIFT"]) & 31
    r = m.view(np.float32).astype(float) * columns["log_wide_reciprocal"][interval] - 1
    assert (r.astype(np.float32) == r).all()
    bases = {k: {i: base for e, i, base, *_ in sums(name) if e == k} for k in (-1, 0)}
    for of_interval in bases.values():
        base = np.array([of_interval[i] for i in range(32)])[interval]
        difference = base - (base + r * coefficients(name)[0]).astype(np.float32)
        assert (difference.astype(np.float32) == difference).all()
