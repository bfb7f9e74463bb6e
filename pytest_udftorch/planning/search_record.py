# SPDX-License-Identifier: Apache-2.0
"""What a search has found so far, and its file: the journal that a later search goes on from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import UdfError

#: What every journal holds.
_ALWAYS: Final = frozenset({"inputs", "device", "torch", "executors"})


class JournalError(UdfError):
    """The journal of a search cannot be written, or the file is something else."""


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
        scratch = self._journal.with_name(f"{self._journal.name}.partial")
        try:
            scratch.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
            os.replace(scratch, self._journal)
        except OSError as error:
            raise JournalError(
                f"{self._journal} cannot be written ({error.strerror}). Name a file in a "
                "folder that may be written to and has room."
            ) from error


def _resumed(journal: Path, key: dict[str, Any]) -> dict[str, Any]:
    """Return what a journal holds of the same search."""
    if not journal.parent.is_dir():
        raise JournalError(f"{journal.parent}, the folder of the journal, does not exist. Make it.")
    if not journal.exists():
        return {}
    try:
        found = json.loads(journal.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not set(found) >= _ALWAYS:
        raise JournalError(
            f"{journal} is not the journal of a search, and is left alone. Name another file, or "
            "delete it."
        )
    if any(found.get(k) != v for k, v in key.items()):
        return {}
    # Only what was measured is taken over; conclusions are drawn anew.
    kept = {k: found[k] for k in ("bounds", "unit_ns", "unit_profiled_ns") if k in found}
    try:
        count = len(kept.get("bounds", [])) - 1
        rows = [row for k in kept if k != "bounds" for row in kept[k].values()]
        fits = all(len(row) == count and min(row) > 0 for row in rows)
    except (TypeError, AttributeError, ValueError):
        fits = False
    if not fits:
        raise JournalError(
            f"{journal} is damaged: its times do not fit its units. Delete it, and the search "
            "starts anew."
        )
    return kept
