# SPDX-License-Identifier: Apache-2.0
"""Swap the transcendental functions inside an unmodified PyTorch.

``patched`` binds a UDF library into the loaded libtorch and restores it; ``trace`` counts
which math symbols an operator calls. Importing this package imports neither torch nor
anything else that is heavy: names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

from pytest_udftorch.base.package import names_from

if TYPE_CHECKING:
    from pytest_udftorch.errors import UdfError
    from pytest_udftorch.prove.exact.approx import approx
    from pytest_udftorch.swap.library.description import (
        UdfLibrary,
        available_libraries,
        find_library,
    )
    from pytest_udftorch.swap.overrides.operator_udfs import operator_udf
    from pytest_udftorch.swap.overrides.python_override import stock
    from pytest_udftorch.swap.session.session import Session, patched, trace
    from pytest_udftorch.swap.toolchain.python_udf import udf
    from pytest_udftorch.swap.toolchain.shared_library import Build, build_library

__all__ = [
    "Build",
    "Session",
    "UdfError",
    "UdfLibrary",
    "approx",
    "available_libraries",
    "build_library",
    "find_library",
    "operator_udf",
    "patched",
    "stock",
    "trace",
    "udf",
]

_HOMES = {
    "Build": "swap.toolchain.shared_library",
    "Session": "swap.session.session",
    "UdfError": "errors",
    "UdfLibrary": "swap.library.description",
    "approx": "prove.exact.approx",
    "available_libraries": "swap.library.description",
    "build_library": "swap.toolchain.shared_library",
    "find_library": "swap.library.description",
    "operator_udf": "swap.overrides.operator_udfs",
    "patched": "swap.session.session",
    "stock": "swap.overrides.python_override",
    "trace": "swap.session.session",
    "udf": "swap.toolchain.python_udf",
}

__getattr__ = names_from(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
