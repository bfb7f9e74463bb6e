# SPDX-License-Identifier: Apache-2.0
"""Compiled training gives the weights of eager training under the contract."""

from __future__ import annotations

import hashlib
import importlib
from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torchvision.models.resnet import BasicBlock, ResNet

from pytest_udftorch import patched
from pytest_udftorch.base import compat
from pytest_udftorch.swap.compiled import inductor
from pytest_udftorch.swap.compiled.follower import follower
from pytest_udftorch.swap.contract import outside
from pytest_udftorch.swap.session import session


def trained(*, compiled):
    """Train a LeNet with some more kinds of layers; return the digest of its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Sigmoid(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 84), nn.GELU(), nn.LayerNorm(84),
        nn.Linear(84, 10),
    )  # fmt: skip
    x, y = torch.rand(32, 1, 28, 28), torch.arange(32) % 10

    def loss(x, y):
        return F.cross_entropy(model(x), y)

    run = torch.compile(loss) if compiled else loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        run(x, y).backward()
        optimizer.step()
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


@pytest.fixture
def without(monkeypatch):
    """Return what lets Inductor compute the contract's operators, but for those that it names."""

    def leave(kept):
        monkeypatch.setattr(outside, "UNCOMPILED", kept)
        session._actives.clear()  # what the sessions before asked of compilers

    yield leave
    session._actives.clear()


@pytest.mark.slow
def test_compiled_training_ends_with_the_weights_of_eager_training(without):
    with patched("repro"):
        eager = trained(compiled=False)
        assert trained(compiled=True) == eager
    # The control: Inductor computes the gradients of activations by formulas of its own.
    without(())
    with patched("repro"):
        assert trained(compiled=True) != eager


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("last", [False, True])
def test_a_convolution_lays_its_result_out_as_stock_does(channels, last):
    weight = torch.ones(4, channels, 3, 3)
    x = torch.ones(2, channels, 8, 8)
    if last:
        x = torch.ones(2, 8, 8, channels).permute(0, 3, 1, 2)
    want = F.conv2d(x, weight)
    with patched("repro"):
        assert F.conv2d(x, weight).stride() == want.stride()


