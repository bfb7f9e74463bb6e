# SPDX-License-Identifier: Apache-2.0
"""A comparison as one page: what was found, and the graph of operators coloured by distance.

The page needs nothing else: style, script and drawing are in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from pytest_udftorch.base.store import store_text
from pytest_udftorch.diagnose.diff.graph import Node
from pytest_udftorch.diagnose.diff.result import Difference
from pytest_udftorch.errors import DiagnosisError

_HERE: Final = Path(__file__).with_name("page")

#: Distances from which an operator has the next colour.
_STEPS: Final = (1e-8, 1e-6, 1e-4, 1e-2)

#: The picture's measures in pixels: names of layers, boxes, and boxes in a row.
_NAMES, _BOX, _COLUMNS = 250, 26, 28

#: Lines of what flows, at most; more would only be black.
_EDGES: Final = 4000


def save_difference_page(difference: Difference, path: Path) -> Path:
    """Write a comparison as a page.

    Raises:
        DiagnosisError: the file cannot be written.
    """
    path = Path(path)
    store_text(path, page(difference), DiagnosisError, "The page")
    return path


def page(difference: Difference) -> str:
    """Return a comparison as HTML."""
    title = f"{difference.a} and {difference.b}"
    # Sentences wrap on a narrow screen; the table of layers scrolls.
    said, _, layers = difference.text().partition("\n\n")
    table = f'\n<pre class="layers">{escape(layers)}</pre>' if layers else ""
    style, script = ((_HERE / n).read_text(encoding="utf-8") for n in ("diff.css", "diff.js"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<pre>{escape(said)}</pre>{table}
{_graph(difference)}
<script>
{script}</script>
</body>
</html>
"""


def _graph(difference: Difference) -> str:
    nodes = difference.graph
    if not nodes:
        if not difference.findings:
            return "<p>There is nothing to draw.</p>"
        return "<p>Operators inside compiled code are not seen, so there is no graph.</p>"
    return f"""<h2>Operators</h2>
<p>A box is an operator, in the order of the run; a line of boxes is a layer. Lines show the way of
what differs, and dashed ones the way to what was found. Layers with the same bits are left out.
Choose a box to see what it gets and who gets what it gives.</p>
{_legend(difference)}
<div class="picture">{_picture(difference)}</div>
<p id="chosen" aria-live="polite">&nbsp;</p>"""


def shade(node: Node) -> str:
    """Return the class of a node's colour."""
    if node.on != "both":
        return f"only-{node.on}"
    if not node.differs:
        return "equal"
    if not node.distance:  # None, or 0: the samples are alike
        return "unknown"
    if not math.isfinite(node.distance):
        return "broken"
    return f"d{sum(node.distance >= step for step in _STEPS)}"


def _legend(difference: Difference) -> str:
    steps = [f"{s:g}" for s in _STEPS]
    words = {
        "equal": "same bits",
        "d0": f"differs, below {steps[0]} of the norm",
        **{f"d{i}": f"{steps[i - 1]} to {steps[i]}" for i in range(1, len(steps))},
        f"d{len(steps)}": f"{steps[-1]} and more",
        "unknown": "differs; how far is not known from samples",
        "broken": "infinite or NaN",
        "only-a": f"only {difference.a}",
        "only-b": f"only {difference.b}",
    }
    used = {shade(node) for node in difference.graph}
    parts = [
        f'<li><svg width="16" height="16"><rect class="{name}" width="16" height="16"/></svg> '
        f"{escape(text)}</li>"
        for name, text in words.items()
        if name in used
    ]
    return f'<ul class="legend">{"".join(parts)}</ul>'


def _rows(nodes: Sequence[Node]) -> dict[str, list[int]]:
    """Return the numbers of the nodes of each layer and phase, in the order of the run."""
    found: dict[str, list[int]] = {}
    for number, node in enumerate(nodes):
        found.setdefault(str(node.place), []).append(number)
    return found


