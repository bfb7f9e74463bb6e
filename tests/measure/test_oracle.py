# SPDX-License-Identifier: Apache-2.0
import importlib.util
import subprocess
import sys
from pathlib import Path

import journals
import pytest
import torch
from torch import nn

from pytest_udftorch import errors, measure
from pytest_udftorch.errors import PlanError, UntraceableModelError
from pytest_udftorch.measure.planning import plan_search, search
from pytest_udftorch.measure.planning import segment_times as in_place
from pytest_udftorch.measure.planning.fusion import FusedConv, fuse, on_streams, schedule, trace
from pytest_udftorch.measure.planning.segments import Units

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = {"runs": 6, "rounds": 1, "max_units": 3}
INTERPRETED = ["eager", "eager+channels_last"]


class Branches(nn.Module):
    """Convolution, norm, a fork of three, a residual sum, and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.left, self.right = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(16 * 16, 5)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = self.relu(self.norm(self.stem(x)))
        forked = torch.cat([self.relu(self.left(x)), self.relu(self.right(x) + x)], 1)
        return self.head(self.pool(forked).flatten(1)[:, : 16 * 16])


@pytest.fixture
def model():
    return Branches().eval()


@pytest.fixture
def x():
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(4))


@pytest.fixture
def slow_executor():
    """Runs the model many times: a hybrid with it cannot win."""

    def make(model, inputs):
        def run(*given):
            for _ in range(50):
                result = model(*given)
            return result

        return run

    measure.register_executor(measure.Executor("slow", make))
    yield "slow"
    measure.unregister_executor("slow")


@pytest.fixture
def nothing_hopeless(monkeypatch):
    """Try every executor on units: which are too slow for that is noise for a model this small."""
    monkeypatch.setattr(search, "HOPELESS", 1e9)


def test_segments_in_a_row_are_the_model(model, x):
    units = Units(model, (x,), 4)
    assert len(units) > 1
    value = x
    for unit in range(len(units)):
        value = units.segment(unit, unit + 1)(value)
    assert torch.equal(value, model(x))
    middle = units.segment(0, len(units))
    assert torch.equal(middle(x), model(x))
    assert len(units.activations((x,))) == len(units)


def test_no_cut_parts_a_convolution_from_its_epilogue(model, x):
    units = Units(model, (x,), 100)
    first = {name.split("..")[0] for name in units.names}
    assert not first & {"norm", "relu", "relu_1", "relu_2", "add", "flatten"}


def test_fingerprint_depends_on_shapes_and_not_on_values(model, x):
    other, wider = Branches().eval(), Branches().eval()
    nn.init.zeros_(other.head.bias)
    wider.head = nn.Linear(16 * 16, 6)
    bounds = Units(model, (x,), 3).bounds
    same = Units(model, (x,), bounds=bounds).fingerprint
    assert Units(other, (x,), bounds=bounds).fingerprint == same
    assert Units(wider, (x,), bounds=bounds).fingerprint != same


def test_segment_outside_of_the_model_is_refused(model, x):
    with pytest.raises(PlanError, match="0 <= first < stop"):
        Units(model, (x,), 2).segment(1, 1)


def test_fusing_keeps_the_function(model, x):
    fused = fuse(model, (x,))
    sites = [m for m in fused.modules() if isinstance(m, FusedConv)]
    assert len(sites) == 3
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules())
    torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-5)
    for site in sites:
        site.fused = False
    torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-5)


def test_a_convolution_that_is_added_to_itself_is_not_fused(x):
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            y = self.conv(x)
            return (y + y).relu()

    model = Doubled().eval()
    fused = fuse(model, (x,))
    assert not any(isinstance(m, FusedConv) for m in fused.modules())
    assert torch.equal(fused(x), model(x))


def test_streams_keep_the_function_and_part_the_branches(model, x):
    streamed = on_streams(trace(model))
    assert torch.equal(streamed(x), model(x))
    lanes = schedule(trace(Branches().eval()))
    by_name = {node.name: lane for node, lane in lanes.items()}
    assert by_name["left"] != by_name["right"]


def test_activation_in_place_does_not_reach_another_branch(x):
    class Reads(nn.Module):
        def forward(self, x):
            y = x * 2
            return torch.relu_(y) + 1, y

    model = Reads().eval()
    with torch.no_grad():
        assert all(map(torch.equal, on_streams(trace(model))(x)[:1], model(x)[:1]))


def test_plan_is_found_applied_kept_and_read_again(model, x, tmp_path, nothing_hopeless):
    said = []
    plan = measure.oracle(
        model, x, executors=INTERPRETED, progress=lambda *step: said.append(step), **QUICK
    )
    assert any("takes about as long" in text for _, _, text in said)
    report = plan.report
    assert set(report["uniform"]) == set(INTERPRETED)
    assert set(report["plans"]) >= {
        "layer-timed oracle",
        "profiler-timed oracle",
        "best of two runs",
        "greedy",
        "thesis programme",
    }
    assert set(report["unit_profiled_ns"]) == set(INTERPRETED)
    assert all(ns > 0 for row in report["unit_profiled_ns"].values() for ns in row)
    assert report["unit_bound_profiled_ns"] > 0
    assert report["roofline_ns"] > 0
    assert set(report["regret_over_roofline"]) == set(report["regret"])
    assert report["unit_bound_ns"] <= min(map(sum, report["unit_ns"].values()))
    assert set(report["regret"]) >= {"best uniform", "greedy"}
    plan.save(tmp_path / "plan.json")
    loaded = measure.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    torch.testing.assert_close(loaded.apply(model, (x,))(x), model(x), rtol=1e-5, atol=1e-5)
    other = Branches().eval()
    nn.init.zeros_(other.head.weight)
    torch.testing.assert_close(loaded.apply(other, (x,))(x), other(x), rtol=1e-5, atol=1e-5)


def test_hybrid_that_loses_is_replaced_by_the_uniform_executor(
    model, x, slow_executor, nothing_hopeless
):
    """Negative control: a search misled by wrong unit times must not reach the user."""
    real = in_place.SegmentBench.time_in_place

    def misled(self, segments, runs):
        times = real(self, segments, runs)
        return [
            1.0 if name == slow_executor else t
            for t, (_, _, name) in zip(times, segments, strict=True)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_place.SegmentBench, "time_in_place", misled)
        plan = measure.oracle(model, x, executors=["eager", slow_executor], **QUICK)
    assert any(name == slow_executor for *_, name in plan.report["plans"]["ours"])
    assert plan.uniform == "eager"
    assert plan.report["replaced_by"] == "eager"
    assert torch.equal(plan.apply(model, (x,))(x), model(x))


REWRITING = ["eager", "udf_templates", "udf_pet", "udf_fusion", "udf_tiled"]
if importlib.util.find_spec("z3") is not None:
    REWRITING += ["udf_taso"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "lured"),
    [(["eager", "udf_fusion"], True), (REWRITING, True), (REWRITING, False)],
)
def test_plans_with_rewriting_executors_are_no_slower_than_the_best_uniform_one(
    model, x, names, lured, nothing_hopeless
):
    """Lured: the rewriting executors seem to take no time on units, so that a hybrid is tried."""
    real = in_place.SegmentBench.time_in_place

    def misled(self, segments, runs):
        times = real(self, segments, runs)
        named = zip(times, segments, strict=True)
        return [1.0 if lured and name.startswith("udf") else t for t, (_, _, name) in named]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_place.SegmentBench, "time_in_place", misled)
        plan = measure.oracle(model, x, executors=names, **QUICK)
    report = plan.report
    assert set(report["uniform"]) == set(names)
    assert set(report["unit_ns"]) == set(names)
    if lured:
        assert all(name.startswith("udf") for *_, name in report["plans"]["ours"])
    fresh = {n: t["median_ns"] for n, t in report["fresh_measurement"]["timings"].items()}
    least = min(ns for name, ns in fresh.items() if name != "plan")
    if plan.uniform is None:
        assert report["fresh_verdict"] == "faster"
        assert fresh["plan"] < least
    else:
        assert report["fresh_verdict"] != "faster"
        assert fresh[plan.uniform] == least
    torch.testing.assert_close(plan.apply(model, (x,))(x), model(x), rtol=1e-5, atol=1e-5)


def test_hopeless_executor_is_not_tried_on_units(model, x, slow_executor):
    plan = measure.oracle(model, x, executors=["eager", slow_executor], **QUICK)
    assert slow_executor in plan.report["not_tried_on_units"]
    assert slow_executor not in plan.report["unit_ns"]


def test_profiler_finds_the_unit_that_takes_long(model, x, slow_executor):
    units = Units(model, (x,), 3)
    bench = in_place.SegmentBench(units, (x,))
    plain = [(u, u + 1, "eager") for u in range(len(units))]
    slowed = [*plain[:-1], (len(units) - 1, len(units), slow_executor)]
    before, after = bench.profile_in_place(plain), bench.profile_in_place(slowed)
    assert len(before) == len(after) == len(units)
    assert after[-1] > 5 * before[-1]
    assert after[0] < 5 * before[0]


def test_opponents_are_measured_and_never_chosen(model, x):
    plan = measure.oracle(
        model, x, executors=["eager"], opponents=["fx", "thunder-profile"], **QUICK
    )
    assert "fx" in plan.report["plan_measurement"]["timings"]
    assert {name for *_, name in plan.stored.segments} == {"eager"}
    assert "fx" not in plan.report["unit_ns"]
    assert "thunder-profile" in plan.report["members"]


def test_plan_for_something_else_is_refused(model, x):
    plan = measure.oracle(model, x, executors=INTERPRETED, **QUICK)
    with pytest.raises(errors.PlanError, match="inputs"):
        plan.apply(model, (x[:1],))
    with pytest.raises(errors.PlanError, match="inputs"):
        plan.apply(model, (x.contiguous(memory_format=torch.channels_last),))
    changed = Branches().eval()
    changed.right = nn.Conv2d(8, 8, 5, padding=2)
    with pytest.raises(errors.PlanError, match="model"):
        plan.apply(changed, (x,))


def test_executor_outside_the_error_budget_is_not_used(model, x):
    def make(wrong, inputs):
        return lambda *given: wrong(*given) * 1.01

    measure.register_executor(measure.Executor("wrong", make))
    try:
        plan = measure.oracle(model, x, executors=["eager", "wrong"], **QUICK)
    finally:
        measure.unregister_executor("wrong")
    assert plan.report["members"]["wrong"]["agrees"] is False
    assert "wrong" not in plan.report["unit_ns"]
    with pytest.raises(errors.PlanError, match="error budget"):
        measure.oracle(model, x, executors=["eager"], max_ulp=0, **QUICK)


def test_model_that_cannot_be_traced_gets_the_best_uniform_executor(x):
    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return {"y": self.linear(x) if x.sum() < 1e9 else x}

    model = Flow().eval()
    with pytest.raises(UntraceableModelError, match="cannot trace Flow"):
        trace(model)
    plan = measure.oracle(model, x, executors=INTERPRETED, **QUICK)
    assert plan.uniform in INTERPRETED
    assert "cannot trace Flow" in plan.report["not_cut"]
    assert "Neither can torch.export capture it" in plan.report["not_cut"]
    assert torch.equal(plan.apply(model, (x,))(x)["y"], model(x)["y"])


def test_hooks_of_the_model_are_never_dropped(model, x):
    seen = []
    model.relu.register_forward_hook(lambda *_: seen.append("relu"))
    model.register_forward_hook(lambda _module, _inputs, output: output + 1)
    wanted = model(x)
    with pytest.raises(UntraceableModelError, match=r"hooks of its own \(the model itself, relu\)"):
        trace(model)
    plan = measure.oracle(model, x, executors=["eager", "fx"], **QUICK)
    assert "hooks of its own" in plan.report["members"]["fx"]["error"]
    assert plan.uniform == "eager"
    run = plan.apply(model, (x,))
    seen.clear()
    assert torch.equal(run(x), wanted)
    assert seen == ["relu"] * 3


class Pixels(nn.Module):
    """A LeNet's end: a view of the pixels, which channels_last does not bear."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)
        self.linear = nn.Linear(36, 5)

    def forward(self, x):
        x = self.pool(self.conv(x).relu())
        return self.linear(x.view(x.size(0), -1))


