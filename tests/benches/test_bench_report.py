# SPDX-License-Identifier: Apache-2.0
"""Figures of the benches: from stored files, from pytest-benchmark's, and wrong ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benches import stored
from benches.render import bench_report, browser
from benches.render.bench_report import BenchFormatError
from pytest_udftorch import cli
from pytest_udftorch.watch.profile import report

RESULTS = sorted((Path(__file__).parents[2] / "benches" / "results").glob("compile_*.json"))
HOSTILE = '<script>document.title="taken"</script>'


def timings(**medians):
    return {k.replace("_", "+"): {"median_ns": float(v)} for k, v in medians.items()}


def document(experiment, rows, **more):
    return {
        "experiment": experiment,
        "device": "cpu",
        "machine": {"cpu": "a CPU", "threads": 2},
        "versions": {"torch": "2"},
        "rows": rows,
        **more,
    }


CONVOLUTION = {
    "case": {"kernel": 3, "stride": 1, "padding": 1, "batch": 1, "channels": 8, "size": 16},
    "timings": timings(eager=3000, compile=2000),
    "speedup": {"compile": {"value": 1.5}},
}


def write(folder, content, name="bench.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def page(*paths):
    benches = bench_report.load_all(paths)
    return report.page(bench_report.sections(benches), title="t")


def test_a_machine_is_named_with_its_threads_and_kernels(tmp_path):
    given = document("compile_convolutions", [CONVOLUTION])
    given["machine"]["torch_capability"] = "AVX2"
    (bench,) = bench_report.load_all([write(tmp_path, given)])
    assert bench.where == "a CPU"
    assert bench.about == "a CPU, 2 threads, torch's AVX2 kernels, torch 2"


@pytest.fixture(scope="module")
def whole_page():
    """The page of every stored bench."""
    assert RESULTS
    return page(*RESULTS)


def test_every_stored_bench_is_drawn(whole_page):
    text = whole_page
    for name in ("matmul", "convolutions-cpu", "chains", "layer-density", "oracles-cuda"):
        assert f'<figure id="{name}">' in text
    # Each figure once, and what the page's tables sort by is finite.
    names = re.findall(r'<figure id="([^"]+)"', text)
    assert len(names) == len(set(names))
    assert "nan" not in re.findall(r'data-sort="([^"]*)"', text)
    assert not re.search(r"https?://|@import|url\(", text)


def test_a_figure_shows_the_numbers_of_its_file(tmp_path):
    text = page(write(tmp_path, document("compile_convolutions", [CONVOLUTION])))
    assert '<td data-sort="1.5">1.50</td>' in text
    assert "batch 1, 8 channels, 16 x 16" in text
    changed = json.loads(json.dumps(CONVOLUTION))
    changed["timings"]["compile"]["median_ns"] = 1000.0
    text = page(write(tmp_path, document("compile_convolutions", [changed])))
    assert '<td data-sort="3.0">3.00</td>' in text
    assert "1.50" not in text


def test_the_published_numbers_stand_beside_ours(tmp_path):
    rows = [
        {"model": m, "batch": 1, "measurement": {"timings": timings(eager=4000, compile=1600)}}
        for m in ("resnet50", "alexnet", "googlenet", "mobilenet_v2")
    ]
    models = document("", rows)
    models["end_to_end"] = models.pop("rows")
    del models["experiment"]
    text = page(write(tmp_path, models))
    table = text.split('id="published"')[1].split("</table>")[0]
    for published in ("1.61", "1.43", "1.63"):
        assert f">{published}<" in table
    assert table.count(">2.50<") == 3
    assert "alexnet" not in table
    assert text.count(", published: 1.") == 3
    assert ">published</text>" in text


def test_devices_stand_in_one_figure(tmp_path):
    row = {
        "case": {"layer": "ReLU() on 1x8", "batch": 1, "size": 8, "places": [["net", 0, "relu"]]},
        "timings": timings(eager=3000, compile=2000),
    }
    cpu = write(tmp_path, document("compile_layers", [row]), "cpu.json")
    gpu = document("compile_layers", [row], device="cuda", machine={"gpu": "a GPU"})
    text = page(cpu, write(tmp_path, gpu, "gpu.json"))
    assert text.count('<figure id="layers-net"') == 1
    for name in ("eager, cpu", "compile, cpu", "eager, cuda", "compile, cuda"):
        assert f">{name}</text>" in text
    assert "a CPU; a GPU" in text


def test_a_file_of_pytest_benchmark(tmp_path):
    run = {k: v for k, v in document("compile_convolutions", []).items() if k != "rows"}
    info = {"experiment": "compile_convolutions", "run": run, "row": CONVOLUTION}
    other = {**CONVOLUTION, "case": {**CONVOLUTION["case"], "kernel": 5}}
    suites = {
        "benchmarks": [
            {"extra_info": info},
            {"extra_info": {**info, "row": other}},
            {"extra_info": {"functions": 2}},
        ]
    }
    (bench,) = bench_report.load_all([write(tmp_path, suites)])
    assert [r["case"]["kernel"] for r in bench.rows] == [3, 5]
    assert bench.where == "a CPU"
    assert bench_report.terminal([bench]) == (
        f"{bench.path.name}: compile_convolutions on a CPU: 2 rows; compile 1.50 times as fast "
        "(geometric mean)"
    )


def test_files_of_one_machine_are_drawn_together(tmp_path):
    other = {**CONVOLUTION, "case": {**CONVOLUTION["case"], "kernel": 5}}
    newer = {**CONVOLUTION, "timings": timings(eager=8000, compile=2000)}
    text = page(
        write(tmp_path, document("compile_convolutions", [newer]), "b.json"),
        write(tmp_path, document("compile_convolutions", [CONVOLUTION, other]), "a.json"),
        write(
            tmp_path,
            document("compile_convolutions", [CONVOLUTION], machine={"cpu": "another CPU"}),
            "c.json",
        ),
    )
    first, second = text.split("<figure ")[1:]
    assert first.startswith('id="convolutions-cpu"')
    assert second.startswith('id="convolutions-cpu-2"')
    assert ">4.00<" in first
    assert first.count(">1.50<") == 1
    assert second.count(">1.50<") == 1


def test_older_suites_in_a_file_of_pytest_benchmark(tmp_path):
    add = {
        "elements": 4096,
        "median_ns": {"copy": 8.0, "triton": 16.0},
        "share_of_copy": {"copy": 1.0, "triton": 0.75},
    }
    softmax = {"columns": 256, "rows": 16, **{k: v for k, v in add.items() if k != "elements"}}
    oracle = {
        "model": "net",
        "batch": 1,
        "device": "a GPU",
        "torch": "2",
        "cuda_graph": True,
        "regret": {"ours": -0.05, "torch.compile": 1.5},
        "plan_over": {"torch_compile": {"times_faster": 2.5}},
        "uniform_measurement": {"timings": timings(eager=3000, compile=2000)},
    }
    validation = {
        "model": "net",
        "batch": 1,
        "instruments": {"pure": {"wall_ns": 5, "over_pure": 1}},
    }
    pair = {
        "model": "net",
        "batch": 1,
        **{k: v for k, v in document("", []).items() if k in ("device", "machine", "versions")},
        "measurement": {"timings": timings(eager=3000, compile=1000)},
        "left_out": {"tvm": "not tried"},
    }
    infos = [
        {"table": [add]},
        {"table": [softmax]},
        {"oracle": oracle},
        {"validation": validation},
        {"pair": pair},
    ]
    path = write(tmp_path, {"benchmarks": [{"extra_info": info} for info in infos]})
    benches = {b.kind: b for b in bench_report.load_all([path])}
    assert {k: (b.device, b.where) for k, b in benches.items()} == {
        "add": ("cuda", "a GPU"),
        "softmax": ("cuda", "a GPU"),
        "cells": ("cuda", "a GPU"),
        "validation": ("cpu", "a CPU"),
        "end_to_end": ("cpu", "a CPU"),
    }
    text = page(path)
    # An addition moves 12 bytes an element, the copy and a softmax 8.
    assert f'data-sort="{12 * 4096 / 16}"' in text
    assert f'data-sort="{8 * 256 * 16 / 16}"' in text
    for name in ("end-to-end-cpu-1", "end-to-end-cuda-1", "oracles-cuda", "plans-cuda"):
        assert f'<figure id="{name}">' in text
    # The oracles' chart leaves out what would squeeze the rest; its table does not.
    assert ">ours, net, batch 1: -5</title>" in text
    assert ">torch.compile, net, batch 1:" not in text
    assert ">+150.0 %<" in text


def test_bounds_of_a_file_of_their_own(tmp_path):
    cells = document("", [])
    cells["cells"] = [
        {
            "model": "net",
            "batch": 1,
            "regret": {"ours": 0.25},
            "plan_measurement": {"timings": timings(ours=5000)},
        }
    ]
    bounds = document("", [{"model": "net", "batch": 1, "roofline_ns": 2000.0}], ceilings={})
    for one in (cells, bounds):
        del one["experiment"]
    text = page(write(tmp_path, cells, "a.json"), write(tmp_path, bounds, "b.json"))
    assert '<td data-sort="0.25">+25.0 %</td><td data-sort="1.5">1.50</td>' in text


def test_replayed_forms_have_figures_of_their_own(tmp_path):
    four = {"eager": 3000, "compile": 2000, "eager_cudagraph": 1500, "compile_cudagraph": 500}
    row = {**CONVOLUTION, "timings": timings(**four)}
    chain = {
        "case": {"blocks": 2},
        "timings": timings(**four),
        "first_call_ns": dict.fromkeys(timings(**four), 5e9),
    }
    inside = {
        "case": {"layer": "Conv2d(1, 1)", "name": "conv1", "calls": 1},
        "timings": timings(**four),
        "in_model_ns": {"eager": 2000.0, "compile": 1000.0},
    }
    machine = {"device": "cuda", "machine": {"gpu": "a GPU"}}
    text = page(
        write(tmp_path, document("compile_convolutions", [row], **machine), "a.json"),
        write(tmp_path, document("compile_chains", [chain], **machine), "b.json"),
        write(tmp_path, document("compile_resnet_convolutions", [inside], **machine), "c.json"),
    )
    graphs = text.split('<figure id="convolutions-cuda-cudagraph">')[1].split("</figure>")[0]
    assert '<td data-sort="3.0">3.00</td>' in graphs
    assert "compile over eager, both in a CUDA graph</text>" in text
    assert "alone, both in a CUDA graph</text>" in text


def test_failed_rows_are_left_out(tmp_path):
    rows = [CONVOLUTION, {"case": CONVOLUTION["case"], "error": "it failed"}]
    (bench,) = bench_report.load_all([write(tmp_path, document("compile_convolutions", rows))])
    assert len(bench.rows) == 1


def test_names_are_escaped(tmp_path):
    row = {
        "case": {"layer": HOSTILE, "places": [[HOSTILE, 0, HOSTILE]]},
        "timings": {"eager": {"median_ns": 3.0}, HOSTILE: {"median_ns": 2.0}},
    }
    hostile = document("compile_layers", [row], machine={"cpu": HOSTILE}, date=HOSTILE)
    text = page(write(tmp_path, hostile, f"{HOSTILE[:8]}.json"))
    assert text.count("<script>") == 1  # the page's own
    assert "&lt;script&gt;document" in text


def test_text_where_a_number_should_be(tmp_path):
    for part, key in (("case", "stride"), ("timings", "eager")):
        row = json.loads(json.dumps(CONVOLUTION))
        row[part][key] = HOSTILE if part == "case" else {"median_ns": HOSTILE}
        with pytest.raises(BenchFormatError):
            page(write(tmp_path, document("compile_convolutions", [row])))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(document("compile_convolutions", [CONVOLUTION]))[:-40], "not a whole JSON"),
        ("", "not a whole JSON"),
        ("[1, 2]", "holds none of the benches"),
        ({"processes": []}, "holds none of the benches"),
        ({"benchmarks": []}, "holds none of the benches"),
        ({"benchmarks": [3]}, "is not as this version's benches write it"),
        ({"experiment": "compile_convolutions", "device": "cpu"}, "is not as this version's"),
        (document("compile_convolutions", [{"case": {}}]), "is not as this version's"),
        (document("compile_convolutions", 3), "is not as this version's"),
        ({"rows": {"table": {"a": None, "b": None}, "rows": [[1]]}}, "is not as this version's"),
    ],
)
def test_other_files_are_refused(tmp_path, capsys, content, message):
    path = write(tmp_path, content)
    with pytest.raises(BenchFormatError, match=message):
        page(path)
    out = tmp_path / "r.html"
    assert bench_report.main([str(path), "-o", str(out)]) == cli.MISUSE
    error = capsys.readouterr().err
    assert error.startswith("bench_report: ")
    assert str(path) in error
    assert "Traceback" not in error
    assert not out.exists()


def test_a_missing_file(tmp_path):
    with pytest.raises(BenchFormatError, match=r"There is no file .*none\.json"):
        bench_report.load_all([tmp_path / "none.json"])


def test_the_command(tmp_path, capsys):
    path = write(tmp_path, document("compile_convolutions", [CONVOLUTION]))
    out = tmp_path / "r.html"
    assert bench_report.main([str(path), "-o", str(out)]) == 0
    assert "1 rows" in capsys.readouterr().out
    assert "<h1>Benches of torch.compile</h1>" in out.read_text()
    assert bench_report.main([str(path), "-o", str(out), "--title", "A <b>title"]) == 0
    assert "<h1>A &lt;b&gt;title</h1>" in out.read_text()


def test_the_page_cannot_be_written_where_a_file_is_in_the_way(tmp_path, capsys):
    path = write(tmp_path, document("compile_convolutions", [CONVOLUTION]))
    assert bench_report.main([str(path), "-o", str(path / "r.html")]) == cli.MISUSE
    assert f"cannot write {path / 'r.html'}" in capsys.readouterr().err


def test_the_report_of_profiles_names_the_command_for_benches(tmp_path, capsys):
    path = write(tmp_path, document("compile_convolutions", [CONVOLUTION]))
    for options in ([], ["-o", str(tmp_path / "x")], ["--csv", str(tmp_path / "x")]):
        assert cli.main(["report", str(path), *options]) == cli.MISUSE
        error = capsys.readouterr().err
        assert error.startswith(f"udftorch report: {path} is a JSON file")
        assert f"`python -m benches.render.bench_report {path}`" in error
        assert not (tmp_path / "x").exists()


# In a browser ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab(tmp_path_factory, whole_page):
    path = browser.find()
    if path is None:
        pytest.skip("no Chromium here (Ubuntu's snap cannot read files of tests)")
    folder = tmp_path_factory.mktemp("browser")
    written = folder / "report.html"
    written.write_text(whole_page, encoding="utf-8")
    with browser.page(path) as tab:
        tab.size(1200)
        tab.open(written.as_uri())
        yield tab


def test_the_browser_has_nothing_to_complain_of(tab):
    assert tab.problems == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_the_figures_fit_and_have_their_colors(tab, width, dark):
    tab.size(width, dark=dark)
    assert tab.run("document.documentElement.scrollWidth") == width
    shapes = "[...document.querySelectorAll('svg.plot use')]"
    fills = tab.run(f"{shapes}.map(e => getComputedStyle(e).fill)")
    assert "rgb(0, 0, 0)" not in fills
    assert len(set(fills)) >= 6
    lines = tab.run(
        "[...document.querySelectorAll('svg.plot path[style*=\"fill: none; stroke\"]')]"
        ".map(e => getComputedStyle(e).stroke)"
    )
    assert lines
    assert not {"none", "rgb(0, 0, 0)"} & set(lines)
    texts = tab.run(
        "[...document.querySelectorAll('svg.plot text')].map(e => getComputedStyle(e).fill)"
    )
    assert len(set(texts)) == 2
    ground = tab.run("getComputedStyle(document.body).backgroundColor")
    assert ground not in {*fills, *lines, *texts}


def test_the_numbers_of_a_figure_open_and_sort(tab):
    tab.size(1200)
    tab.click("#chains summary")
    assert tab.run("document.querySelector('#chains details').open")
    heading = "#chains-numbers th:nth-child(5)"
    tab.click(f"{heading} button")
    shown = tab.run(
        "[...document.querySelectorAll('#chains-numbers tbody tr')]"
        ".map(r => Number(r.cells[4].dataset.sort))"
    )
    assert shown == sorted(shown, reverse=True)
    assert tab.run(f"document.querySelector('{heading}').ariaSort") == "descending"
    assert tab.problems == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda row: row["speedup"]["compile"].pop("value"),
        lambda row: row["speedup"].update(compile=None),
        lambda row: row["speedup"]["compile"].update(value="fast"),
        lambda row: row["timings"]["compile"].update(median_ns=0),
        lambda row: row["timings"]["eager"].update(median_ns=0),
    ],
)
def test_numbers_that_are_missing_or_nothing_end_the_command_in_one_line(tmp_path, capsys, spoil):
    (path,) = (p for p in RESULTS if p.stem == "compile_resnet_convolutions_cpu")
    content = stored.load(path)
    spoil(content["rows"][0])
    path = write(tmp_path, content)
    assert bench_report.main([str(path), "-o", str(tmp_path / "r.html")]) == cli.MISUSE
    assert "is not as this version's benches write it" in capsys.readouterr().err
