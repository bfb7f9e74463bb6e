# SPDX-License-Identifier: Apache-2.0
"""The cheapest graph among all that substitutions reach: equality saturation with egglog.

The graph becomes terms. egglog adds what the rules make of them, without taking anything away,
until nothing is new or a limit is reached. Of each class of equal terms the one with the least
measured cost is taken (Yang et al., Equality Saturation for Tensor Graph Superoptimization, MLSys
2021). A term that is used twice is counted twice there, so the result is kept only if its graph is
cheaper.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import fx

from pytest_udftorch.base.optional import package
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.deadline import OutOfTime
from pytest_udftorch.measure.rewrite.taso.language import OPERATORS, Term, subterms
from pytest_udftorch.measure.rewrite.taso.matcher import call, name_in_graph, operator_of
from pytest_udftorch.measure.rewrite.taso.rules import Rule
from pytest_udftorch.measure.rewrite.taso.search import Costs, Found
from pytest_udftorch.measure.rewrite.templates import Firing

#: Rounds in which egglog applies all rules.
ROUNDS: Final = 6
#: Classes are read out up to this number of terms.
_MOST: Final = 20_000


@dataclass
class _Terms:
    """A graph as terms of egglog.

    Attributes:
        leaves: the nodes that are no operator of the language, by number.
        texts: node -> term.
        settings: stride, padding and dilation of convolutions, by number.
        roots: the nodes that opaque nodes and the output take.
    """

    leaves: list[fx.Node] = field(default_factory=list)
    texts: dict[fx.Node, str] = field(default_factory=dict)
    settings: list[list[Any]] = field(default_factory=list)
    roots: list[fx.Node] = field(default_factory=list)


def _constructor(operator: str, setting: int | None = None) -> str:
    name = name_in_graph(operator).replace(" ", "_")
    return f"{name}_{setting}" if operator == "conv" else f"{name}_"


def _terms(graph: fx.Graph) -> _Terms:
    found = _Terms()
    for node in graph.nodes:
        known = operator_of(node) if node.op == "call_function" else None
        if node.op == "output" or known is None:
            found.roots += [n for n in node.all_input_nodes if n not in found.roots]
            if node.op != "output":
                found.texts[node] = f"(Leaf {len(found.leaves)})"
                found.leaves.append(node)
            continue
        operator, args, setting = known
        number = None
        if setting is not None:
            if setting not in found.settings:
                found.settings.append(setting)
            number = found.settings.index(setting)
        inside = " ".join(found.texts[a] for a in args)
        found.texts[node] = f"({_constructor(operator, number)} {inside})"
    return found


def _text(term: Term, setting: int) -> str:
    if isinstance(term, str):
        return term
    inside = " ".join(_text(t, setting) for t in term[1:])
    return f"({_constructor(term[0], setting)} {inside})"


def _program(found: _Terms, rules: Sequence[Rule]) -> str:
    """Return the graph and the rules in egglog's language."""
    settings = range(max(1, len(found.settings)))
    arities = {
        _constructor(o.name, number): len(next(iter(o.kinds)))
        for o in OPERATORS.values()
        for number in settings
    }
    variants = " ".join(f"({name} {' '.join(['T'] * arity)})" for name, arity in arities.items())
    lines = [f"(datatype T (Leaf i64) {variants})", "(datatype R (Root i64 T))"]
    for rule in rules:
        convolves = any(t[0] == "conv" for t in subterms(rule.left) if not isinstance(t, str))
        for number in settings if convolves else [0]:
            lines.append(f"(rewrite {_text(rule.left, number)} {_text(rule.right, number)})")
    lines += [f"(Root {n} {found.texts[node]})" for n, node in enumerate(found.roots)]
    return "\n".join(lines)


@dataclass
class _Class:
    """Equal terms: the cheapest one so far."""

    cost: float
    operator: str
    children: list[str]
    node: fx.Node
    constant: bool


