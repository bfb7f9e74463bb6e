# SPDX-License-Identifier: Apache-2.0
"""Operators of ``repro`` beyond products and sums: stock's results, one order, one digest."""

from __future__ import annotations

import hashlib
import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.reproduce import summation_tree
from pytest_udftorch.swap.contract.native import contract, take
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level
from tests.reproduce.spoiled import SPOILED

LEVELS = ["avx2", "avx512"] if resolve_cpu_level(None) == "avx512" else ["avx2"]


def random(*shape, seed=0):
    """Numbers that no session changes."""
    return torch.from_numpy(numpy.random.default_rng(seed).standard_normal(shape).astype("f"))


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 200), st.sampled_from([1, 2, 63, 64, 65, 130]), st.integers(1, 9))
def test_running_and_scattered_sums_have_the_bits_of_the_reference(level, n, inner, count):
    made = contract(level)
    x = random(2, n, inner, seed=n)
    assert torch.equal(made.prefixes(x, 1), made.prefixes(x, 1, reference=True))
    rows = torch.from_numpy(numpy.random.default_rng(n).integers(0, count, n))
    y = random(count, inner, seed=1)
    found = made.scatter(y.clone(), rows, x[0])
    assert torch.equal(found, made.scatter(y.clone(), rows, x[0], reference=True))


def results(dtype, wrap=lambda x: x):
    """Results of operators and gradients, by name. ``wrap`` may change layouts."""

    def leaf(*shape, seed):
        return wrap(random(*shape, seed=seed).to(dtype)).requires_grad_()

    x, weight, bias = leaf(6, 8, 5, seed=1), leaf(8, seed=2), leaf(8, seed=3)
    mean, var = random(8, seed=4).to(dtype), random(8, seed=5).abs().to(dtype)
    table, image = leaf(7, 4, seed=6), leaf(3, 8, 4, 4, seed=14)
    q, k, v = leaf(2, 4, 9, 8, seed=7), leaf(2, 2, 11, 8, seed=8), leaf(2, 2, 11, 8, seed=9)
    taps = leaf(4, 3, 2, 2, seed=10)
    target = (random(6, 8, 5, seed=12) > 0).to(dtype)
    places = (random(6, 8, 5, seed=13).abs() * 2).long().clamp(max=5)
    moved, spread = mean.clone(), var.clone()
    chosen = weight.detach().abs()[:, None]
    found = {
        "batch norm": F.batch_norm(x, moved, spread, weight, bias, True, 0.1, 1e-5),
        "running mean": moved,
        "running variance": spread,
        "batch norm, evaluated": F.batch_norm(x, mean, var, weight, bias, False),
        "batch norm, plain": F.batch_norm(image, None, None, None, None, True),
        "group norm": F.group_norm(image, 4, weight, bias),
        "group norm, plain": F.group_norm(x, 2),
        "var": x.var((0, 2)),
        "var of all": x.var(),
        "std": x.std(1, correction=0, keepdim=True),
        "std_mean": torch.std_mean(x, 2)[1],
        "var_mean": torch.var_mean(x, 1)[0],
        "norm": x.norm(),
        "norm of rows": torch.linalg.vector_norm(x, 2, -1, keepdim=True),
        "sum of magnitudes": torch.linalg.vector_norm(x, 1, (0, 1)),
        "prod": x.prod(1),
        "prod of all": (1 + x / 50).prod(),
        "cumsum": x.cumsum(1),
        "logsumexp": x.logsumexp((0, 2)),
        "logsumexp, kept": x.logsumexp(-1, keepdim=True),
        "cross entropy of two": F.binary_cross_entropy(x.sigmoid(), target),
        "weighted": F.binary_cross_entropy(x.sigmoid(), target, chosen, reduction="sum"),
        "of logits": F.binary_cross_entropy_with_logits(x, target, pos_weight=chosen),
        "smooth l1": F.smooth_l1_loss(x, target),
        "huber": F.huber_loss(x, target, reduction="sum", delta=0.5),
        "embedding": F.embedding(
            torch.tensor([0, 2, 2, 5, 0, 2]), table, padding_idx=0, scale_grad_by_freq=True
        ),
        "index_add": x.index_add(1, torch.tensor([1, 1, 7]), x[:, :3], alpha=2),
        "scatter_add": x.scatter_add(0, places, x * 2),
        "index_put": x.index_put(
            (torch.tensor([0, 0, 1]), torch.tensor([1, 1, 2])), x[:3, 0], accumulate=True
        ),
        "attention": F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        "causal": F.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True),
        "masked": F.scaled_dot_product_attention(q, q, q, attn_mask=random(9, 9).to(dtype)),
        "chosen": F.scaled_dot_product_attention(q, q, q, attn_mask=random(9, 9) > 0),
        "transposed": F.conv_transpose2d(q, taps, stride=2, padding=1),
        "transposed line": F.conv_transpose1d(x, leaf(8, 2, 3, seed=11), groups=2, dilation=2),
    }
    leaves = (x, weight, bias, table, image, q, k, v, taps)
    gradients = torch.autograd.grad(sum((y * y).sum() for y in found.values()), leaves)
    found |= {f"gradient {i}": y for i, y in enumerate(gradients)}
    return {name: y.detach() for name, y in found.items()}


