# SPDX-License-Identifier: Apache-2.0
"""The bounds of corem-d's fast paths: Gappa bounds roundings, mpmath what constants leave out."""

import re
import runpy
from itertools import pairwise

import mpmath
import pytest
from bounds import ends, gappa, needs_gappa
from mpmath import mpf

from pytest_udftorch.swap.library.description import find_library

FOLDER = find_library("corem-d").folder
#: How the products are rounded that FMA does not round; a multiple of 2^-4000 is as good as exact.
PRODUCTS = {"fma": "fixed<-4000, ne>", "no fma": "float<ieee_64, ne>"}
#: Above all n: the range of x is below 746.
COUNT = 17_300

pytestmark = needs_gappa


def header(function):
    """The macros of constants.h as numbers, and the columns of its tables of floats."""
    [path] = (FOLDER / function).glob("*constants.h")
    text = path.read_text(encoding="utf-8")
    macros = re.findall(r"#define [A-Z0-9]+?_(\w+) (-?0x[\d.a-f]+p[+-]\d+)", text)
    tables = re.findall(r"float udf_[a-z0-9]+?_(\w+)\[\] = \{(.*?)\};", text, re.DOTALL)
    columns = {n: [float.fromhex(v) for v in re.findall(r"(\S+)f,", b)] for n, b in tables}
    return {name: float.fromhex(value) for name, value in macros}, columns


def source_macro(source, name):
    """A macro of a source, a number."""
    source = (FOLDER / source).read_text(encoding="utf-8")
    return float.fromhex(re.search(rf"#define \w+_{name} (\S+)", source)[1])


def printed_by(script, known):
    """What Gappa prints of a script."""
    return gappa((FOLDER / script).read_text(encoding="utf-8"), known)


def exp_rounding(macros, product, radius, margin):
    """A bound of the rounding errors, by Gappa, for r of either sign."""
    known = {name: value.hex() for name, value in macros.items()}
    known |= {"product": PRODUCTS[product], "MARGIN": margin.hex()}
    pieces = ((-radius, 0.0), (0.0, radius))
    return max(
        ends(printed_by("exp/exp.gappa", known | {"r": f"{a.hex()}, {b.hex()}"}), "|sum - SUM|")[1]
        for a, b in pieces
    )


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_error_of_the_fast_exp_is_below_its_margin(product):
    mpmath.mp.prec = 300
    generator = runpy.run_path(str(FOLDER / "exp" / "generate.py"))
    macros, columns = header("exp")
    margin = source_macro("exp/exp.c", "MARGIN")
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


def test_the_error_of_the_quick_exp_is_below_its_width():
    mpmath.mp.prec = 300
    generator = runpy.run_path(str(FOLDER / "exp" / "generate.py"))
    macros, columns = header("exp")
    width, end = (mpf(source_macro("exp/exp.c", f"QUICK_{name}")) for name in ("WIDTH", "END"))
    unit, radius = mpf(2) ** -53, generator["RADIUS"] * (1 + mpf(2) ** -50)
    # Results are normal and finite; those of exp2 are, as its end is a whole number.
    assert mpmath.exp(-end) > mpf(2) ** -1022
    assert mpmath.exp(end) < mpf(2) ** 1023
    assert source_macro("exp2/exp2.c", "QUICK_END") == 1022

    count = end / (mpmath.log(2) / 16) + 1
    step = mpmath.log(2) / 16
    constants = count * abs(step - macros["STEP_HI"] - macros["STEP_LO"]) + max(
        abs(mpmath.log(mpf(2) ** (mpf(j) / 16) / (mpf(high) + low)) - rest)
        for j, (high, low, rest) in enumerate(zip(*columns.values(), strict=True))
    )
    s = mpf(2) ** -44
    assert count * abs(macros["STEP_LO"]) + max(map(abs, columns["rest"])) < s
    # s^2, and the roundings of s and of e.
    neglected = 2 * s * s + 4 * unit * s
    known = {name: value.hex() for name, value in macros.items()}
    pieces = (f"-{float(radius).hex()}, 0", f"0, {float(radius).hex()}")
    printed = [printed_by("exp/quick.gappa", known | {"r": piece}) for piece in pieces]
    rounding = max(ends(each, "|w - W|")[1] for each in printed)
    largest = max(abs(v) for each in printed for v in ends(each, "  w"))

    def error(coefficients):
        polynomial = generator["polynomial_error"](coefficients, generator["QUICK_POWER"])
        # All relative to T: low and its sum with the width are below twice the largest w and e.
        sums = unit * (2 * largest + 2 * (width + 2 * unit))
        return polynomial * (1 + s) + constants + neglected + rounding + sums

    p = [macros[f"P{i}"] for i in range(generator["QUICK_TERMS"])]
    assert error(p) < width
    # Negative controls: the width is not idle, and a wrong coefficient breaks it.
    assert error(p) > width / 2
    assert error([p[0] + 2.0**-51, *p[1:]]) > width