def test_a_view_that_channels_last_does_not_bear_costs_no_plan(x, nothing_hopeless, capfd):
    model, x = Pixels().eval(), x[:, :, :8, :8].contiguous()
    plan = measure.oracle(model, x, executors=INTERPRETED, **QUICK)
    assert "eager" in plan.report["unit_ns"]
    assert "view size" in plan.report["members"]["eager+channels_last"]["error"]
    torch.testing.assert_close(plan.apply(model)(x), model(x), rtol=1e-5, atol=1e-5)
    assert "Traceback" not in capfd.readouterr().err


def test_units_that_no_executor_can_run_leave_the_uniform_executor(model, x, monkeypatch):
    def fail(self, choice):
        raise RuntimeError("no region of its own")

    monkeypatch.setattr(in_place.SegmentBench, "make", fail)
    plan = measure.oracle(model, x, executors=["eager"], **QUICK)
    assert plan.uniform == "eager"
    assert "no region of its own" in plan.report["failed_on_units"]["eager"]


def test_eager_itself_can_be_outside_of_the_error_budget(model, x, nothing_hopeless):
    def make(exact, inputs):
        exact = exact.double()
        return lambda *given: exact(*(t.double() for t in given)).float()

    measure.register_executor(measure.Executor("exact", make))
    try:
        plan = measure.oracle(model, x, executors=["eager", "exact"], max_ulp=1, **QUICK)
        assert plan.report["members"]["eager"]["worst_ulp"] > 1
        assert plan.uniform == "exact"
        assert torch.equal(plan.apply(model)(x), model.double()(x.double()).float())
    finally:
        measure.unregister_executor("exact")
    assert "greedy" in plan.report["plans"]
    assert "best of two runs" not in plan.report["plans"]


