# SPDX-License-Identifier: Apache-2.0
"""How results show themselves: a table as text, and as the HTML that notebooks ask for.

Each class says what is in its table by one method, ``_shown``; text and HTML are made of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Shown:
    """What a person sees of a result.

    Attributes:
        title: one line.
        header: the names of the columns; without one there is no table.
        rows: as many texts each as ``header`` has.
        notes: lines below the table.
    """

    title: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()


class Showable:
    """A result that ``print`` and notebooks show as a table; ``repr`` is its first line."""

    def _shown(self) -> Shown:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._shown().title}>"

    def __str__(self) -> str:
        shown = self._shown()
        table = [text_table([shown.header, *shown.rows])] if shown.rows else []
        return "\n".join([shown.title, *table, *shown.notes])

    def _repr_html_(self) -> str:
        shown = self._shown()
        return f"<div><p><strong>{escape(shown.title)}</strong></p>{_html_table(shown)}</div>"


def text_table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines as a table, the first one underlined; columns of numbers are flush right."""
    columns: list[list[str]] = []
    for column in zip(*lines, strict=True):
        width = max(map(len, column))
        right = bool(columns) and all(map(_is_number, column[1:]))
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in column])
    texts = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    return "\n".join([texts[0], "-" * max(map(len, texts)), *texts[1:]])


def _is_number(cell: str) -> bool:
    return cell in ("", "inf", "-inf", "NaN") or cell[0] in "0123456789-<"


def _html_table(shown: Shown) -> str:
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
    parts += [f"<p>{escape(note)}</p>" for note in shown.notes]
    return "".join(parts)
