# SPDX-License-Identifier: Apache-2.0
"""The counts of injected faults come from the tests that inject them."""

from __future__ import annotations

import pytest
from faults import Faults

from benches.experiments import faults as bench


def fail():
    raise ZeroDivisionError


def test_a_fault_is_healed_refused_or_wrong():
    found = Faults()
    with found("build", "kill"):
        pass
    with found("build", "kill") as fault:
        fault.refused = True
    with pytest.raises(ZeroDivisionError), found("build", "kill"):
        fail()
    found.add("plan", "kill", 5, 3, 1)
    rows = [vars(row) for row in found.rows]
    assert bench.added(rows) == [
        {"kind": "build", "fault": "kill", "injected": 3, "healed": 1, "errors": 1, "wrong": 1},
        {"kind": "plan", "fault": "kill", "injected": 5, "healed": 3, "errors": 1, "wrong": 1},
    ]


def test_a_report_of_pytest_is_read(pytester, tmp_path):
    """The fixture, and a test that fails after it counted."""
    from pathlib import Path

    conftest = (Path(__file__).parents[1] / "conftest.py").read_text()
    pytester.makeconftest(conftest)
    pytester.makepyfile(
        """
        def test_right(faults):
            faults.add("plan", "kill", 2, 2)

        def test_wrong(faults):
            with faults("plan", "kill"):
                assert False

        def test_other():
            pass
        """
    )
    report = tmp_path / "report.xml"
    pytester.runpytest("-o", "junit_family=xunit1", f"--junitxml={report}", "-p", "no:randomly")
    rows, tests = bench.counted(report)
    assert tests == {"tests": 3, "failed": 1, "skipped": 0}
    assert bench.added(rows) == [
        {"kind": "plan", "fault": "kill", "injected": 3, "healed": 2, "errors": 0, "wrong": 1}
    ]
