# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG for the report: lines and dots, bars, densities. Pure functions.

Colors are classes of page/report.css, so that a chart follows the reader's light or dark
scheme. A series is told by its marker as well as by its color; bars past the last color are
outlined. All text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

__all__ = ["Axis", "Bar", "Series", "bars", "density", "legend", "plot"]

#: Colors in page/report.css.
COLORS: Final = 8

_WIDTH: Final = 640
_HEIGHT: Final = 350
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 46


@dataclass(frozen=True)
class Series:
    """Points of one name.

    Attributes:
        name: for the legend and the tips.
        points: x and y.
        joined: whether a line goes through the points.
        color: number of the color; two series may share one and differ in their markers.
        marker: number of the marker.
        tips: a text for each point; by default its numbers.
    """

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = True
    color: int = 0
    marker: int = 0
    tips: Sequence[str] = ()


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    Attributes:
        label: name and unit.
        log: whether equal factors have equal lengths.
        guide: a value that gets a line of its own, such as 1 for speed-ups.
        show: number to text.
        ticks: values to mark, or None to have them chosen.
    """

    label: str
    log: bool = False
    guide: float | None = None
    show: Callable[[float], str] | None = None
    ticks: Sequence[float] | None = None


def number(value: float) -> str:
    """Return a number of about three digits, with thousands set apart."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _linear_ticks(low: float, high: float) -> list[float]:
    step = 10 ** math.floor(math.log10((high - low) / 4))
    for factor in (1, 2, 2.5, 5, 10):
        if (high - low) / (step * factor) <= 6:
            step *= factor
            break
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = math.log10(high / low)
    factors: tuple[float, ...] = (1.0, 2.0, 5.0) if decades < 3 else (1.0,)
    if decades < 0.7:
        factors = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
    stride = max(1, math.ceil(decades / 6))
    found = [
        f * 10.0**e
        for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, stride)
        for f in factors
    ]
    return [t for t in found if low * 0.999 <= t <= high * 1.001]


