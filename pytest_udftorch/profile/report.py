"""Profiles as text for a terminal and as one HTML page. Pure functions of their arguments.

The page needs nothing beyond itself: style and script are in it, and its policy forbids it
to load anything. All text that comes from a profile (names of modules, paths) is escaped.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from pytest_udftorch.errors import NoProfileError
from pytest_udftorch.profile.aggregate import (
    KINDS,
    NO_MODULE,
    Kind,
    Profile,
    Row,
    share_text,
    time_text,
    value_text,
)
from pytest_udftorch.records import layout

Side = Literal["in", "out"]
SIDES: Final[tuple[Side, Side]] = ("in", "out")

# Binary exponents where the normal numbers of a format begin, and where it overflows.
# IEEE 754-2019, table 3.5; bfloat16 has the exponents of float32.
_FORMATS: Final = {
    "float32": (-149, -126, 128),
    "bfloat16": (-133, -126, 128),
    "half": (-24, -14, 16),
}
# Of a UDF at operator level no values are known, and no dtype.
_OVERFLOW: Final = {"float32": 128.0, "float64": 1024.0, "any": math.inf}

_KIND_TITLES: Final[dict[Kind, str]] = {
    "nan": "First NaN made",
    "inf": "First infinity made",
    "subnormal": "First subnormal made",
}

_TOP: Final = 8
_EVERYTHING: Final = ("module", "function", "dtype", "device", "form", "stage", "operator")


# Terminal ----------------------------------------------------------------------------


def terminal(profiles: Sequence[Profile], top: int = _TOP) -> str:
    """Return the short form: a table per library, the first special values, what is missing."""
    parts = []
    for profile in profiles:
        lines = [profile.title(), profile.table("function", top)]
        for kind in _KIND_TITLES:
            first = profile.first(kind)
            if first is not None:
                lines.append(f"first {KINDS[kind]} made: {first}")
        lines += [f"note: {note}" for note in profile.notes]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


# What a row says about ranges --------------------------------------------------------


def _histogram(row: Row, side: Side) -> NDArray[np.uint64]:
    """Return [sign, bin] counts; index 0 of the first axis holds positive values."""
    return np.asarray(row.cell[f"hist_{side}"])


def largest(row: Row) -> float:
    """Return log2 of the largest finite magnitude that went in or out; -inf if all was 0."""
    found = -math.inf
    for side in SIDES:
        limits = row.limits(side) or (0.0, 0.0)
        finite = [abs(x) for x in limits if math.isfinite(x) and x]
        if finite:
            found = max(found, math.log2(max(finite)))
        if not all(map(math.isfinite, limits)):
            # The largest finite one is behind the infinity: its bin was perhaps sampled.
            bins = np.flatnonzero(_histogram(row, side).any(0))
            if len(bins):
                found = max(found, float(bins[-1] - layout.HIST_OFFSET))
    return found


def headroom(row: Row) -> float:
    """Return how many binades lie between the largest magnitude and overflow; 0 if it is over."""
    if any(row.special(side, "inf") for side in SIDES):
        return 0.0
    return max(0.0, _OVERFLOW[row.key["dtype"]] - largest(row))


def half_shares(row: Row) -> tuple[float, float] | None:
    """Return which shares of the sampled values are too large and too small for half.

    Too small: below its smallest normal number, zeros not counted. None without a sample.
    """
    counts = sum(_histogram(row, side).sum(0) for side in SIDES)
    total = int(np.sum(counts))
    if not total:
        return None
    _, normal, over = _FORMATS["half"]
    counts = np.asarray(counts)
    high = int(counts[over + layout.HIST_OFFSET :].sum())
    low = int(counts[: normal + layout.HIST_OFFSET].sum())
    return high / total, low / total


# HTML --------------------------------------------------------------------------------


TITLE: Final = "Math functions in PyTorch"


def html(profiles: Sequence[Profile], *, title: str = TITLE) -> str:
    """Return the page of profiles.

    Args:
        profiles: one for each library; with several they stand beside each other.
        title: of the page.

    Raises:
        NoProfileError: there is none.
    """
    return page([heading(title), *sections(profiles)], title=title)


def sections(profiles: Sequence[Profile]) -> list[str]:
    """Return the parts of the page of profiles, without the heading.

    Raises:
        NoProfileError: there is none.
    """
    if not profiles:
        raise NoProfileError("There is no profile to report on.")
    names = _names(profiles)
    return [
        _about(profiles),
        _notes(profiles, names),
        _findings(profiles, names),
        _ranges(profiles, names),
        _layers(profiles, names),
        _functions(profiles, names),
        _stages(profiles, names),
        _operators(profiles, names),
        _cells(profiles, names),
        _how(profiles),
    ]


def heading(title: str) -> str:
    """Return the heading of a page."""
    return f"<h1>{escape(title)}</h1>"


def page(sections: Sequence[str], *, title: str) -> str:
    """Return a page of ready-made parts, with style and script in it.

    Args:
        sections: HTML; empty ones are left out.
        title: text of the browser's window.
    """
    folder = files("pytest_udftorch.profile") / "page"
    style = (folder / "report.css").read_text(encoding="utf-8")
    script = (folder / "report.js").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">",
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            *(s for s in sections if s),
            f"<script>\n{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _names(profiles: Sequence[Profile]) -> list[str]:
    """Return a short name for each profile, escaped."""
    return [escape(p.label) for p in profiles]


def _about(profiles: Sequence[Profile]) -> str:
    lines = ['<div class="about">']
    for profile in profiles:
        start = min(int(p["clocks"]["realtime_ns"]) for p in profile.processes)
        when = ""
        if start:
            moment = datetime.datetime.fromtimestamp(start / 1e9, datetime.UTC)
            when = f"; {moment:%Y-%m-%d %H:%M} UTC"
        wall = f"; {time_text(profile.wall_ns)}" if profile.wall_ns else ""
        lines.append(f"<p>{escape(profile.title())}{when}{wall}</p>")
    return "\n".join([*lines, "</div>"])


def _notes(profiles: Sequence[Profile], names: Sequence[str]) -> str:
    notes = [
        f"<p>{name}: {escape(note)}</p>"
        for profile, name in zip(profiles, names, strict=True)
        for note in profile.notes
    ]
    return "\n".join(['<div class="notes" role="note">', *notes, "</div>"]) if notes else ""


# The findings


def _findings(profiles: Sequence[Profile], names: Sequence[str]) -> str:
    cards = []
    for profile, name in zip(profiles, names, strict=True):
        whose = f"{name}: " if len(profiles) > 1 else ""
        cards += [_first_card(profile, kind, whose) for kind in _KIND_TITLES]
        cards.append(_headroom_card(profile, whose))
    return "\n".join(['<div class="findings">', *cards, "</div>"])


def _card(kind: str, title: str, lead: str, *lines: str) -> str:
    rest = "".join(f"<p>{line}</p>" for line in lines)
    return f'<div class="finding {kind}"><h3>{title}</h3><p class="lead">{lead}</p>{rest}</div>'


def _first_card(profile: Profile, kind: Kind, whose: str) -> str:
    title = whose + _KIND_TITLES[kind]
    first = profile.first(kind)
    if first is not None:
        return _card(
            "bad",
            title,
            f"{escape(first.function)} in {escape(first.module or NO_MODULE)}",
            f"{escape(first.operator or 'no operator')}, {first.stage}, {first.dtype}, "
            f"{first.after_s:.3f} s after the start",
        )
    came = [r for r in profile.layers() if r.special("in", kind)]
    if came:
        where = ", ".join(dict.fromkeys(escape(r.key["module"] or NO_MODULE) for r in came[:3]))
        more = " and others" if len(came) > 3 else ""
        count = sum(r.special("in", kind) for r in came)
        return _card(
            "", title, "by no watched function", f"{count:,} came in from elsewhere: {where}{more}"
        )
    return _card("good", title, "none")


def _headroom_card(profile: Profile, whose: str) -> str:
    title = f"{whose}Nearest to overflow"
    rows = [r for r in profile.layers() if math.isfinite(largest(r))]
    rows = [r for r in rows if headroom(r) > 0]
    if not rows:
        return _card("", title, "-")
    row = min(rows, key=headroom)
    left = headroom(row)
    return _card(
        "bad" if left < 8 else "",
        title,
        f"{escape(row.key['function'])} in {escape(row.key['module'] or NO_MODULE)}",
        f"up to {_power(largest(row))}, {left:.1f} binades below the overflow of "
        f"{row.key['dtype']}",
    )


_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(exponent: float) -> str:
    """Return 2 to a rounded exponent as text."""
    return "2" + str(math.floor(exponent + 0.5)).translate(_SUPERSCRIPTS)


# The chart of ranges


class _Axis:
    """Places exponents on the width of the chart, in percent.

    The edges have room for signs and zeros on the left, infinities and NaNs on the right. The
    middle, where nearly all values lie, has the same share of the width whatever the ends are.
    """

    middle = (-40, 24)
    first, last = 7.0, 91.5
    tail = 18.0

    zero = 3.0
    inf = 92.0
    nan = 97.0
    wide = 3.0

    def __init__(self, profiles: Iterable[Profile]) -> None:
        used = np.zeros(layout.HIST_BINS, bool)
        for profile in profiles:
            for side in SIDES:
                used |= profile.cells[f"hist_{side}"].any((0, 1))
        bins = np.flatnonzero(used)
        # float32 always fits; what lies beyond comes from float64.
        self.low: int = min(-152, *(int(b) - layout.HIST_OFFSET for b in bins[:1]), 0)
        self.high: int = max(144, *(int(b) - layout.HIST_OFFSET + 1 for b in bins[-1:]), 0)

    def x(self, exponent: float) -> float:
        left, right = self.middle
        stops = (self.low, left, right, self.high)
        places = (self.first, self.first + self.tail, self.last - self.tail, self.last)
        return float(np.interp(exponent, stops, places))

    def width(self, low: float, high: float) -> float:
        return self.x(high) - self.x(low)

    def band(self, kind: str, low: float, high: float, y: float = 0, height: str = "100%") -> str:
        return (
            f'<rect class="{kind}" x="{self.x(low):.3f}%" y="{y}" '
            f'width="{self.width(low, high):.3f}%" height="{height}"/>'
        )


def _ranges(profiles: Sequence[Profile], names: Sequence[str]) -> str:
    axis = _Axis(profiles)
    groups: dict[tuple[str, ...], list[Row | None]] = {}
    for number, profile in enumerate(profiles):
        for row in profile.layers():
            if row.key["dtype"] == "any":
                continue  # of a whole operator only calls and time are known
            same = groups.setdefault(tuple(row.key.values()), [None] * len(profiles))
            same[number] = row
    if not groups:
        return "<h2>Ranges</h2>\n<p>No watched function was called.</p>"
    total = sum(p.time_ns for p in profiles)
    orders = [("use", "first use"), ("headroom", "nearest to overflow"), ("elements", "elements")]
    if total:
        orders.append(("time", "time"))
    options = "".join(f'<option value="{o}">{text}</option>' for o, text in orders)
    rows = [
        _chart_row(axis, key, found, names, number)
        for number, (key, found) in enumerate(groups.items())
    ]
    return "\n".join(
        [
            "<h2>Ranges by layer</h2>",
            '<p class="hint">Every value that went into and came out of a function, by its binary '
            "exponent; the middle of the axis is drawn wider. The nearer to the right edge, the "
            "nearer to overflow. A darker shade is a larger share of the values (logarithmic); "
            "+ and − are the signs; 0, ∞ and NaN have places of their own.</p>",
            '<div class="controls">'
            f'<label>Order <select id="order">{options}</select></label>'
            '<label>Filter <input id="filter" type="search" placeholder="layer or function" '
            'autocomplete="off"></label></div>',
            _bands(axis),
            '<div class="chart" id="ranges">',
            _chart_head(axis),
            *rows,
            "</div>",
            _legend(),
        ]
    )


def _bands(axis: _Axis) -> str:
    """Return the shaded regions that every row of the chart shows behind its values."""
    _, half_normal, half_over = _FORMATS["half"]
    _, normal, over = _FORMATS["float32"]
    parts = [
        axis.band("subnormal", axis.low, normal),
        axis.band("half-low", normal, half_normal),
        axis.band("half-high", half_over, over),
        axis.band("overflow", over, axis.high),
    ]
    for exponent, kind in ((normal, ""), (over, ""), (half_normal, " half"), (half_over, " half")):
        x = f"{axis.x(exponent):.3f}%"
        parts.append(f'<line class="guide{kind}" x1="{x}" x2="{x}" y1="0" y2="100%"/>')
    for left in (axis.zero, axis.inf, axis.nan):
        parts.append(f'<rect class="gutter" x="{left}%" y="0" width="{axis.wide}%" height="100%"/>')
    return (
        '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
        f'<g id="bands">{"".join(parts)}</g></defs></svg>'
    )


def _chart_head(axis: _Axis) -> str:
    height = 16
    parts = []
    for number, (name, (tiniest, normal, over)) in enumerate(_FORMATS.items()):
        y = number * height + 2
        pieces = [
            ("vanish", axis.low, tiniest),
            ("subnormal", tiniest, normal),
            ("normal", normal, over),
            ("overflow", over, axis.high),
        ]
        parts += [axis.band(kind, a, b, y, "13") for kind, a, b in pieces]
        parts.append(
            f'<text class="format" x="{axis.x(1):.3f}%" y="{y + 10}" text-anchor="middle">'
            f"{name}</text>"
        )
    y = 3 * height + 12
    middle = axis.wide / 2
    for left, text in ((axis.zero, "0"), (axis.inf, "∞"), (axis.nan, "NaN")):
        parts.append(f'<text x="{left + middle}%" y="{y}" text-anchor="middle">{text}</text>')
    for exponent in (-126, -40, -24, -14, 0, 16, 24, 80, 128):
        x = f"{axis.x(exponent):.3f}%"
        minor = ' class="minor"' if exponent in (-40, -24, 24, 80) else ""
        parts.append(f'<text{minor} x="{x}" y="{y}" text-anchor="middle">{_power(exponent)}</text>')
    y += height - 1
    for power in (-38, -12, -6, -3, 0, 3, 6, 24, 38):
        minor = ' class="minor"' if power in (-6, 6, 24) else ""
        text = f"1e{_minus(str(power))}" if power else "1"
        parts.append(
            f'<text{minor} x="{axis.x(power * math.log2(10)):.3f}%" y="{y}" '
            f'text-anchor="middle">{text}</text>'
        )
    return (
        '<div class="chart-head"><div>layer and function</div>'
        f'<svg height="{y + 5}" role="img" aria-label="Binary exponents, and the regions of '
        f'float32, bfloat16 and half">{"".join(parts)}</svg>'
        "<div>least and largest value</div></div>"
    )


def _legend() -> str:
    def sample(kind: str) -> str:
        return f'<svg aria-hidden="true"><rect class="{kind}" width="34" height="12"/></svg>'

    tick = (
        '<svg aria-hidden="true"><line class="span in" x1="4" x2="30" y1="6" y2="6"/>'
        '<line class="tick in" x1="30" x2="30" y1="0" y2="12"/></svg>'
    )
    items = [
        (sample("in"), "inputs"),
        (sample("out"), "outputs"),
        (tick, "largest magnitude, exact"),
        (sample("normal"), "normal numbers"),
        (sample("subnormal"), "subnormal"),
        (sample("vanish"), "too small, becomes 0"),
        (sample("overflow"), "overflow"),
        (sample("half-low"), "normal in float32, subnormal or 0 in half"),
        (sample("half-high"), "finite in float32, overflow in half"),
    ]
    return (
        '<ul class="legend">'
        + "".join(f"<li>{picture}{text}</li>" for picture, text in items)
        + "</ul>"
    )


_STRIP: Final = 9  # pixels
_GAP: Final = 2


def _chart_row(
    axis: _Axis,
    key: tuple[str, ...],
    found: Sequence[Row | None],
    names: Sequence[str],
    number: int,
) -> str:
    rows = [row for row in found if row is not None]
    lines = []
    for name, row in zip(names, found, strict=True):
        if row is None:
            continue
        strips: list[str] = []
        limits = [f'<span class="library">{name}</span>'] if len(found) > 1 else []
        y = 3
        for side in SIDES:
            drawn, height = _strips(axis, row, side, y)
            strips.append(drawn)
            y += height
            limits.append(_limits_text(row, side))
        lines.append(
            f'<svg height="{y + 1}"><use href="#bands"/>{"".join(strips)}</svg>'
            f'<div class="limits">{"".join(limits)}</div>'
        )
    what = _function(rows[0])
    counts = list(dict.fromkeys(f"{r.operator_calls:,}" for r in rows))
    calls = " and ".join(counts) + (" operator call" if counts == ["1"] else " operator calls")
    shown = escape(key[0] or NO_MODULE)
    data = {
        "use": number,
        "headroom": min(map(headroom, rows)),
        "elements": -sum(r.elements for r in rows),
        "time": -sum(r.time_ns for r in rows),
    }
    attributes = " ".join(f'data-{k}="{v:g}"' for k, v in data.items())
    return (
        f'<div class="chart-row" style="--libraries: {len(lines)}" '
        f'data-name="{shown} {escape(what)}" {attributes}>'
        f'<div class="where"><span class="code">{shown}</span> <div class="what"><b>'
        f"{escape(what)}</b>, {calls}</div></div>"
        f"{''.join(lines)}</div>"
    )


def _limits_text(row: Row, side: Side) -> str:
    limits = row.limits(side)
    text = "no numbers" if limits is None else " … ".join(_minus(value_text(x)) for x in limits)
    extra = [
        f"{row.special(side, kind):,} {KINDS[kind]}"
        for kind in ("subnormal", "inf", "nan")
        if row.special(side, kind)
    ]
    more = f', <span class="bad-text">{", ".join(extra)}</span>' if extra else ""
    return f'<span class="{side}">{side}</span><span>{text}{more}</span>'


def _minus(text: str) -> str:
    return text.replace("-", "−").replace("inf", "∞")


def _strips(axis: _Axis, row: Row, side: Side, y: int) -> tuple[str, int]:
    """Return the strips of one side, one for each sign that occurs, and their height."""
    histogram = _histogram(row, side)
    limits = row.limits(side)
    total = int(histogram.sum())
    most = int(histogram.max()) if total else 0
    parts: list[str] = []
    top = y
    for sign, mark in ((0, "+"), (1, "−")):
        extreme = None if limits is None else limits[1 - sign]
        reached = extreme is not None and (extreme < 0 if sign else extreme > 0)
        infinite = int(row.cell[f"{side}_{'neg' if sign else 'pos'}_inf"])
        bins = np.flatnonzero(histogram[sign])
        if not (reached or infinite or len(bins)):
            continue
        parts.append(f'<text class="sign" x="0.4%" y="{y + _STRIP - 1}">{mark}</text>')
        if reached and extreme is not None and math.isfinite(extreme):
            parts.append(_span(axis, side, bins, math.log2(abs(extreme)), y))
        for b in bins:
            count = int(histogram[sign, b])
            exponent = int(b) - layout.HIST_OFFSET
            shade = 0.18 + 0.82 * math.log1p(count) / math.log1p(most)
            width = max(0.12, axis.width(exponent, exponent + 1) - 0.03)
            tip = (
                f"{side} {mark}{_power(exponent)} to {mark}{_power(exponent + 1)}: "
                f"{share_text(count, total)} of the sampled values"
            )
            parts.append(
                f'<rect class="{side}" x="{axis.x(exponent):.3f}%" y="{y}" width="{width:.3f}%" '
                f'height="{_STRIP}" fill-opacity="{shade:.2f}"><title>{tip}</title></rect>'
            )
        if infinite:
            parts.append(_gutter(axis.inf, "bad", y, _STRIP, f"{infinite:,} times {mark}∞ {side}"))
        y += _STRIP + _GAP
    if y == top:  # nothing but zeros and NaNs
        y += _STRIP + _GAP
    height = y - top - _GAP
    zeros, nans = row.special(side, "zero"), row.special(side, "nan")
    if zeros:
        parts.append(_gutter(axis.zero, side, top, height, f"{zeros:,} zeros {side}"))
    if nans:
        parts.append(_gutter(axis.nan, "bad", top, height, f"{nans:,} NaNs {side}"))
    return "".join(parts), y - top


def _span(axis: _Axis, side: Side, bins: NDArray[np.intp], largest: float, y: int) -> str:
    """Return a line up to the exact largest magnitude, which the sample may have missed."""
    middle = y + _STRIP / 2
    end = f"{axis.x(largest):.3f}%"
    line = ""
    if len(bins):
        start = f"{axis.x(float(bins[0] - layout.HIST_OFFSET)):.3f}%"
        line = f'<line class="span {side}" x1="{start}" x2="{end}" y1="{middle}" y2="{middle}"/>'
    return (
        f'{line}<line class="tick {side}" x1="{end}" x2="{end}" y1="{y - 1}" '
        f'y2="{y + _STRIP + 1}"/>'
    )


def _gutter(left: float, kind: str, y: int, height: int, tip: str) -> str:
    return (
        f'<rect class="{kind}" x="{left}%" y="{y}" width="{_Axis.wide}%" height="{height}" '
        f'rx="2"><title>{tip}</title></rect>'
    )


# Tables

Cell = tuple[str, Any]  # HTML, and what to sort by


def text_cell(text: str, *, wrap: bool = False) -> Cell:
    """Return a cell of text, escaped, that sorts as text."""
    return escape(text), (text, "text wrap" if wrap else "text")


def _count(number: int) -> Cell:
    return f"{number:,}", number


def _value(value: float | None) -> Cell:
    return _minus(value_text(value)), "" if value is None else value


def _sort_key(value: float | str) -> str:
    # Infinity is the word that JavaScript's Number reads.
    return str(value).replace("inf", "Infinity")


def table(name: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table that sorts; columns whose first cell is text are flush left."""
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
    """Return the cell with the library's name where there are several."""
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


