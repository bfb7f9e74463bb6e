# SPDX-License-Identifier: Apache-2.0
"""What rewriting made of a graph: counts before and after, the rules that fired, and a picture."""

from __future__ import annotations

import html
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from torch import fx
from torch.utils.flop_counter import FlopCounterMode

from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.templates import Firing, own


@dataclass(frozen=True)
class Counts:
    """What a graph asks of a machine in one call.

    Attributes:
        operators: calls of operators, views included.
        kernels: calls that compute: all but views.
        bytes_moved: what these read and write, each tensor of theirs once.
        flops: multiplications and additions of products and convolutions, as torch's
            ``FlopCounterMode`` counts them.
        intermediates: tensors that are computed and not returned.
        intermediate_bytes: their size.
        peak_bytes: the most that inputs and results need at once, each until it is read last.
    """

    operators: int
    kernels: int
    bytes_moved: int
    flops: int
    intermediates: int
    intermediate_bytes: int
    peak_bytes: int


def _size(values: Sequence[Any]) -> int:
    return sum(v.numel() * v.element_size() for v in values)


def count(module: fx.GraphModule) -> Counts:
    """Count what a graph asks for; its nodes hold fake tensors."""
    nodes = [n for n in graphs.calls(module.graph) if n.target is not operator.getitem]
    kernels = [n for n in nodes if not graphs.is_view(n)]
    ends = {graphs.base_of(n) for n in graphs.outputs(module.graph) if isinstance(n, fx.Node)}
    between = [r for n in kernels for r in graphs.results(n) if r not in ends]
    moved = sum(
        _size(graphs.tensors(n)) + sum(_size(graphs.tensors(i)) for i in n.all_input_nodes)
        for n in kernels
    )
    with FlopCounterMode(display=False) as flops:
        graphs.propagate(module)
    return Counts(
        len(nodes),
        len(kernels),
        moved,
        flops.get_total_flops(),
        len(between),
        sum(_size(graphs.tensors(n)) for n in between),
        _peak(module.graph),
    )


