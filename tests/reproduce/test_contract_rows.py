# SPDX-License-Identifier: Apache-2.0
"""Norms and softmax of ``repro`` on the CPU: loops of rows give the bits of single operators."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pytest_udftorch import patched
from pytest_udftorch.swap.contract import norms, sums
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level

LEVELS = ["avx2", "avx512"] if resolve_cpu_level(None) == "avx512" else ["avx2"]
SPECIAL = [1.0, math.nan, math.inf, -math.inf, -0.0, 1e-38, 1e30]
LENGTHS = [1, 2, 7, 10, 16, 48, 64, 65, 100, 256, 257, 300, 1000, 2049, 5000]


def random(*shape, seed=0):
    """Numbers that no session changes."""
    return torch.from_numpy(numpy.random.default_rng(seed).standard_normal(shape).astype("f"))


def same(x, y):
    """Whether bits are equal, but for those of NaNs."""
    bits = x.view(torch.int32) == y.view(torch.int32)
    return x.shape == y.shape and bool((bits | (x.isnan() & y.isnan())).all())


@pytest.fixture(scope="module", autouse=True)
def session():
    with patched("repro"):
        yield


def rows(x, grad, weight):
    """Results of functions over rows."""
    n = x.shape[1:]
    bias = None if weight is None else weight + 1
    softmax, logs = sums.softmax(x, 1, False), sums.log_softmax(x, 1, False)
    normed = sums.layer_norm(x, n, weight, bias, 1e-5)
    wanted = [True, True, True]
    gradients = sums.layer_norm_backward(grad, x, n, *normed[1:], weight, bias, wanted)
    return [
        softmax, logs, sums.softmax_backward(grad, softmax, 1, torch.float32),
        sums.log_softmax_backward(grad, logs, 1, torch.float32), *normed,
        *(g for g in gradients if g is not None),
    ]  # fmt: skip


def channels(x, grad, weight):
    """Results of batch norm in training, with its running statistics."""
    bias = None if weight is None else weight + 1
    mean, var = random(2, x.shape[1], seed=5).abs()
    y, *saved = norms.batch_norm(x, weight, bias, mean, var, True, 0.1, 1e-5)
    gradients = norms.batch_norm_backward(
        grad, x, weight, mean, var, *saved, True, 1e-5, [True, True, True]
    )
    return [y, *saved, mean, var, *gradients]


def composed(function, *given):
    """What single operators make of it, and the order of sums is the scalar loop's."""
    made = contract()

    class Reference:
        roots = made.roots

        @staticmethod
        def sums(x, dim):
            return made.sums(x, dim, reference=True)

        @staticmethod
        def spans(x, sizes, shape):
            return made.sums(x.reshape(sizes), 1, reference=True).view(shape)

    with pytest.MonkeyPatch.context() as patch:
        for module in (norms, sums):
            patch.setattr(module, "contract", Reference)
        patch.setattr(sums, "dense", lambda *_: False)
        patch.setattr(sums, "_row_weights", lambda *_: False)
        patch.setattr(norms, "_in_loops", lambda *_: False)
        return function(*given)


def looped(function, level, *given):
    made = contract(level)
    with pytest.MonkeyPatch.context() as patch:
        for module in (norms, sums):
            patch.setattr(module, "contract", lambda: made)
        return function(*given)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 70), st.sampled_from(LENGTHS), st.booleans(), st.sampled_from(SPECIAL),
    st.integers(1, 2),
)  # fmt: skip
def test_rows_have_the_bits_of_single_operators(level, count, n, weighted, special, threads):
    count = count if n < 1000 else 3
    x, grad = random(count, n), random(count, n, seed=1)
    x[0, n // 2] = special
    weight = random(n, seed=2) if weighted else None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = looped(rows, level, x, grad, weight)
    finally:
        torch.set_num_threads(before)
    assert all(map(same, found, composed(rows, x, grad, weight)))


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 5), st.sampled_from([8, 9, 16, 49, 64, 300, 5000]),
    st.booleans(), st.sampled_from(SPECIAL),
)  # fmt: skip
def test_channels_have_the_bits_of_single_operators(level, batch, count, n, weighted, special):
    x, grad = random(batch, count, n), random(batch, count, n, seed=1)
    x[0, 0, n // 2] = special
    weight = random(count, seed=2) if weighted else None
    found = looped(channels, level, x, grad, weight)
    assert all(map(same, found, composed(channels, x, grad, weight)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scale", [1e-3, 30.0, 45.0, 60.0])
def test_quotients_are_rounded_correctly_whatever_their_size(level, scale):
    """At AVX-512 they are products, where none is so small that a remainder would be rounded."""
    x = random(8, 1000) * scale
    assert same(looped(sums.softmax, level, x, 1, False), composed(sums.softmax, x, 1, False))


class Seen(TorchFunctionMode):
    """Counts the functions of torch that are called under it."""

    calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


def test_no_mode_of_the_user_sees_the_inside_of_an_operator():
    x, w, b = random(6, 300).requires_grad_(), random(300, seed=1), random(300, seed=2)
    calls = [
        lambda: x.sum(), lambda: x.sum(0), lambda: x.sum(-1, keepdim=True), lambda: x.softmax(1),
        lambda: x.log_softmax(1), lambda: F.layer_norm(x, (300,), w, b),
    ]  # fmt: skip
    for call in calls:
        (wanted,) = torch.autograd.grad(call().square().sum(), x)
        with Seen() as seen:
            y = call()
        assert seen.calls == 1
        (found,) = torch.autograd.grad(y.square().sum(), x)
        assert same(found, wanted)
        assert same(call(), y)


def test_another_order_has_other_bits():
    x = random(4, 1000)
    turned = sums.softmax(x.flip(1), 1, False).flip(1)
    assert not same(sums.softmax(x, 1, False), turned)
    assert not same(F.layer_norm(x, (1000,)), F.layer_norm(x.flip(1), (1000,)).flip(1))
