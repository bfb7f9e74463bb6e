# SPDX-License-Identifier: Apache-2.0
"""Coverage of compiled code: what is generated is judged, and what is left to operators."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import cli
from pytest_udftorch.errors import CoverageError
from pytest_udftorch.swap import coverage
from pytest_udftorch.swap.compiled import inductor
from pytest_udftorch.swap.operators import definitions
from pytest_udftorch.swap.reach import compiled_code as generated

X = torch.linspace(-2.0, 2.0, 128).reshape(8, 16)


def run(x):
    """Generate exp and erf, and leave what a session overrides to its operator."""
    y = torch.exp(torch.erf(x))
    return F.scaled_dot_product_attention(y[None, None], y[None, None], x[None, None])


def hide(monkeypatch, function):
    """Let Inductor's compiler know nothing of a function."""
    compiler_for = inductor.compiler_for

    def without(parts):
        kept = (
            replace(part, functions=tuple(f for f in part.functions if f[0] != function))
            for part in parts
        )
        return compiler_for([part for part in kept if part.functions])

    monkeypatch.setattr(inductor, "compiler_for", without)


def found(compiled=True):
    step = torch.compile(run)
    return {
        row.operator.removeprefix("aten::"): row
        for row in coverage(lambda: step(X), compiled=compiled).rows
    }


@pytest.fixture(scope="module")
def rows():
    return found()


@pytest.mark.slow
def test_generated_code_and_operators_are_counted_once(rows):
    attention = rows.pop("_scaled_dot_product_flash_attention_for_cpu")
    assert not attention.generated
    assert attention.evaluations == {"exp": 8 * 8}
    assert {name: row.evaluations for name, row in rows.items()} == {
        "exp": {"exp": 128},
        "erf": {"erf": 128},
    }
    assert all(row.generated for row in rows.values())
    assert all(row.share == 1.0 for row in (attention, *rows.values()))
    assert {row.calls for row in (attention, *rows.values())} == {1}


@pytest.mark.slow
def test_a_function_that_the_compiler_does_not_swap_is_seen(rows, monkeypatch):
    """The kernels say which symbol they call; without them, the repeated code says it."""
    hide(monkeypatch, "exp")
    hidden = found()
    assert hidden["exp"].share == 0.0
    assert "a generated kernel calls " in hidden["exp"].reasons[0]
    assert "exp" in hidden["exp"].reasons[0].partition("calls ")[2]
    assert hidden["erf"].share == hidden["_scaled_dot_product_flash_attention_for_cpu"].share == 1.0
    monkeypatch.setattr(generated, "called_by", lambda kernel: {})
    hidden = found()
    assert hidden["exp"].share == 0.0
    assert "inlined" in hidden["exp"].reasons[0]
    assert hidden["erf"].share == 1.0


@pytest.mark.parametrize(("kind", "expected"), [("randn", {"log": 96, "cos": 96}), ("rand", {})])
def test_random_numbers_of_inductor_are_defined(kind, expected):
    seed = torch.zeros((), dtype=torch.int64)
    draw = importlib.import_module("torch._inductor.inductor_prims").random
    assert definitions.evaluations(draw, ([96], seed, kind), {}) == (expected, [])


def test_a_run_that_compiles_nothing_is_refused():
    with pytest.raises(CoverageError, match="no code that Inductor compiled"):
        coverage(lambda: run(X), compiled=True)


MODEL = "import torch\ndef make():\n    return torch.nn.{}(), torch.ones(8, 16)\n"


@pytest.mark.slow
def test_the_command_compiles_the_model(tmp_path, capsys):
    (tmp_path / "model.py").write_text(MODEL.format("Sigmoid"))
    assert cli.main(["coverage", "--compiled", f"{tmp_path}/model.py:make"]) == 0
    assert "aten::sigmoid, generated" in capsys.readouterr().out
