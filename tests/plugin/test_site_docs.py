# SPDX-License-Identifier: Apache-2.0
"""The tutorial and the stories: their files are written, and their commands give what they show."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ["tutorial.md", "why/correct_rounding.md", "why/overflow.md", "why/executor.md"]

BLOCK = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.M | re.S
)

#: What is rendered from a stored run is compared with that run elsewhere.
GENERATED = re.compile(r"<!-- generated: .*?<!-- end -->", re.S)


def text_of(page):
    return GENERATED.sub("", (DOCS / page).read_text(encoding="utf-8"))


def blocks(page):
    return list(BLOCK.finditer(text_of(page)))


def told(expected, lines):
    """Return the first expected line that does not come, in order; None if all do."""
    rest = iter(lines)
    for line in expected:
        if line == "...":
            continue
        pattern = line.replace("[", "[[]").replace("...", "*")
        if not any(fnmatch.fnmatchcase(got, pattern) for got in rest):
            return line
    return None


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_give_what_the_page_shows(page, tmp_path):
    environment = os.environ | {"COLUMNS": "400", "PY_COLORS": "0"}
    shown = 0
    for block in blocks(page):
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["body"])
            continue
        for part in block["body"].split("$ ")[1:]:
            command, _, output = part.partition("\n")
            program, *arguments = shlex.split(command)
            module = {"pytest": ["-m", "pytest", "-p", "no:cacheprovider"], "python": []}[program]
            run = subprocess.run(
                [sys.executable, *module, *arguments], cwd=tmp_path, env=environment,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            missing = told(output.splitlines(), run.stdout.splitlines())
            assert missing is None, f"{missing!r} is not in:\n{run.stdout}\n{run.stderr}"
            shown += 1
    assert shown


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_a_file_or_a_command(page):
    found = blocks(page)
    assert len(found) == text_of(page).count("\n```") / 2 > 1
    for block in found:
        assert block["language"] == "console" or block["file"], block["body"]


def test_a_line_that_does_not_come_is_missed():
    assert told(["a ...", "...", "c"], ["a b", "c"]) is None
    assert told(["c", "a ..."], ["a b", "c"]) == "a ..."
    assert told(["test[std]"], ["tests"]) == "test[std]"