def test_results_and_gradients_are_those_of_stock_but_for_rounding():
    truth = results(torch.float64)
    with patched("repro"):
        ours = results(torch.float32)
    for name, want in truth.items():
        assert ours[name].shape == want.shape, name
        far = (ours[name].double() - want).abs().max() / want.abs().max().clamp(min=1)
        assert far < 3e-6, name


def test_threads_layouts_and_levels_do_not_matter(monkeypatch):
    def turned(x):
        """The same numbers, in another order in memory."""
        if x.dim() == 4:  # stock's fused attention wants the last dimension innermost
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        return x.movedim(0, -1).contiguous().movedim(-1, 0) if x.dim() > 1 else x

    threads = torch.get_num_threads()
    with patched("repro"):
        want = results(torch.float32)
        try:
            for level in LEVELS:
                take(contract(level))
                for count, wrap in ((1, lambda x: x), (2, turned)):
                    torch.set_num_threads(count)
                    got = results(torch.float32, wrap)
                    assert [n for n in want if not torch.equal(got[n], want[n])] == []
        finally:
            torch.set_num_threads(threads)


def test_the_reader_of_orders_finds_the_tree_of_the_terms_of_a_place():
    index = torch.tensor([1, 0, 1, 1, 0, 0, 1, 2])
    with patched("repro"):
        added = summation_tree(lambda x: torch.zeros(3).index_add(0, index, x)[1], (8,))
        spread = summation_tree(lambda x: torch.zeros(3).scatter_add(0, index, x)[1], (8,))
        running = summation_tree(lambda x: x.cumsum(0)[-1], (6,))
    # Of ((0 1)(2 3))((4 5)(6 7)) the terms 0, 2, 3 and 6 belong to the place: 0 to 3 in the tree.
    assert str(added) == str(spread) == "((0 (1 2)) 3)"
    assert str(running) == "(((0 1) (2 3)) (4 5))"


def test_a_row_does_not_depend_on_how_many_rows_there_are():
    x = random(70, 8, 6)
    with patched("repro"):
        for call in (
            lambda x: F.group_norm(x, 2),
            lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
            lambda x: x.var((1, 2)),
            lambda x: x.cumsum(1),
        ):
            whole = call(x)
            for part in (slice(0, 1), slice(3, 40)):
                assert torch.equal(call(x[part]), whole[part])


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(11, 16)
        self.attention = torch.nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.mix = torch.nn.Sequential(
            torch.nn.ConvTranspose1d(16, 8, 3), torch.nn.BatchNorm1d(8), torch.nn.SiLU(),
            torch.nn.GroupNorm(2, 8), torch.nn.Dropout(0.2), torch.nn.Conv1d(8, 4, 3),
        )  # fmt: skip

    def forward(self, at):
        x = self.words(at)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.mix(x.mT).logsumexp(-1)


def digest(steps=3):
    torch.manual_seed(1)
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    at = (random(8, 12).abs() * 5).long().clamp(max=10)
    for _ in range(steps):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(at), (at[:, :4] > 3).float()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    state = torch.cat([p.detach().flatten().double() for p in model.state_dict().values()])
    assert state.isfinite().all()
    return hashlib.sha256(state.numpy().tobytes()).hexdigest()


