# SPDX-License-Identifier: Apache-2.0
"""The C++ of kernels that go over the elements of a shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch import fx

from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.fusion.cells import (
    PROLOGUE,
    c_type,
    expression,
    is_sum,
    register,
    shape,
)
from pytest_udftorch.measure.rewrite.fusion.outer import OuterKernel, Tail
from pytest_udftorch.measure.rewrite.fusion.plans import Kernel

_ANY_ORDER: Final = "#pragma clang fp reassociate(on)"


def _index(strides: Sequence[int], sizes: Sequence[int], space: Sequence[int]) -> str:
    """Return where an element lies, with inputs of fewer or shorter dimensions repeated."""
    skipped = len(space) - len(sizes)
    terms = [
        f"i{skipped + d} * {stride}L"
        for d, (stride, size) in enumerate(zip(strides, sizes, strict=True))
        if size != 1 and stride
    ]
    return " + ".join(terms) or "0"


def program(head: Sequence[str], body: Sequence[str]) -> str:
    """Return a kernel: its declarations, and what it does."""
    lines = [
        PROLOGUE,
        'extern "C" __attribute__((visibility("default")))',
        "void fused(const void* const* in, void* const* out) {",
        *head,
        *body,
        "}",
    ]
    return "\n".join(lines) + "\n"


class _Writer:
    """The C++ of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.space = kernel, kernel.space
        self.place = {node: number for number, node in enumerate(kernel.reads)}
        self.head = [
            f"const {c_type(n)}* in{at} = (const {c_type(n)}*)in[{at}];"
            for n, at in self.place.items()
        ]
        self.tail: list[str] = []

    def load(self, node: fx.Node) -> str:
        """Return the C++ of an input's element."""
        tensor = graphs.value(node)
        return f"in{self.place[node]}[{_index(tensor.stride(), tensor.shape, self.space)}]"

    def computed(self, nodes: Sequence[fx.Node], names: dict[fx.Node, str]) -> list[str]:
        """Return the C++ that computes nodes of the body, with the inputs that they need."""
        lines = []
        for node in nodes:
            for needed in node.all_input_nodes:
                if needed not in names:
                    names[needed] = f"v{len(names)}"
                    lines.append(f"const {register(needed)} {names[needed]} = {self.load(needed)};")
            names[node] = f"v{len(names)}"
            lines.append(f"const {register(node)} {names[node]} = {expression(node, names)};")
        return lines

    def result(self, number: int, root: fx.Node, names: dict[fx.Node, str]) -> list[str]:
        """Return the C++ that writes an element of a root, or adds it."""
        if is_sum(root):
            # In double: the order of the terms then matters little.
            self.head.append(f"double sum{number} = 0;")
            self.tail.append(f"*({c_type(root)}*)out[{number}] = {register(root)}(sum{number});")
            term = names[root.all_input_nodes[0]]
            return [f"{{\n{_ANY_ORDER}\nsum{number} += double({term});\n}}"]
        self.declare(number, root)
        where = _index(graphs.value(root).stride(), shape(root), self.space)
        return [f"out{number}[{where}] = {names[root]};"]

    def declare(self, number: int, root: fx.Node) -> None:
        """Add a pointer to a result."""
        kind = c_type(root)
        self.head.append(f"{kind}* __restrict out{number} = ({kind}*)out[{number}];")

    def whole(self) -> str:
        """Return the whole kernel."""
        names: dict[fx.Node, str] = {}
        inner = self.computed(self.kernel.body, names)
        for number, root in enumerate(self.kernel.roots):
            inner += self.result(number, root, names)
        strides = graphs.value(self.kernel.body[-1]).stride()
        order = sorted(range(len(self.space)), key=lambda d: -strides[d])
        loops = [f"for (long i{d} = 0; i{d} < {self.space[d]}; ++i{d})" for d in order]
        return program(self.head, [*loops, "{", *inner, "}", *self.tail])