class _Scale:
    """Places values of one axis between two pixels."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float) -> None:
        used = [*values, *([] if axis.guide is None else [axis.guide])]
        low, high = min(used), max(used)
        if axis.log:
            factor = max((high / low) ** 0.05, 1.03)
            low, high = low / factor, high * factor
        else:
            margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
            # Bars and times begin at nothing.
            low = 0.0 if 0 <= low < 0.4 * high else low - margin
            high += margin
        self.axis, self.low, self.high = axis, low, high
        self.start, self.end = start, end
        choose = _log_ticks if axis.log else _linear_ticks
        given = axis.ticks if axis.ticks is not None else choose(low, high)
        self.ticks = [t for t in given if low <= t <= high]

    def __call__(self, value: float) -> float:
        if self.axis.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def text(self, value: float) -> str:
        return escape((self.axis.show or number)(value))


def _frame(x: _Scale, y: _Scale, bottom: float) -> list[str]:
    """Return grid, ticks, guides and labels."""
    right = _WIDTH - _RIGHT
    parts = []
    last = -math.inf
    for tick in x.ticks:
        place = x(tick)
        parts.append(
            f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{bottom}"/>'
        )
        width = 7.2 * len(x.text(tick))
        if place - width / 2 > last + 8:
            parts.append(
                f'<text x="{place:.1f}" y="{bottom + 16}" text-anchor="middle">{x.text(tick)}'
                "</text>"
            )
            last = place + width / 2
    for tick in y.ticks:
        place = y(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{place:.1f}" y2="{place:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{y.text(tick)}</text>'
        )
    if y.axis.guide is not None:
        place = y(y.axis.guide)
        parts.append(
            f'<line class="guide" x1="{_LEFT}" x2="{right}" y1="{place:.1f}" y2="{place:.1f}"/>'
        )
    if x.axis.guide is not None:
        place = x(x.axis.guide)
        parts.append(
            f'<line class="guide" x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{bottom}"/>'
        )
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text class="label" x="{(_LEFT + right) / 2}" y="{bottom + 36}" text-anchor="middle">'
        f"{escape(x.axis.label)}</text>"
        f'<text class="label" x="14" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle})">{escape(y.axis.label)}</text>'
    )
    return parts


def _marker(kind: int, x: float, y: float, size: float = 4) -> str:
    """Return one of four shapes with its middle at x and y."""
    a, b = f"{x - size:.1f}", f"{y - size:.1f}"
    if kind % 4 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}"'
    if kind % 4 == 1:
        return f'<rect x="{a}" y="{b}" width="{2 * size}" height="{2 * size}"'
    corners: list[tuple[float, float]] = (
        [(0, -1.2), (1.1, 0.8), (-1.1, 0.8)]
        if kind % 4 == 2
        else [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)]
    )
    points = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}"'


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def plot(series: Sequence[Series], x: Axis, y: Axis, *, diagonal: bool = False) -> str:
    """Return a chart of lines or dots.

    Args:
        series: with at least one point among them; positive values on a logarithmic axis.
        x: across.
        y: up.
        diagonal: draw the line where both axes have one value.
    """
    across = [p[0] for s in series for p in s.points]
    up = [p[1] for s in series for p in s.points]
    bottom = _HEIGHT - _BOTTOM
    if diagonal:
        across = up = [*across, *up]
    place_x = _Scale(x, across, _LEFT, _WIDTH - _RIGHT)
    place_y = _Scale(y, up, bottom, _TOP)
    parts = _frame(place_x, place_y, bottom)
    if diagonal:
        low, high = place_x.low, place_x.high
        parts.append(
            f'<line class="guide" x1="{place_x(low):.1f}" y1="{place_y(low):.1f}" '
            f'x2="{place_x(high):.1f}" y2="{place_y(high):.1f}"/>'
        )
    for one in series:
        places = [(place_x(a), place_y(b)) for a, b in one.points]
        color = f"c{one.color % COLORS}"
        if one.joined and len(places) > 1:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
            parts.append(f'<polyline class="{color}" points="{path}"/>')
        size = 4 if one.joined or len(places) < 60 else 2.5
        for number_, (a, b) in enumerate(places):
            tip = (
                one.tips[number_]
                if one.tips
                else f"{place_x.text(one.points[number_][0])}: "
                f"{place_y.text(one.points[number_][1])}"
            )
            parts.append(
                f'{_marker(one.marker, a, b, size)} class="{color}">'
                f"<title>{escape(one.name)}, {escape(tip)}</title>"
                f"{_closing(one.marker)}"
            )
    return _svg(_HEIGHT, parts, f"{y.label} against {x.label}")


def _closing(marker: int) -> str:
    return ("</circle>", "</rect>", "</polygon>", "</polygon>")[marker % 4]


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        value: its length.
        text: at its end.
        color: number of the color; the first ones come again as outlines.
        name: for the tip.
        mark: a value to mark across the bar, such as a published one.
    """

    value: float
    text: str
    color: int
    name: str
    mark: float | None = None


def _of_bar(color: int) -> str:
    return f"c{color % COLORS}{' outlined' * (color >= COLORS)}"


def bars(groups: Sequence[tuple[str, Sequence[Bar]]], x: Axis) -> str:
    """Return horizontal bars in named groups, from the axis's guide or from 0.

    Args:
        groups: name and bars; at least one bar among them.
        x: of the values.
    """
    everything = [bar for _, found in groups for bar in found]
    left = _LEFT + 80
    values = [b.value for b in everything] + [b.mark for b in everything if b.mark is not None]
    scale = _Scale(x, [*values, *([] if x.log else [0.0])], left, _WIDTH - 70)
    base = scale(x.guide if x.guide is not None else scale.low if x.log else 0.0)
    parts = []
    y = float(_TOP)
    thick = 11
    for name, found in groups:
        middle = y + thick * len(found) / 2 + 4
        parts.append(
            f'<text class="label" x="{left - 8}" y="{middle:.1f}" text-anchor="end">'
            f"{escape(name)}</text>"
        )
        for bar in found:
            end = scale(bar.value)
            start, width = min(base, end), abs(end - base)
            shown = max(end, base, scale(bar.mark) if bar.mark is not None else 0) + 4
            parts.append(
                f'<rect class="{_of_bar(bar.color)}" x="{start:.1f}" y="{y}" '
                f'width="{max(width, 0.5):.1f}" height="{thick - 2}">'
                f"<title>{escape(name)}, {escape(bar.name)}: {escape(bar.text)}</title></rect>"
                f'<text class="value" x="{shown:.1f}" y="{y + thick - 3}">'
                f"{escape(bar.text)}</text>"
            )
            if bar.mark is not None:
                place = scale(bar.mark)
                parts.append(
                    f'<line class="published" x1="{place:.1f}" x2="{place:.1f}" y1="{y - 2}" '
                    f'y2="{y + thick}"><title>{escape(name)}, published: {number(bar.mark)}'
                    "</title></line>"
                )
            y += thick
        y += 9
    grid = []
    for tick in scale.ticks:
        place = scale(tick)
        kind = "guide" if tick == x.guide else "grid"
        grid.append(
            f'<line class="{kind}" x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{y}"/>'
            f'<text x="{place:.1f}" y="{y + 14}" text-anchor="middle">{scale.text(tick)}</text>'
        )
    label = (
        f'<text class="label" x="{(left + _WIDTH - 70) / 2}" y="{y + 32}" text-anchor="middle">'
        f"{escape(x.label)}</text>"
    )
    return _svg(y + 40, [*grid, *parts, label], x.label)


