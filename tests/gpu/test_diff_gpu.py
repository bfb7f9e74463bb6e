# SPDX-License-Identifier: Apache-2.0
"""CPU and GPU as the two sides of a comparison, and compiled code on a GPU."""

from __future__ import annotations

import pytest
import torch
from faulty_kernels import next_number, planted
from torch import nn

from pytest_udftorch.diagnose import first_difference, first_origin

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(2))


def test_rounding_explains_cpu_and_gpu(model, inputs):
    found = first_difference("cpu", "cuda", model, inputs, causes=6)
    assert not found.equal
    assert found.first.kind == "operator"
    assert not [f for f in found.findings if f.explained is False], found.text()


def _in_half(returned):
    return (returned[0].half().float(), *returned[1:])


def test_a_fault_on_the_gpu_is_named_in_forward_and_backward(model, inputs):
    for operator, layer in (("aten::gelu", "1"), ("aten::native_layer_norm_backward", "2")):
        change = (
            next_number if operator == "aten::gelu" else lambda t: (t[0].half().float(), *t[1:])
        )
        wrong = planted(operator, change)
        side = type(wrong)(name="wrong", device="cuda", around=wrong.around)
        found = first_difference("cuda", side, model, inputs)
        assert (found.first.operator, found.first.place.layer) == (operator, layer)
        assert found.first.proof.same_end


def test_a_decomposition_on_the_gpu_is_named(model, inputs):
    other = "cuda,backend=aot_eager_decomp_partition"
    found = first_difference("cuda", other, model.eval(), inputs)
    model.train()
    assert found.equal or found.compiled.operators


def test_an_infinity_of_a_gradient_on_the_gpu_has_its_layer():
    class Root(nn.Module):
        def forward(self, x):
            return x.sqrt()

    model = nn.Sequential(nn.Linear(4, 4, bias=False), Root())
    nn.init.zeros_(model[0].weight)
    found = first_origin("inf", model, torch.ones(1, 4), on="cuda", loss=lambda out: out.sum())
    assert (found.place.layer, found.place.phase) == ("1", "backward")
