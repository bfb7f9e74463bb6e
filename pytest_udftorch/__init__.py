# SPDX-License-Identifier: Apache-2.0
"""Swap the transcendental functions inside an unmodified PyTorch.

``patched`` binds a UDF library into the loaded libtorch and restores it; ``trace`` counts
which math symbols an operator calls. Importing this package imports neither torch nor
anything else that is heavy: names are loaded when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pytest_udftorch.build.python_udf import udf
    from pytest_udftorch.build.shared import Build, build_library
    from pytest_udftorch.errors import UdfError
    from pytest_udftorch.exact.approx import approx
    from pytest_udftorch.library.description import UdfLibrary, available_libraries, find_library
    from pytest_udftorch.overrides.operator_udfs import operator_udf
    from pytest_udftorch.overrides.python_override import stock
    from pytest_udftorch.session.session import Session, patched, trace

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
    "Build": "build.shared",
    "Session": "session.session",
    "UdfError": "errors",
    "UdfLibrary": "library.description",
    "approx": "exact.approx",
    "available_libraries": "library.description",
    "build_library": "build.shared",
    "find_library": "library.description",
    "operator_udf": "overrides.operator_udfs",
    "patched": "session.session",
    "stock": "overrides.python_override",
    "trace": "session.session",
    "udf": "build.python_udf",
}


def names_from(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, which loads a name's module when the name is used.

    Args:
        package: the package.
        homes: name -> the module in the package that defines it.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find


__getattr__ = names_from(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