def _layers(profiles: Sequence[Profile], names: Sequence[str]) -> str:
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
                text_cell(_function(row)),
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


def _function(row: Row) -> str:
    function, dtype = row.key["function"], row.key["dtype"]
    text = function if dtype in ("float32", "any") else f"{function} {dtype}"
    return text if row.key["device"] == layout.DEVICES[0] else f"{text} {row.key['device']}"


def _time_cells(row: Row, profile: Profile) -> list[Cell]:
    share = row.time_ns / profile.time_ns if profile.time_ns else 0.0
    return [
        (time_text(row.time_ns), row.time_ns),
        (share_text(row.time_ns, profile.time_ns), share),
    ]


def _functions(profiles: Sequence[Profile], names: Sequence[str]) -> str:
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
                text_cell(_function(row)),
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
            found.setdefault(_function(row), []).append(
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


def _stages(profiles: Sequence[Profile], names: Sequence[str]) -> str:
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
            rows.setdefault(_function(row), {})[row.key["stage"]] = row
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


def _operators(profiles: Sequence[Profile], names: Sequence[str]) -> str:
    timed = any(p.time_ns for p in profiles)
    header = ["operator", *_library_head(profiles), "function", "operator calls", "elements"]
    header += ["time in function", "time of operator", "share of operator"] if timed else []
    found: dict[tuple[str, ...], list[list[Cell]]] = {}
    for profile, name in zip(profiles, names, strict=True):
        for row in profile.rows("operator", "function", "dtype", "device"):
            cells = [
                text_cell(row.key["operator"] or "(no operator)", wrap=True),
                *_library(profiles, name),
                text_cell(_function(row)),
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


def _cells(profiles: Sequence[Profile], names: Sequence[str]) -> str:
    header = ["layer", *_library_head(profiles), "function", "form", "stage", "operator"]
    header += ["calls", "elements", *_RANGE_HEAD, *_SPECIAL_HEAD]
    rows = []
    for profile, name in zip(profiles, names, strict=True):
        for row in profile.rows(*_EVERYTHING):
            rows.append(
                [
                    text_cell(row.key["module"] or NO_MODULE, wrap=True),
                    *_library(profiles, name),
                    text_cell(_function(row)),
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
            "scalar; v4, v8 and v16 take so many elements at once; array takes any number; "
            "operator is a UDF at operator level. What ran on a GPU says cuda; a call is a launch "
            "there.</p>",
            table("cells", header, rows),
        ]
    )


def _how(profiles: Sequence[Profile]) -> str:
    strides = {int(p.meta["stride"]) for p in profiles if p.meta.get("stride")}
    sampled = ""
    if strides - {1}:
        sampled = (
            " The histograms come from one block in "
            f"{' or '.join(map(str, sorted(strides)))}; least and largest values and the counts "
            "of special values come from all."
        )
    return (
        "<footer><p>Made by pytest_udftorch. Counts and ranges were taken inside the "
        f"functions that PyTorch called.{sampled}</p></footer>"
    )
