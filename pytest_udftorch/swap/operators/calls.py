# SPDX-License-Identifier: Apache-2.0
"""Reading formulas: which functions they call, and what they compute in another program.

``counters`` counts the calls that formulas make, and ``compiled.inductor`` gives Inductor the same
formulas. This module needs neither torch nor Triton.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.operators import formulas

#: The formulas by name.
FORMULAS: Final[dict[str, FunctionType]] = {
    name: value for name, value in vars(formulas).items() if isinstance(value, FunctionType)
}

#: What the name of a formula ends with that the CPU computes in double.
WIDE: Final = "_wide"

#: What the name of a formula begins with that is one function: ``whole_sigmoid``.
WHOLE: Final = "whole_"

#: A formula's name and its three scalars.
Applied = tuple[str, float, float, float]


@dataclass(frozen=True)
class Call:
    """A function that a kernel calls.

    Attributes:
        function: torch's name.
        times: calls for each element, or for each row.
        per_line: whether it is called for each row that the kernel sums up, instead of for each
            element.
    """

    function: str
    times: int = 1
    per_line: bool = False


_LOG_OF_SUM: Final = Call("log", per_line=True)

#: Kernel over rows (it has no formula) -> its calls in the order of the slots.
_ROW_KERNELS: Final = {
    "softmax_rows": (Call("exp"),),
    "log_softmax_rows": (Call("exp"), _LOG_OF_SUM),
    "softmax_tiles": (Call("exp", 2),),
    "log_softmax_tiles": (Call("exp"), _LOG_OF_SUM),
    "log_softmax_backward_rows": (Call("exp"),),
    "log_softmax_backward_tiles": (Call("exp"),),
    "attention_forward": (Call("exp"), _LOG_OF_SUM),
    "attention_queries": (Call("exp"),),
    "attention_keys": (Call("exp"),),
    "lstm_cell": (Call("exp", 3), Call("tanh", 2)),
    "lstm_cell_backward": (Call("tanh"),),
    "gru_cell": (Call("exp", 2), Call("tanh")),
    "normal_variates": (Call("log"), Call("cos"), Call("sin")),
    "log_normal_variates": (Call("log"), Call("cos"), Call("sin"), Call("exp", 2)),
    "exponential_variates": (Call("log"),),
    "geometric_variates": (Call("log"),),
    "cauchy_variates": (Call("tan"),),
    "alignments": (Call("exp", 3), Call("log")),
    "alignments_backward": (Call("exp", 4), Call("log")),
}


@functools.cache
def parsed() -> dict[str, ast.FunctionDef]:
    """Return the formulas by name, as they are written."""
    tree = ast.parse(inspect.getsource(formulas))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def called(node: ast.Call) -> str:
    """Return the name of the function that a call in a formula calls, without the underscore."""
    assert isinstance(node.func, ast.Name)
    return node.func.id.removeprefix("_").removesuffix("_by_two")


@functools.cache
def calls(kernel: str) -> tuple[Call, ...]:
    """Return the functions that a formula or a kernel over rows calls, in the order of the slots.

    Raises:
        KeyError: there is no such formula or kernel.
    """
    if kernel in _ROW_KERNELS:
        return _ROW_KERNELS[kernel]
    if kernel.startswith(WHOLE):
        return (Call(kernel.removeprefix(WHOLE)),)
    slots: dict[int, list[str]] = {}
    for node in ast.walk(parsed()[kernel]):
        if isinstance(node, ast.Call) and (name := called(node)) in FUNCTIONS:
            slot = node.args[FUNCTIONS[name].arity + 1 :]
            slots.setdefault(ast.literal_eval(slot[0]) if slot else 0, []).append(name)
    return tuple(Call(slots[at][0], len(slots[at])) for at in sorted(slots))


def plain(formula: str) -> Applied:
    """Return the application of a formula that has no scalars."""
    return formula, 0.0, 0.0, 0.0


# Formulas for compilers ----------------------------------------------------------------------

_OPERATIONS: Final = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.USub: "neg", ast.Gt: "gt", ast.LtE: "le",
}  # fmt: skip
_NAMED: Final = {"div": "truediv"}


def evaluate(applied: Applied, ops: Any, number: Callable[[float], Any], x: Any) -> Any:
    """Compute a formula of one tensor with the operations of another program.

    Args:
        applied: the formula and its scalars.
        ops: has ``add``, ``mul``, ``where``, ``fma``, ``truediv``, and the functions by name.
        number: makes a value of ``ops`` from a number.
        x: a value of ``ops``.
    """
    name, *scalars = applied
    function = parsed()[name]
    known = {"x": x}
    numbers = dict(zip("abc", map(float, scalars), strict=True))

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=float(constant)):
                return number(constant)
            case ast.Name(id=name) if name in numbers:
                return number(numbers[name])
            case ast.Name(id=name):
                return known[name]
            case ast.BinOp():
                left = value(node.left)
                return getattr(ops, _OPERATIONS[type(node.op)])(left, value(node.right))
            case ast.UnaryOp():
                return getattr(ops, _OPERATIONS[type(node.op)])(value(node.operand))
            case ast.Compare(ops=[operator], comparators=[right]):
                left = value(node.left)
                return getattr(ops, _OPERATIONS[type(operator)])(left, value(right))
            case ast.Call():
                named = called(node)
                arity = FUNCTIONS[named].arity if named in FUNCTIONS else len(node.args)
                # From the last to the first: the code in Inductor's caches has this order.
                given = [value(a) for a in reversed(node.args[:arity])]
                return getattr(ops, _NAMED.get(named, named))(*reversed(given))
        raise AssertionError(f"{name}: a formula has no {ast.unparse(node)}")

    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=found):
                known[target] = value(found)
            case ast.Return(value=ast.expr() as found):
                return value(found)
    raise AssertionError(f"{name} returns nothing")
