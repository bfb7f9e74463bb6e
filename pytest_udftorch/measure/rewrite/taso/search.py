# SPDX-License-Identifier: Apache-2.0
"""The cheapest graph that substitutions reach: TASO's backtracking search, by measured costs.

Where rules match, the graph falls into regions that have no node in common, and each is searched
alone, as if it were the whole graph: what a substitution gains in one does not depend on the
others. Equal regions are searched once. In a region a path of substitutions ends after
:data:`SIDEWAYS` steps in a row that do not lower the cost. Graphs that make the same calls, in
whatever order and of whichever weights, count as one, and none is looked at twice. So the search
comes to an end by itself.
"""

from __future__ import annotations

import contextlib
import copy
import heapq
import itertools
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base.journal import Journal, Words
from pytest_udftorch.measure.planning.identity import device_name
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.deadline import NEVER, Deadline, OutOfTime
from pytest_udftorch.measure.rewrite.taso.matcher import (
    Match,
    apply,
    arguments,
    called,
    in_order,
    matches,
    refreshed,
)
from pytest_udftorch.measure.rewrite.taso.rules import Rule, proved
from pytest_udftorch.measure.rewrite.templates import Firing
from pytest_udftorch.measure.timing.timers import SyncTimer

#: A graph may cost so many times the best one's cost and still be rewritten further: the
#: paper's factor.
ALPHA: Final = 1.05
#: So many steps in a row may leave the cost as it is, or raise it within the factor.
SIDEWAYS: Final = 3
#: What follows a region's nodes is part of it, as far as it is of these operators.
_LIGHT: Final = ("relu", "add", "channels", "columns", "rows", "front", "back", "left", "right")
#: How far, and the most nodes of a region.
_BEHIND: Final = 4
_MOST: Final = 200
#: The part of the time in which regions are searched.
_SEARCHING: Final = 0.8
#: Regions are looked for in the best graph so many times.
_ROUNDS: Final = 4


def signature(node: fx.Node) -> str:
    """Return what decides what a call costs: operator, shapes, layouts and other arguments."""

    def shown(argument: Any) -> Any:
        tensor = graphs.value(argument)
        if not isinstance(tensor, torch.Tensor):
            return "?"
        return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.device}"

    return f"{node.target} {fx.map_arg((node.args, node.kwargs), lambda n: shown(n))}"


_ROW: Final = shapes.record(
    {**dict.fromkeys(("call", "device", "where"), shapes.text()), "ns": shapes.number()},
    closed=True,
)


