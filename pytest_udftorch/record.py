# SPDX-License-Identifier: Apache-2.0
"""The file of a profile.

docs/profile.md describes the format.
"""

from __future__ import annotations

from pytest_udftorch.records.file import VERSION, Loss, ProfileFile, ProfileWriter, new_path, read
from pytest_udftorch.records.layout import (
    CELL,
    EVENT,
    EVENT_FLAGS,
    OPERATOR,
    StringTable,
    empty_cells,
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
