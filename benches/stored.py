# SPDX-License-Identifier: Apache-2.0
"""Results as stored under ``benches/results``: JSON with machine, versions, flags and date."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_udftorch.swap.toolchain.environment import describe

RESULTS = Path(__file__).parent / "results"


def save(path: Path, command: str, figures: dict[str, Any]) -> None:
    """Write figures with the environment they were measured in and the command to repeat them.

    Raises:
        FileNotFoundError: the folder of ``path`` does not exist.
    """
    document = {"command": command, "environment": describe(), **figures}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def add_machine(path: Path, command: str, figures: dict[str, Any]) -> None:
    """Add the figures of a CPU, which their ``environment`` names, to a file of several CPUs."""
    machines = load(path)["machines"] if path.exists() else {}
    machines[figures["environment"]["machine"]["cpu"]] = figures
    save(path, command, {"machines": machines})


def load(path: Path) -> dict[str, Any]:
    """Read what :func:`save` wrote."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
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
