# SPDX-License-Identifier: Apache-2.0
"""SystemDS' template Outer: products of which a sparse matrix decides the elements.

In ``(x * f(u @ v.T)).sum()``, in ``(x * f(u @ v.T)) @ v`` and in ``y + x * (u @ v.T)``, an element
of the product of u and v counts only where x is not zero. There alone it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from torch import fx

from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.fusion.cells import FLOATS, is_sum, plain, same_type, shape
from pytest_udftorch.measure.rewrite.fusion.plans import Kernel

#: Functions that are 0 at 0, whatever else they are given.
_ODD: Final = frozenset(
    {"abs", "erf", "expm1", "log1p", "neg", "pow", "relu", "sin", "sqrt", "tanh"}
)
#: Functions that are 0 where both arguments are.
_BOTH: Final = frozenset({"add", "maximum", "minimum", "rsub", "sub"})
#: Comparisons that 0 does not pass with 0.
_STRICT: Final = frozenset({"gt", "lt", "ne"})


@dataclass(frozen=True)
class Tail:
    """A product with what a kernel computes of elements: ``e @ w``, or ``e.T @ w``.

    Attributes:
        node: the node of the product.
        source: the node of e.
        matrix: the node of w.
        turned: whether e is transposed.
    """

    node: fx.Node
    source: fx.Node
    matrix: fx.Node
    turned: bool

    def own(self) -> tuple[fx.Node, ...]:
        """Return the nodes that it stands for."""
        (left, _) = self.node.all_input_nodes
        return (left, self.node) if self.turned else (self.node,)


@dataclass(frozen=True)
class OuterKernel(Kernel):
    """One pass over the elements of a matrix, with some computed where another is not zero.

    Attributes:
        driver: the input that decides.
        gates: nodes of the body that are zero where the driver is; they are not computed there.
        product: the node of a product of matrices that the gates alone need, or None.
        tails: products with gates; their nodes are roots.
        csr: inputs that are given as sparse CSR tensors.
    """

    driver: fx.Node
    gates: tuple[fx.Node, ...]
    product: fx.Node | None = None
    tails: tuple[Tail, ...] = ()
    csr: frozenset[fx.Node] = frozenset()

    @property
    def space(self) -> tuple[int, ...]:
        """The shape over which it runs."""
        return shape(self.driver)

    @property
    def sources(self) -> tuple[fx.Node, ...]:
        """The nodes of the body that results are made of, in the order of the roots."""
        tails = {tail.node: tail.source for tail in self.tails}
        return tuple(r.all_input_nodes[0] if is_sum(r) else tails.get(r, r) for r in self.roots)

    @property
    def narrow(self) -> bool:
        """Whether nothing has to be computed where the driver is zero."""
        return set(self.sources) <= set(self.gates)

    @property
    def reads(self) -> tuple[fx.Node, ...]:
        """The nodes whose tensors it is given."""
        factors = self.product.all_input_nodes if self.product is not None else ()
        rest = [n for n in self.inputs if n is not self.product]
        return tuple(dict.fromkeys([*rest, *factors, *(t.matrix for t in self.tails)]))

    @property
    def sparse_roots(self) -> tuple[fx.Node, ...]:
        """The roots that are sparse CSR tensors, with elements where the driver has them."""
        if self.driver not in self.csr or not self.narrow:
            return ()
        tails = {tail.node for tail in self.tails}
        return tuple(r for r in self.roots if not is_sum(r) and r not in tails)


def _vanishing(kernel: Kernel, driver: fx.Node) -> set[fx.Node]:
    """Return the nodes of a kernel that are zero, or false, where an input is zero."""
    found = {driver}
    for node in kernel.body:
        name = graphs.packet_name(node)
        zero = [a in found if isinstance(a, fx.Node) else a == 0 for a in node.args]
        if (
            (name in {*_ODD, "div"} and zero[0])
            or (name == "mul" and any(zero))
            or (name in {*_BOTH, *_STRICT} and all(zero))
            or (name == "where" and zero[2] and (zero[0] or zero[1]))
        ):
            found.add(node)
    return found - {driver}


def _border(
    kernel: Kernel, ends: Iterable[fx.Node], zero: set[fx.Node]
) -> tuple[set[fx.Node], ...]:
    """Return the vanishing nodes that one meets first from the ends back, and all nodes before."""
    gates: set[fx.Node] = set()
    before: set[fx.Node] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node in zero:
            gates.add(node)
        elif node not in before:
            before.add(node)
            waiting += node.all_input_nodes if node in kernel.body else ()
    return gates, before


def _product_of(kernel: Kernel, space: tuple[int, ...]) -> list[fx.Node]:
    return [
        n
        for n in kernel.inputs
        if graphs.packet_name(n) == "mm"
        and shape(n) == space
        and all(u in kernel.body for u in n.users)
        and len(n.all_input_nodes) == 2
        and all(plain(i, FLOATS) for i in n.all_input_nodes)
        and same_type([n, *n.all_input_nodes])
    ]


def _tail(user: fx.Node, source: fx.Node) -> Tail | None:
    """Return the product that a user of a node is, or of which it is the transposed side."""
    turned = graphs.packet_name(user) in ("t", "permute") and len(user.users) == 1
    node = next(iter(user.users)) if turned else user
    left = user if turned else source
    if graphs.packet_name(node) != "mm" or node.args[0] is not left or node.args[1] is left:
        return None
    matrix = node.args[1]
    assert isinstance(matrix, fx.Node)
    fits = all(plain(n, FLOATS) for n in (node, matrix, source)) and same_type([matrix, source])
    return Tail(node, source, matrix, turned) if fits else None


def _tails(kernel: Kernel, gates: set[fx.Node]) -> tuple[Tail, ...] | None:
    """Return the products that are all that others read of a kernel; None if they read more."""
    found = []
    for root in kernel.roots:
        if is_sum(root):
            continue
        made = [_tail(u, root) for u in root.users if u not in kernel.body and not is_sum(u)]
        whole = [t for t in made if t is not None]
        if root not in gates or len(whole) < len(made) or not made:
            return None
        found += whole
    if any(graphs.depends(t.matrix, kernel.roots) for t in found):
        return None
    return tuple(found)


def outer_kernel(
    kernel: Kernel,
    zeros: Callable[[fx.Node], float],
    most: float,
    csr: Collection[fx.Node] = (),
) -> Kernel:
    """Return a kernel that computes a product where a factor is not zero; else the kernel itself.

    Args:
        kernel: one pass over elements.
        zeros: returns which part of an input's elements is not zero.
        most: the largest such part for which it is worth while.
        csr: inputs that are given as sparse CSR tensors.
    """
    if type(kernel) is not Kernel or len(kernel.space) != 2 or most <= 0:
        return kernel
    if graphs.value(kernel.body[0]).device.type != "cpu":
        return kernel
    products: list[fx.Node | None] = [*_product_of(kernel, kernel.space)]
    sparse = frozenset(n for n in kernel.inputs if n in csr)
    ends = [r.all_input_nodes[0] if is_sum(r) else r for r in kernel.roots]
    drivers = [n for n in kernel.inputs if n.op == "placeholder" and shape(n) == kernel.space]
    for driver in drivers:
        if (csr and driver not in csr) or zeros(driver) > most:
            continue
        gates, before = _border(kernel, ends, _vanishing(kernel, driver))
        product = next((p for p in products if p not in before), None)
        place = kernel.body.index
        made = {
            "driver": driver,
            "gates": tuple(sorted(gates, key=place)),
            "product": product,
            "csr": sparse,
        }
        if product is None and (before or not csr):
            continue
        tails = _tails(kernel, gates)
        roots = kernel.roots
        if tails:
            roots = (*filter(is_sum, roots), *(t.node for t in tails))
        return OuterKernel(roots, kernel.body, kernel.inputs, tails=tails or (), **made)  # type: ignore[arg-type]
    return kernel
