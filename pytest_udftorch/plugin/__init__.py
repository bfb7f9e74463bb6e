# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_udftorch.plugin.hooks import (
        PatchedLibtorch,
    )

__all__ = ["PatchedLibtorch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_udftorch.plugin import hooks

    return getattr(hooks, name)
