# SPDX-License-Identifier: Apache-2.0
"""Records of other projects' suites are read strictly and compared test by test."""

from __future__ import annotations

import json

import pytest

from benches import stored
from benches.experiments import foreign_suites as foreign
from benches.experiments import versions


def line(test, outcome="passed", phase="call", *, xfail=False, message=""):
    return {
        "id": test, "phase": phase, "outcome": outcome, "xfail": xfail, "message": message
    }  # fmt: skip


def written(path, *lines, mathematics=("a", "a")):
    begin, *end = [{"mathematics": digest} for digest in mathematics]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in [begin, *lines, *end]))
    return path


def test_the_first_phase_that_did_not_pass_decides(tmp_path):
    run = foreign.read(
        written(
            tmp_path / "r",
            line("passed", phase="setup"), line("passed"), line("passed", phase="teardown"),
            line("failed", phase="setup"), line("failed", "failed", message="1 != 2"),
            line("failed", "failed", "teardown", message="gone"),
            line("fixture", "failed", "setup"),
            line("late"), line("late", "failed", "teardown"),
            line("skipped", "skipped", "setup"),
            line("expected", "skipped", xfail=True), line("surprise", xfail=True),
        )
    )  # fmt: skip
    assert run.outcomes == {
        "passed": "passed", "failed": "failed", "fixture": "error", "late": "error",
        "skipped": "skipped", "expected": "xfailed", "surprise": "xpassed",
    }  # fmt: skip
    assert run.messages == {"failed": "1 != 2"}
    assert run.counts()["error"] == 2


@pytest.mark.parametrize("mathematics", [("a",), ("a", "b")])
def test_a_process_that_ended_early_or_lost_its_library_is_an_error(tmp_path, mathematics):
    record = written(tmp_path / "r", line("t"), mathematics=mathematics)
    with pytest.raises(foreign.SuiteError, match=r"ended early, or tests changed its mathematics"):
        foreign.read(record)


def test_an_empty_selection_is_an_error(tmp_path):
    with pytest.raises(foreign.SuiteError, match="holds no test: the selection is empty"):
        foreign.read(written(tmp_path / "r"))


def run(mathematics, **outcomes):
    return foreign.Run(outcomes, {}, mathematics, 1.0)


class Reruns:
    """A suite whose further runs are given."""

    suite = foreign.SUITES["zuko"]

    def __init__(self, runs):
        self.runs = runs
        self.asked = []

    def run(self, way, tests, *, selected=True):
        assert not selected
        self.asked.append((way.name, list(tests)))
        return next(self.runs[way.name])


def compared(std, corem, /, **runs):
    suite = Reruns({name: iter(values) for name, values in runs.items()})
    found = foreign.compare(suite, foreign.STD, foreign.COREM, {"std": std, "corem": corem})
    return found, suite


def test_outcomes_that_agree_run_once():
    std = run("a", one="passed", two="failed", three="skipped", four="error")
    found, suite = compared(std, run("b", **std.outcomes))
    assert suite.asked == []
    kinds = ("tests", "passed", "skipped", "failed_both", "differing", "explained")
    assert [found[kind] for kind in kinds] == [4, 1, 1, 2, 0, 0]


def test_a_test_that_differs_runs_again_and_needs_an_explanation(monkeypatch):
    alone = {
        "std": [run("a", one="passed", two="passed"), run("a", one="passed", two="failed")],
        "corem": [run("b", one="failed", two="failed"), run("b", one="failed", two="failed")],
    }
    std, corem = run("a", one="passed", two="passed"), run("b", one="failed", two="failed")
    found, suite = compared(std, corem, **alone)
    assert suite.asked == [("std", ["one", "two"]), ("corem", ["one", "two"])] * 2
    assert (found["differing"], found["explained"]) == (2, 1)
    one, two = found["differences"]
    assert (one["test"], one["std"], one["corem"], one["explained"]) == (
        "one",
        "passed",
        "failed",
        "",
    )
    assert two["explained"] == "ends one way and the other under one library too"
    monkeypatch.setattr(foreign, "EXPLAINED", {("zuko", "one"): "a tolerance of 0"})
    found, _ = compared(std, corem, **alone)
    assert found["explained"] == 2


def test_a_test_that_only_one_process_ran_differs():
    found, _ = compared(
        run("a", one="passed"), run("b", one="passed", two="passed"),
        std=[run("a", two="passed")] * 2, corem=[run("b", two="passed")] * 2,
    )  # fmt: skip
    assert [row["test"] for row in found["differences"]] == ["two"]


def test_a_process_without_the_library_is_an_error():
    with pytest.raises(foreign.SuiteError, match="corem computed with std's functions"):
        compared(run("a", one="passed"), run("a", one="passed"))


JUNIT = """<testsuites><testsuite>
<testcase classname="t" name="fine"/>
<testcase classname="t" name="left out"><skipped/></testcase>
<testcase classname="t" name="wrong"><failure/></testcase>
<testcase classname="t" name="torn"><error/></testcase>
</testsuite></testsuites>"""


def test_a_version_counts_failures_and_errors(tmp_path):
    report = tmp_path / "junit.xml"
    report.write_text(JUNIT)
    assert versions.counted(report) == {
        "tests": 4, "passed": 1, "skipped": 1, "failed": 2, "not_passed": ["t::wrong", "t::torn"]
    }  # fmt: skip
    report.write_text("<testsuites/>")
    with pytest.raises(versions.VersionError, match="no test ran"):
        versions.counted(report)


def test_a_row_of_the_same_versions_is_replaced_and_the_others_stay():
    def row(python, torch, failed):
        return {"python": python, "torch": torch, "failed": failed}

    old = [row("3.9.1", "2.11.0", 1), row("3.11.7", "2.15.0+cu132", 1)]
    new = [row("3.11.7", "2.15.0+cu132", 0), row("3.11.7", "2.9.1", 0)]
    found = versions.merged(old, new)
    assert [(r["python"], r["torch"], r["failed"]) for r in found] == [
        ("3.9.1", "2.11.0", 1), ("3.11.7", "2.9.1", 0), ("3.11.7", "2.15.0+cu132", 0)
    ]  # fmt: skip


def test_what_is_stored_explains_every_difference():
    suites = stored.load(stored.RESULTS / "foreign_suites.json")["suites"]
    assert [row["suite"] for row in suites] == list(foreign.SUITES)
    for row in suites:
        assert row["tests"] >= row["passed"] + row["skipped"] + row["failed_both"]
        assert row["differing"] == row["explained"] == len(row["differences"])
        std, corem = row["runs"]["std"], row["runs"]["corem"]
        assert std["mathematics"] != corem["mathematics"]
        assert (std["sha256_of_outcomes"] == corem["sha256_of_outcomes"]) == (not row["differing"])
        assert row["controls"]["null"]["differing"] > 0