class _Times(Journal):
    """Times of calls, on any machine."""

    kind = "times"
    words = Words(parts="times", option='options={"journal": ...}')

    def __init__(self, path: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        super().__init__(path, {})

    def read(self, payload: dict[str, Any]) -> None:
        _ROW(payload, "the line")
        self.rows.append(payload)


@dataclass
class Costs:
    """Times of single calls, each measured once, with all threads of torch.

    Attributes:
        runs: measurements of a call.
        journal: a file of measured times, to which each new one is added; those of other machines,
            versions of torch and numbers of threads are left out.
        known: signature -> ns.
        deadline: after which none is measured.
    """

    runs: int = 5
    journal: Path | None = None
    known: dict[str, float] = field(default_factory=dict)
    deadline: Deadline = NEVER

    def __post_init__(self) -> None:
        self._times = None if self.journal is None else _Times(self.journal)
        for row in () if self._times is None else self._times.rows:
            with contextlib.suppress(RuntimeError):  # this machine has no such device
                if row["where"] == self._where(row["device"]):
                    self.known[row["call"]] = float(row["ns"])

    @staticmethod
    def _where(device: str) -> str:
        name = device_name(torch.device(device))
        return f"torch {torch.__version__}, {torch.get_num_threads()} threads, {name}"

    def of_node(self, node: fx.Node) -> float:
        """Return the time of a node's call in ns; 0 for views.

        Raises:
            OutOfTime: it is not known, and the deadline has passed.
        """
        if node.target is outside or graphs.is_view(node):
            return 0.0
        key = signature(node)
        if key not in self.known:
            self.deadline.check("the search among graphs")
            tensors = [graphs.value(n) for n in node.all_input_nodes]
            devices = (t.device for t in tensors if isinstance(t, torch.Tensor))
            home = next(devices, torch.device("cpu"))
            self.known[key] = self._measured(node, home)
            if self._times is not None:
                row = {"call": key, "ns": self.known[key], "device": str(home)}
                self._times.add({**row, "where": self._where(str(home))})
        return self.known[key]

    def _measured(self, node: fx.Node, home: torch.device) -> float:
        target: Any = node.target

        def example(argument: fx.Node) -> Any:
            tensor = graphs.value(argument)
            if not isinstance(tensor, torch.Tensor):
                raise RuntimeError(f"{argument} has several results")
            made = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
            return made.normal_() if tensor.is_floating_point() else made.zero_()

        try:
            args, kwargs = fx.map_arg((node.args, node.kwargs), example)
            timer = SyncTimer(home, runs=self.runs, rounds=3, warmup=2)
            return float(timer.time(lambda: target(*args, **kwargs)).median_ns)
        except Exception:
            return 0.0  # alike in all graphs: rules do not touch it

    def of_graph(self, graph: fx.Graph, held: Collection[int]) -> float:
        """Return the time of a graph's calls in ns, without what depends on weights alone."""
        constant = graphs.constant_nodes(graph, held)
        return sum(self.of_node(n) for n in graphs.calls(graph) if n not in constant)


@dataclass
class Found:
    """What a search found.

    Attributes:
        module: the cheapest graph.
        fired: the rules that lead to it.
        cost_ns: its cost; the cost of the graph as it was.
        visited: graphs whose matches were tried.
        seconds: the time of the search.
        matched: for each rule that matched, the cost of the region where it came nearest to a gain:
            as it was, and with the rule.
        ended: why the search came to an end.
    """

    module: fx.GraphModule
    fired: list[Firing]
    cost_ns: tuple[float, float]
    visited: int
    seconds: float
    matched: dict[str, tuple[float, float]] = field(default_factory=dict)
    ended: str = ""


def outside(number: int, *made_of: Any) -> Any:
    """Stand for a value that is computed outside of a region from what the region computes.

    Args:
        number: which one of the region.
        made_of: what it is computed from.
    """
    raise NotImplementedError("regions are searched, and not run")


outside.kept = True  # type: ignore[attr-defined]


@dataclass
class _Region:
    """A part of a graph as a graph of its own.

    Attributes:
        graph: it.
        inputs: the nodes of the whole graph that its inputs stand for.
        between: those that its calls of :func:`outside` stand for.
        outputs: those that its outputs stand for.
        returned: those of them that the whole graph returns.
        held: the numbers of the inputs that are weights, or made of them alone.
        name: how it is called.
    """

    graph: fx.Graph
    inputs: list[fx.Node]
    between: list[fx.Node]
    outputs: list[fx.Node]
    returned: list[fx.Node]
    held: list[int]
    name: str

    def described(self) -> str:
        """Return a text that is the same for equal regions."""
        kinds = [(str(value.meta.get("val")), number in self.held)
                 for number, value in enumerate(self.inputs)]  # fmt: skip
        kinds += [("returned", node in self.returned) for node in self.outputs]
        return (
            f"{_shape_of(self.graph)} {[*map(_described, [*self.inputs, *self.between])]} {kinds}"
        )


def _described(node: fx.Node) -> str:
    tensor = graphs.value(node)
    return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.device}"