def cubic_terms(script, known, radius, neglected):
    """The relative error of r^3 q(r), and the largest |q|; q leaves out at most ``neglected``."""
    radius = float(radius).hex()
    errors, largest = [], []
    # r is zero or at least 2^-53; for tanh, 2^-58.
    for piece in (f"-{radius}, -0x1p-58", f"0x1p-58, {radius}"):
        printed = printed_by(script, known | {"r": piece})
        q = ends(printed, "  q")
        roundings = [max(map(abs, ends(printed, name)))
                     for name in ("cube -/ r * (r * r)", "cubic -/ cube * q")]  # fmt: skip
        whole = (ends(printed, "|q - Q|")[1] + neglected) / (min(q) - mpf(2) ** -50)
        errors.append((1 + whole) * (1 + roundings[0]) * (1 + roundings[1]) - 1)
        largest.append(max(q))
    return max(errors), max(largest)


def log_terms(macros, product, generator, coefficients):
    """The relative error of log's r^3 q(r), and the largest |q|."""
    known = {name: value.hex() for name, value in macros.items()} | {"product": PRODUCTS[product]}
    known |= {f"Q{i}": c.hex() for i, c in enumerate(coefficients)}
    neglected = generator["polynomial_error"](coefficients)
    return cubic_terms("log/log.gappa", known, generator["RADIUS"], neglected)


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_error_of_the_fast_log_is_below_its_margin(product):
    mpmath.mp.prec = 300
    generator = runpy.run_path(str(FOLDER / "log" / "generate.py"))
    macros, columns = header("log")
    extent, width = (mpf(source_macro("log/log.c", name)) for name in ("EXTENT", "WIDTH"))
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


def quick_log_cube(macros, generator, coefficients):
    """The relative error of the quick path's r^3 before its product with q is added, and |q|."""
    known = {name: value.hex() for name, value in macros.items()}
    known |= {f"Q{i}": c.hex() for i, c in enumerate(coefficients)}
    neglected = generator["polynomial_error"](coefficients)
    radius = float(generator["RADIUS"]).hex()
    errors, largest = [], []
    for piece in (f"-{radius}, -0x1p-58", f"0x1p-58, {radius}"):
        printed = printed_by("log/quick.gappa", known | {"r": piece})
        q = ends(printed, "  q")
        cube = max(map(abs, ends(printed, "cube -/ r * (r * r)")))
        whole = (ends(printed, "|q - Q|")[1] + neglected) / (min(q) - mpf(2) ** -50)
        errors.append((1 + whole) * (1 + cube) - 1)
        largest.append(max(q))
    return max(errors), max(largest)


def pieces_of(step, count):
    """For parts of an interval: the largest |r|, and both ends of the significand."""
    width = (mpf(step.end) - step.first) / count
    points = [step.first + n * width for n in range(count + 1)]
    if step.c == 1:
        # Towards 1, where r and the result vanish, by halves.
        points = [1 + s * mpf(2) ** -n for s in (-1, 1) for n in range(5, 54)] + points
        points = sorted(p for p in points if step.first <= p <= step.end and p != 1)
    for first, end in pairwise(points):
        if not first < 1 < end:
            yield max(abs(first * step.c - 1), abs(end * step.c - 1)), first, end


