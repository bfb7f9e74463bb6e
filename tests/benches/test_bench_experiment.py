# SPDX-License-Identifier: Apache-2.0
"""Experiments: budgets, files that resume, failures, Ctrl-C; and that the benches measure."""

from __future__ import annotations

import fcntl
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from spawned_cases import CRASHING, MANY, square
from torch import nn

from benches.experiments import (
    compile_convolutions,
    compile_layers,
    compile_matmul,
    compile_predictor,
    compile_resnet_convolutions,
    compile_transformers,
    experiment,
    single_layers,
)
from benches.experiments.blocks import one_thread
from benches.experiments.experiment import Experiment, Prepared, ProcessEndedError, ResumeError
from benches.render import experiments as render_experiments
from benches.render.bench_report import BenchFormatError
from pytest_udftorch.prove.judge.accuracy import accuracy

ROOT = Path(__file__).parents[2]


def squares(numbers, **options):
    return Experiment(
        "squares", lambda _device, _scale: [{"n": n} for n in numbers], square, **options
    )


def test_a_file_is_written_and_continued(tmp_path):
    path = tmp_path / "out.json"
    lines = []
    experiment.run(squares([1, 13, 2]), path, "cpu", "small", say=lines.append)
    document = json.loads(path.read_text())
    assert [r["case"]["n"] for r in document["rows"]] == [1, 13, 2]
    assert document["rows"][1]["error"] == "ValueError: thirteen"
    assert document["rows"][0]["speedup"]["fast"]["value"] > 0
    assert "--scale small --device cpu" in document["command"]
    assert {"cpu", "threads"} <= set(document["machine"])
    # What is done is not measured again; what failed, and what is new, is.
    lines.clear()
    experiment.run(squares([2, 1, 13, 3]), path, "cpu", "small", say=lines.append)
    assert [line.split(": ")[1] for line in lines] == ["n 13", "n 3"]
    assert len(json.loads(path.read_text())["rows"]) == 4
    assert not path.with_name("out.json.partial").exists()


def test_a_budget_leaves_cases_out(tmp_path):
    lines = []
    path = tmp_path / "out.json"
    document = experiment.run(squares(range(20, 40)), path, "cpu", "small", 1e-6, say=lines.append)
    assert len(document["rows"]) == 1
    assert json.loads(path.read_text())["left_out"] == 19
    assert lines[1] == "left out: n 21"
    assert lines[-1] == "left out: 7 more"


def test_an_interrupted_run_keeps_what_it_has(tmp_path):
    path = tmp_path / "out.json"

    def stop(line):
        if line.startswith("2/"):
            raise KeyboardInterrupt

    document = experiment.run(squares([1, 2, 3]), path, "cpu", "small", say=stop)
    assert document["interrupted"]
    assert document["left_out"] == 1
    stored = json.loads(path.read_text())
    assert [r["case"]["n"] for r in stored["rows"]] == [1, 2]
    again = experiment.run(squares([1, 2, 3]), path, "cpu", "small", say=lambda _: None)
    assert not again["interrupted"]
    assert len(again["rows"]) == 3


def test_a_case_cut_short_while_it_is_timed_is_not_stored(tmp_path):
    """Ctrl-C within a measurement ends the run; half a row would be taken for a whole one."""

    def prepare(case, device):
        calls = 0

        def stop():
            nonlocal calls
            calls += 1
            if case["n"] == 2 and calls > 40:
                raise KeyboardInterrupt

        return Prepared({"a": stop, "b": lambda: None})

    cases = [{"n": 1}, {"n": 2}, {"n": 3}]
    stopped = Experiment("stopped", lambda _device, _scale: cases, prepare)
    document = experiment.run(stopped, tmp_path / "out.json", "cpu", "small", say=lambda _: None)
    assert document["interrupted"]
    assert [row["case"]["n"] for row in document["rows"]] == [1]


# Several processes --------------------------------------------------------------------


