# SPDX-License-Identifier: Apache-2.0
"""Eager CUDA operators: the kernels that a session registers for them, and their counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_udftorch.cuda.table import (
        BARE,
        reached,
    )

__all__ = ["BARE", "reached"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_udftorch.cuda import table

    return getattr(table, name)
