# SPDX-License-Identifier: Apache-2.0
"""Drawings of stored results, as SVG."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any, Final

#: Marker and colour of each contender; corem's stand out.
STYLES: Final = {
    "corem": ("o", "#c1272d"),
    "corem vector": ("D", "#e8848a"),
    "vml": ("s", "#1f77b4"),
    "sleef u10": ("^", "#2ca02c"),
    "sleef u15": ("^", "#2ca02c"),
    "intel-cr": ("v", "#7f4fa3"),
    "glibc": ("s", "#1f77b4"),
    "llvm-libc": ("x", "#8c6d31"),
}

#: Those of them that round some results wrongly.
APPROXIMATE: Final = ("vml", "sleef u10", "sleef u15", "glibc")

TICKS_NS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)

TICKS_RATIO: Final = (0.2, 0.5, 1, 2, 5)

Numbers = dict[str, dict[str, dict[str, float]]]


def digest(numbers: Numbers) -> str:
    """Return what a drawing carries to say which numbers it shows."""
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def speed_numbers(document: dict[str, Any]) -> Numbers:
    """Return level -> function -> contender -> ns per element, to three digits."""
    numbers: Numbers = {}
    for function, entry in document["functions"].items():
        for level, contenders in entry.items():
            numbers.setdefault(level, {})[function] = {
                name: float(f"{times['ns']:.3g}")
                for name, times in contenders.items()
                if name in STYLES
            }
    return numbers


def best_numbers(document: dict[str, Any]) -> Numbers:
    """Return level -> function -> the fastest approximate library -> corem's time over its."""
    numbers: Numbers = {}
    for level, functions in speed_numbers(document).items():
        for function, times in functions.items():
            others = {name: times[name] for name in APPROXIMATE if name in times}
            if "corem" in times and others:
                best = min(others, key=others.__getitem__)
                ratio = float(f"{times['corem'] / others[best]:.3g}")
                numbers.setdefault(level, {})[function] = {best: ratio}
    return numbers


def _label(
    axis: Any, title: str, quantity: str, limits: tuple[float, float], ticks: tuple[float, ...]
) -> None:
    """Give a panel its logarithmic axis and its title."""
    axis.set_xscale("log")
    axis.set_xlim(*limits)
    axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axis.minorticks_off()
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(quantity, fontsize=9)
    axis.grid(True, color="#dddddd", linewidth=0.5)
    axis.tick_params(labelsize=8)


def _finished(figure: Any, rows: list[str], shown: dict[str, Any], source: str) -> str:
    """Name the rows and the markers of a figure's panels, and return it as SVG."""
    figure.axes[0].set_yticks(range(len(rows)), rows)
    figure.axes[0].invert_yaxis()
    figure.legend(list(shown.values()), list(shown), loc="lower center",
                  ncols=len(shown), fontsize=8, frameon=False)  # fmt: skip
    figure.subplots_adjust(left=0.07, right=0.99, top=0.94, bottom=0.13, wspace=0.08)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Source": source})
    return out.getvalue()


def best_svg(numbers: Numbers) -> str:
    """Draw corem's time over that of the fastest approximate library, a panel for each level."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings = {"svg.fonttype": "none", "svg.hashsalt": "best", "font.family": "sans-serif"}
    with mpl.rc_context(settings):
        rows = list(dict.fromkeys(f for functions in numbers.values() for f in functions))
        figure = Figure(figsize=(11, 0.28 * len(rows) + 1.6))
        axes = figure.subplots(1, len(numbers), sharey=True, squeeze=False)[0]
        shown = {}
        for axis, (level, functions) in zip(axes, numbers.items(), strict=True):
            for function, entry in functions.items():
                for name, ratio in entry.items():
                    place = rows.index(function)
                    axis.plot([1, ratio], [place, place], color="#bbbbbb", zorder=1)
                    marker, colour = STYLES[name]
                    shown[name] = axis.plot(
                        ratio, place, linestyle="none", marker=marker, color=colour, markersize=5
                    )[0]
            axis.axvline(1, color="#c1272d", linewidth=1)
            _label(axis, level, "corem's time / its time", (0.2, 6), TICKS_RATIO)
        return _finished(figure, rows, shown, digest(numbers))


def speed_svg(numbers: Numbers) -> str:
    """Draw nanoseconds per element, one panel for each level, one row for each function."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # No font is measured or embedded, no date and no random identifier gets in.
    settings = {"svg.fonttype": "none", "svg.hashsalt": "speed", "font.family": "sans-serif"}
    with mpl.rc_context(settings):
        rows = list(next(iter(numbers.values())))
        figure = Figure(figsize=(11, 0.28 * len(rows) + 1.6))
        axes = figure.subplots(1, len(numbers), sharey=True, squeeze=False)[0]
        shown = {}
        for axis, (level, functions) in zip(axes, numbers.items(), strict=True):
            for name, (marker, colour) in STYLES.items():
                points = [
                    (functions[f][name], rows.index(f))
                    for f in rows
                    if name in functions.get(f, {})
                ]
                if points:
                    shown[name] = axis.plot(
                        *zip(*points, strict=True), linestyle="none", marker=marker,
                        color=colour, markersize=5, zorder=3 if name.startswith("corem") else 2,
                    )[0]  # fmt: skip
            _label(axis, level, "ns per element", (0.1, 30), TICKS_NS)
        return _finished(figure, rows, shown, digest(numbers))
