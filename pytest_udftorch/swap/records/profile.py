# SPDX-License-Identifier: Apache-2.0
"""Profiles: which function was called where, how often, on what range, for how long.

A :class:`Profile` is made from the records of one process, or of several by
:func:`merge_profiles`. It does not change, and needs neither torch nor the native runtime.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from pytest_udftorch.base.plain_data import shown
from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.errors import NoProfileError, ProfileError, ProfileFileError, nearest
from pytest_udftorch.swap.records import export, layout, runs
from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records.layout import DEVICES, Records, Renamer, StringTable
from pytest_udftorch.swap.records.profile_text import (
    table_lines,
    table_text,
    title_text,
)
from pytest_udftorch.swap.records.totals import (
    IDENTITY,
    KINDS,
    NO_MODULE,
    First,
    Kind,
    Row,
    add_cells,
    add_operators,
    grouped,
    to_utc,
    utc_offset,
)

#: At most so many rows are shown of a profile that nobody asked for a table.
_SHOWN: Final = 20


@dataclass(frozen=True, eq=False, repr=False)
class Profile(Result):
    """What was recorded, added up over threads, calls, tests and processes.

    Attributes:
        processes: what the header of each process says: library, build, clocks, rank, ...
        strings: id -> string, for the ids in the arrays.
        cells: dtype CELL, one for each function, dtype, form, device, stage, operator and module.
        operators: dtype OPERATOR, one for each operator, module, stage and device.
        events: dtype EVENT, by their start; empty unless the depth is ``events``.
        notes: sentences about what is missing.
        lines: time at which a function first made a special value, in ns of UTC since 1970 -> the
            line of Python that called the operator, if it is known.

    Times are UTC in ns since 1970.
    """

    processes: tuple[Mapping[str, Any], ...]
    strings: Mapping[int, str]
    cells: Records
    operators: Records
    events: Records
    notes: tuple[str, ...] = ()
    lines: Mapping[int, str] = field(default_factory=dict)

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
        lines: Mapping[int, str] | None = None,
    ) -> Profile:
        """Make a profile of the records of one process.

        Args:
            strings: the table that the ids in the records belong to.
            meta: as in the header of a file; ``clocks`` are read now unless given.
            cells: dtype CELL; times are CLOCK_MONOTONIC.
            operators: dtype OPERATOR.
            events: dtype EVENT; times are CLOCK_MONOTONIC.
            notes: what is missing.
            lines: of first special values; times are CLOCK_MONOTONIC.
        """
        meta = {"clocks": record.clocks(), **meta}
        names = strings.as_dict() if isinstance(strings, StringTable) else dict(strings)
        events = np.zeros(0, layout.EVENT) if events is None else events
        operators = np.zeros(0, layout.OPERATOR) if operators is None else operators
        events = to_utc(events, ("start_ns", "end_ns"), meta)
        return cls(
            tuple(meta.get("processes", [meta])),
            names,
            add_cells(to_utc(cells, layout.FIRSTS, meta)),
            add_operators(operators),
            events[np.argsort(events["start_ns"], kind="stable")],
            tuple(notes),
            {time + utc_offset(meta): line for time, line in (lines or {}).items()},
        )

    @classmethod
    def load(cls, path: str | Path, *, scope: str | None = None, add_runs: bool = False) -> Profile:
        """Read a file, or the profiles of a run in a folder as one.

        Args:
            path: a file, or a folder with files ``profiled*.bin``.
            scope: take only this part of the run, such as a test, without events.
            add_runs: add up the profiles of several runs, too.

        Raises:
            NoProfileError: a folder without a profile, or no such scope.
            ProfileError: the folder holds several runs, and ``add_runs`` is not set; they are of
                different libraries, builds or depths.
            ProfileFileError: as from :func:`pytest_udftorch.swap.records.file.read`.
        """
        files = _distinct(_read_all(Path(path)))
        if not add_runs:
            _refuse_several(files)
        if scope is not None and not any(scope in f.cells for f, _ in files):
            known = {s for f, _ in files for s in f.cells}
            raise NoProfileError(f"{path} has no scope {scope!r}. {nearest(scope, known)}")
        return merge_profiles(_from_file(file, notes, scope) for file, notes in files)

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
    def start_ns(self) -> int:
        """When the first process began to profile, in ns of UTC since 1970."""
        return min(int(p["clocks"]["realtime_ns"]) for p in self.processes)

    @property
    def wall_ns(self) -> int:
        """How long profiling lasted, as the maximum over processes; 0 if unknown."""
        walls: dict[Any, int] = {}
        for p in self.processes:  # sessions of one process follow each other
            who = (p.get("host"), p.get("pid"))
            walls[who] = walls.get(who, 0) + int(p.get("wall_ns", 0))
        return max(walls.values())

    @property
    def time_ns(self) -> float:
        """Time in all functions, summed over threads; 0 unless timed."""
        return float(self.cells["time_ns"].sum())

    # Views ---------------------------------------------------------------------------

    def rows(self, *key: str) -> list[Row]:
        """Return the cells added up for each value of ``key``, in the order of the run.

        Args:
            *key: some of function, dtype, form, device, stage, operator, module, layer. A layer is
                a module by the name that tables and pages show; the module is empty outside of
                all modules, the layer is then ``(no module)``.

        Raises:
            ValueError: for another name.
        """
        for name in key:
            if name not in (*layout.CELL_KEY, "layer"):
                raise ValueError(
                    f"rows cannot be grouped by {name!r}. "
                    f"{nearest(name, (*layout.CELL_KEY, 'layer'))}"
                )
        fields = ["module" if name == "layer" else name for name in key]
        cells = add_cells(self.cells, fields)
        if not len(cells):
            return []
        columns = [self.texts(name, cells) for name in key]
        full, starts = grouped(self.cells, fields)
        contexts = {tuple(int(o[name]) for name in layout.OPERATOR_KEY): o for o in self.operators}
        found = []
        for cell, part, *texts in zip(cells, np.split(full, starts[1:]), *columns, strict=True):
            used = set(zip(*(part[name].tolist() for name in layout.OPERATOR_KEY), strict=True))
            ops = [contexts[c] for c in used if c in contexts]
            calls = sum(int(o["calls"]) for o in ops)
            time_ns = sum(float(o["time_ns"]) for o in ops)
            found.append(Row(dict(zip(key, texts, strict=True)), cell, calls, time_ns))
        return found

    def layers(self) -> list[Row]:
        """Return one row per module, function, dtype and device; modules in the order of first use.

        What belongs to no module comes last.
        """
        rows = self.rows("module", "function", "dtype", "device")
        return sorted(rows, key=lambda r: not r.key["module"])

    def first(self, kind: Kind) -> First | None:
        """Return where a function first made a NaN, an infinity or a subnormal number.

        A function makes one if a block of its outputs holds one and the inputs hold none. None
        if no function made one; it may still have come in from elsewhere.

        Raises:
            ValueError: for another kind.
        """
        name = f"made_{kind}_ns"
        if name not in layout.FIRSTS:
            raise ValueError(f"{kind!r} is not one of nan, inf, subnormal.")
        cells = self.cells[self.cells[name] > 0]
        if not len(cells):
            return None
        cell = cells[[int(np.argmin(cells[name]))]]
        texts = {key: self.texts(key, cell)[0] for key in layout.CELL_KEY}
        time_ns = int(cell[name][0])
        after_s = (time_ns - self.start_ns) / 1e9
        line = self.lines.get(time_ns, "")
        return First(kind, time_ns=time_ns, after_s=after_s, line=line, **texts)

    def texts(self, name: str, rows: Records) -> list[str]:
        """Return what the numbers in the field ``name`` of some rows stand for."""
        if name == "layer":
            return [text or NO_MODULE for text in self.texts("module", rows)]
        numbers = rows[name].tolist()
        if name in ("function", "operator", "module"):
            return [self.strings[n] for n in numbers]
        names = {
            "dtype": layout.CELL_DTYPES,
            "form": layout.CELL_FORMS,
            "stage": layout.STAGES,
            "device": DEVICES,
        }
        return [names[name][n] for n in numbers]

    # Plain data ----------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Return the totals per function as plain data, fit for JSON."""
        firsts = {kind: self.first(kind) for kind in ("nan", "inf", "subnormal")}
        return {
            **{k: self.meta[k] for k in IDENTITY if k in self.meta},
            "functions": [row.document() for row in self.rows("function", "dtype", "device")],
            "first": {kind: str(first) for kind, first in firsts.items() if first},
            "notes": list(self.notes),
        }

    # Text, plain data and files: see the functions of these names -------------------------

    def _shown(self) -> Shown:
        lines, hidden = table_lines(self, "function", _SHOWN)
        notes = [f"... and {hidden} more"] if hidden > 0 else []
        for kind in ("nan", "inf", "subnormal"):
            first = self.first(kind)
            notes += [f"first {KINDS[kind]} made: {first}"] if first else []
        if len(lines) == 1:
            notes.append("no watched function was called")
        return Shown(self.title(), lines[0], lines[1:], [*notes, *self.notes])

    title = title_text
    table = table_text
    document = export.document
    to_pandas = export.to_pandas
    save = export.save
    save_json = export.save_json
    save_csv = export.save_csv
    save_parquet = export.save_parquet
    save_trace = export.save_trace


