# SPDX-License-Identifier: Apache-2.0
"""Exclusive sessions beside threads that compute on a GPU, gradients among it."""

from __future__ import annotations

import time

import pytest
import torch

from benches.experiments.exclusive import Callers
from pytest_udftorch import patched
from pytest_udftorch.swap.session.binder import binder
from pytest_udftorch.swap.session.exclusive import TIMEOUT, gate

pytestmark = [
    pytest.mark.gpu,
    # What torch imports with its compiler.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


def numbers():
    return torch.full((1 << 20,), 0.7, device="cuda", requires_grad=True)


def exponential():
    x = numbers().detach()
    return lambda: torch.exp(x)


def gradient():
    x = numbers()
    return lambda: torch.autograd.grad(torch.exp(x).sin().sum(), x)[0]


@pytest.mark.parametrize("compute", [exponential, gradient], ids=lambda f: f.__name__)
def test_switches_beside_threads_on_the_gpu(compute, monkeypatch):
    monkeypatch.setenv(TIMEOUT, "30")
    for library in ("corem", "canary"):  # compiled before threads run
        with patched(library, exclusive=True):
            compute()()
    stock = compute()()
    seen = set()
    with Callers(2, compute) as callers:
        for turn in range(20):
            with patched(("corem", "canary")[turn % 2], exclusive=True):
                before = callers.operators
                while callers.operators < before + 3:
                    time.sleep(0.001)
                seen.add(compute()()[0].item())
        callers.settle()
    assert len(seen) == 2
    assert callers.mixed == []
    assert not gate.is_active
    assert not binder().owners()
    assert torch.equal(compute()(), stock)
