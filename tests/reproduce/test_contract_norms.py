# SPDX-License-Identifier: Apache-2.0
"""Variances and norms of ``repro``: the bits of a scalar reference, gradients, stock's errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.swap.contract import norms, sums
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level

LEVELS = ["avx2", "avx512"] if resolve_cpu_level(None) == "avx512" else ["avx2"]
F32 = np.float32


@pytest.fixture(scope="module", autouse=True)
def session():
    with patched("repro") as opened:
        yield opened


def random(*shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape, dtype=F32)
    return torch.from_numpy(values)


# The scalar reference -----------------------------------------------------------------------


def tree(terms):
    """The sum of docs/reproduce/contract.md, one float32 addition at a time."""
    if len(terms) < 2:
        return terms[0] if terms else F32(0)
    half = 1 << (len(terms) - 1).bit_length() - 1
    return tree(terms[:half]) + tree(terms[half:])


def in_turn(terms):
    total = F32(0)
    for term in terms:
        total = total + term
    return total


def spread(terms, add=tree):
    """A mean, and the sum of the squares of the differences from it."""
    mean = add(terms) / F32(len(terms))
    return mean, add([(t - mean) * (t - mean) for t in terms])


def reciprocal_deviation(squares, count, eps):
    return F32(1) / np.sqrt(squares / F32(count) + F32(eps))


def by_samples(x, channel, add=tree):
    """Sums of a channel: over positions, then over samples."""
    return add([add(list(sample[channel].ravel())) for sample in x])


def reference_batch_norm(x, weight, bias, eps, add=tree):
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        count = x[:, c].size
        mean = by_samples(x, c, add) / F32(count)
        d = x - mean
        rstd = reciprocal_deviation(by_samples(d * d, c, add), count, eps)
        for at in np.ndindex(y[:, c].shape):
            y[:, c][at] = d[:, c][at] * rstd * weight[c] + bias[c]
    return y


def reference_group_norm(x, groups, weight, bias, eps):
    y, per = np.empty_like(x), x.shape[1] // groups
    for n, g in np.ndindex(x.shape[0], groups):
        part = slice(g * per, (g + 1) * per)
        mean, squares = spread(list(x[n, part].ravel()))
        rstd = reciprocal_deviation(squares, x[n, part].size, eps)
        for c in range(part.start, part.stop):
            y[n, c] = (x[n, c] - mean) * rstd * weight[c] + bias[c]
    return y


def bits(tensor):
    return np.asarray(tensor).view(np.uint32)


# Bits -----------------------------------------------------------------------------------------

SHAPES = [(2, 4), (7, 4, 1), (5, 4, 3, 7), (1, 4, 2, 3, 5), (3, 4, 67)]
LAYOUTS = {
    "dense": lambda x: x,
    "turned": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "sparse": lambda x: torch.stack([x, x], -1)[..., 0],
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norms_have_the_bits_of_the_scalar_reference(level, shape, monkeypatch):
    for module in (norms, sums):
        monkeypatch.setattr(module, "contract", lambda: contract(level))
    x, weight, bias = random(*shape), random(4, seed=1), random(4, seed=2)
    batch = reference_batch_norm(x.numpy(), weight.numpy(), bias.numpy(), 1e-5)
    group = reference_group_norm(x.numpy(), 2, weight.numpy(), bias.numpy(), 1e-5)
    for layout in LAYOUTS.values():
        given = layout(x)
        ours = F.batch_norm(given, None, None, weight, bias, training=True)
        assert np.array_equal(bits(ours), bits(batch))
        assert np.array_equal(bits(F.group_norm(given, 2, weight, bias)), bits(group))


@pytest.mark.parametrize("count", [2, 3, 64, 100, 2049])
def test_variances_and_vector_norms_have_the_bits_of_the_scalar_reference(count):
    x = random(count, seed=count)
    terms = list(x.numpy())
    mean, squares = spread(terms)
    found = [*torch.var_mean(x), *torch.std_mean(x, correction=0), x.norm(), x.norm(1)]
    wanted = [
        squares / F32(count - 1), mean, np.sqrt(squares / F32(count)), mean,
        np.sqrt(tree([t * t for t in terms])), tree([abs(t) for t in terms]),
    ]  # fmt: skip
    assert [y.item() for y in found] == [float(w) for w in wanted]
    assert x.repeat(3, 1).var(1).tolist() == [float(wanted[0])] * 3


def test_roots_are_correctly_rounded():
    x = torch.cat([random(100_000).abs(), torch.tensor([0.0, -0.0, 1e-45, math.inf, 3.4e38])])
    assert np.array_equal(bits(sums.root(x)), bits(np.sqrt(x.numpy())))


def test_additions_in_another_order_give_other_bits():
    x = random(5, 4, 9, 7)
    ones, zeros = np.ones(4, F32), np.zeros(4, F32)
    ours = F.batch_norm(x, None, None, training=True)
    other = reference_batch_norm(x.numpy(), ones, zeros, 1e-5, add=in_turn)
    assert not np.array_equal(bits(ours), bits(other))
    row = random(100)
    assert row.var().item() != spread(list(row.numpy()), in_turn)[1] / F32(99)


def trained():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GroupNorm(2, 4)
    )
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(random(*p.shape, seed=i))
    x = random(16, 2, 34, 34, seed=9).requires_grad_()
    y = model(x)
    (y * y * y).sum().backward()
    return [y, x.grad, *(p.grad for p in model.parameters()), *model.buffers()]


def test_threads_do_not_matter():
    threads, runs = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            runs.append(trained())
    finally:
        torch.set_num_threads(threads)
    for run in runs[1:]:
        assert all(map(torch.equal, run, runs[0]))


def test_a_sample_does_not_depend_on_its_batch():
    x, mean, var = random(7, 4, 5, 3), random(4), random(4, seed=1).abs()
    for norm in (lambda t: F.group_norm(t, 2), lambda t: F.batch_norm(t, mean, var)):
        whole = norm(x)
        assert all(torch.equal(norm(x[i : i + 1]), whole[i : i + 1]) for i in range(7))


# Meaning ----------------------------------------------------------------------------------------


def gradients(call, *given):
    leaves = [g.clone().requires_grad_() for g in given]
    y = call(*leaves)
    return [y, *torch.autograd.grad((y * y * y).sum(), leaves)]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_the_true_ones_but_for_rounding(shape, training, session):
    def results(dtype):
        x, weight, bias = random(*shape), random(4, seed=1), random(4, seed=2)
        mean, var = random(4, seed=3).to(dtype), random(4, seed=4).abs().add_(1).to(dtype)
        given = [t.to(dtype) for t in (x, weight, bias)]
        return [
            *gradients(lambda x, w, b: F.batch_norm(x, mean, var, w, b, training), *given),
            *gradients(lambda x: F.batch_norm(x, mean, var, training=training), given[0]),
            *gradients(lambda x, w, b: F.group_norm(x, 2, w, b), *given),
            *gradients(lambda x: F.group_norm(x, 4 if x[0, 0].numel() > 1 else 1), given[0]),
            *gradients(lambda x: x.var((0, 1)) + x.std((0, 1), correction=0), given[0]),
            *gradients(lambda x: torch.linalg.vector_norm(x, dim=1), given[0]), mean, var,
        ]  # fmt: skip

    ours, truth = results(torch.float32), results(torch.float64)
    for mine, true in zip(ours, truth, strict=True):
        assert mine.shape == true.shape
        # Two samples of a channel alone normalize to +-1, whose gradients all but cancel.
        scale = float(true.detach().abs().max().clamp(min=1)) * (100 if shape[0] == 2 else 1)
        torch.testing.assert_close(mine.double(), true, rtol=1e-4, atol=1e-5 * scale)
    for name in ("native_batch_norm", "native_batch_norm_backward", "native_group_norm",
                 "native_group_norm_backward", "var.correction", "std.correction"):  # fmt: skip
        assert session.reached[f"aten::{name}"]


def test_layouts_are_those_of_stock():
    x = random(3, 4, 5, 6).to(memory_format=torch.channels_last).requires_grad_()
    for norm in (torch.nn.BatchNorm2d(4), torch.nn.GroupNorm(2, 4)):
        y = norm(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert y.stride() == grad.stride() == x.stride()


def test_infinities_nan_zeros_and_what_is_empty():
    x = random(6, 4)
    x[2, 1], x[3, 2] = math.nan, math.inf
    y = F.batch_norm(x, None, None, training=True)
    assert y.isnan().any(0).tolist() == [False, True, True, False]
    assert math.isnan(x.var())
    assert math.copysign(1, torch.tensor([-0.0]).norm().item()) == 1
    assert torch.var_mean(torch.tensor(3.0), correction=0)[0] == 0
    assert math.copysign(1, torch.var_mean(torch.tensor([-0.0]), 0, correction=0)[1].item()) == -1
    assert torch.empty(0).norm() == 0
    assert torch.empty(3, 0).norm(dim=1).tolist() == [0.0] * 3
    assert F.batch_norm(torch.empty(0, 4, 2), random(4), random(4).abs()).shape == (0, 4, 2)
    assert F.group_norm(torch.empty(0, 4, 2), 2).shape == (0, 4, 2)


def test_what_stock_refuses_is_refused_with_its_words():
    x = random(3, 4, 5)
    cases = {
        "Dimension out of range": lambda: x.var(3),
        "appears multiple times": lambda: x.std((0, -3)),
        "out of range": lambda: torch.linalg.vector_norm(x, dim=5),
        "divisible by num_groups": lambda: F.group_norm(x, 3),
        "running_mean should contain": lambda: F.batch_norm(x, random(3), random(4)),
        "must be defined in evaluation": lambda: torch.batch_norm(
            x, None, None, None, None, False, 0.1, 1e-5, False
        ),
    }
    for says, call in cases.items():
        with pytest.raises((RuntimeError, IndexError), match=says):
            call()
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.sum(3)
    for call in (lambda: torch.empty(0).var(), lambda: torch.ones(1).var()):
        with pytest.warns(UserWarning, match="degrees of freedom"):
            assert math.isnan(call())
    assert x.double().var().dtype == torch.float64
    assert torch.linalg.vector_norm(x, math.inf) == x.abs().max()
