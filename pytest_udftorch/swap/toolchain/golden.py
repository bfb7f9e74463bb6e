# SPDX-License-Identifier: Apache-2.0
"""Recorded results of a library's functions, which no build of it has a say in.

A library may name a file, ``golden`` in its ``udf.toml``, with the results of its functions at
the inputs of the canary operators. ``udfs/golden.py`` writes those of the libraries here from
MPFR. A build that gives other results is refused, so another library's file in its place is found
out, even if the cache vouches for it.
"""

from __future__ import annotations

import ctypes
from typing import Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.errors import LibraryError, WrongBuildError
from pytest_udftorch.swap.library.description import UdfLibrary
from pytest_udftorch.swap.library.symbols import KNOWN, golden_points
from pytest_udftorch.swap.toolchain.shared_library import Build

#: Elements of each function's input: four 16-lane blocks and an odd tail.
ELEMENTS: Final = 67

_REALS: Final = {"float32": (ctypes.c_float, 4), "float64": (ctypes.c_double, 8)}
_RESULTS: Final = shapes.mapping(shapes.text("[a-z0-9_]+"), shapes.text("[0-9a-f]+"))
_FILE: Final = shapes.record({}, dict.fromkeys(_REALS, _RESULTS), closed=True)


def rows(function: str) -> list[list[float]]:
    """Return the inputs of a function, one row of ELEMENTS for each argument."""
    known = KNOWN[function]
    values = golden_points(known.arity * ELEMENTS, *known.domain)
    return [values[i :: known.arity] for i in range(known.arity)]


def recorded(library: UdfLibrary, function: str, dtype: str) -> bytes | None:
    """Return the encodings of the recorded results, each big-endian; None if there are none.

    Raises:
        LibraryError: the library's file is missing or damaged.
    """
    if library.golden is None:
        return None
    try:
        data = shapes.parse_json(shapes.read_file(library.golden))
        _FILE(data, "the file")
        text = data.get(dtype, {}).get(function)
        if text is None:
            return None
        if len(text) != 2 * ELEMENTS * _REALS[dtype][1]:
            raise shapes.Malformed(f"{dtype}.{function} has not {ELEMENTS} results")
    except (OSError, shapes.Malformed) as error:
        raise LibraryError(
            f"{library.golden}, which UDF library {library.name!r} names as golden, cannot be "
            f"used: {error}. Record the results anew, or take the key out of udf.toml."
        ) from error
    return bytes.fromhex(text)


def computed(build: Build, function: str, dtype: str) -> bytes:
    """Return the results of a build's array form, as :func:`recorded` does."""
    real, size = _REALS[dtype]
    array = real * ELEMENTS
    inputs = [array(*row) for row in rows(function)]
    results = array()
    call = build.array_function(function, dtype)
    call(ELEMENTS, *(ctypes.addressof(each) for each in (*inputs, results)), 0)
    little = bytes(results)
    return b"".join(little[i : i + size][::-1] for i in range(0, len(little), size))


def check(build: Build, function: str, dtype: str) -> None:
    """Compare a build with what its library records.

    Raises:
        WrongBuildError: a result differs.
        LibraryError: the library's file is missing or damaged.
    """
    wanted = recorded(build.library, function, dtype)
    if wanted is None:
        return
    got = computed(build, function, dtype)
    if got == wanted:
        return
    size = _REALS[dtype][1]
    at = next(i for i in range(ELEMENTS) if got[i * size :][:size] != wanted[i * size :][:size])
    values = ", ".join(row[at].hex() for row in rows(function))
    encodings = (each[at * size :][:size].hex() for each in (got, wanted))
    raise WrongBuildError(
        f"{build.path} is not a build of UDF library {build.library.name!r}: its {dtype} "
        f"{function} of {values} is 0x{next(encodings)}, where {build.library.golden} records "
        f"0x{next(encodings)}. Delete {build.path.parent}; the next process builds it again. If "
        "you changed the function on purpose, record its results anew, or take golden out of "
        "udf.toml."
    )
