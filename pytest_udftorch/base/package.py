# SPDX-License-Identifier: Apache-2.0
"""The package itself: its folders, its version, and names that are loaded on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_ROOT = __name__.partition(".")[0]


def names_from(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package that offers names.

    The module behind a name is loaded when the name is used.

    Args:
        package: the package.
        homes: modules, without ``pytest_udftorch.`` in front, with the names that each defines.
    """
    home = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{_ROOT}.{home[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return sorted(home), find, names


def folders() -> list[Path]:
    """Return the folders that make up the package: an editable install has two."""
    return [Path(entry) for entry in import_module(_ROOT).__path__]


def version() -> str:
    """Return the version of the package."""
    return str(import_module(_ROOT).__version__)
