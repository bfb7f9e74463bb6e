# SPDX-License-Identifier: Apache-2.0
"""UDF libraries as their authors describe them, and the symbols of the functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_udftorch.library.symbols import (
        FUNCTIONS,
    )

__all__ = ["FUNCTIONS"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_udftorch.library import symbols

    return getattr(symbols, name)
