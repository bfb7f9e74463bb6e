# SPDX-License-Identifier: Apache-2.0
"""Each source states its licence, and LICENSE holds the text."""

from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Folders whose sources carry the line.
FOLDERS = ("benches", "pytest_udftorch", "tests", "udfs", ".ci")
SUFFIXES = {".py", ".sh", ".c", ".h", ".cpp"}
#: Files without a suffix, or with one that others share.
NAMES = {"CMakeLists.txt", "Makefile", "pyproject.toml", ".pre-commit-config.yaml", "run", "setup"}
LINE = "SPDX-License-Identifier: Apache-2.0"


def sources():
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return [path for path in found if path.suffix in SUFFIXES or path.name in NAMES]


def test_every_source_names_its_licence_at_its_top():
    without = [
        str(path.relative_to(ROOT))
        for path in sources()
        if LINE not in "".join(path.read_text().splitlines(keepends=True)[:3])
    ]
    assert not without
    assert len(sources()) > 100


def test_the_licence_is_the_one_that_they_name():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
