"""Swap the transcendental functions inside an unmodified PyTorch.

``patched`` binds a UDF library into the loaded libtorch and restores it; ``trace`` counts
which math symbols an operator calls. Importing this package imports neither torch nor
anything else that is heavy: names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pytest_udftorch.build import Build, build_library
    from pytest_udftorch.dispatcher import stock
    from pytest_udftorch.errors import UdfError
    from pytest_udftorch.library import UdfLibrary, available_libraries, find_library
    from pytest_udftorch.operator_udfs import operator_udf
    from pytest_udftorch.python_udf import udf
    from pytest_udftorch.session import Session, patched, trace

__all__ = [
    "Build",
    "Session",
    "UdfError",
    "UdfLibrary",
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
    "Build": "build",
    "Session": "session",
    "UdfError": "errors",
    "UdfLibrary": "library",
    "available_libraries": "library",
    "build_library": "build",
    "find_library": "library",
    "operator_udf": "operator_udfs",
    "patched": "session",
    "stock": "dispatcher",
    "trace": "session",
    "udf": "python_udf",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
