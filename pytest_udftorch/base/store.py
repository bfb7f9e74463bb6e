# SPDX-License-Identifier: Apache-2.0
"""What was found, as a file: JSON, or a page or program made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_udftorch.base import whole_file
from pytest_udftorch.errors import UdfError


def store(
    path: str | Path,
    document: Mapping[str, Any],
    error: type[UdfError],
    what: str = "What was found",
) -> None:
    """Write a document as JSON; see :func:`store_text`."""
    store_text(path, json.dumps(document, indent=1) + "\n", error, what)


def store_text(path: str | Path, text: str, error: type[UdfError], what: str) -> None:
    """Write a text file, whole or not at all.

    Args:
        path: the file, in a folder that exists.
        text: what it holds.
        error: the class of the error if the system refuses.
        what: what the file holds, for the message.

    Raises:
        UdfError: the file cannot be written; of the class ``error``.
    """
    try:
        whole_file.write(path, text)
    except OSError as refused:
        raise error(
            f"{what} cannot be written to {path}: {refused.strerror}. Name a file in a folder that "
            "exists and can be written."
        ) from refused
