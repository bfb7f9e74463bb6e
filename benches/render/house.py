# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING's table of floors: the import contracts, and the question of each folder.

The floors stand in ``pyproject.toml``, where import-linter reads them, and the question in the
first line of a folder's docstring. Neither is written a second time.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benches.render.markdown import table

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "pytest_udftorch"


def floors(layers: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the floor and the name of each module of a contract, the top floor first."""
    for number, layer in enumerate(layers):
        for name in layer.split("|"):
            yield len(layers) - 1 - number, name.strip()


def contracts(pyproject: Path) -> dict[str, list[str]]:
    """Return the layers of each package whose import contract has layers."""
    document = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    return {
        container: contract["layers"]
        for contract in document["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
        for container in contract["containers"]
    }


def question(module: Path) -> str:
    """Return the first line of a docstring, of a package or a module."""
    source = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].replace("``", "`")


def rows(root: Path = ROOT) -> Iterator[tuple[str, str, str]]:
    """Yield the floor, the folder and the question of each wing, and below it of its rooms.

    Rooms of a wing whose floors no contract names lie beside each other.
    """
    layers = contracts(root / "pyproject.toml")
    for floor, wing in floors(layers[PACKAGE]):
        if wing == "__main__":
            continue
        path = root / PACKAGE / wing
        yield str(floor), f"**`{wing}/`**" if path.is_dir() else f"`{wing}.py`", question(path)
        rooms = [package.parent.name for package in sorted(path.glob("*/__init__.py"))]
        beside = ["|".join(rooms)] if rooms else []
        for below, room in floors(layers.get(f"{PACKAGE}.{wing}", beside)):
            yield f"{floor}.{below}", f"`{wing}/{room}/`", question(path / room)


def floors_table() -> str:
    """Return the table of the house, the top floor first."""
    return "\n".join(
        [*table(["floor", "folder", "the question that it answers"], list(rows())), ""]
    )
