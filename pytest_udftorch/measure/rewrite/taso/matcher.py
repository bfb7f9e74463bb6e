# SPDX-License-Identifier: Apache-2.0
"""Where a rule's left side is in a graph of ATen operators, and how its right side takes its place.

A term's operator stands for one call in ATen with arguments for which the rules were proved: no
broadcasting, no ``alpha``. Matrices may have a dimension of batches before them, and images one to
three dimensions. A convolution or product without a bias has one of zeros. The convolutions of a
match have the same stride, padding, dilation and groups. In each group the same happens as in a
convolution without groups, so a rule that joins and splits no channels holds for groups, too; one
that halves their number holds for each pair of them. A kernel is enlarged by zeros where its
padding is smaller by as much. Rules of elementwise operators hold for tensors of any rank.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from pytest_udftorch.measure.rewrite.graphs import aten, calls, packet_name, value
from pytest_udftorch.measure.rewrite.taso.language import (
    COMMUTATIVE,
    SPLITS,
    Term,
    canonical,
    kind_of_variable,
    subterms,
)
from pytest_udftorch.measure.rewrite.taso.rules import Rule

#: Operator of the language -> operator of ATen, where every argument is a tensor of one shape.
_ELEMENTWISE: Final = {
    "add": "add", "sub": "sub", "mul": "mul", "max": "maximum", "min": "minimum", "neg": "neg",
    "relu": "relu", "abs": "abs",
}  # fmt: skip
#: Operators that join: along which dimension, from the last one where it is negative.
_JOINS: Final = {"rows": -2, "columns": -1, "channels": 1, "outputs": 0, "inputs": 1, "both": 0}
#: Operators that take apart: the same, and which part it is.
_PARTS: Final = {
    split: (_JOINS[join], number)
    for join, splits in SPLITS.items()
    for number, split in enumerate(splits)
}
_OF_MATRICES: Final = "MBC"
_OF_IMAGES: Final = "IJKONLG"
#: Operators of the joined channels of images, which rules for groups must not have.
_OF_CHANNELS: Final = {"channels", "outputs", "inputs", "front", "back", "both"}


@dataclass(frozen=True)
class Zeros:
    """A bias that a call does not have: so many zeros."""

    count: int
    dtype: torch.dtype
    device: torch.device


#: What a variable stands for.
Operand: TypeAlias = fx.Node | Zeros


@dataclass(frozen=True)
class Setting:
    """What the convolutions of a match share; numbers for each dimension of the images."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


@dataclass(frozen=True)
class Match:
    """A rule that can be applied.

    Attributes:
        rule: the rule.
        roots: the nodes that its left sides compute.
        bound: variable -> what it stands for.
        support: all nodes of its left sides.
        setting: of the convolutions that the right side calls.
        small: of those with a smaller kernel.
        margin: by how many zeros a smaller kernel is enlarged at each end of a dimension.
        cut: where the left side takes a value apart, or None.
    """

    rule: Rule
    roots: tuple[fx.Node, ...] = ()
    bound: dict[str, Operand] = field(default_factory=dict)
    support: frozenset[fx.Node] = frozenset()
    setting: Setting | None = None
    small: Setting | None = None
    margin: tuple[int, ...] = ()
    cut: int | None = None


def _padded(setting: list[Any], rank: int) -> tuple[int, ...]:
    return tuple(setting) * (rank if len(setting) == 1 else 1)


def setting_of(node: fx.Node) -> Setting | None:
    """Return what a convolution is called with, or None if it is no ordinary convolution."""
    args: tuple[Any, ...] = node.args
    if packet_name(node) != "convolution" or args[6] or any(args[7]):
        return None
    rank = value(args[1]).dim() - 2
    stride, padding, dilation = (_padded(list(a), rank) for a in args[3:6])
    return Setting(stride, padding, dilation, args[8])


def bias_or_zeros(bias: fx.Node | None, node: fx.Node, dim: int) -> Operand:
    """Return a bias, or the zeros that stand for one."""
    mine = value(node)
    return bias if bias is not None else Zeros(mine.shape[dim], mine.dtype, mine.device)


