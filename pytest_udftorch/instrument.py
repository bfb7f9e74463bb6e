"""What the pass ``udf-instrument`` shall watch, and the sources that its output needs.

Manifests for UDF libraries, whose forms ``udf-widen`` makes, and for the watch library,
whose functions call the stock ones; see docs/passes.md for the format.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import NativeLibraryError
from pytest_udftorch.library import UdfFunction
from pytest_udftorch.native import native_files
from pytest_udftorch.symbols import DTYPES, FUNCTIONS, forms

#: Forms in the order of their numbers, as in udfprof.h; ``FORMS`` of record.py has one more.
FORMS: Final = ("scalar", "v4", "v8", "v16", "array")

#: Functions by their numbers; 0 is none. As the first strings of ``record.StringTable``.
WATCHED: Final = ("", *FUNCTIONS, "sincos")

#: Elements of an array that are watched and computed at a time: input and output together
#: take 8 KiB (float32) or 16 KiB (float64) of the first-level cache.
CHUNK: Final = 1024

_C_TYPES: Final = {"float32": "float", "float64": "double"}


def slot(function: str, dtype: str, form: str) -> int:
    """Return the number of the cell, as stated at ``UDFPROF_SLOTS`` in udfprof.h."""
    number = (WATCHED.index(function) * len(DTYPES) + DTYPES.index(dtype)) * len(FORMS)
    return number + FORMS.index(form)


def entry(symbol: str, function: str, dtype: str, form: str, chunk: int) -> dict[str, Any]:
    """Return the manifest's entry for one function of the module."""
    joint = function == "sincos"
    return {
        "symbol": symbol,
        "form": "sincos" if joint else form,
        "type": _C_TYPES[dtype],
        "arity": 1 if joint else FUNCTIONS[function].arity,
        "slot": slot(function, dtype, form),
        "chunk": chunk,
    }


def instrument_manifest(functions: Iterable[UdfFunction], level: str) -> dict[str, Any]:
    """Return the manifest for the forms of a UDF library at a CPU level.

    The joint form of sin and cos has no entry: it calls their scalar forms.
    """
    return {
        "watch": [
            entry(FUNCTIONS[f.name].export(f.dtype, form), f.name, f.dtype, form, CHUNK)
            for f in functions
            for form in forms(f.dtype, level)
        ]
    }


def native_source(name: str) -> Path:
    """Return the path of an installed source of the native half.

    Raises:
        NativeLibraryError: it is not installed.
    """
    for path in native_files(name):
        return path
    raise NativeLibraryError(
        f"{name} is not installed with pytest_udftorch, but profiled libraries are compiled "
        "with it. Install the package (pip install .) instead of importing its source tree."
    )


def observe_source() -> tuple[Path, Path]:
    """Return observe.c, which is compiled into each profiled library, and its header."""
    return native_source("observe.c"), native_source("udfprof.h")


def link_inputs() -> list[str]:
    """Return what a profiled library is linked with: the runtime that holds its cells."""
    return [str(native_source("libudfrt.so"))]
