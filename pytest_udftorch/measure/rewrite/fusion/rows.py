# SPDX-License-Identifier: Apache-2.0
"""SystemDS' template Row: all that can be computed of a matrix while one row is in the cache.

Elements of a row (*wide* nodes), sums and extremes of a row and what follows from them (*narrow*
nodes) and sums of everything form a region, which one kernel computes row by row. What a later step
of the same row needs stays in a buffer of one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from torch import fx

from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.fusion.cells import (
    FLOATS,
    PROLOGUE,
    bytes_of,
    c_type,
    cost_ns,
    device,
    expression,
    is_cell,
    is_total,
    plain,
    register,
    shape,
)
from pytest_udftorch.measure.rewrite.fusion.plans import BYTE_NS, Kernel

#: Rows and columns of a matrix.
Family: TypeAlias = tuple[int, int]
_START: Final = {"sum": "0", "amax": "-INFINITY", "amin": "INFINITY"}
#: The most bytes of the buffers of one row: they have to stay in a core's cache.
BUFFER: Final = 128 * 1024


def is_row(node: fx.Node) -> bool:
    """Whether a node is the sum, the largest or the smallest element of each row of a matrix."""
    if node.op != "call_function" or graphs.packet_name(node) not in _START or node.kwargs:
        return False
    matrix, *rest = node.args
    return (
        isinstance(matrix, fx.Node)
        and len(rest) in (1, 2)
        and plain(matrix, FLOATS)
        and plain(node, FLOATS)
        and len(shape(matrix)) == 2
        and min(shape(matrix)) > 0
        and rest[0] in ([1], [-1])
    )


def _matrix(node: fx.Node) -> Family:
    """Return the shape of the matrix whose rows a node adds up."""
    rows, columns = shape(node.all_input_nodes[0])
    return rows, columns


def _is_column(node: fx.Node) -> bool:
    """Whether a node makes a column, R x 1, of a vector."""
    return (
        graphs.packet_name(node) == "unsqueeze"
        and plain(node, FLOATS)
        and len(shape(node)) == 2
        and shape(node)[1] == 1
    )


@dataclass(frozen=True)
class RowKernel(Kernel):
    """One pass over the rows of a matrix; see :class:`Kernel`. Its body holds all that it computes.

    Attributes:
        rows: the number of rows.
        columns: the number of columns.
    """

    rows: int = 0
    columns: int = 0

    @property
    def space(self) -> tuple[int, ...]:
        """The shape over which it runs."""
        return (self.rows, self.columns)

    def is_wide(self, node: fx.Node) -> bool:
        """Whether a node has an element for each element of the matrix."""
        return shape(node) == self.space and not is_row(node)

    def cost_ns(self) -> float:
        """Return its estimated time."""
        moved = sum(map(bytes_of, (*self.inputs, *self.roots)))
        wide = [n for n in self.body if self.is_wide(n)]
        return BYTE_NS * moved + self.rows * self.columns * sum(map(cost_ns, wide))


def _family(node: fx.Node, known: dict[fx.Node, Family | None], wide: set[Family]) -> Family | None:
    """Return the matrix over whose rows a kernel could compute a node, or None."""
    mine = [(i, known[i]) for i in node.all_input_nodes if known.get(i) is not None]
    if is_row(node):
        return _matrix(node)
    if is_total(node):
        return next((f for _, f in mine), None)
    if not is_cell(node) and not _is_column(node):
        return None
    size = shape(node)
    if is_cell(node) and size in wide:
        rows, columns = size
        # Of its own rows it can use what is finished: a vector, or a total, is not.
        fits = all(f != size or shape(i) in (size, (rows, 1)) for i, f in mine)
        return (rows, columns) if fits else None
    narrow_of = [f for i, f in mine if f is not None and shape(i) in ((f[0],), (f[0], 1))]
    if len(mine) == len(narrow_of) and len(set(narrow_of)) == 1 and narrow_of[0][1] > 1:
        rows = narrow_of[0][0]
        others = [shape(i) for i in node.all_input_nodes]
        same = all(o == size or not o for o in others) or _is_column(node)
        return narrow_of[0] if size in ((rows,), (rows, 1)) and same else None
    return None


def regions(graph: fx.Graph) -> list[RowKernel]:
    """Return the parts of a graph that can be computed row by row, with a row's sum or extreme."""
    wide = {_matrix(n) for n in graph.nodes if is_row(n) and _matrix(n)[1] > 1}
    known: dict[fx.Node, Family | None] = {}
    level: dict[fx.Node, int] = {}
    groups: dict[tuple[int, Family], list[fx.Node]] = {}
    for node in graph.nodes:
        family = _family(node, known, wide) if node.op == "call_function" else None
        known[node] = family
        # Whatever leaves a region and comes back belongs to another one.
        steps = (level[i] + (known[i] != family) for i in node.all_input_nodes)
        level[node] = max(steps, default=0)
        if family is not None:
            groups.setdefault((level[node], family), []).append(node)
    found = (_region(nodes, family) for (_, family), nodes in sorted(groups.items(), key=_place))
    return [kernel for kernel in found if kernel is not None]