def test_a_plan_is_applied_without_gradients_to_its_own_inputs(model, x, tmp_path):
    plan = measure.oracle(model, x, executors="eager", **QUICK)
    assert plan.uniform == "eager"
    for run in (plan.apply(model), plan.apply(model, x), plan.apply(model, [x])):
        assert torch.equal(run(x), model(x))
        assert not run(x).requires_grad
    plan.save(tmp_path / "plan.json")
    with pytest.raises(errors.PlanError, match=r"apply\(model, inputs\) with float32\["):
        measure.Plan.load(tmp_path / "plan.json").apply(model)


def test_a_model_of_no_operator_gets_a_plan(x):
    plan = measure.oracle(nn.Identity().eval(), x, executors="eager", **QUICK)
    assert torch.equal(plan.apply(nn.Identity())(x), x)


def test_a_plan_of_units_is_refused_for_a_model_that_cannot_be_traced(model, x):
    plan = measure.oracle(model, x, executors="eager", **QUICK)
    hooked = Branches().eval()
    hooked.register_forward_hook(lambda *_: None)
    assert len(plan.stored.bounds) > 2
    with pytest.raises(errors.PlanError, match="made for model"):
        plan.apply(hooked)


def test_inputs_within_a_dict_are_known_by_shape_and_not_by_value():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, named):
            return self.linear(named["x"])

    model = Named().eval()
    plan = measure.oracle(model, ({"x": torch.zeros(2, 4)},), executors="eager", **QUICK)
    assert plan.stored.inputs == ("{'x': float32[2, 4]}",)
    other = {"x": torch.ones(2, 4)}
    assert torch.equal(plan.apply(model, (other,))(other), model(other))
    with pytest.raises(errors.PlanError, match=r"float32\[3, 4\]"):
        plan.apply(model, ({"x": torch.ones(3, 4)},))


