# SPDX-License-Identifier: Apache-2.0
"""Results that are older than the code they measure are listed."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from benches.stale import stale

EXPERIMENT = "from pytest_udftorch.wing import room\nfrom pytest_udftorch.wing.other import name\n"


@pytest.fixture
def repository(tmp_path):
    """A repository; returns what commits files on a day."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)

    def commit(day, **files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path = path.with_suffix(".json" if "results" in name else ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
        when = f"{day}T12:00:00+00:00"
        given = ["-c", "user.name=n", "-c", "user.email=e@e", "commit", "-qm", "m"]
        environment = os.environ | {"GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when}
        subprocess.run(["git", *given], cwd=tmp_path, check=True, env=environment)

    return tmp_path, commit


def result(day):
    command = "python -m benches.store speed"
    return json.dumps({"command": command, "environment": {"date": day}})


def test_a_result_that_is_older_than_what_it_measures_is_listed(repository):
    root, commit = repository
    commit(
        "2026-01-02",
        benches__experiments__speed=EXPERIMENT,
        pytest_udftorch__wing__room="a = 1",
        pytest_udftorch__wing__other="name = 1",
        pytest_udftorch__wing__third="c = 1",
        benches__results__speed=result("2026-01-02"),
    )
    assert stale(root) == []
    # What it does not import is not what it measures.
    commit("2026-01-03", pytest_udftorch__wing__third="c = 2")
    assert stale(root) == []
    commit("2026-01-04", pytest_udftorch__wing__room="a = 2")
    commit("2026-01-05", benches__experiments__speed=EXPERIMENT + "b = 1\n")
    (found,) = stale(root)
    assert (found.name, found.stored) == ("speed.json", "2026-01-02")
    assert found.changed == (
        ("benches/experiments/speed.py", "2026-01-05"),
        ("pytest_udftorch/wing/room.py", "2026-01-04"),
    )
    assert found.line() == (
        "speed.json: of 2026-01-02; benches/experiments/speed.py was changed on 2026-01-05 "
        "and 1 more"
    )
    commit("2026-01-06", benches__results__speed=result("2026-01-06"))
    assert stale(root) == []
