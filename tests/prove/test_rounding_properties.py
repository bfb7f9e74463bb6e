# SPDX-License-Identifier: Apache-2.0
"""Properties of the oracle and of the distances, by Hypothesis; torch tensors included."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_udftorch import errors
from pytest_udftorch.prove.exact import rounding
from pytest_udftorch.prove.exact import strategies as inputs
from pytest_udftorch.prove.exact.formats import FORMATS
from pytest_udftorch.prove.exact.rounding import correctly_rounded, ulp_distance
from pytest_udftorch.prove.exact.ziv import round_dyadic
from pytest_udftorch.swap.library.symbols import FUNCTIONS

UNIVARIATE = [name for name, f in FUNCTIONS.items() if f.arity == 1]
BIVARIATE = [name for name, f in FUNCTIONS.items() if f.arity == 2]


@pytest.mark.parametrize("function", UNIVARIATE)
def test_oracles_agree(function):
    @settings(max_examples=60, deadline=None)
    @given(inputs.float32_inputs(function))
    def check(x):
        one = np.array([x])
        want = correctly_rounded(one, function=function, oracle="mpmath")
        assert correctly_rounded(one, function=function)[0] == want[0]

    check()


@pytest.mark.parametrize("function", BIVARIATE)
@settings(max_examples=150, deadline=None)
@given(
    x=st.one_of(inputs.by_encoding(), inputs.few_significand_bits()),
    y=st.one_of(inputs.by_encoding(), inputs.few_significand_bits()),
)
def test_oracles_agree_on_pairs(function, x, y):
    pair = (np.array([x]), np.array([y]))
    want = correctly_rounded(pair, function=function, oracle="mpmath")
    assert correctly_rounded(pair, function=function)[0] == want[0]


@settings(max_examples=500, deadline=None)
@given(st.floats(min_value=0.0, exclude_min=True, allow_infinity=False))
def test_exact_rounding_is_that_of_the_processor(value):
    # The processor converts a double to float32 with a single rounding.
    numerator, denominator = value.as_integer_ratio()
    got = round_dyadic(numerator, 1 - denominator.bit_length(), FORMATS["float32"])
    with np.errstate(over="ignore"):
        want = np.array([value]).astype(np.float32).view(np.uint32)[0]
    assert got == want


@given(inputs.by_encoding(), inputs.by_encoding(), inputs.by_encoding())
def test_distance_is_a_metric_on_numbers(a, b, c):
    ab, ba, bc, ac = (
        int(ulp_distance(np.array([p]), np.array([q]))[0])
        for p, q in [(a, b), (b, a), (b, c), (a, c)]
    )
    assert ab == ba
    assert (ab == 0) == (a == b or (np.isnan(a) and np.isnan(b)))
    if not np.isnan([a, b, c]).any():
        assert ac <= ab + bc


@given(inputs.by_encoding())
def test_distance_counts_steps(x):
    if np.isfinite(x):
        with np.errstate(over="ignore", under="ignore"):
            up = np.nextafter(x, np.float32(np.inf))
        assert ulp_distance(np.array([x]), np.array([up]))[0] == (0 if up == x else 1)


@given(inputs.few_significand_bits())
def test_structured_numbers_have_few_bits(x):
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    assert (bits & 0x7FFFFF).bit_count() <= 4


@settings(deadline=None)
@given(inputs.near_half_pi())
def test_numbers_near_half_pi_are_near_a_listed_one(x):
    bits = int(np.array([abs(x)]).view(np.uint32)[0])
    apart = np.abs(np.array(inputs.nearest_to_half_pi(), dtype=np.int64) - bits)
    assert apart.min() <= inputs.NEIGHBOURS


def test_hard_case_strategy_draws_from_the_file(tmp_path):
    path = tmp_path / "hard.txt"
    path.write_text("0x40490fdb\n")
    seen = set()

    @settings(max_examples=200, deadline=None)
    @given(inputs.hard_cases(path))
    def collect(x):
        seen.add(int(np.array([x]).view(np.uint32)[0]))

    collect()
    assert 0x40490FDB in seen
    assert max(abs(s - 0x40490FDB) for s in seen) <= inputs.NEIGHBOURS


TORCH_DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_tensors_are_judged_in_their_own_precision(dtype):
    x = torch.linspace(-3, 3, 101, dtype=dtype)
    results = torch.exp(x.double()).to(dtype)
    rounding.assert_ulp(results, x, function="exp", max_ulp=0.6)
    rounding.assert_bitwise_same(results, results.clone())
    signed = torch.int16 if dtype.itemsize == 2 else torch.int32
    signed = torch.int64 if dtype.itemsize == 8 else signed
    wrong = results.clone()
    wrong.view(signed)[60] += 1
    for check in (
        lambda: rounding.assert_ulp(wrong, x, function="exp", max_ulp=0.6),
        lambda: rounding.assert_correctly_rounded(wrong, x, function="exp"),
        lambda: rounding.assert_bitwise_same(wrong, results),
    ):
        with pytest.raises(AssertionError, match="index 60"):
            check()
    assert int(ulp_distance(wrong, results)[60]) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", ["exp", "log", "sin"])
def test_oracles_agree_on_every_sixteen_bit_encoding(function, dtype):
    x = torch.arange(-(2**15), 2**15, 7, dtype=torch.int32).to(torch.int16).view(dtype)
    want = correctly_rounded(x, function=function, oracle="mpmath")
    assert np.array_equal(correctly_rounded(x, function=function), want)


def test_views_gradients_and_empty_dimensions_of_tensors():
    x = torch.linspace(0, 1, 12).reshape(3, 4)
    assert not ulp_distance(x.T, x.T.contiguous()).any()
    assert not ulp_distance(x.clone().requires_grad_(True), x).any()
    assert ulp_distance(torch.tensor(1.0), torch.tensor(1.0)).shape == ()
    negated = torch.complex(x, x).conj().imag
    assert not ulp_distance(negated, -x).any()


def test_integer_tensors_are_refused():
    with pytest.raises(errors.CheckError, match="int64"):
        ulp_distance(torch.arange(3), torch.arange(3))
    with pytest.raises(errors.CheckError, match="bfloat16"):
        ulp_distance(torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16))
