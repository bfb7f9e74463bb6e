# SPDX-License-Identifier: Apache-2.0
"""The README: what it shows is what happens, and how it is laid out."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
#: Commands that the README shows with what they print.
SHOWN = [
    block
    for block in re.findall(r"```console\n(.*?)^```$", README, re.M | re.S)
    if "\n" in block.strip() and not block.startswith("$ make")
]


def plain(text):
    """Return a text with a word for each number: bits differ between CPUs."""
    return re.sub(r"-?\d[\d.,]*(e[+-]?\d+)?", "N", " ".join(text.split()))


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.split()[1])
def test_a_command_prints_what_is_shown(block, tmp_path):
    for name, body in re.findall(
        r"<!-- file: (\S+) -->\n```python\n(.*?)^```$", README, re.M | re.S
    ):
        (tmp_path / name).write_text(body)
    command, _, shown = block.removeprefix("$ ").partition("\n")
    program, *words = shlex.split(command)
    module = {"udftorch": "pytest_udftorch", "pytest": "pytest"}[program]
    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=tmp_path, check=False, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    found = plain(done.stdout)
    parts = [plain(part) for line in shown.splitlines() for part in line.split("...")]
    at = 0
    for part in filter(None, parts):
        assert part in found[at:], f"{part!r} does not follow in\n{done.stdout}"
        at = found.index(part, at) + len(part)


def test_two_commands_are_shown_with_their_output():
    assert [block.split()[1] for block in SHOWN] == ["udftorch", "pytest"]


def test_the_problem_comes_first_then_for_whom_and_how_to_install():
    order = ["give different numbers", "**For** people", "**Not for**", "## Install", "pip install",
             "## Which operator", "## The map"]  # fmt: skip
    places = [README.index(words) for words in order]
    assert places == sorted(places)
    assert README.index(order[0]) < 120, "the first line"


def test_numbers_are_compared_by_their_place_alone():
    """The control."""
    assert plain("at most 5 ULP, 2.4e-08 of") == plain("at most 17 ULP,\n 1e-7 of")
    assert plain("5 ULP of its norm") != plain("5 ULP of the norm")
