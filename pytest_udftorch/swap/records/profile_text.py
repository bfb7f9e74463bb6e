# SPDX-License-Identifier: Apache-2.0
"""Profiles, and the numbers in them, as text for a terminal."""

from __future__ import annotations

from typing import Final

from pytest_udftorch.base.table import text_table
from pytest_udftorch.base.units import share_text, time_text, value_text
from pytest_udftorch.swap.records.totals import ProfileData

#: What the rows of a table can stand for, and the key of each.
GROUPS: Final = {
    "function": ("function", "dtype", "device"),
    "operator": ("operator", "device"),
    "layer": ("layer", "device"),
    "stage": ("stage", "device"),
}


def title_text(profile: ProfileData) -> str:
    """Return one line: library, build, depth, processes."""
    meta = profile.meta
    parts = [f"{profile.label} {meta.get('version', '')}".strip()]
    if meta.get("build_id"):
        parts.append(f"build {meta['build_id']}")
    if meta.get("cpu_level"):
        parts.append(str(meta["cpu_level"]))
    parts += [f"{k} {meta[k]}" for k in ("torch", "depth") if meta.get(k)]
    processes = {(p.get("host"), p.get("pid")) for p in profile.processes}
    if len(processes) > 1:
        parts.append(f"{len(processes)} processes")
    return ", ".join(parts)


def table_text(profile: ProfileData, by: str = "function", top: int | None = None) -> str:
    """Return a table for a terminal.

    Args:
        profile: the profile to show.
        by: ``function``, ``operator``, ``layer`` or ``stage``.
        top: at most this many rows: those with the most time, or elements if not timed.

    Raises:
        ValueError: for another ``by``.
    """
    lines, hidden = table_lines(profile, by, top)
    if len(lines) == 1:
        return "no watched function was called"
    return text_table(lines[0], lines[1:]) + (f"\n... and {hidden} more" if hidden > 0 else "")


def table_lines(
    profile: ProfileData, by: str = "function", top: int | None = None
) -> tuple[list[list[str]], int]:
    """Return the lines of :func:`table_text`, the header first, and how many rows are left out."""
    if by not in GROUPS:
        raise ValueError(f"by={by!r} is not one of {', '.join(GROUPS)}.")
    rows = profile.rows(*GROUPS[by])
    timed = profile.time_ns > 0
    rows.sort(key=lambda r: (-r.time_ns, -r.elements))
    hidden = len(rows) - len(rows[:top])
    header = [by, "operator calls", "calls", "elements", "in min", "max", "out min", "max"]
    header += ["time", "share"] if timed else []
    lines = [[*header, "special values in→out"]]
    for row in rows[:top]:
        cells = [row.name, f"{row.operator_calls:,}", f"{row.calls:,}", f"{row.elements:,}"]
        for side in ("in", "out"):
            cells += [value_text(x) for x in row.limits(side) or (None, None)]
        if timed:
            cells += [time_text(row.time_ns), share_text(row.time_ns, profile.time_ns)]
        lines.append([*cells, row.specials_text])
    return lines, hidden
