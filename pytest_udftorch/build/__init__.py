# SPDX-License-Identifier: Apache-2.0
"""From UDF sources to machine code and bitcode: compilers, their jobs and their cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_udftorch.build.toolchain import (
        Compiler,
        find_compiler,
    )

__all__ = ["Compiler", "find_compiler"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_udftorch.build import toolchain

    return getattr(toolchain, name)
