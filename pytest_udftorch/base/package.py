# SPDX-License-Identifier: Apache-2.0
"""The package itself: its folders and its version."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

_ROOT = __name__.partition(".")[0]


def folders() -> list[Path]:
    """Return the folders that make up the package: an editable install has two."""
    return [Path(entry) for entry in import_module(_ROOT).__path__]


def version() -> str:
    """Return the version of the package."""
    return str(import_module(_ROOT).__version__)