@pytest.mark.parametrize("function", ["log", "log2"])
def test_the_error_of_the_quick_logarithms_is_below_their_width(function):
    mpmath.mp.prec = 200
    generator = runpy.run_path(str(FOLDER / "log" / "generate.py"))
    macros, columns = header("log")
    width, end = (mpf(source_macro(f"{function}/{function}.c", f"QUICK_{name}"))
                  for name in ("WIDTH", "END"))  # fmt: skip
    steps, unit = generator["steps"](), mpf(2) ** -53
    high, low = macros["LN2_QUICK_HI"], macros["LN2_QUICK_LO"]
    logarithm, scale = mpmath.log, mpf(1)
    if function == "log2":
        _, columns = header("log2")
        high, low, scale = 1.0, 0.0, 1 / mpmath.log(2)
        log2 = header("log2")[0]
        # What the two parts of 1/log(2) lack is nothing beside the roundings.
        assert abs(scale - log2["E_HI"] - log2["E_LO"]) < mpf(2) ** -105
        assert abs(log2["E_LO"]) <= unit * log2["E_HI"]

        def logarithm(x):
            return mpmath.log(x) * scale

    ln2 = logarithm(mpf(2))
    tables = zip(*(columns[f"quick_{n}"] for n in ("high", "low", "rest")), strict=True)
    tables = [(mpf(a) + b, mpf(c)) for a, b, c in tables]
    # k times the high part, and its sum with the table's, are exact: multiples of 2^-43 below 2^10.
    place = mpf(2) ** generator["QUICK_BITS"]
    assert mpmath.isint(high * place)
    assert all(mpmath.isint(value * place) for value, _ in tables)
    assert (1023 * high + max(abs(v) for v, _ in tables)) * place <= mpf(2) ** 53
    # Beyond the end lie all encodings that are not positive normal numbers: k is then -1022 with
    # m < 1, or 1023 and more in magnitude.
    assert end < logarithm(mpf(2) ** 1022)

    def error(coefficients):
        """The largest error of the sum before the test, relative to the result."""
        relative, q = quick_log_cube(macros, generator, coefficients)
        # Its sum with lo, with the rest, with the width; log2: E_HI lo, E_LO hi, and E_LO lo.
        relative += (3 if function == "log" else 6) * unit * (1 + relative)
        worst = mpf(0)
        for step, (value, rest) in zip(steps, tables, strict=True):
            for k in (0, *(sign * 2**n for n in range(10) for sign in (-1, 1))):
                whole = k * mpf(high) + value
                assert whole == 0 or abs(whole) > step.radius * (1 + step.radius) * scale
                # Up to twice that k, with a result as large as this one at least.
                constants = abs(-logarithm(mpf(step.c)) - value - rest)
                constants += 2 * abs(k) * abs(ln2 - mpf(high) - low)
                tiny = 2 * abs(k) * mpf(abs(low)) + abs(rest)
                for r, m_first, m_end in pieces_of(step, 1 if k else 64):
                    values = [logarithm(mpf(2) ** k * m) for m in (m_first, m_end)]
                    least, most = min(map(abs, values)), max(map(abs, values))
                    # lo and s.lo are roundings of parts of the result; sums with them have others.
                    small = 8 * unit * (tiny + 4 * unit * (most + 1 if whole else most))
                    found = relative * q * r**3 * scale + constants + small
                    worst = max(worst, found / least)
        # The product of the width and the result is rounded, and the result itself.
        return worst + 4 * unit * width

    coefficients = [macros[f"Q{i}"] for i in range(generator["TERMS"])]
    assert error(coefficients) < width
    # Negative controls: the width is not idle, and a wrong coefficient breaks it.
    assert error(coefficients) > width / 2
    assert error([coefficients[0] + 2.0**-50, *coefficients[1:]]) > width


TRIG_LETTERS = {"sin": "S", "cos": "C", "fifth": "F"}


def trig_coefficients(macros, generator):
    """The coefficients of the polynomials in h^2."""
    counts = generator["TERMS"] | {"fifth": generator["FIFTH_TERMS"]}
    return {
        name: [macros[f"{TRIG_LETTERS[name]}{i}"] for i in range(count)]
        for name, count in counts.items()
    }


def trig_terms(product, generator, coefficients):
    """Relative errors of h^3 s, h^4 c and h^5 f, and the largest of each polynomial."""
    known = {f"{TRIG_LETTERS[name]}{i}": value.hex()
             for name, found in coefficients.items()
             for i, value in enumerate(found)}  # fmt: skip
    known["product"] = PRODUCTS[product]
    radius = float(generator["RADIUS"] * (1 + mpf(2) ** -30)).hex()
    found = {name: [] for name in coefficients}
    # Below 2^-190 the terms are less than 2^-380 of h.
    for piece in (f"-{radius}, -0x1p-190", f"0x1p-190, {radius}"):
        printed = printed_by("common/trig.gappa", known | {"h": piece})
        for name, roundings in (
            ("sin", ("cube -/ h * H", "sine -/ cube * s")),
            ("cos", ("z2 -/ H * H",)),
            ("fifth", ("fourth -/ h * (H * H)", "fifth -/ fourth * f")),
        ):
            letter = TRIG_LETTERS[name]
            values = ends(printed, f"  {letter.lower()}")
            neglected = generator["polynomial_error"](name, coefficients[name])
            absolute = ends(printed, f"|{letter.lower()} - {letter}|")[1] + neglected
            relative = 1 + absolute / (min(map(abs, values)) - mpf(2) ** -50)
            for each in roundings:
                relative *= 1 + max(map(abs, ends(printed, each)))
            found[name].append((relative - 1, max(map(abs, values))))
    return {name: tuple(map(max, zip(*each, strict=True))) for name, each in found.items()}