class Block(nn.Module):
    """A layer of a transformer, between tokens and their scores."""

    def __init__(self):
        super().__init__()
        self.tokens, self.scores = nn.Embedding(20, 32), nn.Linear(32, 20)
        self.one, self.two = nn.LayerNorm(32), nn.LayerNorm(32)
        self.heads, self.joined = nn.Linear(32, 96), nn.Linear(32, 32)
        self.wide, self.narrow = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, tokens):
        x = self.tokens(tokens)
        parts = self.heads(self.one(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(attended.transpose(1, 2).flatten(2))
        x = x + self.narrow(F.gelu(self.wide(self.two(x))))
        return self.scores(x).flatten(0, 1)


class Chain(nn.Module):
    """Single elements, with numbers between them, which Inductor fuses."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 5)
        self.norm = nn.BatchNorm1d(16, track_running_stats=False)

    def forward(self, x):
        x = self.one(x)
        u = self.two(x)
        y = F.relu(x * u + 0.3 * x) * torch.sigmoid(u) - x / (u * u + 1.7)
        y = torch.add(y.exp().clamp(max=3) * y, y.erf() * x.square(), alpha=0.7)
        return self.three(self.norm(y) + 1.1 * (y * x))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.InstanceNorm2d(8, affine=True),
        nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(8 * 36, 5),
    )  # fmt: skip


def residual():
    return ResNet(BasicBlock, [2, 2, 2, 2], num_classes=5)


INPUTS = {
    Block: lambda: torch.arange(64).view(4, 16) * 7 % 20,
    Chain: lambda: torch.rand(64, 16),
    convolutions: lambda: torch.rand(16, 3, 8, 8),
    residual: lambda: torch.rand(4, 3, 32, 32),
}


def digest_of(kind, *, compiled=False, narrow=False, mode="default"):
    """Train for some steps, in 16 bits under autocast; return a digest of all that is left."""
    torch.manual_seed(0)
    model, x = kind(), INPUTS[kind]()
    run = torch.compile(model, mode=mode) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found = hashlib.sha256()
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            scores = run(x)
            loss = F.cross_entropy(scores, torch.arange(len(scores)) * 3 % scores.shape[1])
        loss.backward()
        optimizer.step()
    for tensor in (loss, *model.state_dict().values()):
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("kind", [Block, Chain, convolutions, residual])
def test_compiled_models_end_with_the_bits_of_eager_ones(kind, narrow):
    with patched("repro"):
        eager = digest_of(kind, narrow=narrow)
        assert digest_of(kind, narrow=narrow, compiled=True) == eager


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_every_mode_of_compilation_gives_the_bits_of_eager(mode):
    with patched("repro"):
        eager = digest_of(Chain, narrow=True)
        assert digest_of(Chain, narrow=True, compiled=True, mode=mode) == eager


def updated(make, *, compiled):
    """Take steps of an optimizer, also a compiled one; return the weights."""
    torch.manual_seed(0)
    weights = nn.Parameter(torch.randn(7, 5))
    optimizer = make([weights])
    step = torch.compile(optimizer.step) if compiled else optimizer.step
    for _ in range(3):
        weights.grad = torch.randn(7, 5)
        step()
    return weights.detach()


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
        partial(torch.optim.AdamW, lr=0.1, fused=True),
        partial(torch.optim.AdamW, lr=0.1),
        partial(torch.optim.Adam, lr=0.1, amsgrad=True, foreach=True),
        partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1),
        partial(torch.optim.RMSprop, lr=0.1, centered=True, momentum=0.9),
        partial(torch.optim.NAdam, lr=0.1),
    ],
    ids=["SGD", "fused AdamW", "AdamW", "Adam", "Adagrad", "RMSprop", "NAdam"],
)
def test_compiled_optimizers_give_the_bits_of_eager_ones(make):
    with patched("repro"):
        assert torch.equal(updated(make, compiled=True), updated(make, compiled=False))


@pytest.mark.slow
def test_traced_optimizers_would_not(monkeypatch):
    """The control: traced, the factors of AdamW are float32."""
    monkeypatch.setattr(compat, "OPTIMIZERS", {})
    make = partial(torch.optim.AdamW, lr=0.1)
    with patched("repro"):
        assert not torch.equal(updated(make, compiled=True), updated(make, compiled=False))


def test_optimizers_are_torchs_again_after_a_session():
    importlib.import_module("torch._dynamo")
    adam = importlib.import_module("torch.optim.adam")
    config, before = torch._dynamo.config, adam._single_tensor_adam
    rewrites = getattr(config, compat.DYNAMO_REWRITES, None)
    with patched("repro"):
        assert adam._single_tensor_adam is not before
        assert torch.addcdiv not in compat.dynamo_handlers()
    assert adam._single_tensor_adam is before
    assert getattr(config, compat.DYNAMO_REWRITES, None) is rewrites
    assert torch.addcdiv in compat.dynamo_handlers()
    with patched("corem"):
        assert adam._single_tensor_adam is before


@pytest.mark.slow
def test_a_compiled_sum_with_a_quotient_rounds_as_the_eager_one():
    x, y, z = (torch.randn(1000) for _ in range(3))

    def call(x, y, z):
        return torch.addcdiv(x, y, z, value=0.3) + x.clone().addcdiv_(y, z, value=0.7)

    with patched("repro"):
        assert torch.equal(torch.compile(call)(x, y, z), call(x, y, z))


def lists(x, y, z):
    """Return what operators on lists of tensors give that round more than once."""
    some = torch._foreach_mul(x, 1.0)
    torch._foreach_add_(some, y, alpha=0.3)
    torch._foreach_lerp_(some, z, 0.2)
    return [
        *some, *torch._foreach_add(x, y, alpha=0.3), *torch._foreach_add(x, y[0].sum(), alpha=0.3),
        *torch._foreach_sub(x, y, alpha=0.3), *torch._foreach_lerp(x, y, 0.9),
        *torch._foreach_lerp(x, y, z), *torch._foreach_addcmul(x, y, z, 0.3),
        *torch._foreach_addcmul(x, y, z, [0.3, 0.4]), *torch._foreach_addcdiv(x, y, z, 0.3),
        *torch._foreach_sqrt(z), *torch._foreach_rsqrt(z), *torch._foreach_pow(z, 1.7),
        *torch._foreach_norm(x), *torch._foreach_div(x, 0.7), *torch._foreach_exp(x),
    ]  # fmt: skip


@pytest.mark.slow
def test_lists_of_tensors_round_as_eager_ones(monkeypatch, without, tmp_path):
    torch.manual_seed(0)
    x, y, z = ([torch.rand(1003), torch.rand(7, 5)] for _ in range(3))
    with patched("repro"):
        want = lists(x, y, [t + 0.1 for t in z])
        found = torch.compile(lists)(x, y, [t + 0.1 for t in z])
    assert [torch.equal(*pair) for pair in zip(found, want, strict=True)] == [True] * len(want)
    # The control: Inductor computes them by formulas of its own.
    single = tuple(n for n in outside.UNCOMPILED if "_foreach_" not in n)
    without(single)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    with patched("repro"):
        found = torch.compile(lists)(x, y, [t + 0.1 for t in z])
    assert not all(map(torch.equal, found, want))


@pytest.mark.slow
@pytest.mark.parametrize("lacking", ["WITH_NUMBERS", "ROUNDING"])
def test_without_its_means_compiled_code_has_other_bits(monkeypatch, tmp_path, lacking):
    monkeypatch.setattr(inductor, lacking, type(getattr(inductor, lacking))())
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with patched("repro"):
        assert digest_of(Chain, narrow=True, compiled=True) != digest_of(Chain, narrow=True)


def norms(x, w):
    """Return what norms give, and their gradients, for a tensor and parameters of its channels."""
    aten, two = torch.ops.aten, w[:2].expand(len(x), 2)
    return [
        *aten.native_layer_norm(x, (x.shape[-1],), None, None, 1e-5),
        *aten.native_group_norm(x, w, w, *x.shape[:2], 9, 2, 1e-5),
        *aten.native_group_norm_backward(x, x, two, two, w, *x.shape[:2], 9, 2, [True] * 3),
        *aten.native_batch_norm(x, w, w, w, w, True, 0.1, 1e-5),
        *aten._native_batch_norm_legit_functional(x, w, w, w, w, True, 0.1, 1e-5),
        *aten._native_batch_norm_legit.no_stats(x, w, w, True, 0.1, 1e-5),
        *aten.native_batch_norm_backward(x, x, w, w, w, w, w, True, 1e-5, [True] * 3),
    ]


def test_single_operators_are_not_computed_by_formulas_of_inductor():
    def call(x, y):
        narrow = x.bfloat16()
        return [
            torch.remainder(x, 0.3), torch.linspace(0.1, 7.3, 97),
            torch.xlogy(narrow, narrow.abs()), F.pairwise_distance(x, y),
        ]  # fmt: skip

    def differing():
        return [
            not torch.equal(one, other)
            for one, other in zip(torch.compile(call)(x, y), call(x, y), strict=True)
        ]

    x, y = torch.randn(2, 96, 33, generator=torch.Generator().manual_seed(0))
    with patched("repro"), torch.no_grad():
        assert not any(differing())
    with torch.no_grad():  # the control
        assert differing()[:3] == [True] * 3


def test_a_number_that_fills_16_bits_is_rounded_to_them():
    def call(x):  # torch 2.11 subtracted from 8.4
        return torch.full_like(x, 8.4).sub_(x)

    x = torch.randn(500, generator=torch.Generator().manual_seed(0)).bfloat16()
    with patched("repro"):
        assert torch.equal(torch.compile(call)(x), call(x))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("left_out", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled_flex_attention_has_the_bits_of_eager_code(monkeypatch, left_out):
    def call(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda s, *at: torch.tanh(s), block_mask=causal)

    causal = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 160, 160, device="cpu")
    q, k, v = torch.randn(3, 1, 2, 160, 32, generator=torch.Generator().manual_seed(0))
    if left_out:  # the control: Inductor's template, which its caches know by another name
        monkeypatch.setattr(compat, "flex_rules", list)
        monkeypatch.setattr(inductor, "_CHANGES_METADATA", {"UDFTORCH_CHANGES": "control"})
    with patched("repro"), torch.no_grad():
        assert torch.equal(torch.compile(call)(q, k, v), call(q, k, v)) != left_out


@pytest.mark.parametrize("left_out", [False, True])
def test_a_frozen_model_has_the_bits_of_eager_code(monkeypatch, left_out):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh()).eval()
    x = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model[1].running_var.fill_(0.3)
    if left_out:  # the control: the norm is folded into the weights
        monkeypatch.setattr(inductor, "_CHANGES_METADATA", {"UDFTORCH_CHANGES": "control"})
        monkeypatch.setitem(follower._changes, compat.INDUCTOR_FREEZING, lambda *given: None)
    with patched("repro"), torch.no_grad(), torch._inductor.config.patch(freezing=True):
        assert torch.equal(torch.compile(model)(x), model(x)) != left_out


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16])
def test_inductor_is_told_the_dtypes_of_what_norms_give(wide):
    x, w = torch.rand(4, 6, 3, 3).bfloat16(), torch.ones(6, dtype=wide)

    def fakes():
        with FakeTensorMode() as mode:
            found = norms(mode.from_tensor(x), mode.from_tensor(w))
        return [(t.dtype, t.stride()) for t in found]

    importlib.import_module("torch._inductor.lowering")
    before = fakes()
    with patched("repro"):
        assert fakes() == [(t.dtype, t.stride()) for t in norms(x, w)]
        assert fakes() != before
    assert fakes() == before