def arguments(operator: str, node: fx.Node) -> list[Operand] | None:
    """Return the arguments with which a node calls an operator of the language, or None."""
    name = packet_name(node)
    args: tuple[Any, ...] = node.args
    mine = value(node)
    if node.op != "call_function" or not isinstance(mine, torch.Tensor):
        return None
    if not mine.is_floating_point():
        return None
    inputs = [a for a in args if isinstance(a, fx.Node)]
    if operator in _ELEMENTWISE:
        plain = name == _ELEMENTWISE[operator] and len(inputs) == len(args) and not node.kwargs
        return [*inputs] if plain and all(value(n).shape == mine.shape for n in inputs) else None
    if operator == "mm":
        return [*inputs] if name in ("mm", "bmm") else None
    if operator == "linear":
        if name == "mm":
            return [*inputs, bias_or_zeros(None, node, -1)]
        plain = name == "addmm" and not node.kwargs and value(inputs[0]).dim() == 1
        return [inputs[1], inputs[2], inputs[0]] if plain else None
    if operator == "t":
        return [*inputs] if _turns(name, args, mine.dim()) else None
    if operator in ("conv", "point", "gconv"):
        if setting_of(node) is None:
            return None
        bias: Any = args[2]
        return [inputs[0], inputs[1], bias_or_zeros(bias, node, 1)]
    if operator in _JOINS and name == "cat" and isinstance(args[0], list | tuple):
        dim = (args[1] if len(args) > 1 else 0) % mine.dim()
        fits = len(args[0]) == 2 and dim == _JOINS[operator] % mine.dim()
        return list(args[0]) if fits else None
    if operator in _PARTS and name == "slice" and len(args) == 4:
        return [*inputs] if cut_of(operator, node) is not None else None
    return None


def _turns(name: str, args: tuple[Any, ...], rank: int) -> bool:
    """Whether a call turns matrices round."""
    last = [*range(rank - 2), rank - 1, rank - 2]
    if name == "transpose":
        return {a % rank for a in args[1:]} == {rank - 1, rank - 2}
    return (name == "t" and rank == 2) or (name == "permute" and [*args[1]] == last)


def cut_of(operator: str, node: fx.Node) -> int | None:
    """Return where a slice takes its argument in two, if it is that part of it."""
    where, number = _PARTS[operator]
    given: tuple[Any, ...] = node.args
    source, dim, start, end = given
    shape = value(source).shape
    size = shape[dim]
    start, stop = start or 0, min(end, size)
    if dim % len(shape) != where % len(shape) or start < 0 or stop <= start:
        return None
    if number == 0:
        return stop if start == 0 and stop < size else None
    return start if stop == size and start > 0 else None


@dataclass(frozen=True)
class _State:
    """What is known while a left side is matched; ``rank`` is that of its matrices or images."""

    bound: dict[str, Operand] = field(default_factory=dict)
    support: frozenset[fx.Node] = frozenset()
    calls: tuple[tuple[str, fx.Node], ...] = ()
    cut: int | None = None
    rank: int | None = None


def _variable(name: str, operand: Operand, state: _State, any_rank: bool) -> _State | None:
    if name in state.bound:
        return state if state.bound[name] == operand else None
    bound = {**state.bound, name: operand}
    if isinstance(operand, Zeros):
        return replace(state, bound=bound)
    tensor = value(operand)
    if not isinstance(tensor, torch.Tensor):
        return None
    kind, rank = kind_of_variable(name), state.rank
    if not any_rank:
        if kind in "VP":
            return replace(state, bound=bound) if tensor.dim() == 1 else None
        low, high = (2, 3) if kind in _OF_MATRICES else (3, 5)
        if not low <= tensor.dim() <= high or rank not in (None, tensor.dim()):
            return None
        rank = tensor.dim()
    return replace(state, bound=bound, rank=rank)


def _bindings(pattern: Term, operand: Operand, state: _State, any_rank: bool) -> Iterator[_State]:
    """Return the ways in which an operand is what a pattern says."""
    if isinstance(pattern, str):
        found = _variable(pattern, operand, state, any_rank)
        if found is not None:
            yield found
        return
    if isinstance(operand, Zeros) or (given := arguments(pattern[0], operand)) is None:
        return
    cut = state.cut
    if pattern[0] in _PARTS:
        cut = cut_of(pattern[0], operand)
        if state.cut not in (None, cut):
            return
    convolutions = state.calls
    if pattern[0] in ("conv", "point", "gconv"):
        convolutions = (*convolutions, (pattern[0], operand))
    inside = replace(state, support=state.support | {operand}, calls=convolutions, cut=cut)
    orders = [given]
    if pattern[0] in COMMUTATIVE and given[0] != given[1]:
        orders.append(given[::-1])
    for order in orders:
        states = [inside]
        for part, argument in zip(pattern[1:], order, strict=True):
            states = [s for one in states for s in _bindings(part, argument, one, any_rank)]
        yield from states