def decompose(module: fx.GraphModule) -> set[fx.Node]:
    """Write softmax over rows as sums and extremes of rows; return the new nodes."""
    aten = graphs.aten
    known = set(module.graph.nodes)

    def written(node: fx.Node) -> fx.Node | None:
        name = graphs.packet_name(node)
        if name not in ("_softmax", "_log_softmax") or not plain(node, FLOATS):
            return None
        matrix, dimension, widened = node.args
        if not plain(matrix, FLOATS) or len(shape(node)) != 2:  # type: ignore[arg-type]
            return None
        if dimension not in (1, -1) or widened or min(shape(node)) == 0:
            return None
        call = module.graph.call_function
        largest = call(aten.amax.default, (matrix, [1], True))
        less = call(aten.sub.Tensor, (matrix, largest))
        grown = call(aten.exp.default, (less,))
        total = call(aten.sum.dim_IntList, (grown, [1], True))
        if name == "_softmax":
            return call(aten.div.Tensor, (grown, total))
        return call(aten.sub.Tensor, (less, call(aten.log.default, (total,))))

    if list(graphs.replacing(module.graph, written)):
        module.recompile()
        graphs.propagate(module)
    return set(module.graph.nodes) - known


def _place(item: tuple[tuple[int, Family], list[fx.Node]]) -> tuple[int, Family]:
    return item[0]


def _region(nodes: list[fx.Node], family: Family) -> RowKernel | None:
    mine = set(nodes)
    if not any(map(is_row, nodes)) or len(nodes) < 2 or len(set(map(device, nodes))) > 1:
        return None
    roots = tuple(n for n in nodes if any(u not in mine for u in n.users))
    inputs = dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in mine)
    kernel = RowKernel(roots, tuple(nodes), tuple(inputs), *family)
    return kernel if _steps(kernel).buffered(kernel) <= BUFFER else None


@dataclass
class _Steps:
    """When a row's nodes are computed: wide ones in a step, narrow ones after it."""

    of: dict[fx.Node, int]
    stored: list[fx.Node]

    def buffered(self, kernel: RowKernel) -> int:
        """Return the bytes of the row's buffers."""
        return 8 * kernel.columns * len(self.stored)


def _steps(kernel: RowKernel) -> _Steps:
    of: dict[fx.Node, int] = {}
    for node in kernel.body:
        before = [(i, of[i]) for i in node.all_input_nodes if i in of]
        if kernel.is_wide(node):
            of[node] = max((s + (not kernel.is_wide(i)) for i, s in before), default=0)
        else:
            # A sum of an input is taken in the first step, and is narrow.
            reads = is_row(node) or is_total(node)
            of[node] = max((s for _, s in before), default=0 if reads else -1)
    stored = [
        n
        for n in kernel.body
        if kernel.is_wide(n) and any(u in of and of[u] > of[n] for u in n.users)
    ]
    return _Steps(of, stored)


def _strides(node: fx.Node) -> tuple[str, str]:
    """Return how far an element lies from that of the next row, and of the next column."""
    tensor = graphs.value(node)
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    pairs = [0 if size == 1 else stride for size, stride in sizes]
    row, column = [0, 0, *pairs][-2:]
    return f"{row}L", f"{column}L"