def _picture(difference: Difference) -> str:
    nodes = difference.graph
    named = {f.calls: str(i + 1) for i, f in enumerate(difference.findings)}
    near = _near(difference)
    labels, boxes, at, top, hidden = [], [], {}, 0, [0, 0]

    def tell_hidden() -> None:
        """Say in a line what is left out above it."""
        nonlocal top
        if hidden[0]:
            what = "1 layer" if hidden[0] == 1 else f"{hidden[0]:,} layers"
            many = "1 operator" if hidden[1] == 1 else f"{hidden[1]:,} operators"
            text = f"{what} with the same bits, {many}"
            labels.append(f'<text class="hidden" x="4" y="{top + 17}">{text}</text>')
            top += _BOX
            hidden[:] = 0, 0

    for layer, numbers in _rows(nodes).items():
        if near.isdisjoint(numbers):
            hidden[0] += 1
            hidden[1] += len(numbers)
            continue
        tell_hidden()
        shown = layer if len(layer) <= 38 else f"…{layer[-37:]}"
        labels.append(f'<text x="4" y="{top + 17}">{escape(shown)}</text>')
        for place, number in enumerate(numbers):
            x = _NAMES + place % _COLUMNS * _BOX
            y = top + place // _COLUMNS * _BOX
            at[number] = x + 11, y + 11
            boxes.append(_box(nodes[number], number, x, y, named.get(nodes[number].calls, "")))
        top += -(-len(numbers) // _COLUMNS) * _BOX + 4
    tell_hidden()
    width = _NAMES + _COLUMNS * _BOX
    return (
        f'<svg id="graph" width="{width}" height="{top}" viewBox="0 0 {width} {top}" role="img" '
        f'aria-label="operators by layer, coloured by distance">{"".join(labels)}'
        f"<g>{_lines(nodes, at, set(_findings(difference)))}</g>{''.join(boxes)}</svg>"
    )


def _findings(difference: Difference) -> list[int]:
    """Return the numbers of the nodes that are findings."""
    named = {f.calls for f in difference.findings}
    return [number for number, node in enumerate(difference.graph) if node.calls in named]


def _near(difference: Difference) -> set[int]:
    """Return what is drawn: all that differs or that one side alone calls, and the way to it.

    The way is what the findings get, and what that was made of.
    """
    nodes = difference.graph
    found = {n for n, node in enumerate(nodes) if node.differs or node.on != "both"}
    way = [n for number in _findings(difference) for n in (number, *nodes[number].sources)]
    found |= {s for n in way for s in nodes[n].sources} | set(way)
    return found


def _box(node: Node, number: int, x: int, y: int, finding: str) -> str:
    far = {"a": "only one side calls it", "b": "only one side calls it"}.get(node.on)
    if far is None and node.differs:
        shown = f"{node.distance:.2g} of the norm" if node.distance else "an unknown distance"
        far = (
            f"differs by {shown} (samples), from {'equal' if node.same_inputs else 'other'} inputs"
        )
    about = f"{node.operator} in {node.place}: {far or 'the same bits'}"
    sources = " ".join(map(str, node.sources))
    mark = f'<text x="{x + 11}" y="{y + 16}">{finding}</text>' if finding else ""
    named = " named" if finding else ""
    return (
        f'<g class="box" tabindex="0" data-number="{number}" data-sources="{sources}">'
        f"<title>{escape(about)}</title>"
        f'<rect class="{shade(node)}{named}" x="{x}" y="{y}" width="22" height="22"/>{mark}</g>'
    )


def _lines(nodes: Sequence[Node], at: dict[int, tuple[int, int]], findings: set[int]) -> str:
    """Return the lines along which a difference goes on, and those that lead to the findings."""
    found: list[str] = []
    to = findings | {s for n in findings for s in nodes[n].sources}
    for number, node in enumerate(nodes):
        for source in node.sources:
            leads = number in to
            goes_on = node.differs and nodes[source].differs
            if (leads or goes_on) and source in at and number in at and len(found) < _EDGES:
                (x, y), (to_x, to_y) = at[source], at[number]
                kind = ' class="to"' if leads and not goes_on else ""
                found.append(
                    f'<path{kind} d="M{x} {y}C{x} {(y + to_y) // 2} {to_x} {(y + to_y) // 2} '
                    f'{to_x} {to_y}"/>'
                )
    return "".join(found)
