# SPDX-License-Identifier: Apache-2.0
"""The tables of compiled models, as Markdown: plans, oracles, executors, timers, Triton."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benches.render.markdown import records, table
from pytest_udftorch.swap.toolchain.environment import cpu_caption

Document = Mapping[str, Any]

#: Plans of the report, in the order of the table, and what they are.
PLANS = (
    ("best of two runs", "best of two runs"),
    ("greedy", "greedy"),
    ("layer-timed oracle", "layer-timed choice"),
    ("profiler-timed oracle", "profiler-timed choice"),
    ("thesis programme", "programme of the research"),
    ("programme over all executors", "the same, all executors"),
    ("ours", "segments (ours)"),
    ("joined programme", "joined units (ours)"),
)

#: Targets of the plans on the GPU: ratios of medians, cells, minutes.
ASKED = {"best_uniform": 0.99, "gains": 1.02, "cells": 3, 1: 2.5, 32: 1.15, "minutes": 10}


def _us(nanoseconds: float | None) -> str:
    if nanoseconds is None:
        return "-"
    value = nanoseconds / 1e3
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _times(found: Mapping[str, Any], key: str) -> str:
    row = found.get(key)
    return f"{row['times_faster']:.2f}" if row else "-"


def source(document: Document) -> str:
    """Return one line for the machine and the versions."""
    machine, versions = document["machine"], document["versions"]
    device = machine.get("gpu") or cpu_caption(machine)
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    note = f" Note: {document['note']}." if "note" in document else ""
    return f"{device}; {names}.{note}"


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _bounds(document: Document, bounds: Document | None) -> dict[tuple[str, int], float]:
    """Return the roofline of each cell, from itself or from bounds of the same machine."""
    found = {}
    if bounds is not None and bounds["machine"] == document["machine"]:
        found = {(row["model"], row["batch"]): row["roofline_ns"] for row in bounds["rows"]}
    own = {(c["model"], c["batch"]): c.get("roofline_ns") for c in document["cells"]}
    return {**found, **{key: ns for key, ns in own.items() if ns}}


def plans(document: Document, bounds: Document | None = None) -> list[str]:
    """Return what the plans gain, and their distance from the roofline."""
    least = _bounds(document, bounds)
    rows = []
    for cell in document["cells"]:
        over, ours, segments = cell["plan_over"], cell["plan_ns"], cell["segments"]
        bound = least.get((cell["model"], cell["batch"]))
        rows.append(
            {
                "model": cell["model"],
                "batch": str(cell["batch"]),
                "plan, us": _us(ours),
                "segments": str(len(segments)) if len(segments) > 1 else segments[0][2],
                "over eager": _times(over, "eager"),
                "over compile": _times(over, "torch_compile"),
                "over best stock uniform": _times(over, "best_stock_uniform"),
                "over best uniform": _times(over, "best_uniform"),
                "over thunder's choice": _times(over, "thunder_profile"),
                "roofline, us": _us(bound),
                "regret": f"{ours / bound - 1:.2f}" if bound else "-",
                "search, min": f"{cell['seconds'] / 60:.1f}",
            }
        )
    return [*records(rows), "", source(document)]


def oracles(document: Document, bounds: Document | None = None) -> list[str]:
    """Return each oracle's plan, measured whole, beside the bounds; microseconds."""
    least = _bounds(document, bounds)
    rows = []
    for cell in document["cells"]:
        timings = cell.get("plan_measurement", {}).get("timings", {})
        rows.append(
            [
                cell["model"],
                str(cell["batch"]),
                _us(timings.get("best uniform", {}).get("median_ns")),
                *(_us(timings.get(key, {}).get("median_ns")) for key, _ in PLANS),
                _us(cell.get("unit_bound_ns")),
                _us(cell.get("unit_bound_profiled_ns")),
                _us(least.get((cell["model"], cell["batch"]))),
            ]
        )
    header = [
        "model", "batch", "best uniform", *(title for _, title in PLANS), "sum of least unit times",
        "the same, profiler", "roofline",
    ]  # fmt: skip
    return [*table(header, rows), "", source(document)]


def asked(document: Document) -> list[str]:
    """Return the targets of the plans on the GPU, and what was measured."""
    cells = document["cells"]
    over = [cell["plan_over"]["best_uniform"]["times_faster"] for cell in cells]
    gains = sum(value >= ASKED["gains"] for value in over)
    rows = [
        ["least over the best uniform executor", f"{ASKED['best_uniform']}", f"{min(over):.3f}"],
        [f"cells at least {ASKED['gains']} over it", f"{ASKED['cells']}", f"{gains}"],
    ]
    for batch in (1, 32):
        ratios = [
            cell["plan_over"]["torch_compile"]["times_faster"]
            for cell in cells
            if cell["batch"] == batch
        ]
        what = f"geometric mean over `torch.compile`, batch {batch}"
        rows.append([what, f"{ASKED[batch]}", f"{geometric_mean(ratios):.2f}"])
    longest = max(cell["seconds"] for cell in cells) / 60
    rows.append(["longest search, minutes", f"{ASKED['minutes']}", f"{longest:.1f}"])
    return table(("figure", "asked", "measured"), rows)


def _by_executor(
    cells: Sequence[Document], title: str, text: Callable[[Document, str], str]
) -> list[str]:
    """Return a row for each executor and a column for each cell."""
    names = dict.fromkeys(name for cell in cells for name in cell["members"])
    header = [title, *(f"{cell['model']}, {cell['batch']}" for cell in cells)]
    return table(header, [[f"`{n}`", *(text(cell, n) for cell in cells)] for n in names])


