# SPDX-License-Identifier: Apache-2.0
"""The approximations of exp and exp2 behind 16-bit results leave no wrong one undoubted.

A GPU's exp2 is replaced by float64's, moved by the largest error that the PTX ISA allows it.
"""

import numpy as np
import pytest

pytest.importorskip("triton")

from pytest_udftorch.swap.cuda import sixteen

#: The largest relative error of ``ex2.approx.ftz.f32``.
LARGEST = 2.0**-22


def constant(name):
    return getattr(sixteen, name).value


def fma(a, b, c):
    """Round once: the product of two float32 is exact in float64, and so nearly is the sum."""
    return (a.astype(np.float64) * np.float64(b) + c).astype(np.float32)


def certain(x, y, function):
    """Return which approximate results are in no doubt."""
    half = constant(f"_{function}_DOUBT")
    near = (y.view(np.uint32) << np.uint32(16)) + np.uint32(0x80000000 + (half << 16))
    subnormal = x.view(np.uint32) - np.uint32(constant(f"_{function}_SUBNORMAL"))
    return (near >= (2 * half + 1) << 16) & (subnormal >= constant(f"_{function}_SUBNORMALS"))


def approximate(x, error):
    """Return the GPU's exp2 of doubles, with an error."""
    y = (np.exp2(x.astype(np.float64)) * (1 + error)).astype(np.float32)
    y[y < 2.0**-126] = 0
    return y


def undoubted(x, error, low):
    """Return which results of exp are not in doubt, and those results rounded to bfloat16."""
    product = x * np.float32(constant("_LOG2E"))
    lacks = fma(x, low, fma(x, constant("_LOG2E"), -product.astype(np.float64)))
    y = approximate(product, error) * fma(lacks, constant("_LN2"), np.float64(1))
    return certain(x, y, "EXP"), rounded(y)


def rounded(y):
    bits = y.view(np.uint32)
    return (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)


@pytest.fixture(scope="module")
def arguments():
    """Arguments whose exp is next to a boundary between two roundings, and others."""
    generator = np.random.default_rng(0)
    boundaries = np.arange(1, 0x7F7F, dtype=np.uint32) << np.uint32(16) | np.uint32(0x8000)
    near = np.log(boundaries.view(np.float32).astype(np.float64)).astype(np.float32)
    steps = np.arange(-12, 13, dtype=np.int32)
    near = (near.view(np.int32)[:, None] + steps).reshape(-1).view(np.float32)
    return np.concatenate([near, generator.uniform(-110, 89, 1 << 18).astype(np.float32)])


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("error", [-LARGEST, 0.0, LARGEST])
def test_what_is_not_in_doubt_is_right(arguments, error):
    right = rounded(np.exp(arguments.astype(np.float64)).astype(np.float32))
    sure, found = undoubted(arguments, error, constant("_LOG2E_LOW"))
    assert 0.4 < sure.mean() < 1.0
    assert not (sure & (found != right)).any()


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("error", [-(2.0**-22.5), 0.0, 2.0**-22.5])
def test_what_exp2_does_not_doubt_is_right(arguments, error):
    x = (arguments.astype(np.float64) * np.log2(np.e)).astype(np.float32)
    right = rounded(np.exp2(x.astype(np.float64)).astype(np.float32))
    y = approximate(x, error)
    sure = certain(x, y, "EXP2")
    assert 0.4 < sure.mean() < 1.0
    assert not (sure & (rounded(y) != right)).any()


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_larger_error_of_exp2_would_show(arguments):
    x = (arguments.astype(np.float64) * np.log2(np.e)).astype(np.float32)
    right = rounded(np.exp2(x.astype(np.float64)).astype(np.float32))
    y = approximate(x, 2.0**-20)
    assert (certain(x, y, "EXP2") & (rounded(y) != right)).any()


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_coarser_logarithm_would_show(arguments):
    right = rounded(np.exp(arguments.astype(np.float64)).astype(np.float32))
    sure, found = undoubted(arguments, LARGEST, 0.0)
    assert (sure & (found != right)).any()
