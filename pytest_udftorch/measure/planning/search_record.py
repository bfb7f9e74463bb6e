# SPDX-License-Identifier: Apache-2.0
"""What a search has found so far, and its file: the journal that a later search goes on from."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base import whole_file
from pytest_udftorch.errors import JournalError

#: What every journal holds.
_ALWAYS: Final = frozenset({"inputs", "device", "torch", "executors"})


_TIMES: Final = shapes.mapping(shapes.text(), shapes.each(shapes.number()))
#: Only what was measured is taken over; conclusions are drawn anew.
_KEPT: Final = {
    "bounds": shapes.each(shapes.whole()),
    "unit_ns": _TIMES,
    "unit_profiled_ns": _TIMES,
}


class SearchRecord:
    """The report of a search; written to the journal after each step.

    Args:
        journal: its file, or None.
        key: tells one search from another. The measurements of the same search are taken over
            from the journal.

    Raises:
        JournalError: the journal's folder is missing, the file is something else and is left
            alone, or the file cannot be written.
    """

    def __init__(self, journal: Path | None, key: dict[str, Any]) -> None:
        self._journal = journal
        self.report: dict[str, Any] = _resumed(journal, key) if journal is not None else {}
        self.keep(**key)

    def keep(self, **entries: Any) -> None:
        """Add entries to the report.

        Raises:
            JournalError: the journal cannot be written.
        """
        self.report.update(entries)
        if self._journal is None:
            return
        # The file is written whole or not at all: a search may be stopped at any time.
        try:
            whole_file.write(self._journal, json.dumps(shapes.sealed(self.report), indent=1) + "\n")
        except OSError as error:
            raise JournalError(
                f"{self._journal} cannot be written ({error.strerror}). Name a file in a "
                "folder that may be written to and has room."
            ) from error


def _resumed(journal: Path, key: dict[str, Any]) -> dict[str, Any]:
    """Return what a journal holds of the same search."""
    if not journal.parent.is_dir():
        raise JournalError(f"{journal.parent}, the folder of the journal, does not exist. Make it.")
    try:
        found = shapes.parse_json(shapes.read_file(journal), finite=False)
    except FileNotFoundError:
        return {}
    except (OSError, shapes.Malformed):
        found = None
    if not isinstance(found, dict) or not set(found) >= _ALWAYS:
        raise JournalError(
            f"{journal} is not the journal of a search, and is left alone. Name another file, or "
            "delete it."
        )
    if any(found.get(k) != v for k, v in key.items()):
        return {}
    kept = {k: found[k] for k in _KEPT if k in found}
    try:
        shapes.check_seal(found)
        shapes.record({}, _KEPT, closed=True)(kept, "the journal")
    except shapes.Malformed:
        fits = False
    else:
        fits = _fits(kept)
    if not fits:
        raise JournalError(
            f"{journal} is damaged: its times, or its SHA-256, do not fit what it holds. "
            "Delete it, and the search starts anew."
        )
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
