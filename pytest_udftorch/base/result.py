# SPDX-License-Identifier: Apache-2.0
"""The protocol of every result: ``text()``, ``document()``, ``print`` and notebooks.

A class says what is in its table by one method, ``_shown``; text and HTML are made of that. One
whose text is no table says the text instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from pytest_udftorch.base.table import text_table

#: Characters of a title in ``repr``.
_LONGEST: Final = 150


@dataclass(frozen=True)
class Shown:
    """What a person sees of a result.

    Attributes:
        title: one line.
        header: the names of the columns; without one there is no table.
        rows: as many texts each as ``header`` has.
        notes: lines below the table.
        spaced: whether the spaces in the notes count, as in tables and drawings.
        ruled: whether the header is underlined in the text.
    """

    title: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    spaced: bool = False
    ruled: bool = True


class Result:
    """What was found: ``text()``, ``print`` and notebooks for people, ``document()`` for JSON.

    A subclass defines :meth:`document`, and ``_shown`` or :meth:`text`.
    """

    def _shown(self) -> Shown:
        title, *lines = self.text().splitlines()
        return Shown(title, notes=lines, spaced=True)

    def text(self) -> str:
        """Return it as text for a terminal."""
        shown = self._shown()
        table = []
        if shown.rows:
            table.append(text_table(shown.header, shown.rows, ruled=shown.ruled))
        return "\n".join([shown.title, *table, *shown.notes])

    def document(self) -> dict[str, Any]:
        """Return it as plain data, fit for JSON."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title = self._shown().title
        short = title if len(title) <= _LONGEST else f"{title[:_LONGEST]}..."
        return f"<{type(self).__name__} {short}>"

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        shown = self._shown()
        return f"<div><p><strong>{escape(shown.title)}</strong></p>{_html(shown)}</div>"


def _html(shown: Shown) -> str:
    parts = []
    if shown.rows:
        head = "".join(f"<th>{escape(name)}</th>" for name in shown.header)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in shown.rows
        )
        # A wide table scrolls in its own box, and never widens the notebook.
        parts.append(
            '<div style="overflow-x:auto"><table>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )
    if shown.spaced and shown.notes:
        lines = escape("\n".join(shown.notes))
        parts.append(f'<div style="overflow-x:auto"><pre>{lines}</pre></div>')
    elif shown.notes:
        parts += [f"<p>{escape(note)}</p>" for note in shown.notes]
    return "".join(parts)