def test_training_has_one_digest_at_each_level_and_number_of_threads(monkeypatch):
    threads = torch.get_num_threads()
    with patched("repro"):
        found = {digest()}
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
    with patched("corem"):
        assert digest() not in found


# Random numbers ---------------------------------------------------------------------------

DRAWS = {
    "uniform": lambda n, g=None: torch.rand(n, generator=g),
    "normal": lambda n, g=None: torch.randn(n, generator=g),
    "exponential": lambda n, g=None: torch.empty(n).exponential_(2.0, generator=g),
    "bernoulli": lambda n, g=None: torch.empty(n).bernoulli_(0.3, generator=g),
}


def below(name, x):
    """Return the probability of a number of at most x."""
    if name == "uniform":
        return x
    if name == "normal":
        return (1 + torch.erf(x / math.sqrt(2))) / 2
    return 1 - torch.exp(-2 * x)


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_have_their_distribution(name):
    n = 200_000
    torch.manual_seed(7)
    with patched("repro"):
        x = DRAWS[name](n).double()
    mean, variance = {
        "uniform": (0.5, 1 / 12), "normal": (0, 1), "exponential": (0.5, 0.25),
        "bernoulli": (0.3, 0.21),
    }[name]  # fmt: skip
    # Five standard errors; the fourth central moment is at most 9 variances squared.
    assert abs(x.mean() - mean) < 5 * math.sqrt(variance / n)
    assert abs(x.var() - variance) < 5 * variance * math.sqrt(8 / n)
    pairs = (x[1:] - mean) * (x[:-1] - mean)
    assert abs(pairs.mean()) < 5 * variance / math.sqrt(n)
    if name != "bernoulli":
        # Kolmogorov and Smirnov; the limit is exceeded once in 10^4 (Massey, 1951).
        share = below(name, x.sort().values)
        steps = torch.arange(n + 1, dtype=torch.float64) / n
        far = torch.maximum((share - steps[:-1]).abs(), (share - steps[1:]).abs()).max()
        assert far < 2.23 / math.sqrt(n)


@pytest.mark.parametrize("name", DRAWS)
def test_generators_behave_as_torchs(name):
    draw = DRAWS[name]
    threads = torch.get_num_threads()
    with patched("repro"):
        torch.manual_seed(3)
        first, second = draw(70_000), draw(70_000)
        assert not torch.equal(first, second)
        try:
            torch.set_num_threads(1 + (threads == 1))
            torch.manual_seed(3)
            # An element is a function of the seed and of its number.
            assert torch.equal(draw(33), first[:33])
        finally:
            torch.set_num_threads(threads)
        state = torch.get_rng_state()
        assert torch.equal(draw(70_000), second)
        mine = torch.Generator().manual_seed(3)
        assert torch.equal(draw(50, mine), first[:50])
        torch.set_rng_state(state)
        assert torch.equal(draw(99), second[:99])
    torch.manual_seed(3)
    assert not torch.equal(draw(70_000), first)


def test_permutations_dropout_and_initialisers():
    with patched("repro"):
        torch.manual_seed(5)
        order = torch.randperm(1000)
        assert order.sort().values.equal(torch.arange(1000))
        assert not order.equal(torch.arange(1000))
        assert torch.randperm(0).shape == (0,)
        kept = F.dropout(torch.ones(100_000), 0.25)
        assert set(kept.unique().tolist()) == {0.0, torch.tensor(4 / 3).item()}
        assert abs((kept > 0).double().mean() - 0.75) < 0.01
        weight = torch.nn.init.kaiming_normal_(torch.empty(100, 100))
        assert abs(weight.std() - math.sqrt(2 / 100)) < 0.01
        p = torch.tensor([0.0, 1.0, 0.5])
        drawn = torch.bernoulli(p.expand(1000, 3))
        assert drawn[:, :2].unique(dim=0).tolist() == [[0.0, 1.0]]
        strided = torch.empty(6, 8).t().uniform_(2, 3)
        assert strided.min() >= 2
        assert strided.max() <= 3


