# SPDX-License-Identifier: Apache-2.0
"""README and docs show what is stored, and nothing else."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benches import store, stored
from benches.experiments import asked, speed
from benches.render import docs as render_docs
from benches.render import drawings
from benches.render.docs import DocsError, Results, fill

ROOT = Path(__file__).parents[2]

#: The certificates are those of the repository in every test, and take half of a rendering.
load_once = functools.cache(render_docs.load_certificate)


def test_the_docs_are_up_to_date(capsys):
    status = render_docs.main(["--check"])
    assert status == 0, capsys.readouterr().out + "Run python -m benches.render.docs."


def test_links_between_the_pages_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([\w./-]+\.(?:md|svg|png))", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 40
    assert [(p.name, link) for p, link in links if not (p.parent / link).exists()] == []


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the pages and results in a folder of their own."""
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
    for relative in (*render_docs.WHOLE, render_docs.SPEED_SVG):
        (tmp_path / relative).write_text((ROOT / relative).read_text())
    monkeypatch.setattr(render_docs, "ROOT", tmp_path)
    monkeypatch.setattr(render_docs, "load_certificate", load_once)
    return tmp_path


def test_what_is_stale_is_found_and_put_right(tree, capsys):
    """An edited number, a drawing of other numbers, and a page that is missing."""
    page = tree / "docs" / "results" / "results.md"
    drawing = tree / render_docs.SPEED_SVG
    missing = tree / "docs" / "results" / "reach.md"
    right, drawn = page.read_text(), drawing.read_text()
    digest = drawings.digest(drawings.speed_numbers(Results()["speed"]))
    assert drawn.count(digest) == 1
    page.write_text(re.sub(r"\d\.\d+ \|", "0.001 |", right, count=1))
    assert page.read_text() != right
    drawing.write_text(drawn.replace(digest, digest[::-1]))
    missing.unlink()
    assert render_docs.main(["--check"]) == 1
    said = capsys.readouterr().out
    for name in ("results.md", "speed.svg", "reach.md"):
        assert f"docs/results/{name} is stale" in said
    assert "docs/results/accuracy.md" not in said, "the control"
    assert render_docs.main([]) == 0
    assert page.read_text() == right
    assert drawing.read_text().count(digest) == 1
    assert missing.is_file()
    assert render_docs.main(["--check"]) == 0


def test_a_drawing_is_the_same_every_time_and_follows_the_numbers():
    numbers = {"avx512": {"exp": {"corem": 0.2, "vml": 0.6}, "log": {"corem": 0.3}}}
    drawn = drawings.speed_svg(numbers)
    assert drawings.speed_svg(numbers) == drawn
    assert ">exp</text>" in drawn
    assert ">vml</text>" in drawn
    numbers["avx512"]["exp"]["corem"] = 0.4
    assert drawings.speed_svg(numbers) != drawn


def test_the_best_approximate_library_is_the_one_drawn():
    level = {"corem": {"ns": 0.3}, "vml": {"ns": 0.6}, "sleef u10": {"ns": 0.2},
             "intel-cr": {"ns": 0.1}}  # fmt: skip
    document = {"functions": {"exp": {"avx512": level}, "log": {"avx512": {"corem": {"ns": 1.0}}}}}
    ratios = drawings.best_numbers(document)
    # Correctly rounded libraries do not count, nor functions that nothing else has.
    assert ratios == {"avx512": {"exp": {"sleef u10": 1.5}}}
    drawn = drawings.best_svg(ratios)
    assert ">exp</text>" in drawn
    assert ">sleef u10</text>" in drawn
    level["sleef u10"]["ns"] = 0.7
    assert drawings.best_numbers(document) == {"avx512": {"exp": {"vml": 0.5}}}


def test_figures_asked_for():
    def over(ratio):
        return {"corem_over": ratio}

    speeds = {
        "functions": {
            "exp": {
                "avx512": {
                    "vml": over(1.1), "sleef u10": over(1.9), "intel-cr": over(0.9),
                    "llvm-libc": over(0.3), "intel 1-ulp": over(9),
                },
                "avx2": {"llvm-libc": over(0.3), "vml": over(9)},
                "scalar": {"glibc": over(1.3), "llvm-libc": over(2)},
            },
            "erf": {"avx512": {"vml": over(1.2), "intel 1-ulp": over(1.1)}},
        },
        "operators": {
            "softmax": over(1.3), "elu": over(0.9),
            "torch.exp": over(1.05), "torch.erf": over(1.05),
        },
    }  # fmt: skip
    figures = asked.figures(speeds)
    assert [(f.what, f.level, f.peer) for f in figures if f.measured > f.limit] == [
        ("exp", "avx512", "vml"),
        ("exp", "avx512", "sleef u10"),
        ("exp", "avx512", "llvm-libc"),
        ("exp", "scalar", "glibc"),
        ("erf", "avx512", "vml"),
        ("erf", "avx512", "intel 1-ulp"),
        ("softmax", "operator", "std"),
        ("torch.exp", "operator", "std"),
        ("geometric mean of 2 functions", "avx512", "intel 1-ulp"),
        ("geometric mean of 2 operators by VML", "operator", "std"),
    ]
    assert len(figures) == 13
    assert figures[-2].measured == pytest.approx((9 * 1.1) ** 0.5)


