# SPDX-License-Identifier: Apache-2.0
"""Profiles as plain data, DataFrames, traces and files. Pure functions of a profile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from pytest_udftorch.base import whole_file
from pytest_udftorch.base.optional import package
from pytest_udftorch.base.units import value_text
from pytest_udftorch.errors import NoProfileError, ProfileFileError, nearest
from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records import layout
from pytest_udftorch.swap.records.layout import Records, Renamer
from pytest_udftorch.swap.records.totals import ProfileData, cell_dict

Part: TypeAlias = Literal["cells", "operators", "events"]


def _histogram_dict(histogram: NDArray[np.uint64]) -> dict[str, dict[str, int]]:
    return {
        sign: {str(int(b) - layout.HIST_OFFSET): int(row[b]) for b in np.flatnonzero(row)}
        for sign, row in zip("+-", histogram, strict=True)
    }


def _torch_trace(path: Path) -> dict[str, Any]:
    try:
        trace = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileFileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except ValueError:
        trace = None
    if (
        not isinstance(trace, dict)
        or not isinstance(trace.get("traceEvents"), list)
        or not isinstance(trace.get("baseTimeNanoseconds"), int)
    ):
        raise ProfileFileError(
            f"{path} is not a trace of torch.profiler: it lacks traceEvents or "
            "baseTimeNanoseconds. Write one with profiler.export_chrome_trace(...)."
        )
    return trace


def write_file(path: str | Path, write: Callable[[Path], Any]) -> None:
    """Write a file through ``write``, whole or not at all; its folder is made if needed.

    Raises:
        ProfileFileError: the system refuses.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file.replaced(path) as scratch:
            write(scratch)
    except OSError as error:
        raise ProfileFileError(
            f"Cannot write {path}: {error.strerror or error}. Choose another place."
        ) from error


def _keyed(
    profile: ProfileData, rows: Records, names: Sequence[str]
) -> Iterator[tuple[dict[str, Any], np.void]]:
    """Yield each row after what the numbers in some of its fields stand for."""
    columns = [profile.texts(name, rows) for name in names]
    for row, *texts in zip(rows, *columns, strict=True):
        yield dict(zip(names, texts, strict=True)), row


def write_text(path: str | Path, text: str) -> None:
    """Write a text file; see :func:`write_file`."""
    write_file(path, lambda p: p.write_text(text, encoding="utf-8"))


def document(profile: ProfileData) -> dict[str, Any]:
    """Return everything but the events as plain data, fit for JSON.

    Infinities are the strings ``inf`` and ``-inf``; a range without values is None;
    histograms map sign and exponent to a count, without zeros.
    """
    cells = [
        key
        | cell_dict(cell)
        | {"hist_elements": int(cell["hist_elements"])}
        | {f"hist_{s}": _histogram_dict(cell[f"hist_{s}"]) for s in ("in", "out")}
        for key, cell in _keyed(profile, profile.cells, (*layout.CELL_KEY, "layer"))
    ]
    operators = [
        key | {"calls": int(o["calls"]), "time_ns": float(o["time_ns"])}
        for key, o in _keyed(profile, profile.operators, (*layout.OPERATOR_KEY, "layer"))
    ]
    summary = profile.summary()
    return {
        "processes": [dict(p) for p in profile.processes],
        "cells": cells,
        "operators": operators,
        "events": len(profile.events),
        "first": summary["first"],
        "notes": summary["notes"],
    }


def to_pandas(profile: ProfileData, what: Part = "cells") -> Any:
    """Return a DataFrame with one row per cell, operator or event, without histograms.

    Strings are categories. The column ``layer`` has the name that tables and pages show, and
    ``module`` the same but nothing outside of all modules. The range of a cell without values is
    NaN.

    Raises:
        PackageMissingError: pandas is not installed.
        ValueError: a profile has no such part.
    """
    if what not in get_args(Part):
        raise ValueError(
            f"A profile has no part {what!r}. {nearest(str(what), get_args(Part))} "
            "To group by layer or function, call rows()."
        )
    pandas = package("pandas", "A DataFrame")
    rows = getattr(profile, what)
    table = pandas.DataFrame()
    for name in rows.dtype.names:
        if name in layout.CELL_KEY:
            table[name] = pandas.Categorical(profile.texts(name, rows))
            if name == "module":
                table["layer"] = pandas.Categorical(profile.texts("layer", rows))
        elif not rows.dtype[name].shape and name != "process":
            table[name] = rows[name]
    for side in ("in", "out"):
        low, high = f"{side}_min", f"{side}_max"
        if low in table:
            table.loc[table[low] > table[high], [low, high]] = np.nan
    if what == "events":
        for bit, name in enumerate(layout.EVENT_FLAGS):
            table[name] = (rows["flags"] >> bit & 1).astype(bool)
        pids = np.array([int(p.get("pid", 0)) for p in profile.processes])
        table["pid"] = pids[rows["process"]]
        table = table.drop(columns="flags")
    return table


