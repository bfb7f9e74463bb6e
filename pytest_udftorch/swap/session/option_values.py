# SPDX-License-Identifier: Apache-2.0
"""What the options of pytest and of ``udftorch run`` say about libraries and functions."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pytest_udftorch.errors import UnknownFunctionError


def as_path_or_name(text: str, folder: Path) -> str | Path:
    """Return what ``find_library`` takes: a path that starts at ``folder``, or else a name."""
    text = text.strip()
    if "/" in text or text.startswith("."):
        return folder / os.path.expanduser(text)
    return text


def separated(texts: Iterable[str], folder: Path) -> list[str]:
    """Return the libraries that values of ``--udf-lib`` name: a value may join several by commas.

    A folder whose own name has a comma is left whole.
    """
    found = []
    for text in texts:
        whole = os.path.exists(os.path.join(folder, os.path.expanduser(text)))
        found += [text] if whole else text.split(",")
    return found


def names_in(values: Iterable[str]) -> tuple[str, ...]:
    """Return the names in values of ``--udf-functions``.

    Raises:
        UnknownFunctionError: one of them is empty.
    """
    names = tuple(name.strip() for value in values for name in value.split(","))
    if not all(names):
        raise UnknownFunctionError(
            f"--udf-functions (or udf_functions in the ini file) has an empty name in "
            f"{', '.join(map(repr, values))}. Separate torch's names with commas: exp,log."
        )
    return names
