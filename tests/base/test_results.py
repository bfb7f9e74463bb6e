# SPDX-License-Identifier: Apache-2.0
"""What every result can do, and what print and notebooks show of some of them."""

from __future__ import annotations

import ast
import importlib
import json
import math
from functools import cache
from pathlib import Path

import pytest
import torch
from counts import META, Recorder, net
from package_nodes import PACKAGE, nodes
from torch import nn

from pytest_udftorch import patched, prove
from pytest_udftorch.base.result import Result
from pytest_udftorch.diagnose.blame.result import Blame, Cause
from pytest_udftorch.diagnose.blame.trial import Outcome
from pytest_udftorch.diagnose.diff.compiler_bisection import UNCOMPILED, Bisection, ResultError
from pytest_udftorch.diagnose.diff.origin import Origin
from pytest_udftorch.diagnose.diff.result import Difference, Finding, LayerDistance
from pytest_udftorch.diagnose.golden.check import Judgement
from pytest_udftorch.diagnose.runs.switch import Unit
from pytest_udftorch.diagnose.sensitivity.digits import Bits
from pytest_udftorch.diagnose.sensitivity.result import Digits, Sensitivity
from pytest_udftorch.diagnose.tolerance.result import Need, Tolerance
from pytest_udftorch.measure import (
    Comparison,
    Equivalence,
    GraphReport,
    LayerReport,
    Plan,
    Timing,
    by_size,
    model_pair,
)
from pytest_udftorch.measure.planning.plans import StoredPlan
from pytest_udftorch.measure.planning.roofline import Ceilings
from pytest_udftorch.measure.rewrite.taso.emitted import Emission
from pytest_udftorch.measure.rewrite.taso.generator import Funnel
from pytest_udftorch.measure.timing.gpu_state import GpuState
from pytest_udftorch.measure.timing.layers import Layer, LayerRow
from pytest_udftorch.measure.timing.operators import OperatorTiming, OperatorTimings, Quartiles
from pytest_udftorch.prove.verify.quick_sample import Sample, Stratum
from pytest_udftorch.prove.verify.repetition import Repeated
from pytest_udftorch.reproduce.agreement.result import Outcome as Way
from pytest_udftorch.reproduce.agreement.result import Sameness
from pytest_udftorch.reproduce.order.invariance import Invariance
from pytest_udftorch.swap.contract.outside import Outside
from pytest_udftorch.swap.observe.layers import Place
from pytest_udftorch.swap.reach.coverage import Coverage, CoverageRow
from pytest_udftorch.swap.records.profile import Profile
from pytest_udftorch.watch.compare.change import compare
from pytest_udftorch.watch.compare.figures import Figures

ROOT = Path(__file__).parents[2]

#: Classes whose ``text()`` is a program.
WRITERS = {"swap.cpu.c_source._Body", "measure.rewrite.fusion.rows._Writer"}


@cache
def classes():
    """Return module and name of every class of the package, with its definition."""
    found = {}
    for path, node in nodes():
        if isinstance(node, ast.ClassDef):
            module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
            found[f"{module}.{node.name}"] = node
    return found


def methods(node):
    """Return the functions of a class, with the names that it gives to other functions."""
    names = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    targets = (t for n in node.body if isinstance(n, ast.Assign) for t in n.targets)
    return names | {t.id for t in targets if isinstance(t, ast.Name)}


def result_classes():
    for name, node in classes().items():
        if any(isinstance(base, ast.Name) and base.id == "Result" for base in node.bases):
            module, _, own = name.rpartition(".")
            yield getattr(importlib.import_module(f"pytest_udftorch.{module}"), own)


PLAN = StoredPlan(
    ((0, 2, "compile"), (2, 3, "eager")), (0, 1, 2, 3), "f00", ("float32[2, 4]",), "cpu", "2.15",
    False, {},
)  # fmt: skip


