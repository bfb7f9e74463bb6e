# SPDX-License-Identifier: Apache-2.0
"""Reading what can be compared: profiles, baselines, benches and certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.errors import CompareError, nearest
from pytest_udftorch.swap.records.profile import Profile, load_profiles
from pytest_udftorch.swap.records.totals import Row
from pytest_udftorch.watch.compare import baseline, bench_file
from pytest_udftorch.watch.compare.figures import Figures, Key

#: What the rows of profiles are, by the word of ``--by``.
GROUPS: Final = {
    "function": ("function", "dtype", "device"),
    "operator": ("operator", "function", "dtype", "device"),
    "layer": ("layer", "function", "dtype", "device"),
}


def read(path: Path, by: str = "function") -> Figures:
    """Read a file, or a folder of profiles.

    Args:
        path: a profile's folder or file, a baseline, a certificate, or the JSON of ``udftorch
            bench`` or pytest-benchmark.
        by: what the rows of profiles are: a word of :data:`GROUPS`.

    Raises:
        CompareError: it is something else, or cannot be read.
        The errors of the readers.
    """
    label = path.stem if path.suffix in (".json", ".bin") else path.name
    if path.suffix != ".json":
        return _of_profiles(label, load_profiles([path]), by)
    try:
        data = shapes.parse_json(shapes.read_file(path))
        kind = data.get("format") if isinstance(data, dict) else None
        if kind == baseline.FORMAT:
            return baseline.of_document(data).figures(label)
        if kind == bench_file.FORMAT:
            return bench_file.figures(label, data)
        if isinstance(data, dict) and "benchmarks" in data:
            return _of_pytest_benchmark(label, data)
    except OSError as error:
        raise CompareError(f"Cannot read {path}: {error.strerror or error}.") from error
    except shapes.Malformed as error:
        raise CompareError(f"{path} cannot be compared: {error}. Make the file again.") from error
    if not str(kind).startswith("udftorch-certificate"):
        raise CompareError(
            f"{path} is nothing that can be compared. Name folders or files of profiles, baselines "
            "of pytest --udf-save, certificates, or the JSON of udftorch bench or pytest-benchmark."
        )
    return _of_certificate(path)


def _of_profiles(label: str, profiles: list[Profile], by: str) -> Figures:
    if by not in GROUPS:
        raise CompareError(f"There are no rows by {by!r}. {nearest(by, GROUPS)}")
    rows: dict[Key, dict[str, Any]] = {}
    for profile in profiles:
        library = (profile.label,) if len(profiles) > 1 else ()
        for row in profile.rows(*GROUPS[by]):
            name = (row.function_name,) if by == "function" else (row.name,)
            rows[*library, *name] = _of_row(row)
    meta = profiles[0].meta
    about = {"library": ", ".join(p.title() for p in profiles), "depth": str(meta["depth"])}
    return Figures(label, "profile", rows, about | {"torch": str(meta.get("torch"))})


def _of_row(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {"operator_calls": row.operator_calls, "elements": row.elements}
    for side in ("in", "out"):
        found[side] = row.limits("in" if side == "in" else "out")
    for kind in ("nan", "inf"):
        found[kind] = max(0, row.special("out", kind) - row.special("in", kind))
    timed = int(row.cell["timed_elements"])
    if timed:
        found["time"] = {"ns": row.time_ns / timed}
    return found


_STATS: Final = shapes.record(dict.fromkeys(("median", "q1", "q3"), shapes.number()), closed=False)
_BENCHMARK: Final = shapes.record({"fullname": shapes.text(), "stats": _STATS}, closed=False)


def _of_pytest_benchmark(label: str, data: dict[str, Any]) -> Figures:
    shapes.each(_BENCHMARK)(data["benchmarks"], "benchmarks")
    rows: dict[Key, dict[str, Any]] = {}
    for bench in data["benchmarks"]:
        stats = bench["stats"]
        low, median, high = (1e9 * stats[k] for k in ("q1", "median", "q3"))
        rows[(bench["fullname"],)] = {"time": {"ns": median, "low": low, "high": high}}
    machine = data.get("machine_info")
    cpu = machine.get("cpu", {}) if isinstance(machine, dict) else {}
    name = str(cpu.get("brand_raw", "unknown")) if isinstance(cpu, dict) else "unknown"
    return Figures(label, "bench", rows, {"cpu": name})


def _of_certificate(path: Path) -> Figures:
    from pytest_udftorch.prove.verify.certificate_file import load_certificate

    certificate = load_certificate(path)
    what = f"{certificate.subject['function']} {certificate.subject['dtype']}"
    rows: dict[Key, dict[str, Any]] = {}
    for run in certificate.runs:
        against = run.tally.beyond(certificate.subject["max_ulp"])
        rows[what, run.label] = {
            "wrong": run.tally.wrong,
            "against": None if against is None else against[1],
            "ulp": run.largest["ulp"] if run.largest else 0.0,
        }
    # Libraries need not have the same forms.
    worst = {
        name: max((r[name] for r in rows.values() if r[name] is not None), default=None)
        for name in ("wrong", "against", "ulp")
    }
    subject = certificate.subject
    about = {"library": f"{subject['library']} {subject['version']}", "claim": subject["claim"]}
    label = str(subject["library"])
    return Figures(label, "certificate", {(what, "the worst form"): worst, **rows}, about)


def distinct(figures: Sequence[Figures], paths: Sequence[Path]) -> list[Figures]:
    """Return the figures with labels that tell them apart: what differs of the paths is added."""
    labels = [f.label for f in figures]
    parts = [path.absolute().parts for path in paths]
    common = 0
    while len({p[common : common + 1] for p in parts}) == 1 and common < min(map(len, parts)) - 1:
        common += 1
    return [
        replace(f, label="/".join(p[common:])) if labels.count(f.label) > 1 else f
        for f, p in zip(figures, parts, strict=True)
    ]
