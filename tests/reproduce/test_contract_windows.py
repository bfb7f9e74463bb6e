# SPDX-License-Identifier: Apache-2.0
"""Convolutions of ``repro`` on the CPU: the fast loops give the bits of the scalar contract."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.windows import Geometry, convolve, weight_gradient
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level

LEVELS = ["avx2", "avx512"] if resolve_cpu_level(None) == "avx512" else ["avx2"]
SPECIAL = [0.0, math.nan, math.inf, -0.0, 1e-38]


def random(*shape, seed=0):
    """Numbers that no session changes."""
    return torch.from_numpy(numpy.random.default_rng(seed).standard_normal(shape).astype("f"))


def same(x, y):
    """Whether bits are equal, but for those of NaNs."""
    bits = x.view(torch.int32) == y.view(torch.int32)
    return x.shape == y.shape and bool((bits | (x.isnan() & y.isnan())).all())


@st.composite
def geometries(draw):
    """Draw the size of an input, and where windows stand in it."""
    rank = draw(st.integers(1, 3))

    def some(*values):
        return [draw(st.sampled_from(values)) for _ in range(rank)]

    size, taps = some(1, 4, 8, 11), some(1, 2, 3, 5)
    step, dilation, spread = some(1, 1, 2, 3), some(1, 1, 2), some(1, 1, 2, 3)
    before, after = some(0, 1, 2, -1), some(0, 1, -1)
    room = [
        max((n - 1) * p + 1 + b + a, d * (k - 1) + 1)
        for n, p, b, a, k, d in zip(size, spread, before, after, taps, dilation, strict=True)
    ]
    return size, Geometry(*map(tuple, (before, room, taps, step, dilation, spread)))


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=30, deadline=None)
@given(
    geometries(), st.integers(1, 9), st.sampled_from([(1, 1), (1, 3), (2, 2), (3, 1)]),
    st.sampled_from([1, 2, 4, 7, 12, 29]), st.booleans(), st.sampled_from(SPECIAL),
)  # fmt: skip
def test_windows_have_the_bits_of_the_reference(level, where, batch, groups, rows, turned, special):
    (size, how), (groups, depth), made = where, groups, contract(level)
    x = random(batch, *size, groups * depth).movedim(-1, 1)
    x[0, 0] = special
    weight = random(groups, depth, rows, *how.taps, seed=1).transpose(1, 2)
    bias = random(groups * rows, seed=2) if turned else None
    given = made, x, weight, bias, how
    found = convolve(*given, turned=turned)
    assert same(found, convolve(*given, turned=turned, reference=True))
    given = made, x, random(*found.shape, seed=3), how, groups
    assert same(weight_gradient(*given), weight_gradient(*given, reference=True))


def test_the_reference_is_a_product_of_windows():
    x, weight, grad = random(3, 4, 9, 8), random(6, 4, 3, 3, seed=1), random(3, 6, 5, 4, seed=2)
    made, how = contract(), Geometry((1, 2), (11, 12), (3, 3), (2, 2), (1, 2), (1, 1))
    windows = F.unfold(x, 3, dilation=(1, 2), padding=(1, 2), stride=2)
    flat = weight.flatten(1)
    want = torch.stack([made.mm(flat, one, reference=True) for one in windows])
    found = convolve(made, x, weight[None], None, how, reference=True)
    assert torch.equal(found.flatten(2), want)
    each = [
        made.mm(g, one.t(), reference=True) for g, one in zip(grad.flatten(2), windows, strict=True)
    ]
    grads = weight_gradient(made, x, grad, how, 1, reference=True)
    assert torch.equal(grads.flatten(1), made.sums(torch.stack(each), 0, reference=True))
    # Another order of channels and taps is another sum.
    turned = windows.unflatten(1, (4, 9)).transpose(1, 2).flatten(1, 2)
    other = weight.flatten(2).transpose(1, 2).flatten(1)
    assert not torch.equal(found[0].flatten(1), made.mm(other, turned[0]))


def test_gradients_of_another_shape_are_for_stock():
    with patched("repro"), pytest.raises(RuntimeError):
        torch.ops.aten.convolution_backward(
            random(1, 2, 9, 9), random(1, 3, 5, 5), random(2, 3, 3, 3), None, [1, 1], [0, 0],
            [1, 1], False, [0, 0], 1, [True, True, False],
        )  # fmt: skip