def merge_profiles(profiles: Iterable[Profile]) -> Profile:
    """Return one profile of several parts, processes or ranks of the same run.

    Raises:
        NoProfileError: there is none.
        ProfileError: they are of different libraries, builds, depths or strides.
    """
    given = list(profiles)
    if not given:
        raise NoProfileError("There is no profile to merge.")
    first = given[0]
    for other in given[1:]:
        for key in IDENTITY:
            mine, theirs = first.meta.get(key), other.meta.get(key)
            if mine != theirs:
                raise ProfileError(
                    f"Profiles that differ in {key} ({mine!r} and {theirs!r}) cannot be added "
                    f"up: the first is {first.title()}, another {other.title()}. Put them into "
                    "separate folders and load each by itself."
                )
    if len(given) == 1:
        return first
    rename = Renamer()
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
        {time: line for p in given for time, line in p.lines.items()},
    )


def _index(processes: list[Mapping[str, Any]], process: Mapping[str, Any]) -> int:
    """Return the index of a process in the list; parts of one process share an index."""
    for number, known in enumerate(processes):
        if {**process, "wall_ns": 0} == {**known, "wall_ns": 0}:
            if process.get("wall_ns", 0) > known.get("wall_ns", 0):
                processes[number] = process
            return number
    processes.append(process)
    return len(processes) - 1