@dataclass
class _Search:
    """A search among the graphs of one model."""

    rules: list[Rule]
    costs: Costs
    graphs: int
    deadline: Deadline
    visited: int = 0
    matched: dict[str, tuple[float, float]] = field(default_factory=dict)
    known: dict[str, tuple[fx.Graph, list[Rule]] | None] = field(default_factory=dict)

    def note(self, rule: str, before: float, after: float) -> None:
        """Remember where a rule came nearest to a gain."""
        old = self.matched.get(rule)
        if old is None or after / max(before, 1e-9) < old[1] / max(old[0], 1e-9):
            self.matched[rule] = before, after

    def cost_of(self, graph: fx.Graph, region: _Region) -> float:
        """Return what a graph of a region costs, with copies of what is returned as it lay."""
        found = self.costs.of_graph(graph, region.held)
        for old, new in zip(region.outputs, graphs.outputs(graph), strict=True):
            if old in region.returned and graphs.value(old).stride() != graphs.value(new).stride():
                copied = _copy(graph, new)
                found += self.costs.of_node(copied)
                graph.erase_node(copied)
        return found

    def best_of(self, region: _Region) -> tuple[fx.Graph, list[Rule]] | None:
        """Return the cheapest graph of a region and the rules that lead to it, or None.

        When the time is over, it is the cheapest so far.
        """
        graph = region.graph
        first = self.cost_of(graph, region)
        best: tuple[float, fx.Graph, list[Rule]] = first, graph, []
        ticket = itertools.count()
        queue = [(first, next(ticket), graph, best[2], 0, first)]
        seen = {_calls_of(graph, region.held)}
        with contextlib.suppress(OutOfTime):  # the deadline has noted it
            while queue and self.visited < self.graphs:
                _, _, current, fired, sideways, least = heapq.heappop(queue)
                self.visited += 1
                own = self.cost_of(current, region)
                for rules, candidate in self.successors(current, region.held):
                    calls = _calls_of(candidate, region.held)
                    if calls in seen:
                        continue
                    seen.add(calls)
                    cost = self.cost_of(candidate, region)
                    self.note(rules[0].name, own, cost)
                    path = [*fired, *rules]
                    if cost < best[0]:
                        best = cost, candidate, path
                    steps = 0 if cost < least else sideways + 1
                    if cost < ALPHA * best[0] and steps <= SIDEWAYS:
                        entry = cost, next(ticket), candidate, path, steps, min(cost, least)
                        heapq.heappush(queue, entry)
        return best[1:] if best[2] else None

    def successors(
        self, graph: fx.Graph, held: Collection[int]
    ) -> Iterator[tuple[list[Rule], fx.Graph]]:
        """Return graphs that are one substitution away: of those alike one, and all at once."""
        constant = graphs.constant_nodes(graph, held)
        alike: dict[Any, list[Match]] = {}
        for found in matches(graph, self.rules):
            alike.setdefault(_alike(found, constant), []).append(found)
        for group in alike.values():
            self.deadline.check("the search among graphs")
            apart = _apart(group)
            for chosen in [apart[:1], apart] if len(apart) > 1 else [apart]:
                candidate = _copied(graph)
                if _applied(chosen, candidate):
                    yield [found.rule for found in chosen], candidate


def _apart(group: Sequence[Match]) -> list[Match]:
    """Return matches that have no node in common."""
    taken: set[fx.Node] = set()
    found = []
    for match in group:
        if taken.isdisjoint(match.support):
            taken |= match.support
            found.append(match)
    return found