def _steady(cells: Sequence[Document], timed: str) -> list[str]:
    def steady(cell: Document, name: str) -> str:
        timing = cell[timed]["timings"].get(name)
        member = cell["members"].get(name, {})
        text = _us(timing["median_ns"]) if timing else ("failed" if member else "-")
        if member.get("agrees") is False:
            text += ", disagrees"
        if member.get("break_even_calls"):
            text += f" ({member['break_even_calls']:,})"
        return text

    failures = {
        f"`{name}`: {' '.join((member.get('error') or member['problem']).split())}"
        for cell in cells
        for name, member in cell["members"].items()
        if member.get("error") or member.get("problem")
    }
    reasons = ["", *(f"- {reason}" for reason in sorted(failures))] if failures else []
    return [*_by_executor(cells, "executor", steady), *reasons]


def end_to_end(document: Document) -> list[str]:
    """Return steady state, break-even calls and the first call of every executor."""
    cells = document["end_to_end"]

    def seconds(cell: Document, name: str) -> str:
        found = cell["members"].get(name, {}).get("first_call_ns")
        return "-" if found is None else f"{found / 1e9:.3g}"

    first = _by_executor(cells, "first call, s", seconds)
    return [*_steady(cells, "measurement"), "", *first, "", source(document)]


def compilers(document: Document) -> list[str]:
    """Return the end to end times of other projects' compilers, with their versions."""
    found = {n: v for cell in document["end_to_end"] for n, v in cell["compilers"].items()}
    versions = ", ".join(f"{name} {version}" for name, version in found.items())
    return [*end_to_end(document), "", f"Compilers: {versions}."]


def uniform(document: Document) -> list[str]:
    """Return the steady state of the executors that plans are compared with."""
    cells = [cell for cell in document["cells"] if "fresh_measurement" in cell]
    return [*_steady(cells, "fresh_measurement"), "", source(document)]


def validation(document: Document) -> list[str]:
    """Return what instruments cost, and how well sums of layers meet the whole."""
    rows_of = document["validation"]
    instruments = list(rows_of[0]["instruments"])
    header = ["model", "layers", *instruments[1:], "layer timing", "layer subtraction"]
    rows = [
        [
            row["model"],
            str(row["layers"]),
            *(f"{row['instruments'][name]['over_pure']:.2f}" for name in instruments[1:]),
            f"{row['layer_timing_share']:.3f}",
            f"{row['layer_subtraction_share']:.3f}",
        ]
        for row in rows_of
    ]
    subtracted = max(abs(row["layer_subtraction_share"] - 1) for row in rows_of)
    hooked = max(abs(row["layer_timing_share"] - 1) for row in rows_of)
    sync = [row["instruments"]["sync"]["over_pure"] for row in rows_of]
    most = [row["instruments"]["timed_sync, profiled"]["over_pure"] for row in rows_of]
    finding = (
        f"Waiting after every layer makes a pass {min(sync):.2f} to {max(sync):.2f} times as long; "
        "hooks, clocks, waiting and the profiler together "
        f"{min(most):.2f} to {max(most):.2f} times. The sum of layer subtraction is within "
        # Bounds are rounded up.
        f"{math.ceil(1000 * subtracted) / 10:.1f} % of end to end in all {len(rows)} models; that "
        f"of layers timed by hooks is up to {math.ceil(100 * hooked)} % off."
    )
    return [*table(header, rows), "", finding, "", source(document)]


def triton(document: Document) -> list[str]:
    """Return shares of copy bandwidth of softmax and addition."""

    def share(row: Document, name: str) -> str:
        return f"{row['share_of_copy'][name]:.3f}" if name in row["share_of_copy"] else "-"

    def over(row: Document) -> str:
        return f"{row['triton_over_torch']:.3f} ({row['verdict_over_torch']})"

    rows = [
        {
            "columns": f"{row['columns']:,}",
            "rows": f"{row['rows']:,}",
            "Triton, of copy": share(row, "triton"),
            "torch.softmax, of copy": share(row, "torch"),
            "five steps, of copy": share(row, "naive"),
            "Triton over torch.softmax, device": over(row),
            "with the launch": over(row["with_launch"]),
        }
        for row in sorted(document["softmax"], key=lambda row: row["columns"])
    ]
    sums = [
        {
            "elements added": f"{row['elements']:,}",
            "Triton, of copy": share(row, "triton"),
            "torch, of copy": share(row, "torch"),
            "Triton in one block, of copy": share(row, "triton, one block"),
            "launch, Triton, us": _us(row["launch_ns"]["triton"]),
            "launch, torch, us": _us(row["launch_ns"]["torch"]),
        }
        for row in document["add"]
    ]
    return [*records(rows), "", *records(sums), "", source(document)]


#: What a page asks for -> stored file, and what renders it.
TABLES: dict[str, tuple[str, Callable[..., list[str]]]] = {
    "compile_plans": ("compile_oracle", plans),
    "compile_oracles": ("compile_oracle", oracles),
    "compile_asked": ("compile_oracle", asked),
    "compile_plans_cpu": ("compile_oracle_cpu", plans),
    "compile_oracles_cpu": ("compile_oracle_cpu", oracles),
    "compile_end_to_end": ("compile_models", end_to_end),
    "compile_compilers": ("compile_compilers_cpu", compilers),
    "compile_uniform": ("compile_oracle", uniform),
    "compile_uniform_cpu": ("compile_oracle_cpu", uniform),
    "compile_plans_profiled": ("compile_profiled", plans),
    "compile_oracles_profiled": ("compile_profiled", oracles),
    "compile_validation": ("compile_validation", validation),
    "compile_validation_cpu": ("compile_validation_cpu", validation),
    "compile_triton": ("compile_triton", triton),
}

#: Those that also show rooflines measured apart.
BOUNDED = (plans, oracles)
