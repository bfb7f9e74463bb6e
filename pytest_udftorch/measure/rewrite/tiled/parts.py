# SPDX-License-Identifier: Apache-2.0
"""A graph cut in three: what no row decides, what each row gives, and what follows from all rows.

A row is an index of the first dimension of the inputs that are cut into tiles. A node is computed
before the tiles if no row decides it, and in each tile if its row r needs only row r of the inputs.
A sum or an extreme over all rows is computed of each tile, and these parts are joined.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from pytest_udftorch.base import compat
from pytest_udftorch.errors import RewriteError
from pytest_udftorch.measure.rewrite import graphs

aten: Final[Any] = torch.ops.aten
pytree: Any = compat.pytree()

#: Reductions -> how the results of two tiles are joined.
JOINS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "sum": torch.add,
    "amax": torch.maximum,
    "amin": torch.minimum,
    "any": torch.logical_or,
    "all": torch.logical_and,
    "mm": torch.add,
}

_BEFORE: Final = "before"
_ROWS: Final = "rows"
_TURNED: Final = "turned"
_JOINED: Final = "joined"


#: Shape without rows, strides of a row and within it, and dtype.
Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def _layout(value: torch.Tensor) -> Layout:
    """Return the layout of a tensor, or that of a contiguous one if rows lie in each other."""
    shape, strides = tuple(value.shape[1:]), tuple(value.stride())
    span = sum((n - 1) * s for n, s in zip(shape, strides[1:], strict=True)) + 1
    if strides[0] < span:
        strides = tuple(torch.empty((1, *shape), device="meta").stride())
    return shape, strides, value.dtype


@dataclass(frozen=True)
class Parts:
    """A graph cut in three.

    Attributes:
        before: takes all inputs; gives what the tiles need besides their rows.
        tile: takes the rows of the inputs, then what ``before`` gave; gives rows and parts.
        after: takes what the tiles gave, joined, then what ``before`` gave; gives the outputs.
        joins: for each result of ``tile``, the reduction that joins it, or "" for rows.
        row_bytes: of the memory that one row needs at most at a time.
        layouts: of each result of ``tile`` that has rows: shape without rows, strides, dtype.
        passed: of each output, the result of ``tile`` that it is, or None.
        structure: of the outputs.
    """

    before: fx.GraphModule
    tile: fx.GraphModule
    after: fx.GraphModule
    joins: tuple[str, ...]
    row_bytes: int
    layouts: tuple[Layout | None, ...]
    passed: tuple[int | None, ...]
    structure: Any


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(graphs.value(node).shape)


def _dimensions(node: fx.Node) -> set[int]:
    """Return the dimensions that a reduction reduces."""
    source = node.all_input_nodes[0]
    rank = len(_shape(source))
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if given is None or given == []:
        return set(range(rank))
    listed = given if isinstance(given, list | tuple) else [given]
    return {int(d) % rank for d in listed}  # type: ignore[arg-type]


def _refuse(node: fx.Node, why: str) -> RewriteError:
    return RewriteError(f"{graphs.packet_name(node) or node.target} {why}")


def _first_kept(node: fx.Node) -> bool:
    """Whether a node that moves elements keeps each row where it is."""
    name = graphs.packet_name(node)
    rank = max(1, len(_shape(node.all_input_nodes[0])))
    args = node.args
    if name in ("unsqueeze",):
        return int(args[1]) % (rank + 1) != 0  # type: ignore[arg-type]
    if name in ("squeeze", "slice", "cat", "_softmax", "_log_softmax", "select"):
        given = args[1] if len(args) > 1 else 0
        listed = given if isinstance(given, list | tuple) else [given]
        return all(int(d) % rank != 0 for d in listed)  # type: ignore[arg-type]
    if name in ("permute",):
        return int(args[1][0]) % rank == 0  # type: ignore[arg-type, index]
    if name == "native_layer_norm":
        return len(args[1]) < rank  # type: ignore[arg-type]
    return name in ("clone", "alias", "detach", "_to_copy")


def _is_turned(node: fx.Node) -> bool:
    name = graphs.packet_name(node)
    return name == "t" or (name == "permute" and list(node.args[1]) == [1, 0])  # type: ignore[arg-type]


class _Sorter:
    """Finds of each node when it is computed."""

    def __init__(self, graph: fx.Graph, cut: Collection[int]) -> None:
        self.kind: dict[fx.Node, str] = {}
        self.joins: dict[fx.Node, str] = {}
        for number, node in enumerate(graphs.placeholders(graph)):
            self.kind[node] = _ROWS if number in cut else _BEFORE
        for node in graphs.calls(graph):
            self.kind[node] = self._of(node)

    def _of(self, node: fx.Node) -> str:
        kinds = {self.kind[n] for n in node.all_input_nodes}
        if not kinds & {_ROWS, _TURNED}:
            return _JOINED if _JOINED in kinds else _BEFORE
        if _JOINED in kinds:
            raise _refuse(node, "needs the rows and what follows from all rows, a second pass")
        name = graphs.packet_name(node)
        if name == "mm":
            return self._product(node, *node.args)
        if _TURNED in kinds:
            raise _refuse(node, "takes rows as columns")
        if node.target is operator.getitem:
            return _ROWS
        if name == "addmm":
            bias, left, right = (self.kind[n] for n in node.args)  # type: ignore[index]
            row = len(_shape(node.args[0])) == 1  # type: ignore[arg-type]
            if (bias, left, right) == (_BEFORE, _ROWS, _BEFORE) and row:
                return _ROWS
            raise _refuse(node, "mixes rows")
        if name in JOINS:
            if 0 not in _dimensions(node):
                return _ROWS
            self.joins[node] = name
            return _JOINED
        if torch.Tag.pointwise in getattr(node.target, "tags", ()):
            return self._pointwise(node)
        if _first_kept(node):
            return _ROWS
        if _is_turned(node):
            return _TURNED
        raise _refuse(node, "is not known to keep rows apart")

    def _product(self, node: fx.Node, left: Any, right: Any) -> str:
        kinds = self.kind[left], self.kind[right]
        if kinds == (_ROWS, _BEFORE):
            return _ROWS
        if kinds == (_TURNED, _ROWS):
            self.joins[node] = "mm"
            return _JOINED
        raise _refuse(node, "mixes rows")

    def _pointwise(self, node: fx.Node) -> str:
        rank = len(_shape(node))
        for source in node.all_input_nodes:
            shape = _shape(source)
            if self.kind[source] == _ROWS:
                if len(shape) != rank or shape[0] != _shape(node)[0]:
                    raise _refuse(node, "takes rows as columns")
            elif len(shape) == rank and shape[0] != 1:
                raise _refuse(node, "takes an operand with rows that is not cut")
        return _ROWS


def _without_means(graph: fx.Graph) -> None:
    """Replace means over rows by sums, and the number of rows by an input of the last part."""
    for node in graphs.calls(graph):
        if graphs.packet_name(node) != "mean" or node.kwargs:
            continue
        dims = sorted(_dimensions(node))
        if 0 not in dims:
            continue
        shape = _shape(node.all_input_nodes[0])
        with graph.inserting_before(node):
            keep = bool(node.args[2]) if len(node.args) > 2 else False
            total = graph.call_function(aten.sum.dim_IntList, (node.args[0], dims, keep))
            others = 1
            for d in dims:
                others *= shape[d] if d else 1
            rows = graph.call_function(per_row, (total, others))
        total.meta, rows.meta = dict(node.meta), dict(node.meta)
        node.replace_all_uses_with(rows)
        graph.erase_node(node)


def per_row(total: torch.Tensor, others: int) -> torch.Tensor:
    """Stand for a division of a sum over rows by the number of its addends; see ``cut``."""
    raise AssertionError("it is replaced before the graph runs")


def _live_bytes(
    nodes: Sequence[fx.Node], given: Sequence[fx.Node], kept: Collection[fx.Node]
) -> int:
    """Return the most bytes that are needed at a time, when nodes run in order."""

    def size(node: fx.Node) -> int:
        return sum(t.numel() * t.element_size() for t in graphs.tensors(node))

    last = {source: n for n, node in enumerate(nodes) for source in node.all_input_nodes}
    live = {n for n in given if n in last}
    most = sum(map(size, live))
    for number, node in enumerate(nodes):
        if not graphs.is_view(node):
            live.add(node)
        most = max(most, sum(map(size, live)))
        live -= {n for n in list(live) if last.get(n, -1) <= number and n not in kept}
    return most


def cut(module: fx.GraphModule, tiled: Collection[int], rows: int) -> Parts:
    """Cut a graph.

    Args:
        module: a functional graph of ATen operators whose nodes have fake tensors.
        tiled: the numbers of the inputs that are cut into tiles.
        rows: what these have of them. The parts fit any number of rows.

    Raises:
        RewriteError: an operator needs more of another row than a sum or an extreme.
    """
    module = copy.deepcopy(module)
    graph = module.graph
    _without_means(graph)
    sorter = _Sorter(graph, tiled)
    kind = sorter.kind
    inputs, nodes = graphs.placeholders(graph), graphs.calls(graph)
    (end,) = (n for n in graph.nodes if n.op == "output")
    flat, structure = pytree.tree_flatten(end.args[0])
    ends = [n for n in flat if isinstance(n, fx.Node)]
    needed_later = {s for n in nodes if kind[n] == _JOINED and n not in sorter.joins
                    for s in n.all_input_nodes} | set(ends)  # fmt: skip
    in_tile = [n for n in nodes if kind[n] in (_ROWS, _TURNED) or n in sorter.joins]
    gives = [n for n in in_tile if n in needed_later and (n in sorter.joins or kind[n] == _ROWS)]
    if any(kind[n] == _TURNED or (kind[n] == _ROWS and n.op == "placeholder") for n in ends):
        raise RewriteError("an output is an input, or has rows as columns")
    if not gives:
        raise RewriteError("no output depends on the rows")
    held = [
        n
        for n in (*inputs, *nodes)
        if kind[n] == _BEFORE and (set(n.users) & set(in_tile) or n in needed_later)
    ]
    cut_inputs = [inputs[number] for number in sorted(tiled)]
    before = _graph(module, inputs, [n for n in nodes if kind[n] == _BEFORE], held)
    tile = _graph(module, [*cut_inputs, *held], in_tile, gives)
    later = [n for n in nodes if kind[n] == _JOINED and n not in sorter.joins]
    after = _graph(module, [*gives, *held], later, flat, counted=True)
    computed = [n for n in in_tile if n.target is not operator.getitem]
    return Parts(
        before,
        tile,
        after,
        tuple(sorter.joins.get(n, "") for n in gives),
        max(1, _live_bytes(computed, cut_inputs, gives) // rows),
        tuple(None if n in sorter.joins else _layout(graphs.value(n)) for n in gives),
        tuple(gives.index(n) if n in gives and n not in sorter.joins else None for n in flat),
        structure,
    )


def _graph(
    module: fx.GraphModule,
    inputs: Sequence[fx.Node],
    nodes: Sequence[fx.Node],
    outputs: Sequence[Any],
    counted: bool = False,
) -> fx.GraphModule:
    """Return a graph of some nodes; a ``counted`` one takes the number of rows last."""
    graph = fx.Graph()
    own: dict[fx.Node, fx.Node] = {}
    for number, node in enumerate(inputs):
        own[node] = graph.placeholder(f"given_{number}")
        own[node].meta = dict(node.meta)
    rows = graph.placeholder("rows") if counted else None
    for node in nodes:
        if node.target is per_row:
            assert rows is not None
            whole = graph.call_function(operator.mul, (rows, node.args[1]))
            own[node] = graph.call_function(aten.div.Tensor, (own[node.args[0]], whole))  # type: ignore[index]
            continue
        own[node] = graph.node_copy(node, own.__getitem__)
    graph.output(tuple(own[n] if isinstance(n, fx.Node) else n for n in outputs))
    return fx.GraphModule(module, graph)
