# SPDX-License-Identifier: Apache-2.0
"""Charts for the report, drawn by matplotlib: lines and dots, bars, densities.

Each chart is an SVG element with its legend. Variables of page/report.css take the place of the
colors, so that a chart follows the reader's light or dark scheme. Series differ in their markers as
well as in their colors; bars past the last color are outlined. Points and bars have tips.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from scipy.stats import iqr, norm

__all__ = ["Axis", "Bar", "bars", "density", "plot"]

_COLORS: Final = (
    "#1f66c9", "#b8570a", "#1d7a3e", "#8a3ab9", "#c01f2e", "#00788a", "#806300", "#5d6674",
)  # fmt: skip
_MARKERS: Final = "os^D"
_TEXT, _FAINT, _LINE = "#1c2026", "#5d6673", "#d5d9e0"

#: What page/report.css calls each color.
_VARIABLES: Final = {c: f"c{n}" for n, c in enumerate(_COLORS)} | {
    _TEXT: "text", _FAINT: "faint", _LINE: "line",
}  # fmt: skip

_SETTINGS: Final = {
    # Text stays text, and no random identifier gets in.
    "svg.fonttype": "none",
    "svg.hashsalt": "charts",
    # A dollar sign in a layer's name does not start a formula.
    "text.parse_math": False,
    "axes.axisbelow": True,
    "axes.edgecolor": _LINE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": _TEXT,
    "figure.facecolor": "none",
    "font.size": 8.5,
    "grid.color": _LINE,
    "legend.frameon": False,
    "lines.markersize": 5,
    "text.color": _TEXT,
    "xtick.labelcolor": _FAINT,
    "xtick.major.size": 0,
    "ytick.labelcolor": _FAINT,
    "ytick.major.size": 0,
}

#: Inches.
_WIDTH, _HEIGHT = 6.7, 3.6


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    Attributes:
        label: name and unit.
        log: whether equal factors have equal lengths.
        guide: a value that gets a line of its own, such as 1 for speed-ups.
        ticks: values to mark, or None to have them chosen.
    """

    label: str
    log: bool = False
    guide: float | None = None
    ticks: Sequence[float] | None = None


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        value: its length.
        text: at its end.
        name: for the legend and the tip.
        mark: a value to mark across the bar, such as a published one.
    """

    value: float
    text: str
    name: str
    mark: float | None = None


def number(value: float, _position: int | None = None) -> str:
    """Return a number of about three digits, with thousands set apart; matplotlib adds a place."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _axes(height: float = _HEIGHT) -> Axes:
    return Figure((_WIDTH, height), layout="constrained").add_subplot()


