# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/watch/profile.md run as they are shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from pytest_udftorch import cli

PAGE = Path(__file__).parents[2] / "docs" / "watch" / "profile.md"


def test_the_script_and_the_commands(tmp_path, monkeypatch, capsys):
    text = PAGE.read_text()
    (script,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (console,) = re.findall(r"```console\n(.*?)```", text, re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(script, str(PAGE), "exec"), {})
    shown = capsys.readouterr().out
    assert re.search(r"^expm1 +10 ", shown, re.M)
    assert re.search(r"^Sequential\.1 expm1 10 \(", shown, re.M)
    first, *others = [line[2:].partition("  #")[0] for line in console.splitlines()]
    assert cli.main(shlex.split(first)[1:]) == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    for command in others:
        # Their folders are not there: what is checked is that the options exist.
        assert cli.main(shlex.split(command)[1:]) == cli.MISUSE
    assert "There is no file or folder 'run-std'" in capsys.readouterr().err
