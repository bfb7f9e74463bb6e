# SPDX-License-Identifier: Apache-2.0
"""The tables of a profile's page: sortable, with the library's name if there are several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any, Final

from pytest_udftorch.profile.aggregate import KINDS, NO_MODULE, Profile, Row
from pytest_udftorch.profile.ranges import SIDES, half_shares, headroom
from pytest_udftorch.profile.text import share_text, time_text, typeset, value_text
from pytest_udftorch.records import layout

_EVERYTHING: Final = ("module", "function", "dtype", "device", "form", "stage", "operator")
Cell = tuple[str, Any]  # HTML, and what to sort by


def text_cell(text: str, *, wrap: bool = False) -> Cell:
    """Return a cell of text, escaped, that sorts as text."""
    return escape(text), (text, "text wrap" if wrap else "text")


def _count(number: int) -> Cell:
    return f"{number:,}", number


def _value(value: float | None) -> Cell:
    return typeset(value_text(value)), "" if value is None else value


def _sort_key(value: float | str) -> str:
    # Infinity is the word that JavaScript's Number reads.
    return str(value).replace("inf", "Infinity")


def table(name: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a sortable table; columns whose first cell is text are flush left."""
    texts = [isinstance(cell[1], tuple) for cell in rows[0]] if rows else [False] * len(header)
    head = "".join(
        f'<th{" class=text" if text else ""} scope="col">'
        f'<button type="button">{title}</button></th>'
        for title, text in zip(header, texts, strict=True)
    )
    body = []
    for row in rows:
        cells = []
        for shown, key in row:
            if isinstance(key, tuple):
                cells.append(f'<td class="{key[1]}" data-sort="{escape(key[0])}">{shown}</td>')
            else:
                cells.append(f'<td data-sort="{_sort_key(key)}">{shown}</td>')
        names = " ".join(key[0] for _, key in row if isinstance(key, tuple))
        body.append(f'<tr data-name="{escape(names)}">{"".join(cells)}</tr>')
    return "\n".join(
        [
            f'<div class="scroll"><table class="sortable" id="{name}">',
            f"<thead><tr>{head}</tr></thead>",
            "<tbody>",
            *body,
            "</tbody></table></div>",
        ]
    )


def _library(profiles: Sequence[Profile], name: str) -> list[Cell]:
    """Return the cell with the library's name if there are several."""
    return [(name, (name, "text"))] if len(profiles) > 1 else []


def _library_head(profiles: Sequence[Profile]) -> list[str]:
    return ["library"] if len(profiles) > 1 else []


def _range_cells(row: Row) -> list[Cell]:
    cells = []
    for side in SIDES:
        cells += [_value(x) for x in row.limits(side) or (None, None)]
    return cells


def _special_cells(row: Row) -> list[Cell]:
    cells = []
    for kind in KINDS:
        before, after = (row.special(side, kind) for side in SIDES)
        shown = f'{before:,}<span class="arrow">→</span>{after:,}'
        if after and kind in ("inf", "nan"):
            shown = f'<span class="bad-text">{shown}</span>'
        cells.append((shown if before or after else "-", after))
    return cells


_RANGE_HEAD: Final = ("in min", "in max", "out min", "out max")
_SPECIAL_HEAD: Final = tuple(f"{name} in→out" for name in KINDS.values())


