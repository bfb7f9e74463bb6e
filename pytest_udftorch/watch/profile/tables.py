# SPDX-License-Identifier: Apache-2.0
"""The tables of a profile's page: sortable, with the library's name if there are several."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from pytest_udftorch.base.units import share_text, time_text, typeset, value_text
from pytest_udftorch.swap.records.totals import KINDS, NO_OPERATOR
from pytest_udftorch.watch.profile.ranges import SIDES, half_shares, headroom

if TYPE_CHECKING:
    from pytest_udftorch.swap.records.profile import Profile
    from pytest_udftorch.swap.records.totals import Row

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


def _section(
    name: str,
    about: Sequence[str],
    header: Sequence[str],
    profiles: Sequence[Profile],
    rows: Callable[[Profile], list[Row]],
    cells: Callable[[Row, int], list[Cell]],
) -> str:
    """Return the HTML ``about``, and a table with the id ``name``; empty without a row.

    ``cells`` gets a row of a profile and the profile's index. If there are several profiles, the
    rows of one key stand together, and the second column is the library.
    """
    groups: dict[tuple[str, ...], list[list[Cell]]] = {}
    for number, profile in enumerate(profiles):
        library = [text_cell(profile.label)] if len(profiles) > 1 else []
        for row in rows(profile):
            first, *rest = cells(row, number)
            groups.setdefault(tuple(row.key.values()), []).append([first, *library, *rest])
    if not groups:
        return ""
    if len(profiles) > 1:
        header = [header[0], "library", *header[1:]]
    return "\n".join([*about, table(name, header, [line for g in groups.values() for line in g])])


def _range_cells(row: Row) -> list[Cell]:
    return [_value(x) for side in SIDES for x in row.limits(side) or (None, None)]


def _special_cells(row: Row) -> list[Cell]:
    cells = []
    for kind in KINDS:
        before, after = (row.special(side, kind) for side in SIDES)
        shown = f'{before:,}<span class="arrow">→</span>{after:,}'
        if after and kind in ("inf", "nan"):
            shown = f'<span class="bad-text">{shown}</span>'
        cells.append((shown if before or after else "-", after))
    return cells


def _time_cells(row: Row, profile: Profile) -> list[Cell]:
    share = row.time_ns / profile.time_ns if profile.time_ns else 0.0
    return [
        (time_text(row.time_ns), row.time_ns),
        (share_text(row.time_ns, profile.time_ns), share),
    ]


_NOTHING: Final[Cell] = ("-", "")
_RANGE_HEAD: Final = ("in min", "in max", "out min", "out max")
_SPECIAL_HEAD: Final = tuple(f"{name} in→out" for name in KINDS.values())


def layers_table(profiles: Sequence[Profile]) -> str:
    """Return the table of layers and functions; empty without a row."""
    timed = any(p.time_ns for p in profiles)

    def cells(row: Row, number: int) -> list[Cell]:
        left = headroom(row)
        shares = half_shares(row) or (None, None)
        return [
            text_cell(row.layer, wrap=True),
            text_cell(row.function_name),
            _count(row.operator_calls),
            _count(row.elements),
            *_range_cells(row),
            (f"{left:.1f}", left) if math.isfinite(left) else _NOTHING,
            *((share_text(s, 1), s) if s is not None else _NOTHING for s in shares),
            *(_time_cells(row, profiles[number]) if timed else []),
        ]

    about = (
        "<h2>Layers</h2>",
        '<p class="hint">Click a heading to sort. Binades to overflow: the factors of two between '
        "the largest magnitude, in or out, and the overflow of the dtype. Over and under half: "
        "sampled values beyond half's largest and below its smallest normal number.</p>",
    )
    header = ["layer", "function", "operator calls", "elements", *_RANGE_HEAD]
    header += ["binades to overflow", "over half", "under half"]
    header += ["time", "share"] if timed else []
    return _section("layers", about, header, profiles, lambda p: p.layers(), cells)


def functions_table(profiles: Sequence[Profile]) -> str:
    """Return the table of functions, with their times if there are any; empty without a row."""
    timed = any(p.time_ns for p in profiles)
    longest = max((row.time_ns for p in profiles for row in _functions(p)), default=0)

    def cells(row: Row, number: int) -> list[Cell]:
        times = []
        if timed:
            width = 80 * row.time_ns / longest if longest else 0
            second = " second" if number % 2 else ""
            bar = f'<span class="bar{second}" style="width:{width:.1f}px"></span>'
            (time, key), share = _time_cells(row, profiles[number])
            each = row.time_ns / row.elements if row.elements else 0.0
            time = f'<span class="track">{bar}</span><span>{time}</span>'
            times = [(time, key), share, (time_text(each), each)]
        return [
            text_cell(row.function_name),
            _count(row.operator_calls),
            _count(row.calls),
            _count(row.elements),
            *times,
            *_range_cells(row),
            *_special_cells(row),
        ]

    hint = "A call is one of the library's scalar, vector or array function. " + (
        "Time is summed over threads; the share is of all watched functions together."
        if timed
        else "No times: they need the depth timed or events."
    )
    shares = [
        f"<p>{escape(p.label)}: the functions took {time_text(p.time_ns)} of "
        f"{time_text(p.wall_ns)}, {share_text(p.time_ns, p.wall_ns)}.</p>"
        for p in profiles
        if p.wall_ns and p.time_ns
    ]
    about = ("<h2>Functions</h2>", f'<p class="hint">{hint}</p>', *shares)
    header = ["function", "operator calls", "calls", "elements"]
    header += ["time", "share", "time per element"] if timed else []
    header += [*_RANGE_HEAD, *_SPECIAL_HEAD]
    return _section("functions", about, header, profiles, _functions, cells)


def _functions(profile: Profile) -> list[Row]:
    return profile.rows("function", "dtype", "device")


def stages_table(profiles: Sequence[Profile]) -> str:
    """Return the table of the stages of a training step; empty without a row."""
    parts = [
        {tuple(row.key.values()): row for row in p.rows("function", "dtype", "device", "stage")}
        for p in profiles
    ]
    used = {stage for rows in parts for *_, stage in rows}
    # The order in which a training step has them.
    order = [s for s in ("forward", "backward", "optimizer", "other") if s in used]

    def cells(row: Row, number: int) -> list[Cell]:
        found = [text_cell(row.function_name)]
        for stage in order:
            here = parts[number].get((*row.key.values(), stage))
            found.append(_count(here.operator_calls if here else 0))
            found.append(_count(here.elements if here else 0))
        return found

    about = (
        "<h2>Stages</h2>",
        '<p class="hint">Operator calls in which the function was used, and elements that went '
        "through it.</p>",
    )
    header = ["function"]
    for stage in order:
        header += [f"{stage}: operator calls", "elements"]
    return _section("stages", about, header, profiles, _functions, cells)


def operators_table(profiles: Sequence[Profile]) -> str:
    """Return the table of operators and the functions in them; empty without a row."""
    timed = any(p.time_ns for p in profiles)

    def rows(profile: Profile) -> list[Row]:
        return profile.rows("operator", "function", "dtype", "device")

    def cells(row: Row, number: int) -> list[Cell]:
        found = [
            text_cell(row.key["operator"] or NO_OPERATOR, wrap=True),
            text_cell(row.function_name),
            _count(row.operator_calls),
            _count(row.elements),
        ]
        if timed:
            whole = row.operator_time_ns
            found += [
                (time_text(row.time_ns), row.time_ns),
                (time_text(whole), whole) if whole else _NOTHING,
                (share_text(row.time_ns, whole), row.time_ns / whole if whole else ""),
            ]
        return found

    header = ["operator", "function", "operator calls", "elements"]
    header += ["time in function", "time of operator", "share of operator"] if timed else []
    return _section("operators", ("<h2>Operators</h2>",), header, profiles, rows, cells)


@dataclass(frozen=True)
class TestFigures:
    """What the functions did in one test.

    Attributes:
        name: the id of the test.
        outcome: ``passed``, ``failed`` or ``skipped``.
        summary: as :meth:`Profile.summary` returns it.
    """

    __test__ = False  # not a test, whatever its name

    name: str
    outcome: str
    summary: Mapping[str, Any]


def tests_table(tests: Sequence[TestFigures]) -> str:
    """Return the table of the tests of a run; empty without one."""
    if not tests:
        return ""
    lines = []
    for test in tests:
        functions = test.summary["functions"]
        failed = test.outcome == "failed"
        outcome: Cell = text_cell(test.outcome)
        if failed:
            outcome = (f'<span class="bad-text">{outcome[0]}</span>', outcome[1])
        first = test.summary["first"]
        made = "; ".join(f"{KINDS[k]}: {where}" for k, where in first.items() if k != "subnormal")
        lines.append(
            [
                text_cell(test.name, wrap=True),
                text_cell(str(test.summary["library"])),
                outcome,
                text_cell(", ".join(dict.fromkeys(f["function"] for f in functions)) or "-"),
                _count(sum(f["operator_calls"] for f in functions)),
                _count(sum(f["elements"] for f in functions)),
                text_cell(made or "-", wrap=True),
            ]
        )
    header = ["test", "library", "result", "functions", "operator calls", "elements"]
    header += ["first NaN or infinity made"]
    about = (
        "<h2>Tests</h2>",
        '<p class="hint">What each test called, its fixtures included. An operator counts once for '
        "each function in it.</p>",
    )
    return "\n".join([*about, table("tests", header, lines)])


def cells_table(profiles: Sequence[Profile]) -> str:
    """Return the table of all cells; empty without one."""

    def rows(profile: Profile) -> list[Row]:
        return profile.rows(*_EVERYTHING)

    def cells(row: Row, number: int) -> list[Cell]:
        return [
            text_cell(row.layer, wrap=True),
            text_cell(row.function_name),
            text_cell(row.key["form"]),
            text_cell(row.key["stage"]),
            text_cell(row.key["operator"] or NO_OPERATOR),
            _count(row.calls),
            _count(row.elements),
            *_range_cells(row),
            *_special_cells(row),
        ]

    about = (
        "<h2>Everything</h2>",
        '<p class="hint">One line for each function, form, stage, operator and layer. Forms: '
        "scalar; v4, v8 and v16 take that many elements at once; array takes any number; operator "
        "is a UDF at operator level. Rows that say cuda ran on a GPU, where a call is one launch."
        "</p>",
    )
    header = ["layer", "function", "form", "stage", "operator", "calls", "elements"]
    header += [*_RANGE_HEAD, *_SPECIAL_HEAD]
    return _section("cells", about, header, profiles, rows, cells)
