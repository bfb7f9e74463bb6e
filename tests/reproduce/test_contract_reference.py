# SPDX-License-Identifier: Apache-2.0
"""Composed operators of ``repro`` give the bits of the scalar loops that are the contract."""

from __future__ import annotations

import ctypes
import math

import numpy
import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.cpu.operators import cpu_operators
from tests.reproduce.spoiled import SPOILED

LENGTHS = [1, 2, 16, 100, 257, 1000, 4097]
ROWS = 5


@pytest.fixture(scope="module", autouse=True)
def session():
    with patched("repro"):
        yield


def random(*shape, seed=0):
    """Numbers that no session changes."""
    return torch.from_numpy(numpy.random.default_rng(seed).standard_normal(shape).astype("f"))


def same(found, expected):
    """Whether bits are equal."""
    return found.shape == expected.shape and torch.equal(
        found.contiguous().view(torch.int32), expected.contiguous().view(torch.int32)
    )


def function(name):
    """The array form of the session's function."""
    return ctypes.c_void_p(cpu_operators.loops.addresses((name,))[0])


def reference(name, *given, made=None):
    """Call a scalar loop: tensors are pointers, numbers int64 unless they are ctypes' own."""
    passed = []
    for v in given:
        if isinstance(v, torch.Tensor):
            assert v.is_contiguous()
            v = ctypes.c_void_p(v.data_ptr())
        elif isinstance(v, float):
            v = ctypes.c_float(v)
        elif isinstance(v, int):
            v = ctypes.c_int64(v)
        passed.append(v)
    getattr((made or contract()).library, f"ref_{name}")(*passed)


def empty(*shape):
    return torch.full(shape, math.nan)


@pytest.mark.parametrize("n", LENGTHS)
def test_softmax_and_its_relatives(n):
    x, g, work, y = random(ROWS, n), random(ROWS, n, seed=1), empty(n), empty(ROWS, n)
    exp, log, back = function("exp"), function("log"), empty(ROWS, n)
    reference("softmax", ROWS, n, x, exp, y)
    assert same(x.softmax(1), y)
    reference("softmax_backward", ROWS, n, g, y, work, back)
    assert same(torch._softmax_backward_data(g, y, 1, torch.float32), back)
    reference("log_softmax", ROWS, n, x, exp, log, work, y)
    assert same(x.log_softmax(1), y)
    reference("log_softmax_backward", ROWS, n, g, y, exp, back)
    assert same(torch._log_softmax_backward_data(g, y, 1, torch.float32), back)
    total = empty(ROWS)
    reference("logsumexp", ROWS, n, x, exp, log, work, total)
    assert same(x.logsumexp(1), total)


@pytest.mark.parametrize("n", LENGTHS)
def test_products_norms_and_variances(n):
    x, work, y = random(ROWS, n), empty(n), empty(ROWS)
    reference("prod", ROWS, n, x, y)
    assert same(x.prod(1), y)
    for order in (1, 2):
        reference("norm", ROWS, n, ctypes.c_int(order), x, work, y)
        assert same(torch.linalg.vector_norm(x, order, 1), y)
    reference("var", ROWS, n, 0.0, x, work, y)
    assert same(x.var(1, correction=0), y)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("weighted", [False, True])
def test_layer_norm_and_its_gradients(n, weighted):
    x, g, work = random(ROWS, n), random(ROWS, n, seed=1), empty(n)
    weight, bias = (random(n, seed=s) if weighted else None for s in (2, 3))
    mean, rstd, y = empty(ROWS), empty(ROWS), empty(ROWS, n)
    reference("layer_norm", ROWS, n, 1, 1, x, weight, bias, 1e-5, work, mean, rstd, y)
    found = torch.native_layer_norm(x, (n,), weight, bias, 1e-5)
    assert all(map(same, (f.flatten() for f in found), (y.flatten(), mean, rstd)))
    of_weight, of_bias = (empty(n), empty(n)) if weighted else (None, None)
    reference("layer_norm_backward", ROWS, n, g, x, mean, rstd, weight, work, y, of_weight, of_bias)
    found = torch.ops.aten.native_layer_norm_backward(
        g, x, (n,), mean[:, None], rstd[:, None], weight, bias, [True, weighted, weighted]
    )
    expected = (y, of_weight, of_bias) if weighted else (y,)
    assert all(map(same, found, expected))


@pytest.mark.parametrize("positions", [1, 9, 300])
def test_group_norm(positions):
    samples, channels, groups = 3, 6, 2
    x, weight, bias = random(samples, channels, positions), random(channels), random(channels)
    rows, n = samples * groups, channels // groups * positions
    work, mean, rstd, y = empty(n), empty(rows), empty(rows), torch.empty_like(x)
    reference("layer_norm", rows, n, positions, groups, x, weight, bias, 1e-5, work, mean, rstd, y)
    found = torch.native_group_norm(x, weight, bias, samples, channels, positions, groups, 1e-5)
    assert all(map(same, (f.flatten() for f in found), (y.flatten(), mean, rstd)))


