# SPDX-License-Identifier: Apache-2.0
"""ULP distances and the encodings they are counted on."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_udftorch import errors
from pytest_udftorch.prove.exact import formats, rounding
from pytest_udftorch.prove.exact.formats import FORMATS

FLOATS = (np.float16, np.float32, np.float64)


@pytest.mark.parametrize("dtype", FLOATS)
def test_neighbours_are_one_apart(dtype):
    x = np.array([1.0, -1.0, 0.5, 3.0], dtype=dtype)
    up = np.nextafter(x, dtype(np.inf))
    assert rounding.ulp_distance(x, up).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("dtype", FLOATS)
def test_distance_crosses_zero_and_reaches_infinity(dtype):
    tiny = np.nextafter(dtype(0), dtype(1))
    top = np.finfo(dtype).max
    a = np.array([tiny, 0.0, top, -np.inf], dtype=dtype)
    b = np.array([-tiny, -0.0, np.inf, -top], dtype=dtype)
    assert rounding.ulp_distance(a, b).tolist() == [2, 0, 1, 1]


def test_distance_from_lowest_to_highest_double_needs_64_bits():
    top = np.finfo(np.float64).max
    steps = int(rounding.ulp_distance(np.array([-top]), np.array([top]))[0])
    assert steps == 2 * (FORMATS["float64"].infinity - 1)
    assert steps > 2**63


def test_nan_is_near_to_nan_only():
    a = np.array([np.nan, np.nan, 1.0], dtype=np.float32)
    b = np.array([np.nan, 1.0, np.nan], dtype=np.float32)
    assert rounding.ulp_distance(a, b).tolist() == [0, 2**64 - 1, 2**64 - 1]


def test_distance_keeps_the_shape():
    a = np.zeros((2, 3), dtype=np.float32)
    assert rounding.ulp_distance(a, a).shape == (2, 3)
    assert rounding.ulp_distance(np.float32(1), np.float32(2)).shape == ()


def test_strided_and_byte_swapped_arrays_are_read_by_value():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert not rounding.ulp_distance(x.T, np.ascontiguousarray(x.T)).any()
    assert not rounding.ulp_distance(x.astype(">f4"), x).any()


def test_different_dtypes_or_shapes_are_refused():
    x = np.zeros(3, dtype=np.float32)
    with pytest.raises(errors.CheckError, match="float64"):
        rounding.ulp_distance(x, x.astype(np.float64))
    with pytest.raises(errors.CheckError, match="same dtype and shape"):
        rounding.ulp_distance(x, x[:2])


def test_integers_are_refused():
    with pytest.raises(errors.CheckError, match="int64"):
        rounding.ulp_distance(np.arange(3), np.arange(3))


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_encode_inverts_decode(fmt):
    step = max(1, 2**fmt.bits // 4099)
    bits = np.arange(0, 2**fmt.bits, step, dtype=np.uint64).astype(fmt.dtype)
    again = formats.encode(formats.decode(bits, fmt), fmt)
    assert np.array_equal(again, formats.canonical(bits, fmt))


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_landmarks_of_a_format(fmt):
    landmarks = [fmt.infinity, fmt.nan, 1, fmt.min_normal, fmt.sign_bit]
    inf, nan, tiny, normal, minus_zero = formats.decode(np.array(landmarks), fmt)
    assert inf == np.inf
    assert np.isnan(nan)
    assert tiny == 2.0**fmt.min_exponent
    assert normal == 2.0 ** (fmt.min_exponent + fmt.precision - 1)
    assert np.signbit(minus_zero)
    assert minus_zero == 0


def test_encode_never_rounds():
    with pytest.raises(errors.CheckError, match="not a float32 number"):
        formats.encode([0.1], FORMATS["float32"])
    with pytest.raises(errors.CheckError, match="not a bfloat16 number"):
        formats.encode([1.0 + 2.0**-8], FORMATS["bfloat16"])


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "0x1p+0"), (-0.0, "-0x0p+0"), (1.5, "0x1.8p+0"), (2.0**-149, "0x1p-149")],
)
def test_hex_float_is_what_c_prints(value, text):
    assert formats.hex_float(value) == text


def test_hex_float_of_special_values():
    assert formats.hex_float(float("inf")) == "inf"
    assert formats.hex_float(float("nan")) == "nan"
