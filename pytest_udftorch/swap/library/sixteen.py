# SPDX-License-Identifier: Apache-2.0
"""Inputs of 16 bits whose float32 result must not be rounded again, and their results.

A correctly rounded float32 can lie half way between two numbers of 16 bits where the exact value
does not. Of 65,536 inputs few do. ``sixteen`` in ``[library]`` of ``udf.toml`` names a file with
these inputs and their results.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.errors import LibraryError
from pytest_udftorch.swap.library.description import UdfLibrary

DTYPES: Final = ("bfloat16", "float16")

_WORDS: Final = shapes.text("([0-9a-f]{4})*")
_FUNCTION: Final = shapes.record({"at": _WORDS, "result": _WORDS}, closed=True)
_FILE: Final = shapes.record(
    {}, dict.fromkeys(DTYPES, shapes.mapping(shapes.text("[a-z0-9_]+"), _FUNCTION)), closed=True
)

#: The encodings of the inputs, ascending, and of their results.
Columns = tuple[list[int], list[int]]


def words(library: UdfLibrary, dtype: str) -> Mapping[str, Columns]:
    """Return function -> its inputs and results; empty if the library names no file.

    Raises:
        LibraryError: the library's file is missing or damaged.
    """
    return {} if library.sixteen is None else read(library.sixteen, library.name).get(dtype, {})


@functools.lru_cache(maxsize=8)
def read(path: Path, library: str) -> Mapping[str, Mapping[str, Columns]]:
    """Return dtype -> function -> its inputs and results, as a library's file names them.

    Raises:
        LibraryError: the file is missing or damaged.
    """
    try:
        data = shapes.parse_json(shapes.read_file(path))
        _FILE(data, "the file")
        found = {
            dtype: {n: (_words(row["at"]), _words(row["result"])) for n, row in functions.items()}
            for dtype, functions in data.items()
        }
        for dtype, functions in found.items():
            for name, (at, result) in functions.items():
                if at != sorted(set(at)) or len(at) != len(result):
                    raise shapes.Malformed(f"{dtype}.{name} is unsorted, or its rows differ")
    except (OSError, shapes.Malformed) as error:
        raise LibraryError(
            f"{path}, which UDF library {library!r} names as sixteen, cannot be used: {error}. "
            "Write it anew, or take the key out of udf.toml."
        ) from error
    return found


def _words(text: str) -> list[int]:
    return [int(text[i : i + 4], 16) for i in range(0, len(text), 4)]
