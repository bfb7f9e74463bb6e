# SPDX-License-Identifier: Apache-2.0
"""Which profile files belong to one run: those are added up, those of two runs are not.

A run has several files if it has several processes, such as xdist's workers or the ranks of a
process group. These live at the same time, but a worker that replaces one that died may not meet
it. Files that name the same run, or are of one session, or whose processes' lives overlap, are of
one run.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_udftorch.errors import ProfileError
from pytest_udftorch.swap.records.file import ProfileFile

#: The name of the run that this process belongs to, if somebody gave it one.
_own: str | None = None


def belong_to(run: str) -> None:
    """Let the profiles that this process begins from now on name a run."""
    global _own
    _own = run


def own() -> dict[str, str]:
    """Return what the header of a profile of this process says of its run."""
    return {} if _own is None else {"run": _own}


@dataclass(frozen=True)
class _Life:
    """What one file says of the time of its processes, in ns of UTC since 1970."""

    start: int
    end: int
    names: frozenset[tuple[str, str]]

    def meets(self, other: _Life) -> bool:
        return bool(self.names & other.names) or (
            self.start <= other.end and other.start <= self.end
        )


def _life(file: ProfileFile) -> _Life:
    processes: Sequence[Any] = file.meta.get("processes") or [file.meta]
    starts, ends, names = [], [], set()
    for process in processes:
        clocks = process["clocks"]
        opened = int(clocks["realtime_ns"])
        starts.append(min(int(clocks.get("process_ns", opened)), opened))
        ends.append(opened + int(process.get("wall_ns", 0)))
        names |= {(key, str(process[key])) for key in ("run", "session") if key in process}
    walls = [int(mark["wall_ns"]) for mark in file.marks if "wall_ns" in mark]
    end = max(ends) + (walls[-1] if walls else 0)
    if not (file.ended or walls):
        # Its process died: it lived at least until it last wrote.
        end = max(end, file.path.stat().st_mtime_ns)
    return _Life(min(starts), end, frozenset(names))


def copies(files: Sequence[ProfileFile]) -> list[int | None]:
    """Return, for each file, the index of an earlier one of which it is a copy, or None.

    A session writes one file in a process, whose header no other file has.
    """
    headers: list[Any] = []
    found: list[int | None] = []
    for file in files:
        same = file.meta in headers and "session" in file.meta
        found.append(headers.index(file.meta) if same else None)
        headers.append(file.meta)
    return found


def by_run(files: Sequence[ProfileFile]) -> list[list[int]]:
    """Return the indices of the files of each run, the earliest run first."""
    lives = [_life(file) for file in files]
    runs: list[list[int]] = []
    for index in sorted(range(len(files)), key=lambda i: lives[i].start):
        near = [run for run in runs if any(lives[i].meets(lives[index]) for i in run)]
        joined = [index, *(i for run in near for i in run)]
        runs = [run for run in runs if run not in near] + [sorted(joined)]
    return sorted(runs, key=lambda run: min(lives[i].start for i in run))


def refuse_several(label: str, files: Sequence[ProfileFile]) -> None:
    """Check that files are of one run.

    Raises:
        ProfileError: they are of several.
    """
    runs = by_run(files)
    if len(runs) < 2:
        return
    listed = "; ".join(
        f"{_moment(files[run[0]])}: {', '.join(sorted(str(files[i].path) for i in run))}"
        for run in runs
    )
    raise ProfileError(
        f"These are profiles of {len(runs)} runs under {label}, and those of different runs are "
        f"not added up ({listed}). Name the files of one run, set the runs beside each other with "
        "udftorch compare, or ask for the sum: udftorch report --add-runs, or add_runs=True."
    )


def _moment(file: ProfileFile) -> str:
    opened = datetime.datetime.fromtimestamp(_life(file).start / 1e9, datetime.UTC)
    return f"{opened:%Y-%m-%d %H:%M:%S} UTC"