def after(term, roundings):
    """A term's relative error after so many more roundings, and the largest of its polynomial."""
    error, most = term
    return error + roundings * mpf(2) ** -53 * (1 + error), most


def trig_tables(columns):
    """For each j of 1 and more: sin and cos of j pi/16, as doubles and what they lack."""
    tables = {}
    for function in ("sin", "cos"):
        exact = [getattr(mpmath, function)(j * mpmath.pi / 16) for j in range(16)]
        parts = [columns[f"{function}_{name}"] for name in ("high", "low", "rest")]
        rows = [(mpf(a) + b, mpf(c)) for a, b, c in zip(*parts, strict=True)]
        assert all(mpf(float(value)) == value for value, _ in rows)
        lacks = max(abs(e - v - r) for e, (v, r) in zip(exact, rows, strict=True) if v)
        assert lacks < mpf(2) ** -72
        assert max(abs(rest) for _, rest in rows) < mpf(2) ** -49
        tables[function] = rows
    assert tables["sin"][0] == (0, 0)
    assert tables["cos"][0] == (1, 0)
    return list(zip(tables["sin"], tables["cos"], strict=True))[1:]


def test_sin_and_cos_reduce_and_add_without_error():
    generator = runpy.run_path(str(FOLDER / "common" / "generate.py"))
    mpmath.mp.prec = 300
    macros, columns = header("common")
    unit, radius, step = mpf(2) ** -53, generator["RADIUS"], mpmath.pi / 16

    # n is below 2^26, and its rounding adds less to |r| than RADIUS has.
    largest = macros["LIMIT"] * macros["INV_STEP"] + 1
    assert largest < 2.0**26
    inverse = abs(macros["INV_STEP"] * step - 1)
    assert step / 2 + largest * step * (inverse + unit) < radius
    # x, where n is not zero, and n STEP_HI are multiples of 2^-56; their difference is below 2^-3.
    high, middle, low = (macros[f"STEP_{name}"] for name in ("HI", "MIDDLE", "LO"))
    assert float(high * 2.0**56).is_integer()
    assert step / 2 > mpf(2) ** -4
    second = largest * mpf(middle)
    assert radius + second < mpf(2) ** -3
    # n STEP_MIDDLE is a double, a multiple of 2^-83; if it is the larger one, h is a double.
    assert float(middle * 2.0**83).is_integer()
    assert middle * 2.0**83 < 2**27
    assert 2 * second < mpf(2) ** -30
    # l has the roundings of its two products and its sum.
    drift = mpf(source_macro("common/trig.h", "FAST_DRIFT"))
    lacking = abs(step - mpf(high) - mpf(middle) - mpf(low))
    assert lacking + 8 * unit * abs(mpf(low)) < drift * (1 - 4 * unit)

    # What is added is at most half as large: the difference from the sum is exact.
    assert all(abs(c) * radius < s / 2 for (s, _), (c, _) in trig_tables(columns))
    assert radius**2 / 2 < mpmath.sin(step - radius) / 2
    assert radius**3 / 6 < (mpmath.sin(step - radius) - radius**2 / 2) / 2
    # The two parts of 1/3.
    third = mpf(macros["THIRD_HI"]) + macros["THIRD_LO"]
    assert abs(3 * third - 1) < mpf(2) ** -105


def trig_left_out(steps_at, l_largest, far):
    """What both paths leave out where |h| is at most so large, but for their polynomials."""
    (s, s_rest), (c, c_rest) = steps_at
    # cos(h) is 1 + w for what the tables lack and l; what the tables lack after that; small
    # roundings, each of something below 2^-48.
    return (
        (abs(s_rest) + abs(c) * l_largest) * far**4 / 24
        + (abs(c_rest) + s * l_largest) * far**7 / 5040
        + l_largest**2 + mpf(2) ** -72 * 2 + 40 * mpf(2) ** (-53 - 48)
    )  # fmt: skip


