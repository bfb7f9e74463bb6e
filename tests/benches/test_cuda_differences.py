# SPDX-License-Identifier: Apache-2.0
"""The bench of CPU and GPU, with the CPU as both: what needs no GPU of it."""

from __future__ import annotations

import pytest
from faulty_kernels import planted

from benches.experiments import cuda_differences as bench
from benches.render import diff as render


def test_a_device_beside_itself_shows_no_difference():
    rows = [bench.issue_row(issue, "cpu") for issue in bench.CASES if issue != "112714"]
    assert not any(row["differs"] for row in rows)
    assert bench.pair_row("perceptron", "cpu")["equal"]


@pytest.mark.parametrize("kind", ["one ULP off", "half-precision accumulation"])
def test_a_planted_fault_is_named(kind):
    row = bench.fault_row("perceptron", kind, "cpu")
    assert row["named"]
    assert row["proved"]


def test_what_an_operator_gives_on_each_side_is_shown(monkeypatch):
    # The second side gives what a GPU might: half of the digits.
    wrong = planted("aten::_log_softmax", lambda value: value.sign())
    monkeypatch.setattr("pytest_udftorch.diagnose.Side", lambda name, device: wrong)
    row = bench.issue_row("140222", "cpu")
    assert (row["operator"], row["nearer"]) == ("aten::_log_softmax", "the CPU")
    assert row["ulp"][0] < row["ulp"][1]
    pair = {"findings": [["operator", "aten::mm", "0", True]], "accused": []}
    faults = [{"model": "perceptron", "named": True, "proved": False}]
    machine = {"gpu": "a GPU", "multiprocessors": 1}
    device = {"machine": machine, "versions": dict.fromkeys(("torch", "triton", "python"), "1")}
    document = {
        "command": "python", "environment": {"date": "today"},
        "device": {**device, "driver": "1"},
        "issues": [row, {"issue": "1", "differs": False}], "faults": faults, "pairs": [pair],
    }  # fmt: skip
    text = render.cuda_differences(document)
    assert "`aten::_log_softmax`, bfloat16" in text
    assert "no difference" in text
    assert "1 of 1 are named" in text
    assert "0 of 1 proved" in text
    assert "0 of 1 operators named are accused; rounding explains 1." in text