def test_plan_on_the_cpu_takes_other_shapes(model, x):
    plan = measure.oracle(model, x, executors=INTERPRETED, **QUICK)
    run = plan.apply(model, (x,))
    more = torch.cat([x, x + 1, x])
    torch.testing.assert_close(run(more), model(more), rtol=1e-5, atol=1e-5)


def test_interrupted_search_keeps_its_journal_and_goes_on(model, x, tmp_path, nothing_hopeless):
    journal = tmp_path / "journal.json"

    def stop(_done, _of, text):
        if "timing units under eager+channels_last" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure.oracle(model, x, executors=INTERPRETED, journal=journal, progress=stop, **QUICK)
    timed = []
    real = in_place.SegmentBench.time_in_place
    with pytest.MonkeyPatch.context() as patch:

        def spy(self, segments, runs):
            # Not the rows of joined units, which the search may go on to.
            if all(stop - first == 1 for first, stop, _ in segments):
                timed.append(segments[0][2])
            return real(self, segments, runs)

        patch.setattr(in_place.SegmentBench, "time_in_place", spy)
        plan = measure.oracle(model, x, executors=INTERPRETED, journal=journal, **QUICK)
    assert "eager" not in timed
    assert "eager+channels_last" in timed
    assert set(plan.report["unit_ns"]) == set(INTERPRETED)


