# SPDX-License-Identifier: Apache-2.0
"""Comparisons as text, JSON and a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any, Final, Literal, TypeAlias

from pytest_udftorch.base.notebook import text_table
from pytest_udftorch.watch.compare.change import Change, Comparison
from pytest_udftorch.watch.compare.figures import QUANTITIES
from pytest_udftorch.watch.profile import report
from pytest_udftorch.watch.profile.tables import table, text_cell

Mark: TypeAlias = Literal["beyond", "more", "less", "other", ""]

#: Mark of a line -> names of pytest's terminal markup, and the codes of ECMA-48 for them.
COLOURS: Final[dict[Mark, tuple[str, str]]] = {
    "beyond": ("red", "\033[31m"),
    "more": ("yellow", "\033[33m"),
    "less": ("green", "\033[32m"),
    "other": ("", ""),
    "": ("", ""),
}

#: How many rows of a kind that only some files have are named.
_NAMED: Final = 5


def mark(change: Change) -> Mark:
    """Say whether a change is beyond a limit, to more, to less, or neither."""
    if change.broken:
        return "beyond"
    amounts = [s.amount for s in change.steps if s is not None and s.amount is not None]
    if QUANTITIES[change.quantity].either or not any(amounts):
        return "other"
    return "more" if max(amounts) > 0 else "less"


def lines(comparison: Comparison, *, everything: bool = False) -> list[tuple[str, Mark]]:
    """Return the lines of a table for a terminal, each with its mark.

    Args:
        comparison: what to show.
        everything: show what has not changed, too.
    """
    found: list[tuple[str, Mark]] = []
    for name, values in comparison.differs.items():
        said = "; ".join(f"{v} in {f}" for v, f in zip(values, comparison.labels, strict=True))
        found.append((f"{name} differs: {said}", "other"))
    chosen = [c for c in comparison.changes if everything or c.changed or c.broken]
    if chosen:
        rows = [["", *_header(comparison)], *(_cells(change) for change in chosen)]
        head, rule, *body = text_table(rows).split("\n")
        found += [(head, ""), (rule, "")]
        found += [(line, mark(change)) for line, change in zip(body, chosen, strict=True)]
    same = sum(not (c.changed or c.broken) for c in comparison.changes)
    if same and not everything:
        others = "other figures" if chosen else "figures"
        found.append((f"{same:,} {others} are the same", ""))
    for labels, keys in _only(comparison).items():
        named = "; ".join(", ".join(key) for key in keys[:_NAMED])
        more = f"; and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
        found.append((f"only in {', '.join(labels)}: {named}{more}", "other"))
    return found


def _only(comparison: Comparison) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
    found: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for key, labels in comparison.only:
        found.setdefault(labels, []).append(key)
    return found


def _header(comparison: Comparison) -> list[str]:
    first, *others = comparison.labels
    if len(others) == 1:
        return [first, others[0], "change"]
    return [first, *(text for label in others for text in (label, "change"))]


def _cells(change: Change) -> list[str]:
    shown = QUANTITIES[change.quantity].shown
    first, *others = ("-" if value is None else shown(value) for value in change.values)
    cells = [change.name, first]
    for value, step in zip(others, change.steps, strict=True):
        cells += [value, "" if step is None else step.text]
    if change.broken:
        cells[-1] += f"  beyond {', '.join(map(str, change.broken))}"
    return cells


def text(comparison: Comparison, *, everything: bool = False, colour: bool = False) -> str:
    """Return the table for a terminal, and what is beyond a limit."""
    parts = []
    for line, kind in lines(comparison, everything=everything):
        code = COLOURS[kind][1] if colour else ""
        parts.append(f"{code}{line}\033[0m" if code else line)
    return "\n".join(parts)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return everything as plain data, with infinities as text."""
    files = [{"label": f.label, "kind": f.kind, "about": dict(f.about)} for f in comparison.files]
    return {
        "files": files,
        "changes": [
            {
                "row": list(change.key),
                "quantity": change.quantity,
                "values": [_plain(value) for value in change.values],
                "changes": [
                    None
                    if step is None
                    else {
                        "amount": _plain(step.amount), "share": _plain(step.share),
                        "text": step.text,
                    }
                    for step in change.steps
                ],
                "beyond": [str(limit) for limit in change.broken],
            }
            for change in comparison.changes
        ],
        "only": [{"row": list(key), "in": list(labels)} for key, labels in comparison.only],
        "failures": comparison.failures,
    }  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


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
        for labels, keys in _only(comparison).items()
    )
    header = ["row", "figure", *_header(comparison), "judgement"]
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
    _, *cells = _cells(change)
    judged = _JUDGED[mark(change)] if change.changed or change.broken else "same"
    shown = escape(judged)
    if change.broken:
        shown = f'<span class="bad-text">{shown}</span>'
    return [
        text_cell(", ".join(change.key), wrap=True),
        text_cell(QUANTITIES[change.quantity].title),
        *(text_cell(cell) for cell in cells),
        (shown, (judged, "text")),
    ]