class _Writer:
    """The C++ of one kernel, step by step."""

    def __init__(self, kernel: RowKernel) -> None:
        self.kernel, self.steps = kernel, _steps(kernel)
        self.names: dict[fx.Node, str] = {}
        self.head: list[str] = []
        for number, node in enumerate(kernel.inputs):
            kind = c_type(node)
            self.head.append(f"const {kind}* in{number} = (const {kind}*)in[{number}];")
        for number, node in enumerate(kernel.body):
            self.names[node] = f"v{number}"
        for number, node in enumerate(kernel.roots):
            kind = c_type(node)
            self.head.append(f"{kind}* out{number} = ({kind}*)out[{number}];")

    def _known(self, node: fx.Node, wide: bool) -> dict[fx.Node, str]:
        """Return the C++ of a node's arguments."""
        known = dict(self.names)
        for i in node.all_input_nodes:
            if i in self.kernel.inputs:
                row, column = _strides(i)
                if not wide and len(shape(i)) == 1:  # a vector with an element for each row
                    row, column = column, "0L"
                place = self.kernel.inputs.index(i)
                known[i] = f"in{place}[i * {row} + {'j' if wide else '0'} * {column}]"
        return known

    def wide(self, step: int) -> list[str]:
        """Return what is done for each element in a step, and what is prepared for it."""
        before: list[str] = []
        inner: list[str] = []
        for node, name in self.names.items():
            here = self.steps.of[node] == step
            if self.kernel.is_wide(node):
                if here:
                    made = expression(node, self._known(node, True))
                    inner.append(f"const {register(node)} {name} = {made};")
                    if node in self.steps.stored:
                        before.append(f"{register(node)} b{name}[{self.kernel.columns}];")
                        inner.append(f"b{name}[j] = {name};")
                    if node in self.kernel.roots:
                        place = self.kernel.roots.index(node)
                        row, column = _strides(node)
                        inner.append(f"out{place}[i * {row} + j * {column}] = {name};")
                continue
            if here and (is_row(node) or self._adds_wide(node)):
                (source,) = node.all_input_nodes
                before += self._start(node)
                inner += self._update(node, self._known(node, True)[source])
        used = " ".join(inner)
        for node in self.steps.stored:
            name = self.names[node]
            later = self.steps.of[node] < step and any(
                self.steps.of.get(u) == step for u in node.users
            )
            if later and name in used:
                inner.insert(0, f"const {register(node)} {name} = b{name}[j];")
        if not inner:
            return before
        return [*before, f"for (long j = 0; j < {self.kernel.columns}; ++j) {{", *inner, "}"]

    def _adds_wide(self, node: fx.Node) -> bool:
        return is_total(node) and self.kernel.is_wide(node.all_input_nodes[0])

    def _start(self, node: fx.Node) -> list[str]:
        name = self.names[node]
        if is_total(node):
            self.head.append(f"double s{name} = 0;")
            return []
        packet = graphs.packet_name(node)
        if packet == "sum":
            return [f"double s{name} = 0;"]
        return [f"{register(node)} s{name} = {_START[packet]};", f"bool n{name} = false;"]

    def _update(self, node: fx.Node, term: str) -> list[str]:
        name, packet = self.names[node], graphs.packet_name(node)
        if packet == "sum":
            # In double: the order of the terms then matters little.
            return [f"{{\n#pragma clang fp reassociate(on)\ns{name} += double({term});\n}}"]
        sign = ">" if packet == "amax" else "<"
        return [
            f"const {register(node)} t{name} = {term};",
            f"s{name} = t{name} {sign} s{name} ? t{name} : s{name};",
            f"n{name} |= t{name} != t{name};",
        ]

    def narrow(self, step: int) -> list[str]:
        """Return what is computed once in a row after a step."""
        found: list[str] = []
        for node, name in self.names.items():
            if self.kernel.is_wide(node) or self.steps.of[node] != step:
                continue
            if is_total(node):
                if not self._adds_wide(node):
                    found += self._start(node)
                    found.append(f"s{name} += double({self.names[node.all_input_nodes[0]]});")
                continue
            if is_row(node):
                made = f"{register(node)}(s{name})"
                if graphs.packet_name(node) != "sum":
                    made = f"n{name} ? NAN : s{name}"
            elif _is_column(node):
                made = self._known(node, False)[node.all_input_nodes[0]]
            else:
                made = expression(node, self._known(node, False))
            found.append(f"const {register(node)} {name} = {made};")
            if node in self.kernel.roots:
                found.append(f"out{self.kernel.roots.index(node)}[i] = {name};")
        return found

    def text(self) -> str:
        """Return the whole kernel."""
        body = self.narrow(-1)
        for step in range(max(self.steps.of.values()) + 1):
            body += [*self.wide(step), *self.narrow(step)]
        tail = [
            f"out{number}[0] = {register(root)}(s{self.names[root]});"
            for number, root in enumerate(self.kernel.roots)
            if is_total(root)
        ]
        lines = [
            PROLOGUE,
            'extern "C" __attribute__((visibility("default")))',
            "void fused(const void* const* in, void* const* out) {",
            *self.head,
            f"for (long i = 0; i < {self.kernel.rows}; ++i) {{",
            *body,
            "}",
            *tail,
            "}",
        ]
        return "\n".join(lines) + "\n"


def row_source(kernel: RowKernel) -> str:
    """Return the C++ of a kernel; it is given the addresses of inputs and of outputs."""
    return _Writer(kernel).text()
