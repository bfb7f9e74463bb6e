# SPDX-License-Identifier: Apache-2.0
import functools
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from pytest_udftorch import errors
from pytest_udftorch.measure.timing import device, timers
from pytest_udftorch.measure.timing import statistics as samples

#: Calls here take the time that they sleep, and nothing else does.
pytestmark = pytest.mark.usefixtures("clock")


def busy(steps):
    """A call that takes so many steps of 50 ns."""
    return lambda: time.sleep(steps * 50e-9)


def test_runs_rounds_and_warmup_are_what_was_asked_for():
    calls = []
    timer = timers.SyncTimer("cpu", runs=7, rounds=3, warmup=2)
    timing = timer.time(lambda: calls.append(1), "counted")
    # A settling call opens each run.
    assert len(calls) == 2 + 7 * (1 + 3)
    assert len(timing.wall_ns) == len(timing.empty_ns) == 7
    assert timing.event_ns == timing.launch_ns == ()
    assert timing.runs_ns == timing.wall_ns


def test_defaults_are_twenty_runs_of_ten_rounds():
    timer = timers.sync_timer()
    assert (timer.options.runs, timer.options.rounds, timer.device.type) == (20, 10, "cpu")


def test_contenders_take_turns_and_the_order_changes():
    order = []
    contenders = {name: (lambda name=name: order.append(name)) for name in "abc"}
    timers.SyncTimer("cpu", runs=8, rounds=1, warmup=0).compare(contenders)
    turns = ["".join(dict.fromkeys(order[k : k + 6])) for k in range(0, len(order), 6)]
    assert len(turns) == 8
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) > 1


def test_more_work_is_told_from_less():
    timer = timers.SyncTimer("cpu", runs=8, rounds=5, warmup=1)
    timed = timer.compare({"little": busy(200), "much": busy(200_000)})
    assert timed.verdict("little", over="much") == "faster"
    assert timed.verdict("much", over="little") == "slower"
    assert timed.fastest == "little"
    assert timed.speedup("little", over="much").low > 1
    assert not timed["much"].below_noise


def test_empty_call_is_below_the_noise():
    timed = timers.SyncTimer("cpu", runs=20, rounds=20).compare({"nothing": timers._nothing})
    assert timed["nothing"].below_noise
    assert any("below the noise" in caveat for caveat in timed["nothing"].caveats)
    assert timed["nothing"].document()["caveats"] == timed["nothing"].caveats


def test_too_few_runs_give_no_verdict():
    timed = timers.SyncTimer("cpu", runs=2, rounds=1).compare({"a": busy(10), "b": busy(9999)})
    assert timed.verdict("a", over="b") == "too few runs"
    assert any("no verdict" in caveat for caveat in timed["a"].caveats)


def test_outputs_live_until_the_run_is_over():
    class Output:
        alive = 0
        most = 0

        def __init__(self):
            Output.alive += 1
            Output.most = max(Output.most, Output.alive)

        def __del__(self):
            Output.alive -= 1

    timers.SyncTimer("cpu", runs=2, rounds=5, warmup=0).time(Output)
    assert Output.most == 6
    assert Output.alive == 0


def test_what_belongs_together_takes_its_turns_side_by_side():
    order = []
    names = ["a", "b", "c", "d"]
    calls = {name: functools.partial(order.append, name) for name in names}
    timer = timers.SyncTimer("cpu", runs=40, rounds=1, warmup=0)
    timed = timer.compare(calls, together=[("b", "d")])
    # A turn is a settling call and one round.
    runs = ["".join(order[n : n + 8 : 2]) for n in range(0, len(order), 8)]
    assert len(runs) == 40
    assert all("bd" in run or "db" in run for run in runs)
    assert {"bd" in run for run in runs} == {True, False}
    assert {run[0] for run in runs} == set(names)
    assert list(timed.timings) == names


def test_interrupted_measurement_keeps_its_complete_runs():
    def stop(done, _runs, _text):
        if done == 7:
            raise KeyboardInterrupt

    timed = timers.SyncTimer("cpu", runs=20, rounds=1, progress=stop).compare({"a": busy(10)})
    assert timed.interrupted
    assert len(timed["a"].wall_ns) == 7
    assert timed.document()["interrupted"] is True


def test_interruption_between_two_entries_of_a_run_leaves_pairs(monkeypatch):
    entered = []

    def median(values):
        entered.append(values)
        if len(entered) == 8:
            raise KeyboardInterrupt
        return samples.median(values)

    monkeypatch.setattr(timers, "median", median)
    timed = timers.SyncTimer("cpu", runs=20, rounds=1).compare({"a": busy(10), "b": busy(10)})
    monkeypatch.undo()
    assert timed.interrupted
    assert [len(timed[name].wall_ns) for name in "ab"] == [2, 2]
    assert len(timed["a"].empty_ns) == 2
    with pytest.raises(KeyboardInterrupt):
        timed.complete()


