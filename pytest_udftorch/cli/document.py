# SPDX-License-Identifier: Apache-2.0
"""What a verb found, as a file of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_udftorch.errors import DiagnosisError


def store(path: Path | None, document: Mapping[str, Any]) -> None:
    """Write a document as JSON if a file is named.

    Raises:
        DiagnosisError: it cannot be written.
    """
    from pytest_udftorch.base import whole_file

    if path is None:
        return
    try:
        whole_file.write(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise DiagnosisError(
            f"What was found cannot be written to {path}: {error.strerror}. Name a file in a "
            "folder that exists and can be written."
        ) from error