def _scale(axes: Axes, name: str, axis: Axis) -> None:
    """Give the axis x or y of a chart that is drawn its guide, its range and its ticks."""
    if axis.guide is not None:
        (axes.axvline if name == "x" else axes.axhline)(axis.guide, color=_FAINT, linewidth=1)
    axes.set(**{f"{name}label": axis.label, f"{name}scale": "log" if axis.log else "linear"})
    low, high = getattr(axes.dataLim, f"interval{name}")
    if axis.log and low <= 0:
        raise ValueError(f"{low} is not above 0, as a logarithmic axis needs")
    drawn = axes.xaxis if name == "x" else axes.yaxis
    if axis.ticks is not None:
        drawn.set_ticks([tick for tick in axis.ticks if low <= tick <= high])
    elif axis.log:
        drawn.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    else:
        drawn.set_major_locator(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
        # Bars and times begin at nothing.
        if 0 <= low < 0.4 * high:
            axes.set(**{f"{name}lim": (0, None)})
    drawn.set_major_formatter(number)
    drawn.minorticks_off()


def _svg(
    axes: Axes, handles: Mapping[str, Artist], label: str, tips: Mapping[str, Sequence[str]]
) -> str:
    """Return a chart with its legend.

    Args:
        axes: with everything drawn.
        handles: what the legend shows of each name.
        label: of the whole, for readers that see no pictures.
        tips: for each artist's gid a text for each of its markers, or one for the artist.
    """
    figure = axes.figure
    columns = max(1, 100 // (8 + max(map(len, handles))))
    figure.set_figheight(figure.get_figheight() + 0.17 * math.ceil(len(handles) / columns))
    figure.legend(handles.values(), handles, loc="outside lower left", ncols=columns)
    out = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(out, format="svg", metadata=metadata)
    # Within a page of HTML, SVG has no namespaces.
    root = ET.fromstring(re.sub(r' xmlns(:xlink)?="[^"]*"|xlink:(?=href)', "", out.getvalue()))
    root.attrib = {
        "class": "plot", "viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label,
    }  # fmt: skip
    for element in list(root.iter()):
        # Nothing is drawn outside the axes.
        element.attrib.pop("clip-path", None)
        # Other charts of the page have groups of the same names.
        name = element.attrib.pop("id", None) if element.tag == "g" else None
        if name in tips:
            shapes = list(element.iter("use")) or [element]
            for shape, tip in zip(shapes, tips[name], strict=True):
                ET.SubElement(shape, "title").text = tip
    text = ET.tostring(root, encoding="unicode")
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var(--{variable})")
    # The page chooses the family.
    return re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)


@mpl.rc_context(_SETTINGS)
def plot(
    series: Mapping[str, Sequence[Sequence[Any]]],
    x: Axis,
    y: Axis,
    *,
    joined: bool = True,
    diagonal: bool = False,
    names: Sequence[str] = (),
) -> str:
    """Return a chart of lines or dots.

    Args:
        series: for each name its points: x, y and, for the tip, what stands at x if not a number.
            There is at least one point, and the values are positive on a logarithmic axis.
        x: across.
        y: up.
        joined: whether a line goes through the points of a series.
        diagonal: draw the line where both axes have one value.
        names: in the order of their colors, if not that of the series.
    """
    axes = _axes()
    order = list(names or series)
    handles, tips = {}, {}
    for name, points in series.items():
        turn = order.index(name)
        color = _COLORS[turn % len(_COLORS)]
        gid = f"series{turn}"
        across, up = [p[0] for p in points], [p[1] for p in points]
        (handles[name],) = axes.plot(
            across, up, color=color, gid=gid, linestyle="-" if joined else "none",
            marker=_MARKERS[(turn + turn // len(_COLORS)) % len(_MARKERS)],
            markersize=5 if joined or len(points) < 60 else 3,
        )  # fmt: skip
        tips[gid] = [
            f"{name}, {what[0] if what else number(a)}: {number(b)}" for a, b, *what in points
        ]
    if diagonal:
        both = [*axes.dataLim.intervalx, *axes.dataLim.intervaly]
        axes.plot([min(both), max(both)], [min(both), max(both)], color=_FAINT, linewidth=1)
    _scale(axes, "x", x)
    _scale(axes, "y", y)
    return _svg(axes, handles, f"{y.label} against {x.label}", tips)


@mpl.rc_context(_SETTINGS)
def bars(groups: Sequence[tuple[str, Sequence[Bar]]], x: Axis) -> str:
    """Return horizontal bars in named groups, from the axis's guide or from 0.

    Args:
        groups: name and bars; at least one bar among them.
        x: of the values; linear.
    """
    count = sum(len(found) for _, found in groups)
    axes = _axes(0.9 + 0.14 * count + 0.12 * len(groups))
    base = x.guide or 0.0
    handles, tips, middles = {}, {}, []
    place = 0.0
    for group, found in groups:
        middles.append(place + (len(found) - 1) / 2)
        for bar in found:
            turn = list(handles).index(bar.name) if bar.name in handles else len(handles)
            color = _COLORS[turn % len(_COLORS)]
            gid = f"bar{len(tips)}"
            (shape,) = axes.barh(
                place, bar.value - base, left=base, gid=gid, edgecolor=color,
                facecolor=(color, 0.2 if turn >= len(_COLORS) else 1),
            )  # fmt: skip
            handles.setdefault(bar.name, shape)
            tips[gid] = [f"{group}, {bar.name}: {bar.text}"]
            if bar.mark is not None:
                gid = f"mark{len(tips)}"
                mark = axes.vlines(
                    bar.mark, place - 0.6, place + 0.6, color=_TEXT, linewidth=2, gid=gid
                )
                tips[gid] = [f"{group}, published: {number(bar.mark)}"]
            end = max(bar.value, base, bar.mark or base)
            axes.annotate(
                bar.text, (end, place), (3, 0), textcoords="offset points", va="center", size=7
            )
            place += 1
        place += 1
    if any(name.startswith("mark") for name in tips):
        handles["published"] = mark
    axes.set_yticks(middles, ["\n".join(textwrap.wrap(name, 24)) for name, _ in groups])
    axes.tick_params("y", labelcolor=_TEXT)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(place - 1.2, -0.8)
    _scale(axes, "x", x)
    return _svg(axes, handles, x.label, tips)


@mpl.rc_context(_SETTINGS)
def density(samples: Mapping[str, Sequence[float]], x: Axis) -> str:
    """Return densities of positive values over a logarithmic axis, with a rug of the values.

    Gaussian kernels over the logarithm, of Silverman's width (Density Estimation for
    Statistics and Data Analysis, 1986, equation 3.31).

    Args:
        samples: for each name its values, at least one.
        x: of the values; logarithmic.
    """
    axes = _axes()
    logs = {name: np.log(values) for name, values in samples.items()}
    everything = np.concatenate(list(logs.values()))
    margin = max(0.05 * np.ptp(everything), 0.03)
    at = np.linspace(everything.min() - margin, everything.max() + margin, 161)
    handles = {}
    for turn, (name, values) in enumerate(logs.items()):
        width = 0.9 * min(values.std(), iqr(values) / 1.34 or np.inf) * len(values) ** -0.2
        width = max(width, np.ptp(at) / 100)
        color = _COLORS[turn % len(_COLORS)]
        (handles[name],) = axes.plot(
            np.exp(at), norm.pdf(at[:, None], values, width).mean(axis=1), color=color
        )
        # Rows of their own, in the axes' height.
        axes.plot(
            np.exp(values), np.full(len(values), 0.03 + 0.04 * turn), "|", color=color, alpha=0.55,
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip
    _scale(axes, "x", x)
    _scale(axes, "y", Axis("density of log speed-up", ticks=()))
    axes.set_ylim(bottom=-0.05 * len(samples) * axes.dataLim.y1)
    return _svg(axes, handles, f"Density of {x.label}", {})
