# SPDX-License-Identifier: Apache-2.0
"""The public assertions: what they accept, and that one wrong bit fails each."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_udftorch import errors
from pytest_udftorch.prove.exact import rounding
from pytest_udftorch.prove.exact.rounding import (
    assert_bitwise_same,
    assert_correctly_rounded,
    assert_ulp,
    correctly_rounded,
)
from pytest_udftorch.prove.exact.strategies import sample_inputs

FUNCTIONS = ("exp", "expm1", "log", "sin", "cos")


def right(function, count=2000):
    x = sample_inputs(function, count, seed=5).view(np.float32)
    return x, correctly_rounded(x, function=function).view(np.float32)


def one_bit_off(results, at):
    wrong = results.copy()
    wrong.view(np.uint32)[at] ^= 1
    return wrong


def test_a_failure_shows_the_line_of_the_test():
    """pytest leaves out the frames that the assertions mark."""
    x, results = right("exp", 20)
    wrong = one_bit_off(results, 3)
    for check in (
        lambda: assert_correctly_rounded(wrong, x, function="exp"),
        lambda: assert_ulp(wrong, x, function="exp", max_ulp=0.5),
        lambda: assert_bitwise_same(wrong, results),
    ):
        with pytest.raises(AssertionError) as caught:
            check()
        shown = [str(entry.path) for entry in caught.traceback.filter(caught)]
        assert len(shown) == 2
        assert set(shown) == {__file__}
        assert len(caught.traceback) > 2


@pytest.mark.parametrize("function", FUNCTIONS)
def test_right_results_pass(function):
    x, results = right(function)
    assert_correctly_rounded(results, x, function=function)
    assert_ulp(results, x, function=function, max_ulp=0.5)
    assert_bitwise_same(results, results.copy())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_wrong_bit_in_two_thousand_fails_each(function):
    x, results = right(function)
    at = int(np.flatnonzero(np.isfinite(results) & (results != 0))[7])
    wrong = one_bit_off(results, at)
    shown = f"0x{int(x.view(np.uint32)[at]):08x}"
    with pytest.raises(AssertionError, match=f"1 of 2,000 .*\n.*index {at}:\n  input +{shown}"):
        assert_correctly_rounded(wrong, x, function=function)
    with pytest.raises(AssertionError, match=f"1 of 2,000 .*\n.*index {at}:\n  input +{shown}"):
        assert_ulp(wrong, x, function=function, max_ulp=0.5)
    with pytest.raises(AssertionError, match=f"1 of 2,000 .*\n.*index {at}:\n  got"):
        assert_bitwise_same(wrong, results)


def test_message_shows_input_got_and_want_in_hex():
    x = np.array([[0.0, 1.0], [2.0, 3.0]], dtype=np.float32)
    results = correctly_rounded(x, function="exp").view(np.float32)
    results.view(np.uint32)[1, 0] += 2
    with pytest.raises(AssertionError) as caught:
        assert_correctly_rounded(results, x, function="exp")
    lines = str(caught.value).splitlines()
    assert lines[0] == "exp: 1 of 4 float32 results are not correctly rounded."
    assert lines[1] == "Worst at index (1, 0):"
    assert lines[2] == "  input  0x40000000  0x1p+1  2"
    assert lines[3] == "  got    0x40ec7328  0x1.d8e65p+2  7.38905716"
    assert lines[4] == "  want   0x40ec7326  0x1.d8e64cp+2  7.38905621"
    assert lines[5].startswith("  error  2.")


def test_the_worst_of_several_is_shown():
    x, results = right("exp")
    normal = np.flatnonzero((results > 1e-30) & (results < 1e30))
    wrong = results.copy()
    wrong.view(np.uint32)[normal[3]] += 1
    wrong.view(np.uint32)[normal[11]] += 40
    with pytest.raises(AssertionError, match=f"2 of 2,000 .*\n.*index {normal[11]}:"):
        assert_correctly_rounded(wrong, x, function="exp")


def test_sign_of_zero_counts():
    x = np.array([0.0, -0.0], dtype=np.float32)
    assert_correctly_rounded(x, x, function="sin")
    with pytest.raises(AssertionError, match="2 of 2"):
        assert_correctly_rounded(-x, x, function="sin")
    with pytest.raises(AssertionError, match="2 of 2"):
        assert_bitwise_same(-x, x)
    assert_ulp(-x, x, function="sin", max_ulp=0.5)


def test_any_nan_will_do_but_a_number_will_not():
    x = np.array([-1.0], dtype=np.float32)
    payload = np.array([0xFFC00123], dtype=np.uint32).view(np.float32)
    assert_correctly_rounded(payload, x, function="log")
    with pytest.raises(AssertionError, match="1 of 1"):
        assert_correctly_rounded(x, x, function="log")
    with pytest.raises(AssertionError, match="inf ULP"):
        assert_ulp(x, x, function="log", max_ulp=1e9)


def test_bitwise_tells_nans_apart_unless_asked_not_to():
    a = np.array([0x7FC00000], dtype=np.uint32).view(np.float32)
    b = np.array([0xFFC00123], dtype=np.uint32).view(np.float32)
    assert_bitwise_same(a, b, any_nan=True)
    with pytest.raises(AssertionError, match="0xffc00123"):
        assert_bitwise_same(a, b)
    with pytest.raises(AssertionError, match="one is a NaN"):
        assert_bitwise_same(a, np.ones(1, np.float32), any_nan=True)


def test_a_callable_is_called_on_the_inputs():
    x = np.array([0.0], dtype=np.float32)
    assert_correctly_rounded(np.exp, x, function="exp")
    with pytest.raises(AssertionError, match="cos"):
        assert_correctly_rounded(np.sin, x, function="cos")
    assert_correctly_rounded(np.hypot, (x, x + 1), function="hypot")


def test_bivariate_message_shows_both_inputs():
    x, y = np.array([3.0], np.float32), np.array([4.0], np.float32)
    assert_correctly_rounded(np.array([5.0], np.float32), (x, y), function="hypot")
    with pytest.raises(AssertionError, match=r"input  0x40400000 .*\n  input  0x40800000 "):
        assert_correctly_rounded(np.array([5.5], np.float32), (x, y), function="hypot")


def test_bound_is_on_the_fractional_error():
    x = np.array([1.0], dtype=np.float32)
    nearest = correctly_rounded(x, function="exp")
    # e lies 0.34 ULP from the nearest float32 number and 0.66 from the second nearest.
    error = rounding.ulp_error(nearest.view(np.float32), x, function="exp")[0]
    assert_ulp(nearest.view(np.float32), x, function="exp", max_ulp=error)
    with pytest.raises(AssertionError, match="farther than"):
        assert_ulp(nearest.view(np.float32), x, function="exp", max_ulp=error * (1 - 2**-40))


def test_both_oracles_judge_alike():
    x, results = right("exp", 200)
    assert_correctly_rounded(results, x, function="exp", oracle="mpmath")
    with pytest.raises(AssertionError, match="1 of 200"):
        assert_correctly_rounded(one_bit_off(results, 3), x, function="exp", oracle="mpmath")


def test_nothing_to_check_is_an_error():
    empty = np.array([], dtype=np.float32)
    with pytest.raises(errors.CheckError, match="empty"):
        assert_correctly_rounded(empty, empty, function="exp")
    with pytest.raises(errors.CheckError, match="empty"):
        assert_ulp(empty, empty, function="exp", max_ulp=1)
    with pytest.raises(errors.CheckError, match="empty"):
        assert_bitwise_same(empty, empty)


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan")])
def test_a_bound_that_bounds_nothing_is_an_error(bound):
    x = np.ones(1, np.float32)
    with pytest.raises(errors.CheckError, match="max_ulp"):
        assert_ulp(x, x, function="exp", max_ulp=bound)


def test_results_must_correspond_to_inputs():
    x = np.ones(3, np.float32)
    with pytest.raises(errors.CheckError, match="one to one"):
        assert_correctly_rounded(x[:2], x, function="exp")
    with pytest.raises(errors.CheckError, match="float64"):
        assert_correctly_rounded(x.astype(np.float64), x, function="exp")
    with pytest.raises(errors.CheckError, match="one to one"):
        rounding.ulp_error(x[:2], x, function="exp")
