# SPDX-License-Identifier: Apache-2.0
import contextlib
import time

import pytest
import torch
from torch import nn

from pytest_udftorch import errors
from pytest_udftorch.errors import MeasureError
from pytest_udftorch.measure.timing import layers


class Sleep(nn.Module):
    """A layer whose time is known."""

    def __init__(self, milliseconds):
        super().__init__()
        self.seconds = milliseconds / 1e3

    def forward(self, x):
        time.sleep(self.seconds)
        return x + 1


class Branching(nn.Module):
    """Shared, never called, and work outside of any layer."""

    def __init__(self):
        super().__init__()
        self.shared = Sleep(1)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        time.sleep(0.002)
        return {"out": (self.shared(self.shared(x)), x)}


INPUT = (torch.zeros(2),)

#: Layers here take the time that they sleep, and nothing else does.
pytestmark = pytest.mark.usefixtures("clock")


def test_layers_are_found_in_the_order_of_their_calls():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    found, notes = layers.find_layers(model, INPUT)
    assert [layer.name for layer in found] == ["0", "1.0", "1.1"]
    assert [layer.kind for layer in found] == ["Linear", "ReLU", "Linear"]
    assert notes == []


def test_shared_and_never_called_layers_are_said():
    found, notes = layers.find_layers(Branching(), INPUT)
    assert [layer.name for layer in found] == ["shared", "shared#2"]
    assert any("unused" in note and "never called" in note for note in notes)
    assert any("more than once: shared" in note for note in notes)


def test_layer_times_rank_layers_and_stay_below_the_whole():
    model = nn.Sequential(Sleep(1), Sleep(80), Sleep(20))
    report = layers.layer_times(model, INPUT, runs=3, rounds=2, warmup=1)
    times = [row.median_ns for row in report.rows]
    assert times[0] < times[2] < times[1]
    runs = [sum(row.runs_ns[k] for row in report.rows) for k in range(3)]
    assert report.arr_sum_ns == sorted(runs)[1]
    assert report.document()["layers"][1]["name"] == "1"


def test_what_happens_outside_of_layers_is_missing_from_the_sum():
    report = layers.layer_times(Branching(), INPUT, runs=15, rounds=2, warmup=1)
    assert report.share < 0.8
    subtracted = layers.layer_subtraction(Branching(), INPUT, runs=3, rounds=2, warmup=1)
    # Two milliseconds lie before the first layer's entry, so subtraction leaves them out too.
    assert subtracted.share < 0.8


def test_subtraction_counts_work_between_layers():
    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Sleep(1), Sleep(1)

        def forward(self, x):
            x = self.first(x)
            time.sleep(0.004)
            return self.second(x)

    report = layers.layer_subtraction(Between(), INPUT, runs=5, rounds=2, warmup=1)
    first, second, after = (row.median_ns for row in report.rows)
    assert second > 2 * first > 2 * after
    assert report.rows[-1].layer.name == "(after the last layer)"
    assert report.rows[0].interval_ns.low <= first <= report.rows[0].interval_ns.high


def test_layers_may_be_called_as_the_prefixes_are():
    model = nn.Sequential()
    model.add_module("end", Sleep(1))
    model.add_module("entry", Sleep(3))
    report = layers.layer_subtraction(model, INPUT, runs=5, rounds=2, warmup=0)
    assert [row.layer.name for row in report.rows[:2]] == ["end", "entry"]
    first, second, after = (row.median_ns for row in report.rows)
    assert second > 2 * first > 2 * after


def test_subtraction_leaves_no_hook_behind():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    layers.layer_subtraction(model, INPUT, runs=1, rounds=1, warmup=0)
    layers.layer_times(model, INPUT, runs=1, rounds=1, warmup=0)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failing_pass_leaves_no_hook_behind(error):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu, self.tanh, self.left = nn.ReLU(), nn.Tanh(), 3

        def forward(self, x):
            self.left -= 1
            if not self.left:
                raise error
            return self.tanh(self.relu(x))

    model = Fails()
    with pytest.raises(error):
        layers.layer_subtraction(model, INPUT, runs=2, rounds=2, warmup=0)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    model(*INPUT)


def test_subtraction_passes_through_a_model_that_catches_errors():
    class Catches(nn.Module):
        def __init__(self):
            super().__init__()
            self.sleep, self.relu = Sleep(2), nn.ReLU()

        def forward(self, x):
            try:
                x = self.relu(x)
            except Exception:
                x = x.clone()
            return self.sleep(x)

    report = layers.layer_subtraction(Catches(), INPUT, runs=3, rounds=3, warmup=0)
    assert [row.layer.name for row in report.rows[:2]] == ["relu", "sleep"]
    assert report.rows[0].median_ns < report.rows[1].median_ns


@pytest.mark.parametrize("method", ["layer_times", "layer_subtraction", "instrument_overhead"])
def test_one_tensor_needs_no_tuple(method):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    getattr(layers, method)(model, torch.zeros(3, 2), runs=1, rounds=1)
    assert len(layers.layer_profile(model, torch.zeros(3, 2), passes=1)) == 2


def test_hooks_of_the_model_are_kept_and_named():
    model = nn.Sequential(nn.Linear(2, 2), Sleep(1))
    seen = []
    model[1].register_forward_hook(lambda *_: (time.sleep(0.02), seen.append(1))[0])
    report = layers.layer_times(model, INPUT, runs=3, rounds=1, warmup=0)
    assert seen
    assert report.notes == ("hooks of the model's own, outside of the layers' times: 1",)
    # The model's own hook sleeps longer than the layer and is not counted as the layer.
    assert report.rows[1].median_ns < 0.5 * report.end_to_end.median_ns


