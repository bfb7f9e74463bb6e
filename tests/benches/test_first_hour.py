# SPDX-License-Identifier: Apache-2.0
"""The script of the first hour: which steps it takes, and what it notes of one."""

import os
from pathlib import Path

from benches.experiments import first_hour

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_steps_are_those_of_the_readme():
    steps = first_hour.steps(README)
    assert steps[0] == "make demo"
    assert any(step.startswith("udftorch diff ") for step in steps)
    assert any(step.startswith("pytest --udf-lib=") for step in steps)
    assert steps.index(".ci/setup") > steps.index("make demo")


def test_a_step_is_noted_with_its_status_and_the_words_on_the_screen(tmp_path):
    row = first_hour.run("echo one two; echo three >&2; exit 4", tmp_path, dict(os.environ))
    assert (row["status"], row["words"], row["last"]) == (4, 3, "three")
    assert first_hour.run("true", tmp_path, dict(os.environ))["last"] == ""


def test_a_clone_has_its_own_cache_and_nothing_of_this_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("UDFTORCH_PREBUILT", "somewhere")
    environment = first_hour.clone(tmp_path / "clone")
    assert (tmp_path / "clone" / ".ci" / "setup").is_file()
    assert environment["UDFTORCH_CACHE_DIR"] == str(tmp_path / "clone-cache")
    assert "UDFTORCH_PREBUILT" not in environment


def test_another_torch_is_seen(tmp_path):
    site = tmp_path / ".venv" / "lib" / "python3.12" / "site-packages"
    (site / "torch-2.14.1.dist-info").mkdir(parents=True)
    before = first_hour.torch_state(tmp_path)
    assert first_hour.torch_state(tmp_path) == before
    (site / "torch-2.14.1.dist-info").rename(site / "torch-2.15.0.dist-info")
    assert first_hour.torch_state(tmp_path) != before