class _Extraction:
    """Takes the cheapest term of each class out of a saturated e-graph."""

    def __init__(self, found: _Terms, costs: Costs, constant: set[fx.Node]) -> None:
        self.found, self.costs, self.constant = found, costs, constant
        self.best: dict[str, _Class] = {}
        self.scratch = fx.Graph()
        self.made: dict[tuple[Any, ...], fx.Node | None] = {}
        self.names = {_constructor(o): o for o in OPERATORS if o != "conv"}
        for number in range(len(found.settings)):
            self.names[_constructor("conv", number)] = f"conv {number}"

    def call(self, graph: fx.Graph, name: str, args: list[fx.Node]) -> fx.Node:
        operator, _, number = self.names[name].partition(" ")
        return call(graph, operator, args, self.found.settings[int(number)] if number else None)

    def _offer(self, group: str, op: str, children: list[str], leaf: int | None) -> bool:
        """Take a term if it is cheaper than what its class has; return whether it was."""
        if leaf is not None:
            node = self.found.leaves[leaf]
            new = _Class(0.0, op, [str(leaf)], node, node in self.constant)
        else:
            below = [self.best[c] for c in children]
            key = (op, *children)
            if key not in self.made:
                try:
                    self.made[key] = self.call(self.scratch, op, [b.node for b in below])
                except (RuntimeError, ValueError, StopIteration):
                    self.made[key] = None  # shapes that the operator does not take
            made = self.made[key]
            if made is None:
                return False
            constant = all(b.constant for b in below)
            own = 0.0 if constant else self.costs.of_node(made)
            new = _Class(sum(b.cost for b in below) + own, op, children, made, constant)
        old = self.best.get(group)
        if old is not None and old.cost <= new.cost:
            return False
        self.best[group] = new
        return True

    def run(self, nodes: Mapping[str, Any]) -> None:
        """Find the cheapest terms of all classes."""
        changed = True
        while changed:
            changed = False
            for node in nodes.values():
                if node["op"] == "Leaf":
                    leaf = int(nodes[node["children"][0]]["op"])
                    changed |= self._offer(node["eclass"], "Leaf", [], leaf)
                elif node["op"] in self.names:
                    children = [nodes[c]["eclass"] for c in node["children"]]
                    if all(c in self.best for c in children):
                        changed |= self._offer(node["eclass"], node["op"], children, None)


def _rebuilt(module: fx.GraphModule, taken: _Extraction, classes: Mapping[fx.Node, str]) -> None:
    """Make every root anew from the cheapest terms."""
    graph = module.graph
    built: dict[str, fx.Node] = {}

    def build(group: str) -> fx.Node:
        if group not in built:
            best = taken.best[group]
            if best.operator == "Leaf":
                built[group] = best.node
            else:
                built[group] = taken.call(graph, best.operator, [build(c) for c in best.children])
        return built[group]

    opaque = set(taken.found.leaves)
    for node in list(graph.nodes):
        if node in opaque or node.op == "output":
            with graph.inserting_before(node):
                new = {a: build(classes[a]) for a in node.all_input_nodes}
            for old, better in new.items():
                if better is not old:
                    node.replace_input_with(old, better)
    graph.eliminate_dead_code()
    graph.lint()


def saturated(
    module: fx.GraphModule,
    rules: Sequence[Rule],
    held: Collection[int],
    costs: Costs,
    limits: Mapping[str, float],
) -> Found:
    """Search by equality saturation; arguments are those of ``search.backtracking``.

    Raises:
        PackageMissingError: egglog is not installed.
    """
    began = time.monotonic()
    egglog = package("egglog.bindings", "Searching by equality saturation")
    before = math.nan
    try:
        before = costs.of_graph(module, held)
        return _saturated(module, rules, held, costs, egglog, before, began)
    except OutOfTime:  # it says so through the deadline
        return Found(module, [], (before, before), 0, time.monotonic() - began)


def _saturated(
    module: fx.GraphModule,
    rules: Sequence[Rule],
    held: Collection[int],
    costs: Costs,
    egglog: Any,
    before: float,
    began: float,
) -> Found:
    candidate = copy.deepcopy(module)
    found = _terms(candidate.graph)
    engine = egglog.EGraph()
    engine.run_program(*engine.parse_program(_program(found, rules)))
    for _ in range(ROUNDS):
        costs.deadline.check("the search among graphs")
        engine.run_program(*engine.parse_program("(run 1)"))
    text = engine.serialize([], max_functions=_MOST, max_calls_per_function=_MOST).to_json()
    nodes = json.loads(text)["nodes"]
    taken = _Extraction(found, costs, graphs.constant_nodes(candidate.graph, held))
    taken.run(nodes)
    classes = {
        found.roots[int(nodes[node["children"][0]]["op"])]: nodes[node["children"][1]]["eclass"]
        for node in nodes.values()
        if node["op"] == "Root"
    }
    _rebuilt(candidate, taken, classes)
    after = costs.of_graph(candidate, held)
    seconds = time.monotonic() - began
    if after >= before:
        return Found(module, [], (before, before), len(taken.best), seconds)
    fired = [Firing("equality saturation", f"{len(nodes):,} terms in {len(taken.best):,} classes")]
    return Found(candidate, fired, (after, before), len(taken.best), seconds)
