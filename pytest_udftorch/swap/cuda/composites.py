# SPDX-License-Identifier: Apache-2.0
"""Operators that are one correctly rounded function: activations, and functions in 16 bits.

An activation with some values of its scalars is a function of one number (``symbols.COMPOSITES``).
A session with ``composites=True`` computes it as that. Other calls keep what they would have.

bfloat16 and half are computed in float32 and rounded once more. For a few of the 65,536 inputs the
second rounding is wrong. The library names them (``sixteen``), and for functions with such inputs a
kernel looks up all results in a table, which is made of the float32 function and these corrections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from pytest_udftorch.swap.library.symbols import SELU_ALPHA, SELU_SCALE
from pytest_udftorch.swap.operators.table import POINTWISE, WHOLE, Applied, Pointwise, plain

_Named = Callable[..., str | None]


def _elu(alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> str | None:
    known = {(1.0, 1.0, 1.0): "elu", (SELU_ALPHA, SELU_SCALE, 1.0): "selu"}
    return known.get((float(alpha), float(scale), float(input_scale)))


def _softplus(beta: Any = 1, threshold: Any = 20) -> str | None:
    return "softplus" if (float(beta), float(threshold)) == (1.0, 20.0) else None


def _gelu(*, approximate: str = "none") -> str | None:
    return {"none": "gelu_erf", "tanh": "gelu_tanh"}.get(approximate)


#: Operator -> its possible functions, and which one it is with some scalars.
_NAMES: Final[dict[str, tuple[frozenset[str], _Named]]] = {
    **{n: (frozenset((n,)), lambda n=n: n) for n in ("sigmoid", "silu", "mish", "rsqrt")},
    "softplus": (frozenset(("softplus",)), _softplus),
    "elu": (frozenset(("elu", "selu")), _elu),
    "gelu": (frozenset(("gelu_erf", "gelu_tanh")), _gelu),
}
_KNOWN: Final = {op.name: op for op in POINTWISE}
_RSQRT: Final = replace(
    _KNOWN["exp"], name="rsqrt", kernels=(f"{WHOLE}rsqrt",), functional="rsqrt",
    out=("rsqrt.out", "out"), inplace="rsqrt_", foreach=False,
    overloads=("rsqrt", "rsqrt.out", "rsqrt_"), formula=lambda: None,
)  # fmt: skip

#: The operator that also returns a buffer; its gradient keeps its formula.
LOG_SIGMOID_OVERLOADS: Final = ("log_sigmoid_forward", "log_sigmoid_forward.output")


def whole_operators(composites: frozenset[str], functions: frozenset[str]) -> list[Pointwise]:
    """Return the operators that are one of ``composites``.

    With other scalars they have their formula if it holds one of ``functions``, and otherwise None.
    """
    found = []
    for name, (possible, named) in _NAMES.items():
        if possible & composites:
            op = _KNOWN.get(name, _RSQRT)
            held = name in _KNOWN and bool(op.functions & functions)
            found.append(replace(op, formula=_formula(op, named, composites, held)))
    return found


def _formula(
    op: Pointwise, named: _Named, composites: frozenset[str], held: bool
) -> Callable[..., Applied | None]:
    def formula(*args: Any, **kwargs: Any) -> Applied | None:
        name = named(*args, **kwargs)
        if name in composites:
            return plain(f"{WHOLE}{name}")
        return op.formula(*args, **kwargs) if held else None

    return formula
