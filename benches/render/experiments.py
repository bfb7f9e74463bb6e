# SPDX-License-Identifier: Apache-2.0
"""docs/results/compile_results.md: what the experiments on torch.compile measured, as tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benches.render.bench_files import Bench, load_all
from benches.render.markdown import table
from pytest_udftorch.base.units import time_text

Lines = list[str]


def _median(row: dict[str, Any], name: str) -> float:
    return float(row["timings"][name]["median_ns"])


def _faster(row: dict[str, Any], name: str) -> str:
    """Return a speed-up with its interval."""
    found = row["speedup"].get(name)
    if found is None:
        return ""
    return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _names(bench: Bench) -> list[str]:
    return list(dict.fromkeys(name for row in bench.rows for name in row["timings"]))


def matmul(bench: Bench) -> Lines:
    """Return GFLOP/s of every form and seconds of the first compiled calls."""
    names = _names(bench)
    rows = sorted(bench.rows, key=lambda r: int(r["case"]["n"]))
    lines = ["GFLOP/s:", ""]
    lines += table(
        ["n", *names],
        (
            [
                f"{r['case']['n']:,}",
                *(
                    f"{2 * r['case']['n'] ** 3 / _median(r, n):,.3g}" if n in r["timings"] else ""
                    for n in names
                ),
            ]
            for r in rows
        ),
    )
    modes = [n for n in names if n.startswith("compile")]
    compiled = [r for r in rows if any(m in r["first_call_ns"] for m in modes)]
    lines += ["", "First call of the compiled forms, with empty caches:", ""]
    return lines + table(
        ["n", *modes],
        (
            [
                f"{r['case']['n']:,}",
                *(
                    f"{r['first_call_ns'][m] / 1e9:.2f} s" if m in r["first_call_ns"] else ""
                    for m in modes
                ),
            ]
            for r in compiled
        ),
    )


def convolutions(bench: Bench) -> Lines:
    """Return both forms of every kernel, stride and padding."""
    case = bench.rows[0]["case"]
    graphs = "compile+cudagraph" in bench.rows[0]["timings"]
    header = ["kernel", "stride", "padding", "interpreted", "compiled", "times faster (95 %)"]
    rows = []
    for row in bench.rows:
        cells = [str(row["case"][k]) for k in ("kernel", "stride", "padding")]
        cells += [time_text(_median(row, n)) for n in ("eager", "compile")]
        cells.append(_faster(row, "compile"))
        if graphs:
            ratio = _median(row, "eager+cudagraph") / _median(row, "compile+cudagraph")
            cells.append(f"{ratio:.2f}")
        rows.append(cells)
    return [
        f"Batch {case['batch']}, {case['channels']} channels, {case['size']} x {case['size']}.",
        "",
        *table([*header, *(["both in a CUDA graph"] if graphs else [])], rows),
    ]


def resnet(bench: Bench) -> Lines:
    """Return every convolution alone and in the model."""
    rows = []
    for row in bench.rows:
        inside = row["in_model_ns"]
        both = inside["eager"] and inside["compile"]
        rows.append(
            [
                f"`{row['case']['name']}`",
                row["case"]["layer"].removeprefix("Conv2d"),
                str(row["case"]["calls"]),
                time_text(_median(row, "eager")),
                _faster(row, "compile"),
                time_text(inside["eager"]) if inside["eager"] else "",
                f"{inside['eager'] / inside['compile']:.2f}" if both else "",
            ]
        )
    header = ["first layer", "convolution", "calls", "alone", "times faster alone (95 %)"]
    return table([*header, "in the model, profiler", "times faster in the model"], rows)


def predictor(bench: Bench) -> Lines:
    """Return the shares of held-out convolutions that were predicted within 5 %."""
    result = bench.predictor
    return [
        f"{result['convolutions']} random convolutions, each held out once:",
        "",
        *table(
            ["prediction by", "within 5 %", "median error"],
            (
                [name, f"{100 * j['within']:.0f} %", f"{100 * j['median_error']:.1f} %"]
                for name, j in result["judged"].items()
            ),
        ),
    ]


def chains(bench: Bench) -> Lines:
    """Return every length."""
    names = [n for n in _names(bench) if n != "eager"]
    return table(
        ["blocks", "interpreted", *(f"{n}, times faster (95 %)" for n in names), "first call"],
        (
            [
                str(row["case"]["blocks"]),
                time_text(_median(row, "eager")),
                *(_faster(row, n) for n in names),
                f"{row['first_call_ns']['compile'] / 1e9:.2f} s",
            ]
            for row in sorted(bench.rows, key=lambda r: int(r["case"]["blocks"]))
        ),
    )


def models(bench: Bench) -> Lines:
    """Return speed-ups over interpreted of every executor."""
    executors = [n for n in _names(bench) if n != "eager"]
    return table(
        [
            "model",
            "batch",
            "size",
            "interpreted",
            *(f"{e}, times faster (95 %)" for e in executors),
        ],
        (
            [
                row["case"]["model"],
                str(row["case"]["batch"]),
                row["case"]["size"],
                time_text(_median(row, "eager")),
                *(_faster(row, e) for e in executors),
            ]
            for row in bench.rows
        ),
    )


def layers(bench: Bench) -> Lines:
    """Return quantiles of the layers' speed-ups for every executor."""
    rows = []
    for name in _names(bench):
        values = [
            _median(row, "eager") / _median(row, name)
            for row in bench.rows
            if name in row["timings"]
            for _ in row["case"]["places"]
        ]
        if name == "eager" or len(values) < 2:
            continue
        cut = statistics.quantiles(values, n=20, method="inclusive")
        share = sum(v > 1 for v in values) / len(values)
        rows.append(
            [
                name,
                str(len(values)),
                *(f"{cut[n]:.2f}" for n in (0, 4, 9, 14, 18)),
                f"{100 * share:.0f} %",
            ]
        )
    header = ["executor", "layers", "5 %", "25 %", "median", "75 %", "95 %", "faster"]
    return ["Quantiles of the layers' speed-ups over interpreted:", "", *table(header, rows)]