def layers_table(profiles: Sequence[Profile], names: Sequence[str]) -> str:
    """Return the table of layers and functions; empty without a row."""
    timed = any(p.time_ns for p in profiles)
    header = ["layer", *_library_head(profiles), "function", "operator calls", "elements"]
    header += [*_RANGE_HEAD, "binades to overflow", "over half", "under half"]
    header += ["time", "share"] if timed else []
    # The libraries of one layer beside each other.
    found: dict[tuple[str, ...], list[list[Cell]]] = {}
    for profile, name in zip(profiles, names, strict=True):
        for row in profile.layers():
            left = headroom(row)
            shares = half_shares(row) or (None, None)
            cells = [
                text_cell(row.key["module"] or NO_MODULE, wrap=True),
                *_library(profiles, name),
                text_cell(row.function_name),
                _count(row.operator_calls),
                _count(row.elements),
                *_range_cells(row),
                (f"{left:.1f}", left) if math.isfinite(left) else ("-", ""),
                *((share_text(s, 1), s) if s is not None else ("-", "") for s in shares),
            ]
            if timed:
                cells += _time_cells(row, profile)
            found.setdefault(tuple(row.key.values()), []).append(cells)
    rows = [cells for same in found.values() for cells in same]
    if not rows:
        return ""
    return "\n".join(
        [
            "<h2>Layers</h2>",
            '<p class="hint">Click a heading to sort. Binades to overflow: the factors of two '
            "between the largest magnitude, in or out, and the overflow of the dtype. Over and "
            "under half: sampled values beyond half's largest and below its smallest normal "
            "number.</p>",
            table("layers", header, rows),
        ]
    )


def _time_cells(row: Row, profile: Profile) -> list[Cell]:
    share = row.time_ns / profile.time_ns if profile.time_ns else 0.0
    return [
        (time_text(row.time_ns), row.time_ns),
        (share_text(row.time_ns, profile.time_ns), share),
    ]


def functions_table(profiles: Sequence[Profile], names: Sequence[str]) -> str:
    """Return the table of functions, with their times if there are any; empty without a row."""
    timed = any(p.time_ns for p in profiles)
    longest = max(
        (r.time_ns for p in profiles for r in p.rows("function", "dtype", "device")), default=0
    )
    header = ["function", *_library_head(profiles), "operator calls", "calls", "elements"]
    header += ["time", "share", "time per element"] if timed else []
    header += [*_RANGE_HEAD, *_SPECIAL_HEAD]
    # The libraries of one function beside each other.
    found: dict[str, list[list[Cell]]] = {}
    for number, (profile, name) in enumerate(zip(profiles, names, strict=True)):
        for row in profile.rows("function", "dtype", "device"):
            cells = [
                text_cell(row.function_name),
                *_library(profiles, name),
                _count(row.operator_calls),
                _count(row.calls),
                _count(row.elements),
            ]
            if timed:
                width = 80 * row.time_ns / longest if longest else 0
                second = " second" if number % 2 else ""
                bar = f'<span class="bar{second}" style="width:{width:.1f}px"></span>'
                (time, key), share = _time_cells(row, profile)
                each = row.time_ns / row.elements if row.elements else 0.0
                time = f'<span class="track">{bar}</span><span>{time}</span>'
                cells += [(time, key), share, (time_text(each), each)]
            found.setdefault(row.function_name, []).append(
                [*cells, *_range_cells(row), *_special_cells(row)]
            )
    rows = [cells for same in found.values() for cells in same]
    if not rows:
        return ""
    hint = "A call is one of the library's scalar, vector or array function. " + (
        "Time is summed over threads; the share is of all watched functions together."
        if timed
        else "No times: they need the depth timed or events."
    )
    parts = ["<h2>Functions</h2>", f'<p class="hint">{hint}</p>']
    parts += [_wall_share(p, n) for p, n in zip(profiles, names, strict=True)]
    return "\n".join([*(p for p in parts if p), table("functions", header, rows)])


def _wall_share(profile: Profile, name: str) -> str:
    if not (profile.wall_ns and profile.time_ns):
        return ""
    return (
        f"<p>{name}: the functions took {time_text(profile.time_ns)} of "
        f"{time_text(profile.wall_ns)}, {share_text(profile.time_ns, profile.wall_ns)}.</p>"
    )


