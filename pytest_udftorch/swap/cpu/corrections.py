# SPDX-License-Identifier: Apache-2.0
"""Corrections of results in 16 bits (``library.sixteen``), as the loops in C take them."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from pytest_udftorch.swap.library import sixteen
from pytest_udftorch.swap.library.description import UdfLibrary


class _Amended(ctypes.Structure):
    """``struct amended`` of ``cpu_loops.h``, field for field."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("at", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
    )


def amended(library: UdfLibrary, function: str) -> tuple[Any, ...]:
    """Return a pointer to ``struct amended`` for each of ``enum dtype``; None where it has none.

    Raises:
        LibraryError: the library's file is missing or damaged.
    """
    return (
        (None, None, None)
        if library.sixteen is None
        else _tables(library.sixteen, library.name, function)
    )


@functools.cache
def _tables(path: Path, library: str, function: str) -> tuple[Any, ...]:
    """Return the same pointers each time: the launcher in C++ holds on to them."""
    found: list[Any] = [None]
    for dtype in sixteen.DTYPES:  # in the order of ``enum dtype``, after float32
        at, result = sixteen.read(path, library).get(dtype, {}).get(function, ([], []))
        if not at:
            found.append(None)
            continue
        columns = [(ctypes.c_uint16 * len(row))(*row) for row in (at, result)]
        table = _Amended(len(at), *(ctypes.addressof(column) for column in columns))
        table.columns = columns  # they must live as long
        found.append(ctypes.pointer(table))
    return tuple(found)
