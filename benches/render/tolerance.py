# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/diagnose/tolerance.md: the ladder's errors and times, and the bits of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benches.render.markdown import table
from pytest_udftorch.swap.toolchain.environment import caption


def ladder(found: Mapping[str, Any]) -> str:
    """Return the worst error and the time of every rung."""
    rungs = list(found["rows"][0]["errors"])
    rows = []
    for row in found["rows"]:
        times = row["times"]
        cells = [f"{row['errors'][r]['ulp']:,.1f}, {times[f'ladder-{r}']['ns']:.2f}" for r in rungs]
        rows.append((row["function"], *cells, f"0.5, {times['corem']['ns']:.2f}"))
    allowed = [f"{found['rows'][0]['errors'][r]['of']:,}" for r in rungs]
    rows.insert(0, ("allowed", *allowed, "0.5"))
    header = ["worst ULP, ns per element", *(f"{r} bits" for r in rungs), "corem"]
    inputs = f"{found['inputs']:,} of 4,294,967,296 inputs, evenly spaced."
    if found["inputs"] == 2**32:
        inputs = "All 4,294,967,296 inputs."
    return "\n".join([*table(header, rows), "", inputs, "", caption(found["environment"]), ""])


def tolerance(found: Mapping[str, Any]) -> str:
    """Return the bits that the layers of each model need."""
    parts: list[str] = []
    for row in found["rows"]:
        before, after = row["held_out"]
        parts += [
            f"{row['model']}: the loss may move by {row['within']:g}. On held-out data it goes "
            f"from {before:.6f} to {after:.6f}. The functions take {row['saved']:.0%} less time "
            f"than under corem; {row['runs']} runs, {row['seconds']:.0f} s.",
            "",
        ]
        rows = [
            (
                f"`{need['layer']}`", need["function"], _bits(need["library"]),
                "█" * round(_bits_number(need["library"]) / 2), f"{need['evaluations']:,}",
            )
            for need in row["needs"]
        ]  # fmt: skip
        parts += [*table(["layer", "function", "bits", "", "evaluations"], rows), ""]
    return "\n".join([*parts, caption(found["environment"]), ""])


def _bits_number(library: str) -> int:
    return 24 if library == "corem" else int(library.rpartition("-")[2])


def _bits(library: str) -> str:
    return str(_bits_number(library))


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {"ladder": ladder, "tolerance": tolerance}