def least_result(steps_at, near, far):
    """The least |sin(j pi/16 + h)| for h of either sign between the two in size."""
    (s, _), (c, _) = steps_at
    return min(
        abs(s * mpmath.cos(sign * v) + c * mpmath.sin(sign * v))
        for v in (near, far) for sign in (-1, 1)
    )  # fmt: skip


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_error_of_the_fast_sin_and_cos_is_below_its_margin(product):
    generator = runpy.run_path(str(FOLDER / "common" / "generate.py"))
    mpmath.mp.prec = 300
    macros, columns = header("common")
    width = mpf(source_macro("common/trig.h", "FAST_WIDTH"))
    unit, radius = mpf(2) ** -53, generator["RADIUS"]
    steps = trig_tables(columns)
    # The part of l that is n STEP_LO has its error in DRIFT; the other is below 2^-53 of h.
    l_largest = unit * radius + 2**26 * abs(mpf(macros["STEP_LO"]))
    pieces = [(radius * n / 16, radius * (n + 1) / 16) for n in range(16)]

    def error(coefficients):
        """The largest error of the sum before the test, relative to the result."""
        terms = trig_terms(product, generator, coefficients)
        # Each term's products and sums with others, and that with the margin; the low part of
        # h^3/6, below 2^-52 of it, has as many roundings of its own.
        fifth, f_most = after(terms["fifth"], 5)
        cosine, c_most = after(terms["cos"], 7)
        low_third = 12 * unit * mpf(2) ** -52

        # j = 0: relative to h, of which sin(h) lacks a sixth of h^2. l cos(h) is taken for
        # l (1 + w).
        worst = (fifth * f_most * radius**4 + low_third * radius**2 + 16 * unit**2
                 + l_largest * radius**3 / 24) / (1 - radius**2)  # fmt: skip
        for at in steps:
            (s, _), (c, _) = at
            for near, far in pieces:
                found = (
                    abs(c) * (fifth * f_most * far**5 + low_third * far**3)
                    + s * cosine * c_most * far**4 + trig_left_out(at, l_largest, far)
                )  # fmt: skip
                worst = max(worst, found / least_result(at, near, far))
        return worst

    coefficients = trig_coefficients(macros, generator)
    # The sum is the result but for its low part.
    assert error(coefficients) < width * (1 - mpf(2) ** -12)
    # Negative controls: the margin is not idle, and a wrong coefficient breaks it.
    assert error(coefficients) > width / 2
    wrong = [coefficients["fifth"][0] + 2.0**-46, *coefficients["fifth"][1:]]
    assert error(coefficients | {"fifth": wrong}) > width


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_error_of_the_quick_sin_and_cos_is_below_their_width(product):
    generator = runpy.run_path(str(FOLDER / "common" / "generate.py"))
    mpmath.mp.prec = 200
    macros, columns = header("common")
    extent, width, limit = (
        mpf(source_macro("common/trig.h", f"QUICK_{n}")) for n in ("EXTENT", "WIDTH", "LIMIT")
    )
    unit, radius, step = mpf(2) ** -53, generator["RADIUS"], mpmath.pi / 16
    high, middle, low = (mpf(macros[f"STEP_{name}"]) for name in ("HI", "MIDDLE", "LO"))
    steps = trig_tables(columns)

    # l is a sum of two, and n STEP lacks little.
    roundings = 1 if product == "fma" else 2
    count = limit / step + 1
    assert limit < macros["LIMIT"]
    lacking = count * (abs(step - high - middle - low) + roundings * unit * abs(low))
    l_largest = unit * radius + count * abs(low)
    # The least distance of an argument from a multiple of pi/2, where sin or cos vanishes.
    nearest = mpf(1)
    for multiple in range(1, int(limit / (mpmath.pi / 2)) + 2):
        exact = multiple * mpmath.pi / 2
        nearest = min(nearest, abs(exact - mpf(float(exact))))
    pieces = [(radius * n / 32, radius * (n + 1) / 32) for n in range(32)]

    def share(coefficients):
        """The largest error of the sum before the test, as a share of the margin."""
        terms = trig_terms(product, generator, coefficients)
        # Each term's products and sums with others, and the sum with twice the margin.
        sine, s_most = after(terms["sin"], 5)
        cosine, c_most = after(terms["cos"], 7)

        def of_margin(error, least_h, least):
            margin = extent * least_h**2 / 2 + width * least
            return error / (margin * (1 - 8 * unit))

        worst = mpf(0)
        for near, far in pieces:
            # j = 0: sin(h) itself, and l's part relative to the nearest argument.
            found = sine * s_most * far**2 * (1 + far**2) + lacking / nearest + 8 * unit**2
            found += (unit * far + count * abs(low)) * far**3 / 24
            # Relative to h, of which sin(h) lacks a sixth of h^2.
            worst = max(worst, of_margin(found, near / mpmath.sqrt(far), 1 - far**2 / 6))
        for at in steps:
            (s, _), (c, _) = at
            for near, far in pieces:
                found = abs(c) * sine * s_most * far**3 + s * cosine * c_most * far**4
                found += trig_left_out(at, l_largest, far) + lacking
                worst = max(worst, of_margin(found, near, least_result(at, near, far)))
        return worst

    coefficients = trig_coefficients(macros, generator)
    assert share(coefficients) < 1
    # Negative controls: the margin is not idle, and a wrong coefficient breaks it.
    assert share(coefficients) > mpf(1) / 2
    wrong = [coefficients["sin"][0] + 2.0**-50, *coefficients["sin"][1:]]
    assert share(coefficients | {"sin": wrong}) > 1