def test_what_stock_refuses_is_refused_with_its_words():
    ones, at = torch.ones(3), torch.tensor([0, 3])
    cases = {
        "std >= 0": lambda: torch.empty(3).normal_(0, -1),
        "lambda > 0": lambda: torch.empty(3).exponential_(0),
        "expects to return a .from, to. range": lambda: torch.empty(3).uniform_(2, 1),
        "expects p to be in": lambda: torch.empty(3).bernoulli_(1.5),
        "negative dimension": lambda: torch.randperm(-1),
        "n_sample > prob_dist": lambda: torch.multinomial(ones, 4),
        "n_sample <= 0": lambda: torch.multinomial(ones, 0),
        "inf., .nan. or element < 0": lambda: torch.multinomial(-ones, 1),
        "sum of probabilities <= 0": lambda: torch.multinomial(0 * ones, 2, True),
        "(?i)index.*out of": lambda: ones.index_add(0, at, torch.ones(2)),
        "(?i)index 3 is out of bounds": lambda: ones.scatter_add(0, at, torch.ones(2)),
        "between 0 and 1": lambda: F.binary_cross_entropy(2 * ones, ones),
        "(?i)target size": lambda: F.binary_cross_entropy_with_logits(ones, torch.ones(2)),
        "(?i)dimension out of range": lambda: ones.cumsum(1),
        "range of .-1, 0., but got 5": lambda: ones.sum(5),
        "range of .-1, 0., but got -2": lambda: ones.var(-2),
        "range of .-1, 0., but got 1": lambda: torch.tensor(1.0).mean(1),
        "range of .-1, 0., but got 2": lambda: torch.linalg.vector_norm(ones, 2, 2),
        "dim 0 appears multiple times": lambda: ones.sum((0, -1)),
        "all elements of input should be": lambda: F.binary_cross_entropy(ones * math.nan, ones),
        "Target 7 is out of bounds": lambda: F.nll_loss(torch.ones(1, 3), torch.tensor([7])),
    }
    for place in ("stock", "repro"):
        with patched("repro" if place == "repro" else "std"):
            for says, call in cases.items():
                with pytest.raises((RuntimeError, IndexError, ValueError), match=says):
                    call()


def test_nan_zeros_and_empty_inputs():
    nan = torch.tensor([1.0, math.nan, 2.0])
    with patched("repro"):
        assert nan.cumsum(0).isnan().tolist() == [False, True, True]
        assert nan.var().isnan()
        assert nan.norm().isnan()
        assert torch.zeros(2, 0).prod(1).tolist() == [1.0, 1.0]
        assert torch.zeros(0, 3).cumsum(0).shape == (0, 3)
        assert torch.signbit(torch.tensor([-0.0]).cumsum(0)).item()
        assert torch.tensor([-math.inf, -math.inf]).logsumexp(0) == -math.inf
        norm = torch.linalg.vector_norm(torch.ones(3), 3)
        torch.testing.assert_close(norm, torch.tensor(3 ** (1 / 3)))  # stock's: not in the contract
        assert torch.empty(0).normal_().shape == (0,)


def test_indices_outside_of_an_embedding_are_left_out_as_stock_leaves_them():
    given = (torch.ones(4, 2), torch.tensor([0, 5, -2, 0]), 3, -1, False)
    want = torch.ops.aten.embedding_dense_backward(*given)
    with patched("repro"):
        assert torch.equal(torch.ops.aten.embedding_dense_backward(*given), want)
    assert want.tolist() == [[2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]


def test_results_do_not_depend_on_the_default_dtype():
    x = random(2, 3, 8, 8)

    def found():
        torch.manual_seed(1)
        drawn = torch.rand(3, dtype=torch.float32), torch.randn(3, dtype=torch.float32)
        wide = F.interpolate(x, scale_factor=2, mode="bilinear")
        return {**results(torch.float32), "bilinear": wide, "rand": drawn[0], "randn": drawn[1]}

    with patched("repro"):
        want = found()
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            got = found()
        finally:
            torch.set_default_dtype(before)
    for name in want:
        assert got[name].dtype is want[name].dtype, name
        assert torch.equal(got[name], want[name]), name
