# SPDX-License-Identifier: Apache-2.0
"""Where a rule's left side is in a graph of ATen operators, and how its right side takes its place.

A term's operator stands for one call in ATen with the arguments that the rules were proved for: no
broadcasting, no ``alpha``, convolutions without bias and groups. The convolutions of a match have
the same stride, padding and dilation. Rules of elementwise operators hold for tensors of any rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.measure.rewrite.graphs import aten, calls, packet_name, value
from pytest_udftorch.measure.rewrite.taso.language import Term, kind_of_variable, subterms
from pytest_udftorch.measure.rewrite.taso.rules import Rule

#: Operator of the language -> operator of ATen, where every argument is a tensor.
_PLAIN: Final = {
    "add": "add", "sub": "sub", "mul": "mul", "max": "maximum", "min": "minimum", "neg": "neg",
    "relu": "relu", "abs": "abs", "mm": "mm",
}  # fmt: skip
#: Operators that join or halve: rank of the tensors, and along which dimension.
_JOINED: Final = {
    "rows": (2, 0), "columns": (2, 1), "channels": (4, 1), "outputs": (4, 0), "inputs": (4, 1),
}  # fmt: skip
_HALVED: Final = {"top": (2, 0), "left": (2, 1), "front": (4, 1)}
_ELEMENTWISE: Final = {"add", "sub", "mul", "max", "min", "neg", "relu", "abs"}


@dataclass
class Match:
    """A rule that can be applied at a node.

    Attributes:
        rule: the rule.
        node: the node that its left side computes.
        bound: variable -> node.
        settings: what the convolutions share: stride, padding, dilation.
    """

    rule: Rule
    node: fx.Node
    bound: dict[str, fx.Node] = field(default_factory=dict)
    settings: list[Any] | None = None


def operator_of(node: fx.Node) -> tuple[str, list[fx.Node], list[Any] | None] | None:
    """Return the operator of the language that a node calls, its arguments and its settings.

    ``cat`` and ``slice`` have several names; here they have those for two dimensions and images.
    """
    name = packet_name(node)
    args: tuple[Any, ...] = node.args
    mine = value(node)
    if not isinstance(mine, torch.Tensor) or not mine.is_floating_point():
        return None
    inputs = [a for a in args if isinstance(a, fx.Node)]
    if any(not isinstance(value(n), torch.Tensor) for n in inputs):
        return None
    for known, target in _PLAIN.items():
        if name == target and len(inputs) == len(args) and not node.kwargs:
            same = all(value(n).shape == mine.shape for n in inputs)
            return (known, inputs, None) if same or known == "mm" else None
    turned = name == "t" or (name == "permute" and list(args[1]) == [1, 0])
    if turned and mine.dim() == 2:
        return "t", inputs, None
    if name == "convolution" and args[2] is None and not args[6] and args[8] == 1:
        return "conv", inputs, list(args[3:6])
    if name == "cat" and isinstance(args[0], list | tuple) and len(args[0]) == 2:
        dim = (args[1] if len(args) > 1 else 0) % mine.dim()
        return f"cat {mine.dim()} {dim}", list(args[0]), None
    if name == "slice" and len(args) == 4:
        dim, start, end = args[1:4]
        source = value(inputs[0])
        if start == 0 and 2 * end == source.shape[dim]:
            return f"half {mine.dim()} {dim}", inputs, None
    return None


def name_in_graph(operator: str) -> str:
    """Return the name of an operator that joins or halves as :func:`operator_of` gives it."""
    if operator in _JOINED:
        return "cat {} {}".format(*_JOINED[operator])
    if operator in _HALVED:
        return "half {} {}".format(*_HALVED[operator])
    return operator


def _bind(pattern: Term, node: fx.Node, match: Match, any_rank: bool) -> bool:
    if isinstance(pattern, str):
        rank = 2 if kind_of_variable(pattern) == "M" else 4
        tensor = value(node)
        fits = isinstance(tensor, torch.Tensor) and (any_rank or tensor.dim() == rank)
        return fits and match.bound.setdefault(pattern, node) is node
    found = operator_of(node) if node.op == "call_function" else None
    if found is None or found[0] != name_in_graph(pattern[0]) or len(found[1]) != len(pattern) - 1:
        return False
    if found[2] is not None:
        if match.settings is None:
            match.settings = found[2]
        if match.settings != found[2]:
            return False
    return all(_bind(p, n, match, any_rank) for p, n in zip(pattern[1:], found[1], strict=True))


def elementwise(rule: Rule) -> bool:
    """Whether a rule has elementwise operators alone."""
    return all(
        isinstance(t, str) or t[0] in _ELEMENTWISE
        for side in (rule.left, rule.right)
        for t in subterms(side)
    )


def matches(graph: fx.Graph, rules: list[Rule]) -> Iterator[Match]:
    """Return where rules can be applied."""
    for node in calls(graph):
        for rule in rules:
            match = Match(rule, node)
            if _bind(rule.left, node, match, elementwise(rule)):
                yield match


def call(
    graph: fx.Graph, operator: str, args: list[fx.Node], settings: list[Any] | None
) -> fx.Node:
    """Add a call of an operator of the language to a graph, with its fake tensor.

    Raises:
        ValueError: the operator does not take these shapes without broadcasting.
    """
    given = [value(a) for a in args]
    if operator in _ELEMENTWISE and len({tuple(g.shape) for g in given}) > 1:
        raise ValueError("broadcasting")
    rest: tuple[Any, ...] = ()
    first: tuple[Any, ...] = tuple(args)
    if operator in _PLAIN:
        target = getattr(aten, _PLAIN[operator])
        target = target.Tensor if operator in ("add", "sub", "mul") else target.default
    elif operator == "t":
        target, rest = aten.permute.default, ([1, 0],)
    elif operator == "conv":
        stride, padding, dilation = settings or ([1, 1], [0, 0], [1, 1])
        target = aten.convolution.default
        rest = (None, stride, padding, dilation, False, [0, 0], 1)
    elif operator in _JOINED:
        target, first, rest = aten.cat.default, (list(args),), (_JOINED[operator][1],)
    else:
        dim = _HALVED[operator][1]
        target, rest = aten.slice.Tensor, (dim, 0, given[0].shape[dim] // 2)
    node = graph.call_function(target, (*first, *rest))
    mode = next(g.fake_mode for g in given if hasattr(g, "fake_mode"))
    with mode, torch.no_grad():
        node.meta["val"] = target(*fx.map_arg(node.args, value))
    return node


def _built(graph: fx.Graph, term: Term, match: Match) -> fx.Node:
    if isinstance(term, str):
        return match.bound[term]
    args = [_built(graph, argument, match) for argument in term[1:]]
    return call(graph, term[0], args, match.settings)


def apply(match: Match) -> bool:
    """Put a rule's right side in the place of its left side; False if the shapes forbid it."""
    graph, old = match.node.graph, match.node
    before = set(graph.nodes)
    try:
        # All operands lie before the node that its left side ends with.
        with graph.inserting_before(old):
            new = _built(graph, match.rule.right, match)
        now, was = value(new), value(old)
        fits = (now.shape, now.dtype) == (was.shape, was.dtype)
    except (ValueError, RuntimeError):
        fits = False
    if not fits:
        for node in reversed([n for n in graph.nodes if n not in before]):
            graph.erase_node(node)
        return False
    old.replace_all_uses_with(new)
    graph.eliminate_dead_code()
    return True
