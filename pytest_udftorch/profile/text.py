# SPDX-License-Identifier: Apache-2.0
"""Profiles, and the numbers in them, as text for a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pytest_udftorch.notebook import text_table

if TYPE_CHECKING:
    from pytest_udftorch.profile.aggregate import Profile

#: What is shown in place of a layer for code outside every nn.Module.
NO_MODULE: Final = "(no module)"

#: What is shown in place of an operator for calls outside of all of them.
NO_OPERATOR: Final = "(no operator)"

#: The names by which special values are shown.
KINDS: Final = {"nan": "NaN", "inf": "inf", "subnormal": "subnormal", "zero": "zero"}

#: What the rows of a table can stand for, and the key of each.
GROUPS: Final = {
    "function": ("function", "dtype", "device"),
    "operator": ("operator", "device"),
    "layer": ("layer", "device"),
    "stage": ("stage", "device"),
}


def value_text(value: float | None) -> str:
    """Return a value of a function with four digits; a dash for None."""
    if value is None:
        return "-"
    text = f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return text.replace("nan", "NaN")


def time_text(time_ns: float) -> str:
    """Return a time with three digits and its unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if time_ns >= 0.9995 * size:
            scaled = time_ns / size
            return f"{scaled:,.0f} {unit}" if scaled >= 999.5 else f"{scaled:.3g} {unit}"
    return f"{time_ns:.3g} ns"


def share_text(part: float, whole: float) -> str:
    """Return a share in percent; a dash where there is no whole."""
    if whole <= 0:
        return "-"
    percent = 100 * part / whole
    return f"{percent:.1f} %" if percent >= 0.05 or not part else "< 0.1 %"


_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_text(exponent: float) -> str:
    """Return 2 to a rounded exponent as text."""
    return "2" + str(math.floor(exponent + 0.5)).translate(_SUPERSCRIPTS)


def typeset(text: str) -> str:
    """Return a number with the signs of print: a true minus, and ∞."""
    return text.replace("-", "−").replace("inf", "∞")


def title_text(profile: Profile) -> str:
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


def table_text(profile: Profile, by: str = "function", top: int | None = None) -> str:
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
    return text_table(lines) + (f"\n... and {hidden} more" if hidden > 0 else "")


def table_lines(
    profile: Profile, by: str = "function", top: int | None = None
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
