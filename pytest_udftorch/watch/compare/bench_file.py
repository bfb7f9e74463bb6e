# SPDX-License-Identifier: Apache-2.0
"""The JSON file of ``udftorch bench``."""

from __future__ import annotations

from typing import Any, Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.watch.compare.figures import Figures, Key

FORMAT: Final = "udftorch-bench/1"

_QUARTILES: Final = shapes.record(
    dict.fromkeys(("low", "median", "high"), shapes.number()), closed=True
)
_ROW: Final = shapes.record(
    {
        "operator": shapes.text(),
        "contender": shapes.text(),
        "ns_per_element": _QUARTILES,
        "ratio_to_stock": _QUARTILES,
    },
    closed=True,
)
_SHAPE: Final = shapes.record(
    {
        "format": shapes.one_of((FORMAT,)),
        "library": shapes.text(),
        "dtype": shapes.text(),
        "elements": shapes.whole(1),
        "runs": shapes.whole(1),
        "threads": shapes.whole(1),
        "machine": shapes.mapping(shapes.text(), shapes.text()),
        "rows": shapes.each(_ROW),
    },
    closed=True,
)


def figures(label: str, data: Any) -> Figures:
    """Return what can be compared of a document.

    Raises:
        Malformed: it has another shape.
    """
    _SHAPE(data, "the file")
    rows: dict[Key, dict[str, Any]] = {}
    for row in data["rows"]:
        ns = row["ns_per_element"]
        time = {"ns": ns["median"], "low": ns["low"], "high": ns["high"]}
        rows[row["operator"], row["contender"]] = {"time": time}
    return Figures(label, "bench", rows, data["machine"])
