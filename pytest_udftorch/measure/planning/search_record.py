# SPDX-License-Identifier: Apache-2.0
"""What a search has found so far, and its journal, which a later search goes on from."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base.journal import Journal, Words
from pytest_udftorch.errors import JournalError

_TIMES: Final = shapes.mapping(shapes.text(), shapes.each(shapes.number()))
#: Only what was measured is taken over; conclusions are drawn anew.
_KEPT: Final = {
    "bounds": shapes.each(shapes.whole()),
    "unit_ns": _TIMES,
    "unit_profiled_ns": _TIMES,
}
_DAMAGED: Final = (
    "{path} is damaged: its times, or its SHA-256, do not fit what it holds. Delete it, and the "
    "search starts anew."
)
_UNWRITTEN: Final = (
    "{path} cannot be written ({error.strerror}). Name a file in a folder that may be written to "
    "and has room."
)
_FOREIGN: Final = (
    "{path} is not the journal of a search, and is left alone. Name another file, or delete it."
)


class _SearchJournal(Journal):
    """Entries of the report of a search, the last of each name being valid."""

    kind = "search"
    words = Words(unusable=_UNWRITTEN, full=_UNWRITTEN, foreign=_FOREIGN, damaged=_DAMAGED)
    finite = False
    restarts = True

    def __init__(self, path: Path, key: dict[str, Any]) -> None:
        self.entries: dict[str, Any] = {}
        if path.is_file() and not path.stat().st_size:
            raise JournalError(_FOREIGN.format(path=path))
        super().__init__(path, key)

    def read(self, payload: dict[str, Any]) -> None:
        self.entries.update(payload)


class SearchRecord:
    """The report of a search; each step of it is written to the journal.

    Args:
        journal: its file, or None.
        key: tells one search from another. The measurements of the same search are taken over
            from the journal.

    Raises:
        JournalError: the journal's folder is missing, the file is something else and is left
            alone, or the file cannot be written.
    """

    def __init__(self, journal: Path | None, key: dict[str, Any]) -> None:
        self._journal: _SearchJournal | None = None
        self.report: dict[str, Any] = {}
        if journal is not None:
            if not journal.parent.is_dir():
                raise JournalError(
                    f"{journal.parent}, the folder of the journal, does not exist. Make it."
                )
            self._journal = _SearchJournal(journal, key)
            self.report = _kept(self._journal)
        self.report.update(key)

    def keep(self, **entries: Any) -> None:
        """Add entries to the report.

        Raises:
            JournalError: the journal cannot be written.
        """
        self.report.update(entries)
        if self._journal is not None:
            self._journal.add(entries)


def _kept(journal: _SearchJournal) -> dict[str, Any]:
    """Return what a journal holds of measurements."""
    kept = {k: v for k, v in journal.entries.items() if k in _KEPT}
    try:
        shapes.record({}, _KEPT, closed=True)(kept, "the journal")
    except shapes.Malformed:
        fits = False
    else:
        fits = _fits(kept)
    if not fits:
        raise JournalError(_DAMAGED.format(path=journal.path))
    return kept


def _fits(kept: dict[str, Any]) -> bool:
    """Tell whether the cuts rise from 0, and whether each row has a time for every unit."""
    rows = [row for k in kept if k != "bounds" for row in kept[k].values()]
    if "bounds" not in kept:
        return not rows
    bounds = kept["bounds"]
    rising = bounds[:1] == [0] and all(a < b for a, b in itertools.pairwise(bounds))
    # A search adds the times of units up; finite ones can overflow.
    return (
        rising
        and len(bounds) > 1
        and all(
            len(row) == len(bounds) - 1 and min(row) > 0 and sum(row) < math.inf for row in rows
        )
    )
