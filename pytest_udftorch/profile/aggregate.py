"""Profiles: which function was called where, how often, on what range, for how long.

A :class:`Profile` is made from the records of one process, or of several by
:func:`merge`. It does not change, and needs neither torch nor the native runtime.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from pytest_udftorch.errors import (
    NoProfileError,
    PackageMissingError,
    ProfileFileError,
    ProfileFormatError,
    ProfileMismatchError,
    nearest,
)
from pytest_udftorch.records import file as record
from pytest_udftorch.records import layout
from pytest_udftorch.records.layout import (
    CELL_DTYPES,
    CELL_FORMS,
    DEVICES,
    STAGES,
    Records,
    StringTable,
)

Kind = Literal["nan", "inf", "subnormal"]

#: What must be the same in profiles that are added up.
IDENTITY: Final = ("library", "version", "build_id", "cpu_level", "torch", "depth", "stride")

#: What a table can have one row for.
GROUPS: Final = {
    "function": ("function", "dtype", "device"),
    "operator": ("operator", "device"),
    "layer": ("module", "device"),
    "stage": ("stage", "device"),
}

#: How a layer is shown that is none: code outside of every nn.Module.
NO_MODULE: Final = "(no module)"

#: How kinds of special values are called.
KINDS: Final = {"nan": "NaN", "inf": "inf", "subnormal": "subnormal", "zero": "zero"}


# Numbers for people ------------------------------------------------------------------


def value_text(value: float | None) -> str:
    """Return a value of a function with four digits; a dash for None."""
    if value is None:
        return "-"
    text = f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return text.replace("nan", "NaN")


def time_text(time_ns: float) -> str:
    """Return a time with three digits and its unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if time_ns >= 0.9995 * size:
            scaled = time_ns / size
            return f"{scaled:,.0f} {unit}" if scaled >= 999.5 else f"{scaled:.3g} {unit}"
    return f"{time_ns:.3g} ns"


def share_text(part: float, whole: float) -> str:
    """Return a share in percent; a dash where there is no whole."""
    if whole <= 0:
        return "-"
    percent = 100 * part / whole
    return f"{percent:.1f} %" if percent >= 0.05 or not part else "< 0.1 %"


