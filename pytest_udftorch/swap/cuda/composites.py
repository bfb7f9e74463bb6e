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
from pytest_udftorch.swap.operators.calls import WHOLE, Applied, plain
from pytest_udftorch.swap.operators.row import Pointwise
from pytest_udftorch.swap.operators.rows import ROWS

_Named = Callable[..., str | None]


def _elu(alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> str | None:
    known = {(1.0, 1.0, 1.0): "elu", (SELU_ALPHA, SELU_SCALE, 1.0): "selu"}
    return known.get((float(alpha), float(scale), float(input_scale)))


def _softplus(beta: Any = 1, threshold: Any = 20) -> str | None:
    return "softplus" if (float(beta), float(threshold)) == (1.0, 20.0) else None


def _gelu(*, approximate: str = "none") -> str | None:
    return {"none": "gelu_erf", "tanh": "gelu_tanh"}.get(approximate)


#: Operator with scalars -> the function that it is with some of them, if any.
_NAMED: Final[dict[str, _Named]] = {"softplus": _softplus, "elu": _elu, "gelu": _gelu}

#: The operator that also returns a buffer; its gradient keeps its formula.
LOG_SIGMOID_OVERLOADS: Final = ("log_sigmoid_forward", "log_sigmoid_forward.output")


def whole_operators(composites: frozenset[str], functions: frozenset[str]) -> list[Pointwise]:
    """Return the operators that are one of ``composites``.

    With other scalars they have their formula if it holds one of ``functions``, and otherwise None.
    """
    found = []
    for row in ROWS:
        mapped = [op for op in (row.whole, *row.cuda) if isinstance(op, Pointwise)]
        if mapped and composites.intersection(row.composites):
            op = mapped[0]
            held = op is not row.whole and bool(op.functions & functions)
            named = _NAMED.get(row.name, lambda name=row.name: name)
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
