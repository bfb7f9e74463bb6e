# SPDX-License-Identifier: Apache-2.0
"""Trees of up to three linear operators around products, as other programs of the same inputs.

Reshapes, transposes, padding and slices may lie between products, convolutions and averages. All
programs of a few calls are enumerated, on small whole numbers and small sizes; values that are
equal count once. Those that give the result are judged by the box test, and have to be right
everywhere: no correction of a product is cheaper than the product.

Source: Wang et al., PET: Optimizing Tensor Programs with Partially Equivalent Transformations and
Automated Corrections, OSDI 2021.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import fx
from torch.nn import functional as F

from pytest_udftorch.errors import EquivalenceError
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.boxes import equivalence
from pytest_udftorch.measure.rewrite.graphs import aten, packet_name, value
from pytest_udftorch.measure.rewrite.mutants import Region
from pytest_udftorch.measure.rewrite.stage_nodes import inserted

#: The number of an input; or the name of an operator, what it takes besides, and what it is of.
Term: TypeAlias = "int | tuple[Any, ...]"
Shape: TypeAlias = tuple[int, ...]
#: A tree has at most so many linear operators, and calls with those that move elements.
LINEAR: Final = 3
CALLS: Final = 6
#: Programs have at most so many calls, and are made of so many values.
_LENGTH: Final = 4
_VALUES: Final = 400
#: The most elements of a value; the most multiplications of all, and for how many a call counts.
_ELEMENTS: Final = 2**18
_WORK: Final = 2**31
_CALL: Final = 2**16
#: Other programs that are measured.
_MEASURED: Final = 4


def _linear(_: Any, x: Any, w: Any, b: Any) -> Any:
    if x.dim() == 1:
        return torch.mv(w.t(), x) + b
    return torch.addmm(b, x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], w.shape[1])


def _product(_: Any, a: Any, b: Any) -> Any:
    if a.dim() == 2 < b.dim():
        return torch.bmm(a.expand(b.shape[0], *a.shape), b)
    if b.dim() == 2:
        return torch.mm(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[1])
    return torch.bmm(a, b)


def _convolution(rest: Any, x: Any, w: Any, b: Any = None) -> Any:
    return aten.convolution(x, w, b, *rest)


#: Operator -> its call; those of the first line are linear, the others move elements.
_LINEAR: Final[dict[str, Callable[..., Any]]] = {
    "linear": _linear, "product": _product, "convolution": _convolution,
    "average": lambda given, x: getattr(aten, given[0])(x, *given[1:]),
    "mean": lambda given, x: x.mean(*given),
}  # fmt: skip
_MOVING: Final[dict[str, Callable[..., Any]]] = {
    "turned": lambda order, x: x.permute(order),
    "shaped": lambda shape, x: x.reshape(shape),
    "part": lambda given, x: x.narrow(given[0], given[1], given[2] - given[1]),
    "taken": lambda given, x: x.select(*given),
    "edges": lambda pads, x: F.pad(x, pads),
}
_CALLS: Final = {**_LINEAR, **_MOVING}


def computed(term: Term, tensors: Sequence[Any]) -> Any:
    """Return the value of a term."""
    if isinstance(term, int):
        return tensors[term]
    name, given, *inner = term
    return _CALLS[name](given, *(computed(t, tensors) for t in inner))


def contiguous(term: Term, tensors: Sequence[Any]) -> Any:
    """Return the value of a term without gaps between its elements."""
    return computed(term, tensors).contiguous()


def calls_of(term: Term) -> Iterator[tuple[Any, ...]]:
    """Return the calls of a term, those that come first in it first."""
    if not isinstance(term, int):
        for inner in term[2:]:
            yield from calls_of(inner)
        yield term


def _inputs(term: Term) -> set[int]:
    return {term} if isinstance(term, int) else set().union(*map(_inputs, term[2:]))


@dataclass(frozen=True)
class Tree:
    """A program, and what its inputs are.

    Attributes:
        term: it.
        shapes: of the inputs.
        held: the numbers of the inputs that keep their values.
    """

    term: Term
    shapes: tuple[Shape, ...]
    held: frozenset[int]

    def shape(self, term: Term) -> Shape:
        """Return the shape of a term of its inputs."""
        with torch.device("meta"):
            return tuple(computed(term, [torch.empty(s) for s in self.shapes]).shape)

    def fits(self, term: Term) -> bool:
        """Whether a term has the shape of the tree."""
        try:
            return self.shape(term) == self.shape(self.term)
        except RuntimeError:
            return False  # small sizes had as many elements by chance

    def sizes(self) -> dict[int, int]:
        """Return smaller sizes for those that no call looks at."""
        fixed = {1}
        for call in calls_of(self.term):
            name, given, *inner = call
            result, *sources = map(self.shape, (call, *inner))
            if name in ("part", "taken"):
                fixed |= {sources[0][given[0]], *(result[given[0] :][:1] if name == "part" else ())}
            elif name == "edges":
                fixed |= {n for pair in zip(sources[0], result, strict=True)
                          if pair[0] != pair[1] for n in pair}  # fmt: skip
            elif name == "shaped":
                fixed |= {*_between(sources[0], result), *_between(result, sources[0])}
            elif name in ("convolution", "average"):
                fixed |= {size for shape in (result, *sources[:2]) for size in shape[1:]}
        free = sorted({size for shape in self.shapes for size in shape} - fixed)
        small = (n for n in itertools.count(2) if n not in fixed)
        return dict(zip(free, small, strict=False))

    def few(self) -> tuple[Tree, dict[int, int]]:
        """Return it with small sizes, and how to get back from these."""
        sizes = self.sizes()
        smaller = tuple(tuple(sizes.get(n, n) for n in shape) for shape in self.shapes)
        return Tree(_resized(self.term, sizes), smaller, self.held), {
            new: old for old, new in sizes.items()
        }


def _between(shape: Shape, other: Shape) -> Shape:
    """Return the sizes of a shape between those with which both begin and end."""
    pairs = [*zip(shape, other, strict=False)], [*zip(shape[::-1], other[::-1], strict=False)]
    begin, end = (len([*itertools.takewhile(lambda p: p[0] == p[1], side)]) for side in pairs)
    return shape[begin : max(len(shape) - end, begin)]


def _resized(term: Term, sizes: dict[int, int]) -> Term:
    """Return a term for other sizes."""
    if isinstance(term, int):
        return term
    name, given, *inner = term
    if name == "shaped":
        given = tuple(sizes.get(n, n) for n in given)
    return (name, given, *(_resized(t, sizes) for t in inner))


def _moves(tree: Tree) -> Callable[[Shape], Iterator[tuple[str, Any]]]:
    """Return what gives the calls of one tensor to try for a shape: those that the tree has."""
    found: dict[tuple[str, Any], Shape] = {}
    shapes = {*tree.shapes}
    for call in calls_of(tree.term):
        found.setdefault((call[0], call[1]), tree.shape(call[2]))
        shapes.add(tree.shape(call))
    orders = {given for name, given in found if name == "turned"}
    orders |= {tuple(order.index(d) for d in range(len(order))) for order in orders}

    def of(shape: Shape) -> Iterator[tuple[str, Any]]:
        rank = len(shape)
        swap = (*range(rank - 2), rank - 1, rank - 2)
        yield from (("turned", o) for o in {*orders, swap} if len(o) == rank > 1)
        yield from (
            ("shaped", s) for s in shapes if s != shape and math.prod(s) == math.prod(shape)
        )
        for (name, given), source in found.items():
            if name in ("part", "taken"):
                size = source[given[0]]
                yield from ((name, (d, *given[1:])) for d in range(rank) if shape[d] == size)
            elif name in ("edges", "average", "mean") and rank == len(source):
                yield name, given

    return of


def _joined(kinds: set[Any], some: Sequence[Shape]) -> Iterator[tuple[str, Any]]:
    """Return the calls of several tensors to try for their shapes."""
    a, b, *rest = some
    if len(b) > 1 and a[-1:] == b[-2:-1]:
        if rest and len(b) == 2 and rest[0] == b[1:]:
            yield "linear", None
        elif not rest and len(a) > 1 and (2 in (len(a), len(b)) or a[:-2] == b[:-2]):
            yield "product", None
    yield from (
        (name, given)
        for name, given, count in kinds
        if name == "convolution" and count == len(some) and len(a) == len(b) > 2
    )


@dataclass
class _Value:
    """A term, its value for small whole numbers, and what it costs at the sizes of the tree."""

    term: Term
    tensor: Any
    cost: float = 0.0
    held: bool = False


def _cost(call: tuple[Any, ...], result: Shape, sources: Sequence[Shape]) -> float:
    """Return an estimate of what a call takes: multiplications, and elements written."""
    elements = float(math.prod(result))
    if call[0] in ("linear", "product"):
        return elements * (1 + sources[0][-1])
    if call[0] == "convolution":
        return elements * (1 + math.prod(sources[1][1:]))
    return 1 + elements * (call[0] not in ("turned", "part", "taken"))


class _Enumeration:
    """The programs of a few calls, on small whole numbers."""

    def __init__(self, tree: Tree) -> None:
        self.few, self.back = tree.few()
        generator = torch.Generator().manual_seed(0)
        self.kinds = {(call[0], call[1], len(call) - 2) for call in calls_of(self.few.term)}
        self.moves = _moves(self.few)
        given = [torch.randint(-9, 10, s, generator=generator).double() for s in self.few.shapes]
        inputs = [_Value(n, t, held=n in tree.held) for n, t in enumerate(given)]
        self.known = {_key(v.tensor): v for v in inputs}
        #: The values of programs of so many calls.
        self.levels = [inputs]
        self.work = 0
        self.own = self._own(self.few.term)

    def _own(self, term: Term) -> _Value:
        """Return the value of the tree."""
        if isinstance(term, int):
            return self.levels[0][term]
        found = self._called(term[:2], [self._own(t) for t in term[2:]])
        assert found is not None
        return found

    def _called(self, kind: Sequence[Any], of: Sequence[_Value]) -> _Value | None:
        """Return a call of values; None if it does not take their shapes, or makes too much."""
        self.work += _CALL
        if kind[0] == "product":
            a, b = (v.tensor.shape for v in of)
            if max(math.prod(a[:-1]), math.prod(b[:-2]) * a[-2]) * b[-1] > _ELEMENTS:
                return None
        try:
            tensor = _CALLS[kind[0]](kind[1], *(v.tensor for v in of))
        except (RuntimeError, IndexError, ValueError):
            return None
        self.work += tensor.numel() * max(of[0].tensor.shape, default=1)
        held = all(v.held for v in of)
        sizes = [
            tuple(self.back.get(n, n) for n in t.shape) for t in (tensor, *(v.tensor for v in of))
        ]
        own = 0.0 if held else _cost(tuple(kind), sizes[0], sizes[1:])
        return _Value((*kind, *(v.term for v in of)), tensor, own + sum(v.cost for v in of), held)

    def _next(self, size: int) -> Iterator[_Value | None]:
        """Return the values of all programs of so many calls."""
        for other in list(self.levels[size - 1]):
            for move in self.moves(tuple(other.tensor.shape)):
                yield self._called(move, [other])
        groups: list[dict[Shape, list[_Value]]] = []
        for level in self.levels[:size]:
            groups.append({})
            for other in level:
                groups[-1].setdefault(tuple(other.tensor.shape), []).append(other)
        for count in {2, *(count for *_, count in self.kinds if count > 2)}:
            for lengths in itertools.product(range(size), repeat=count):
                if sum(lengths) == size - 1:
                    for shapes in itertools.product(*(groups[n] for n in lengths)):
                        for kind in _joined(self.kinds, shapes):
                            chosen = (groups[n][s] for n, s in zip(lengths, shapes, strict=True))
                            yield from (self._called(kind, v) for v in itertools.product(*chosen))

    def found(self) -> list[_Value]:
        """Return those that give what the tree gives, those with the least cost first."""
        own, found = self.own, list[_Value]()
        length = min(len([*calls_of(own.term)]) + 1, _LENGTH)
        for size in range(1, length + 1):
            self.levels.append([])
            for other in self._next(size):
                if self.work > _WORK:
                    break
                if other is None or other.tensor.numel() > _ELEMENTS:
                    continue
                if other.tensor.shape == own.tensor.shape and _near(other.tensor, own.tensor):
                    found += [other] if other.term != own.term else []
                elif size < length:
                    self._keep(other, size)
        return sorted((v for v in found if v.cost < own.cost), key=lambda v: v.cost)

    def _keep(self, value: _Value, size: int) -> None:
        """Keep a value that is new, or has become cheaper."""
        key = _key(value.tensor)
        old = self.known.get(key)
        if old is None and len(self.known) < _VALUES:
            self.known[key] = value
            self.levels[size].append(value)
        elif old is not None and value.cost < old.cost:
            old.term, old.cost, old.held = value.term, value.cost, value.held


def _near(a: Any, b: Any) -> bool:
    """Whether values are equal but for the last bits, which averages change."""
    return bool(torch.allclose(a, b, rtol=1e-9, atol=1e-6))


def _key(tensor: Any) -> Any:
    """Return what is the same for equal values."""
    return tuple(tensor.shape), tensor.mul(1024).round().contiguous().numpy().tobytes()


@dataclass(frozen=True)
class Program:
    """A program that may take a tree's place.

    Attributes:
        term: it.
        needed: at how many positions the box test needs it to agree.
        wrong: where it is wrong: nowhere.
    """

    term: Term
    needed: int
    wrong: tuple[Region, ...] = ()

    @property
    def name(self) -> str:
        """What reports call it."""
        return " of ".join(call[0] for call in reversed([*calls_of(self.term)]))


def _program(term: Term, *tensors: Any) -> Any:
    return computed(term, tensors)


@functools.lru_cache(maxsize=256)
def generated(tree: Tree) -> tuple[Program, ...]:
    """Return the programs that are right everywhere, those that are estimated to be fast first."""
    few, back = tree.few()
    terms = (*range(len(few.shapes)), *calls_of(few.term))
    if max(math.prod(few.shape(t)) for t in terms) > _ELEMENTS:
        return ()
    found: dict[Term, Program] = {}
    for other in _Enumeration(tree).found():
        if len(found) == _MEASURED:
            break
        try:
            verdict = equivalence(
                functools.partial(_program, few.term),
                functools.partial(_program, other.term),
                few.shapes,
            )
        except EquivalenceError:
            continue
        term = _resized(other.term, back)
        if verdict.equal and tree.fits(term):
            found[term] = Program(term, verdict.needed)
    return tuple(found.values())


def prepared(term: Term, tree: Tree, tensors: list[Any]) -> Term:
    """Compute what depends on held inputs alone, and return the rest; the tensors grow by it."""
    if isinstance(term, int):
        return term
    if _inputs(term) <= tree.held:
        tensors.append(computed(term, tensors))
        return len(tensors) - 1
    return (*term[:2], *(prepared(t, tree, tensors) for t in term[2:]))


def _call(node: fx.Node) -> tuple[str, Any, list[fx.Node]] | None:
    """Return the operator that a node calls, what it takes besides, and what it is of."""
    name, tensor = packet_name(node), value(node)
    args: tuple[Any, ...] = node.args
    if node.kwargs or not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        return None
    shape = tuple(tensor.shape)
    if name in ("view", "_unsafe_view"):
        return _of_rows(node) or ("shaped", shape, [args[0]])
    if name in ("mm", "bmm"):
        return "product", None, list(args)
    if name == "addmm" and value(args[0]).dim() == 1:
        return "linear", None, [args[1], args[2], args[0]]
    if name == "convolution" and not args[6]:
        rest = tuple(tuple(a) if isinstance(a, list | tuple) else a for a in args[3:])
        return "convolution", rest, [a for a in args[:3] if a is not None]
    if name in ("avg_pool2d", "avg_pool3d"):
        rest = tuple(tuple(a) if isinstance(a, list | tuple) else a for a in args[1:])
        return "average", (name, *rest), [args[0]]
    rank = len(shape)
    if name == "mean" and len(args) > 1:
        return "mean", (tuple(args[1]), *args[2:]), [args[0]]
    if name in ("unsqueeze", "squeeze"):
        return "shaped", shape, [args[0]]
    if name in ("t", "permute", "transpose"):
        order = list(range(rank))
        if name == "permute":
            order = [d % rank for d in args[1]]
        else:
            one, two = [d % rank for d in args[1:]] or [0, 1]
            order[one], order[two] = two, one
        return "turned", tuple(order), [args[0]]
    if name == "select":
        whole = value(args[0]).shape
        dim = args[1] % len(whole)
        return "taken", (dim, args[2] % whole[dim]), [args[0]]
    if name == "slice" and (len(args) < 5 or args[4] == 1) and len(args) > 2:
        dim = args[1] % rank
        whole = value(args[0]).shape[dim]
        start = min(max((args[2] or 0) + whole * ((args[2] or 0) < 0), 0), whole)
        return "part", (dim, start, start + shape[dim]), [args[0]]
    if name == "constant_pad_nd" and not any(args[2:]):
        return "edges", tuple(args[1]), [args[0]]
    return None


def _of_rows(node: fx.Node) -> tuple[str, Any, list[fx.Node]] | None:
    """Return a product of matrices whose rows were joined before it, and are taken apart behind."""
    inner: Any = node.args[0]
    found = _call(inner) if packet_name(inner) in ("mm", "addmm") else None
    if found is None or len(inner.users) > 1 or packet_name(found[2][0]) != "view":
        return None
    source: Any = found[2][0].args[0]
    before, behind = value(source).shape, value(node).shape
    return (*found[:2], [source, *found[2][1:]]) if before[:-1] == behind[:-1] else None


@dataclass(frozen=True)
class FoundTree:
    """A tree in a graph.

    Attributes:
        node: of its result.
        inputs: the nodes of its inputs.
        tree: it.
    """

    node: fx.Node
    inputs: tuple[fx.Node, ...]
    tree: Tree

    def key(self) -> tuple[Any, ...]:
        """Return what decides its times."""
        kinds = ((v.stride(), v.dtype, v.device) for v in map(value, self.inputs))
        return ("program", self.tree, *kinds)

    def replace(self, term: Term) -> None:
        """Put another program in its place."""
        (new,) = inserted(self.node, self.inputs, lambda *t: (contiguous(term, t),))
        new.meta = dict(self.node.meta)
        self.node.replace_all_uses_with(new)
        self.node.graph.eliminate_dead_code()


class _Reader:
    """Reads a tree from its last call back."""

    def __init__(self, node: fx.Node, leaves: Collection[fx.Node]) -> None:
        self.node, self.leaves = node, leaves
        self.inputs: list[fx.Node] = []
        self.calls: list[fx.Node] = []
        self.linear = 0

    def term(self, node: fx.Node) -> Term:
        """Return the term of a node; what others read as well, and leaves, are inputs."""
        found = None if node in self.leaves else _call(node)
        linear = found is not None and found[0] in _LINEAR
        fits = self.linear + linear <= LINEAR and len(self.calls) < CALLS
        if found is None or not fits or (node is not self.node and len(node.users) > 1):
            self.inputs.append(node)
            return len(self.inputs) - 1
        self.linear += linear
        self.calls.append(node)
        inner = [self.term(n) for n in found[2]]
        if found[0] == "shaped" and isinstance(inner[0], int):
            # Another shape of an input is an input as good.
            self.calls.pop()
            self.inputs[inner[0]] = node
            return inner[0]
        return (*found[:2], *inner)


def found_trees(graph: fx.Graph, constant: Collection[fx.Node]) -> Iterator[FoundTree]:
    """Return the trees of a graph that have a product; none share a call.

    Args:
        graph: it.
        constant: nodes that depend on weights alone.
    """
    leaves = set(constant)
    returned = [graphs.base_of(n) for n in graphs.outputs(graph) if isinstance(n, fx.Node)]
    for node in reversed(graphs.calls(graph)):
        call = None if node in leaves else _call(node)
        if call is None or call[0] in ("shaped", "turned", "edges"):
            continue
        if graphs.is_view(node) and call[0] in _LINEAR:
            leaves.add(node.all_input_nodes[0])  # the same product
        # What follows lies as if the result were contiguous, unless the caller is given a view.
        shape, steps = value(node).shape, value(node).stride()
        seen = graphs.base_of(node) in returned or list(steps) != sorted(steps, reverse=True)
        if seen and steps != torch.empty(shape, device="meta").stride():
            continue
        reader = _Reader(node, leaves)
        term = reader.term(node)
        if len(reader.calls) < 2 or not {"linear", "product"} & {c[0] for c in calls_of(term)}:
            continue
        leaves |= {*reader.calls}
        shapes = tuple(tuple(value(n).shape) for n in reader.inputs)
        if all(map(math.prod, shapes)):
            held = frozenset(at for at, n in enumerate(reader.inputs) if n in constant)
            yield FoundTree(node, tuple(reader.inputs), Tree(term, shapes, held))
