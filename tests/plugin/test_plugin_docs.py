# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/plugin.md and diagnose/golden.md: files are written, commands are run."""

import re
import shlex
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "plugin.md"

BLOCK = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<language>\w+)\n(?P<body>.*?)^```$", re.M | re.S
)


def sections():
    for page in (PAGE, DOCS / "diagnose" / "golden.md"):
        for text in page.read_text().split("\n## ")[1:]:
            title, _, body = text.partition("\n")
            if "```" in body:
                # test_fixtures runs a suite of the same fixtures.
                marks = pytest.mark.slow if title.startswith("The fixtures") else ()
                yield pytest.param(list(BLOCK.finditer(body)), id=title, marks=marks)


def commands(body):
    """Split a console block into (arguments of pytest, expected output lines)."""
    for part in body.split("$ ")[1:]:
        command, _, output = part.partition("\n")
        program, *arguments = shlex.split(command)
        assert program == "pytest"
        yield arguments, output.splitlines()


def as_pattern(line):
    return line.replace("[", "[[]").replace("...", "*").replace("* *", "*")


@pytest.mark.parametrize("blocks", list(sections()))
def test_examples_run_as_shown(suite, blocks):
    shown = 0
    for block in blocks:
        language, body = block["language"], block["body"]
        if language != "console":
            assert block["file"], f"a {language} block without a file name:\n{body}"
            (suite.path / block["file"]).write_text(body)
            continue
        for arguments, lines in commands(body):
            result = suite.run(*arguments, "-p", "no:terminalprogress")
            result.stdout.fnmatch_lines([as_pattern(line) for line in lines])
            shown += 1
    assert shown


def test_every_block_is_of_a_kind_that_is_checked():
    text = PAGE.read_text()
    assert len(list(BLOCK.finditer(text))) == text.count("\n```") / 2
    assert {b["language"] for b in BLOCK.finditer(text)} == {"python", "ini", "console"}


def test_every_option_and_ini_value_is_documented(suite):
    text = PAGE.read_text()
    help_text = suite.run("--help").stdout.str()
    options = set(re.findall(r"^  (--udf-[a-z-]+=?)", help_text, re.M))
    values = set(re.findall(r"^  (udf_[a-z_]+) \(", help_text, re.M))
    assert len(options) == 18
    assert len(values) == 12
    for name in options:
        assert f"`{name}" in text
    for name in values:
        assert f"`{name}`" in text
