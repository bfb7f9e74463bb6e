# SPDX-License-Identifier: Apache-2.0
"""Reads the counters of the CPU's runtime and of the GPUs as records."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from pytest_udftorch.swap.cuda.counters import counters
from pytest_udftorch.swap.native.runtime import runtime
from pytest_udftorch.swap.records import layout
from pytest_udftorch.swap.records.layout import DEPTHS, Records, StringTable
from pytest_udftorch.swap.records.totals import add_cells, add_operators


class Counting:
    """The counters of one session; the arguments are those of ``collect.Collector``.

    Attributes:
        cells: the runtime's counters.
        strings: the table that the ids of the records belong to.
        lock: held while counters are read or reset.
    """

    def __init__(self, depth: str, stride: int, operators: Sequence[str]) -> None:
        self.cells = runtime().cells
        self.strings = StringTable()
        self.lock = threading.RLock()
        self._depth = DEPTHS.index(depth)
        self._stride = stride
        # Taken now, while an id still fits into the 16 bits of a function's id.
        self._operator_ids = np.array([self.strings.id(n) for n in operators], np.uint16)
        self._ids = np.zeros(0, np.uint32)  # the runtime's ids of strings -> ours
        self._clock = (0, 0)

    @property
    def missed(self) -> int:
        """Launches on GPUs that were not counted since the counters began."""
        return counters.missed

    def set_clock(self) -> None:
        """Take the time from which the rate of the ticks is measured."""
        self._clock = self.cells.clocks()

    def begin(self) -> None:
        """Count from zero."""
        self.cells.start(self._depth, self._stride)
        counters.start(self._stride)

    def end(self) -> None:
        """Stop counting; what was counted can still be read."""
        self.cells.stop()
        counters.stop()

    def part(self) -> tuple[Records, Records]:
        """Return what was counted since :meth:`begin`: dtypes CELL and OPERATOR."""
        with self.lock:
            parts = []
            on_gpus = counters.read()
            kinds = (("cells", layout.CELL), ("operators", layout.OPERATOR))
            for (what, dtype), more in zip(kinds, on_gpus, strict=True):
                # Other threads may add contexts between the two calls.
                rows = np.zeros(self.cells.count(what) + 16, dtype)
                count = self.cells.read(what, rows.ctypes.data, len(rows))
                rows = self._named(np.concatenate([rows[: min(count, len(rows))], more]))
                rows["time_ns"] *= self._clock_rate()[2]
                parts.append(rows)
            return add_cells(parts[0]), add_operators(parts[1])

    def events(self) -> Records:
        """Take the events out of the ring: dtype EVENT."""
        with self.lock:
            found = []
            while True:
                rows = np.zeros(4096, layout.EVENT)
                count = self.cells.read("events", rows.ctypes.data, len(rows))
                found.append(rows[:count])
                if count < len(rows):
                    break
            events = np.concatenate(found)
            ticks, now, rate = self._clock_rate()
            for name in ("start_ns", "end_ns"):
                # Relative to now: absolute ticks have more bits than a double.
                ago = (ticks - events[name].astype(np.int64)) * rate
                events[name] = (now - np.rint(ago).astype(np.int64)).astype(np.uint64)
            return self._named(events)

    def _named(self, rows: Records) -> Records:
        """Replace the runtime's ids of strings by those of ``strings``."""
        count = self.cells.string_count()
        if count > len(self._ids):
            fresh = [self.strings.id(self.cells.string(i)) for i in range(len(self._ids), count)]
            self._ids = np.concatenate([self._ids, np.array(fresh, np.uint32)])
        if len(rows):
            for name in ("operator", "module"):
                rows[name] = self._ids[rows[name]]
            if "function" in (rows.dtype.names or ()):
                whole = rows["function"] >= layout.FIRST_OPERATOR_UDF
                numbers = rows["function"][whole] - layout.FIRST_OPERATOR_UDF
                rows["function"][whole] = self._operator_ids[numbers]
        return rows

    def _clock_rate(self) -> tuple[int, int, float]:
        """Return a reading of both clocks, and ns per tick since :meth:`set_clock`."""
        ticks, now = self.cells.clocks()
        first_ticks, first = self._clock
        return ticks, now, (now - first) / max(1, ticks - first_ticks)
