# SPDX-License-Identifier: Apache-2.0
"""What is outside of the contract on GPUs is refused, and what is said to be inside is tried."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.errors import OutsideContractError
from pytest_udftorch.reproduce import within_contract
from pytest_udftorch.swap.contract.outside import (
    NOT_COMPARED,
    NOT_ON_GPUS,
    NOT_SIXTEEN,
    NOT_SIXTEEN_ON_GPUS,
)
from tests.reproduce.test_contract_sixteen import widened_cases

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

SOURCE = Path(__file__).parents[1] / "reproduce" / "test_contract_outside.py"


@pytest.fixture(scope="module")
def tried():
    """Return the module that says how the operators of TRIED are called."""
    spec = importlib.util.spec_from_file_location("tried_operators", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def encodings(found):
    parts = found if isinstance(found, tuple) else (found,)
    return [
        t.cpu().contiguous().view(torch.int32 if t.element_size() == 4 else torch.int16)
        .masked_fill(t.cpu().isnan(), -1) if t.is_floating_point() else t.cpu()
        for t in parts
    ]  # fmt: skip


def outcomes(tried, device, dtype):
    """Return what each call gives on a device; None for what torch does not compute there."""
    found, loss = {}, tried.LOSS
    x, g = (tried.random(70_001, seed=s).to(device, dtype) for s in (4, 5))
    tried.LOSS = loss.to(device, dtype)
    torch.set_default_device(device)
    try:
        with patched("repro"):
            for name, call in tried.CALLS.items():
                try:
                    found[name] = encodings(call(x, g))
                except (RuntimeError, NotImplementedError):
                    found[name] = None
    finally:
        torch.set_default_device(None)
        tried.LOSS = loss
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_gives_the_bits_of_the_cpu_is_known(tried, dtype):
    one, other = (outcomes(tried, device, dtype) for device in ("cpu", "cuda"))
    different = {
        name for name in one
        if one[name] is None or other[name] is None
        or not all(map(torch.equal, one[name], other[name]))
    }  # fmt: skip
    outside = {*NOT_ON_GPUS} if dtype is torch.float32 else {*NOT_ON_GPUS, *NOT_SIXTEEN_ON_GPUS}
    names = {name.strip("_") for name in outside}
    # Some that differ elsewhere give the same here. In 16 bits a factor of rsub is outside.
    excepted = set() if dtype is torch.float32 else {*NOT_SIXTEEN, "rsub"}
    assert {name.strip("_") for name in different} - names <= excepted
    if dtype is torch.float32:
        compared = names - {name.strip("_") for name in NOT_COMPARED}
        assert compared <= {name.strip("_") for name in different}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GELU(), nn.MaxPool2d(2), nn.Flatten()
        self.first = nn.Sequential(*layers, nn.LayerNorm(18), nn.Dropout(0.1))
        self.last = nn.Linear(18, 3)

    def forward(self, x):
        return self.last(self.first(x))


def step(between=lambda x: x):
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    found = model(between(torch.randn(2, 1, 8, 8, device="cuda")))
    F.cross_entropy(found, torch.tensor([0, 1], device="cuda")).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def test_a_step_of_what_the_contract_has_is_not_refused():
    with patched("repro"), within_contract(strict=True) as found:
        step()
    assert not found.operators


@pytest.mark.parametrize(
    ("between", "operator"),
    [(torch.lgamma, "lgamma"), (lambda x: x.cumprod(-1), "cumprod")],
)
def test_what_is_outside_is_listed_and_refused(between, operator):
    with patched("repro"), within_contract() as found:
        step(between)
    assert [name for name in found.operators if operator in name]
    with (
        patched("repro"),
        pytest.raises(OutsideContractError, match=operator),
        within_contract(strict=True),
    ):
        step(between)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_widened_operators_have_the_bits_of_the_cpu(dtype):
    wrong = []
    for name, (call, *given) in widened_cases().items():
        with patched("repro"), within_contract(strict=True):
            here, there = (
                call(*(t.to(device, dtype) for t in given)).cpu() for device in ("cpu", "cuda")
            )
        if not torch.equal(here.view(torch.int16), there.view(torch.int16)):
            wrong.append(name)
    assert wrong == []
