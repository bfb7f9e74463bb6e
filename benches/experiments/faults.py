# SPDX-License-Identifier: Apache-2.0
"""What becomes of kills, full disks and damage: counts over the tests that inject them.

    python -m benches.experiments.faults [--quick] [--store FILE]

Runs the tests that count what they inject (``tests/faults.py``), the slow ones too, and adds up
what they counted. After a fault the next run gives the right answer (healed), or an error of this
package says what is wrong (errors); anything else is wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benches.experiments import command
from pytest_udftorch import UdfError

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/swap/test_build_faults.py",
    "tests/base/test_writer_faults.py",
    "tests/swap/test_out_of_memory.py",
)
COUNTS = ("injected", "healed", "errors")


class NothingCountedError(UdfError):
    """The tests did not run, or counted nothing."""


def counted(report: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the rows that the tests of a JUnit report counted, and the outcomes of the tests."""
    rows: list[dict[str, Any]] = []
    tests = {"tests": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(report).iter("testcase"):
        tests["tests"] += 1
        tests["failed"] += case.find("failure") is not None or case.find("error") is not None
        tests["skipped"] += case.find("skipped") is not None
        for entry in case.iter("property"):
            if entry.get("name") == "faults":
                rows += json.loads(entry.get("value", "[]"))
    return rows, tests


def added(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each kind of writer and fault, with what went wrong."""
    sums: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows:
        total = sums.setdefault((row["kind"], row["fault"]), dict.fromkeys(COUNTS, 0))
        for name in COUNTS:
            total[name] += row[name]
    return [
        {"kind": kind, "fault": fault, **t, "wrong": t["injected"] - t["healed"] - t["errors"]}
        for (kind, fault), t in sums.items()
    ]


def measure(quick: bool) -> dict[str, Any]:
    """Run the tests and add up what they counted."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        which = "not slow" if quick else "slow or not slow"
        subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which,
                "-o", "junit_family=xunit1", f"--junitxml={report}", *TESTS,
            ],
            cwd=ROOT,
            check=False,
        )  # fmt: skip
        if not report.is_file():
            raise NothingCountedError("pytest wrote no report. Run it by hand to see why.")
        rows, tests = counted(report)
    if not rows:
        raise NothingCountedError("No test counted a fault. Run pytest by hand to see why.")
    return {"rows": added(rows), **tests, "slow_tests_too": not quick}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("faults", __doc__)
    parser.add_argument("--quick", action="store_true", help="without the slow tests")
    options = parser.parse_args(arguments)
    options.changed = ["--quick"] if options.quick else []

    def judge(figures: dict[str, Any]) -> bool:
        for row in figures["rows"]:
            print(row)
        return not figures["failed"] and not any(row["wrong"] for row in figures["rows"])

    return command.run("faults", options, lambda: measure(options.quick), judge)


if __name__ == "__main__":
    sys.exit(main())
