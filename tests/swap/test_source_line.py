# SPDX-License-Identifier: Apache-2.0
"""The line that calls an operator: the test's or the model's, never torch's, pytest's or ours."""

from __future__ import annotations

import subprocess
import sys

import torch

from pytest_udftorch.base.source_line import source_line
from pytest_udftorch.diagnose import first_difference


def called():
    return source_line()


def test_it_is_the_line_that_calls(monkeypatch):
    line = called.__code__.co_firstlineno + 1
    assert called().endswith(f"test_source_line.py:{line}, in called: return source_line()")
    monkeypatch.chdir(__file__.rpartition("/")[0])
    assert called() == f"test_source_line.py:{line}, in called: return source_line()"


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x, approximate="none")


def test_a_difference_names_the_line_of_the_model(monkeypatch):
    monkeypatch.chdir(__file__.rpartition("/")[0])
    x, model = torch.linspace(-3, 3, 64), Model().eval()
    found = first_difference("eager", "library=corem", model, x)
    number = Model.forward.__code__.co_firstlineno + 1
    line = f"test_source_line.py:{number}, in forward: return torch.nn.functional.gelu(x, "
    line += 'approximate="none")'
    assert found.first.sources == (line,)
    assert f"\n  at {line}\n" in found.text()
    assert found.document()["findings"][0]["sources"] == [line]


def test_each_side_has_a_line_of_its_own(monkeypatch):
    x = torch.linspace(-3, 3, 64)

    def exact():
        return torch.nn.functional.gelu(x, approximate="none")

    def rough():
        return torch.nn.functional.gelu(x, approximate="tanh")

    found = first_difference(exact, rough)
    assert [one.partition(":")[2].partition(":")[0] for one in found.first.sources] == [
        f"{side.__code__.co_firstlineno + 1}, in {side.__name__}" for side in (exact, rough)
    ]


def test_machinery_alone_has_no_line():
    """The control: torch's own module in a process that only runs this package's command."""
    code = (
        "import torch, runpy, sys\n"
        "from pytest_udftorch.diagnose import first_difference\n"
        "x = torch.linspace(-3, 3, 64)\n"
        "print(first_difference('eager', 'library=corem', torch.nn.GELU(), x).first.sources)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "()\n"