def test_interruption_before_the_first_run_is_passed_on():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        timers.SyncTimer("cpu", warmup=1).compare({"a": stop})


def test_wall_clock_shorter_than_the_events_is_called_out():
    """What a timer that does not wait reads on CUDA; tests/gpu holds the real one."""
    asynchronous = timers.Timing("a", "cuda", (10.0,) * 8, (900.0, 901.0) * 4, (9.0,) * 8)
    waiting = timers.Timing("a", "cuda", (950.0,) * 8, (900.0, 901.0) * 4, (9.0,) * 8)
    assert asynchronous.under_reports
    assert any("before the device had finished" in c for c in asynchronous.caveats)
    assert not waiting.under_reports


def test_device_description_names_versions_and_flags():
    found = device.describe_device("cpu")
    assert found["versions"]["torch"] == torch.__version__
    assert found["machine"]["cpu"]
    assert found["machine"]["torch_capability"] == torch.backends.cpu.get_cpu_capability()
    assert "cudnn.benchmark" in found["flags"]


def test_torchvision_is_named_without_being_loaded(tmp_path, monkeypatch):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('no such operator')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    found = device.describe_device("cpu")["versions"]
    assert found["torchvision"] == version("torchvision")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [p for p in sys.path if not Path(p, "torchvision").is_dir()])
        assert "torchvision" not in device.describe_device("cpu")["versions"]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: timers.SyncTimer("cpu", runs=0), errors.MeasureError, "runs=0"),
        (lambda: timers.SyncTimer("cpu", rounds=2.5), errors.MeasureError, "whole numbers"),
        (lambda: timers.SyncTimer("cpu", flush_l2=True), errors.MeasureError, "none on cpu"),
        (lambda: timers.SyncTimer("cpu", seconds=0), errors.MeasureError, "above 0"),
        (lambda: timers.sync_timer("cpu", round=3), errors.MeasureError, "'rounds'"),
        (lambda: timers.SyncTimer("abacus"), errors.MeasureError, "Use cpu or cuda"),
        (lambda: timers.SyncTimer({}), errors.MeasureError, "Use cpu or cuda"),
        (lambda: timers.SyncTimer(2**63), errors.MeasureError, "Use cpu or cuda"),
        (lambda: timers.SyncTimer("meta"), errors.MeasureError, "cannot be timed"),
        (lambda: timers.SyncTimer("cpu").compare({}), errors.MeasureError, "nothing to time"),
        (
            lambda: timers.SyncTimer("cpu", runs=1).compare({"abc": busy(1)})["abd"],
            errors.MeasureError,
            "'abc'",
        ),
        (lambda: timers.SyncTimer("cpu").time(3), errors.MeasureError, "without arguments"),
        (
            lambda: timers.SyncTimer("cpu").compare([busy(1)]),
            errors.MeasureError,
            "{name: callable}",
        ),
        (
            lambda: timers.SyncTimer("cpu").compare({"a": busy(1)}, together=[("a", "b")]),
            errors.MeasureError,
            "'b', which is not a contender",
        ),
        (
            lambda: timers.SyncTimer("cpu").compare({"a": busy(1)}, together=[("a", "a")]),
            errors.MeasureError,
            "'a', which .* twice",
        ),
        (
            lambda: timers.SyncTimer("cpu").compare({"a": busy(1), "b": busy(1)}, together="ab"),
            errors.MeasureError,
            "groups of names",
        ),
        (
            lambda: samples.median(()),
            errors.MeasureError,
            "at least one",
        ),
    ],
)
def test_errors_say_what_to_do(call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_asked_for_and_absent_says_so():
    with pytest.raises(errors.DeviceMissingError, match="CUDA was asked for"):
        timers.sync_timer("cuda")


def test_a_timer_ends_after_its_seconds_with_whole_runs():
    calls = {name: lambda: time.sleep(0.02) for name in ("one", "other")}
    timer = timers.SyncTimer("cpu", runs=1000, rounds=1, warmup=0, seconds=0.2)
    found = timer.compare(calls)
    counts = {len(t.runs_ns) for t in found.timings.values()}
    assert len(counts) == 1
    assert 1 <= counts.pop() < 1000
    assert not found.interrupted
    soon = timers.SyncTimer("cpu", runs=9, rounds=1, warmup=0, seconds=1e-9).compare(calls)
    assert {len(t.runs_ns) for t in soon.timings.values()} == {1}
