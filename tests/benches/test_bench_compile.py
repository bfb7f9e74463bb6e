# SPDX-License-Identifier: Apache-2.0
"""The benches of compiled models go on where they stopped; their tables follow the JSON."""

import argparse
import copy
import dataclasses
import functools
import json

import journals
import pytest
import torch
from torch import nn

from benches.experiments import compile_bounds, compile_models, compile_oracle, compile_triton
from benches.experiments.experiment import save
from benches.render import compiled as render_compile
from benches.render.docs import Results
from pytest_udftorch import measure

ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="small inputs are made on the CPU")
QUICK = ["--batches", "1", "--models", "squeezenet1_1", "--runs", "6", "--rounds", "1"]


@pytest.fixture
def small(monkeypatch):
    """A model of a moment, on one thread of a busy machine."""

    def build(name, seed=0):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 5)]
        return nn.Sequential(*layers).eval()

    def images(batch, device, size=6):
        return torch.randn(batch, 3, 6, 6)

    for module in (compile_models, compile_oracle):
        monkeypatch.setattr(module, "build", build)
        monkeypatch.setattr(module, "images", images)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@ON_CPU
def test_end_to_end_measures_only_what_is_missing(small, tmp_path, monkeypatch):
    out = tmp_path / "models.json"
    given = [str(out), *QUICK, "--only", "end_to_end", "--executors", "eager", "fx"]
    assert compile_models.main(given) == 0
    (row,) = json.loads(out.read_text())["end_to_end"]
    assert set(row["measurement"]["timings"]) == {"eager", "fx"}
    assert "torch" in json.loads(out.read_text())["versions"]

    def again(*_args, **_options):
        raise AssertionError("measured again")

    monkeypatch.setattr(compile_models, "end_to_end", again)
    assert compile_models.main(given) == 0
    document = json.loads(out.read_text())
    out.write_text(json.dumps({**document, "versions": {"torch": "0.4"}}))
    with pytest.raises(SystemExit, match="another versions, and would be overwritten"):
        compile_models.main(given)
    out.write_text("{}")
    with pytest.raises(SystemExit, match="not a stored result"):
        compile_models.main(given)
    assert out.read_text() == "{}"
    with pytest.raises(SystemExit, match="Make it"):
        compile_models.main([str(tmp_path / "none" / "models.json"), *given[1:]])


@ON_CPU
def test_an_executor_that_does_not_end_is_left_out_with_its_reason(
    small, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(compile_models.EXECUTORS, "cpu", ["eager", "fx", "torchscript-trace"])
    left_out = {("squeezenet1_1", "cpu"): {"torchscript-trace": "it does not end"}}
    monkeypatch.setattr(compile_models, "LEFT_OUT", left_out)
    out = tmp_path / "models.json"
    given = [str(out), *QUICK, "--only", "end_to_end"]
    assert compile_models.main(given) == 0
    assert "torchscript-trace is left out: it does not end" in capsys.readouterr().out
    (row,) = json.loads(out.read_text())["end_to_end"]
    assert list(row["members"]) == ["eager", "fx"]
    assert row["left_out"] == {"torchscript-trace": "it does not end"}
    # Who names it gets it.
    out.unlink()
    assert compile_models.main([*given, "--executors", "eager", "torchscript-trace"]) == 0
    (row,) = json.loads(out.read_text())["end_to_end"]
    assert list(row["members"]) == ["eager", "torchscript-trace"]


@ON_CPU
def test_stopped_search_of_a_plan_goes_on(small, tmp_path, monkeypatch):
    out = tmp_path / "oracle.json"
    given = [str(out), *QUICK, "--units", "2", "--executors", "eager", "eager+channels_last"]
    monkeypatch.setattr(compile_oracle, "OPPONENTS", {"cpu": []})
    real = compile_oracle.oracle

    def stop(*args, progress, **options):
        def until(done, of, text):
            if text.startswith("plan "):
                raise KeyboardInterrupt
            progress(done, of, text)

        return real(*args, progress=until, **options)

    monkeypatch.setattr(compile_oracle, "oracle", stop)
    assert compile_oracle.main(given) == 130
    (journal,) = tmp_path.glob("*.journal")
    kept = journals.entries(journal)["unit_ns"]
    monkeypatch.setattr(compile_oracle, "oracle", real)
    assert compile_oracle.main(given) == 0
    (cell,) = json.loads(out.read_text())["cells"]
    # Which executors are tried is decided anew; what was measured is not measured again.
    assert "eager" in cell["unit_ns"]
    assert all(cell["unit_ns"][name] == kept[name] for name in set(kept) & set(cell["unit_ns"]))
    assert not journal.exists()
    assert cell["plan_over"]["best_uniform"]["low"] >= 1 or cell["replaced_by"]


@ON_CPU
def test_a_model_in_one_unit_is_stored(small, tmp_path, capsys, monkeypatch):
    out = tmp_path / "oracle.json"
    monkeypatch.setattr(compile_oracle, "OPPONENTS", {"cpu": []})
    given = [str(out), *QUICK, "--units", "1", "--executors", "eager"]
    assert compile_oracle.main(given) == 0
    assert len(json.loads(out.read_text())["cells"]) == 1
    assert "RESULT squeezenet1_1" in capsys.readouterr().out


@ON_CPU
@pytest.mark.parametrize("method", ["layer_times", "layer_subtraction"])
def test_a_validation_that_is_cut_short_is_not_stored(small, tmp_path, monkeypatch, capsys, method):
    out = tmp_path / "models.json"
    real = getattr(measure, method)

    def cut(*given, **options):
        return dataclasses.replace(real(*given, **options), interrupted=True)

    monkeypatch.setattr(compile_models, method, cut)
    # Starting the profiler takes most of the time.
    plain = functools.partial(measure.instrument_overhead, profiled=(False,))
    monkeypatch.setattr(compile_models, "instrument_overhead", plain)
    assert compile_models.main([str(out), *QUICK, "--only", "validation"]) == 130
    assert "The same command continues" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("command", [compile_models, compile_oracle, compile_bounds])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--models", "alexnot"], "Did you mean 'alexnet'"),
        (["--models", "raft_small"], "no image model 'raft_small'"),
        (["--batches", "0"], "not a whole number above 0"),
        (["--batches", "two"], "not a whole number above 0"),
    ],
)
def test_wrong_options_of_a_command_are_refused(tmp_path, capsys, command, given, says):
    with pytest.raises(SystemExit) as ended:
        command.main([str(tmp_path / "out.json"), *given])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_errors_of_the_package_end_a_command_in_one_line(small, tmp_path, capsys):
    for command, more in ((compile_models, ["--only", "end_to_end"]), (compile_oracle, [])):
        given = [str(tmp_path / "out.json"), *QUICK, *more, "--executors", "egaer"]
        assert command.main(given) == 2
        found = capsys.readouterr().err
        assert "Did you mean 'eager'" in found
        assert "Traceback" not in found
    with pytest.raises(SystemExit):
        compile_bounds.main([str(tmp_path / "none" / "out.json")])
    assert "does not exist. Make it." in capsys.readouterr().err


