# SPDX-License-Identifier: Apache-2.0
"""Correct rounding by Ziv's strategy on mpmath, independent of MPFR.

The value is enclosed in an interval, both ends are rounded exactly with integers, and the
precision doubles until they agree (Ziv, ACM TOMS 17(3), 1991). Special values follow ISO C,
annex F; ties, which no precision decides, are recognised by exact arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from pytest_udftorch.errors import CheckError, PackageMissingError
from pytest_udftorch.prove.exact import composites
from pytest_udftorch.prove.exact.formats import Encodings, Format, decode, encode
from pytest_udftorch.swap.library.symbols import COMPOSITES

#: The loop gives up here; no elementary function of a 64-bit format needs a tenth of it
#: unless the input is a tie that ``_is_tie`` fails to recognise.
MAX_PRECISION: Final = 20000


@functools.cache
def _mp_context() -> Any:
    try:
        import mpmath
    except ImportError as error:
        raise PackageMissingError(
            "The mpmath oracle needs mpmath, which is not installed: pip install mpmath."
        ) from error
    return mpmath.MPContext()


_INF: Final = float("inf")
_NAN: Final = float("nan")


def _is_minus(x: float) -> bool:
    return bool(np.signbit(x))


def _is_odd_integer(y: float) -> bool:
    return y.is_integer() and int(y) % 2 == 1


#: Results at +infinity and -infinity that are exact.
_AT_INFINITY: Final[dict[str, tuple[float, float]]] = {
    **dict.fromkeys(("exp", "exp2"), (_INF, 0.0)),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "acosh"), (_INF, _NAN)),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atanh"), (_NAN, _NAN)),
    **dict.fromkeys(("sinh", "asinh"), (_INF, -_INF)),
    **dict.fromkeys(("tanh", "erf"), (1.0, -1.0)),
    "expm1": (_INF, -1.0),
    "cosh": (_INF, _INF),
    "erfc": (0.0, 2.0),
}
#: Ends of the domain, the pole at -infinity, and the exact zero other than f(0) = 0.
_DOMAINS: Final[dict[str, tuple[float, float, float | None, float | None]]] = {
    **dict.fromkeys(("log", "log2", "log10"), (0.0, _INF, 0.0, 1.0)),
    **dict.fromkeys(("asin", "atanh"), (-1.0, 1.0, None, None)),
    "log1p": (-1.0, _INF, -1.0, None),
    "acos": (-1.0, 1.0, None, 1.0),
    "acosh": (1.0, _INF, None, 1.0),
}
#: Functions with f(±0) = ±0; the others are 1 or a pole there, or listed below.
_ODD_AT_ZERO: Final = frozenset(
    ("expm1", "log1p", "sin", "tan", "sinh", "tanh", "asin", "atan", "asinh", "atanh", "erf")
)
_ONE_AT_ZERO: Final = frozenset(("exp", "exp2", "cos", "cosh", "erfc"))


def _special(function: str, args: tuple[float, ...]) -> float | None:
    """Return the result if ISO C, annex F, makes it exact; None if it must be computed."""
    if function in COMPOSITES:
        return composites.special(function, args[0])
    if function == "pow":
        return _special_pow(*args)
    if function == "hypot":
        if any(np.isinf(args)):
            return _INF
        return _NAN if any(np.isnan(args)) else None
    if any(np.isnan(args)):
        return _NAN
    if function == "atan2":
        y, x = args
        if y == 0 and not _is_minus(x):
            return y
        if x == _INF and not np.isinf(y):
            return -0.0 if _is_minus(y) else 0.0
        return None
    (x,) = args
    if np.isinf(x):
        limits = _AT_INFINITY.get(function)
        return None if limits is None else limits[_is_minus(x)]
    if x == 0:
        if function in _ODD_AT_ZERO:
            return x
        if function in _ONE_AT_ZERO:
            return 1.0
    return _special_domain(function, x)


def _special_domain(function: str, x: float) -> float | None:
    """Return the result at poles, exact zeros and outside the domain, for finite ``x``."""
    low, high, pole, zero = _DOMAINS.get(function, (-_INF, _INF, None, None))
    if x < low or x > high:
        return _NAN
    if function == "atanh" and abs(x) == 1:
        return x * _INF
    if x == pole:
        return -_INF
    return 0.0 if x == zero else None


def _special_pow(x: float, y: float) -> float | None:
    """Return the exact results of ISO C, F.10.4.4."""
    if y == 0 or x == 1:
        return 1.0
    if np.isnan(x) or np.isnan(y):
        return _NAN
    if np.isinf(y):
        if abs(x) == 1:
            return 1.0
        return _INF if (abs(x) > 1) == (y > 0) else 0.0
    if x == 0 or np.isinf(x):
        magnitude = _INF if (x == 0) == (y < 0) else 0.0
        return -magnitude if _is_minus(x) and _is_odd_integer(y) else magnitude
    if x < 0 and not y.is_integer():
        return _NAN
    return None


def _arithmetic(ctx: Any) -> composites.Arithmetic:
    return composites.Arithmetic(
        ctx.mpf, ctx.exp, ctx.expm1, ctx.log1p, ctx.erfc, ctx.sqrt, lambda: +ctx.pi
    )


def _mp_value(function: str, args: tuple[float, ...], ctx: Any) -> Any:
    """Evaluate at ``ctx.prec``, for arguments without a special value."""
    if function in COMPOSITES:
        return composites.value(function, args[0], _arithmetic(ctx))
    if function == "atan" and np.isinf(args[0]):
        return ctx.sign(args[0]) * ctx.pi / 2
    if function == "atan2":
        return _mp_atan2(args[0], args[1], ctx)
    exact = [ctx.mpf(a) for a in args]
    match function:
        case "exp2":
            return ctx.power(2, exact[0])
        case "log2":
            return ctx.log(exact[0], 2)
        case "pow":
            x, y = exact
            power = ctx.power(abs(x), y)
            return -power if x < 0 and _is_odd_integer(args[1]) else power
        case "log":
            return ctx.ln(exact[0])
        case _:
            return getattr(ctx, function)(*exact)


def _mp_atan2(y: float, x: float, ctx: Any) -> Any:
    sign = -1 if _is_minus(y) else 1
    if np.isinf(y):
        quarters = 2 if not np.isinf(x) else 3 if x < 0 else 1
        return sign * quarters * ctx.pi / 4
    if y == 0 or x == -_INF:
        return sign * ctx.pi
    return ctx.atan2(ctx.mpf(y), ctx.mpf(x))


def round_dyadic(magnitude: int, exponent: int, fmt: Format) -> int:
    """Return the encoding of magnitude * 2**exponent > 0, rounded once to nearest even."""
    top = magnitude.bit_length() + exponent
    if top > fmt.max_exponent:
        return fmt.infinity
    quantum = max(top - fmt.precision, fmt.min_exponent)
    shift = quantum - exponent
    if shift <= 0:
        rounded = magnitude << -shift
    elif shift > magnitude.bit_length() + 1:
        rounded = 0
    else:
        rounded = magnitude >> shift
        rest, half = magnitude & ((1 << shift) - 1), 1 << (shift - 1)
        if rest > half or (rest == half and rounded & 1):
            rounded += 1
    # A significand that rounded up to 2**precision carries into the exponent field, and so
    # does a subnormal one that became normal: the sum is right in each case.
    return min(rounded + ((quantum - fmt.min_exponent) << (fmt.precision - 1)), fmt.infinity)


def _midpoint_above(encoding: int, fmt: Format) -> Fraction:
    """Return the number half-way between a finite magnitude and the next one."""
    low = Fraction(float(decode(np.array([encoding]), fmt)[0]))
    field = max(encoding >> (fmt.precision - 1), 1)
    return low + Fraction(2) ** (field - 1 + fmt.min_exponent) / 2


def _is_tie(function: str, args: tuple[float, ...], midpoint: Fraction) -> bool:
    """Tell whether |f(args)| is exactly ``midpoint``.

    Transcendental functions are irrational at the algebraic points where ``_special``
    gives no result (Lindemann-Weierstrass), so only the algebraic ones can tie.
    """
    if function in COMPOSITES:
        return composites.is_tie(function, args[0], midpoint)
    if function == "exp2":
        return args[0].is_integer() and Fraction(2) ** int(args[0]) == midpoint
    if function == "hypot":
        return Fraction(args[0]) ** 2 + Fraction(args[1]) ** 2 == midpoint**2
    if function == "pow":
        base, power = Fraction(abs(args[0])), Fraction(args[1])
        if base.numerator.bit_count() == base.denominator.bit_count() == 1:
            log2 = base.numerator.bit_length() - base.denominator.bit_length()
            exponent = log2 * power
            return exponent.denominator == 1 and Fraction(2) ** int(exponent) == midpoint
        # An odd factor above 1 raised to n has more than n bits, and a root must be exact:
        # larger powers cannot be a midpoint of any format here.
        if not (0 < power.numerator < 64 and power.denominator <= 64):
            return False
        return bool(base**power.numerator == midpoint**power.denominator)
    return False


def _mpmath_scalar(function: str, args: tuple[float, ...], fmt: Format) -> int:
    exact = _special(function, args)
    if exact is not None:
        return int(encode(np.array([exact]), fmt)[0])
    ctx = _mp_context()
    precision = fmt.precision + 32
    while precision <= MAX_PRECISION:
        ctx.prec = precision
        value = _mp_value(function, args, ctx)
        sign, magnitude, exponent, length = value._mpf_
        sign = fmt.sign_bit if sign else 0
        if magnitude == 0:
            return sign
        # mpmath strips trailing zeros. The enclosure is 2**20 units in the last place of
        # the working precision on either side, far more than mpmath's rounding errors.
        spread = max(precision - length, 0)
        magnitude, exponent = magnitude << spread, exponent - spread
        low = round_dyadic(magnitude - (1 << 20), exponent, fmt)
        high = round_dyadic(magnitude + (1 << 20), exponent, fmt)
        if low == high:
            return sign | low
        if high == low + 1 and _is_tie(function, args, _midpoint_above(low, fmt)):
            return sign | (high if low & 1 else low)
        precision *= 2
    raise CheckError(
        f"{function}{args}: {MAX_PRECISION} bits do not decide the rounding to {fmt.name}. "
        "Either this is a tie that the oracle does not know, or mpmath returned a wrong "
        "value; report it."
    )


def mpmath_rounded(function: str, args: Sequence[Encodings], fmt: Format) -> Encodings:
    """Return the correctly rounded results of flat encodings; NaNs canonical.

    Raises:
        PackageMissingError: mpmath is not installed.
        CheckError: the highest precision does not decide.
    """
    rows = zip(*(decode(a, fmt).tolist() for a in args), strict=True)
    return np.array([_mpmath_scalar(function, row, fmt) for row in rows], dtype=fmt.dtype)
