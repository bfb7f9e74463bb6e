# SPDX-License-Identifier: Apache-2.0
"""The correct-rounding oracle: two implementations, exact cases, ties, subnormals."""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy as np
import pytest

from pytest_udftorch import errors
from pytest_udftorch.prove.exact import rounding, ziv
from pytest_udftorch.prove.exact.formats import FORMATS, decode, encode
from pytest_udftorch.prove.exact.rounding import correctly_rounded, ulp_error
from pytest_udftorch.prove.exact.strategies import sample_inputs
from pytest_udftorch.swap.library.symbols import FUNCTIONS

UNIVARIATE = [name for name, f in FUNCTIONS.items() if f.arity == 1]
BIVARIATE = [name for name, f in FUNCTIONS.items() if f.arity == 2]
FLOAT32 = FORMATS["float32"]

#: Inputs at which log in double falls exactly half-way between two float32 numbers though
#: the true value does not: rounding a double reference decides by the tie rule there.
#: Found by running the C library's log over all normal float32 inputs.
HALF_WAY_IN_DOUBLE = np.array(
    [
        0x1F116AB8,
        0x3C413D3A,
        0x41178FEB,
        0x4C5D65A5,
        0x4D604EBE,
        0x65D890D3,
        0x66A8C860,
        0x6F31A8EC,
    ],
    dtype=np.uint32,
).view(np.float32)


def landmarks(fmt):
    """Encodings at which functions have exact or special results, both signs."""
    exact = [0.25, 0.5, 1, 1.5, 2, 3, 4, 8, 10, 100]
    one = int(encode([1.0], fmt)[0])
    positive = [
        *encode(exact, fmt).tolist(),
        *(0, 1, 2, fmt.min_normal - 1, fmt.min_normal, fmt.infinity - 1, fmt.infinity, fmt.nan),
        *(one - 1, one + 1),
    ]
    return np.array([s | e for s in (0, fmt.sign_bit) for e in positive], dtype=fmt.dtype)


def values(bits, fmt):
    """The encodings as an array that ``correctly_rounded`` takes."""
    return bits.view(fmt.name)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("function", UNIVARIATE)
def test_oracles_agree_on_landmarks(function, dtype):
    x = values(landmarks(FORMATS[dtype]), FORMATS[dtype])
    by_mpfr = correctly_rounded(x, function=function)
    by_mpmath = correctly_rounded(x, function=function, oracle="mpmath")
    assert np.array_equal(by_mpfr, by_mpmath)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("function", BIVARIATE)
def test_oracles_agree_on_pairs_of_landmarks(function, dtype):
    fmt = FORMATS[dtype]
    grid = np.meshgrid(landmarks(fmt), landmarks(fmt))
    pair = tuple(values(g.reshape(-1), fmt) for g in grid)
    by_mpfr = correctly_rounded(pair, function=function)
    by_mpmath = correctly_rounded(pair, function=function, oracle="mpmath")
    assert np.array_equal(by_mpfr, by_mpmath)


@pytest.mark.parametrize("function", UNIVARIATE)
def test_oracles_agree_on_a_sample(function):
    x = sample_inputs(function, 1500, seed=1).view(np.float32)
    by_mpfr = correctly_rounded(x, function=function)
    by_mpmath = correctly_rounded(x, function=function, oracle="mpmath")
    assert np.array_equal(by_mpfr, by_mpmath)


def test_comparing_the_oracles_can_fail():
    x = sample_inputs("exp", 1500, seed=1).view(np.float32)
    wrong = correctly_rounded(x, function="exp2", oracle="mpmath")
    assert not np.array_equal(correctly_rounded(x, function="exp"), wrong)