def by_library(profiles: Iterable[Profile]) -> list[Profile]:
    """Return one profile for each library, ``std`` first: others are compared with it.

    Raises:
        ProfileError: two of one library are of different builds or depths.
    """
    groups: dict[str, list[Profile]] = {}
    for profile in profiles:
        groups.setdefault(profile.label, []).append(profile)
    return [
        merge_profiles(groups[label]) for label in sorted(groups, key=lambda label: label != "std")
    ]


def load_profiles(paths: Iterable[str | Path], *, add_runs: bool = False) -> list[Profile]:
    """Read files and folders; return one profile for each library, ``std`` first.

    A file that is named twice, or is a copy of another, counts once.

    Args:
        paths: what to read.
        add_runs: add up the profiles of several runs, too.

    Raises:
        ProfileError: there are several runs of a library, and ``add_runs`` is not set.
        As :meth:`Profile.load`; files of one library must be of one build and depth.
    """
    files = _distinct([found for path in paths for found in _read_all(Path(path))])
    if not add_runs:
        _refuse_several(files)
    return by_library(_from_file(file, notes) for file, notes in files)


_Read: TypeAlias = tuple[record.ProfileFile, list[str]]


def _distinct(files: Sequence[_Read]) -> list[_Read]:
    """Leave out files that were read twice, and copies, which are noted."""
    by_place = {(f.path.stat().st_dev, f.path.stat().st_ino): (f, notes) for f, notes in files}
    once = list(by_place.values())
    found = []
    for (file, notes), first in zip(once, runs.copies([f for f, _ in once]), strict=True):
        if first is None:
            found.append((file, notes))
        else:
            once[first][1].append(
                f"{file.path} is a copy of {once[first][0].path}; it counts once."
            )
    return found


def _refuse_several(files: Sequence[_Read]) -> None:
    of_library: dict[str, list[record.ProfileFile]] = {}
    for file, _ in files:
        if isinstance(file.meta.get("clocks"), dict):  # otherwise it is refused later
            of_library.setdefault(str(file.meta.get("library")), []).append(file)
    for label, group in of_library.items():
        # Builds and depths that differ are an error that says more.
        if len({tuple(str(f.meta.get(key)) for key in IDENTITY) for f in group}) == 1:
            runs.refuse_several(label, group)


def _read_all(path: Path) -> list[tuple[record.ProfileFile, list[str]]]:
    """Read a file or a folder's files; return each with notes about what is missing."""
    if not os.path.exists(path):
        raise NoProfileError(f"There is no file or folder {shown(str(path))}.")
    if not path.is_dir():
        file = record.read(path)
        return [(file, _notes(file))]
    found = []
    empty = []
    for name in sorted(path.glob("profiled*.bin")):
        # A full disk, or a process that died at once, leaves a file without a byte.
        if name.is_file() and name.stat().st_size == 0:
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
        raise ProfileFileError(
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
        lines={int(t): str(s) for m in file.marks for t, s in m.get("lines", ())},
    )
