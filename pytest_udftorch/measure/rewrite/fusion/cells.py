# SPDX-License-Identifier: Apache-2.0
"""What can be fused: nodes that compute each element from elements, and their C++."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.swap.compiled.follower import follower

#: ATen's name -> C++ of an element; {0}, {1} and {2} are the arguments.
_SIMPLE: Final = {
    "abs": "std::fabs({0})",
    "add": "({0} + {1})",
    "div": "({0} / {1})",
    "eq": "({0} == {1})",
    "ge": "({0} >= {1})",
    "gt": "({0} > {1})",
    "le": "({0} <= {1})",
    "lt": "({0} < {1})",
    "maximum": "({0} != {0} ? {0} : {1} != {1} ? {1} : {0} < {1} ? {1} : {0})",
    "minimum": "({0} != {0} ? {0} : {1} != {1} ? {1} : {1} < {0} ? {1} : {0})",
    "mul": "({0} * {1})",
    "ne": "({0} != {1})",
    "neg": "(-{0})",
    "reciprocal": "(1.0f / {0})",
    "relu": "({0} < 0.0f ? 0.0f : {0})",
    "rsub": "({1} - {0})",
    "sqrt": "std::sqrt({0})",
    "sub": "({0} - {1})",
    "where": "({0} ? {1} : {2})",
}
#: Those that call a function of the math library, which a session may swap.
_FUNCTIONS: Final = {
    **{
        name: f"{name}f({{0}})"
        for name in ("cos", "erf", "exp", "expm1", "log", "log1p", "sin", "tanh")
    },
    "sigmoid": "(1.0f / (1.0f + expf(-{0})))",
}
_TESTS: Final = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})
#: Estimated nanoseconds of one element. They rank plans; the plan that is chosen is checked, and
#: executors are measured whole.
SIMPLE_NS: Final = 0.1
FUNCTION_NS: Final = 1.5


def cost_ns(node: fx.Node) -> float:
    """Return the estimated time of one element."""
    return FUNCTION_NS if graphs.packet_name(node) in _FUNCTIONS else SIMPLE_NS


def shape(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's tensor."""
    return tuple(graphs.value(node).shape)


def device(node: fx.Node) -> str:
    """Return where a node's tensor lies."""
    return str(graphs.value(node).device)


def plain(node: fx.Node, kinds: tuple[torch.dtype, ...] = (torch.float32, torch.bool)) -> bool:
    """Whether a node is one tensor whose elements a kernel for the CPU or a GPU can read."""
    given = graphs.value(node)
    return (
        isinstance(given, torch.Tensor)
        and given.layout is torch.strided
        and given.device.type in ("cpu", "cuda")
        and given.dtype in kinds
    )


def _overridden(node: fx.Node) -> bool:
    """Whether an open session computes the operator of a node itself."""
    name = f"aten::{graphs.packet_name(node)}"
    return any(operator.split(".")[0] == name for operator in follower.active.operators)


def is_cell(node: fx.Node) -> bool:
    """Whether a kernel can compute a node element by element."""
    name = graphs.packet_name(node)
    if node.op != "call_function" or name not in {**_SIMPLE, **_FUNCTIONS} or _overridden(node):
        return False
    inputs = node.all_input_nodes
    if not inputs or node.kwargs or not all(map(plain, [node, *inputs])):
        return False
    if any(graphs.value(i).device != graphs.value(node).device for i in inputs):
        return False
    if (graphs.value(node).dtype == torch.bool) != (name in _TESTS):
        return False
    numbers = [a for a in node.args if not isinstance(a, fx.Node)]
    exact = all(
        isinstance(n, int | float) and not isinstance(n, bool) and abs(n) < 1e30 for n in numbers
    )
    arity = 1 + max(i for i in range(3) if f"{{{i}}}" in {**_SIMPLE, **_FUNCTIONS}[name])
    return exact and len(node.args) == arity and graphs.value(node).is_contiguous()


def is_sum(node: fx.Node) -> bool:
    """Whether a node adds up all elements of a cell node."""
    return (
        node.op == "call_function"
        and node.target is torch.ops.aten.sum.default
        and not node.kwargs
        and plain(node, (torch.float32,))
        and is_cell(node.all_input_nodes[0])
        and plain(node.all_input_nodes[0], (torch.float32,))
    )


def expression(node: fx.Node, names: dict[fx.Node, str]) -> str:
    """Return the C++ of an element of a node, from the names of its arguments' elements."""
    form = {**_SIMPLE, **_FUNCTIONS}[graphs.packet_name(node)]
    given: list[str] = []
    for argument in node.args:
        if not isinstance(argument, fx.Node):
            given.append(f"float({float(argument)!r})")  # type: ignore[arg-type]
        elif graphs.value(argument).dtype == torch.bool and graphs.packet_name(node) != "where":
            given.append(f"float({names[argument]})")
        else:
            given.append(names[argument])
    return form.format(*given)


def c_type(node: fx.Node) -> str:
    """Return the C++ type of a node's elements."""
    return "bool" if graphs.value(node).dtype == torch.bool else "float"


def bytes_of(node: fx.Node) -> int:
    """Return the size of a node's tensor."""
    given: Any = graphs.value(node)
    return int(given.numel() * given.element_size())