# Rows --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Cells that were added up, and how often operators ran that used the function.

    Attributes:
        key: which function, dtype, form, device, stage, operator and module; those that were added
            up over are missing.
        cell: one CELL; its ids are meaningless where ``key`` has no such name.
        operator_calls: of the operators in whose calls one of the functions was used.
        operator_time_ns: of these calls, everything in them included; 0 unless timed.
    """

    key: Mapping[str, str]
    cell: np.void
    operator_calls: int
    operator_time_ns: float

    @property
    def name(self) -> str:
        """The key as one text."""
        parts = []
        for name, text in self.key.items():
            if name == "module":
                parts.append(text or NO_MODULE)
            elif name == "device":
                parts += [text] if text != DEVICES[0] else []
            elif name != "dtype" or text not in ("float32", "any"):
                parts.append(text or "(none)")
        return " ".join(parts)

    @property
    def calls(self) -> int:
        """Calls of the functions' forms: one may take 1, 8 or any number of elements."""
        return int(self.cell["calls"])

    @property
    def elements(self) -> int:
        """Elements that went through the functions."""
        return int(self.cell["elements"])

    @property
    def time_ns(self) -> float:
        """Time in the functions, summed over threads; 0 unless timed."""
        return float(self.cell["time_ns"])

    def limits(self, side: Literal["in", "out"]) -> tuple[float, float] | None:
        """Return the least and the largest value; None if there was none but NaNs."""
        low, high = float(self.cell[f"{side}_min"]), float(self.cell[f"{side}_max"])
        return None if low > high else (low, high)

    def special(self, side: Literal["in", "out"], kind: str) -> int:
        """Return how many values were ``zero``, ``subnormal``, ``inf`` or ``nan``."""
        names = ("pos_inf", "neg_inf") if kind == "inf" else (kind,)
        return sum(int(self.cell[f"{side}_{name}"]) for name in names)

    def made(self, kind: Kind) -> bool:
        """Tell whether a block without one among its inputs had one among its outputs."""
        return bool(self.cell[f"made_{kind}_ns"])

    @property
    def specials_text(self) -> str:
        """What stands out of special values, as ``inf 0→3``."""
        parts = []
        for kind, text in KINDS.items():
            before, after = self.special("in", kind), self.special("out", kind)
            if before != after or (kind != "zero" and before):
                parts.append(f"{text} {before:,}→{after:,}")
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data: infinities are the strings ``inf`` and ``-inf``."""
        found: dict[str, Any] = dict(self.key)
        found["operator_calls"] = self.operator_calls
        if self.operator_time_ns:
            found["operator_time_ns"] = self.operator_time_ns
        return found | _cell_dict(self.cell)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _cell_dict(cell: np.void) -> dict[str, Any]:
    found: dict[str, Any] = {"calls": int(cell["calls"]), "elements": int(cell["elements"])}
    for side in ("in", "out"):
        low, high = float(cell[f"{side}_min"]), float(cell[f"{side}_max"])
        found[f"{side}_min"] = None if low > high else _number(low)
        found[f"{side}_max"] = None if low > high else _number(high)
        for name in layout.SPECIALS:
            found[f"{side}_{name}"] = int(cell[f"{side}_{name}"])
    for name in layout.FIRSTS:
        found[name] = int(cell[name]) or None
    found["time_ns"] = float(cell["time_ns"])
    found["timed_elements"] = int(cell["timed_elements"])
    return found


def _histogram_dict(histogram: NDArray[np.uint64]) -> dict[str, dict[str, int]]:
    return {
        sign: {str(int(b) - layout.HIST_OFFSET): int(row[b]) for b in np.flatnonzero(row)}
        for sign, row in zip("+-", histogram, strict=True)
    }


@dataclass(frozen=True)
class First:
    """The first time that a function made a NaN, an infinity or a subnormal number.

    Attributes:
        kind: ``nan``, ``inf`` or ``subnormal``.
        function, dtype, form, device, operator, module, stage: which one, and where.
        time_ns: when: UTC, ns since 1970.
        after_s: the same, since the profile began.
    """

    kind: str
    function: str
    dtype: str
    form: str
    device: str
    operator: str
    module: str
    stage: str
    time_ns: int
    after_s: float

    def __str__(self) -> str:
        kind = self.dtype if self.device == DEVICES[0] else f"{self.dtype}, {self.device}"
        return (
            f"{self.function} ({kind}) in {self.operator or 'no operator'}, layer "
            f"{self.module or NO_MODULE}, {self.stage}, after {self.after_s:.3f} s"
        )


# Adding up ---------------------------------------------------------------------------


def _grouped(rows: Records, key: Sequence[str]) -> tuple[Records, NDArray[np.intp]]:
    """Return rows in the order of their keys, and where each group starts."""
    if not key or not len(rows):
        return rows, np.arange(min(1, len(rows)))
    rows = rows[np.lexsort([rows[name] for name in reversed(key)])]
    keys = np.stack([rows[name].astype(np.int64) for name in key])
    return rows, np.concatenate([[0], np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(0)) + 1])


def add_cells(cells: Records, key: Sequence[str] = layout.CELL_KEY) -> Records:
    """Return one cell for each value of ``key``, ordered by it.

    Other fields of the key keep the value of the first cell.
    """
    rows, starts = _grouped(cells, key)
    found = rows[starts].copy()
    if not len(rows):
        return found
    for name in layout.COUNTS:
        found[name] = np.add.reduceat(rows[name], starts, axis=0)
    for name in layout.MINIMA:
        found[name] = np.minimum.reduceat(rows[name], starts)
    for name in layout.MAXIMA:
        found[name] = np.maximum.reduceat(rows[name], starts)
    never = np.iinfo(np.uint64).max
    for name in layout.FIRSTS:
        times = np.minimum.reduceat(np.where(rows[name] == 0, never, rows[name]), starts)
        found[name] = np.where(times == never, 0, times)
    return found


def add_operators(operators: Records) -> Records:
    """Return one OPERATOR for each context, ordered by it."""
    rows, starts = _grouped(operators, layout.OPERATOR_KEY)
    found = rows[starts].copy()
    if len(rows):
        for name in ("calls", "time_ns"):
            found[name] = np.add.reduceat(rows[name], starts)
    return found


class _Renamer:
    """Puts records that name strings of several tables over to one table."""

    def __init__(self) -> None:
        self.table = StringTable()

    def __call__(self, rows: Records, strings: Mapping[int, str]) -> Records:
        rows = rows.copy()
        for name in ("function", "operator", "module"):
            if name in (rows.dtype.names or ()):
                old, where = np.unique(rows[name], return_inverse=True)
                new = np.array([self.table.id(strings[int(n)]) for n in old], np.uint64)
                rows[name] = new[where] if len(rows) else 0
        return rows


def _to_utc(rows: Records, names: Iterable[str], meta: Mapping[str, Any]) -> Records:
    """Return rows whose times are UTC instead of CLOCK_MONOTONIC; 0 stays 0."""
    clocks = meta["clocks"]
    offset = np.int64(clocks["realtime_ns"] - clocks["monotonic_ns"])
    rows = rows.copy()
    for name in names:
        times = rows[name].astype(np.int64)
        rows[name] = np.where(times == 0, 0, times + offset).astype(np.uint64)
    return rows


# The profile -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Profile:
    """What was recorded, added up over threads, calls, tests and processes.

    Attributes:
        processes: for each process what its header says: library, build, clocks, rank, ...
        strings: id -> string, for the ids in the arrays.
        cells: dtype CELL, one for each function, dtype, form, device, stage, operator and module.
        operators: dtype OPERATOR, one for each operator, module, stage and device.
        events: dtype EVENT, by their start; empty unless the depth is ``events``.
        notes: sentences about what is missing.

    Times are UTC in ns since 1970.
    """

    processes: tuple[Mapping[str, Any], ...]
    strings: Mapping[int, str]
    cells: Records
    operators: Records
    events: Records
    notes: tuple[str, ...] = ()

    @classmethod
    def from_arrays(
        cls,
        strings: StringTable | Mapping[int, str],
        meta: Mapping[str, Any],
        *,
        cells: Records,
        operators: Records | None = None,
        events: Records | None = None,
        notes: Sequence[str] = (),
    ) -> Profile:
        """Make a profile of the records of one process.

        Args:
            strings: that the ids in the records belong to.
            meta: as in the header of a file; without ``clocks`` they are read now.
            cells: dtype CELL; times are CLOCK_MONOTONIC.
            operators: dtype OPERATOR.
            events: dtype EVENT; times are CLOCK_MONOTONIC.
            notes: what is missing.
        """
        meta = {"clocks": record.clocks(), **meta}
        names = strings.as_dict() if isinstance(strings, StringTable) else dict(strings)
        events = np.zeros(0, layout.EVENT) if events is None else events
        operators = np.zeros(0, layout.OPERATOR) if operators is None else operators
        events = _to_utc(events, ("start_ns", "end_ns"), meta)
        return cls(
            tuple(meta.get("processes", [meta])),
            names,
            add_cells(_to_utc(cells, layout.FIRSTS, meta)),
            add_operators(operators),
            events[np.argsort(events["start_ns"], kind="stable")],
            tuple(notes),
        )

    @classmethod
    def load(cls, path: str | Path, *, scope: str | None = None) -> Profile:
        """Read a file, or all profiles of a folder as one.

        Args:
            path: of a file, or of a folder with files ``profiled*.bin``.
            scope: take only this part of the run, such as a test; no events then.

        Raises:
            NoProfileError: a folder without a profile, or no such scope.
            ProfileMismatchError: they are of different libraries, builds or depths.
            ProfileFileError, ProfileFormatError, ProfileVersionError, ProfileDamagedError:
                as from :func:`pytest_udftorch.record.read`.
        """
        files = _read_all(Path(path))
        if scope is not None and not any(scope in f.cells for f, _ in files):
            known = {s for f, _ in files for s in f.cells}
            raise NoProfileError(f"{path} has no scope {scope!r}. {nearest(scope, known)}")
        return merge(_from_file(file, notes, scope) for file, notes in files)

    # What was profiled ---------------------------------------------------------------

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the first process says of itself; the others say the same of the library."""
        return self.processes[0]

    @property
    def label(self) -> str:
        """The name of the library."""
        return str(self.meta.get("library", "unknown"))

    @property
    def wall_ns(self) -> int:
        """For how long was profiled: the longest of all processes; 0 if nobody said."""
        walls: dict[Any, int] = {}
        for p in self.processes:  # sessions of one process follow each other
            who = (p.get("host"), p.get("pid"))
            walls[who] = walls.get(who, 0) + int(p.get("wall_ns", 0))
        return max(walls.values())

    @property
    def time_ns(self) -> float:
        """Time in all functions, summed over threads; 0 unless timed."""
        return float(self.cells["time_ns"].sum())

    def title(self) -> str:
        """Return one line: library, build, depth, processes."""
        meta = self.meta
        parts = [f"{self.label} {meta.get('version', '')}".strip()]
        if meta.get("build_id"):
            parts.append(f"build {meta['build_id']}")
        parts += [str(meta[k]) for k in ("cpu_level",) if meta.get(k)]
        if meta.get("torch"):
            parts.append(f"torch {meta['torch']}")
        if meta.get("depth"):
            parts.append(f"depth {meta['depth']}")
        processes = {(p.get("host"), p.get("pid")) for p in self.processes}
        if len(processes) > 1:
            parts.append(f"{len(processes)} processes")
        return ", ".join(parts)

    # Views ---------------------------------------------------------------------------

    def rows(self, *key: str) -> list[Row]:
        """Return the cells added up for each value of ``key``, in the order of the run.

        Args:
            *key: some of function, dtype, form, device, stage, operator, module.
        """
        cells = add_cells(self.cells, key)
        if not len(cells):
            return []
        columns = {name: self._texts(name, cells) for name in key}
        full, starts = _grouped(self.cells, key)
        ends = [*starts[1:], len(full)]
        contexts = {tuple(int(o[name]) for name in layout.OPERATOR_KEY): o for o in self.operators}
        found = []
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            part = full[start:end]
            used = set(zip(*(part[name].tolist() for name in layout.OPERATOR_KEY), strict=True))
            ops = [contexts[c] for c in used if c in contexts]
            found.append(
                Row(
                    {name: column[i] for name, column in columns.items()},
                    cells[i],
                    sum(int(o["calls"]) for o in ops),
                    sum(float(o["time_ns"]) for o in ops),
                )
            )
        return found

    def layers(self) -> list[Row]:
        """Return one row per module, function, dtype and device; modules in the order of first use.

        What belongs to no module comes last.
        """
        rows = self.rows("module", "function", "dtype", "device")
        return sorted(rows, key=lambda r: not r.key["module"])

    def table(self, by: str = "function", top: int | None = None) -> str:
        """Return a table for a terminal.

        Args:
            by: ``function``, ``operator``, ``layer`` or ``stage``.
            top: only so many rows, those with the most time, or elements if not timed.

        Raises:
            ValueError: for another ``by``.
        """
        if by not in GROUPS:
            raise ValueError(f"by={by!r} is none of {', '.join(GROUPS)}.")
        rows = self.rows(*GROUPS[by])
        timed = self.time_ns > 0
        rows.sort(key=lambda r: (-r.time_ns, -r.elements))
        hidden = 0 if top is None else len(rows) - len(rows[:top])
        rows = rows[:top]
        header = [by, "operator calls", "calls", "elements", "in min", "max", "out min", "max"]
        header += ["time", "share"] if timed else []
        lines = [[*header, "special values in→out"]]
        for row in rows:
            cells = [row.name, f"{row.operator_calls:,}", f"{row.calls:,}", f"{row.elements:,}"]
            for side in ("in", "out"):
                limits = row.limits(side)
                cells += [value_text(x) for x in limits or (None, None)]
            if timed:
                cells += [time_text(row.time_ns), share_text(row.time_ns, self.time_ns)]
            lines.append([*cells, row.specials_text])
        if not rows:
            return "no watched function was called"
        text = columns(lines, left={0, len(lines[0]) - 1})
        return text + (f"\n... and {hidden} more" if hidden > 0 else "")

    def first(self, kind: Kind) -> First | None:
        """Return where the first NaN, infinity or subnormal number was made by a function.

        That is an output of a block of elements among whose inputs there was none. None if
        no function made one: it may still have come in from elsewhere.

        Raises:
            ValueError: for another kind.
        """
        name = f"made_{kind}_ns"
        if name not in layout.FIRSTS:
            raise ValueError(f"{kind!r} is none of nan, inf, subnormal.")
        cells = self.cells[self.cells[name] > 0]
        if not len(cells):
            return None
        cell = cells[[int(np.argmin(cells[name]))]]
        texts = {key: self._texts(key, cell)[0] for key in layout.CELL_KEY}
        time_ns = int(cell[name][0])
        return First(kind, time_ns=time_ns, after_s=(time_ns - self._start_ns) / 1e9, **texts)

    @property
    def _start_ns(self) -> int:
        return min(int(p["clocks"]["realtime_ns"]) for p in self.processes)

    def _texts(self, name: str, rows: Records) -> list[str]:
        numbers = rows[name].tolist()
        if name in ("function", "operator", "module"):
            return [self.strings[n] for n in numbers]
        names = {"dtype": CELL_DTYPES, "form": CELL_FORMS, "stage": STAGES, "device": DEVICES}[name]
        return [names[n] for n in numbers]

    # Plain data ----------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Return the totals per function as plain data, fit for JSON."""
        firsts = {kind: self.first(kind) for kind in ("nan", "inf", "subnormal")}
        return {
            **{k: self.meta[k] for k in IDENTITY if k in self.meta},
            "functions": [row.as_dict() for row in self.rows("function", "dtype", "device")],
            "first": {kind: str(first) for kind, first in firsts.items() if first},
            "notes": list(self.notes),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the events as plain data, fit for JSON.

        Infinities are the strings ``inf`` and ``-inf``; a range without values is None;
        histograms map sign and exponent to a count, without zeros.
        """
        cells = []
        names = {name: self._texts(name, self.cells) for name in layout.CELL_KEY}
        for i, cell in enumerate(self.cells):
            cells.append(
                {name: texts[i] for name, texts in names.items()}
                | _cell_dict(cell)
                | {"hist_elements": int(cell["hist_elements"])}
                | {f"hist_{s}": _histogram_dict(cell[f"hist_{s}"]) for s in ("in", "out")}
            )
        names = {name: self._texts(name, self.operators) for name in layout.OPERATOR_KEY}
        operators = [
            {name: texts[i] for name, texts in names.items()}
            | {"calls": int(o["calls"]), "time_ns": float(o["time_ns"])}
            for i, o in enumerate(self.operators)
        ]
        return {
            "processes": [dict(p) for p in self.processes],
            "cells": cells,
            "operators": operators,
            "events": len(self.events),
            **{k: v for k, v in self.summary().items() if k in ("first", "notes")},
        }

    def to_pandas(self, what: Literal["cells", "operators", "events"] = "cells") -> Any:
        """Return a DataFrame with one row per cell, operator or event, without histograms.

        Strings are categories. The range of a cell without values is NaN.

        Raises:
            PackageMissingError: pandas is not installed.
        """
        pandas = _package("pandas", "A DataFrame")
        rows = getattr(self, what)
        data: dict[str, Any] = {}
        for name in rows.dtype.names:
            if (name.startswith("hist_") and rows.dtype[name].shape) or name in ("pad", "process"):
                continue
            if name in layout.CELL_KEY:
                data[name] = pandas.Categorical(self._texts(name, rows))
            else:
                data[name] = rows[name]
        frame = pandas.DataFrame(data)
        for side in ("in", "out"):
            low, high = f"{side}_min", f"{side}_max"
            if low in data:
                frame.loc[frame[low] > frame[high], [low, high]] = np.nan
        if what == "events":
            for bit, name in enumerate(layout.EVENT_FLAGS):
                frame[name] = (rows["flags"] >> bit & 1).astype(bool)
            pids = np.array([int(p.get("pid", 0)) for p in self.processes])
            frame["pid"] = pids[rows["process"]]
            frame = frame.drop(columns="flags")
        return frame

    # Files ---------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write one file that :meth:`load` reads back.

        Raises:
            ProfileFileBusyError, ProfileFileExistsError, ProfileFileError: as from
                :class:`pytest_udftorch.record.ProfileWriter`.
        """
        table = _Renamer()
        cells, operators, events = (
            table(rows, self.strings) for rows in (self.cells, self.operators, self.events)
        )
        meta = {
            **self.meta,
            # The times are UTC already.
            "clocks": {"monotonic_ns": 0, "realtime_ns": 0},
            "processes": [dict(p) for p in self.processes],
        }
        with record.ProfileWriter(Path(path), table.table, meta) as writer:
            writer.cells(cells)
            writer.operators(operators)
            writer.events(events)
            for note in self.notes:
                writer.mark(note=note)

    def to_json(self, path: str | Path) -> None:
        """Write :meth:`to_dict`.

        Raises:
            ProfileFileError: the file cannot be written.
        """
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        write_file(path, lambda p: p.write_text(text, encoding="utf-8"))

    def to_csv(
        self, path: str | Path, what: Literal["cells", "operators", "events"] = "cells"
    ) -> None:
        """Write :meth:`to_pandas` as CSV.

        Raises:
            PackageMissingError: pandas is not installed.
            ProfileFileError: the file cannot be written.
        """
        frame = self.to_pandas(what)
        write_file(path, lambda p: frame.to_csv(p, index=False))

    def to_parquet(
        self, path: str | Path, what: Literal["cells", "operators", "events"] = "cells"
    ) -> None:
        """Write :meth:`to_pandas` as Parquet.

        Raises:
            PackageMissingError: pandas or pyarrow is not installed.
            ProfileFileError: the file cannot be written.
        """
        frame = self.to_pandas(what)
        _package("pyarrow", "A Parquet file")
        write_file(path, lambda p: frame.to_parquet(p, engine="pyarrow", index=False))

    def to_trace(self, path: str | Path, torch_trace: str | Path | None = None) -> None:
        """Write the events as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

        Times are those of torch.profiler's ``export_chrome_trace``: microseconds of UTC
        since ``baseTimeNanoseconds``. Each function's span lies on the line of its thread
        within that of its operator.

        Args:
            path: of the new file.
            torch_trace: a file that torch.profiler wrote during the same run; its spans are
                taken along, so that both are in one picture.

        Raises:
            NoProfileError: the profile has no events.
            ProfileFormatError: ``torch_trace`` is no such trace.
            ProfileFileError: a file cannot be read or written.
        """
        if not len(self.events):
            raise NoProfileError(
                "The profile has no events, so there is no trace. Record with the depth "
                'events: --udf-profile=events, or patched(..., profile="events").'
            )
        trace: dict[str, Any] = {"displayTimeUnit": "ms", "traceEvents": []}
        # Doubles hold UTC in microseconds only to a quarter of one.
        trace["baseTimeNanoseconds"] = int(self.events["start_ns"][0]) // 10**9 * 10**9
        if torch_trace is not None:
            trace = _torch_trace(Path(torch_trace))
        base = int(trace["baseTimeNanoseconds"])
        trace["traceEvents"] = [*trace["traceEvents"], *self._spans(base)]
        text = json.dumps(trace)
        write_file(path, lambda p: p.write_text(text, encoding="utf-8"))

    def _spans(self, base_ns: int) -> list[dict[str, Any]]:
        names = {n: self._texts(n, self.events) for n in ("function", "dtype", "stage")}
        names |= {n: self._texts(n, self.events) for n in ("operator", "module")}
        spans = []
        for i, event in enumerate(self.events):
            process = self.processes[int(event["process"])]
            start, end = int(event["start_ns"]), int(event["end_ns"])
            low_high = {
                f"{side} {limit}": value_text(float(event[f"{side}_{limit}"]))
                for side in ("in", "out")
                if event[f"{side}_min"] <= event[f"{side}_max"]
                for limit in ("min", "max")
            }
            flags = [
                flag.replace("_", " ")
                for bit, flag in enumerate(layout.EVENT_FLAGS)
                if int(event["flags"]) >> bit & 1
            ]
            spans.append(
                {
                    "ph": "X",
                    "cat": "udf",
                    "name": names["function"][i],
                    "pid": int(process.get("pid", 0)),
                    "tid": int(event["thread"]),
                    "ts": (start - base_ns) / 1000,
                    "dur": (end - start) / 1000,
                    "args": {
                        **{n: names[n][i] for n in ("operator", "module", "stage", "dtype")},
                        "elements": int(event["elements"]),
                        **low_high,
                        **({"special values": ", ".join(flags)} if flags else {}),
                    },
                }
            )
        return spans


def _torch_trace(path: Path) -> dict[str, Any]:
    try:
        trace = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileFileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except ValueError:
        trace = None
    if (
        not isinstance(trace, dict)
        or not isinstance(trace.get("traceEvents"), list)
        or not isinstance(trace.get("baseTimeNanoseconds"), int)
    ):
        raise ProfileFormatError(
            f"{path} is no trace of torch.profiler: it lacks traceEvents or "
            "baseTimeNanoseconds. Write one with profiler.export_chrome_trace(...)."
        )
    return trace


def columns(lines: Sequence[Sequence[str]], left: set[int]) -> str:
    """Return lines as a table, the first one underlined; columns not in ``left`` end flush."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    texts = []
    for line in lines:
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        texts.append("  ".join(cells).rstrip())
    return "\n".join([texts[0], "-" * max(map(len, texts)), *texts[1:]])


def _package(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise PackageMissingError(
            f"{what} needs the package {name}, which cannot be imported ({error}). Install it: "
            f"pip install 'pytest_udftorch[profile]', or pip install {name}."
        ) from error


def write_file(path: str | Path, write: Callable[[Path], Any]) -> None:
    """Write a file through ``write``; its folder is made if there is none.

    Raises:
        ProfileFileError: the system refuses.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except OSError as error:
        raise ProfileFileError(
            f"Cannot write {path}: {error.strerror or error}. Choose another place."
        ) from error


# Several -----------------------------------------------------------------------------


def merge(profiles: Iterable[Profile]) -> Profile:
    """Return one profile of several parts, processes or ranks of the same run.

    Raises:
        NoProfileError: there is none.
        ProfileMismatchError: they are of different libraries, builds, depths or strides.
    """
    given = list(profiles)
    if not given:
        raise NoProfileError("There is no profile to merge.")
    first = given[0]
    for other in given[1:]:
        for key in IDENTITY:
            mine, theirs = first.meta.get(key), other.meta.get(key)
            if mine != theirs:
                raise ProfileMismatchError(
                    f"Profiles that differ in {key} ({mine!r} and {theirs!r}) cannot be added "
                    f"up: the first is {first.title()}, another {other.title()}. Put them into "
                    "separate folders and load each by itself."
                )
    if len(given) == 1:
        return first
    rename = _Renamer()
    processes: list[Mapping[str, Any]] = []
    events = []
    # Names of functions first: their ids have 16 bits.
    for p in given:
        for number in np.unique(p.cells["function"]):
            rename.table.id(p.strings[int(number)])
    for p in given:
        where = [_index(processes, q) for q in p.processes]
        mine = rename(p.events, p.strings)
        if len(mine):
            mine["process"] = np.array(where, np.uint32)[mine["process"]]
        events.append(mine)
    cells = np.concatenate([rename(p.cells, p.strings) for p in given])
    operators = np.concatenate([rename(p.operators, p.strings) for p in given])
    together = np.concatenate(events)
    return Profile(
        tuple(processes),
        rename.table.as_dict(),
        add_cells(cells),
        add_operators(operators),
        together[np.argsort(together["start_ns"], kind="stable")],
        tuple(dict.fromkeys(note for p in given for note in p.notes)),
    )


def _index(processes: list[Mapping[str, Any]], process: Mapping[str, Any]) -> int:
    """Return the place of a process in the list, which parts of one process share."""
    for number, known in enumerate(processes):
        if {**process, "wall_ns": 0} == {**known, "wall_ns": 0}:
            if process.get("wall_ns", 0) > known.get("wall_ns", 0):
                processes[number] = process
            return number
    processes.append(process)
    return len(processes) - 1


def by_library(profiles: Iterable[Profile]) -> list[Profile]:
    """Return one profile for each library, ``std`` first: others are held against it.

    Raises:
        ProfileMismatchError: two of one library are of different builds or depths.
    """
    groups: dict[str, list[Profile]] = {}
    for profile in profiles:
        groups.setdefault(profile.label, []).append(profile)
    return [merge(groups[label]) for label in sorted(groups, key=lambda label: label != "std")]


def load_all(paths: Iterable[str | Path]) -> list[Profile]:
    """Read files and folders; return one profile for each library, ``std`` first.

    Raises:
        As :meth:`Profile.load`; files of one library must be of one build and depth.
    """
    return by_library(
        _from_file(file, notes) for path in paths for file, notes in _read_all(Path(path))
    )


def _read_all(path: Path) -> list[tuple[record.ProfileFile, list[str]]]:
    """Read a file or a folder's files; return each with notes about what is missing."""
    if not path.is_dir():
        if not path.exists():
            raise NoProfileError(f"There is no file or folder {path}.")
        file = record.read(path)
        return [(file, _notes(file))]
    found = []
    empty = []
    for name in sorted(path.glob("profiled*.bin")):
        # A full disk, or a process that died at once, leaves a file without a byte.
        if name.stat().st_size == 0:
            empty.append(f"{name.name} is empty: nothing could be written to it.")
            continue
        file = record.read(name)
        found.append((file, _notes(file)))
    if not found:
        raise NoProfileError(
            f"{path} holds no profile (a file profiled*.bin with records). Make one with "
            "pytest --udf-profile --udf-profile-out=DIR."
        )
    found[0][1].extend(empty)
    return found


def _notes(file: record.ProfileFile) -> list[str]:
    notes = []
    if file.truncated:
        notes.append(f"{file.path.name} is cut off; it was read up to the last whole record.")
    elif not file.ended:
        notes.append(f"{file.path.name} was not closed: its process died, or still runs.")
    lost = sum(int(m.get("lost_events", 0)) for m in file.marks)
    if lost:
        notes.append(f"{file.path.name} lacks {lost:,} events that were dropped.")
    return notes + [str(m["note"]) for m in file.marks if "note" in m]


def _from_file(file: record.ProfileFile, notes: Sequence[str], scope: str | None = None) -> Profile:
    meta = dict(file.meta)
    if not isinstance(meta.get("clocks"), dict):
        raise ProfileFormatError(
            f"The header of {file.path} lacks the clocks. It was not written by this package."
        )
    walls = [int(m["wall_ns"]) for m in file.marks if "wall_ns" in m]
    if walls:
        meta["wall_ns"] = walls[-1]

    def part(parts: Mapping[str, Records], dtype: np.dtype[np.void]) -> Records:
        chosen = [rows for name, rows in parts.items() if scope is None or name == scope]
        return np.concatenate(chosen) if chosen else np.zeros(0, dtype)

    return Profile.from_arrays(
        file.strings,
        meta,
        cells=part(file.cells, layout.CELL),
        operators=part(file.operators, layout.OPERATOR),
        events=file.events if scope is None else None,
        notes=notes,
    )
