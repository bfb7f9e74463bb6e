# SPDX-License-Identifier: Apache-2.0
"""What did the functions do?"""

from typing import TYPE_CHECKING

from pytest_udftorch.base.package import names_from

if TYPE_CHECKING:
    from pytest_udftorch.base.units import time_text
    from pytest_udftorch.swap.records.file import (
        VERSION,
        Loss,
        ProfileFile,
        ProfileWriter,
        new_path,
        read,
    )
    from pytest_udftorch.swap.records.layout import (
        CELL,
        EVENT,
        EVENT_FLAGS,
        OPERATOR,
        StringTable,
        empty_cells,
    )
    from pytest_udftorch.swap.records.profile import Profile, by_library, load_all, merge
    from pytest_udftorch.swap.records.totals import First, Row
    from pytest_udftorch.watch.profile.report import heading, html, page, sections, terminal
    from pytest_udftorch.watch.profile.tables import Cell, table, text_cell

__all__ = [
    "CELL",
    "EVENT",
    "EVENT_FLAGS",
    "OPERATOR",
    "VERSION",
    "Cell",
    "First",
    "Loss",
    "Profile",
    "ProfileFile",
    "ProfileWriter",
    "Row",
    "StringTable",
    "by_library",
    "empty_cells",
    "heading",
    "html",
    "load_all",
    "merge",
    "new_path",
    "page",
    "read",
    "sections",
    "table",
    "terminal",
    "text_cell",
    "time_text",
]
__getattr__ = names_from(
    __name__,
    {
        "CELL": "swap.records.layout",
        "Cell": "watch.profile.tables",
        "EVENT": "swap.records.layout",
        "EVENT_FLAGS": "swap.records.layout",
        "First": "swap.records.totals",
        "Loss": "swap.records.file",
        "OPERATOR": "swap.records.layout",
        "Profile": "swap.records.profile",
        "ProfileFile": "swap.records.file",
        "ProfileWriter": "swap.records.file",
        "Row": "swap.records.totals",
        "StringTable": "swap.records.layout",
        "VERSION": "swap.records.file",
        "by_library": "swap.records.profile",
        "empty_cells": "swap.records.layout",
        "heading": "watch.profile.report",
        "html": "watch.profile.report",
        "load_all": "swap.records.profile",
        "merge": "swap.records.profile",
        "new_path": "swap.records.file",
        "page": "watch.profile.report",
        "read": "swap.records.file",
        "sections": "watch.profile.report",
        "table": "watch.profile.tables",
        "terminal": "watch.profile.report",
        "text_cell": "watch.profile.tables",
        "time_text": "base.units",
    },
)