def test_a_reference_rounded_to_double_first_decides_wrongly():
    import gmpy2

    double = gmpy2.context(precision=53, emin=-1073, emax=1024, subnormalize=True)
    rounded_twice = np.array([float(double.log(float(x))) for x in HALF_WAY_IN_DOUBLE])
    # This is what the trap is made of: the low 29 bits say "exactly half-way".
    assert set((rounded_twice.view(np.uint64) & np.uint64(0x1FFFFFFF)).tolist()) == {0x10000000}
    naive = rounded_twice.astype(np.float32).view(np.uint32)
    by_mpfr = correctly_rounded(HALF_WAY_IN_DOUBLE, function="log")
    by_mpmath = correctly_rounded(HALF_WAY_IN_DOUBLE, function="log", oracle="mpmath")
    assert np.array_equal(by_mpfr, by_mpmath)
    assert np.count_nonzero(naive != by_mpfr) > 0
    with pytest.raises(AssertionError, match="not correctly rounded"):
        rounding.assert_correctly_rounded(
            naive.view(np.float32), HALF_WAY_IN_DOUBLE, function="log"
        )


@pytest.mark.parametrize("oracle", ["mpfr", "mpmath"])
def test_a_subnormal_result_is_rounded_once(oracle):
    # 2**-150 is half of the smallest subnormal: a tie, which goes to the even 0; anything
    # above it rounds up. Rounding to 24 bits first would lose the difference for the last.
    x = np.array([-150.0, np.nextafter(np.float32(-150), np.float32(0)), -149.0, -151.0])
    got = correctly_rounded(x.astype(np.float32), function="exp2", oracle=oracle)
    assert got.tolist() == [0, 1, 1, 0]
    half = np.float32(2.0**-75)
    over = np.nextafter(half, np.float32(1))
    pair = (np.array([half, over]), np.array([2.0, 2.0], dtype=np.float32))
    assert correctly_rounded(pair, function="pow", oracle=oracle).tolist() == [0, 1]


