# SPDX-License-Identifier: Apache-2.0
"""The activations of ``library.symbols.COMPOSITES`` as real functions, for both oracles.

``value`` computes one with the arithmetic of gmpy2 or of mpmath at any precision; ``special`` has
the results that no precision decides. At an infinity the result is the limit, with the sign of the
results before it. ``verify/reference/composites.c`` states the same functions in C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from pytest_udftorch.swap.library.symbols import SELU_ALPHA, SELU_SCALE

_INF: Final = math.inf
_NAN: Final = math.nan

#: Results at -infinity, at zero (0.0: the zero itself) and at +infinity; None: computed.
_LIMITS: Final[dict[str, tuple[float | None, float | None, float]]] = {
    "sigmoid": (0.0, 0.5, 1.0),
    "silu": (-0.0, 0.0, _INF),
    "softplus": (0.0, None, _INF),
    "logsigmoid": (-_INF, None, -0.0),
    "gelu_erf": (-0.0, 0.0, _INF),
    "gelu_tanh": (-0.0, 0.0, _INF),
    "mish": (-0.0, 0.0, _INF),
    "elu": (-1.0, 0.0, _INF),
    "selu": (None, 0.0, _INF),
    "rsqrt": (_NAN, None, 0.0),
}


@dataclass(frozen=True)
class Arithmetic:
    """Elementary functions at one precision, for numbers with operators.

    Attributes:
        number: makes a number from a float.
        exp, expm1, log1p, erfc, sqrt: the functions.
        pi: returns pi.
    """

    number: Callable[[Any], Any]
    exp: Callable[[Any], Any]
    expm1: Callable[[Any], Any]
    log1p: Callable[[Any], Any]
    erfc: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]
    pi: Callable[[], Any]


def special(function: str, x: float) -> float | None:
    """Return the result where it is exact or a limit; None if it must be computed."""
    if math.isnan(x):
        return x
    low, zero, high = _LIMITS[function]
    if math.isinf(x):
        return high if x > 0 else low
    if function == "rsqrt" and x <= 0:
        return math.copysign(_INF, x) if x == 0 else _NAN
    if x == 0 and zero is not None:
        return zero or x
    return x if function == "elu" and x > 0 else None


def value(function: str, x: float, arithmetic: Arithmetic) -> Any:
    """Return the function of a number for which ``special`` has no result."""
    a, number = arithmetic, arithmetic.number
    v = number(x)
    match function:
        case "sigmoid":
            return number(1) / (1 + a.exp(-v))
        case "silu":
            return v / (1 + a.exp(-v))
        case "softplus":
            # For large arguments the sum would need their precision.
            return v + a.log1p(a.exp(-v)) if x > 0 else a.log1p(a.exp(v))
        case "logsigmoid":
            return v - a.log1p(a.exp(v)) if x < 0 else -a.log1p(a.exp(-v))
        case "gelu_erf":
            return v / 2 * a.erfc(-v / a.sqrt(number(2)))
        case "gelu_tanh":
            cubic = v * v * v * 44715 / 1000000
            return v / (1 + a.exp(-2 * a.sqrt(2 / a.pi()) * (v + cubic)))
        case "mish":
            # tanh(log(1 + e)) by e or, where e would be huge, by its reciprocal.
            e = a.exp(-abs(v))
            n = 1 + 2 * e if x > 0 else e * e + 2 * e
            return v * n / (n + (2 * e * e if x > 0 else 2))
        case "elu":
            return a.expm1(v)
        case "selu":
            scale = number(SELU_SCALE)
            return v * scale if x > 0 else number(SELU_ALPHA) * scale * a.expm1(v)
        case "rsqrt":
            return 1 / a.sqrt(v)
    raise AssertionError(f"{function} is no composite")


def is_tie(function: str, x: float, midpoint: Fraction) -> bool:
    """Tell whether the function of ``x`` is exactly a midpoint.

    All but rsqrt are transcendental at the arguments that are not special, or for selu the product
    with a number of 53 bits, which is no midpoint of a shorter format.
    """
    return function == "rsqrt" and midpoint**2 * Fraction(x) == 1
