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
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import fx

from pytest_udftorch.base.optional import package
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.deadline import OutOfTime
from pytest_udftorch.measure.rewrite.taso.language import OPERATORS, SPLITS, Term, subterms
from pytest_udftorch.measure.rewrite.taso.matcher import (
    Match,
    Operand,
    Setting,
    Zeros,
    arguments,
    call,
    setting_of,
)
from pytest_udftorch.measure.rewrite.taso.rules import Rule, proved
from pytest_udftorch.measure.rewrite.taso.search import Costs, Found
from pytest_udftorch.measure.rewrite.templates import Firing

#: Rounds in which egglog applies all rules.
ROUNDS: Final = 6
#: Classes are read out up to this number of terms.
_MOST: Final = 20_000


#: A rule of nothing: the calls of an extraction belong to none.
_NONE: Final = Rule("extraction", ())


@dataclass
class _Terms:
    """A graph as terms of egglog.

    Attributes:
        leaves: what is no operator of the language, by number.
        texts: node -> term.
        settings: of convolutions, by number.
        roots: the nodes that opaque nodes and the output take.
    """

    leaves: list[Operand] = field(default_factory=list)
    texts: dict[fx.Node, str] = field(default_factory=dict)
    settings: list[Setting] = field(default_factory=list)
    roots: list[fx.Node] = field(default_factory=list)

    def leaf(self, operand: Operand) -> str:
        """Return the term of what is no operator."""
        if operand not in self.leaves:
            self.leaves.append(operand)
        return f"(Leaf {self.leaves.index(operand)})"


#: Operators that parts of values, groups and kernels of other sizes would need, besides their
#: arguments: rules that have them are left to backtracking.
_LEFT_OUT: Final = {*sum(SPLITS.values(), ()), "point", "gconv", "enlarge", "ungroup"}
_TRIED: Final = [name for name in OPERATORS if name not in _LEFT_OUT]
#: Names that egglog knows by another one: joins differ in their dimension alone.
_JOINS: Final = {"rows": "cat_2_0", "columns": "cat_2_1", "channels": "cat_4_1",
                 "outputs": "cat_4_0", "inputs": "cat_4_1", "both": "cat_1_0"}  # fmt: skip


def _constructor(operator: str, setting: int | None = None) -> str:
    name = _JOINS.get(operator, operator)
    return f"{name}_{setting}" if operator == "conv" else f"{name}_"


def _called(node: fx.Node) -> tuple[str, list[Operand]] | None:
    """Return the operator of the language that a node calls, and its arguments."""
    tensor = graphs.value(node)
    for operator in _TRIED if node.op == "call_function" else ():
        given = arguments(operator, node)
        if given is None or (operator == "linear" and isinstance(given[2], Zeros)):
            continue
        join = _JOINS.get(operator)
        if join is None or join.split("_")[1] == str(tensor.dim()):
            return operator, given
    return None


def _terms(graph: fx.Graph) -> _Terms:
    found = _Terms()
    for node in graph.nodes:
        known = _called(node)
        setting = setting_of(node) if known is not None and known[0] == "conv" else None
        # Groups and matrices in batches are left to backtracking, too.
        plain = setting is None or setting.groups == 1
        if known is None or not plain or graphs.packet_name(node) == "bmm":
            found.roots += [n for n in node.all_input_nodes if n not in found.roots]
            if node.op != "output":
                found.texts[node] = found.leaf(node)
            continue
        operator, args = known
        number = None
        if setting is not None:
            if setting not in found.settings:
                found.settings.append(setting)
            number = found.settings.index(setting)
        inside = " ".join(found.leaf(a) if isinstance(a, Zeros) else found.texts[a] for a in args)
        found.texts[node] = f"({_constructor(operator, number)} {inside})"
    return found


def _text(term: Term, setting: int) -> str:
    if isinstance(term, str):
        return term
    inside = " ".join(_text(t, setting) for t in term[1:])
    return f"({_constructor(term[0], setting)} {inside})"


def _usable(rule: Rule) -> bool:
    """Whether a rule can be given to egglog: it has one root, and no operator that is left out."""
    used = {t[0] for side in rule.sides for t in subterms(side) if not isinstance(t, str)}
    return len(rule.roots) == 1 and not used & _LEFT_OUT