def stages_table(profiles: Sequence[Profile], names: Sequence[str]) -> str:
    """Return the table of the stages of a training step; empty without a row."""
    used = [s for s in layout.STAGES if any(_in_stage(p, s) for p in profiles)]
    # The order in which a training step has them.
    order = [s for s in ("forward", "backward", "optimizer", "other") if s in used]
    header = ["function", *_library_head(profiles)]
    for stage in order:
        header += [f"{stage}: operator calls", "elements"]
    found: dict[str, list[list[Cell]]] = {}
    for profile, name in zip(profiles, names, strict=True):
        rows: dict[str, dict[str, Row]] = {}
        for row in profile.rows("function", "dtype", "device", "stage"):
            rows.setdefault(row.function_name, {})[row.key["stage"]] = row
        for function, by_stage in rows.items():
            cells = [text_cell(function), *_library(profiles, name)]
            for stage in order:
                here = by_stage.get(stage)
                cells.append(_count(here.operator_calls if here else 0))
                cells.append(_count(here.elements if here else 0))
            found.setdefault(function, []).append(cells)
    lines = [cells for same in found.values() for cells in same]
    if not lines:
        return ""
    return "\n".join(
        [
            "<h2>Stages</h2>",
            '<p class="hint">Operator calls in which the function was used, and elements that '
            "went through it.</p>",
            table("stages", header, lines),
        ]
    )


def _in_stage(profile: Profile, stage: str) -> bool:
    return bool((profile.cells["stage"] == layout.STAGES.index(stage)).any())


def operators_table(profiles: Sequence[Profile], names: Sequence[str]) -> str:
    """Return the table of operators and the functions in them; empty without a row."""
    timed = any(p.time_ns for p in profiles)
    header = ["operator", *_library_head(profiles), "function", "operator calls", "elements"]
    header += ["time in function", "time of operator", "share of operator"] if timed else []
    found: dict[tuple[str, ...], list[list[Cell]]] = {}
    for profile, name in zip(profiles, names, strict=True):
        for row in profile.rows("operator", "function", "dtype", "device"):
            cells = [
                text_cell(row.key["operator"] or "(no operator)", wrap=True),
                *_library(profiles, name),
                text_cell(row.function_name),
                _count(row.operator_calls),
                _count(row.elements),
            ]
            if timed:
                whole = row.operator_time_ns
                part = row.time_ns / whole if whole else None
                cells += [
                    (time_text(row.time_ns), row.time_ns),
                    (time_text(whole), whole) if whole else ("-", ""),
                    (share_text(row.time_ns, whole), "" if part is None else part),
                ]
            found.setdefault(tuple(row.key.values()), []).append(cells)
    rows = [cells for same in found.values() for cells in same]
    if not rows:
        return ""
    return "\n".join(["<h2>Operators</h2>", table("operators", header, rows)])


def cells_table(profiles: Sequence[Profile], names: Sequence[str]) -> str:
    """Return the table of all cells; empty without one."""
    header = ["layer", *_library_head(profiles), "function", "form", "stage", "operator"]
    header += ["calls", "elements", *_RANGE_HEAD, *_SPECIAL_HEAD]
    rows = []
    for profile, name in zip(profiles, names, strict=True):
        for row in profile.rows(*_EVERYTHING):
            rows.append(
                [
                    text_cell(row.key["module"] or NO_MODULE, wrap=True),
                    *_library(profiles, name),
                    text_cell(row.function_name),
                    text_cell(row.key["form"]),
                    text_cell(row.key["stage"]),
                    text_cell(row.key["operator"] or "(no operator)"),
                    _count(row.calls),
                    _count(row.elements),
                    *_range_cells(row),
                    *_special_cells(row),
                ]
            )
    if not rows:
        return ""
    return "\n".join(
        [
            "<h2>Everything</h2>",
            '<p class="hint">One line for each function, form, stage, operator and layer. Forms: '
            "scalar; v4, v8 and v16 take that many elements at once; array takes any number; "
            "operator is a UDF at operator level. Rows that say cuda ran on a GPU, where a "
            "call is one launch.</p>",
            table("cells", header, rows),
        ]
    )
