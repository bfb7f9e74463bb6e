# SPDX-License-Identifier: Apache-2.0
"""The file of a profile.

docs/profile.md describes the format.
"""

from __future__ import annotations

from pytest_udftorch.records.file import (
    CELL,
    EVENT,
    EVENT_FLAGS,
    OPERATOR,
    VERSION,
    Loss,
    ProfileFile,
    ProfileWriter,
    StringTable,
    empty_cells,
    new_path,
    read,
)

__all__ = [
    "CELL",
    "EVENT",
    "EVENT_FLAGS",
    "OPERATOR",
    "VERSION",
    "Loss",
    "ProfileFile",
    "ProfileWriter",
    "StringTable",
    "empty_cells",
    "new_path",
    "read",
]
