# SPDX-License-Identifier: Apache-2.0
"""SystemDS' MMCHAIN: ``X.T @ f(X @ v)`` in one pass, with each row of X read once.

``f`` is any function of the elements of a column, such as the weights of ``X.T @ (w * (X @ v))``
in the loops of multinomial logistic regression, of L2SVM and of generalised linear models. Sums are
added in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import fx

from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.fusion.cells import (
    FLOATS,
    PROLOGUE,
    bytes_of,
    c_type,
    expression,
    is_cell,
    plain,
    register,
    shape,
)
from pytest_udftorch.measure.rewrite.fusion.plans import BYTE_NS, Kernel

_PRODUCTS: Final = ("mv", "mm")


@dataclass(frozen=True)
class ChainKernel(Kernel):
    """A product with a matrix, functions of its elements, and a product with the matrix turned.

    Attributes:
        matrix: X.
        vector: v.
        first: the node of ``X @ v``.
        inner: the node of what the turned matrix is multiplied by.
    """

    matrix: fx.Node
    vector: fx.Node
    first: fx.Node
    inner: fx.Node

    def cost_ns(self) -> float:
        """Return its estimated time."""
        return BYTE_NS * sum(map(bytes_of, (*self.inputs, *self.roots)))


def _product(node: fx.Node) -> bool:
    """Whether a node is a product of a matrix and a column on the CPU."""
    return (
        node.op == "call_function"
        and graphs.packet_name(node) in _PRODUCTS
        and not node.kwargs
        and all(plain(n, FLOATS) for n in (node, *node.all_input_nodes))
        and graphs.value(node).device.type == "cpu"
        and shape(node)[1:] in ((), (1,))
    )


def _turned(node: fx.Node) -> fx.Node | None:
    """Return the matrix that a node is the transpose of, or None."""
    name, args = graphs.packet_name(node), node.args
    turned = name == "t" or (name == "permute" and list(args[1]) == [1, 0])  # type: ignore[arg-type]
    source = node.all_input_nodes[0] if turned else None
    return source if source is not None and plain(source, FLOATS) else None


def chains(graph: fx.Graph) -> list[ChainKernel]:
    """Return the chains of a graph; no node is in two of them."""
    taken: set[fx.Node] = set()
    found = []
    for node in graphs.calls(graph):
        chain = _chain(node)
        if chain is not None and taken.isdisjoint(chain.body):
            taken |= {*chain.body}
            found.append(chain)
    return found


def _chain(last: fx.Node) -> ChainKernel | None:
    """Return the chain that ends with a node, or None."""
    if not _product(last):
        return None
    left, inner = last.all_input_nodes if len(last.all_input_nodes) == 2 else (last, last)
    matrix = _turned(left) if left is not last else None
    if matrix is None or graphs.value(matrix).stride() != (shape(matrix)[1], 1):
        return None
    cells: set[fx.Node] = set()
    inputs: set[fx.Node] = set()
    firsts: set[fx.Node] = set()
    waiting = [inner]
    while waiting:
        node = waiting.pop()
        if node in cells or node in inputs or node in firsts:
            continue
        if _product(node) and node.args[0] is matrix:
            firsts.add(node)
        elif is_cell(node) and shape(node) == shape(inner):
            cells.add(node)
            waiting += node.all_input_nodes
        elif plain(node) and graphs.value(node).numel() in (1, shape(inner)[0]):
            inputs.add(node)
        else:
            return None
    if len(firsts) != 1:
        return None
    (first,) = firsts
    body = [n for n in last.graph.nodes if n in {first, left, last} or n in cells]
    # What others read as well is written by a product of its own.
    if any(u not in body for n in body if n is not last and n is not left for u in n.users):
        return None
    vector: fx.Node = first.all_input_nodes[1]
    if any(graphs.depends(n, {first}) for n in (*inputs, vector, matrix)):
        return None
    order = [n for n in last.graph.nodes if n in inputs and n not in (matrix, vector)]
    given = (matrix, vector, *order)
    return ChainKernel((last,), tuple(body), given, matrix, vector, first, inner)


def chain_source(kernel: ChainKernel) -> str:
    """Return the C++ of a chain; it is given the addresses of inputs and of outputs."""
    rows, columns = shape(kernel.matrix)
    names = {kernel.first: "dot"}
    head, inner = [], []
    for number, node in enumerate(kernel.inputs):
        kind = c_type(node)
        head.append(f"  const {kind}* in{number} = (const {kind}*)in[{number}];")
        if number < 2:
            continue
        names[node] = f"v{number}"
        tensor = graphs.value(node)
        strides = (s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)
        inner.append(f"const {register(node)} v{number} = in{number}[row * {next(strides, 0)}L];")
    step = next(
        (s for s, n in zip(graphs.value(kernel.vector).stride(), shape(kernel.vector), strict=True)
         if n > 1),
        1,
    )  # fmt: skip
    for node in kernel.body:
        if node not in names and is_cell(node):
            names[node] = f"c{len(names)}"
            inner.append(f"const auto {names[node]} = {expression(node, names)};")
    kind = register(kernel.matrix)
    lines = [
        PROLOGUE,
        'extern "C" __attribute__((visibility("default")))',
        "void fused(const void* const* in, void* const* out) {",
        *head,
        f"  std::vector<double> sums({columns}, 0.0);",
        f"  for (long row = 0; row < {rows}; ++row) {{",
        f"    const {c_type(kernel.matrix)}* x = in0 + row * {columns}L;",
        "    double added = 0;",
        "    {",
        "#pragma clang fp reassociate(on)",
        f"      for (long k = 0; k < {columns}; ++k) added += double(x[k]) * in1[k * {step}L];",
        "    }",
        f"    const {kind} dot = {kind}(added);",
        *(f"    {line}" for line in inner),
        f"    const double factor = {names[kernel.inner]};",
        f"    for (long k = 0; k < {columns}; ++k) sums[k] += factor * x[k];",
        "  }",
        f"  for (long k = 0; k < {columns}; ++k) "
        f"(({c_type(kernel.matrix)}*)out[0])[k] = {kind}(sums[k]);",
        "}",
    ]
    return "\n".join(lines) + "\n"
