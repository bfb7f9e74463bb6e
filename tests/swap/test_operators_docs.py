# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/swap/operators.md run as they are shown."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "swap" / "operators.md"
BLOCK = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<language>\w+)\n(?P<body>.*?)^```$", re.M | re.S
)


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """Write the files into an empty folder, go there, and give the scripts."""
    blocks = list(BLOCK.finditer(PAGE.read_text()))
    assert len(blocks) == PAGE.read_text().count("\n```") / 2
    (tmp_path / "logs").mkdir()
    for block in blocks:
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["body"])
    monkeypatch.chdir(tmp_path)
    scripts = [b["body"] for b in blocks if not b["file"]]
    assert all(b["language"] == "python" for b in blocks if not b["file"])
    return scripts


@pytest.mark.slow
def test_the_scripts(shown, capsys):
    space: dict[str, object] = {}
    for script in shown:
        exec(compile(script, str(PAGE), "exec"), space)
    out = capsys.readouterr().out
    assert "{'aten::log': {'aten::log CPU': 1, 'aten::log_ CPU': 1, " in out
    assert re.search(r"^aten::log +1 +1 +1,000 ", out, re.M)
    assert re.search(r"^aten::log_ +1 +1 +1,000 ", out, re.M)
