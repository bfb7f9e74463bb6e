# SPDX-License-Identifier: Apache-2.0
"""What bfloat16 and half lose by rounding a float32 result a second time.

A correctly rounded float32 can lie half way between two numbers of 16 bits where the exact value
does not. Of 65,536 inputs few do. ``sixteen`` in ``[library]`` of ``udf.toml`` names a file with
these inputs and their results, and the loops put the results in.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pytest_udftorch import plain_data as shapes
from pytest_udftorch.errors import LibraryFormatError
from pytest_udftorch.library.description import UdfLibrary

#: The dtypes, in the order of ``enum dtype`` of ``cpu_loops.h``; float32 comes before them.
DTYPES: Final = ("bfloat16", "float16")

_WORDS: Final = shapes.text("([0-9a-f]{4})*")
_FUNCTION: Final = shapes.record({"at": _WORDS, "result": _WORDS}, closed=True)
_FILE: Final = shapes.record(
    {}, dict.fromkeys(DTYPES, shapes.mapping(shapes.text("[a-z0-9_]+"), _FUNCTION)), closed=True
)


class _Amended(ctypes.Structure):
    """``struct amended`` of ``cpu_loops.h``, field for field."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("at", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
    )


@functools.lru_cache(maxsize=8)
def _read(path: Path, library: str) -> Mapping[str, Any]:
    try:
        data: Mapping[str, Any] = shapes.parse_json(shapes.read_file(path))
        _FILE(data, "the file")
        for dtype, functions in data.items():
            for name, words in functions.items():
                at = _words(words["at"])
                if at != sorted(set(at)) or len(at) != len(_words(words["result"])):
                    raise shapes.Malformed(f"{dtype}.{name} is unsorted, or its rows differ")
    except (OSError, shapes.Malformed) as error:
        raise LibraryFormatError(
            f"{path}, which UDF library {library!r} names as sixteen, cannot be used: {error}. "
            "Write it anew, or take the key out of udf.toml."
        ) from error
    return data


def _words(text: str) -> list[int]:
    return [int(text[i : i + 4], 16) for i in range(0, len(text), 4)]


def amended(library: UdfLibrary, function: str) -> tuple[Any, ...]:
    """Return a pointer to ``struct amended`` for each of ``enum dtype``; None where it has none.

    Raises:
        LibraryFormatError: the library's file is missing or damaged.
    """
    return (
        (None, None, None)
        if library.sixteen is None
        else _tables(library.sixteen, library.name, function)
    )


@functools.cache
def _tables(path: Path, library: str, function: str) -> tuple[Any, ...]:
    """Return the same pointers each time: the launcher in C++ holds on to them."""
    data = _read(path, library)
    found: list[Any] = [None]
    for dtype in DTYPES:
        words = data.get(dtype, {}).get(function)
        if not words or not words["at"]:
            found.append(None)
            continue
        at, result = (_words(words[key]) for key in ("at", "result"))
        columns = [(ctypes.c_uint16 * len(row))(*row) for row in (at, result)]
        table = _Amended(len(at), *(ctypes.addressof(column) for column in columns))
        table.columns = columns  # they must live as long
        found.append(ctypes.pointer(table))
    return tuple(found)
