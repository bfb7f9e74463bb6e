# SPDX-License-Identifier: Apache-2.0
"""The chart of ranges: every value of a layer's function by its binary exponent, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pytest_udftorch.base.units import power_text, share_text, typeset, value_text
from pytest_udftorch.swap.records import layout
from pytest_udftorch.swap.records.totals import KINDS
from pytest_udftorch.watch.profile.ranges import FORMATS, SIDES, Side, headroom, histogram_of

if TYPE_CHECKING:
    from pytest_udftorch.swap.records.profile import Profile
    from pytest_udftorch.swap.records.totals import Row


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
        self.low = min([-152, *(int(b) - layout.HIST_OFFSET for b in bins[:1])])
        self.high = max([144, *(int(b) - layout.HIST_OFFSET + 1 for b in bins[-1:])])

    def x(self, exponent: float) -> float:
        left, right = self.middle
        stops = (self.low, left, right, self.high)
        places = (self.first, self.first + self.tail, self.last - self.tail, self.last)
        return float(np.interp(exponent, stops, places))

    def band(self, kind: str, low: float, high: float, y: float = 0, height: str = "100%") -> str:
        return (
            f'<rect class="{kind}" x="{self.x(low):.3f}%" y="{y}" '
            f'width="{self.x(high) - self.x(low):.3f}%" height="{height}"/>'
        )


def ranges_chart(profiles: Sequence[Profile]) -> str:
    """Return the chart with its axis, controls and legend: a row for each layer and function."""
    axis = _Axis(profiles)
    groups: dict[tuple[str, ...], list[Row | None]] = {}
    for number, profile in enumerate(profiles):
        for row in profile.layers():
            if row.key["dtype"] == "any":
                continue  # only calls and time are known of a whole operator
            same = groups.setdefault(tuple(row.key.values()), [None] * len(profiles))
            same[number] = row
    if not groups:
        return "<h2>Ranges</h2>\n<p>No watched function was called.</p>"
    orders = {"use": "first use", "headroom": "nearest to overflow", "elements": "elements"}
    if any(p.time_ns for p in profiles):
        orders["time"] = "time"
    options = "".join(f'<option value="{o}">{text}</option>' for o, text in orders.items())
    return "\n".join(
        [
            "<h2>Ranges by layer</h2>",
            '<p class="hint">Every value that went into and came out of a function, by its binary '
            "exponent; the middle of the axis is drawn wider. The closer to the right edge, the "
            "closer to overflow. A darker shade is a larger share of the values (logarithmic); "
            "+ and − are the signs; 0, ∞ and NaN have places of their own.</p>",
            '<div class="controls">'
            f'<label>Order <select id="order">{options}</select></label>'
            '<label>Filter <input id="filter" type="search" placeholder="layer or function" '
            'autocomplete="off"></label></div>',
            _bands(axis),
            '<div class="chart" id="ranges">',
            _chart_head(axis),
            *(_chart_row(axis, profiles, rows, n) for n, rows in enumerate(groups.values())),
            "</div>",
            _legend(),
        ]
    )


def _bands(axis: _Axis) -> str:
    """Return the shaded regions that every row of the chart shows behind its values."""
    _, half_normal, half_over = FORMATS["half"]
    _, normal, over = FORMATS["float32"]
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
    for number, (name, (tiniest, normal, over)) in enumerate(FORMATS.items()):
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

    def label(x: float, text: str, minor: bool = False) -> None:
        kind = ' class="minor"' if minor else ""
        parts.append(f'<text{kind} x="{x:.3f}%" y="{y}" text-anchor="middle">{text}</text>')

    y = 3 * height + 12
    for left, text in ((axis.zero, "0"), (axis.inf, "∞"), (axis.nan, "NaN")):
        label(left + axis.wide / 2, text)
    for exponent in (-126, -40, -24, -14, 0, 16, 24, 80, 128):
        label(axis.x(exponent), power_text(exponent), exponent in (-40, -24, 24, 80))
    y += height - 1
    for power in (-38, -12, -6, -3, 0, 3, 6, 24, 38):
        text = f"1e{typeset(str(power))}" if power else "1"
        label(axis.x(power * math.log2(10)), text, power in (-6, 6, 24))
    return (
        '<div class="chart-head"><div>layer and function</div>'
        f'<svg height="{y + 5}" role="img" aria-label="Binary exponents, and the regions of '
        f'float32, bfloat16 and half">{"".join(parts)}</svg>'
        "<div>least and largest value</div></div>"
    )


def _legend() -> str:
    tick = (
        '<line class="in" x1="4" x2="30" y1="6" y2="6"/>'
        '<line class="tick in" x1="30" x2="30" y1="0" y2="12"/>'
    )
    items = {
        "in": "inputs",
        "out": "outputs",
        "tick": "largest magnitude, exact",
        "normal": "normal numbers",
        "subnormal": "subnormal",
        "vanish": "too small, becomes 0",
        "overflow": "overflow",
        "half-low": "normal in float32, subnormal or 0 in half",
        "half-high": "finite in float32, overflow in half",
    }
    parts = []
    for kind, text in items.items():
        shape = tick if kind == "tick" else f'<rect class="{kind}" width="34" height="12"/>'
        parts.append(f'<li><svg aria-hidden="true">{shape}</svg>{text}</li>')
    return f'<ul class="legend">{"".join(parts)}</ul>'


_STRIP: Final = 9  # pixels
_GAP: Final = 2


def _chart_row(
    axis: _Axis,
    profiles: Sequence[Profile],
    found: Sequence[Row | None],
    number: int,
) -> str:
    rows = [row for row in found if row is not None]
    lines = []
    for profile, row in zip(profiles, found, strict=True):
        if row is None:
            continue
        strips: list[str] = []
        library = f'<span class="library">{escape(profile.label)}</span>'
        limits = [library] if len(found) > 1 else []
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
    what = rows[0].function_name
    counts = list(dict.fromkeys(f"{r.operator_calls:,}" for r in rows))
    calls = f"{' and '.join(counts)} operator call{'' if counts == ['1'] else 's'}"
    shown = escape(rows[0].layer)
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
    text = " … ".join(typeset(value_text(x)) for x in row.limits(side) or ()) or "no numbers"
    extra = [
        f"{row.special(side, kind):,} {KINDS[kind]}"
        for kind in ("subnormal", "inf", "nan")
        if row.special(side, kind)
    ]
    more = f', <span class="bad-text">{", ".join(extra)}</span>' if extra else ""
    return f'<span class="{side}">{side}</span><span>{text}{more}</span>'


def _strips(axis: _Axis, row: Row, side: Side, y: int) -> tuple[str, int]:
    """Return the strips of one side, one for each sign that occurs, and their height."""
    histogram = histogram_of(row, side)
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
            width = max(0.12, axis.x(exponent + 1) - axis.x(exponent) - 0.03)
            tip = (
                f"{side} {mark}{power_text(exponent)} to {mark}{power_text(exponent + 1)}: "
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
        line = f'<line class="{side}" x1="{start}" x2="{end}" y1="{middle}" y2="{middle}"/>'
    return (
        f'{line}<line class="tick {side}" x1="{end}" x2="{end}" y1="{y - 1}" '
        f'y2="{y + _STRIP + 1}"/>'
    )


def _gutter(left: float, kind: str, y: int, height: int, tip: str) -> str:
    return (
        f'<rect class="{kind}" x="{left}%" y="{y}" width="{_Axis.wide}%" height="{height}" '
        f'rx="2"><title>{tip}</title></rect>'
    )