def _copy(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """Return a new node that copies another one without gaps."""
    clone = graphs.aten.clone.default
    return called(graph, clone, node, memory_format=torch.contiguous_format)


def _copied(graph: fx.Graph) -> fx.Graph:
    """Return a copy of a graph, whose nodes have the same names."""
    new = fx.Graph()
    new.output(new.graph_copy(graph, {}))
    return new


def _applied(chosen: Sequence[Match], candidate: fx.Graph) -> bool:
    """Apply matches to a copy of their graph; return whether that is possible."""
    for match in chosen:
        names = {n.name: n for n in candidate.nodes}
        needed = [*match.roots, *(o for o in match.bound.values() if isinstance(o, fx.Node))]
        if not all(node.name in names for node in needed):
            return False
        try:
            other = apply(_moved(match, names))
        except ValueError:  # together they would take each other's results
            return False
        if other is None or not _valid(candidate, other):
            return False
    return True


def _alike(match: Match, constant: set[fx.Node]) -> tuple[Any, ...]:
    """Return what is the same for matches that lead to graphs with the same calls."""
    numbers: dict[Any, int] = {}
    operands = [
        (str(graphs.value(o)), o in constant, len(o.users)) if isinstance(o, fx.Node) else str(o)
        for o in match.bound.values()
    ]
    # Which variables stand for the same, and who takes the results.
    same = [numbers.setdefault(o, len(numbers)) for o in match.bound.values()]
    users = [sorted(signature(u) for u in root.users) for root in match.roots]
    inside = sorted(f"{signature(n)} {len(n.users)}" for n in match.support)
    return match.rule.name, str(operands), str(same), str(users), str(inside)


def _moved(match: Match, names: Mapping[str, fx.Node]) -> Match:
    """Return a match in a copy of its graph, whose nodes have the same names."""
    bound = {name: names[o.name] if isinstance(o, fx.Node) else o
             for name, o in match.bound.items()}  # fmt: skip
    return replace(match, roots=tuple(names[n.name] for n in match.roots), bound=bound)


def _valid(graph: fx.Graph, changed: Sequence[fx.Node]) -> bool:
    """Tidy a graph up whose nodes have got another layout; return whether all calls take it."""
    joined: Sequence[fx.Node] | None = changed
    while joined is not None:
        if not refreshed(graph, joined):
            return False
        joined = _tidied(graph)
    return True


def _tidied(graph: fx.Graph) -> list[fx.Node] | None:
    """Compute equal calls once, and join no parts that were one.

    Returns:
        The nodes that took the place of some with another layout; None if there was nothing to do.
    """
    known: dict[str, fx.Node] = {}
    changed: list[fx.Node] = []
    found = False
    for node in graphs.calls(graph):
        same = _whole(node)
        if same is None and not graphs.draws(node):
            same = known.setdefault(f"{node.target} {node.args} {node.kwargs}", node)
        if same is None or same is node:
            continue
        old, new = graphs.value(node), graphs.value(same)
        node.replace_all_uses_with(same)
        found = True
        if isinstance(old, torch.Tensor) and old.stride() != new.stride():
            changed.append(same)
    graph.eliminate_dead_code()
    return changed if found else None


def _whole(node: fx.Node) -> fx.Node | None:
    """Return the value that a call of cat puts together again from adjacent parts, or None."""
    if graphs.packet_name(node) != "cat" or not isinstance(node.args[0], list | tuple):
        return None
    tensors: list[Any] = list(node.args[0])
    rank = graphs.value(node).dim()
    given: tuple[Any, ...] = node.args
    dim = (given[1] if len(given) > 1 else 0) % rank
    for at, (one, two) in enumerate(itertools.pairwise(tensors)):
        if not all(graphs.packet_name(n) == "slice" and len(n.args) == 4 for n in (one, two)):
            continue
        (x, d, low, end), (y, e, start, high) = one.args, two.args
        if x is not y or not d % rank == e % rank == dim or end != start:
            continue
        size = graphs.value(x).shape[dim]
        whole = x
        graph = node.graph
        if low or min(high, size) < size:
            with graph.inserting_before(node):
                whole = called(graph, one.target, x, dim, low, high)
        rest = [*tensors[:at], whole, *tensors[at + 2 :]]
        if len(rest) == 1:
            return whole if isinstance(whole, fx.Node) else None
        with graph.inserting_before(node):
            return called(graph, graphs.aten.cat.default, rest, dim)
    return None


def _groups(
    module: fx.GraphModule, held: Collection[int], rules: Sequence[Rule]
) -> list[list[str]]:
    """Return the names of the nodes of regions in which rules match; no node is in two of them."""
    constant = graphs.constant_nodes(module.graph, held)
    leaders: dict[fx.Node, fx.Node] = {}

    def leader(node: fx.Node) -> fx.Node:
        while leaders.setdefault(node, node) is not node:
            node = leaders[node]
        return node

    for match in matches(module.graph, rules):
        nodes = list(_behind(match.support, constant))
        for node in nodes:
            leaders[leader(node)] = leader(nodes[0])
    groups: dict[fx.Node, list[str]] = {}
    for node in module.graph.nodes:
        if node in leaders and node not in constant:
            groups.setdefault(leader(node), []).append(node.name)
    return [nodes for nodes in groups.values() if len(nodes) <= _MOST]


def _behind(support: Collection[fx.Node], constant: set[fx.Node]) -> dict[fx.Node, None]:
    """Return nodes with the light ones that follow them."""
    found = dict.fromkeys(n for n in support if n not in constant)
    edge = list(found)
    for _ in range(_BEHIND):
        edge = [
            user
            for node in edge
            for user in node.users
            if user not in found and any(arguments(o, user) is not None for o in _LIGHT)
        ]
        found.update(dict.fromkeys(edge))
    return found


def _region(module: fx.GraphModule, held: Collection[int], group: list[str]) -> _Region | None:
    """Return some nodes of a graph as a graph of its own; None if one is gone."""
    names = {n.name: n for n in module.graph.nodes}
    if not names.keys() >= {*group}:
        return None
    nodes = [names[name] for name in group]
    constant = graphs.constant_nodes(module.graph, held)
    inside = set(nodes)
    taken = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside)
    made_of = _made_of(module.graph, inside)
    inputs = [n for n in taken if not made_of[n]]
    between = [n for n in module.graph.nodes if n in taken and made_of[n]]
    outputs = [n for n in nodes if any(u not in inside for u in n.users)]
    graph = fx.Graph()
    mine: dict[fx.Node, fx.Node] = {}
    for number, node in enumerate(inputs):
        mine[node] = graph.placeholder(f"input_{number}")
        mine[node].meta["val"] = graphs.value(node)
    for node in module.graph.nodes:
        if node in inside:
            mine[node] = graph.node_copy(node, mine.__getitem__)
        elif node in between:
            parts = [mine[n] for n in made_of[node]]
            mine[node] = graph.call_function(outside, (between.index(node), *parts))
        if node in inside or node in between:
            mine[node].meta = {"val": graphs.value(node)}
    graph.output(tuple(mine[n] for n in outputs))
    held = [number for number, node in enumerate(inputs) if node in constant]
    returned = [n for n in outputs if any(u.op == "output" for u in n.users)]
    return _Region(graph, inputs, between, outputs, returned, held, str(nodes[0]))


