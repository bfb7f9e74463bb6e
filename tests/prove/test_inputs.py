# SPDX-License-Identifier: Apache-2.0
"""Samples, thresholds and lists of hard cases."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_udftorch import errors
from pytest_udftorch.prove.exact import strategies as inputs
from pytest_udftorch.prove.exact.rounding import correctly_rounded


def rounded(function, *bits):
    x = np.array(bits, dtype=np.uint32).view(np.float32)
    return correctly_rounded(x, function=function).view(np.float32)


def test_thresholds_of_exp_are_found():
    found = set(inputs.thresholds("exp"))
    overflow = [t for t in found if t < 2**31 and np.isinf(rounded("exp", t)[0])]
    assert len(overflow) == 1
    assert np.isfinite(rounded("exp", overflow[0] - 1)[0])
    underflow = [t for t in found if t > 2**31 and rounded("exp", t)[0] == 0]
    assert any(rounded("exp", t - 1)[0] == 2.0**-149 for t in underflow)


def test_thresholds_of_log_hold_the_ends_of_its_domain():
    assert {0x00000001, 0x3F800000, 0x7F800000, 0x80000000} <= set(inputs.thresholds("log"))


def test_closest_float32_to_a_multiple_of_half_pi_is_among_them():
    # 16367173 * 2**72: Muller et al., Handbook of Floating-Point Arithmetic, section 11.4.
    assert 0x6F79BE45 in inputs.nearest_to_half_pi()


@pytest.mark.parametrize("function", ["exp", "log", "sin"])
def test_sample_is_reproducible_and_has_the_size_asked_for(function):
    first = inputs.sample_inputs(function, 1003, seed=7)
    assert first.size == 1003
    assert first.dtype == np.uint32
    assert np.array_equal(first, inputs.sample_inputs(function, 1003, seed=7))
    assert not np.array_equal(first, inputs.sample_inputs(function, 1003, seed=8))


def test_structured_samples_have_few_bits_or_few_zeros():
    fraction = inputs.sample_inputs("exp", 2000, seed=1, kinds=["structured"]) & np.uint32(0x7FFFFF)
    ones = np.bitwise_count(fraction)
    assert np.all((ones <= 4) | (ones >= 19))
    assert set(np.unique(ones)) >= {0, 1, 2, 3, 4, 19, 20, 21, 22, 23}


def test_threshold_samples_reach_both_sides():
    bits = inputs.sample_inputs("exp", 3000, seed=1, kinds=["thresholds"])
    results = correctly_rounded(bits.view(np.float32), function="exp").view(np.float32)
    assert np.isinf(results).any()
    assert (results > 3e38).any()
    assert (results == 0).any()


def test_hard_cases_are_read_with_comments(tmp_path):
    path = tmp_path / "hard.txt"
    path.write_text("# header\n3f800001  # 1 + ulp\n\n0XBF800000\n")
    assert inputs.read_hard_cases(path).tolist() == [0x3F800001, 0xBF800000]
    path.write_text("0x1 0x2\n0x3 0x4\n")
    assert inputs.read_hard_cases(path, arity=2).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3g800001\n", r"hard\.txt:1: '3g800001'"),
        ("# fine\n0x1ffffffff\n", r"hard\.txt:2"),
        ("0x1 0x2\n", "is not 1 float32 encoding in hex"),
        ("# nothing\n", "holds no case"),
    ],
)
def test_a_bad_list_of_hard_cases_is_refused(tmp_path, text, message):
    path = tmp_path / "hard.txt"
    path.write_text(text)
    with pytest.raises(errors.LibraryError, match=message):
        inputs.read_hard_cases(path)


def test_a_missing_list_of_hard_cases_is_refused(tmp_path):
    with pytest.raises(errors.LibraryError, match=r"none\.txt"):
        inputs.read_hard_cases(tmp_path / "none.txt")
