# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: CPU activations that are one correctly rounded function each.

``library.symbols.COMPOSITES`` names the functions. An operator with scalars is one of them for
some values of these only. Any other call goes to the kernel that it would have without them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pytest_udftorch.swap.cpu import direct
from pytest_udftorch.swap.cpu.loops import Loops
from pytest_udftorch.swap.cpu.pointwise import (
    Kernels,
    is_plain,
    kernels_of,
    overloads,
    stock_kernel,
)
from pytest_udftorch.swap.library.symbols import SELU_ALPHA, SELU_SCALE
from pytest_udftorch.swap.operators.calls import Applied, plain
from pytest_udftorch.swap.operators.row import Pointwise, Row
from pytest_udftorch.swap.operators.rows import ROWS
from pytest_udftorch.swap.operators.table import LOG_SIGMOID

#: (alpha, scale, scale of the input) of elu -> the function.
_ELU: Final = {(1.0, 1.0, 1.0): "elu", (SELU_ALPHA, SELU_SCALE, 1.0): "selu"}
#: What gelu is told -> the function.
_GELU: Final = {"none": "gelu_erf", "tanh": "gelu_tanh"}


def _elu(alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Applied:
    return plain(_ELU[float(alpha), float(scale), float(input_scale)])


def _softplus(beta: Any = 1, threshold: Any = 20) -> Applied:
    return plain({(1.0, 20.0): "softplus"}[float(beta), float(threshold)])


def _gelu(*, approximate: str = "none") -> Applied:
    return plain(_GELU[approximate])


_CHANGED: Final[dict[str, Callable[..., Applied]]] = {
    "elu": _elu, "softplus": _softplus, "gelu": _gelu,
}  # fmt: skip


def _whole(row: Row) -> Iterator[Pointwise]:
    """Yield the operator of a row that maps elements and can be a function."""
    if not row.composites:
        return
    if row.whole is not None:
        yield replace(row.whole, formula=lambda: plain(row.name))
    for op in row.cuda:
        if isinstance(op, Pointwise):
            yield replace(op, formula=_CHANGED.get(op.name, op.formula))


#: Operators that map elements; each formula is the name of a function.
OPERATORS: Final = tuple(op for row in ROWS for op in _whole(row))

#: Operator -> the functions that it can be.
_FUNCTIONS: Final = {row.name: row.composites for row in ROWS if row.composites}
_LOG_SIGMOID: Final = LOG_SIGMOID.overloads[:2]

#: What the kernels of this thread have computed, while somebody watches.
_watched: Final = threading.local()


@contextlib.contextmanager
def watching() -> Iterator[list[str]]:
    """Yield a list that gets the name of each function that this thread's operators compute."""
    seen: list[str] = []
    _watched.seen = seen
    cpp = direct.loaded()
    try:
        with cpp.through_python() if cpp is not None else contextlib.nullcontext():
            yield seen
    finally:
        del _watched.seen


class _Whole(Kernels):
    """The kernels of one operator."""

    def split(self, args: Any, kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        tensors, formula = super().split(args, kwargs)
        held = formula is not None and formula[0] in self.loops.composites
        return tensors, formula if held else None

    def compute(self, formula: Applied, tensors: Any, y: Any) -> None:
        name = formula[0]
        seen = getattr(_watched, "seen", None)
        if seen is not None:
            seen.append(name)
        if y.numel():
            self.loops.run_whole(self.op.name, name, tensors[0], y, self.numbers[y.dtype])


def _log_sigmoid(made: _Whole, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel of ``log_sigmoid_forward``, whose second result is stock's."""

    def kernel(x: Any, **results: Any) -> Any:
        _, formula = made.split((x,), {})
        # ``output`` may be the argument.
        kept = x.clone() if results and formula is not None else x
        output, buffer = stock(x, **results)
        if formula is not None:
            if is_plain((output, kept)):
                made.compute(formula, (kept,), output)
            else:
                made.overwrite(formula, (kept,), output)
        return output, buffer

    return kernel


def composite_overloads(functions: frozenset[str]) -> list[str]:
    """Return the overloads that a session with these activations overrides."""
    found = {n for op in OPERATORS if functions & {*_FUNCTIONS[op.name]} for n in overloads(op)}
    if "logsigmoid" in functions:
        found |= {*_LOG_SIGMOID}
    return sorted(found)


def composite_kernels(
    loops: Loops, others: Mapping[str, Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel for the activations of ``loops``.

    Args:
        loops: has the functions.
        others: kernels of the session, which compute the calls that are no activation.
    """

    def below(name: str) -> Callable[..., Any]:
        return others[name] if name in others else stock_kernel(name)

    found: dict[str, Callable[..., Any]] = {}
    for op in OPERATORS:
        if loops.composites & {*_FUNCTIONS[op.name]}:
            found |= kernels_of(_Whole(loops, op), below)
    if "logsigmoid" in loops.composites:
        op = replace(OPERATORS[0], name="log_sigmoid", formula=lambda: plain("logsigmoid"))
        found |= {n: _log_sigmoid(_Whole(loops, op), stock_kernel(n)) for n in _LOG_SIGMOID}
    return found


#: Function -> a call that torch makes of it alone.
_CALLS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "sigmoid": lambda torch, x: torch.sigmoid(x),
    "silu": lambda torch, x: torch.nn.functional.silu(x),
    "softplus": lambda torch, x: torch.nn.functional.softplus(x),
    "logsigmoid": lambda torch, x: torch.nn.functional.logsigmoid(x),
    "gelu_erf": lambda torch, x: torch.nn.functional.gelu(x),
    "gelu_tanh": lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    "mish": lambda torch, x: torch.nn.functional.mish(x),
    "elu": lambda torch, x: torch.nn.functional.elu(x),
    "selu": lambda torch, x: torch.selu(x),
    "rsqrt": lambda torch, x: torch.rsqrt(x),
}

#: Function -> the overload that its call ends in.
OVERLOADS: Final = {
    **dict.fromkeys(("elu", "selu"), "elu"),
    **dict.fromkeys(("gelu_erf", "gelu_tanh"), "gelu"),
    **{name: name for name in ("sigmoid", "silu", "softplus", "mish", "rsqrt")},
    "logsigmoid": "log_sigmoid_forward",
}


def operator(torch: Any, function: str) -> Callable[[Any], Any]:
    """Return the operator of torch that is a function."""
    return lambda x: _CALLS[function](torch, x)
