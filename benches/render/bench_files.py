# SPDX-License-Identifier: Apache-2.0
"""Files of the benches of torch.compile, as the commands and pytest-benchmark write them.

A file may hold several kinds of rows; each kind of one machine becomes a :class:`Bench`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benches import tables
from pytest_udftorch import UdfError
from pytest_udftorch.swap.toolchain.environment import cpu_caption

__all__ = ["Bench", "BenchFormatError", "Row", "as_written", "load_all", "medians"]

Row = dict[str, Any]


class BenchFormatError(UdfError):
    """A file is missing or incomplete, or holds no result that a report can draw."""


@dataclass
class Bench:
    """Rows of one kind from one file.

    Attributes:
        kind: name of the experiment, or of the part of an older bench's file.
        device: cpu or cuda.
        where: the machine in a few words.
        about: machine, versions and date in one line.
        rows: as the bench wrote them.
        predictor: what compile_predictor derived from all rows; empty for other kinds.
        path: of the file.
        left_out: how many cases were not measured.
        tag: distinguishes the machine from others on the page; :func:`sections` sets it.
    """

    kind: str
    device: str
    where: str
    about: str
    rows: list[Row]
    predictor: Row
    path: Path
    left_out: int = 0
    tag: str = ""


#: Lists in the files of compile_models, compile_oracle and compile_triton, and of the same
#: names in the extra_info of their suites.
_PARTS: Final = ("end_to_end", "validation", "cells", "add", "softmax")
_SUITES: Final = {"pair": "end_to_end", "validation": "validation", "oracle": "cells"}


def load_all(paths: Iterable[Path]) -> list[Bench]:
    """Read files; return what they hold, rows of one kind and machine in one file together.

    Raises:
        BenchFormatError: a file is missing, is cut off, is not JSON, or holds nothing that can be
            drawn.
    """
    found: list[Bench] = []
    for path in paths:
        found += _load(path)
    return found


def _load(path: Path) -> list[Bench]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BenchFormatError(f"There is no file {path}.") from error
    except OSError as error:
        raise BenchFormatError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BenchFormatError(
            f"{path} is not a whole JSON file ({error}). A run that is stopped while it writes "
            "leaves such a file. Measure again, or leave the file out."
        ) from error
    with as_written(path):
        found = list(_benches(tables.unpacked(document), path))
    if not found:
        raise BenchFormatError(
            f"{path} holds none of the benches that a report draws: matrix products, convolutions, "
            "chains, layers, models, oracles, Triton. Give the files that "
            "`python -m benches.experiments.compile_...` or `pytest benches --benchmark-json` "
            "wrote; `udftorch report` reads profiles."
        )
    return found


@contextlib.contextmanager
def as_written(*paths: Path) -> Iterator[None]:
    """Turn the errors of entries that are missing, zero or of another type into a clear one."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise BenchFormatError(
            f"{', '.join(map(str, paths))} is not as this version's benches write it "
            f"({type(error).__name__}: {error}). Measure again with this version, or leave the "
            "file out."
        ) from error


def _benches(document: Any, path: Path) -> Iterable[Bench]:
    if not isinstance(document, dict):
        return
    if isinstance(document.get("benchmarks"), list):
        yield from _of_suites(document["benchmarks"], path)
    elif "experiment" in document:
        yield _bench(document["experiment"], document, document["rows"], path, document)
    else:
        if "ceilings" in document:
            yield _bench("bounds", document, document["rows"], path)
        for part in _PARTS:
            rows = document.get(part)
            if isinstance(rows, list) and rows and "device" in document:
                yield _bench(part, document, rows, path)


def _of_suites(benchmarks: list[Row], path: Path) -> Iterable[Bench]:
    """Yield what the benches put into ``extra_info``, rows of one run together."""
    found: dict[tuple[str, str], Bench] = {}

    def add(kind: str, run: Row, rows: list[Row], derived: Row | None = None) -> None:
        one = _bench(kind, run, rows, path, derived)
        same = found.setdefault((kind, one.where), one)
        if same is not one:
            same.rows += rows

    for benchmark in benchmarks:
        info = benchmark["extra_info"]
        if "document" in info:
            run = info["document"]
            add(info["experiment"], run, run["rows"], run)
        elif "experiment" in info:
            add(info["experiment"], info["run"], [info["row"]])
        elif "table" in info:
            # The suite of compile_triton, which runs on CUDA alone.
            kind = "softmax" if "columns" in info["table"][0] else "add"
            add(kind, info.get("run", {"device": "cuda"}), info["table"])
        else:
            for key, kind in _SUITES.items():
                if key in info:
                    add(kind, _run_of(info[key]), [info[key]])
    # A file comes from one machine, which some older rows do not name.
    named = {b.device: b for b in found.values() if b.where != b.device}
    for bench in found.values():
        known = named.get(bench.device, bench)
        yield replace(bench, where=known.where, about=known.about)


def _run_of(row: Row) -> Row:
    """Return where a row of an older suite was measured; its keys differ from today's."""
    device = _device(row)
    if isinstance(row.get("versions"), dict):
        # A pair's row names the executors left out; that of a file counts cases.
        return {**row, "device": device, "left_out": 0}
    named = row.get("device", device)
    versions = {"torch": row["torch"]} if "torch" in row else {}
    return {"device": device, "machine": {"cpu": named, "gpu": named}, "versions": versions}


def _device(row: Row) -> str:
    """Return cpu or cuda."""
    named = str(row.get("device", ""))
    if named in ("cpu", "cuda"):
        return named
    profiled = row.get("profiler", {}).get("cuda_total_ns")
    return "cuda" if profiled or row.get("cuda_graph") else "cpu"


def _bench(kind: str, run: Row, rows: list[Row], path: Path, derived: Row | None = None) -> Bench:
    machine, versions = run.get("machine", {}), run.get("versions", {})
    device = str(run["device"])
    chip = machine.get("gpu") if device == "cuda" else machine.get("cpu")
    words = [cpu_caption(machine) if chip and device == "cpu" else str(chip or device)]
    words += [f"{k} {v}" for k, v in versions.items() if k in ("torch", "triton", "python")]
    if "date" in run:
        words.append(str(run["date"]))
    if run.get("processes", 1) > 1:
        words.append(f"contenders made by {run['processes']} processes side by side")
    return Bench(
        kind,
        device,
        str(chip or device),
        ", ".join(words),
        [row for row in rows if "error" not in row],
        (derived or {}).get("predictor", {}),
        path,
        int(run.get("left_out", 0)),
    )


def medians(row: Row) -> dict[str, float]:
    """Return the medians of a row of compile_models, compile_oracle or compile_transformers."""
    timings = row.get("timings")
    if timings is None:
        measured = row.get("measurement") or row.get("uniform_measurement") or {}
        timings = measured.get("timings", {})
    return {name: float(t["median_ns"]) for name, t in timings.items()}