@functools.cache
def _operators(rule: Rule) -> frozenset[str]:
    """Return the operators of a rule."""
    found = (t[0] for side in rule.sides for t in subterms(side) if not isinstance(t, str))
    return frozenset(found)


@functools.cache
def _on_the_left(rule: Rule) -> frozenset[str]:
    """Return the operators of a rule's left sides."""
    lefts = (left for left, _ in rule.roots)
    return frozenset(t[0] for left in lefts for t in subterms(left) if not isinstance(t, str))


@functools.cache
def elementwise(rule: Rule) -> bool:
    """Whether a rule has elementwise operators alone."""
    return _operators(rule) <= {*_ELEMENTWISE}


def _settled(rule: Rule, roots: tuple[fx.Node, ...], state: _State) -> Match | None:
    """Return a match with the setting of its convolutions; None if they do not fit together."""
    operators = _operators(rule)
    biases = [o for name, o in state.bound.items() if kind_of_variable(name) == "V"]
    if biases and all(isinstance(bias, Zeros) for bias in biases):
        return None  # there are rules of products without a bias
    called: dict[str, Setting] = {}
    kernels: dict[str, tuple[int, ...]] = {}
    for name, node in state.calls:
        setting = setting_of(node)
        assert setting is not None
        if name == "gconv":
            if setting.groups % 2:
                return None
            setting, name = replace(setting, groups=setting.groups // 2), "conv"
        shape = tuple(value(node.args[1]).shape[2:])  # type: ignore[arg-type]
        if called.setdefault(name, setting) != setting or kernels.setdefault(name, shape) != shape:
            return None
    setting, small = called.get("conv"), called.get("point")
    margin: tuple[int, ...] = ()
    if small is not None and "enlarge" in operators:
        ones = set(kernels["point"]) == {1}
        if setting is None:
            if not ones:
                return None
            wider = tuple(p + 1 for p in small.padding)
            setting = replace(small, padding=wider, dilation=(1,) * len(wider))
            margin = (1,) * len(wider)
        else:
            found = _margin(small, setting, kernels["point"], kernels["conv"])
            if found is None:
                return None
            margin = found
    groups = max((s.groups for s in (setting, small) if s is not None), default=1)
    if groups > 1 and operators & _OF_CHANNELS:
        return None
    return Match(rule, roots, state.bound, state.support, setting, small, margin, state.cut)


def _margin(
    small: Setting, big: Setting, kernel: tuple[int, ...], whole: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return by how many zeros a kernel is enlarged at each end, or None if that is not enough."""
    if (small.stride, small.groups) != (big.stride, big.groups):
        return None
    found = []
    for dim, step in enumerate(big.dilation):
        zeros, rest = divmod(big.padding[dim] - small.padding[dim], step)
        spread = kernel[dim] == 1 or small.dilation[dim] == step
        if rest or zeros < 0 or not spread or kernel[dim] + 2 * zeros != whole[dim]:
            return None
        found.append(zeros)
    return tuple(found) if any(found) else None


@functools.cache
def _alike(rule: Rule) -> bool:
    """Whether the two roots of a rule differ in the names of variables alone."""
    (one, _), (two, _) = rule.roots
    return canonical((one,), (two,)) == canonical((two,), (one,))


#: Operator of the language -> operators of ATen that may be it.
_NAMES: Final = {
    **{name: (target,) for name, target in _ELEMENTWISE.items()},
    **dict.fromkeys(_JOINS, ("cat",)),
    **dict.fromkeys(_PARTS, ("slice",)),
    **dict.fromkeys(("conv", "point", "gconv"), ("convolution",)),
    "mm": ("mm", "bmm"),
    "linear": ("addmm", "mm"),
    "t": ("t", "permute", "transpose"),
}


def matches(graph: fx.Graph, rules: Sequence[Rule]) -> Iterator[Match]:
    """Return where rules can be applied."""
    order: dict[fx.Node, int] = {}
    by_name: dict[str, list[fx.Node]] = {}
    for number, node in enumerate(calls(graph)):
        order[node] = number
        by_name.setdefault(packet_name(node), []).append(node)

    def nodes_of(pattern: Term) -> Iterator[fx.Node]:
        for name in _NAMES.get(pattern[0], ()):
            yield from by_name.get(name, ())

    for rule in rules:
        if not all(any(map(by_name.get, _NAMES.get(o, ()))) for o in _on_the_left(rule)):
            continue
        any_rank = elementwise(rule)
        first, *others = (left for left, _ in rule.roots)
        for node in nodes_of(first):
            for state in _bindings(first, node, _State(), any_rank):
                found: list[tuple[tuple[fx.Node, ...], _State]] = [((node,), state)]
                for second in others:
                    found = [
                        ((*roots, other), more)
                        for roots, known in found
                        for other in nodes_of(second)
                        if other not in roots and (order[other] > order[node] or not _alike(rule))
                        for more in _bindings(second, other, known, any_rank)
                    ]
                for roots, known in found:
                    match = _settled(rule, roots, known)
                    if match is not None and (len(roots) == 1 or not _depends(match)):
                        yield match


def _depends(match: Match) -> bool:
    """Whether an operand is computed from a root: then the roots cannot be computed together."""
    waiting = [o for o in match.bound.values() if isinstance(o, fx.Node)]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node in match.roots:
            return True
        new = [n for n in node.all_input_nodes if n not in seen]
        seen.update(new)
        waiting += new
    return False


def called(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Add a call to a graph, with its fake tensor.

    Raises:
        RuntimeError: the operator does not take these tensors.
    """
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = _value_of(node)
    return node


def _sum_of_biases(graph: fx.Graph, one: Operand, two: Operand) -> Operand:
    if isinstance(one, Zeros):
        return two
    return one if isinstance(two, Zeros) else called(graph, aten.add.Tensor, one, two)


def _joined_biases(graph: fx.Graph, one: Operand, two: Operand) -> Operand:
    if isinstance(one, Zeros) and isinstance(two, Zeros):
        return replace(one, count=one.count + two.count)
    known = next(o for o in (one, two) if isinstance(o, fx.Node))
    parts = [
        called(graph, aten.new_zeros.default, known, [o.count]) if isinstance(o, Zeros) else o
        for o in (one, two)
    ]
    return called(graph, aten.cat.default, parts, 0)


def _ungrouped(graph: fx.Graph, kernel: fx.Node, groups: int) -> fx.Node:
    """Return a kernel of half as many groups, with zeros where an output did not see an input."""
    shape = list(value(kernel).shape)
    outputs, inputs = shape[0] // (2 * groups), shape[1]
    parted = called(graph, aten.view.default, kernel, [groups, 2, outputs, *shape[1:]])
    margins = [0] * (2 * (len(shape) - 2))
    halves = []
    for number, (low, high) in enumerate([(0, inputs), (inputs, 0)]):
        half = called(graph, aten.slice.Tensor, parted, 1, number, number + 1)
        halves.append(called(graph, aten.constant_pad_nd.default, half, [*margins, low, high]))
    both = called(graph, aten.cat.default, halves, 1)
    return called(graph, aten.view.default, both, [shape[0], 2 * inputs, *shape[2:]])


def call(
    graph: fx.Graph, operator: str, args: Sequence[Operand], match: Match, root: fx.Node | None
) -> Operand:
    """Add a call of an operator of the language to a graph, with its fake tensor.

    Args:
        graph: where it is added.
        operator: its name.
        args: its arguments.
        match: has the setting of convolutions, and where the left side takes values apart.
        root: what the call takes the place of, if it is a part of a larger value.

    Raises:
        ValueError: the operator does not take these shapes without broadcasting.
        RuntimeError: it does not take them at all.
    """
    if operator == "both":
        return _joined_biases(graph, *args)
    if operator == "add" and any(isinstance(a, Zeros) for a in args):
        return _sum_of_biases(graph, *args)
    nodes: list[Any] = [None if isinstance(a, Zeros) else a for a in args]
    shapes = [value(n).shape for n in nodes if n is not None]
    if operator in _ELEMENTWISE:
        if len(set(shapes)) > 1:
            raise ValueError("broadcasting")
        packet = getattr(aten, _ELEMENTWISE[operator])
        target = packet.Tensor if operator in ("add", "sub", "mul") else packet.default
        return called(graph, target, *nodes)
    if operator in ("mm", "linear"):
        if operator == "linear" and nodes[2] is not None:
            return called(graph, aten.addmm.default, nodes[2], *nodes[:2])
        target = aten.mm.default if len(shapes[0]) == 2 else aten.bmm.default
        return called(graph, target, *nodes[:2])
    if operator == "t":
        rank = len(shapes[0])
        turned = [*range(rank - 2), rank - 1, rank - 2]
        return called(graph, aten.permute.default, nodes[0], turned)
    if operator in ("conv", "point", "gconv"):
        setting = match.small if operator == "point" else match.setting
        if setting is None:
            raise ValueError("no convolution of this kind is on the left side")
        groups = setting.groups * (2 if operator == "gconv" else 1)
        numbers = (list(n) for n in (setting.stride, setting.padding, setting.dilation))
        zeros = [0] * len(setting.stride)
        return called(graph, aten.convolution.default, *nodes, *numbers, False, zeros, groups)
    if operator in _JOINS:
        return called(graph, aten.cat.default, nodes, _JOINS[operator] % len(shapes[0]))
    if operator in _PARTS:
        where, number = _PARTS[operator]
        dim = where % len(shapes[0])
        size = shapes[0][dim]
        cut = match.cut
        if cut is None:
            if root is None:
                raise ValueError("it is not known where the value is taken apart")
            own = value(root).shape[dim]
            cut = size - own if number else own
        bounds = (cut, size) if number else (0, cut)
        return called(graph, aten.slice.Tensor, nodes[0], dim, *bounds)
    if operator == "enlarge":
        margins = [zeros for m in reversed(match.margin) for zeros in (m, m)]
        return called(graph, aten.constant_pad_nd.default, nodes[0], margins)
    assert operator == "ungroup"
    assert match.setting is not None
    return _ungrouped(graph, nodes[0], match.setting.groups)


def apply(match: Match) -> list[fx.Node] | None:
    """Put a rule's right sides in the place of its left sides.

    Returns:
        The new nodes whose layout is not that of the node before; None if the shapes forbid it.
    """
    graph = match.roots[0].graph
    before = set(graph.nodes)
    built: dict[Term, Operand] = dict(match.bound.items())

    def build(term: Term, root: fx.Node | None) -> Operand:
        if term not in built:
            args = [build(argument, None) for argument in term[1:]]
            built[term] = call(graph, term[0], args, match, root)
        return built[term]

    new: list[Any] = []
    try:
        with graph.inserting_before(match.roots[0]):
            new = [build(r, n) for (_, r), n in zip(match.rule.roots, match.roots, strict=True)]
        fits = all(
            isinstance(n, fx.Node)
            and (value(n).shape, value(n).dtype) == (value(old).shape, value(old).dtype)
            for n, old in zip(new, match.roots, strict=True)
        )
    except (ValueError, RuntimeError):
        fits = False
    if not fits:
        for node in reversed([n for n in graph.nodes if n not in before]):
            graph.erase_node(node)
        return None
    other = []
    for old, node in zip(match.roots, new, strict=True):
        old.replace_all_uses_with(node)
        if value(old).stride() != value(node).stride():
            other.append(node)
    in_order(graph)
    graph.eliminate_dead_code()
    return other


def refreshed(graph: fx.Graph, changed: Sequence[fx.Node]) -> bool:
    """Compute the fake tensors anew of what follows nodes with another layout.

    What a call of a target with the attribute ``kept`` gives does not change.

    Returns:
        Whether all calls take the layouts that they are given now.
    """
    other = set(changed)
    for node in calls(graph) if other else ():
        if other.isdisjoint(node.all_input_nodes) or getattr(node.target, "kept", False):
            continue
        before = value(node)
        try:
            node.meta["val"] = _value_of(node)
        except RuntimeError:
            return False
        same = isinstance(before, torch.Tensor) and before.stride() == value(node).stride()
        if not same:
            other.add(node)
    return True


def _value_of(node: fx.Node) -> Any:
    """Return the fake result of a call."""
    fakes = (getattr(value(n), "fake_mode", None) for n in node.all_input_nodes)
    mode = next((m for m in fakes if m is not None), None)
    given, named = fx.map_arg((node.args, node.kwargs), value)
    target: Any = node.target
    with torch.no_grad(), contextlib.nullcontext() if mode is None else mode:
        return target(*given, **named)


def in_order(graph: fx.Graph) -> None:
    """Put nodes behind those that they take.

    Raises:
        ValueError: there is no such order, since nodes take each other's results.
    """
    nodes = list(graph.nodes)
    placed: set[fx.Node] = set()
    order: list[fx.Node] = []
    for start in nodes:
        path = [(start, iter(start.all_input_nodes))] if start not in placed else []
        open_ones = {start}
        while path:
            node, rest = path[-1]
            below = next((n for n in rest if n not in placed), None)
            if below is None:
                path.pop()
                open_ones.discard(node)
                placed.add(node)
                order.append(node)
            elif below in open_ones:
                raise ValueError("nodes take each other's results")
            else:
                open_ones.add(below)
                path.append((below, iter(below.all_input_nodes)))
    if order != nodes:
        end = order[-1]  # the output takes all others that count
        for node in order[:-1]:
            end.prepend(node)