def test_ctrl_c_within_a_measurement_ends_the_search(model, x):
    calls = 0

    def make(inner, inputs):
        def run(*given):
            nonlocal calls
            calls += 1
            # Making it takes one call and the warm-up five: the third run is under way.
            if calls == 12:
                raise KeyboardInterrupt
            return inner(*given)

        return run

    measure.register_executor(measure.Executor("interrupted", make))
    try:
        with pytest.raises(KeyboardInterrupt):
            measure.oracle(model, x, executors=["eager", "interrupted"], **QUICK)
    finally:
        measure.unregister_executor("interrupted")
    assert calls == 12


def test_the_journal_of_another_model_is_not_taken_over(model, x, tmp_path, nothing_hopeless):
    journal = tmp_path / "journal.json"
    measure.oracle(model, x, executors=INTERPRETED, journal=journal, **QUICK)
    head, stored = journals.payloads(journal)[0], journals.entries(journal)
    stored["unit_ns"] = {name: [1.0] * len(row) for name, row in stored["unit_ns"].items()}
    journal.write_bytes(journals.text([head, stored]))
    again = measure.oracle(model, x, executors=INTERPRETED, journal=journal, **QUICK)
    assert again.report["unit_ns"] == stored["unit_ns"]
    journal.write_bytes(journals.text([head, stored]))
    other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    plan = measure.oracle(other, x, executors=INTERPRETED, journal=journal, **QUICK)
    assert plan.report["bounds"] != stored["bounds"]
    assert all(ns > 1 for row in plan.report["unit_ns"].values() for ns in row)
    journal.write_bytes(journals.text([head, stored]))
    fewer = measure.oracle(
        model, x, executors=INTERPRETED, journal=journal, **{**QUICK, "max_units": 2}
    )
    assert len(fewer.report["bounds"]) == 3