def test_bounds_that_are_cut_short_are_not_stored(tmp_path, monkeypatch, capsys):
    def stop(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(compile_bounds, "build", stop)
    monkeypatch.setattr(compile_bounds.roofline, "ceilings", lambda device: None)
    out = tmp_path / "out.json"
    assert compile_bounds.main([str(out)]) == 130
    assert "Nothing is stored" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_triton_without_a_gpu_says_so(tmp_path):
    with pytest.raises(SystemExit, match="compile_triton: CUDA was asked for"):
        compile_triton.main([str(tmp_path / "out.json")])


CHILD = """
import json
import sys
from pathlib import Path

part, name = Path(sys.argv[1]), sys.argv[3]
if name == "broken":
    sys.exit(3)
document = json.loads((part.parent / "begun.json").read_text())
batches = sys.argv[sys.argv.index("--batches") + 1 :]
rows = [{"model": name, "batch": int(batch)} for batch in batches]
part.write_text(json.dumps({**document, "cells": rows}))
"""


def test_side_by_side_keeps_what_the_others_stored(tmp_path, monkeypatch):
    (tmp_path / "child_of_a_bench.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = argparse.Namespace(
        output=tmp_path / "out.json", models=["one", "broken", "two"], batches=[1, 32]
    )
    lists = ("cells",)
    save(tmp_path / "begun.json", compile_models.begin(tmp_path / "none", "cpu", lists))
    given = compile_models.handed_on(options, [])
    for _ in range(2):
        status = compile_models.side_by_side("child_of_a_bench", options, "cpu", lists, given)
        assert status == 3
        document = json.loads(options.output.read_text())
        found = [(row["model"], row["batch"]) for row in document["cells"]]
        assert found == [("one", 1), ("one", 32), ("two", 1), ("two", 32)]
        assert document["note"].startswith("3 processes")


@pytest.fixture(scope="module")
def stored():
    return Results()["compile_oracle"]


def test_figures_asked_follow_the_cells(stored):
    def measured(document):
        return [line.split(" | ")[-1].rstrip(" |") for line in render_compile.asked(document)[2:]]

    worse = copy.deepcopy(stored)
    worse["cells"][3]["plan_over"]["best_uniform"]["times_faster"] = 0.5
    for cell in worse["cells"]:
        cell["plan_over"]["torch_compile"]["times_faster"] = 1.25
        cell["seconds"] = 1200
    assert measured(worse)[0] == "0.500"
    assert measured(worse)[2:] == ["1.25", "1.25", "20.0"]
    assert measured(stored) != measured(worse)


def test_rooflines_of_another_machine_are_not_shown(stored):
    bounds = Results()["compile_bounds"]
    with_bounds = render_compile.plans(stored, bounds)
    other = {**bounds, "machine": {**bounds["machine"], "gpu": "another"}}
    assert render_compile.plans(stored, other) == render_compile.plans(stored) != with_bounds


def test_no_sum_of_layers_is_farther_off_than_the_text_says():
    document = copy.deepcopy(Results()["compile_validation"])
    for row in document["validation"]:
        row |= {"layer_subtraction_share": 0.98749, "layer_timing_share": 1.0341}
    text = "\n".join(render_compile.validation(document))
    assert "within 1.3 % of end to end" in text
    assert "up to 4 % off" in text


def test_every_plan_is_slower_than_its_roofline(stored):
    least = {
        (r["model"], r["batch"]): r["roofline_ns"] for r in Results()["compile_bounds"]["rows"]
    }
    for cell in stored["cells"]:
        assert cell["plan_ns"] > least[cell["model"], cell["batch"]]
