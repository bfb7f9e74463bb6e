# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/diagnose/diff.md: planted faults, clean pairs, and what a record costs."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benches.experiments.beside_others import NO_CASES
from benches.render.cuda import source
from benches.render.markdown import table
from pytest_udftorch.swap.toolchain.environment import caption


def _share(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    return f"{sum(bool(row[name]) for row in rows)} of {len(rows)}"


def planted_faults(found: Mapping[str, Any]) -> str:
    """Return how many planted faults were named, and how many clean pairs accused."""
    faults, clean, held = found["faults"], found["clean"], found["models"]
    kinds = dict.fromkeys(row["fault"] for row in faults)
    rows: list[tuple[str, ...]] = [
        (kind, _share(own, "named"), _share(own, "proved"), _share(own, "debug_mode"))
        for kind in kinds
        if (own := [row for row in faults if row["fault"] == kind])
    ]
    for name, wanted in (("models at hand", False), ("models held out", True)):
        own = [row for row in faults if held[row["model"]] == wanted]
        rows.append((name, *(_share(own, n) for n in ("named", "proved", "debug_mode"))))
    rows.append(("all", *(_share(faults, n) for n in ("named", "proved", "debug_mode"))))
    header = ["fault", "operator and layer named", "proved", "DebugMode: operator first"]
    seconds = [row["seconds"] for row in (*faults, *clean)]
    parts = [
        f"Of {len(clean)} clean pairs of {len({r['model'] for r in clean})} models, "
        f"{sum(bool(row['accused']) for row in clean)} are accused: in "
        f"{sum(row['equal'] for row in clean)} all bits are equal, and rounding explains the "
        f"others. A comparison took {statistics.median(seconds):.1f} s (up to {max(seconds):.0f}).",
    ]
    peaks: dict[str, dict[str, list[int]]] = {}
    for row in found["memory"]:
        peaks.setdefault(row["model"], {}).setdefault(row["what"], []).append(row["kib"])
    for name, kib in peaks.items():
        plain, compared = (statistics.median(kib[what]) for what in ("plain", "compared"))
        parts.append(
            f"{name}: the peak of a compared step, with the model, is {compared / plain:.2f} times "
            "that of the step alone."
        )
    text = "\n".join(parts)
    return "\n".join([*table(header, rows), "", text, "", caption(found["environment"]), ""])


def record_overhead(found: Mapping[str, Any]) -> str:
    """Return what recording a step costs."""
    rows = [
        (
            row["model"],
            f"{row['operators']:,}",
            f"{row['plain_s'] * 1e3:.3g} ms",
            f"{row['ratio']:.2f} ({row['ratios'][0]:.2f} to {row['ratios'][1]:.2f})",
            f"{row['empty_mode']:.2f}",
            f"{row['bytes'] / 1e6:.2f} MB",
        )
        for row in found["rows"]
    ]
    header = [
        "training step",
        "operators",
        "CPU time alone",
        "recorded ÷ alone",
        "empty mode ÷ alone",
        "record",
    ]
    return "\n".join([*table(header, rows), "", caption(found["environment"]), ""])


def beside_others(found: Mapping[str, Any]) -> str:
    """Return what other tools name where `udftorch diff` names an operator."""
    rows = []
    for row in found["compiled"]:
        names = row["operators"] or row["settings"] or [row["stage"]]
        bisected = row["bisector"]
        overload = re.search(r"op='([^']+)'", bisected.get("info") or "")
        info = overload[1] if overload else bisected.get("info")
        parts = (bisected.get("backend"), bisected.get("subsystem"), info)
        rows.append(
            (
                f"[#{row['issue']}](https://github.com/pytorch/pytorch/issues/{row['issue']})",
                ", ".join(f"`{n}`" for n in names) if row["differs"] else "no difference",
                row["nearer"] or "",
                bisected.get("error") or " ".join(f"`{p}`" for p in dict.fromkeys(parts) if p)
                or "nothing",
            )
        )  # fmt: skip
    header = ["issue", "`udftorch diff` names", "nearer the truth", "CompilerBisector names"]
    left: dict[str, list[str]] = {}
    for issue, why in NO_CASES.items():
        left.setdefault(why, []).append(f"#{issue}")
    others = "; ".join(f"{', '.join(issues)}: {why}" for why, issues in left.items())
    return "\n".join(
        [
            *table(header, rows), "", f"Issues that are no case here: {others}.", "",
            *_faults_beside(found["faults"], found["pytest_torch"]), "",
            caption(found["environment"]), "",
        ]
    )  # fmt: skip


def _faults_beside(faults: Sequence[Mapping[str, Any]], version: str) -> list[str]:
    """Return what the other tools say of the planted faults."""
    inside = [row for row in faults if row["layer"]]
    seen = sum(row["pytest_torch_default"]["layer"] is not None for row in inside)
    bisected = [row["bisector"] for row in faults if "bisector" in row]
    eager = sum(b.get("backend") == "eager" for b in bisected)
    named = sum(bool(b.get("info")) for b in bisected)
    name, _, number = version.partition("==")
    text = (
        f"Of {len(faults)} planted faults, {len(inside)} lie in a layer's forward pass. {name} "
        f"{number} (`localize_divergence` without a tolerance) names the layer of "
        f"{_share(inside, 'named')}; with its own tolerance it sees {seen}. It names no operator, "
        "and runs no backward pass. CompilerBisector, asked about a training step with a fault in "
        f"an eager operator, names an operator or pass in {named} of {len(bisected)}, and the "
        f"backend `eager` in {eager}: eager code is not what it searches."
    )
    return [text]


def planted_blame(found: Mapping[str, Any]) -> str:
    """Return how many planted functions and numbers were named."""
    rows = []
    for half, words in (("blame", "a function of a layer"), ("origin", "a NaN or an infinity")):
        own = found[half]
        seconds = [row["seconds"] for row in own]
        controls = [row for row in own if row["control"] is not None]
        rows.append(
            (
                words,
                _share(own, "right"),
                str(len({row["model"] for row in own})),
                _share(controls, "control"),
                f"{statistics.median(seconds):.1f} s (up to {max(seconds):.0f} s)",
            )
        )
    header = ["planted", "named", "models", "controls: nobody named", "time"]
    return "\n".join([*table(header, rows), "", caption(found["environment"]), ""])


def cuda_differences(found: Mapping[str, Any]) -> str:
    """Return what is named between a CPU and a GPU."""
    rows = []
    for row in found["issues"]:
        link = f"[#{row['issue']}](https://github.com/pytorch/pytorch/issues/{row['issue']})"
        if not row["differs"]:
            rows.append((link, "no difference", "", "", "", ""))
            continue
        errors = [f"{e:.2f} ULP" for e in row["ulp"]] if row["ulp"] else ["unknown"] * 2
        explained = {True: "yes", False: "no"}.get(row["explained"], "unknown")
        rows.append(
            (link, f"`{row['operator']}`, {row['dtype']}", *errors, row["nearer"] or "", explained)
        )
    header = [
        "issue", "operator named", "error on the CPU", "on the GPU", "nearer the truth",
        "rounding explains both",
    ]  # fmt: skip
    faults, pairs = found["faults"], found["pairs"]
    judged = [f for row in pairs for f in row["findings"] if f[0] == "operator"]
    text = (
        f"Of faults planted into training steps on the GPU, {_share(faults, 'named')} are named "
        f"with operator and layer, and {_share(faults, 'proved')} proved "
        f"({len({r['model'] for r in faults})} models). Between the CPU's and the GPU's training "
        f"step of {len(pairs)} models, {sum(len(row['accused']) for row in pairs)} of "
        f"{len(judged)} operators named are accused; rounding explains "
        f"{sum(f[3] is True for f in judged)}."
    )
    return "\n".join([*table(header, rows), "", text, "", source(found), ""])


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "beside_others": beside_others,
    "cuda_differences": cuda_differences,
    "planted_blame": planted_blame,
    "planted_faults": planted_faults,
    "record_overhead": record_overhead,
}
