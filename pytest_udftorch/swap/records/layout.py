# SPDX-License-Identifier: Apache-2.0
"""What a profile records: three structured NumPy dtypes, and the strings that they name by id.

The dtypes mirror the C structs of ``native/c/udfprof.h``; a test compares their sizes and
offsets.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pytest_udftorch.swap.library.symbols import COMPOSITES, FUNCTIONS

Records = NDArray[np.void]

#: The last entry of each tuple is for UDFs at operator level.
CELL_DTYPES: Final = ("float32", "float64", "any")
CELL_FORMS: Final = ("scalar", "v4", "v8", "v16", "array", "operator")

#: The runtime numbers UDFs at operator level from here on (udfprof.h).
FIRST_OPERATOR_UDF: Final = 1000
#: Where a function ran. A call on a GPU is one launch of a kernel, with the form ``array``.
DEVICES: Final = ("cpu", "cuda")
STAGES: Final = ("other", "forward", "backward", "optimizer")
DEPTHS: Final = ("counters", "timed", "events")

#: A histogram has one bin per binary exponent: bin b counts values with
#: floor(log2|x|) = b - HIST_OFFSET. The first and last bins also hold what lies beyond.
HIST_BINS: Final = 320
HIST_OFFSET: Final = 160

#: Names of the counts of special values, in the order of the struct.
SPECIALS: Final = ("zero", "subnormal", "pos_inf", "neg_inf", "nan")

#: What a cell adds up over threads, calls and processes. Minima, maxima and first times are
#: the other fields of a cell.
COUNTS: Final = (
    "calls",
    "elements",
    *(f"{side}_{what}" for side in ("in", "out") for what in SPECIALS),
    "time_ns",
    "timed_elements",
    "hist_elements",
    "hist_in",
    "hist_out",
)
MINIMA: Final = ("in_min", "out_min")
MAXIMA: Final = ("in_max", "out_max")
#: CLOCK_MONOTONIC of the first block whose outputs held one and whose inputs did not; 0: never.
FIRSTS: Final = ("made_nan_ns", "made_inf_ns", "made_subnormal_ns")

#: What tells the cells of a process apart.
CELL_KEY: Final = ("function", "dtype", "form", "device", "stage", "operator", "module")
OPERATOR_KEY: Final = ("operator", "module", "stage", "device")

#: One function in one form, dtype and context: 10,432 bytes. ``function``, ``operator`` and
#: ``module`` are ids of strings, ``dtype``, ``form``, ``stage`` and ``device`` indices of the
#: tuples above.
#: Minima and maxima cover all values but NaNs, infinities included; if there was none, they
#: are +inf and -inf. ``in`` covers all arguments of a function together.
CELL: Final = np.dtype(
    [
        ("function", "<u2"),
        ("dtype", "u1"),
        ("form", "u1"),
        ("stage", "u1"),
        ("device", "u1"),
        ("pad", "u1", (2,)),
        ("operator", "<u4"),
        ("module", "<u4"),
        ("calls", "<u8"),
        ("elements", "<u8"),
        ("in_min", "<f8"),
        ("in_max", "<f8"),
        ("out_min", "<f8"),
        ("out_max", "<f8"),
        *((f"{side}_{what}", "<u8") for side in ("in", "out") for what in SPECIALS),
        *((name, "<u8") for name in FIRSTS),
        ("time_ns", "<f8"),
        ("timed_elements", "<u8"),
        ("hist_elements", "<u8"),
        ("hist_in", "<u8", (2, HIST_BINS)),
        ("hist_out", "<u8", (2, HIST_BINS)),
    ]
)

#: Calls of one operator in one context: 32 bytes.
OPERATOR: Final = np.dtype(
    [
        ("operator", "<u4"),
        ("module", "<u4"),
        ("stage", "u1"),
        ("device", "u1"),
        ("pad", "u1", (6,)),
        ("calls", "<u8"),
        ("time_ns", "<f8"),
    ]
)

#: Bits of ``flags`` of an event, from bit 0: what its inputs, then its outputs held.
EVENT_FLAGS: Final = (
    "in_nan", "in_inf", "in_subnormal", "in_zero", "out_nan", "out_inf", "out_subnormal", "out_zero"
)  # fmt: skip

#: One function within one call of an operator: 80 bytes. Times are CLOCK_MONOTONIC.
EVENT: Final = np.dtype(
    [
        ("start_ns", "<u8"),
        ("end_ns", "<u8"),
        ("thread", "<u4"),
        ("function", "<u2"),
        ("dtype", "u1"),
        ("stage", "u1"),
        ("operator", "<u4"),
        ("module", "<u4"),
        ("elements", "<u8"),
        ("in_min", "<f8"),
        ("in_max", "<f8"),
        ("out_min", "<f8"),
        ("out_max", "<f8"),
        ("flags", "<u4"),
        # The index of the event's process if a saved profile holds several; else 0.
        ("process", "<u4"),
    ]
)


def empty_cells(count: int) -> Records:
    """Return ``count`` cells that have seen nothing."""
    cells = np.zeros(count, CELL)
    for name in MINIMA:
        cells[name] = np.inf
    for name in MAXIMA:
        cells[name] = -np.inf
    return cells


class StringTable:
    """Strings that records name by number; an id never changes.

    Id 0 is the empty string. The names of torch's functions and ``sincos`` follow, so that
    they fit into the 16 bits of a function's id. Threads may ask for ids at the same time.
    """

    def __init__(self) -> None:
        self._next = itertools.count()
        self._ids: dict[str, int] = {}
        for name in ("", *FUNCTIONS, "sincos", *COMPOSITES):
            self.id(name)

    def id(self, text: str) -> int:
        """Return the id of ``text``, a new one the first time."""
        known = self._ids.get(text)
        # setdefault is one step under the interpreter's lock: a race wastes a number at most.
        return self._ids.setdefault(text, next(self._next)) if known is None else known

    def items(self) -> list[tuple[str, int]]:
        """Return all strings with their ids, oldest first."""
        return list(self._ids.items())

    def as_dict(self) -> dict[int, str]:
        """Return id -> string."""
        return {number: text for text, number in self.items()}


class Renamer:
    """Translates records that use the ids of several tables to one table."""

    def __init__(self) -> None:
        self.table = StringTable()

    def __call__(self, rows: Records, strings: Mapping[int, str]) -> Records:
        """Return a copy of rows whose ids belong to ``strings``, with ids of ``table``."""
        rows = rows.copy()
        for name in ("function", "operator", "module"):
            if name in (rows.dtype.names or ()):
                old, where = np.unique(rows[name], return_inverse=True)
                new = np.array([self.table.id(strings[int(n)]) for n in old], np.uint64)
                rows[name] = new[where] if len(rows) else 0
        return rows
