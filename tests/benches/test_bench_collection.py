# SPDX-License-Identifier: Apache-2.0
"""``pytest benches`` collects the benches, and not the suites of others among their data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def collected(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [line for line in done.stdout.splitlines() if "::" in line and "SKIPPED" not in line]


def usual():
    tests = collected("benches/")
    assert len(tests) > 90
    return set(tests)


def test_the_folder_has_the_benches_alone():
    assert {test.partition("::")[0].rpartition("/")[0] for test in usual()} == {"benches/suites"}


@pytest.mark.slow
def test_the_long_ones_and_the_suites_of_others_are_asked_for():
    # The suite of torch's operators is run by its name.
    database = "benches/data/foreign/torch/test_database.py"
    found = collected("benches/suites", database, "-m", "slow or not slow")
    foreign = {test for test in found if test.startswith(database)}
    assert len(foreign) > 1000, "the control"
    every = set(found) - foreign
    assert usual() < every
    assert len(every) < 300
