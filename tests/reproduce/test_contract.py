# SPDX-License-Identifier: Apache-2.0
"""Operators of ``repro``: the fast loops give the bits of the scalar contract."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.reproduce import assert_batch_invariant, summation_tree, within_contract
from pytest_udftorch.swap.contract.native import contract, take
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level
from tests.reproduce.spoiled import SPOILED

PAGE = Path(__file__).parents[2] / "docs" / "reproduce" / "contract.md"
LEVELS = ["avx2", "avx512"] if resolve_cpu_level(None) == "avx512" else ["avx2"]


def random(*shape, seed=0):
    """Numbers that no session changes."""
    return torch.from_numpy(numpy.random.default_rng(seed).standard_normal(shape).astype("f"))


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 40), st.integers(0, 70), st.integers(0, 400), st.booleans(), st.booleans())
def test_fast_products_have_the_bits_of_the_reference(level, m, n, k, across, down):
    a = random(k, m, seed=m).t() if across else random(m, k, seed=m)
    b = random(n, k, seed=n).t() if down else random(k, n, seed=n)
    made = contract(level)
    assert torch.equal(made.mm(a, b), made.mm(a, b, reference=True))


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 5), st.integers(0, 30), st.integers(0, 70), st.integers(0, 200), st.booleans()
)
def test_products_of_batches_have_the_bits_of_the_reference(level, count, m, n, k, turned):
    a = random(m, count, k, seed=m).transpose(0, 1) if turned else random(count, m, k, seed=m)
    b = random(count, n, k, seed=n).mT if turned else random(1, k, n, seed=n).expand(count, k, n)
    made = contract(level)
    each = [made.mm(left, right, reference=True) for left, right in zip(a, b, strict=True)]
    assert torch.equal(made.products(a, b), torch.stack(each) if each else torch.empty(0, m, n))


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.integers(0, 5000), st.sampled_from([0, 1, 2, 63, 64, 65, 130]))
def test_fast_sums_have_the_bits_of_the_reference(level, outer, n, inner):
    x = random(outer, n if inner < 2 else n // 16, inner, seed=n)
    made = contract(level)
    assert torch.equal(made.sums(x, 1), made.sums(x, 1, reference=True))


def test_another_length_of_chunks_or_another_order_gives_other_bits():
    a, b = random(8, 300), random(300, 8, seed=1)
    assert not torch.equal(contract().mm(a, b), contract(defines=SPOILED).mm(a, b))
    x = random(1000)
    assert contract().sums(x, 0) != contract().sums(x.flip(0).roll(1), 0)


def expected(first, count):
    """The tree of the contract, as the reader writes it."""
    if count == 1:
        return str(first)
    half = 1 << (count - 1).bit_length() - 1
    return f"({expected(first, half)} {expected(first + half, count - half)})"


def test_the_reader_of_orders_finds_the_contract():
    with patched("repro"):
        assert str(summation_tree(torch.sum, (77,))) == expected(0, 77)
        assert str(summation_tree(lambda x: x.sum(0), (77, 3))) == expected(0, 77)
        tall = summation_tree(torch.mm, (2, 200), (200, 3))
        wide = summation_tree(torch.mm, (70, 200), (200, 90), element=-1)
        held = assert_batch_invariant(lambda x: x @ torch.ones(200, 3), (1, 7, 64), (200,))
        assert assert_batch_invariant(torch.nn.Linear(200, 5), (1, 7, 64), (200,)).by == "trials"
    assert held.by == "trees"
    assert str(tall) == str(wide)
    chunk = functools.reduce("({} {})".format, range(64))
    assert str(tall).startswith(f"((({chunk}"[:40])
    assert tall.depth == 63 + 2


CONVOLUTIONS = [
    ((3, 4, 9), (6, 4, 3), {"stride": 2, "padding": 1}),
    ((2, 4, 9, 8), (6, 2, 3, 2), {"groups": 2, "dilation": 2, "padding": (1, 2)}),
    ((2, 3, 5, 6, 7), (4, 3, 2, 3, 3), {"stride": (1, 2, 3)}),
    ((1, 2, 6, 6), (2, 2, 1, 1), {"padding": 1, "stride": 3}),
]


@pytest.mark.parametrize(("shape", "kernel", "options"), CONVOLUTIONS)
def test_convolutions_and_gradients_are_those_of_stock_but_for_rounding(shape, kernel, options):
    conv = (F.conv1d, F.conv2d, F.conv3d)[len(shape) - 3]

    def run(dtype):
        given = [random(*s, seed=i).to(dtype).requires_grad_()
                 for i, s in enumerate((shape, kernel, kernel[:1]))]  # fmt: skip
        y = conv(*given, **options)
        return [y, *torch.autograd.grad((y * y).sum(), given)]

    with patched("repro") as session:
        ours = run(torch.float32)
        assert session.reached["aten::convolution"]
    for mine, truth in zip(ours, run(torch.float64), strict=True):
        assert mine.shape == truth.shape
        torch.testing.assert_close(mine.double(), truth, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_one_word_for_all_directions_of_a_convolution_is_inside(transposed):
    """As ``padding="valid"`` gives it."""
    x, weight = random(2, 4, 9, 8).requires_grad_(), random(4, 4, 3, 2, seed=1).requires_grad_()

    def run(*how):
        y = torch.convolution(x, weight, None, *how[:3], transposed, how[3], 1)
        return [y, *torch.autograd.grad((y * y).sum(), (x, weight))]

    with patched("repro"), within_contract(strict=True):
        whole = run([2, 2], [0, 0], [1, 1], [0, 0])
        found = run([2], [0], [1], [0])
        named = F.conv2d(x, weight, stride=2, padding="valid")
    assert all(map(torch.equal, found, whole))
    assert transposed or torch.equal(named, whole[0])


def test_sums_losses_and_norms_are_those_of_stock_but_for_rounding():
    def run(dtype):
        x = random(6, 5, 8).to(dtype).requires_grad_()
        weight = random(8, seed=1).to(dtype)
        target = torch.tensor([0, 3, 7, -100, 2] * 6)
        normed = F.layer_norm(x, (8,), weight, weight)
        parts = [
            x.sum((0, 2)), x.mean((1,), keepdim=True), x.mean(), x.softmax(1), x.log_softmax(-1),
            F.cross_entropy(normed.flatten(0, 1), target, weight.abs()), normed,
            F.mse_loss(x, normed), torch.baddbmm(x[:, :1], x, x.mT @ x, alpha=0.5, beta=2),
            torch.addmv(x[0, :, 0], x[1], x[2, 0]), torch.dot(x[0, 0], x[1, 1]),
        ]  # fmt: skip
        total = sum((p * p).sum() for p in parts)
        return [*parts, *torch.autograd.grad(total, x)]

    with patched("repro"):
        ours = run(torch.float32)
    for mine, truth in zip(ours, run(torch.float64), strict=True):
        assert mine.shape == truth.shape
        torch.testing.assert_close(mine.double(), truth, rtol=1e-4, atol=1e-4)


def test_halves_of_a_batch_add_up_to_the_gradient_of_the_whole():
    def gradients(layer, x):
        layer.zero_grad()
        for part in x:
            layer(part).square().sum().backward()
        return [p.grad.clone() for p in layer.parameters()]

    with patched("repro"):
        for layer, x in (
            (torch.nn.Conv2d(2, 3, 3), random(8, 2, 7, 7)),
            (torch.nn.Linear(9, 4), random(256, 9)),
        ):
            whole = gradients(layer, [x])
            assert all(map(torch.equal, gradients(layer, x.chunk(2)), whole))
            assert not all(map(torch.equal, gradients(layer, [x[:3], x[3:]]), whole))


def digest(steps=3):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 5), torch.nn.GELU(), torch.nn.Flatten(),
        torch.nn.LayerNorm(256), torch.nn.Linear(256, 10), torch.nn.LogSoftmax(-1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        F.nll_loss(model(random(20, 1, 12, 12, seed=step)), torch.arange(20) % 10).backward()
        optimizer.step()
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def test_training_has_one_digest_at_each_level_and_number_of_threads():
    threads = torch.get_num_threads()
    found = set()
    with patched("repro"):
        try:
            for level in LEVELS:
                take(contract(level))
                for count in (1, 2):
                    torch.set_num_threads(count)
                    found.add(digest())
        finally:
            torch.set_num_threads(threads)
        assert len(found) == 1
        take(contract(defines=SPOILED))
        assert digest() not in found


def test_what_stock_refuses_is_refused_with_its_words():
    cases = {
        "cannot be multiplied": lambda: torch.ones(2, 3) @ torch.ones(2, 3),
        "mat1 and mat2 shapes": lambda: torch.addmm(
            torch.ones(3), torch.ones(2, 3), torch.ones(2, 3)
        ),
        "channels": lambda: F.conv2d(torch.ones(1, 2, 5, 5), torch.ones(1, 3, 3, 3)),
        "can't be greater than actual": lambda: F.conv2d(
            torch.ones(1, 2, 2, 2), torch.ones(1, 2, 3, 3)
        ),
        "dtype": lambda: torch.ones(2, 3) @ torch.ones(3, 2).double(),
    }
    with patched("repro"):
        for says, call in cases.items():
            with pytest.raises(RuntimeError, match=says):
                call()
        assert (torch.ones(2, 0) @ torch.ones(0, 2)).tolist() == [[0.0, 0.0]] * 2
        assert torch.ones(3, dtype=torch.int64).sum() == 3
        assert torch.ones(3).sum(dtype=torch.float64).dtype == torch.float64


def test_the_page_runs():
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(code, {})
