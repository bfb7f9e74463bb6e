# SPDX-License-Identifier: Apache-2.0
"""Records of one shape as a table: the names of their parts once, and a row for each record.

A list of records ``[{"n": 1, "ns": {"a": 5}}, {"n": 2, "ns": {"a": 7}}]`` is stored as
``{"table": {"n": null, "ns": {"a": null}}, "rows": [[1, 5], [2, 7]]}``, and an object of records
the same, with ``named`` and an object of rows. A cell for which a record has nothing is ``"~"``.
What is the same in all records stands in the table, as ``[value]``, and has no cells.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

#: The cell of a record that lacks this part.
ABSENT: Final = "~"

#: A table has at least so many rows, and at most this share of the text that it stands for.
ROWS: Final = 3
SHARE: Final = 0.9
#: Of that many cells of a table at least one is there.
SPARSE: Final = 2

#: The keys of an object that is a table.
TABLES: Final = ({"table", "rows"}, {"table", "named"})

#: Name -> None for a cell, the value of all records in a list, or the shape of what lies within.
Shape = dict[str, Any]


def compact(value: Any) -> str:
    """Return JSON in one line, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def packed(value: Any) -> Any:
    """Return plain data with its records as tables, where that is shorter.

    Raises:
        ValueError: an object in it would be read as a table.
    """
    if isinstance(value, dict):
        if value.keys() in TABLES:
            raise ValueError(f"{list(value)} would be read as a table. Rename one of the two.")
        plain: Any = {name: packed(part) for name, part in value.items()}
        records = list(value.values())
    elif isinstance(value, list):
        plain = [packed(part) for part in value]
        records = value
    else:
        return value
    if len(records) < ROWS or not all(isinstance(record, dict) and record for record in records):
        return plain
    shape = _shape(records)
    if shape is None:
        return plain
    rows = [[packed(cell) for cell in _cells(record, shape)] for record in records]
    if isinstance(value, dict):
        table = {"table": shape, "named": dict(zip(value, rows, strict=True))}
    else:
        table = {"table": shape, "rows": rows}
    shorter = len(compact(table)) <= SHARE * len(compact(plain))
    # Told apart: nothing stored is "~", and the order of names is that of every record.
    return table if shorter and compact(unpacked(table)) == compact(value) else plain


def unpacked(value: Any) -> Any:
    """Return what :func:`packed` was given."""
    if isinstance(value, list):
        return [unpacked(part) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() not in TABLES:
        return {name: unpacked(part) for name, part in value.items()}
    if "rows" in value:
        return [_record(value["table"], deque(row)) for row in value["rows"]]
    return {name: _record(value["table"], deque(row)) for name, row in value["named"].items()}


def _shape(records: Sequence[dict[str, Any]], every: bool = True) -> Shape | None:
    """Return the names of all records' parts, or None where the records are not of one shape.

    They are where most have the same names, and all have them in the same order. What is not a
    record in each of them is a cell.

    Args:
        records: at least one.
        every: whether each row of the table has one of them.
    """
    names: list[str] = []
    for record in records:
        after = 0
        for name in record:
            if name not in names:
                names.insert(after, name)
            after = names.index(name) + 1
    sparse = len(names) * len(records) > SPARSE * sum(map(len, records))
    if sparse or any(list(record) != sorted(record, key=names.index) for record in records):
        return None
    shape: Shape = {}
    for name in names:
        parts = [record[name] for record in records if name in record]
        each = every and len(parts) == len(records)
        if each and len({compact(part) for part in parts}) == 1:
            shape[name] = [packed(parts[0])]
        else:
            within = all(isinstance(part, dict) and part for part in parts)
            shape[name] = _shape(parts, each) if within else None
    return shape


def _cells(record: dict[str, Any] | None, shape: Shape) -> Iterator[Any]:
    for name, within in shape.items():
        part = ABSENT if record is None else record.get(name, ABSENT)
        if within is None:
            yield part
        elif isinstance(within, dict):
            yield from _cells(None if part == ABSENT else part, within)


def _record(shape: Shape, cells: deque[Any]) -> dict[str, Any]:
    found = {}
    for name, within in shape.items():
        if within is None:
            cell = cells.popleft()
            if cell != ABSENT:
                found[name] = unpacked(cell)
        elif isinstance(within, list):
            found[name] = unpacked(within[0])
        elif part := _record(within, cells):
            found[name] = part
    return found