def test_exp2_gives_the_sum_of_exp_no_more_error_than_exp():
    mpmath.mp.prec = 300
    generator = runpy.run_path(str(FOLDER / "exp" / "generate.py"))
    macros, columns = header("exp")
    ln2, f = mpmath.log(2), mpf(2) ** -5
    assert f * ln2 * (1 + mpf(2) ** -50) < generator["RADIUS"]
    # What constants leave out, and the roundings of s, against those of exp.
    left_out = f * abs(ln2 - macros["LN2_HI"] - macros["LN2_LO"])
    step = mpmath.log(2) / 16
    assert left_out < COUNT * abs(step - macros["STEP_HI"] - macros["STEP_LO"])
    s = f * abs(mpf(macros["LN2_LO"])) + f * mpf(2) ** -53 + max(map(abs, columns["rest"]))
    assert s < mpf(2) ** -44


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_error_of_the_fast_log2_is_below_its_margin(product):
    mpmath.mp.prec = 300
    generator = runpy.run_path(str(FOLDER / "log" / "generate.py"))
    macros, _ = header("log")
    ours, columns = header("log2")
    extent, width = (mpf(source_macro("log2/log2.c", name)) for name in ("EXTENT", "WIDTH"))
    steps, unit, ln2 = generator["steps"](), mpf(2) ** -53, mpmath.log(2)
    scale, radius = 1 / ln2, generator["RADIUS"]
    logs = [mpf(a) + b for a, b in zip(columns["high"], columns["low"], strict=True)]
    assert all(mpf(float(v)) == v for v in logs)
    assert all(
        s.c == 1 or abs(v) > scale * s.radius * (1 + radius)
        for s, v in zip(steps, logs, strict=True)
    )
    assert max(map(abs, logs)) < 1

    # 1/log(2) lacks less than 2^-108; t E_LO and the small parts of rest are below 2^-53 of r.
    lacking = abs(scale - mpf(ours["E_HI"]) - mpf(ours["E_LO"]))
    assert lacking < mpf(2) ** -107
    for k in (0, *(sign * 2**n for n in range(11) for sign in (-1, 1))):
        for step, value, rest in zip(steps, logs, columns["rest"], strict=True):
            exact = -mpmath.log(mpf(step.c)) * scale
            left_out = abs(exact - value - rest) + lacking * step.radius
            smallest = min(
                abs(mpmath.log(mpf(2) ** k * mpf(m)) * scale) for m in (step.first, step.end)
            )
            if step.c == 1 and k == 0:
                assert rest == value == 0
                continue
            # Roundings of the small parts of rest and of the sums of these, of a.lo and of s.lo.
            low = abs(rest) + 4 * unit * (2 * smallest + 1)
            assert left_out + 8 * unit * low < width * smallest * (1 - 4 * unit)
    # In the interval of 1 all is relative to r, and s > r.
    assert lacking + 12 * unit * 4 * unit < width / 2

    coefficients = [macros[f"Q{i}"] for i in range(generator["TERMS"])]

    def cubic(coefficients):
        error, largest = log_terms(macros, product, generator, coefficients)
        # The sum in rest, E_HI's error, the product, its sum, two more sums, and low + margin.
        return (error + 7 * unit * (1 + error)) * largest * radius * scale

    assert cubic(coefficients) < extent * (1 - 4 * unit)
    # Negative controls: the margin is not idle, and a wrong coefficient breaks it.
    assert cubic(coefficients) > extent / 2
    assert cubic([coefficients[0] + 2.0**-51, *coefficients[1:]]) > extent


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_error_of_the_fast_tanh_is_below_its_margin(product):
    mpmath.mp.prec = 300
    generator = runpy.run_path(str(FOLDER / "exp" / "generate.py"))
    macros, columns = header("exp")
    extent, width, small, end = (
        mpf(source_macro("tanh/tanh.c", name)) for name in ("EXTENT", "WIDTH", "SMALL", "END")
    )
    unit, radius, step = mpf(2) ** -53, generator["RADIUS"], mpmath.log(2) / 16
    # What is not computed: the result of the smallest arguments is x, that of the largest 1.
    assert small**2 / 3 < mpf(2) ** -54
    assert 1 - mpmath.tanh(end) < mpf(2) ** -54

    # S - 1 is zero or larger than S |c|: (S - 1) / S grows with S, and n = 1 is the first.
    first = mpf(columns["high"][1]) + columns["low"][1]
    assert (first - 1) / first > radius * (1 + radius)
    # For n = 0 the constants leave nothing out.
    assert columns["high"][0] == 1
    assert columns["low"][0] == columns["rest"][0] == 0

    # For the others they leave out, as in exp, with s^2/2 and the roundings of s and of w's parts:
    count = 2 * end / step + 1
    left_out = count * abs(step - macros["STEP_HI"] - macros["STEP_LO"]) + max(
        abs(mpmath.log(mpf(2) ** (mpf(j) / 16) / (mpf(high) + low)) - rest)
        for j, (high, low, rest) in enumerate(zip(*columns.values(), strict=True))
    )
    s = count * mpf(abs(macros["STEP_LO"])) + max(map(abs, columns["rest"]))
    assert s < mpf(2) ** -44
    neglected = s * s + 8 * mpf(2) ** (-43 - 53)
    # S / P is largest for n = 1 and the smallest argument that has it.
    smallest = step - radius
    share = mpmath.exp(smallest + radius) / mpmath.expm1(smallest)
    division = mpf(2) ** -100
    assert (left_out + neglected) * share + division < width * (1 - 8 * unit)
    # For n = 0 w's parts but r^3 q(r) are below 2^-53 of r, and P > r.
    assert 8 * unit**2 + division < width

    known = {name: value.hex() for name, value in macros.items()} | {"product": PRODUCTS[product]}

    def cubic(coefficients):
        ours = known | {f"Q{i}": c.hex() for i, c in enumerate(coefficients)}
        lacking = generator["polynomial_error"](coefficients) / radius**3
        error, largest = cubic_terms("tanh/tanh.gappa", ours, radius, lacking)
        # w, S w, and the sum with the exact parts.
        return (error + 3 * unit * (1 + error)) * largest

    q = [macros[f"Q{i}"] for i in range(generator["TERMS"])]
    assert cubic(q) < extent * (1 - 8 * unit)
    # Negative controls: the margin is not idle, and a wrong coefficient breaks it.
    assert cubic(q) > extent / 2
    assert cubic([q[0] + 2.0**-52, *q[1:]]) > extent