def half_way_hypots():
    """Legs of right triangles whose hypotenuse has 25 bits, the last one set."""
    legs = []
    for a in range(4097, 5000, 2):
        b = 2 * (a // 7)
        hypotenuse = a * a + b * b
        if 2**24 < hypotenuse < 2**25 and a * a - b * b < 2**24:
            legs.append((a * a - b * b, 2 * a * b))
    assert len(legs) > 20
    x, y = np.array(legs, dtype=np.float32).T
    assert [(int(p), int(q)) for p, q in zip(x, y, strict=True)] == legs
    return x, y


def half_way_powers():
    """Odd n below 2**24 with n**2 or n**3 of 25 bits, also as the power 3/2 of a square."""
    squares = [(n, 2.0) for n in range(4097, 5793, 2)]
    cubes = [(n, 3.0) for n in range(257, 323, 2)] + [(n * n, 1.5) for n in range(257, 323, 2)]
    x, y = np.array(squares + cubes, dtype=np.float32).T
    return x, y


@pytest.mark.parametrize("oracle", ["mpfr", "mpmath"])
@pytest.mark.parametrize(
    ("function", "pairs"), [("hypot", half_way_hypots), ("pow", half_way_powers)]
)
def test_ties_go_to_even(function, pairs, oracle):
    x, y = pairs()
    got = correctly_rounded((x, y), function=function, oracle=oracle)
    assert not np.any(got & 1)
    for a, b, bits in zip(x, y, got, strict=True):
        result = Fraction(float(decode(np.array([bits]), FLOAT32)[0]))
        if function == "hypot":
            exact = Fraction(int(a) ** 2 + int(b) ** 2)
            assert (result - 1) ** 2 == exact or (result + 1) ** 2 == exact
        else:
            exact = Fraction(int(a)) ** int(2 * b)
            assert exact in ((result - 1) ** 2, (result + 1) ** 2)
    assert ulp_error(got.view(np.float32), (x, y), function=function).tolist() == [0.5] * x.size


def test_a_tie_that_is_not_recognised_is_an_error(monkeypatch):
    monkeypatch.setattr(ziv, "_is_tie", lambda *_: False)
    pair = (np.array([4097.0], dtype=np.float32), np.array([2.0], dtype=np.float32))
    with pytest.raises(errors.CheckError, match="do not decide"):
        correctly_rounded(pair, function="pow", oracle="mpmath")


def test_shape_is_kept_and_nans_are_canonical():
    x = np.array([[0xFFC12345, 0x7F800001]], dtype=np.uint32).view(np.float32)
    got = correctly_rounded(x, function="sin")
    assert got.shape == (1, 2)
    assert got.tolist() == [[0x7FC00000, 0x7FC00000]]


@pytest.mark.parametrize("function", UNIVARIATE)
def test_error_of_correctly_rounded_results_is_at_most_half(function):
    x = sample_inputs(function, 500, seed=2).view(np.float32)
    got = correctly_rounded(x, function=function)
    errors = ulp_error(got.view(np.float32), x, function=function)
    assert errors.max() <= 0.5
    # Inexact results exist, so an error that is always 0 is a broken measure.
    assert errors.max() > 0.3
    finite = (got & np.uint32(0x7FFFFFFF)) < FLOAT32.infinity - 1
    off = ulp_error((got[finite] + np.uint32(1)).view(np.float32), x[finite], function=function)
    assert off.min() >= 0.5


@pytest.mark.parametrize(
    ("function", "x", "got", "error"),
    [
        ("exp", 0.0, 1.0, 0.0),
        ("exp", 0.0, 1.0 + 2.0**-23, 1.0),
        ("exp", 0.0, 1.0 - 2.0**-24, 0.5),
        ("exp", 200.0, np.inf, 0.0),
        ("exp", 1.0, -np.inf, 2.0**150),
        ("exp", np.inf, np.inf, 0.0),
        ("exp", np.inf, 3.0, np.inf),
        ("log", 0.0, -np.inf, 0.0),
        ("log", 0.0, np.inf, np.inf),
        ("log", -1.0, np.nan, 0.0),
        ("log", -1.0, 1.0, np.inf),
        ("log", 1.0, np.nan, np.inf),
        ("exp", -200.0, 2.0**-149, 1.0),
        ("exp2", -150.0, 0.0, 0.5),
        ("exp2", 127.0, np.inf, 2.0**23),
    ],
)
def test_error_in_ulps(function, x, got, error):
    measured = ulp_error(np.array([got], np.float32), np.array([x], np.float32), function=function)
    assert measured[0] == pytest.approx(error, abs=2.0**-90)


def test_overflow_just_beyond_the_threshold_has_no_error():
    threshold = np.array([0x42B17218], dtype=np.uint32).view(np.float32)
    assert correctly_rounded(threshold, function="exp")[0] == FLOAT32.infinity
    assert ulp_error(np.array([np.inf], np.float32), threshold, function="exp")[0] == 0.0
    top = np.array([np.finfo(np.float32).max])
    assert 0.5 < ulp_error(top, threshold, function="exp")[0] < 1000


def test_unknown_function_is_refused_with_near_names():
    with pytest.raises(errors.UnknownFunctionError, match="'expm1'"):
        correctly_rounded(np.ones(1, np.float32), function="expm2")


def test_arity_is_checked():
    x = np.ones(1, np.float32)
    with pytest.raises(errors.CheckError, match="takes 2 arguments, 1 given"):
        correctly_rounded(x, function="pow")
    with pytest.raises(errors.CheckError, match="takes 1 argument, 2 given"):
        correctly_rounded((x, x), function="exp")


@pytest.mark.parametrize(("package", "oracle"), [("gmpy2", "mpfr"), ("mpmath", "mpmath")])
def test_a_missing_package_is_named(monkeypatch, package, oracle):
    monkeypatch.setitem(sys.modules, package, None)
    ziv._mp_context.cache_clear()
    with pytest.raises(errors.PackageMissingError, match=f"pip install {package}"):
        correctly_rounded(np.ones(1, np.float32) / 3, function="exp", oracle=oracle)
