# SPDX-License-Identifier: Apache-2.0
"""Which operators a session reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_udftorch.reach.table import ReachError, load, markdown

__all__ = ["ReachError", "load", "markdown"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_udftorch.reach import table

    return getattr(table, name)
