# SPDX-License-Identifier: Apache-2.0
"""Tables of finished text, for terminals and as Markdown.

The cells are text already: nothing reads numbers out of them and writes them anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Row: TypeAlias = Sequence[str]


def text_table(header: Row, rows: Sequence[Row], *, ruled: bool = True) -> str:
    """Return a table for a terminal; columns of numbers are flush right.

    Args:
        header: the names of the columns, or nothing.
        rows: as many texts each as there are columns.
        ruled: underline the header.
    """
    lines = [header, *rows] if header else rows
    columns: list[list[str]] = []
    for column in zip(*lines, strict=True):
        width = max(map(len, column))
        right = bool(columns) and all(map(_is_number, column[1 if header else 0 :]))
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in column])
    texts = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    if header and ruled:
        texts.insert(1, "-" * max(map(len, texts)))
    return "\n".join(texts)


def _is_number(cell: str) -> bool:
    return cell in ("", "inf", "-inf", "NaN") or cell[0] in "0123456789-<"


def markdown_table(header: Row, rows: Sequence[Row]) -> str:
    """Return a table in Markdown; the line under the header is as wide as the widest cells."""
    widths = [
        max([len(name) + 2, *map(len, cells)])
        for name, *cells in zip(header, *rows, strict=True)
    ]  # fmt: skip
    lines = [f"| {' | '.join(row)} |" for row in (header, *rows)]
    lines.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    return "\n".join(lines)
