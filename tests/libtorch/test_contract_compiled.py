# SPDX-License-Identifier: Apache-2.0
"""Compiled training gives the weights of eager training under the contract."""

from __future__ import annotations

import hashlib
import importlib

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.contract import outside


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


@pytest.mark.slow
def test_compiled_training_ends_with_the_weights_of_eager_training(monkeypatch):
    with patched("repro"):
        eager = trained(compiled=False)
        assert trained(compiled=True) == eager
    # The control: Inductor computes the gradients of activations by formulas of its own.
    monkeypatch.setattr(outside, "UNCOMPILED", ())
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


def small(*, compiled, narrow):
    """Train a convolution with batch and layer norm, also under autocast; return its last loss."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ELU(), nn.Flatten(), nn.Linear(8 * 36, 5),
        nn.LayerNorm(5),
    )  # fmt: skip
    x, y = torch.rand(16, 3, 8, 8), torch.arange(16) % 5
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = F.cross_entropy(run(x).float(), y)
        loss.backward()
        optimizer.step()
    return loss.detach()


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [False, True])
def test_compiled_norms_train_after_convolutions(narrow):
    # Torch's rules say other strides and dtypes than its kernels give; Inductor checks both.
    with patched("repro"):
        eager = small(compiled=False, narrow=narrow)
        torch.testing.assert_close(small(compiled=True, narrow=narrow), eager, rtol=0.02, atol=0)


def test_inductor_is_told_the_dtypes_of_statistics_beside_wide_parameters():
    x, w = torch.ones(4, 6).bfloat16(), torch.ones(6)

    def dtypes():
        with FakeTensorMode() as mode:
            fakes = map(mode.from_tensor, (x, w))
            found = torch.native_layer_norm(next(fakes), (6,), next(fakes), None, 1e-5)
        return [t.dtype for t in found]

    importlib.import_module("torch._inductor.lowering")
    before = dtypes()
    want = [t.dtype for t in torch.native_layer_norm(x, (6,), w, None, 1e-5)]
    with patched("repro"):
        assert dtypes() == want
    assert dtypes() == before
