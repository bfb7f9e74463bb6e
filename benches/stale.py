# SPDX-License-Identifier: Apache-2.0
"""Stored results that are older than the code they measure: ``python -m benches.stale``.

A result knows its day. What it measures is what its experiment imports of the package, and the
experiment itself; git knows when these files were changed last. A change need not change a figure,
so the list is what to look at, and no error. It exits with 1 if there is one and ``--check`` is
given.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = "pytest_udftorch"

#: Modules that no figure depends on: errors, and the description of a machine.
_ASIDE: Final = ("errors", "environment")

#: How a stored command names its experiment.
_EXPERIMENT: Final = re.compile(r"benches\.(?:experiments\.|store )(\w+)")


class Stale(NamedTuple):
    """A result that is older than code it measures.

    Attributes:
        name: of its file.
        stored: the day on which it was measured.
        changed: files that were changed on a later day, each with that day, the latest first.
    """

    name: str
    stored: str
    changed: tuple[tuple[str, str], ...]

    def line(self) -> str:
        """Return the result, its day and the latest change in a line."""
        (file, day), *more = self.changed
        rest = f" and {len(more)} more" if more else ""
        return f"{self.name}: of {self.stored}; {file} was changed on {day}{rest}"


def days(root: Path) -> dict[str, str]:
    """Return file -> the day of its last commit."""
    said = subprocess.run(
        ["git", "log", "--format=%x00%cs", "--name-only", "--no-renames"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found: dict[str, str] = {}
    for commit in said.split("\0")[1:]:
        day, *files = commit.split("\n")
        for file in filter(None, files):
            found.setdefault(file, day)
    return found


def measured(root: Path, experiment: str) -> Iterator[str]:
    """Yield the files that an experiment measures: its own, and those it imports of the package."""
    own = root / "benches" / "experiments" / f"{experiment}.py"
    if not own.is_file():
        return
    yield own.relative_to(root).as_posix()
    for node in ast.walk(ast.parse(own.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            for module in (node.module or "", *names):
                file = root / f"{module.replace('.', '/')}.py"
                if file.is_file() and file.stem not in _ASIDE:
                    yield file.relative_to(root).as_posix()


def stale(root: Path = ROOT) -> list[Stale]:
    """Return the results under ``benches/results`` that are older than what they measure."""
    known, found = days(root), []
    for path in sorted((root / "benches" / "results").glob("*.json")):
        file = path.relative_to(root).as_posix()
        document = json.loads(path.read_text(encoding="utf-8"))
        environment = document.get("environment")
        day = environment.get("date") if isinstance(environment, dict) else None
        day = day or known.get(file)
        name = _EXPERIMENT.search(str(document.get("command")))
        if day is None or name is None:
            continue
        files = {f: known[f] for f in measured(root, name[1]) if known.get(f, day) > day}
        later = sorted(files.items(), key=lambda item: (item[1], item[0]), reverse=True)
        if later:
            found.append(Stale(path.name, day, tuple(later)))
    return sorted(found, key=lambda one: one.stored)


def main(arguments: Sequence[str] | None = None) -> int:
    """List them."""
    parser = argparse.ArgumentParser(prog="python -m benches.stale", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if there is one")
    options = parser.parse_args(arguments)
    found = stale()
    for one in found:
        print(one.line())
    print(f"{len(found)} results are older than code that they measure.")
    return int(options.check and bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
