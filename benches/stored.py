# SPDX-License-Identifier: Apache-2.0
"""Results as stored under ``benches/results``: JSON with machine, versions, flags and date.

A file in that folder is a summary (see :mod:`benches.summaries`). A file anywhere else holds all
that was measured, in all digits; so a bench that is told to store elsewhere keeps everything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benches import tables
from benches.summaries import summarised
from pytest_udftorch.swap.toolchain.environment import describe

RESULTS = Path(__file__).parent / "results"

#: Environment variable with a folder, which gets all that was measured of each result that goes to
#: :data:`RESULTS`.
RAW: Final = "BENCHES_RAW"

#: A value whose JSON is longer than this has each of its parts on a line of its own.
WIDTH: Final = 160


def save(path: Path, command: str, figures: dict[str, Any]) -> None:
    """Write figures with the environment they were measured in and the command to repeat them.

    Raises:
        FileNotFoundError: the folder of ``path`` does not exist.
    """
    document = {"command": command, "environment": describe(), **figures}
    write(path, document)


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a document, or, under :data:`RESULTS`, its summary; whole or not at all.

    Raises:
        FileNotFoundError: the folder of ``path`` does not exist.
    """
    if path.resolve().is_relative_to(RESULTS.resolve()):
        name = path.resolve().relative_to(RESULTS.resolve())
        if folder := os.environ.get(RAW):
            everything = Path(folder, name)
            everything.parent.mkdir(parents=True, exist_ok=True)
            _write(everything, document)
        # As it will be read: a tuple of today is a list then, and is summarised as one.
        document = json.loads(json.dumps(document))
        document = summarised(name.with_suffix("").as_posix(), document)
        document = {key: tables.packed(part) for key, part in document.items()}
    _write(path, document)


def _write(path: Path, document: dict[str, Any]) -> None:
    # Whole or not at all, because a run may be stopped at any time.
    scratch = path.with_name(f"{path.name}.partial")
    scratch.write_text("\n".join([*_lines(document), ""]), encoding="utf-8")
    os.replace(scratch, path)


def _lines(value: Any, rows: bool = False) -> Iterator[str]:
    """Yield JSON in lines: one for a short value, for a list of numbers, and for a row.

    Args:
        value: plain data.
        rows: whether its parts are rows of a table.
    """
    flat = tables.compact(value)
    parts = list(value.values() if isinstance(value, dict) else value) if flat[0] in "[{" else []
    if len(flat) <= WIDTH or not any(isinstance(part, dict | list | str) for part in parts):
        yield flat
        return
    names = [f"{tables.compact(name)}:" for name in value] if isinstance(value, dict) else []
    table = isinstance(value, dict) and "table" in value
    yield flat[0]
    for number, part in enumerate(parts):
        *lines, last = [tables.compact(part)] if rows else _lines(part, table)
        first, *rest = [*lines, last + ("," if number < len(parts) - 1 else "")]
        yield (names[number] if names else "") + first
        yield from rest
    yield flat[-1]


def add_machine(path: Path, command: str, figures: dict[str, Any]) -> None:
    """Add the figures of a CPU, which their ``environment`` names, to a file of several CPUs."""
    machines = load(path)["machines"] if path.exists() else {}
    machines[figures["environment"]["machine"]["cpu"]] = figures
    save(path, command, {"machines": machines})


def load(path: Path) -> dict[str, Any]:
    """Read what :func:`write` wrote."""
    document: dict[str, Any] = tables.unpacked(json.loads(path.read_text(encoding="utf-8")))
    return document


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return count, extremes, quartiles and median of at least two values."""
    import statistics

    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {
        "count": len(values),
        "min": min(values),
        "lower_quartile": low,
        "median": middle,
        "upper_quartile": high,
        "max": max(values),
    }
