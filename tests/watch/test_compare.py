# SPDX-License-Identifier: Apache-2.0
"""Comparing: what changed between files of every kind, limits, and what cannot be compared."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from certificates import SUBJECT, make, make_run
from counts import META, Recorder

from pytest_udftorch import cli
from pytest_udftorch.errors import CompareError
from pytest_udftorch.prove.verify.certificate import Tally
from pytest_udftorch.prove.verify.certificate_file import save_certificate
from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.records.profile import Profile
from pytest_udftorch.watch.compare import baseline, change, outputs
from pytest_udftorch.watch.compare import views as show
from pytest_udftorch.watch.compare.figures import QUANTITIES, Figures


def summary(values, function="exp", **meta):
    recorder = Recorder()
    for argument in values:
        recorder.call(function, np.asarray(argument, np.float32))
    profile = Profile.from_arrays(
        recorder.strings, META | {"clocks": recorder.clocks} | meta, cells=recorder.cells,
        operators=recorder.operators,
    )  # fmt: skip
    return profile.summary()


def made(**tests):
    found = baseline.Baseline({"cpu": "one"})
    for test, given in tests.items():
        found.add(f"test_x.py::{test}", summary(given))
    return found


def limited(old, new, *limits):
    return change.compare([old.figures("old"), new.figures("new")], change.limits_of(limits))


# Steps of quantities -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "amount", "text"),
    [
        ((-1.0, 2.0), (-1.0, 2.0), 0, ""),
        ((-1.0, 2.0), (-1.0, 8.0), 2, "+2 binades"),
        ((-4.0, 2.0), (-1.0, 2.0), -2, "-2 binades"),
        # What grows counts, though the other side shrinks.
        ((-4.0, 2.0), (-1.0, 3.0), math.log2(1.5), "+0.58 binades"),
        ((0.5, 2.0), (-0.25, 2.0), math.inf, "new side"),
        ((0.5, 2.0), (0.5, math.inf), math.inf, "new side"),
        ((0.5, 2.0), (0.25, 2.0), 0, "other small values"),
        (None, (0.25, 2.0), math.inf, "new side"),
    ],
)
def test_a_range_grows_by_binades(old, new, amount, text):
    step = QUANTITIES["in"].step(old, new)
    assert (step.amount, step.text) == (amount, text)


def test_results_move_by_ulp():
    old = {"3f800000": "3f800000", "40000000": "40ec7326"}
    step = QUANTITIES["outputs"].step(old, {"3f800000": "3f800002", "40000000": "40ec7325"})
    assert (step.amount, step.text) == (2, "2 ULP")
    # Arguments that only one has say nothing; none in common is not the same as no change.
    assert QUANTITIES["outputs"].step(old, {"3f800000": "3f800000"}).amount == 0
    assert QUANTITIES["outputs"].step(old, {"3f900000": "3f800000"}).amount is None
    assert QUANTITIES["outputs"].step(old, {"3f800000": "7fc00000"}).amount == math.inf
    across = QUANTITIES["outputs"].step({"0": "80000001"}, {"0": "00000001"})
    assert across.amount == 2


def test_times_whose_middle_halves_overlap_are_not_told_apart():
    step = QUANTITIES["time"].step
    old = {"ns": 10.0, "low": 9.0, "high": 11.0}
    assert step(old, {"ns": 12.0, "low": 10.5, "high": 13.0}).amount == 0
    assert step(old, {"ns": 12.0, "low": 11.5, "high": 13.0}).share == pytest.approx(0.2)
    assert step({"ns": 10.0}, {"ns": 12.0}).share == pytest.approx(0.2)


# Limits ------------------------------------------------------------------------------


def test_limits():
    assert [str(x) for x in change.limits_of(["time:10%, ulp:1", "range:0.5"])] == [
        "time:10%", "ulp:1", "range:0.5",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time", "is not a limit. Write a word, a colon and a number"),
        ("time:-1", "is not a limit"),
        ("tiem:1", "no limit 'tiem'. Did you mean 'time'"),
        ("ulp:10%", "a percentage of ulp has no meaning"),
        ("range:10%", "binades, factors of two"),
        ("", "'' is not a limit"),
    ],
)
def test_what_is_no_limit(text, says):
    with pytest.raises(CompareError, match=says):
        change.limits_of([text])


def test_what_is_beyond_a_limit():
    old, new = made(a=[[1, 2]], b=[[0, 4]]), made(a=[[1, 2], [1]], b=[[0, 4.5]])
    assert limited(old, new).failures == []
    assert limited(old, new, "count:100%", "range:1", "nan:0").failures == []
    assert limited(old, new, "count:0").failures == [
        "test_x.py::a, exp: operator calls: 1 in old, 2 in new (+100.0 %); the limit is count:0.",
        "test_x.py::a, exp: elements: 2 in old, 3 in new (+50.0 %); the limit is count:0.",
    ]
    assert limited(old, new, "range:0.1", "count:60%").failures == [
        "test_x.py::a, exp: operator calls: 1 in old, 2 in new (+100.0 %); the limit is count:60%.",
        "test_x.py::b, exp: range in: 0 … 4 in old, 0 … 4.5 in new (+0.17 binades); the limit is "
        "range:0.1.",
        "test_x.py::b, exp: range out: 1 … 54.6 in old, 1 … 90.02 in new (+0.72 binades); the "
        "limit is range:0.1.",
    ]


def test_a_limit_of_zero_allows_no_change_and_no_more():
    old = made(a=[[1, 2]])
    everything = ("count:0", "range:0", "nan:0", "inf:0")
    assert limited(old, made(a=[[1, 2]]), *everything).failures == []
    assert len(limited(old, made(a=[[1, 3]]), *everything).failures) == 2  # in and out
    assert "infinities made" in limited(old, made(a=[[1, 200]]), "inf:0").failures[0]


def test_a_function_that_a_test_no_longer_calls_was_called_0_times():
    old, new = made(a=[[1]], b=[[1]]), made(a=[[1]])
    new.add("test_x.py::b", summary([[1.5]], "log"))
    sentences = limited(old, new, "count:0").failures
    assert "test_x.py::b, exp: elements: 1 in old, 0 in new (gone); the limit is count:0." in (
        sentences
    )
    assert "test_x.py::b, log: elements: 0 in old, 1 in new (new); the limit is count:0." in (
        sentences
    )
    # A test that did not run says nothing.
    assert limited(old, made(a=[[1]]), "count:0").failures == []
    assert ("test_x.py::b", "exp") in dict(limited(old, made(a=[[1]])).only)


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("time:5%", "Profile with the depth timed"),
        ("ulp:1", "ran on the CPU"),
        ("wrong:0", "certif"),
    ],
)
def test_a_limit_on_what_is_not_there_is_an_error(limit, says):
    with pytest.raises(CompareError, match=says):
        limited(made(a=[[1]]), made(a=[[1]]), limit)


# Baselines ---------------------------------------------------------------------------


def test_a_baseline_reads_back_and_is_the_same_text_each_time(tmp_path):
    old = made(b=[[1, 200]], a=[[-math.inf, 0.1]])
    old.outputs = {"corem exp float32": {"3f800000": "402df854"}}
    old.save(tmp_path / "deep" / "main.json")
    text = (tmp_path / "deep" / "main.json").read_text()
    back = baseline.load(tmp_path / "deep" / "main.json")
    assert (
        back.file_text()
        == text
        == made(a=[[-math.inf, 0.1]], b=[[1, 200]])
        .file_text()
        .replace(
            '"outputs": {}', '"outputs": {\n  "corem exp float32": {"3f800000": "402df854"}\n }'
        )
    )
    assert limited(old, back, "count:0", "range:0", "ulp:0").failures == []
    assert '"in": ["-inf", "0.10000000149011612"]' in text
    # A row of a test is a line.
    assert sum("operator_calls" in line for line in text.splitlines()) == 2


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: d.pop("tests"), "lacks tests"),
        (lambda d: d["tests"]["test_x.py::a"]["corem exp float32"].pop("in"), "lacks in"),
        (lambda d: d["tests"]["test_x.py::a"]["corem exp float32"].update(nan=-1), "nan is -1"),
        (
            lambda d: d["tests"]["test_x.py::a"]["corem exp float32"].update({"in": ["-", "1"]}),
            "'-'",
        ),
        (lambda d: d.update(outputs={"x": {"12": "3f800000"}}), "'12'"),
        (lambda d: d.update(format="other"), "format is 'other'"),
    ],
)
def test_a_damaged_baseline(damage, says, tmp_path):
    data = json.loads(made(a=[[1]]).file_text())
    damage(data)
    (tmp_path / "main.json").write_text(json.dumps(data))
    with pytest.raises(CompareError, match=says):
        baseline.load(tmp_path / "main.json")


def test_names_of_baselines(tmp_path):
    assert baseline.path_of("main", tmp_path) == tmp_path / "main.json"
    for name in ("../main", "", ".hidden", "a/b", "a b"):
        with pytest.raises(CompareError, match="is not a name of a baseline"):
            baseline.path_of(name, tmp_path)
    made(a=[[1]]).save(tmp_path / "main.json")
    with pytest.raises(CompareError, match=r"There: main\. Make it with pytest --udf-save=mian"):
        baseline.load(tmp_path / "mian.json")
    (tmp_path / "file").touch()
    with pytest.raises(CompareError, match="Cannot write the baseline"):
        made(a=[[1]]).save(tmp_path / "file" / "main.json")


def test_arguments_are_the_same_for_all_runs():
    for name, function in FUNCTIONS.items():
        for dtype, digits in (("float32", 8), ("float64", 16)):
            texts = outputs.arguments_of(name, dtype)
            assert len(set(texts)) == outputs.COUNT
            assert all(len(t) == digits * function.arity + function.arity - 1 for t in texts)
    assert outputs.arguments_of("exp", "float32")[0] == "c1a00000"  # -20


# The command -------------------------------------------------------------------------


def test_command_on_profiles(tmp_path, capsys):
    for name, top in (("a", 1), ("b", 4), ("c", 64)):
        recorder = Recorder()
        recorder.call("exp", np.array([0.5, top], np.float32), module=name)
        recorder.write(tmp_path / name / "profiled-1.bin")
    paths = [str(tmp_path / name) for name in "abc"]
    out = ["--json", str(tmp_path / "c.json"), "-o", str(tmp_path / "c.html")]
    assert cli.main(["compare", *paths, *out]) == 0
    text = capsys.readouterr().out
    assert re.search(r"exp: range in +0.5 … 1 +0.5 … 4 ", text)
    assert "+2 binades" in text
    assert "+6 binades" in text
    assert "\033[" not in text
    assert text.endswith("\n4 other figures are the same\n")
    data = json.loads((tmp_path / "c.json").read_text())
    (row,) = [c for c in data["changes"] if c["quantity"] == "in"]
    assert [s["amount"] for s in row["changes"]] == [2, 6]
    page = (tmp_path / "c.html").read_text()
    assert "+6 binades" in page
    assert "beyond the limit" not in page
    assert cli.main(["compare", *paths, "--fail", "range:3", *out]) == cli.FAILED
    assert capsys.readouterr().err.count("FAILED: exp: range in: 0.5 … 1 in a, 0.5 … 64 in c") == 1
    assert "beyond the limit" in (tmp_path / "c.html").read_text()
    # Layers of other names have nothing in common.
    assert cli.main(["compare", *paths[:2], "--by=layer"]) == cli.MISUSE
    assert "have no row in common: a exp against b exp" in capsys.readouterr().err


def bench(path, median, spread=0.05):
    quartiles = {"low": median * (1 - spread), "median": median, "high": median * (1 + spread)}
    row = {"operator": "exp", "contender": "mine", "ns_per_element": quartiles}
    path.write_text(json.dumps({
        "format": "udftorch-bench/1", "library": "mine", "dtype": "float32", "elements": 10,
        "runs": 7, "threads": 1, "machine": {"cpu": "x"},
        "rows": [row | {"ratio_to_stock": quartiles}],
    }))  # fmt: skip
    return str(path)


def test_command_on_benches(tmp_path, capsys):
    slow, fast = bench(tmp_path / "old.json", 2.0), bench(tmp_path / "new.json", 3.0)
    near = bench(tmp_path / "near.json", 2.1)
    assert cli.main(["compare", slow, near, "--fail=time:1%"]) == 0
    assert "+5.0 %, within the spread" in capsys.readouterr().out
    assert cli.main(["compare", slow, fast, "--fail=time:10%"]) == cli.FAILED
    assert "2 ns in old, 3 ns in new (+50.0 %)" in capsys.readouterr().err
    assert cli.main(["compare", fast, slow, "--fail=time:10%"]) == 0
    stats = {"median": 1e-6, "q1": 0.9e-6, "q3": 1.1e-6}
    other = tmp_path / "pytest-benchmark.json"
    other.write_text(json.dumps({"benchmarks": [{"fullname": "t.py::t", "stats": stats}]}))
    assert cli.main(["compare", str(other), str(other), "--all"]) == 0
    assert "t.py::t: time" in capsys.readouterr().out


def test_command_on_certificates(tmp_path, capsys):
    paths = []
    for library, wrong in (("corem", 0), ("mine", 12)):
        path = tmp_path / library / "exp.float32.certificate.json"
        save_certificate(make(make_run(wrong=wrong), library=library), path)
        paths.append(str(path))
    assert cli.main(["compare", *paths, "--fail=wrong:0"]) == cli.FAILED
    said = capsys.readouterr()
    assert "exp float32, the worst form: not correctly rounded" in said.out
    assert "0 in corem, 12 in mine (new); the limit is wrong:0." in said.err
    assert cli.main(["compare", *paths[::-1], "--fail=wrong:0"]) == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [("{}", "is nothing that can be compared"), ("[", "it is not JSON"), (None, "Cannot read"),
     ('{"format": "udftorch-bench/1"}', "lacks"), ('{"benchmarks": [{}]}', "lacks fullname")],
)  # fmt: skip
def test_what_cannot_be_compared(text, says, tmp_path, capsys):
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    assert cli.main(["compare", str(path), str(path)]) == cli.MISUSE
    assert says in capsys.readouterr().err


def test_kinds_are_not_mixed(tmp_path, capsys):
    made(a=[[1]]).save(tmp_path / "base.json")
    assert cli.main(["compare", str(tmp_path / "base.json"), bench(tmp_path / "b.json", 2)]) == 2
    assert "base is a profile and b a bench" in capsys.readouterr().err
    with pytest.raises(CompareError, match="at least two"):
        change.compare([Figures("one", "bench", {})])


def test_colours_say_what_is_worse():
    old, new = made(a=[[1, 2]]), made(a=[[1, 8]])
    text = show.text(limited(old, new, "range:1"), colour=True)
    assert "\033[31mtest_x.py::a, exp: range in" in text
    assert "\033[33mtest_x.py::a, exp: range in" in show.text(limited(old, new), colour=True)
    assert "\033[32mtest_x.py::a, exp: range in" in show.text(limited(new, old), colour=True)


# Claims ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "found"),
    [(None, None), (0.5, (9, 9)), (1.0, (7, 7)), (1.5, (2, 7)), (2.0, (2, 2)), (8.0, (0, 0))],
)
def test_results_against_a_claim_are_not_those_that_are_rounded_otherwise(bound, found):
    # 91 below half an ULP, 5 from 1 to 2, 2 from 2 to 4, the largest 3.
    tally = Tally(inputs=100, wrong=9, histogram={3: 91, 40: 2, 64: 5, 65: 2}, worst_ulp=3.0)
    assert tally.beyond(bound) == found
    assert SUBJECT["max_ulp"] == 0.5
