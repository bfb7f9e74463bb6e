# SPDX-License-Identifier: Apache-2.0
"""Profiles: counting, aggregation, export and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_udftorch.profile.aggregate import (
        First,
        Profile,
        Row,
        by_library,
        load_all,
        merge,
    )
    from pytest_udftorch.profile.text import time_text

__all__ = ["First", "Profile", "Row", "by_library", "load_all", "merge", "time_text"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_udftorch.profile import aggregate, text

    return getattr(text if name == "time_text" else aggregate, name)