def feasible(steps, generator):
    """The entries of both tables that meet: the interval of m, and the ends of p's r."""
    for i, step in enumerate(steps):
        low, high = sorted((mpf(step.first) * step.c - 1, mpf(step.end) * step.c - 1))
        for j in generator["numbers"]():
            half = mpf(1) / 2 + mpf(2) ** -40
            first, end = ((j + side * half) / generator["STEPS_TO_1"] for side in (-1, 1))
            if max(first, low) <= min(end, high):
                yield i, j, max(first, low), min(end, high)


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_error_of_the_fast_pow_is_below_its_margin(product):
    generator = runpy.run_path(str(FOLDER / "pow" / "generate.py"))
    mpmath.mp.prec = 300
    macros, columns = header("pow")
    logs, log_columns = header("log")
    extent, width = (mpf(source_macro("pow/pow.c", name)) for name in ("EXTENT", "WIDTH"))
    steps, unit, ln2 = generator["LOG"]["steps"](), mpf(2) ** -53, mpmath.log(2)
    radius, shifts = generator["RADIUS"], columns["less_one"]
    first = [mpf(a) + b for a, b in zip(log_columns["high"], log_columns["low"], strict=True)]
    second = [mpf(a) + b for a, b in zip(columns["high"], columns["low"], strict=True)]
    assert all(mpf(float(v)) == v for v in (*first, *second))

    for i, j, low, high in feasible(steps, generator):
        assert -8 < j < 8
        shift = mpf(shifts[j])
        # r + d is a double: both are multiples of 2^-59, and the sum is below 2^-6.
        assert float(shift * 2.0**12).is_integer()
        assert max(abs(low + shift), abs(high + shift)) < mpf(2) ** -6
        p = [(1 + r) * (1 + shift) - 1 for r in (low, high)]
        assert max(map(abs, p)) <= radius * (1 + mpf(2) ** -30)
        left_out_j = abs(-mpmath.log(1 + shift) - second[j] - columns["rest"][j])
        left_out_i = abs(-mpmath.log(mpf(steps[i].c)) - first[i] - log_columns["rest"][i])
        for k in (0, *(sign * 2**n for n in range(11) for sign in (-1, 1))):
            # The larger term comes first, or a zero; so it is for k up to twice that.
            whole = k * ln2
            assert k == 0 or abs(whole) > abs(first[i])
            a = whole + first[i]
            assert abs(a) > abs(second[j]) or a == 0
            b = a + second[j]
            # Subtracting h^2/2 makes |t| larger than |h| by little.
            assert abs(b) > radius * (1 + radius) or b == 0
            if b == 0:
                assert left_out_i == left_out_j == log_columns["rest"][i] == columns["rest"][j] == 0
                # All is relative to p: l (1 - h + h^2), and roundings of parts below U.
                assert 12 * unit * unit < width / 2
                continue
            logarithms = [-mpmath.log(steps[i].c) + whole + mpmath.log(1 + r) for r in (low, high)]
            smallest = min(map(abs, logarithms))
            left_out = 2 * abs(k) * abs(ln2 - logs["LN2_HI"] - logs["LN2_LO"])
            left_out += left_out_i + left_out_j
            # l h^3, which is left out, with l below 2^-53 of p.
            left_out += 2 * unit * radius**4
            tiny = 2 * abs(k) * abs(logs["LN2_LO"]) + mpf(2) ** -48
            roundings = 12 * unit * (tiny + 4 * unit * (2 * smallest + 1))
            assert left_out + roundings < width * smallest * (1 - 4 * unit)

    known = {name: value.hex() for name, value in macros.items()} | {"product": PRODUCTS[product]}

    def cubic(coefficients):
        ours = known | {f"Q{i}": c.hex() for i, c in enumerate(coefficients)}
        lacking = generator["LOG"]["polynomial_error"](coefficients, radius)
        error, largest = cubic_terms("pow/pow.gappa", ours, radius, lacking)
        # The sums with the parts of the series, with those of the tables, and those two add.
        return (error + 4 * unit * (1 + error)) * largest

    q = [macros[f"Q{i}"] for i in range(generator["TERMS"])]
    assert cubic(q) < extent * (1 - 8 * unit)
    # Negative controls: the margin is not idle, and a wrong coefficient breaks it.
    assert cubic(q) > extent / 2
    assert cubic([q[0] + 2.0**-51, *q[1:]]) > extent


