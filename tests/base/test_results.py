# SPDX-License-Identifier: Apache-2.0
"""What print and notebooks show of sessions, measurements, pairs, plans and certificates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_udftorch import patched, prove
from pytest_udftorch.measure import Comparison, Plan, Timing, model_pair
from pytest_udftorch.measure.planning.plans import StoredPlan

ROOT = Path(__file__).parents[2]


def shows(thing, *texts):
    """Check that text and HTML say all of ``texts``, and that ``repr`` is one short line."""
    assert repr(thing).startswith(f"<{type(thing).__name__} ")
    assert "\n" not in repr(thing)
    assert len(repr(thing)) < 200
    for text in texts:
        assert text in str(thing)
        assert text in thing._repr_html_()


def test_a_session():
    with patched("corem", functions=("exp",)) as session:
        (symbol, *_) = session.reached["exp"]
        shows(session, "corem", "open", "exp", symbol)
    assert "closed" in str(session)


def test_a_comparison_and_its_timings():
    fast, slow = (tuple(n + 0.1 * i for i in range(12)) for n in (1e6, 2e6))
    found = Comparison({"eager": Timing("eager", "cpu", slow), "compile": Timing("x", "cpu", fast)})
    shows(found, "fastest: compile", "2 ms", "times as fast as eager", "faster")
    shows(found["eager"], "eager on cpu: 2 ms", "12 runs")
    shows(Timing("few", "cpu", (1.0, 2.0)), "2 runs, fewer than")


def test_a_pair_before_and_after_its_measurement():
    model = nn.Sequential(nn.Linear(4, 4), nn.ELU()).eval()
    pair = model_pair(model, torch.randn(2, 4), ["torchscript-trace"])
    shows(pair, "2 of 2 forms run, on cpu", "torchscript-trace", "agrees", "measure() times")
    pair.measure(runs=3, rounds=1)
    assert "measure() times" not in str(pair)
    assert str(pair).count(", 3 runs") == 2


@pytest.mark.parametrize(
    "report",
    [
        {"uniform": {"compile": 2e6, "eager": 1e6}, "units": ["conv", "relu", "fc"]},
        {"uniform": {"eager": "soon"}, "units": 3},
        {},
    ],
)
def test_a_plan(report):
    stored = StoredPlan(
        ((0, 2, "compile"), (2, 3, "eager")), (0, 1, 2, 3), "f00", ("float32[2, 4]",), "cpu",
        "2.15", False, report,
    )  # fmt: skip
    plan = Plan(stored)
    shows(plan, "2 segments, on cpu", "0 to 1", "compile")
    if "conv" in str(report):
        shows(plan, "conv, relu", "whole model under eager: 1 ms")


def test_a_certificate():
    path = ROOT / "udfs" / "corem" / "erf" / "erf.float32.certificate.json"
    shows(
        prove.load_certificate(path),
        "corem erf float32",
        "array, avx2, denormals flushed",
        "4,294,967,296",
        "Nothing contradicts the claim of 0.5 ULP.",
    )