def _made_of(graph: fx.Graph, inside: set[fx.Node]) -> dict[fx.Node, dict[fx.Node, None]]:
    """Return, for each node, the nodes of a region that it is computed from outside of it."""
    found: dict[fx.Node, dict[fx.Node, None]] = {}
    for node in graph.nodes:
        found[node] = {}
        for source in node.all_input_nodes:
            found[node].update({source: None} if source in inside else found[source])
    return found


def _spliced(region: _Region, found: fx.Graph) -> list[fx.Node] | None:
    """Put another graph in the place of a region.

    Returns:
        The new nodes whose layout is not that of the node before; None if nodes would take each
        other's results.
    """
    graph = region.outputs[0].graph
    mine: dict[fx.Node, fx.Node] = {}
    theirs = iter(region.inputs)
    with graph.inserting_before(region.outputs[0]):
        for node in found.nodes:
            if node.op == "placeholder":
                mine[node] = next(theirs)
            elif node.target is outside:
                mine[node] = region.between[node.args[0]]
            elif node.op != "output":
                mine[node] = graph.node_copy(node, mine.__getitem__)
                mine[node].meta = {"val": graphs.value(node)}
    ends = [mine[n] for n in graphs.outputs(found)]
    other = []
    for old, new in zip(region.outputs, ends, strict=True):
        if old is not new:
            old.replace_all_uses_with(new)
            if graphs.value(old).stride() != graphs.value(new).stride():
                other.append(new)
    try:
        in_order(graph)
    except ValueError:
        return None
    graph.eliminate_dead_code()
    return other


