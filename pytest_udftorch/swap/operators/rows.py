# SPDX-License-Identifier: Apache-2.0
"""The rows of the operators of ATen: the only place where a fact of one is written.

Reach, the contract, the error model, the recorder, the observer, the switchboard and Inductor's
changes read it. ``tests/swap/test_operator_rows.py`` holds each row to what the operator does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_udftorch.swap.operators import elements, moves, sources, sums
from pytest_udftorch.swap.operators.row import Row

#: Every row.
ROWS: Final = (*elements.ROWS, *moves.ROWS, *sums.ROWS, *sources.ROWS)

#: Name -> row, also for the other names of one.
BY_NAME: Final[dict[str, Row]] = {n: row for row in ROWS for n in (row.name, *row.also)}

_LISTS: Final = "_foreach_"


def find(name: str) -> Row | None:
    """Return the row of an operator, None if there is none.

    Args:
        name: without namespace and overload (``masked_fill_``). An operator on lists of tensors
            without a row has that of the operator on one.
    """
    if name in BY_NAME:
        return BY_NAME[name]
    if name.endswith("_") and not name.startswith("__"):
        return find(name[:-1])
    return find(name.removeprefix(_LISTS)) if name.startswith(_LISTS) else None


def names(wanted: Callable[[Row], object]) -> frozenset[str]:
    """Return the names of the rows of which something is true."""
    return frozenset(row.name for row in ROWS if wanted(row))
