# SPDX-License-Identifier: Apache-2.0
"""From UDF sources to machine code and bitcode: compilers, their jobs and their cache."""

from typing import TYPE_CHECKING

from pytest_udftorch import names_from

if TYPE_CHECKING:
    from pytest_udftorch.build.cross import cross_library
    from pytest_udftorch.build.toolchain import Compiler, find_compiler

__all__ = ["Compiler", "cross_library", "find_compiler"]
__getattr__ = names_from(
    __name__,
    {"Compiler": "toolchain", "cross_library": "cross", "find_compiler": "toolchain"},
)