def test_compiled_region_is_one_opaque_layer_and_said():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    model[1] = torch.compile(model[1], backend="eager")
    report = layers.layer_times(model, INPUT, runs=1, rounds=1, warmup=1)
    assert [row.layer.name for row in report.rows] == ["0", "1"]
    assert any("torch.compile" in note for note in report.notes)


def test_model_without_layers_is_refused():
    class Nothing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.ReLU())

        def forward(self, x):
            return x

    with pytest.raises(errors.MeasureError, match="end to end"):
        layers.layer_times(Nothing(), INPUT)


@pytest.mark.parametrize("method", [layers.layer_times, layers.layer_subtraction])
def test_path_that_changes_between_passes_is_refused(method):
    class Turns(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 1
            self.relu, self.tanh = nn.ReLU(), nn.Tanh()

        def forward(self, x):
            self.calls += 1
            return self.relu(x) if self.calls % 2 else self.tanh(self.relu(x))

    with pytest.raises(errors.MeasureError, match="different layers"):
        method(Turns(), INPUT, runs=1, rounds=2, warmup=0)


def test_profiler_data_ranks_layers_by_host_time():
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU())
    rows = layers.layer_profile(model, (torch.zeros(256, 512),), passes=3)
    assert [row.layer.name for row in rows] == ["0", "1"]
    assert rows[0].cpu_self_ns > rows[1].cpu_self_ns > 0
    assert rows[0].cuda_total_ns == rows[0].cuda_self_ns == 0


def test_instruments_cover_all_eight_and_hooks_are_gone_after():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    found = layers.instrument_overhead(model, (torch.zeros(4),), runs=2, rounds=2)
    assert list(found) == [
        *layers.INSTRUMENTS,
        *(f"{name}, profiled" for name in layers.INSTRUMENTS),
    ]
    assert all(len(timing.wall_ns) == 2 for timing in found.values())
    assert all(not m._forward_hooks for m in model.modules())


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))

    def forward(self, x):
        return self.linear(self.attention(x, x, x, need_weights=False)[0])


def test_a_module_that_reads_its_children_and_calls_none_is_a_layer():
    found, notes = layers.find_layers(Attends().eval(), torch.zeros(1, 5, 8))
    assert [(layer.name, layer.kind) for layer in found] == [
        ("attention", "MultiheadAttention"),
        ("linear", "ParametrizedLinear"),
    ]
    assert notes == []


def test_what_hooks_change_or_do_not_reach_is_said():
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    _, notes = layers.find_layers(nn.Sequential(encoder), torch.zeros(1, 5, 8))
    assert any("fused path where hooks are" in note and note.endswith(": 0") for note in notes)
    with pytest.warns(match="is deprecated"):
        scripted = torch.jit.script(nn.ReLU())
    model = nn.Sequential(nn.Linear(2, 2), scripted)
    report = layers.layer_times(model, INPUT, runs=1, rounds=1)
    assert [row.layer.name for row in report.rows] == ["0"]
    assert any("TorchScript" in note and note.endswith(": 1") for note in report.notes)
    with pytest.raises(errors.MeasureError, match="a hook could watch"):
        layers.layer_times(scripted, INPUT)


@pytest.mark.parametrize("method", [layers.layer_times, layers.layer_subtraction])
def test_a_layer_whose_error_the_model_catches_is_timed(method):
    class Catches(nn.Module):
        def __init__(self):
            super().__init__()
            self.narrow, self.relu = nn.Linear(9, 9), nn.ReLU()

        def forward(self, x):
            with contextlib.suppress(RuntimeError):
                x = self.narrow(x)
            return self.relu(x)

    report = method(Catches(), INPUT, runs=2, rounds=2, warmup=1)
    assert [row.layer.name for row in report.rows[:2]] == ["narrow", "relu"]
    assert report.rows[0].median_ns > 0


def test_layer_times_survive_ctrl_c_with_the_complete_runs():
    class Stops(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu, self.calls = nn.ReLU(), 0

        def forward(self, x):
            self.calls += 1
            # One pass finds the layers; a run has a settling pass, a plain and a watched one.
            if self.calls == 9:
                raise KeyboardInterrupt
            return self.relu(x)

    model = Stops()
    report = layers.layer_times(model, INPUT, runs=5, rounds=1, warmup=0)
    assert len(report.rows[0].runs_ns) == len(report.end_to_end.wall_ns) == 2
    assert "interrupted after 2 of 5 runs" in report.notes
    assert not model.relu._forward_hooks
    model.calls = 7
    with pytest.raises(KeyboardInterrupt):
        layers.layer_times(model, INPUT, runs=5, rounds=1, warmup=0)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda m: layers.layer_times(m, INPUT, runs=0), MeasureError, "runs=0"),
        (lambda m: layers.layer_times(m, INPUT, warmup=-1), MeasureError, "warmup=-1"),
        (lambda m: layers.layer_profile(m, INPUT, passes=0), MeasureError, "runs=0"),
        (lambda m: layers.instrument_overhead(m, INPUT, runs=0), MeasureError, "runs=0"),
        (lambda m: layers.layer_times(m, {"x": 1}), errors.MeasureError, r"give \(inputs,\)"),
        (lambda m: layers.layer_times(m, 3), errors.MeasureError, "of type int"),
        (
            lambda m: layers.layer_profile(m.forward, INPUT),
            errors.MeasureError,
            "not an nn.Module",
        ),
        (lambda m: layers.find_layers(nn.ReLU, INPUT), errors.MeasureError, "the class ReLU"),
    ],
)
def test_wrong_arguments_are_refused(call, error, says):
    with pytest.raises(error, match=says):
        call(nn.Sequential(nn.ReLU()))