class _OuterWriter(_Writer):
    """The C++ of a kernel in which one matrix decides what is computed."""

    kernel: OuterKernel

    def __init__(self, kernel: OuterKernel) -> None:
        super().__init__(kernel)
        for number, node in enumerate(n for n in kernel.reads if n in kernel.csr):
            at, place = len(kernel.reads) + 2 * number, self.place[node]
            self.head.append(f"const long *start{place} = (const long*)in[{at}];")
            self.head.append(f"const long *column{place} = (const long*)in[{at + 1}];")
        #: Sparse inputs of which each row is written out before its elements are computed.
        walks = {kernel.driver} if kernel.narrow else set()
        self.spread = [n for n in kernel.reads if n in kernel.csr - walks]
        self.walked = kernel.driver in kernel.csr & walks
        for node in self.spread:
            self.head.append(f"std::vector<{c_type(node)}> row{self.place[node]}({self.space[1]});")

    def load(self, node: fx.Node) -> str:
        if node in self.spread:
            return f"row{self.place[node]}[i1]"
        if node is self.kernel.driver and self.walked:
            return f"in{self.place[node]}[at]"
        return super().load(node)

    def _row(self, value: str) -> list[str]:
        """Return the C++ that writes the elements of this row of the sparse inputs."""
        return [
            f"for (long at = start{p}[i0]; at < start{p}[i0 + 1]; ++at) "
            f"row{p}[column{p}[at]] = {value.format(p)};"
            for p in (self.place[n] for n in self.spread)
        ]

    def _product(self, name: str) -> list[str]:
        product = self.kernel.product
        assert product is not None
        left, right = (graphs.value(n) for n in product.all_input_nodes)
        a, b = (self.place[n] for n in product.all_input_nodes)
        return [
            f"{register(product)} {name} = 0;",
            "{",
            _ANY_ORDER,
            f"for (long k = 0; k < {left.shape[1]}; ++k) {name} += "
            f"in{a}[i0 * {left.stride(0)}L + k * {left.stride(1)}L] * "
            f"in{b}[k * {right.stride(0)}L + i1 * {right.stride(1)}L];",
            "}",
        ]

    def _needed(self, ends: Sequence[fx.Node], without: Sequence[fx.Node] = ()) -> list[fx.Node]:
        """Return the nodes of the body that others are computed from, but not those before some."""
        found: set[fx.Node] = set()
        waiting = [n for n in ends if n not in without]
        while waiting:
            node = waiting.pop()
            if node in self.kernel.body and node not in found and node not in without:
                found.add(node)
                waiting += node.all_input_nodes
        return [n for n in self.kernel.body if n in found]

    def _added(self, number: int, tail: Tail, name: str) -> list[str]:
        """Return the C++ that adds an element's part of a product with a matrix."""
        matrix = graphs.value(tail.matrix)
        width = matrix.shape[1]
        self.declare(number, tail.node)
        here, row = ("i1", "i0") if tail.turned else ("i0", "i1")
        height = shape(tail.node)[0]
        self.head.append(f"std::vector<double> added{number}({height * width});")
        whole = _index(graphs.value(tail.node).stride(), (height, width), (height, width))
        self.tail.append(
            f"for (long i0 = 0; i0 < {height}; ++i0) for (long i1 = 0; i1 < {width}; ++i1) "
            f"out{number}[{whole}] = {register(tail.node)}(added{number}[i0 * {width} + i1]);"
        )
        return [
            f"for (long k = 0; k < {width}; ++k) added{number}[{here} * {width} + k] += "
            f"double({name}) * in{self.place[tail.matrix]}"
            f"[{row} * {matrix.stride(0)}L + k * {matrix.stride(1)}L];"
        ]

    def _gated(self) -> list[str]:
        """Return the C++ of what is computed where the driver is not zero."""
        kernel = self.kernel
        names = {kernel.driver: "decides"}
        inner = []
        if kernel.product is not None:
            names[kernel.product] = "product"
            inner += self._product("product")
        inner += self.computed(self._needed(kernel.gates), names)
        inner += [f"g{n} = {names[gate]};" for n, gate in enumerate(kernel.gates)]
        declared = [f"{register(g)} g{n} = 0;" for n, g in enumerate(kernel.gates)]
        load = f"const {register(kernel.driver)} decides = {self.load(kernel.driver)};"
        return [*declared, load, "if (decides != 0) {", *inner, "}"]

    def whole(self) -> str:
        kernel = self.kernel
        names = {gate: f"g{n}" for n, gate in enumerate(kernel.gates)}
        inner = self._gated()
        inner += self.computed(self._needed(kernel.sources, kernel.gates), names)
        tails = {tail.node: tail for tail in kernel.tails}
        for number, root in enumerate(kernel.roots):
            if root in tails:
                inner += self._added(number, tails[root], names[tails[root].source])
            elif root in kernel.sparse_roots:
                self.declare(number, root)
                inner.append(f"out{number}[at] = {names[root]};")
            else:
                inner += self.result(number, root, names)
        across = f"for (long i1 = 0; i1 < {self.space[1]}; ++i1) {{"
        if self.walked:
            place = self.place[kernel.driver]
            across = f"for (long at = start{place}[i0]; at < start{place}[i0 + 1]; ++at) {{"
            inner.insert(0, f"const long i1 = column{place}[at];")
        down = f"for (long i0 = 0; i0 < {self.space[0]}; ++i0) {{"
        body = [down, *self._row("in{0}[at]"), across, *inner, "}", *self._row("0"), "}"]
        return program(self.head, [*body, *self.tail])


def source(kernel: Kernel) -> str:
    """Return the C++ of a kernel; it is given the addresses of inputs and of outputs.

    Those of the indices of sparse inputs, by rows and by columns, follow the others.
    """
    made = _OuterWriter(kernel) if isinstance(kernel, OuterKernel) else _Writer(kernel)
    return made.whole()