def _as_returned(candidate: fx.GraphModule, module: fx.GraphModule) -> bool:
    """Copy results that now are parts of larger ones; return whether all have their strides."""
    (end,) = (n for n in candidate.graph.nodes if n.op == "output")
    new = graphs.outputs(candidate.graph)
    for at, old in enumerate(graphs.outputs(module.graph)):
        node = new[at]
        if not isinstance(node, fx.Node) or not isinstance(graphs.value(node), torch.Tensor):
            continue
        if graphs.value(node).stride() == graphs.value(old).stride():
            continue
        if not graphs.value(old).is_contiguous():
            return False
        with candidate.graph.inserting_before(end):
            new[at] = _copy(candidate.graph, node)
    end.args = (tuple(new),)
    candidate.recompile()
    return True


def backtracking(
    module: fx.GraphModule,
    rules: Sequence[Rule],
    held: Collection[int],
    costs: Costs,
    limits: Mapping[str, float],
) -> Found:
    """Search graphs in the order of their costs, each one substitution away from another.

    Args:
        module: the graph, with fake tensors.
        rules: the substitutions; each that leads to the graph that is returned is proved.
        held: the numbers of the inputs that are weights.
        costs: of single calls.
        limits: ``graphs``, the most graphs to look at.

    Raises:
        RewriteError: such a rule is not sound.

    The search ends at the deadline of the costs, with the best graph so far.
    """
    began = time.monotonic()
    try:
        first = costs.of_graph(module.graph, held)
    except OutOfTime:
        return Found(module, [], (math.nan, math.nan), 0, time.monotonic() - began)
    # What is found has to be put together and measured in time, too.
    inner = costs.deadline.share(_SEARCHING)
    search = _Search(list(rules), costs, int(limits["graphs"]), inner)
    best, cost, fired = module, first, list[Firing]()
    ended = "no cheaper graph is in reach"
    # A search that is cut short says so through the deadline.
    try:
        for _ in range(_ROUNDS):
            count = len(fired)
            for group in _groups(best, held, search.rules):
                # What was found in another region may have taken its place.
                candidate = copy.deepcopy(best)
                region = _region(candidate, held, group)
                if region is None:
                    continue
                text = region.described()
                if text not in search.known:
                    search.known[text] = search.best_of(region)
                found = search.known[text]
                other = None if found is None else _spliced(region, found[0])
                if found is None or other is None or not _valid(candidate.graph, other):
                    continue
                if not _as_returned(candidate, module):
                    continue
                after = costs.of_graph(candidate.graph, held)
                if after < cost:
                    best, cost = candidate, after
                    fired += [Firing(proved(r).name, f"at {region.name}") for r in found[1]]
            if len(fired) == count:
                break
        if not inner.left():
            ended = "out of time"
        elif search.visited >= search.graphs:
            ended = f"the limit of {search.graphs} graphs"
    except OutOfTime:
        ended = "out of time"
    seconds = time.monotonic() - began
    return Found(best, fired, (cost, first), search.visited, seconds, search.matched, ended)


def _calls_of(graph: fx.Graph, held: Collection[int]) -> tuple[str, ...]:
    """Return what a graph calls in each run: the same for graphs that differ in names or order."""
    constant = graphs.constant_nodes(graph, held)
    return tuple(sorted(signature(n) for n in graphs.calls(graph) if n not in constant))


def _shape_of(graph: fx.Graph) -> str:
    """Return a text that is the same for graphs that differ in names and order alone."""
    numbers: dict[fx.Node, str] = {}

    def text(node: fx.Node) -> str:
        if node not in numbers:
            if node.op == "placeholder":
                numbers[node] = node.name
            else:
                inside = fx.map_arg((node.args, node.kwargs), lambda n: f"<{text(n)}>")
                numbers[node] = str(hash(f"{node.target} {inside}"))
        return numbers[node]

    ends = [n for n in graphs.outputs(graph) if isinstance(n, fx.Node)]
    return " ".join(map(text, ends))