def test_a_mean_is_asked_for_each_level_and_over_vml_alone():
    level = {"intel 1-ulp": {"corem_over": 1.1}}
    speeds = {
        "functions": {"tan": {"avx2": level}, "exp": {"avx2": level | {"vml": {"corem_over": 1}}}},
        "operators": {"torch.exp": {"corem_over": 0.5}, "torch.tan": {"corem_over": 9}},
    }
    means = [f for f in asked.figures(speeds) if "mean" in f.what]
    assert [(f.what, f.limit, f.measured) for f in means] == [
        ("geometric mean of 2 functions", 1.15, pytest.approx(1.1)),
        ("geometric mean of 1 operators by VML", 0.95, pytest.approx(0.5)),
    ]


def test_each_kind_of_cpu_has_its_file_and_each_file_is_shown():
    names = [
        speed.stem("speed", {"cpu": cpu, "cpu_level": level})
        for level in ("avx512", "avx2")
        for cpu in ("AMD EPYC", "Intel(R) Xeon(R) Processor")
    ]
    assert names == list(render_docs.SPEEDS)


def test_what_missed_code_executes_is_shown_with_its_ports(tmp_path):
    figures = {
        "instructions": 8.4, "cycles": {"znver4": 1.6}, "ports": {"znver4": {"FP1": 2.4}},
    }  # fmt: skip
    name = "speed_analysis_amd_avx2"
    document = Results()[name] | {
        "models": ["znver4"], "functions": {"erf": {"avx2": {"corem": figures}}},
    }  # fmt: skip
    (tmp_path / f"{name}.json").write_text(json.dumps(document))
    text = render_docs.missed_code(Results(tmp_path), "speed_amd_avx2")
    assert "| erf | avx2 | corem | 8.40 | 1.60 | FP1 2.40 |" in text
    assert render_docs.missed_code(Results(tmp_path), "speed_intel") == ""


def test_regions_are_filled_and_the_rest_is_kept():
    text = "a\n<!-- generated: costs -->\nstale\n<!-- end -->\nb\n"
    filled = fill(text, "p.md", Results())
    assert filled.startswith("a\n<!-- generated: costs -->\n| with all functions")
    assert filled.endswith("<!-- end -->\nb\n")
    assert "stale" not in filled
    assert fill(filled, "p.md", Results()) == filled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- generated: costz -->\n<!-- end -->\n", "asks for 'costz'.*costs"),
        ("<!-- generated: costs -->\nno end", "does not start a region"),
        ("<!-- generated:costs -->\n<!-- end -->\n", "does not start a region"),
        (
            "<!-- generated: costs -->\n<!-- generated: demo -->\n<!-- end -->\n",
            "no <!-- end -->",
        ),
    ],
)
def test_wrong_regions(text, message):
    with pytest.raises(DocsError, match=message):
        fill(text, "p.md", Results())


def test_missing_results(tmp_path, monkeypatch, capsys):
    with pytest.raises(DocsError, match=r"entry_exit\.json is missing.*benches\.store"):
        render_docs.costs(Results(tmp_path))
    assert render_docs.analysis(Results(tmp_path)) == ""
    monkeypatch.setattr(render_docs, "Results", lambda: Results(tmp_path))
    assert render_docs.main(["--check"]) == 2
    assert "Make it with" in capsys.readouterr().err


RESULTS = sorted(stored.RESULTS.glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.stem)
def test_stored_results_say_where_they_come_from(path):
    text = path.read_text()
    document = json.loads(text)
    # The compiler bench runs where no UDF is compiled and keeps these at the top.
    environment = document.get("environment", document)
    assert environment["machine"]["cpu"]
    assert {"torch", "python"} <= set(environment["versions"])
    assert environment["flags"]
    if "environment" in document:
        assert document["command"]
        assert "clang" in environment["versions"]
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", environment["date"])
    assert os.uname().nodename not in text or len(os.uname().nodename) < 4
    assert str(ROOT) not in text
    assert str(Path.home()) not in text


def test_what_is_stored_of_a_benchmark_file():
    document = {
        "machine_info": {"node": "secret"},
        "benchmarks": [
            {
                "name": "test_a[x]",
                "stats": {
                    "rounds": 3, "min": 1e-3, "q1": 2e-3, "median": 3e-3, "q3": 4e-3, "max": 5e-3,
                },
                "extra_info": {"functions": 2},
            }
        ],
    }  # fmt: skip
    assert store.condensed(document) == {
        "test_a[x]": {
            "rounds": 3,
            "time_ns": {
                "min": 1_000_000,
                "lower_quartile": 2_000_000,
                "median": 3_000_000,
                "upper_quartile": 4_000_000,
                "max": 5_000_000,
            },
            "functions": 2,
        }
    }


def test_store_refuses_unknown_names(capsys):
    with pytest.raises(SystemExit):
        store.main(["entry"])
    assert "not one of entry_exit, build" in capsys.readouterr().err


def test_summary():
    assert stored.summary([1, 2, 3, 4, 5]) == {
        "count": 5, "min": 1, "lower_quartile": 2.0, "median": 3.0, "upper_quartile": 4.0, "max": 5,
    }  # fmt: skip


def test_the_benches_run_and_their_record_names_no_host(tmp_path):
    record = tmp_path / "out.json"
    run = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", f"--benchmark-json={record}",
            "benches/suites/test_build.py::test_warm_lookup_in_the_same_process",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    document = json.loads(record.read_text())
    assert "node" not in document["machine_info"]
    assert document["machine_info"]["environment"]["versions"]["torch"]
    assert list(store.condensed(document)) == ["test_warm_lookup_in_the_same_process"]


def test_a_child_that_fails_says_so():
    from benches.experiments.child import Child

    child = Child()
    try:
        assert child.order(do="enter", library="std", functions=None)["ns"] > 0
        with pytest.raises(RuntimeError, match="the child ended with status 1"):
            child.order(do="build", library="nowhere")
    finally:
        child.close()
