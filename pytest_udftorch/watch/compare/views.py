# SPDX-License-Identifier: Apache-2.0
"""Comparisons in colours, and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from pytest_udftorch.watch.compare.change import Change, Comparison, Mark
from pytest_udftorch.watch.compare.figures import QUANTITIES
from pytest_udftorch.watch.profile import report
from pytest_udftorch.watch.profile.tables import table, text_cell

#: Mark of a line -> names of pytest's terminal markup, and the codes of ECMA-48 for them.
COLOURS: Final[dict[Mark, tuple[str, str]]] = {
    "beyond": ("red", "\033[31m"),
    "more": ("yellow", "\033[33m"),
    "less": ("green", "\033[32m"),
    "other": ("", ""),
    "": ("", ""),
}


def text(comparison: Comparison, *, everything: bool = False, colour: bool = False) -> str:
    """Return the table for a terminal, in colours if asked for.

    Args:
        comparison: what to show.
        everything: show what has not changed, too.
        colour: mark what is beyond a limit, more or less by the codes of ECMA-48.
    """
    parts = []
    for line, kind in comparison.lines(everything=everything):
        code = COLOURS[kind][1] if colour else ""
        parts.append(f"{code}{line}\033[0m" if code else line)
    return "\n".join(parts)


def html(comparison: Comparison, *, title: str = "What changed") -> str:
    """Return the page: what is beyond a limit, and the table of all figures."""
    failures = "".join(f"<p>{escape(sentence)}</p>" for sentence in comparison.failures)
    facts = "".join(
        f"<p>{escape(name)} differs: {escape('; '.join(values))}</p>"
        for name, values in comparison.differs.items()
    )
    others = "".join(
        f"<p>only in {escape(', '.join(labels))}: "
        f"{escape('; '.join(', '.join(key) for key in keys))}</p>"
        for labels, keys in comparison.missing.items()
    )
    header = ["row", "figure", *comparison.header, "judgement"]
    sections = [
        report.heading(title),
        f'<div class="notes" role="note">{failures}</div>' if failures else "",
        f'<div class="about">{facts}</div>' if facts else "",
        table("changes", header, [_page_row(change) for change in comparison.changes]),
        f'<div class="about">{others}</div>' if others else "",
    ]
    return report.page(sections, title=title)


_JUDGED: Final[dict[Mark, str]] = {
    "beyond": "beyond the limit", "more": "more", "less": "less", "other": "changed", "": "",
}  # fmt: skip


def _page_row(change: Change) -> Sequence[tuple[str, Any]]:
    _, *cells = change.cells()
    judged = _JUDGED[change.mark] if change.changed or change.broken else "same"
    shown = escape(judged)
    if change.broken:
        shown = f'<span class="bad-text">{shown}</span>'
    return [
        text_cell(", ".join(change.key), wrap=True),
        text_cell(QUANTITIES[change.quantity].title),
        *(text_cell(cell) for cell in cells),
        (shown, (judged, "text")),
    ]
