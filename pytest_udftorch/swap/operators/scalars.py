# SPDX-License-Identifier: Apache-2.0
"""Which formula a call has, by the scalars of its operator.

Each function takes the scalars of one operator and returns the formula to apply. The scalars of a
formula are rounded to float32.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from pytest_udftorch.swap.operators.calls import Applied, plain


def _f32(value: Any) -> float:
    return ctypes.c_float(float(value)).value


def elu(alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Applied:
    """Return the formula of elu."""
    scalars = _f32(_f32(alpha) * _f32(scale)), _f32(scale), _f32(input_scale)
    return "elu_of_ones" if scalars == (1.0, 1.0, 1.0) else "elu", *scalars


def elu_backward(alpha: Any, scale: Any, input_scale: Any, is_result: bool) -> Applied:
    """Return the formula of its gradient, of the input or of the result."""
    _, a, b, c = elu(alpha, scale, input_scale)
    return f"elu_backward_{'result' if is_result else 'input'}", a, b, c


def _form_of_gelu(approximate: str) -> str:
    if approximate not in ("none", "tanh"):  # in torch's words
        raise RuntimeError("approximate argument must be either none or tanh.")
    return "erf" if approximate == "none" else approximate


def gelu(*, approximate: str = "none") -> Applied:
    """Return the formula of gelu."""
    return plain(f"gelu_{_form_of_gelu(approximate)}")


def gelu_backward(*, approximate: str = "none") -> Applied:
    """Return the formula of its gradient."""
    return plain(f"gelu_backward_{_form_of_gelu(approximate)}")


def softplus(beta: Any = 1, threshold: Any = 20) -> Applied:
    """Return the formula of softplus."""
    formula = "softplus_of_one" if _f32(beta) == 1.0 else "softplus"
    return formula, _f32(beta), _f32(threshold), 0.0


def softplus_backward(beta: Any, threshold: Any) -> Applied:
    """Return the formula of its gradient."""
    return "softplus_backward", _f32(beta), _f32(threshold), 0.0


def logit(eps: float | None = None) -> Applied:
    """Return the formula of logit; a negative ``eps`` clamps nothing."""
    if eps is None or eps < 0:
        return plain("logit")
    return "logit_clamped", _f32(eps), _f32(1 - _f32(eps)), 0.0


#: Exponents for which ATen multiplies, divides or takes a root.
MULTIPLIED_OUT: Final = frozenset((0.0, 0.5, 1.0, 2.0, 3.0, -0.5, -1.0, -2.0))


def pow_by(exponent: Any) -> Applied:
    """Return the formula of a power by a number.

    Raises:
        KeyError: the stock kernel calls no pow for it, or the number is complex.
    """
    if isinstance(exponent, complex) or float(exponent) in MULTIPLIED_OUT:
        raise KeyError(exponent)
    return "pow_by", _f32(exponent), 0.0, 0.0


def compiled_softplus(beta: float = 1.0, threshold: float = 20.0) -> Applied:
    """Return softplus for a compiler, with unrounded scalars."""
    return "softplus", beta, threshold, 0.0


def compiled_celu(alpha: float = 1.0) -> Applied:
    """Return celu for a compiler, with unrounded scalars."""
    return "celu", alpha, 1.0 / alpha, 0.0


def compiled_gelu(approximate: str = "none") -> Applied | None:
    """Return gelu for a compiler, which computes the form with erf by its own code."""
    return plain("gelu_tanh") if approximate == "tanh" else None