@pytest.mark.parametrize("positions", [1, 9, 300])
@pytest.mark.parametrize("weighted", [False, True])
def test_batch_norm_and_its_gradients(positions, weighted):
    samples, channels = 5, 3
    x, g = (random(samples, channels, positions, seed=s) for s in (0, 1))
    weight, bias = (random(channels, seed=s) if weighted else None for s in (2, 3))
    sizes, work = (samples, channels, positions), empty(samples * positions)
    mean, rstd, y = empty(channels), empty(channels), torch.empty_like(x)
    reference("batch_norm", *sizes, x, weight, bias, 1e-5, work, mean, rstd, y)
    found = torch.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    assert all(map(same, found, (y, mean, rstd)))
    of_weight, of_bias = empty(channels), empty(channels)
    reference("batch_norm_backward", *sizes, g, x, mean, rstd, weight, work, y, of_weight, of_bias)
    found = torch.ops.aten.native_batch_norm_backward(
        g, x, weight, None, None, mean, rstd, True, 1e-5, [True, True, True]
    )
    assert all(map(same, found, (y, of_weight, of_bias)))


@pytest.mark.parametrize("mean", [0, 1])
def test_losses(mean):
    rows, classes, how = 301, 10, ("sum", "mean")[mean]
    x, labels = random(rows, classes), torch.arange(rows) % (classes + 1)
    labels[labels == classes] = -100
    work, loss, weight = empty(rows), empty(2), random(classes).abs()
    for w in (None, weight):
        reference("nll", rows, classes, x, labels, w, ctypes.c_int(mean), work, loss)
        assert same(F.nll_loss(x, labels, w, reduction=how), loss[0])
    logits, target = random(rows), random(rows, seed=1).sigmoid()
    functions, n = [function(f) for f in ("exp", "log", "log1p")], ctypes.c_int(mean)
    for kind, (of, given) in enumerate(
        (
            (F.mse_loss, logits),
            (F.binary_cross_entropy, logits.sigmoid()),
            (F.binary_cross_entropy_with_logits, logits),
        )
    ):
        reference("loss", rows, ctypes.c_int(kind), n, given, target, *functions, work, loss)
        assert same(of(given, target, reduction=how), loss[0])


@pytest.mark.parametrize("mean", [0, 1])
@pytest.mark.parametrize("n", LENGTHS)
def test_smooth_l1_loss_and_its_gradient(n, mean):
    x, target, work, loss, y = random(n), random(n, seed=1), empty(n), empty(1), empty(n)
    beta, how, kind = 0.7, ("sum", "mean")[mean], ctypes.c_int(mean)
    reference("smooth_l1", n, kind, x, target, beta, work, loss)
    found = F.smooth_l1_loss(x.requires_grad_(), target, reduction=how, beta=beta)
    assert same(found.detach(), loss[0])
    found.backward(torch.tensor(0.3))
    reference("smooth_l1_backward", n, kind, 0.3, x.detach(), target, beta, y)
    assert same(x.grad, y)
    reference("smooth_l1_backward", n, kind, 0.3, x.detach(), target, beta / 2, y)
    assert n < 16 or not same(x.grad, y)


def attended(made=None):
    """One head of attention, by the scalar loop."""
    q, k, v, mask = random(7, 96), random(200, 96, seed=1), random(200, 33, seed=2), random(7, 200)
    y = empty(7, 33)
    sizes, scale = (7, 200, 96, 33), 1 / math.sqrt(96)
    reference("attention", *sizes, q, k, v, mask, scale, function("exp"), empty(200), y, made=made)
    return y, (q, k, v, mask)


def test_attention():
    y, (q, k, v, mask) = attended()
    v96 = F.pad(v, (0, 96 - 33))  # one size for keys and values
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q[None, None], k[None, None], v96[None, None], attn_mask=mask[None, None]
    )[0]
    assert same(found[0, 0, :, :33], y)


def test_another_chunk_is_another_contract():
    assert not same(attended()[0], attended(contract(defines=SPOILED))[0])


def test_random_numbers_are_functions_of_the_key_and_the_place():
    n = 1001
    key = int(torch.empty((), dtype=torch.int64).random_(generator=generator()))
    y, u = empty(n), ctypes.c_uint64(key)
    reference("uniform", n, u, 1.0, 0.0, y)
    assert same(torch.rand(n, generator=generator()), y)
    reference("uniform", n, u, 3.0, -1.0, y)
    assert same(torch.empty(n).uniform_(-1, 2, generator=generator()), y)
    reference("normal", n, u, *map(function, ("log", "cos", "sin")), y)
    assert same(torch.randn(n, generator=generator()), y)
    reference("exponential", n, u, 2.0, function("log"), y)
    assert same(torch.empty(n).exponential_(2, generator=generator()), y)
    reference("bernoulli", n, u, 0.3, y)
    assert same(torch.empty(n).bernoulli_(0.3, generator=generator()), y)
    order = torch.empty(n, dtype=torch.int64)
    reference("randperm", n, u, order)
    assert torch.equal(torch.randperm(n, generator=generator()), order)
    weights, place = torch.rand(7, 143).relu_(), torch.empty(1, dtype=torch.int64)
    drawn = torch.multinomial(weights, 1, generator=generator())
    for row, of in enumerate(weights):
        reference("multinomial", 143, 143 * row, u, of, function("log"), place)
        assert place == drawn[row]
    # A place without weight is never drawn.
    weights[0, ::2] = 0
    again = torch.empty(999, dtype=torch.int64)
    reference("multinomial_again", 143, 999, u, weights[0].contiguous(), again)
    assert torch.equal(torch.multinomial(weights[0], 999, True, generator=generator()), again)
    assert (again % 2 == 1).all()
    other = ctypes.c_uint64(key ^ 1)
    reference("randperm", n, other, order)
    assert not torch.equal(torch.randperm(n, generator=generator()), order)
    reference("bernoulli", n, other, 0.3, y)
    assert not same(torch.empty(n).bernoulli_(0.3, generator=generator()), y)


def generator():
    return torch.Generator().manual_seed(7)
