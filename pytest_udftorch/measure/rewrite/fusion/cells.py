# SPDX-License-Identifier: Apache-2.0
"""What can be fused: nodes that compute each element from elements, and their C++.

Elements of bfloat16 are computed in float32, and rounded where they are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.swap.compiled.follower import follower

#: Type of a tensor -> C++ type in memory, and in a register.
_TYPES: Final = {
    torch.bool: ("bool", "bool"),
    torch.float32: ("float", "float"),
    torch.float64: ("double", "double"),
    torch.bfloat16: ("bfloat16", "float"),
}
KINDS: Final = tuple(_TYPES)
FLOATS: Final = tuple(kind for kind in KINDS if kind != torch.bool)
#: What every kernel begins with.
PROLOGUE: Final = """\
#include <cmath>
#include <cstring>
#include <vector>
struct bfloat16 {
  unsigned short bits;
  bfloat16() = default;
  bfloat16(float value) {
    unsigned wide;
    std::memcpy(&wide, &value, 4);
    bits = value != value ? 0x7fc0 : (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
  }
  operator float() const {
    const unsigned wide = unsigned(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
};
"""
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
    "reciprocal": "(1 / {0})",
    "relu": "({0} < 0 ? 0 : {0})",
    "rsub": "({1} - {0})",
    "sqrt": "std::sqrt({0})",
    "sub": "({0} - {1})",
    "where": "({0} ? {1} : {2})",
}
#: Exponent -> C++ of a power.
_POWERS: Final[dict[float, str]] = {2: "({0} * {0})", 3: "({0} * {0} * {0})"}
#: Those that call a function of the math library, which a session may swap; {f} ends its name.
_FUNCTIONS: Final = {
    **{
        name: f"{name}{{f}}({{0}})"
        for name in ("cos", "erf", "exp", "expm1", "log", "log1p", "sin", "tanh")
    },
    "sigmoid": "(1 / (1 + exp{f}(-{0})))",
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


def plain(node: fx.Node, kinds: tuple[torch.dtype, ...] = KINDS) -> bool:
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


def _form(node: fx.Node) -> str | None:
    """Return the C++ of a node with places for its arguments, or None."""
    name = graphs.packet_name(node)
    if name == "pow" and len(node.args) == 2 and isinstance(node.args[1], int | float):
        return _POWERS.get(node.args[1])
    return {**_SIMPLE, **_FUNCTIONS}.get(name)


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor fill its memory without gaps, in whatever order."""
    pairs = sorted((t, n) for t, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1)
    filled = 1
    for stride, size in pairs:
        if stride != filled:
            return False
        filled *= size
    return True


def same_type(nodes: Iterable[fx.Node]) -> bool:
    """Whether all nodes that are not truth values have one type."""
    return len({graphs.value(n).dtype for n in nodes} - {torch.bool}) <= 1


def is_cell(node: fx.Node) -> bool:
    """Whether a kernel can compute a node element by element."""
    name, form = graphs.packet_name(node), _form(node)
    if node.op != "call_function" or form is None or _overridden(node):
        return False
    inputs = node.all_input_nodes
    if not inputs or node.kwargs or not all(map(plain, [node, *inputs])):
        return False
    if any(graphs.value(i).device != graphs.value(node).device for i in inputs):
        return False
    if (graphs.value(node).dtype == torch.bool) != (name in _TESTS) or not same_type(
        [node, *inputs]
    ):
        return False
    numbers = [a for a in node.args if not isinstance(a, fx.Node)]
    exact = all(
        isinstance(n, int | float) and not isinstance(n, bool) and abs(n) < 1e30 for n in numbers
    )
    arity = 1 + max(i for i in range(3) if f"{{{i}}}" in form) + (name == "pow")
    return exact and len(node.args) == arity and _dense(graphs.value(node))


def is_sum(node: fx.Node) -> bool:
    """Whether a node adds up all elements of a cell node."""
    return is_total(node) and is_cell(node.all_input_nodes[0])


def is_total(node: fx.Node) -> bool:
    """Whether a node adds up all elements of a tensor."""
    return (
        node.op == "call_function"
        and node.target is torch.ops.aten.sum.default
        and not node.kwargs
        and all(plain(n, FLOATS) for n in (node, *node.all_input_nodes))
    )


def expression(node: fx.Node, names: dict[fx.Node, str]) -> str:
    """Return the C++ of an element of a node, from the names of its arguments' elements."""
    form = _form(node)
    assert form is not None
    floats = [n for n in (node, *node.all_input_nodes) if graphs.value(n).dtype != torch.bool]
    kind = register(floats[0]) if floats else "float"
    given: list[str] = []
    for argument in node.args:
        if not isinstance(argument, fx.Node):
            given.append(f"{kind}({float(argument)!r})")  # type: ignore[arg-type]
        elif graphs.value(argument).dtype == torch.bool and graphs.packet_name(node) != "where":
            given.append(f"{kind}({names[argument]})")
        else:
            given.append(names[argument])
    return form.format(*given, f="f" if kind == "float" else "")


def c_type(node: fx.Node) -> str:
    """Return the C++ type of a node's elements in memory."""
    return _TYPES[graphs.value(node).dtype][0]


def register(node: fx.Node) -> str:
    """Return the C++ type in which a node's elements are computed."""
    return _TYPES[graphs.value(node).dtype][1]


def bytes_of(node: fx.Node) -> int:
    """Return the size of a node's tensor."""
    given: Any = graphs.value(node)
    return int(given.numel() * given.element_size())