#: Title, kind of rows, and what makes the table of one machine.
SECTIONS: tuple[tuple[str, str, Callable[[Bench], Lines]], ...] = (
    ("Products of square matrices", "compile_matmul", matmul),
    ("Single convolutions", "compile_convolutions", convolutions),
    ("Convolutions of ResNet-50", "compile_resnet_convolutions", resnet),
    ("Predicting the speed-up of a convolution", "compile_predictor", predictor),
    ("Blocks of convolution, norm and ReLU in series", "compile_chains", chains),
    ("Layers on their own", "compile_layers", layers),
    ("A vision transformer and a small GPT", "compile_transformers", models),
)


def page(folder: Path) -> str:
    """Return docs/results/compile_results.md from the experiments' files in a folder.

    Raises:
        BenchFormatError: a file is not as the benches write it.
    """
    names = [f"{kind}_{device}.json" for _, kind, _ in SECTIONS for device in ("cuda", "cpu")]
    benches = load_all(folder / n for n in names if (folder / n).is_file())
    parts = [
        "# Results of the experiments on torch.compile",
        "",
        "This page is generated from benches/results; do not edit it. "
        "[compile.md](../measure/compile.md) has the models, the timers, the plans and Triton, and "
        "says how to measure again. "
        "`python -m benches.render.bench_report benches/results/compile_*.json -o report.html` "
        "draws the figures. "
        "Intervals are 95 % bootstrap intervals of the median over interleaved runs. The "
        "published numbers of these experiments are not available to us.",
    ]
    for title, kind, make in SECTIONS:
        chosen = [b for b in benches if b.kind == kind and b.rows]
        if kind == "compile_predictor":
            chosen = [b for b in chosen if b.predictor.get("judged")]
        if chosen:
            parts += ["", f"## {title}"]
        for bench in chosen:
            more = f" {bench.left_out} cases left out by the budget." if bench.left_out else ""
            parts += ["", *make(bench), "", f"`{bench.path.name}`: {bench.about}.{more}"]
    return "\n".join(parts).rstrip() + "\n"