@cache
def examples():
    """Return a result of every class."""
    recorder = Recorder()
    net(recorder, scale=40)
    profile = Profile.from_arrays(
        recorder.strings, {"clocks": recorder.clocks, **META}, cells=recorder.cells,
        operators=recorder.operators, events=recorder.events,
    )  # fmt: skip
    pair = model_pair(nn.Linear(2, 2).eval(), torch.ones(1, 2), ["eager"])
    timing = Timing("eager", "cpu", (1e6,) * 12)
    row = LayerRow(Layer("0", "Linear"), (1e3,) * 12)
    outside = Outside()
    outside.note("aten::grid_sampler_2d", "it is not in it")
    quartiles = Quartiles(1.0, 2.0, 3.0)
    operator = OperatorTiming("exp", "stock", quartiles, quartiles)
    figures = [
        Figures(n, "bench", {("exp",): {"time": {"ns": t}}}) for n, t in (("a", 1), ("b", 2))
    ]
    outcome, unit = Outcome("1.5", "00", 1.5), Unit("exp", "0", "aten::_softmax")
    bits = Bits(12.5, 12.0, 13.0, 11.0)
    digits = Digits("aten::sub.Tensor", Place("0", "forward", 0), 3, bits, bits)
    finding = Finding("operator", "aten::exp", Place("0", "forward", 0), (1, 1))
    need = Need("exp", "0", "ladder-8", 9, 0.6, 0.5)
    layers = (LayerDistance("0", (1, 2), 0.5),)
    found = [
        patched("corem", functions=("exp",)), profile, *profile.rows("function", "dtype", "device"),
        profile.first("inf"), pair, pair.members["eager"], pair.members["eager"].accuracy, timing,
        Comparison({"eager": timing}), row, LayerReport("layer timing", (row,), timing), Plan(PLAN),
        GpuState(sm_mhz=1500.0, reasons=("idle",)), Ceilings(1e9, 1e9, 1e9, math.inf),
        Funnel(1, 2, 3, 4, 5, 6, 7),
        Emission("matrices", Funnel(1, 2, 3, 4, 5, 6, 7), 1, 2, 3, 4),
        GraphReport("udf_templates"), by_size(nn.Linear(2, 2).eval()),
        Equivalence((), 1, 1, 1, 2, 7, 1), outside,
        OperatorTimings("corem", (operator,), {}, 1, 4, 1),
        Coverage((CoverageRow("aten::exp", "float32", 1, {"exp": 2}, {"exp": 2.0}),), {}, 1),
        prove.load_certificate(ROOT / "udfs" / "corem" / "erf" / "erf.float32.certificate.json"),
        Sample("corem exp", 0.5, (Stratum("random", 9, 0, 0, 0.5, "0x0"),)), Repeated("exp", True),
        Sameness("a.py:make", "float32", ("std",), ("batch 1",), {"std": {"batch 1": Way(())}}, 4),
        compare(figures), Invariance("trees", "", 3), Judgement(0.5, True, "cpu"), bits, digits,
        Blame("metric", ("std", "corem"), outcome, outcome, 3, (Cause((unit,), outcome),), outcome,
              True, 7),
        Sensitivity("exp", 4, 0.95, {"output": bits}, (digits,), (digits,)),
        Tolerance((need,), ("corem", "ladder-8"), 1.0, 1.0, 0.1,
                  None, 5),
        Origin("nan", "aten::log", Place("0", "forward", 0), 3, (1, 2), (0,), -1.0), finding,
        Difference("a", "b", (finding,), {"a": True}, (3, 3), 1, layers=layers),
    ]  # fmt: skip
    return {type(one): one for one in found}


def test_every_class_that_shows_itself_is_a_result():
    shown = {"document", "text", "_shown", "_repr_html_"}
    for name, node in classes().items():
        if shown & methods(node) and name not in {*WRITERS, "base.result.Result"}:
            assert any(getattr(b, "id", "") == "Result" for b in node.bases), name
            assert "document" in methods(node), name
            assert {"text", "_shown"} & methods(node), name
    # Negative control: there are such classes.
    assert len(list(result_classes())) > 30


def test_no_function_has_a_name_of_other_protocols():
    for path, node in nodes():
        if isinstance(node, ast.FunctionDef):
            assert node.name not in {"to_json", "to_dict", "to_csv", "to_parquet"}, path


@pytest.mark.parametrize("kind", list(result_classes()), ids=lambda kind: kind.__name__)
def test_a_result_is_text_a_document_and_html(kind):
    one = examples()[kind]
    assert isinstance(one, Result)
    assert one.text()
    assert str(one) == one.text()
    assert repr(one).startswith(f"<{kind.__name__} ")
    assert "\n" not in repr(one)
    assert len(repr(one)) < 200
    assert one._repr_html_().startswith("<div>")
    document = one.document()
    assert type(document) is dict
    assert json.loads(json.dumps(document, allow_nan=False))


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
        {
            "uniform": {"compile": 2e6, "eager": 1e6},
            "layers": [["conv", "conv"], ["relu", "relu"], ["fc", "fc"]],
        },
        {"uniform": {"eager": "soon"}, "layers": 3},
        {},
    ],
)
def test_a_plan(report):
    stored = StoredPlan(
        ((0, 2, "compile"), (2, 3, "eager")), (0, 1, 2, 3), "f00", ("float32[2, 4]",), "cpu",
        "2.15", False, report,
    )  # fmt: skip
    plan = Plan(stored)
    shows(plan, "2 segments are the fastest that was found. On cpu", "0 to 1", "compile")
    if "conv" in str(report):
        shows(plan, "conv to relu", "whole model under eager: 1 ms")


def test_a_certificate():
    path = ROOT / "udfs" / "corem" / "erf" / "erf.float32.certificate.json"
    shows(
        prove.load_certificate(path),
        "corem erf float32",
        "array, avx2, denormals flushed",
        "4,294,967,296",
        "Nothing contradicts the claim of 0.5 ULP.",
    )


# The first line ----------------------------------------------------------------------------

UNIT = Unit("exp", "net", "aten::exp")
OTHER = Unit("log", "head", "aten::log")


