# SPDX-License-Identifier: Apache-2.0
"""The first operator that makes a NaN, an infinity or a subnormal number from clean inputs."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from pytest_udftorch import cli
from pytest_udftorch.diagnose import Side, first_origin
from pytest_udftorch.errors import DiagnosisError


class Layer(nn.Module):
    """Calls what it is given."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


def inside(call):
    """A model whose layer ``1`` calls it."""
    return nn.Sequential(nn.Identity(), Layer(call), nn.Identity()).eval()


X = torch.tensor([1.0, 2.0, 0.0, 4.0])


@pytest.mark.parametrize(
    ("kind", "call", "operator", "index"),
    [
        ("nan", lambda x: x / x, "aten::div.Tensor", (2,)),
        ("nan", lambda x: (x - 1).sqrt().exp(), "aten::sqrt", (2,)),
        ("inf", lambda x: x.reciprocal().tanh(), "aten::reciprocal", (2,)),
        ("inf", lambda x: (x * 1e5).half(), "aten::_to_copy", (0,)),
        ("inf", lambda x: (x * 1e30) @ (x * 1e30), "aten::dot", ()),
        ("inf", lambda x: x.clone().mul_(1e37).mul_(100.0), "aten::mul_.Tensor", (0,)),
        ("subnormal", lambda x: (x * 1e-20) * 1e-20, "aten::mul.Tensor", (0,)),
        ("nan", lambda x: x.log().clamp_max(9.0).mul(0.0), "aten::mul.Tensor", (2,)),
    ],
)
def test_the_first_is_named_with_layer_and_values(kind, call, operator, index):
    found = first_origin(kind, inside(call), X)
    assert (found.operator, found.place.layer, found.index) == (operator, "1", index)
    assert not found.came_in
    assert found.inputs
    assert f"{operator} in 1 made the first" in found.text()
    json.dumps(found.document())


def test_values_at_the_place_are_told():
    found = first_origin("nan", inside(lambda x: x / x), X)
    assert [(one.name, one.value) for one in found.inputs] == [("self", 0.0), ("other", 0.0)]
    assert found.elements == (1, 4)
    found = first_origin("inf", inside(lambda x: x.clone().mul_(1e37).mul_(100.0)), X)
    assert found.inputs[0].value == pytest.approx(1e37)  # before it was overwritten


def test_masks_and_clean_runs_are_innocent():
    def masked(x):
        hidden = torch.full((4, 4), -math.inf).triu(1)
        return torch.softmax(x + hidden, 1)

    assert first_origin("nan", inside(masked), X).found is False
    found = first_origin("subnormal", inside(lambda x: x.exp()), X)
    assert not found.found
    assert "None of 1 operators made a subnormal number" in found.text()


def test_a_number_that_came_in_is_told_from_one_that_was_made():
    dirty = torch.tensor([1.0, math.nan])
    found = first_origin("nan", inside(lambda x: x.exp().add(1.0)), dirty)
    assert found.came_in
    assert found.operator == "aten::exp"
    assert "The run begins with a NaN" in found.text()


def test_gradients_and_later_steps_are_seen():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), Layer(torch.sqrt))
    with torch.no_grad():
        model[0].weight.zero_()
    found = first_origin("inf", model, X[None], train=True, loss=lambda out: out.sum())
    assert found.operator == "aten::div.Tensor"
    assert (found.place.layer, found.place.phase) == ("1", "backward")

    model = nn.Sequential(nn.Linear(4, 1))
    found = first_origin(
        "nan", model, X[None], train=True, steps=3,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e30, foreach=False),
    )  # fmt: skip
    assert found.place.step >= 1


def test_the_command_names_it(tmp_path, capsys):
    text = "import torch\ndef make():\n    return lambda: torch.arange(4.0).log().sum()\n"
    (tmp_path / "model.py").write_text(text)
    where = f"{tmp_path}/model.py:make"
    store = ["--store", str(tmp_path / "found.json")]
    assert cli.main(["diff", "--origin", "inf", *store, where]) == cli.FAILED
    out = capsys.readouterr().out
    assert "aten::log in no module made the first" in out
    line = "model.py:3, in <lambda>: return lambda: torch.arange(4.0).log().sum()"
    assert f"  at {tmp_path}/{line}" in out
    assert json.loads((tmp_path / "found.json").read_text())["operator"] == "aten::log"
    assert cli.main(["diff", "--origin", "nan", where]) == 0
    assert cli.main(["diff", where]) == cli.MISUSE
    assert "Name the second side" in capsys.readouterr().err


def test_compiled_code_is_taken_apart():
    side = "backend=aot_eager"
    found = first_origin("nan", inside(lambda x: x / x), X, on=side)
    assert (found.operator, found.place.layer) == ("aten::div.Tensor", "1")
    assert "when the operators run eagerly; backend=aot_eager has one in output" in found.text()
    found = first_origin("nan", inside(lambda x: x + x), X, on=side)
    assert not found.found
    assert "Nothing that backend=aot_eager gives has one." in found.text()


def test_what_generated_code_alone_makes_is_said():
    def broken(graph, example):
        return lambda *args: tuple(t * math.nan for t in graph(*args))

    found = first_origin("nan", inside(lambda x: x + 1), X, on=Side(name="broken", backend=broken))
    assert not found.found
    assert "broken has one in output: generated code alone makes it" in found.text()


def test_what_has_no_origin_is_an_error():
    with pytest.raises(DiagnosisError, match="Did you mean 'nan'"):
        first_origin("nans", nn.Identity(), X)
    with pytest.raises(DiagnosisError, match="nothing to run"):
        first_origin("nan")
