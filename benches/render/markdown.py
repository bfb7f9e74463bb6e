# SPDX-License-Identifier: Apache-2.0
"""Markdown of the pages that are rendered from stored results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tabulate import tabulate


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    # The cells hold finished text: tabulate neither reads numbers out of it nor pads it.
    text = tabulate(
        list(rows), list(header), tablefmt="github", disable_numparse=True, stralign=None
    )
    return text.splitlines()


def records(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the lines of a table whose rows name their columns; there is at least one."""
    found = list(rows)
    return table(list(found[0]), (list(row.values()) for row in found))