def _peak(graph: fx.Graph) -> int:
    """Return the most bytes that a graph's tensors need at once; inputs stay to the end."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        last.update(dict.fromkeys(map(graphs.base_of, node.all_input_nodes), node))
    now = sum(_size(graphs.tensors(n)) for n in graphs.placeholders(graph))
    most = now
    for node in graphs.calls(graph):
        if graphs.base_of(node) is node:
            now += _size(graphs.tensors(node))
        most = max(most, now)
        gone = {graphs.base_of(i) for i in node.all_input_nodes}
        now -= sum(
            _size(graphs.tensors(n)) for n in gone if last[n] is node and n.op == "call_function"
        )
    return most


@dataclass(frozen=True)
class Picture:
    """The nodes and edges of a graph, for drawing.

    Attributes:
        nodes: identifier -> text, and whether a rule made the node.
        edges: pairs of identifiers.
    """

    nodes: dict[str, tuple[str, bool]]
    edges: tuple[tuple[str, str], ...]

    def dot(self) -> str:
        """Return the graph in the language of Graphviz."""
        lines = ["digraph {", "  node [shape=box, fontname=sans-serif, style=filled];"]
        for name, (text, new) in self.nodes.items():
            label = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            colour = "#ffd9a0" if new else "#eef2f6"
            lines.append(f'  "{name}" [label="{label}", fillcolor="{colour}"];')
        lines += [f'  "{a}" -> "{b}";' for a, b in self.edges]
        return "\n".join([*lines, "}"]) + "\n"

    def svg(self) -> str:
        """Return the graph as a picture: a row for each step, counted from the inputs."""
        rows: dict[str, int] = {}
        above: dict[str, list[str]] = {name: [] for name in self.nodes}
        for a, b in self.edges:
            above[b].append(a)
        for name in self.nodes:  # in the order of the graph
            rows[name] = max((rows[a] + 1 for a in above[name]), default=0)
        filled: dict[int, int] = {}
        places: dict[str, tuple[int, int]] = {}
        for name, row in rows.items():
            places[name] = (10 + 190 * filled.get(row, 0), 10 + 60 * row)
            filled[row] = filled.get(row, 0) + 1
        width = 10 + 190 * max(filled.values(), default=1)
        height = 10 + 60 * (max(rows.values(), default=0) + 1)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="11">'
        ]
        for a, b in self.edges:
            (x, y), (u, v) = places[a], places[b]
            parts.append(
                f'<line x1="{x + 90}" y1="{y + 36}" x2="{u + 90}" y2="{v}" stroke="#8795a5"/>'
            )
        for name, (text, new) in self.nodes.items():
            x, y = places[name]
            colour = "#ffd9a0" if new else "#eef2f6"
            parts.append(
                f'<rect x="{x}" y="{y}" width="180" height="36" rx="4" fill="{colour}" '
                'stroke="#8795a5"/>'
            )
            for number, line in enumerate(text.split("\n")[:2]):
                parts.append(
                    f'<text x="{x + 6}" y="{y + 15 + 14 * number}">{html.escape(line[:30])}</text>'
                )
        return "\n".join([*parts, "</svg>"]) + "\n"


def picture(module: fx.GraphModule, old: frozenset[str] = frozenset()) -> Picture:
    """Return what to draw of a graph; nodes whose names are not among ``old`` are new."""
    nodes = {}
    for node in module.graph.nodes:
        if node.op == "output" or not (node.users or node.op == "call_function"):
            continue
        shapes = ", ".join("×".join(map(str, t.shape)) or "()" for t in graphs.tensors(node))
        what = graphs.packet_name(node) or str(getattr(node.target, "__name__", node.target))
        fresh = bool(old) and node.op == "call_function" and node.name not in old
        nodes[node.name] = (f"{what}\n{shapes}", fresh)
    edges = tuple(
        (a.name, node.name)
        for node in module.graph.nodes
        if node.name in nodes
        for a in node.all_input_nodes
    )
    return Picture(nodes, edges)


def _counted(fired: Sequence[Firing]) -> dict[str, int]:
    """Return how often each rule fired."""
    return dict(Counter(firing.rule for firing in fired))


#: The backend whose own rules are the templates.
TEMPLATES_ALONE: Final = "udf_templates"


@dataclass(repr=False)
class GraphReport(Result):
    """What a backend made of one graph.

    Attributes:
        backend: its name.
        before: what the graph asked for.
        after: what the graph that runs asks for, without what is computed once.
        fired: the rules that lead to the graph that runs, in order.
        tried: rules that lead to a graph that is not kept.
        not_kept: the measurement by which that graph is not kept, or "".
        times_ns: medians of the graph as it was (``original``), of the graph after templates
            (``simplified``) where other rules follow, and of the last (``rewritten``).
        called_ns: medians of a call of the graph as Dynamo traced it (``original``), and of the one
            that is kept (``rewritten``), with what AOTAutograd does around it, if anything.
        left_alone: why the graph could not be rewritten, or "".
        cut: what was left undone because the time of the search was over.
        constants: tensors that are computed once, from the weights.
        check: how the result was judged.
        notes: what else there is to say, for instance of the search.
        details: what a search measured of parts of the graph, each a JSON object.
        pictures: the graph ``before`` and ``after``.
    """

    backend: str
    before: Counts | None = None
    after: Counts | None = None
    fired: list[Firing] = field(default_factory=list)
    tried: list[Firing] = field(default_factory=list)
    not_kept: str = ""
    times_ns: dict[str, float] = field(default_factory=dict)
    called_ns: dict[str, float] = field(default_factory=dict)
    left_alone: str = ""
    cut: list[str] = field(default_factory=list)
    constants: int = 0
    check: str = ""
    notes: list[str] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[str, Picture] = field(default_factory=dict)

    def drop(self) -> None:
        """Note that the graph as it was runs after all."""
        self.tried, self.fired = [*self.fired, *self.tried], []
        self.after, self.constants = None, 0
        self.pictures.pop("after", None)

    @property
    def own(self) -> dict[str, int]:
        """How often each rule fired that is no template's: what the backend is credited with."""
        counted = _counted(self.fired)
        return {rule: counted[rule] for rule in own(counted)}

    @property
    def gain(self) -> float | None:
        """How many times as fast as the graph after templates alone the graph is, or None.

        It is None where no rule of the backend's own fired, or nothing was measured.
        """
        times = self.times_ns
        if not self.own or not {"simplified", "rewritten"} <= {*times}:
            return None
        return times["simplified"] / times["rewritten"]

    def _shown(self) -> Shown:
        rows = []
        if self.before is not None:
            after = asdict(self.after or self.before)
            rows = [
                (name.replace("_", " "), f"{value:,}", f"{after[name]:,}")
                for name, value in asdict(self.before).items()
            ]
        notes = [f"{rule}: {times} times" for rule, times in _counted(self.fired).items()]
        tried = [f"{rule} {times} times" for rule, times in _counted(self.tried).items()]
        notes += [f"not kept ({', '.join(tried)}): {self.not_kept}"] if self.not_kept else []
        if self.fired and not self.own and self.backend != TEMPLATES_ALONE:
            notes.append("all of these are templates: the gain is not that of this backend's rules")
        if self.gain is not None:
            notes.append(f"own rules: {self.gain:.2f} times as fast as after templates alone")
        notes += [f"left alone: {self.left_alone}"] if self.left_alone else []
        notes += [f"out of time, left undone: {', '.join(self.cut)}"] if self.cut else []
        notes += [f"check: {self.check}"] if self.check else []
        return Shown(self.backend, ("", "before", "after"), rows, [*notes, *self.notes])

    def _repr_html_(self) -> str:
        drawn = "".join(
            f"<details><summary>The graph {html.escape(name)}</summary>"
            f'<div style="overflow-x:auto">{picture.svg()}</div></details>'
            for name, picture in self.pictures.items()
        )
        return super()._repr_html_() + drawn

    def page(self) -> str:
        """Return an HTML page of the table, the notes and the pictures; it loads nothing."""
        fired = "".join(
            f"<li>{html.escape(f.rule)}: {html.escape(f.where)}</li>" for f in self.fired
        )
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{self.backend}</title>'
            '<body style="font-family:sans-serif">'
            f"{self._repr_html_()}<p>Rules, in the order in which they fired:</p><ol>{fired}</ol>"
            "</body></html>\n"
        )

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "backend": self.backend,
            "before": asdict(self.before) if self.before else None,
            "after": asdict(self.after) if self.after else None,
            "fired": [asdict(f) for f in self.fired],
            "tried": [asdict(f) for f in self.tried],
            "own": self.own,
            "not_kept": self.not_kept,
            "times_ns": self.times_ns,
            "called_ns": self.called_ns,
            "left_alone": self.left_alone,
            "cut": self.cut,
            "constants": self.constants,
            "check": self.check,
            "notes": self.notes,
            "details": self.details,
            "pictures": {name: p.dot() for name, p in self.pictures.items()},
        }