@pytest.mark.parametrize("text", ["", "[1]", '{"weights": 1}'])
def test_a_file_that_is_no_journal_is_left_alone(model, x, tmp_path, text):
    journal = tmp_path / "mine.json"
    journal.write_text(text)
    with pytest.raises(errors.JournalError, match="is not the journal of a search"):
        measure.oracle(model, x, executors="eager", journal=journal, **QUICK)
    assert journal.read_text() == text
    with pytest.raises(errors.JournalError, match="Make it"):
        measure.oracle(model, x, executors="eager", journal=tmp_path / "no" / "j", **QUICK)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"runs": "20"}, "whole numbers"),
        ({"rounds": 0}, "at least one round"),
        ({"budget": float("nan")}, "positive"),
        ({"max_ulp": -1}, "positive"),
        ({"max_seconds": float("nan")}, "seconds, 0 or more"),
        ({"max_seconds": "600"}, "seconds, 0 or more"),
        ({"executors": [measure.Executor("own", None)]}, "executors.register"),
        ({"runs": 3}, "verdict needs"),
        ({"max_units": 0}, "one unit"),
        ({"expected_calls": 0}, "positive number"),
        ({"executors": ["eager+cudagraph"]}, "added by the oracle"),
    ],
)
def test_options_that_make_no_plan_are_refused(model, x, options, says):
    with pytest.raises(errors.PlanError, match=says):
        measure.oracle(model, x, **options)


def test_a_mistyped_executor_leaves_the_journal(model, x, tmp_path):
    journal = tmp_path / "journal.json"
    measure.oracle(model, x, executors="eager", opponents="fx", journal=journal, **QUICK)
    before = journal.read_text()
    with pytest.raises(errors.ExecutorError, match="'eager'"):
        measure.oracle(model, x, executors="eagre", journal=journal, **QUICK)
    with pytest.raises(errors.MeasureError, match=r"model\.eval"):
        measure.oracle(Branches(), x, executors="eager", journal=journal, **QUICK)
    assert journal.read_text() == before
    head, damaged = journals.payloads(journal)[0], journals.entries(journal)
    damaged["unit_ns"]["eager"].pop()
    journal.write_bytes(journals.text([head, damaged]))
    with pytest.raises(errors.JournalError, match="is damaged"):
        measure.oracle(model, x, executors="eager", opponents="fx", journal=journal, **QUICK)


def test_a_journal_that_cannot_be_written_is_an_error(model, x):
    journal = Path("/proc/journal.json")
    with pytest.raises(errors.JournalError, match="cannot be written"):
        measure.oracle(model, x, executors="eager", journal=journal, **QUICK)


class Masked(nn.Module):
    """Its trace takes the branch of a mask that is not given."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask=None):
        x = self.first(x)
        return self.second(x if mask is None else x * mask)


class MaskedByData(Masked):
    """Its trace takes the branch of a mask, and export cannot ask for the values of the input."""

    def forward(self, x, mask=None):
        return super().forward(x if mask is not None or x.sum() < 1e9 else -x, mask)


class Drifts(nn.Module):
    """Multiplies by the number of its calls."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.calls = nn.Linear(8, 8), nn.Linear(8, 8), 0

    def forward(self, x):
        self.calls += 1
        return self.second(self.first(x) * self.calls)