def _program(found: _Terms, rules: Sequence[Rule]) -> str:
    """Return the graph and the rules in egglog's language."""
    settings = range(max(1, len(found.settings)))
    arities = {
        _constructor(name, number): len(next(iter(OPERATORS[name].kinds)))
        for name in _TRIED
        for number in settings
    }
    variants = " ".join(f"({name} {' '.join(['T'] * arity)})" for name, arity in arities.items())
    lines = [f"(datatype T (Leaf i64) {variants})", "(datatype R (Root i64 T))"]
    called = {name for text in found.texts.values() for name in re.findall(r"\((\w+)", text)}
    for rule in map(proved, filter(_usable, _reachable(rules, called))):
        ((left, right),) = rule.roots
        convolves = any(t[0] == "conv" for t in subterms(left) if not isinstance(t, str))
        for number in settings if convolves else [0]:
            lines.append(f"(rewrite {_text(left, number)} {_text(right, number)})")
    lines += [f"(Root {n} {found.texts[node]})" for n, node in enumerate(found.roots)]
    return "\n".join(lines)


def _reachable(rules: Sequence[Rule], called: set[str]) -> list[Rule]:
    """Return the rules whose left sides have no operator but those of the graph, or of others."""
    known = {name.partition("_")[0] if not name.startswith("cat") else name for name in called}

    def needs(side: Term) -> set[str]:
        used = {t[0] for t in subterms(side) if not isinstance(t, str)}
        return {_JOINS.get(o, o) + ("_" if o in _JOINS else "") for o in used}

    found: list[Rule] = []
    rest = [r for r in rules if len(r.roots) == 1]
    while new := [r for r in rest if needs(r.roots[0][0]) <= known]:
        found += new
        rest = [r for r in rest if r not in new]
        for rule in new:
            known |= needs(rule.roots[0][1])
    return found


@dataclass
class _Class:
    """Equal terms: the cheapest one so far."""

    cost: float
    operator: str
    children: list[str]
    node: Operand
    constant: bool


class _Extraction:
    """Takes the cheapest term of each class out of a saturated e-graph."""

    def __init__(self, found: _Terms, costs: Costs, constant: set[fx.Node]) -> None:
        self.found, self.costs, self.constant = found, costs, constant
        self.best: dict[str, _Class] = {}
        self.scratch = fx.Graph()
        self.made: dict[tuple[Any, ...], Operand | None] = {}
        self.names = {_constructor(o): o for o in _TRIED if o != "conv"}
        for number in range(len(found.settings)):
            self.names[_constructor("conv", number)] = f"conv {number}"

    def call(self, graph: fx.Graph, name: str, args: list[Operand]) -> Operand:
        operator, _, number = self.names[name].partition(" ")
        setting = self.found.settings[int(number)] if number else None
        return call(graph, operator, args, Match(_NONE, setting=setting), None)

    def _offer(self, group: str, op: str, children: list[str], leaf: int | None) -> bool:
        """Take a term if it is cheaper than what its class has; return whether it was."""
        if leaf is not None:
            node = self.found.leaves[leaf]
            constant = isinstance(node, Zeros) or node in self.constant
            new = _Class(0.0, op, [str(leaf)], node, constant)
        else:
            below = [self.best[c] for c in children]
            key = (op, *children)
            if key not in self.made:
                try:
                    self.made[key] = self.call(self.scratch, op, [b.node for b in below])
                except (RuntimeError, ValueError):
                    self.made[key] = None  # shapes that the operator does not take
            made = self.made[key]
            if made is None:
                return False
            constant = all(b.constant for b in below)
            own = 0.0 if constant or isinstance(made, Zeros) else self.costs.of_node(made)
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
    built: dict[str, Operand] = {}

    def build(group: str) -> Operand:
        if group not in built:
            best = taken.best[group]
            if best.operator == "Leaf":
                built[group] = best.node
            else:
                built[group] = taken.call(graph, best.operator, [build(c) for c in best.children])
        return built[group]

    opaque = {leaf for leaf in taken.found.leaves if isinstance(leaf, fx.Node)}
    for node in list(graph.nodes):
        if node in opaque or node.op == "output":
            with graph.inserting_before(node):
                new = {a: build(classes[a]) for a in node.all_input_nodes}
            for old, better in new.items():
                if better is not old and isinstance(better, fx.Node):
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
        before = costs.of_graph(module.graph, held)
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
    after = costs.of_graph(candidate.graph, held)
    seconds = time.monotonic() - began
    if after >= before:
        return Found(module, [], (before, before), len(taken.best), seconds)
    fired = [Firing("equality saturation", f"{len(nodes):,} terms in {len(taken.best):,} classes")]
    return Found(candidate, fired, (after, before), len(taken.best), seconds)