def save_json(profile: ProfileData, path: str | Path) -> None:
    """Write :meth:`Profile.document` as JSON.

    Raises:
        ProfileFileError: the file cannot be written.
    """
    write_text(path, json.dumps(document(profile), indent=1, allow_nan=False) + "\n")


def save_csv(profile: ProfileData, path: str | Path, what: Part = "cells") -> None:
    """Write :meth:`Profile.to_pandas` as CSV.

    Raises:
        PackageMissingError: pandas is not installed.
        ProfileFileError: the file cannot be written.
    """
    frame = to_pandas(profile, what)
    write_file(path, lambda p: frame.to_csv(p, index=False))


def save_parquet(profile: ProfileData, path: str | Path, what: Part = "cells") -> None:
    """Write :meth:`Profile.to_pandas` as Parquet.

    Raises:
        PackageMissingError: pandas or pyarrow is not installed.
        ProfileFileError: the file cannot be written.
    """
    frame = to_pandas(profile, what)
    package("pyarrow", "A Parquet file")
    write_file(path, lambda p: frame.to_parquet(p, engine="pyarrow", index=False))


def save(profile: ProfileData, path: str | Path) -> None:
    """Write one file that :meth:`Profile.load` reads back.

    Raises:
        ProfileFileError: as from :class:`pytest_udftorch.swap.records.file.ProfileWriter`.
    """
    table = Renamer()
    cells, operators, events = (
        table(rows, profile.strings) for rows in (profile.cells, profile.operators, profile.events)
    )
    meta = {
        **profile.meta,
        # The times are UTC already.
        "clocks": {"monotonic_ns": 0, "realtime_ns": 0},
        "processes": [dict(p) for p in profile.processes],
    }
    with record.whole(Path(path), table.table, meta) as writer:
        writer.cells(cells)
        writer.operators(operators)
        writer.events(events)
        for note in profile.notes:
            writer.mark(note=note)


def save_trace(
    profile: ProfileData, path: str | Path, torch_trace: str | Path | None = None
) -> None:
    """Write the events as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

    Times are those of torch.profiler's ``export_chrome_trace``: microseconds of UTC
    since ``baseTimeNanoseconds``. Each function's span lies on the line of its thread
    within that of its operator.

    Args:
        profile: one of the depth ``events``.
        path: the file to write.
        torch_trace: a file that torch.profiler wrote during the same run; its spans are
            included, so that one picture shows both.

    Raises:
        NoProfileError: the profile has no events.
        ProfileFileError: ``torch_trace`` is not such a trace; a file cannot be read or written.
    """
    if not len(profile.events):
        raise NoProfileError(
            "The profile has no events, so there is no trace. Record with the depth "
            'events: --udf-profile=events, or patched(..., profile="events").'
        )
    found: dict[str, Any] = {"displayTimeUnit": "ms", "traceEvents": []}
    # Doubles hold UTC in microseconds only to a quarter of one.
    found["baseTimeNanoseconds"] = int(profile.events["start_ns"][0]) // 10**9 * 10**9
    if torch_trace is not None:
        found = _torch_trace(Path(torch_trace))
    base = int(found["baseTimeNanoseconds"])
    found["traceEvents"] = [*found["traceEvents"], *_spans(profile, base)]
    write_text(path, json.dumps(found))


def _spans(profile: ProfileData, base_ns: int) -> list[dict[str, Any]]:
    names = ("operator", "module", "stage", "dtype", "function")
    spans = []
    for key, event in _keyed(profile, profile.events, names):
        process = profile.processes[int(event["process"])]
        start, end = int(event["start_ns"]), int(event["end_ns"])
        low_high = {
            f"{side} {limit}": value_text(float(event[f"{side}_{limit}"]))
            for side in ("in", "out")
            if event[f"{side}_min"] <= event[f"{side}_max"]
            for limit in ("min", "max")
        }
        flags = [
            flag.replace("_", " ")
            for bit, flag in enumerate(layout.EVENT_FLAGS)
            if int(event["flags"]) >> bit & 1
        ]
        spans.append(
            {
                "ph": "X",
                "cat": "udf",
                "name": key.pop("function"),
                "pid": int(process.get("pid", 0)),
                "tid": int(event["thread"]),
                "ts": (start - base_ns) / 1000,
                "dur": (end - start) / 1000,
                "args": {
                    **key,
                    "elements": int(event["elements"]),
                    **low_high,
                    **({"special values": ", ".join(flags)} if flags else {}),
                },
            }
        )
    return spans