def blame_of(*causes, proved=True):
    outcome = Outcome("1", "d")
    return Blame("t.py:f", ("std", "corem"), outcome, outcome, 9, causes, outcome, proved, 5)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (blame_of(Cause((UNIT,), Outcome("1", "d"))),
         "One cause: exp in net, aten::exp, from corem; without it nothing differs."),
        (blame_of(Cause((UNIT, OTHER), Outcome("1", "d"))),
         "One cause: exp in net, aten::exp and 1 more, from corem; without it nothing differs."),
        (blame_of(Cause((UNIT,), Outcome("1", "d")), Cause((OTHER,), Outcome("1", "d"))),
         "2 causes: exp in net, aten::exp and 1 more, from corem; without them nothing differs."),
        (blame_of(Cause((UNIT,), Outcome("1", "d")), proved=False),
         "One cause, and there are more: exp in net, aten::exp, from corem."),
        (blame_of(Cause((UNIT,), Outcome("1", "d"), minimal=False)),
         "One cause (the smallest set is not known): exp in net"),
        (blame_of(proved=False), "No cause was found: with all from corem, 1."),
    ],
)  # fmt: skip
def test_blame_begins_with_the_answer(found, says):
    assert found.text().startswith(says)
    assert found.document()["verdict"] == found.verdict()


@pytest.mark.parametrize(
    ("library", "value", "held_out", "says"),
    [
        ("ladder-8", 1.0, None, "1 of 1 functions in layers can be cheaper than corem, which saves "
         "50% of the functions' time; the metric stays within 0.5.\n"),
        ("ladder-8", 1.0, (1.0, 1.2), "stays within 0.5 on held-out data too.\n"),
        ("ladder-8", 2.0, None, "but that does NOT hold: the metric leaves the bound of 0.5.\n"),
        ("ladder-8", 1.0, (1.0, 9.0), "but that does NOT hold: the metric leaves the bound"),
        ("corem", 1.0, None, "0 of 1 functions in layers can be cheaper than corem"),
    ],
)  # fmt: skip
def test_tolerance_begins_with_the_answer(library, value, held_out, says):
    needs = (Need("exp", "net", library, 8, 2.0, 1.0),)
    found = Tolerance(needs, ("corem", "ladder-8"), 1.0, value, 0.5, held_out, 3)
    assert says in found.text().partition("\n")[0] + "\n"


@pytest.mark.parametrize(
    ("bisection", "says"),
    [
        (Bisection("b", "Inductor", operators=("aten::gelu", "aten::exp")),
         "The compiler: aten::gelu and 1 more makes the difference."),
        (Bisection("b", "Inductor", settings=("no fusion",)),
         "The compiler: no fusion removes the difference."),
        (Bisection("b", "Inductor", errors={"output": ResultError(1e-7, 3e-7)}),
         "The compiler: Inductor makes the difference; 1e-07 (a) and 3e-07 (b) of the norm from"),
        (Bisection("b", UNCOMPILED), "Not the compiler: the sides differ without it, too."),
    ],
)  # fmt: skip
def test_a_compiled_difference_begins_with_the_answer(bisection, says):
    found = Difference("a", "b", (Finding("compiled"),), {"a": True}, (0, 0), compiled=bisection,
                       results={"output": 1e-7})  # fmt: skip
    assert found.text().startswith(says)


def test_coverage_begins_with_the_answer_and_names_what_is_left():
    row = CoverageRow("aten::ndtri", "float32", 1, {"log": 10}, {"log": 0.0}, ("no symbol",))
    full = CoverageRow("aten::exp", "float32", 1, {"exp": 30}, {"exp": 30.0})
    said = Coverage((full, row), operators=2).text()
    assert said.startswith(
        "75.00 % of 40 evaluations are swapped; aten::ndtri keeps most of the rest"
    )
    said = Coverage((full,), operators=1).text()
    assert said.startswith("100 % of 30 evaluations are swapped; 1 different operators")
    said = Coverage((), {"aten::_sparse_softmax": ("exp",), "aten::_to_sparse": ()}, 2).text()
    assert said.startswith(
        "No evaluation was counted; what aten::_sparse_softmax evaluates is not known; 2 different"
    )


@pytest.mark.parametrize(
    ("segments", "report", "says"),
    [
        (2, {"fresh_speedup": [1.238, 1.2, 1.3], "best_uniform": "compile"},
         "2 segments are the fastest that was found, 1.24 times as fast as the best single "
         "executor, compile."),
        (2, {"fresh_speedup": "soon", "best_uniform": 3}, "2 segments are the fastest that was"),
        (1, {}, "compile alone is the fastest that was found."),
    ],
)  # fmt: skip
def test_a_plan_begins_with_the_answer(segments, report, says):
    cut = ((0, 2, "compile"), (2, 3, "eager"))[:segments]
    stored = StoredPlan(cut, (0, 1, 2, 3), "f", ("float32[2]",), "cpu", "2.15", False, report)
    assert Plan(stored).text().startswith(says)
