# SPDX-License-Identifier: Apache-2.0
"""The package itself: its folders, its version, and names that are loaded on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_ROOT = __name__.partition(".")[0]


def names_from(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, which loads a name's module when the name is used.

    Args:
        package: the package.
        homes: name -> the module that defines it, without ``pytest_udftorch.`` in front.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{_ROOT}.{homes[name]}"), name)

    return find


def folders() -> list[Path]:
    """Return the folders that make up the package: an editable install has two."""
    return [Path(entry) for entry in import_module(_ROOT).__path__]


def version() -> str:
    """Return the version of the package."""
    return str(import_module(_ROOT).__version__)