@pytest.fixture
def quick_processes(monkeypatch):
    """Processes that do not begin with a compilation, which no case here needs."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")


@pytest.mark.slow
def test_processes_share_the_cases(tmp_path, quick_processes):
    path = tmp_path / "out.json"
    lines = []
    document = experiment.run(MANY, path, "cpu", "small", 60, lines.append, processes=2)
    assert [row["case"]["n"] for row in document["rows"]] == [1, 2, 3, 4, 13]
    assert json.loads(path.read_text()) == document
    *whole, failed = document["rows"]
    assert failed["error"] == "ValueError: thirteen"
    assert all(row["speedup"]["fast"]["value"] > 0 for row in whole)
    assert {row["process"] for row in whole}.isdisjoint({os.getpid()})
    assert all(row["cudnn.benchmark"] for row in whole)
    assert len(lines) == 5
    assert document["processes"] == 2
    assert document["command"].endswith("--budget 60 --processes 2")
    assert not document["interrupted"]
    assert document["left_out"] == 0
    # First calls of another number of processes would be mixed in.
    with pytest.raises(ResumeError, match="another processes"):
        experiment.run(MANY, path, "cpu", "small")
    with pytest.raises(ResumeError, match="at least 1"):
        experiment.run(MANY, path, "cpu", "small", processes=0)


@pytest.mark.slow
def test_a_process_that_ends_loses_no_other_case(tmp_path, quick_processes):
    path = tmp_path / "out.json"
    with pytest.raises(ProcessEndedError, match=r"n 99.*--processes 1"):
        experiment.run(CRASHING, path, "cpu", "small", say=lambda _: None, processes=2)
    stored = json.loads(path.read_text())
    assert stored["interrupted"]
    assert {row["case"]["n"] for row in stored["rows"]} <= {1, 2}
    assert stored["rows"]
    assert stored["left_out"] == 3 - len(stored["rows"])
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_ctrl_c_ends_every_process(tmp_path):
    path = tmp_path / "out.json"
    command = [
        sys.executable, "-m", "benches.experiments.compile_predictor", str(path), "--device", "cpu",
        "--scale", "full", "--budget", "300", "--processes", "2",
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert "/300, " in process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        rest, errors = process.communicate(timeout=120)
    assert process.returncode == 130, rest + errors
    assert "Interrupted after" in rest
    assert "Traceback" not in errors
    stored = json.loads(path.read_text())
    assert stored["interrupted"]
    assert stored["rows"]
    assert stored["left_out"] == 300 - len(stored["rows"])
    for _ in range(100):
        # Inductor's own processes end once theirs has.
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.2)
    left = subprocess.run(["ps", "-o", "args", "-g", str(process.pid)], capture_output=True)
    pytest.fail(f"still there: {left.stdout.decode()}")


def test_makers_go_side_by_side_and_who_measures_is_alone(tmp_path):
    """A lock belongs to an opened file: for it, threads are as processes."""
    lock = tmp_path / "lock"
    log = []
    may_end = {name: threading.Event() for name in ("first", "second", "alone", "late")}

    def hold(name, kind):
        with experiment.turn(lock, kind):
            log.append(f"{name} begins")
            assert may_end[name].wait(30)
            log.append(f"{name} ends")

    def begin(name, kind):
        thread = threading.Thread(target=hold, args=(name, kind))
        thread.start()
        return thread

    def until(count):
        for _ in range(3000):
            if len(log) == count:
                return
            time.sleep(0.01)
        pytest.fail(f"only {log}")

    threads = [begin("first", fcntl.LOCK_SH), begin("second", fcntl.LOCK_SH)]
    until(2)
    threads.append(begin("alone", fcntl.LOCK_EX))
    time.sleep(0.3)
    # Comes while somebody waits to measure, and begins after that.
    threads.append(begin("late", fcntl.LOCK_SH))
    time.sleep(0.3)
    assert sorted(log) == ["first begins", "second begins"]
    may_end["first"].set()
    until(3)
    time.sleep(0.3)
    assert log[2:] == ["first ends"]
    may_end["second"].set()
    until(5)
    time.sleep(0.3)
    assert log[3:] == ["second ends", "alone begins"]
    may_end["alone"].set()
    until(7)
    may_end["late"].set()
    for thread in threads:
        thread.join()
    assert log[5:] == ["alone ends", "late begins", "late ends"]
    with experiment.turn(None, fcntl.LOCK_EX):
        pass


def test_a_file_of_something_else_is_not_touched(tmp_path):
    path = tmp_path / "out.json"
    with pytest.raises(ResumeError, match="Make it"):
        experiment.run(squares([1]), tmp_path / "none" / "out.json", "cpu", "small")
    with pytest.raises(ResumeError, match="not a stored result"):
        experiment.run(squares([1]), tmp_path, "cpu", "small")
    for budget in (0.0, -1.0, math.nan):
        with pytest.raises(ResumeError, match="positive number of seconds"):
            experiment.run(squares([1]), path, "cpu", "small", budget)
    experiment.run(squares([1]), path, "cpu", "small", say=lambda _: None)
    before = path.read_text()
    with pytest.raises(ResumeError, match="another scale"):
        experiment.run(squares([1]), path, "cpu", "full", say=lambda _: None)
    for part, key in (("versions", "torch"), ("machine", "torch_capability")):
        changed = json.loads(before)
        changed[part][key] = "1.0"
        path.write_text(json.dumps(changed))
        with pytest.raises(ResumeError, match=f"another {part}"):
            experiment.run(squares([1]), path, "cpu", "small", say=lambda _: None)
    for content in ("", "[]", '{"experiment": "squares"}', before[:-30]):
        path.write_text(content)
        with pytest.raises(ResumeError, match="not a stored result"):
            experiment.run(squares([1]), path, "cpu", "small", say=lambda _: None)
        assert path.read_text() == content


def test_a_file_that_does_not_name_the_kernels_is_continued(tmp_path):
    path = tmp_path / "out.json"
    document = experiment.run(squares([1]), path, "cpu", "small", say=lambda _: None)
    row = {**document["rows"][0], "note": "of the first run"}
    older = {k: v for k, v in document["machine"].items() if k != "torch_capability"}
    path.write_text(json.dumps({**document, "machine": older, "rows": [row]}))
    found = experiment.run(squares([1, 2]), path, "cpu", "small", say=lambda _: None)
    assert [r.get("note") for r in found["rows"]] == ["of the first run", None]


def test_the_command(tmp_path, capsys):
    path = str(tmp_path / "out.json")
    assert experiment.main(squares([2, 3]), "", [path, "--device", "cpu"]) == 0
    assert "2/2" in capsys.readouterr().out
    assert experiment.main(squares([13]), "", [path, "--device", "cpu"]) == 1
    assert experiment.main(squares([2]), "", [path, "--device", "cpu", "--scale", "full"]) == 2
    assert "another scale" in capsys.readouterr().err
    again = [path, "--device", "cpu", "--scale", "full", "--again", "--budget", "9"]
    assert experiment.main(squares([2]), "", again) == 0
    if not torch.cuda.is_available():
        assert experiment.main(squares([2]), "", [f"{path}2", "--device", "cuda"]) == 2
        assert "CUDA was asked for" in capsys.readouterr().err
    for wrong in (["--scale", "huge"], ["--device", "npu"], ["--budget", "soon"]):
        with pytest.raises(SystemExit):
            experiment.main(squares([2]), "", [path, *wrong])


def test_every_scale_and_device_has_cases():
    for module in (
        compile_convolutions,
        compile_matmul,
        compile_predictor,
        compile_transformers,
    ):
        for device in ("cpu", "cuda"):
            small, full = (module.cases(device, scale) for scale in ("small", "full"))
            assert 0 < len(small) <= len(full)
            keys = [json.dumps(c, sort_keys=True) for c in full]
            assert len(set(keys)) == len(keys)
    sizes = [c["n"] for c in compile_matmul.cases("cuda", "full")]
    assert max(sizes) == 17500
    combinations = {
        (c["kernel"], c["stride"], c["padding"]) for c in compile_convolutions.cases("cuda", "full")
    }
    assert combinations == {(k, s, p) for k in (1, 3, 5) for s in (1, 2) for p in (1, 2, 3)}


def test_the_product_in_cpp_is_right_at_every_edge():
    for n in (1, 3, 63, 64, 65, 130, 257):
        a, b = torch.randn(n, n), torch.randn(n, n)
        found = compile_matmul.by_cpp(a, b)()
        torch.testing.assert_close(found, (a.double() @ b.double()).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [128, 4000, 17500])
def test_sums_in_order_are_allowed_and_factors_of_tf32_are_not(n):
    generator = torch.Generator().manual_seed(n)
    a, b = (torch.randn(k, generator=generator) for k in ((8, n), (n, 16)))
    wanted = a.double() @ b.double()
    interpreted = accuracy(a @ b, wanted).distance
    terms = (a[:, :, None] * b).numpy()
    in_order = torch.from_numpy(np.cumsum(terms, axis=1, dtype=np.float32)[:, -1].copy())
    # TF32 keeps 10 bits of a significand.
    a32, b32 = ((x.view(torch.int32) & -(1 << 13)).view(torch.float32) for x in (a, b))
    limit = compile_matmul.allowed(n, interpreted)
    assert interpreted < accuracy(in_order, wanted).distance < limit
    assert accuracy(a32 @ b32, wanted).distance > 10 * limit


def test_a_wrong_product_is_not_timed(monkeypatch):
    monkeypatch.setattr(
        compile_matmul,
        "_own",
        lambda device: {
            "wrong": lambda a, b: lambda: a @ b + 0.01,
            "failing": lambda a, b: 1 / 0,
        },
    )
    prepared = compile_matmul.prepare({"n": 32, "compiled": False}, "cpu")
    assert list(prepared.calls) == ["interpreted"]
    assert prepared.info["failures"]["wrong"].startswith("wrong: ")
    assert prepared.info["failures"]["failing"].startswith("ZeroDivisionError")


def test_the_cuda_source_compiles():
    """Through NVRTC, which needs no GPU."""
    pytest.importorskip("triton")
    from torch.cuda._utils import _nvrtc_compile

    from benches.experiments.matmul_cuda import SOURCE

    try:
        code, name = _nvrtc_compile(SOURCE, "matmul", compute_capability="90")
    except OSError as error:
        pytest.skip(f"NVRTC cannot be loaded: {error}")
    assert name == "matmul"
    assert code
    with pytest.raises(RuntimeError):
        _nvrtc_compile(SOURCE.replace("__syncthreads", "nothing"), "matmul", "90")


def test_layers_of_a_model_are_found_with_their_shapes():
    found = single_layers.singles("squeezenet1_1", 1, 64)
    assert found[0].kind == "Conv2d"
    assert found[0].shape == (1, 3, 64, 64)
    assert "Dropout" not in {single.kind for single in found}
    sorts = single_layers.distinct("squeezenet1_1", 1, 64)
    assert sum(map(len, sorts.values())) == len(found)
    assert len(sorts) < len(found)
    cases = compile_layers.cases("cpu", "small")
    places = [tuple(p[:2]) for c in cases for p in c["places"]]
    assert len(set(places)) == len(places)


def test_the_profiler_sees_the_convolutions_of_resnet(monkeypatch):
    monkeypatch.setattr(compile_resnet_convolutions, "PASSES", 2)
    cases = compile_resnet_convolutions.cases("cpu", "full")
    assert sum(c["calls"] for c in cases) == 53
    with one_thread():
        inside = compile_resnet_convolutions.in_model("eager", 1, 64, "cpu")
    convolutions = compile_resnet_convolutions._convolutions(1, 64)
    wanted = {compile_resnet_convolutions._shapes(calls[0]) for calls in convolutions.values()}
    assert wanted == set(inside)
    assert min(inside.values()) > 0


def test_the_gpt_sees_only_what_came_before():
    model, ids = compile_transformers.build("gpt", "small", 1)
    with torch.no_grad():
        before = model(ids)
        changed = ids.clone()
        changed[0, 40] = (changed[0, 40] + 1) % 1000
        after = model(changed)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40], after[:, 40])
    assert before.shape == (1, 64, 1000)


# The predictor -----------------------------------------------------------------------


def synthetic(count, rule):
    rows = []
    for case in compile_predictor.cases("cpu", "full")[:count]:
        faster = rule(case)
        runs = {"eager": [1000 * faster] * 4, "compile": [1000] * 4}
        rows.append(
            {
                "case": case,
                "timings": {"eager": {"median_ns": 1000.0 * faster}},
                "speedup": {"compile": {"value": faster}},
                "runs_ns": runs,
            }
        )
    return rows


@pytest.mark.slow
def test_the_predictor_learns_a_rule_and_not_noise():
    rows = synthetic(80, lambda c: 1 + 0.2 * (c["kernel"] > 1) + 0.1 * c["stride"])
    judged = compile_predictor.evaluate(rows)["predictor"]["judged"]
    assert judged["shape"]["within"] > 0.8
    assert judged["the same, by trees"]["within"] > 0.8
    assert judged["median speed-up"]["within"] < 0.6
    assert judged["control: taught in another order"]["within"] < 0.6
    assert judged["one half of the runs for the other"]["within"] == 1


@pytest.mark.parametrize(
    "learner",
    [
        compile_predictor.cross_validate,
        pytest.param(compile_predictor.by_trees, marks=pytest.mark.slow),
    ],
)
def test_no_prediction_is_of_a_convolution_that_was_seen(learner):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=generator)
    y = torch.randn(50, generator=generator)
    before = learner(x, y)
    changed = y.clone()
    changed[7] += 5
    after = learner(x, changed)
    # Its own prediction does not know of the change; those of other folds do.
    assert after[7] == pytest.approx(float(before[7]), abs=1e-4)
    assert (after - before).abs().max() > 0.05


def test_too_few_convolutions_give_no_judgement():
    assert compile_predictor.evaluate(synthetic(9, lambda c: 1.0))["predictor"]["judged"] == {}


# The suites --------------------------------------------------------------------------


# A file of pytest-benchmark is drawn in test_bench_report.py, a case measured above.
@pytest.mark.slow
def test_a_suite_measures_skips_and_is_drawn(tmp_path):
    record = tmp_path / "out.json"
    run = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-rs", f"--benchmark-json={record}",
            "benches/suites/test_compile_experiments.py",
            "-k", "test_case and (cuda or compile_convolutions-cpu-1-1-1)",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    if not torch.cuda.is_available():
        assert "CUDA was asked for" in run.stdout
    from benches.render import bench_report

    benches = bench_report.load_all([record])
    assert [b.kind for b in benches] == ["compile_convolutions"]
    assert benches[0].rows[0]["speedup"]["compile"]["value"] > 0
    assert '<figure id="convolutions-cpu">' in "".join(bench_report.sections(benches))


def test_tables_of_experiments_of_two_devices(tmp_path):
    four = ("eager", "compile", "eager+cudagraph", "compile+cudagraph")
    row = {
        "case": {"kernel": 3, "stride": 1, "padding": 2, "batch": 4, "channels": 8, "size": 16},
        "timings": {n: {"median_ns": 1e3 * (4 - k)} for k, n in enumerate(four)},
        "speedup": {"compile": {"value": 1.3333, "low": 1.3, "high": 1.4}},
    }
    for device, rows in (("cuda", [row]), ("cpu", [row])):
        document = {
            "experiment": "compile_convolutions",
            "device": device,
            "machine": {"gpu": "a GPU", "cpu": "a CPU"},
            "versions": {"torch": "2"},
            "left_out": 3,
            "processes": 8 if device == "cuda" else 1,
            "rows": rows,
        }
        (tmp_path / f"compile_convolutions_{device}.json").write_text(json.dumps(document))
    text = render_experiments.page(tmp_path)
    line = "| 3 | 1 | 2 | 4 µs | 3 µs | 1.33 (1.30 to 1.40) | 2.00 |"
    assert text.count(line) == 2
    assert text.index("a GPU") < text.index("a CPU")
    assert "3 cases left out by the budget." in text
    assert text.count("contenders made by 8 processes side by side") == 1
    (tmp_path / "compile_convolutions_cpu.json").write_text("{")
    with pytest.raises(BenchFormatError):
        render_experiments.page(tmp_path)


@pytest.mark.slow
def test_the_model_of_a_case_is_what_is_measured():
    """A convolution of a case has the case's shape in and out."""
    case = compile_convolutions.cases("cpu", "small")[3]
    prepared = compile_convolutions.prepare(case, "cpu")
    with torch.no_grad():
        found = prepared.calls["eager"]()
    layer = nn.Conv2d(16, 16, case["kernel"], stride=case["stride"], padding=case["padding"])
    assert found.shape == layer(torch.zeros(1, 16, 32, 32)).shape
    assert set(prepared.info["first_call_ns"]) == {"eager", "compile"}
    assert not prepared.info["failures"]