def density(samples: Sequence[tuple[str, Sequence[float]]], x: Axis) -> str:
    """Return densities of positive values over a logarithmic axis, with a rug of the values.

    Gaussian kernels over the logarithm, of Silverman's width (Density Estimation for
    Statistics and Data Analysis, 1986, equation 3.31).

    Args:
        samples: name and values, at least one value each; colored in their order.
        x: of the values; logarithmic.
    """
    everything = [v for _, values in samples for v in values]
    bottom = _HEIGHT - _BOTTOM
    rug = 8 * len(samples)
    scale = _Scale(x, everything, _LEFT, _WIDTH - _RIGHT)
    steps = 160
    span = math.log(scale.high / scale.low)
    curves = []
    for name, values in samples:
        logs = sorted(math.log(v) for v in values)
        middle = sum(logs) / len(logs)
        deviation = math.sqrt(sum((v - middle) ** 2 for v in logs) / len(logs))
        quartiles = logs[(3 * len(logs)) // 4] - logs[len(logs) // 4]
        width = min(deviation, quartiles / 1.34) if quartiles else deviation
        width = max(0.9 * width * len(logs) ** -0.2, span / 100)
        curve = []
        for step in range(steps + 1):
            at = math.log(scale.low) + span * step / steps
            total = sum(math.exp(-0.5 * ((at - v) / width) ** 2) for v in logs)
            curve.append((at, total / (len(logs) * width * math.sqrt(2 * math.pi))))
        curves.append((name, curve, values))
    up = _Scale(
        Axis("density of log speed-up", ticks=()),
        [0.0, *(d for _, curve, _ in curves for _, d in curve)],
        bottom - rug,
        _TOP,
    )
    parts = _frame(scale, up, bottom)
    for n, (name, curve, values) in enumerate(curves):
        path = " ".join(f"{scale(math.exp(a)):.1f},{up(d):.1f}" for a, d in curve)
        parts.append(
            f'<polyline class="c{n % COLORS}" points="{path}"><title>{escape(name)}</title>'
            "</polyline>"
        )
        y = bottom - rug + 8 * n + 1
        for v in values:
            parts.append(
                f'<rect class="c{n % COLORS} rug" x="{scale(v) - 0.6:.1f}" y="{y}" width="1.2" '
                f'height="6"><title>{escape(name)}: {number(v)}</title></rect>'
            )
    return _svg(_HEIGHT, parts, f"Density of {x.label}")


def legend(
    entries: Sequence[tuple[str, int, int | None]],
    *,
    joined: bool = True,
    published: bool = False,
) -> str:
    """Return a list of names with their colors and markers.

    Args:
        entries: name, color, and marker, or None for a bar.
        joined: whether lines go through the markers.
        published: whether the mark of published values is explained too.
    """
    items = []
    for name, color, marker in entries:
        shape = (
            f'<rect class="{_of_bar(color)}" x="2" y="1" width="30" height="10"/>'
            if marker is None
            else f'<polyline class="c{color % COLORS}" points="2,6 32,6"/>' * joined
            + f'{_marker(marker, 17, 6)} class="c{color % COLORS}"/>'
        )
        items.append(f'<li><svg aria-hidden="true">{shape}</svg>{escape(name)}</li>')
    if published:
        mark = '<line class="published" x1="17" x2="17" y1="0" y2="12"/>'
        items.append(f'<li><svg aria-hidden="true">{mark}</svg>published in the thesis</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'