def test_exp_gives_pow_little_more_error_for_a_larger_s():
    mpmath.mp.prec = 300
    unit = mpf(2) ** -53
    exp_margin, zero = (mpf(source_macro("pow/pow.c", name)) for name in ("EXP_MARGIN", "ZERO"))
    # What y L.lo and the lower part of y L add to s.
    exp = runpy.run_path(str(FOLDER / "exp" / "generate.py"))
    exp_macros, exp_columns = header("exp")
    added = 2 * unit * abs(zero) * (1 + mpf(2) ** -10)
    s = COUNT * mpf(abs(exp_macros["STEP_LO"])) + max(map(abs, exp_columns["rest"])) + added
    assert s < mpf(2) ** -41
    largest = max(exp_columns["high"]) * (1 + mpf(2) ** -24)
    more = largest * (s * s + 12 * s * unit) + 4 * unit * added
    assert source_macro("exp/exp.c", "MARGIN") + more < exp_margin
    # The derivative of 2^(j/16) exp(r + s) is below 2.
    assert largest * mpmath.exp(exp["RADIUS"]) < 1.99


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_error_of_the_fast_log1p_is_below_its_margin(product):
    mpmath.mp.prec = 300
    generator = runpy.run_path(str(FOLDER / "log" / "generate.py"))
    macros, _ = header("log")
    unit, radius = mpf(2) ** -53, generator["RADIUS"] * (1 + mpf(2) ** -40)
    extent, width, small, large = (
        mpf(source_macro("log1p/log1p.c", n)) for n in ("EXTENT", "WIDTH", "SMALL", "LARGE")
    )
    # What is not computed: x^2/2 is below half of the last place, at any x.
    assert small / 2 < mpf(2) ** -54
    # The scale 2^-k is a double for all x of the fast path.
    assert large < mpf(2) ** 1022
    # log's width covers six roundings of low; two more, and that of d where |s| > 2^-6.1.
    assert width >= 2 * mpf(source_macro("log/log.c", "WIDTH"))
    assert 2 * unit**2 < width / 2 * mpf(2) ** -7

    coefficients = [macros[f"Q{i}"] for i in range(generator["TERMS"])]
    known = {name: value.hex() for name, value in macros.items()} | {"product": PRODUCTS[product]}

    def cubic(coefficients):
        ours = known | {f"Q{i}": c.hex() for i, c in enumerate(coefficients)}
        lacking = generator["polynomial_error"](coefficients, radius)
        error, largest = cubic_terms("log/log.gappa", ours, radius, lacking)
        # The three sums that take it in, and low + margin; l h^3, with l below 2^-53 of h.
        return (error + 4 * unit * (1 + error)) * largest * radius + unit * radius**2

    assert cubic(coefficients) < extent * (1 - 4 * unit)
    # Negative controls: the margin is not idle, and a wrong coefficient breaks it.
    assert cubic(coefficients) > extent / 2
    assert cubic([coefficients[0] + 2.0**-51, *coefficients[1:]]) > extent