class Shifts(nn.Module):
    """Writes into its input."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x += 1
        return self.second(self.first(x))


@pytest.mark.parametrize(
    ("kind", "says"), [(MaskedByData, "does not run on these inputs"), (Shifts, "writes into")]
)
def test_a_model_that_cannot_be_cut_gets_the_best_uniform_executor(x, kind, says):
    model, given = kind().eval(), x.clone()
    plan = measure.oracle(model, given, executors=["eager", "fx"], **QUICK)
    assert says in plan.report["not_cut"]
    assert torch.equal(given, x)
    run = plan.apply(model)
    assert torch.equal(given, x)
    assert torch.equal(run(x.clone()), model(x.clone()))


def test_a_plan_keeps_the_state_of_the_model(x, nothing_hopeless):
    model = Drifts().eval()
    plan = measure.oracle(model, x, executors=["eager", "fx"], **QUICK)
    assert model.calls == 0
    assert plan.report["members"]["fx"]["agrees"] is False
    assert "second call differs" in plan.report["plan_problems"]["greedy"]
    run = plan.apply(model)
    run(x)
    with torch.no_grad():
        model(x)
        assert torch.equal(run(x), model(x))


def test_no_executor_within_the_budget_says_why_of_each():
    class Overflows(nn.Module):
        def forward(self, x):
            return x * 60_000 * 4 / 4

    with pytest.raises(errors.PlanError, match=r"eager: output 0: other NaNs or inf"):
        measure.oracle(Overflows().eval(), torch.ones(2, 4).half(), executors="eager", **QUICK)


def test_half_precision_is_judged_by_its_own_epsilon(x, nothing_hopeless):
    model = Branches().bfloat16().eval()
    plan = measure.oracle(model, x.bfloat16(), executors=INTERPRETED, **QUICK)
    assert plan.report["plan_problems"] == {}
    assert plan.report["plan_distances"]


def test_a_plan_of_a_model_that_was_not_cut_knows_the_dtype(x):
    plan = measure.oracle(nn.LSTM(8, 4).eval(), x[0, 0, None], executors="eager", **QUICK)
    plan.apply(nn.LSTM(8, 4).eval())
    with pytest.raises(errors.PlanError, match="made for model"):
        plan.apply(nn.LSTM(8, 4).double().eval())


# What is shown -----------------------------------------------------------------------


def test_layers_are_named_as_the_model_does(model, x):
    layers = Units(model, (x,), 4).layers
    known = {name for name, _ in model.named_modules() if name}
    named = {end for pair in layers for end in pair}
    assert {"stem", "head"} <= named
    assert all(end in known or end.endswith("()") for end in named), named
    assert not any(".." in end or "_0" in end for end in named)


def test_the_times_shown_are_those_that_decided():
    report = {
        "uniform": {"eager": 3e6, "compile": 1e6, "fx": 2e6},
        "fresh_measurement": {
            "timings": {"eager+cudagraph": {"median_ns": 5e6}, "plan": {"median_ns": 4e6}}
        },
    }
    assert plan_search._whole_times(report) == {"eager": 5e6, "compile": 1e6, "fx": 2e6}
    assert plan_search._whole_times({"uniform": "of another version"}) == {}
    assert plan_search._layers([["a", "b"], ["c", "d"]], 0, 2) == "a to d"
    assert plan_search._layers([["a", "a"]], 0, 1) == "a"
    assert plan_search._layers(None, 0, 1) == ""


def test_others_are_quiet_and_the_model_is_not():
    code = (
        "import logging, os, sys, warnings\n"
        "import torch\n"
        "from torch.profiler import ProfilerActivity, profile\n"
        "from pytest_udftorch.measure.planning.executor import without_noise\n"
        "def others():\n"
        "    text = 'import warnings; warnings.warn(\"of torch\")'\n"
        "    exec(compile(text, 'x', 'exec'), {'__name__': 'torch.some'})\n"
        "    logging.getLogger('torch.utils.cpp_extension').warning('logged by torch')\n"
        "    logging.getLogger('torch.utils.cpp_extension').error('an error of torch')\n"
        "    warnings.warn('of the model')\n"
        "    with profile(activities=[ProfilerActivity.CPU]):\n"
        "        torch.ones(3).exp()\n"
        "warnings.simplefilter('always')\n"
        "with without_noise():\n"
        "    others()\n"
        "os.write(2, b'LOUD')\n"
        "others()\n"
        "assert 'KINETO_LOG_LEVEL' not in os.environ\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    quiet, _, loud = done.stderr.partition("LOUD")
    assert "of the model" in quiet
    assert "an error of torch" in quiet
    for noise in ("UserWarning: of torch", "logged by torch", "profiler_start"):
        assert noise not in quiet
        if noise != "profiler_start":  # older torches do not write it
            assert noise in loud, "the control"
