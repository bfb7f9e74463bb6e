# SPDX-License-Identifier: Apache-2.0
"""ULP distances, the correct-rounding oracle, and assertions built on both.

Two oracles that share no code decide what the correctly rounded result is:

``mpfr``
    GNU MPFR through gmpy2. MPFR rounds once, to the precision and the exponent range of
    the format; a subnormal result is rounded at its reduced precision with the help of
    the ternary value (Fousse et al., ACM TOMS 33(2), 2007, section 3), never a second time.
``mpmath``
    Ziv's strategy on mpmath; see ``ziv``.

Rounding the reference to double first would decide some inputs wrongly; the tests have one.

``formats`` says which arrays it takes. gmpy2 and mpmath are imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_udftorch.errors import (
    CheckError,
    PackageMissingError,
    UnknownFunctionError,
    nearest,
)
from pytest_udftorch.prove.exact import composites
from pytest_udftorch.prove.exact.formats import (
    Encodings,
    Format,
    canonical,
    decode,
    describe,
    encode,
    encodings,
    is_nan,
)
from pytest_udftorch.prove.exact.ziv import mpmath_rounded
from pytest_udftorch.swap.library.symbols import COMPOSITES, KNOWN

Oracle: TypeAlias = Literal["mpfr", "mpmath"]

#: Bits of ``ulp_error``'s reference beyond those of the format.
GUARD_BITS: Final = 100


def _pair(a: object, b: object, what: str) -> tuple[Encodings, Encodings, Format]:
    first, fmt = encodings(a)
    second, other = encodings(b)
    if fmt is not other or first.shape != second.shape:
        raise CheckError(
            f"{what}: {other.name}{list(second.shape)} does not correspond to "
            f"{fmt.name}{list(first.shape)}. Both need the same dtype and shape."
        )
    return first, second, fmt


def ulp_distance(a: object, b: object) -> npt.NDArray[np.uint64]:
    """Count the steps, from each number to the next, that lead from ``a`` to ``b``.

    This is the distance of encodings, elementwise: +0 and -0 are 0 apart, the largest finite
    number and infinity are 1 apart, two NaNs are 0 apart.

    Args:
        a: float32, float64, float16 or bfloat16 tensor or array of any shape.
        b: the same dtype and shape.

    Returns:
        uint64 array of that shape; 2**64 - 1 where exactly one of the two is a NaN.

    Raises:
        CheckError: different dtypes or shapes; the dtype is not a floating-point format.
    """
    first, second, fmt = _pair(a, b, "ulp_distance")
    return _distance(first, second, fmt)


def _distance(first: Encodings, second: Encodings, fmt: Format) -> npt.NDArray[np.uint64]:
    magnitude = np.uint64(fmt.sign_bit - 1)
    a, b = first.astype(np.uint64), second.astype(np.uint64)
    from_0, to_0 = a & magnitude, b & magnitude
    apart = np.maximum(from_0, to_0) - np.minimum(from_0, to_0)
    steps = np.where((a ^ b) > magnitude, from_0 + to_0, apart)
    nan_a, nan_b = is_nan(first, fmt), is_nan(second, fmt)
    steps = np.where(nan_a & nan_b, np.uint64(0), steps)
    return np.where(nan_a != nan_b, np.uint64(2**64 - 1), steps)


# Oracles ----------------------------------------------------------------------------


def _gmpy2() -> Any:
    try:
        import gmpy2
    except ImportError as error:
        raise PackageMissingError(
            "The MPFR oracle needs gmpy2, which is not installed: pip install gmpy2."
        ) from error
    return gmpy2


def mpfr_rounded(function: str, args: Sequence[Encodings], fmt: Format) -> Encodings:
    """Return the correctly rounded results of flat encodings, by MPFR; NaNs canonical."""
    # MPFR writes significands as 0.1xxx, so its exponents lie one above the usual ones.
    context = _gmpy2().context(
        precision=fmt.precision, emin=fmt.min_exponent + 1, emax=fmt.max_exponent, subnormalize=True
    )
    if function in COMPOSITES:
        return _composite_rounded(function, args[0], fmt, context)
    call = getattr(context, function)
    columns = [decode(a, fmt).tolist() for a in args]
    results = [float(call(*row)) for row in zip(*columns, strict=True)]
    return encode(np.array(results, dtype=np.float64), fmt)


def _composite_value(function: str, x: float, bits: int) -> Any:
    """Return a composite computed with so many bits."""
    gmp = _gmpy2()
    with gmp.context(precision=bits) as context:
        exact = composites.special(function, x)
        if exact is not None:
            return gmp.mpfr(exact)
        arithmetic = composites.Arithmetic(
            gmp.mpfr, context.exp, context.expm1, context.log1p, context.erfc, context.sqrt,
            lambda: gmp.const_pi(bits),
        )  # fmt: skip
        return composites.value(function, x, arithmetic)


#: A composite computed with P bits is within 2**-(P - SLACK) of its value, relatively: there are
#: less than ten roundings, and erfc amplifies the error of its argument by less than 2**18 where
#: its result is no zero in any format of 32 bits.
_SLACK: Final = 24


def _composite_rounded(function: str, args: Encodings, fmt: Format, narrow: Any) -> Encodings:
    """Return the correctly rounded results of a composite, by MPFR in Ziv's loop."""
    gmp, results = _gmpy2(), []
    for x in decode(args, fmt).tolist():
        exact = composites.special(function, x)
        if exact is not None:
            results.append(float(narrow.plus(gmp.mpfr(exact))))
            continue
        bits = 2 * fmt.precision + 64
        while True:
            value = _composite_value(function, x, bits)
            if value == 0:  # below every number of MPFR, with its sign
                results.append(float(value))
                break
            with gmp.context(precision=bits):
                spread = gmp.mul_2exp(abs(value), _SLACK - bits)
                low, high = value - spread, value + spread
            ends = float(narrow.plus(low)), float(narrow.plus(high))
            if ends[0] == ends[1]:
                results.append(ends[0])
                break
            bits *= 2
    return encode(np.array(results, dtype=np.float64), fmt)


# Public oracle -----------------------------------------------------------------------


def _arguments(inputs: object, function: str) -> tuple[list[Encodings], Format]:
    """Return flat encodings of each argument; check arity, dtypes and shapes."""
    if function not in KNOWN:
        raise UnknownFunctionError(
            f"No oracle for the function {function!r}. {nearest(function, KNOWN)}"
        )
    arity = KNOWN[function].arity
    given = list(inputs) if isinstance(inputs, tuple) else [inputs]
    if len(given) != arity:
        raise CheckError(
            f"{function} takes {arity} argument{'s' * (arity > 1)}, {len(given)} given. "
            "Give the arguments of a bivariate function as a tuple of two arrays."
        )
    first, fmt = encodings(given[0])
    flat = [first.reshape(-1)]
    for other in given[1:]:
        _, second, _ = _pair(given[0], other, function)
        flat.append(second.reshape(-1))
    return flat, fmt


def correctly_rounded(inputs: object, *, function: str, oracle: Oracle = "mpfr") -> Encodings:
    """Return the encodings of the correctly rounded (to nearest even) results.

    Args:
        inputs: array or tensor, float32, float64, float16 or bfloat16; a tuple of two for
            pow, atan2 (y, x) and hypot.
        function: torch's name of the function.
        oracle: ``mpfr`` (fast) or ``mpmath`` (independent of MPFR).

    Returns:
        Unsigned integers of the format's width in the shape of the inputs; NaNs canonical.

    Raises:
        UnknownFunctionError: no oracle for ``function``.
        CheckError: wrong number of arguments, or different dtypes or shapes.
        PackageMissingError: gmpy2 or mpmath is not installed.
    """
    flat, fmt = _arguments(inputs, function)
    first = inputs[0] if isinstance(inputs, tuple) else inputs
    rounded = (mpfr_rounded if oracle == "mpfr" else mpmath_rounded)(function, flat, fmt)
    return rounded.reshape(encodings(first)[0].shape)


def ulp_error(got: object, inputs: object, *, function: str) -> npt.NDArray[np.float64]:
    """Return |got - exact| in ULPs of the correctly rounded result, elementwise.

    The exact value is MPFR's with ``GUARD_BITS`` bits more than the format; it is never
    rounded to the format first, so a correctly rounded result has an error of at most 0.5.
    An infinite result counts as 2**max_exponent. The error is infinite where exactly one of
    ``got`` and the exact value is a NaN, and where ``got`` misses an exact infinity.

    Raises:
        The errors of ``correctly_rounded``.
    """
    flat, fmt = _arguments(inputs, function)
    outputs = _results(got, flat, fmt, function)
    return fractional_errors(outputs.reshape(-1), flat, fmt, function).reshape(outputs.shape)


def _results(got: object, flat: Sequence[Encodings], fmt: Format, function: str) -> Encodings:
    """Return the encodings of results that correspond to the inputs ``flat``."""
    outputs, out_fmt = encodings(got)
    if out_fmt is not fmt or outputs.size != flat[0].size:
        raise CheckError(
            f"{function}: {outputs.size} results of dtype {out_fmt.name} for {flat[0].size} "
            f"inputs of dtype {fmt.name}. Results and inputs must correspond one to one."
        )
    return outputs


def fractional_errors(
    outputs: Encodings, flat: Sequence[Encodings], fmt: Format, function: str
) -> npt.NDArray[np.float64]:
    """Return ``ulp_error`` for flat encodings of the results and of each argument."""
    gmp = _gmpy2()
    wide = gmp.context(precision=fmt.precision + GUARD_BITS)
    limit = gmp.mpfr(2) ** fmt.max_exponent
    if function in COMPOSITES:

        def call(x: float) -> Any:
            return _composite_value(function, x, fmt.precision + GUARD_BITS + _SLACK)
    else:
        call = getattr(wide, function)
    want = mpfr_rounded(function, flat, fmt)
    quanta = _quantum_exponents(want, fmt).tolist()
    columns = [decode(a, fmt).tolist() for a in flat]
    got = decode(outputs, fmt).tolist()
    errors = np.zeros(len(got))
    for i, (result, quantum, *row) in enumerate(zip(got, quanta, *columns, strict=True)):
        exact = call(*row)
        if exact != exact or result != result:
            errors[i] = 0.0 if exact != exact and result != result else np.inf
        elif gmp.is_infinite(exact):
            errors[i] = 0.0 if result == float(exact) else np.inf
        else:
            value = wide.mul(limit, -1 if result < 0 else 1) if np.isinf(result) else result
            beyond = np.isinf(result) and abs(exact) >= limit and (exact < 0) == (result < 0)
            distance = 0.0 if beyond else abs(wide.sub(value, exact))
            errors[i] = float(wide.mul_2exp(distance, -quantum)) if distance else 0.0
    return errors


def _quantum_exponents(encoded: Encodings, fmt: Format) -> npt.NDArray[np.int64]:
    """Return the exponent of one ULP of each number; non-finite ones count as the largest."""
    magnitude = encoded.astype(np.uint64) & np.uint64(fmt.sign_bit - 1)
    field = magnitude >> np.uint64(fmt.precision - 1)
    clipped = np.clip(field.astype(np.int64), 1, 2 * fmt.max_exponent - 2)
    return clipped - 1 + fmt.min_exponent


# Assertions --------------------------------------------------------------------------


def _evaluate(
    fn_or_outputs: object, inputs: object, function: str
) -> tuple[Encodings, list[Encodings], Format, tuple[int, ...]]:
    flat, fmt = _arguments(inputs, function)
    if flat[0].size == 0:
        raise CheckError(
            f"{function}: the inputs are empty, so the check could not fail. Give at least one."
        )
    result = fn_or_outputs
    if callable(fn_or_outputs):
        result = fn_or_outputs(*inputs) if isinstance(inputs, tuple) else fn_or_outputs(inputs)
    outputs = _results(result, flat, fmt, function)
    return outputs.reshape(-1), flat, fmt, outputs.shape


def apart(steps: int) -> str:
    """Return a distance of encodings in words."""
    return "one is a NaN" if steps == 2**64 - 1 else f"{steps} ULP apart"


def message(
    headline: str,
    index: int,
    shape: tuple[int, ...],
    fmt: Format,
    columns: Sequence[tuple[str, Encodings]],
    last: str,
) -> str:
    """Describe a failure, with the worst element of each labelled column."""
    where = tuple(int(i) for i in np.unravel_index(index, shape)) if shape else ()
    lines = [headline, f"Worst at index {where if len(where) != 1 else where[0]}:"]
    lines += [f"  {label:<7}{describe(int(column[index]), fmt)}" for label, column in columns]
    return "\n".join([*lines, f"  {last}"])


def assert_correctly_rounded(
    fn_or_outputs: Callable[..., object] | object,
    inputs: object,
    *,
    function: str,
    oracle: Oracle = "mpfr",
) -> None:
    """Assert that every result is the true value rounded to nearest even.

    Compares encodings, so the sign of a zero counts; any NaN equals any other NaN.

    Args:
        fn_or_outputs: what to check: results in the inputs' shape and dtype, or a callable
            that makes them from the inputs.
        inputs: array or tensor; a tuple of two for pow, atan2 (y, x) and hypot.
        function: torch's name of the function.
        oracle: ``mpfr`` or ``mpmath``.

    Raises:
        AssertionError: shows how many are wrong and the worst one in hex.
        CheckError: no inputs.
        The errors of ``correctly_rounded``.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    outputs, flat, fmt, shape = _evaluate(fn_or_outputs, inputs, function)
    want = (mpfr_rounded if oracle == "mpfr" else mpmath_rounded)(function, flat, fmt)
    got = canonical(outputs, fmt)
    (wrong,) = np.nonzero(got != want)
    if wrong.size == 0:
        return
    errors = fractional_errors(got[wrong], [a[wrong] for a in flat], fmt, function)
    worst = int(np.argmax(errors))
    raise AssertionError(
        message(
            f"{function}: {wrong.size:,} of {got.size:,} {fmt.name} results are not "
            "correctly rounded.",
            int(wrong[worst]),
            shape,
            fmt,
            [*(("input", a) for a in flat), ("got", outputs), ("want", want)],
            f"error  {errors[worst]:.9g} ULP from the true value",
        )
    )


def assert_ulp(
    fn_or_outputs: Callable[..., object] | object, inputs: object, *, function: str, max_ulp: float
) -> None:
    """Assert that no result is farther than ``max_ulp`` ULP from the true value.

    The error is fractional and measured against the exact value (see ``ulp_error``), so
    0.5 asks for a nearest number, but accepts either number of a tie.

    Raises:
        AssertionError: shows how many are beyond the bound and the worst one in hex.
        CheckError: no inputs, or a bound that is not a positive number.
        The errors of ``correctly_rounded``.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    if not max_ulp > 0:
        raise CheckError(
            f"max_ulp={max_ulp!r} bounds nothing. Give a positive number of ULPs; 0.5 is the "
            "best possible."
        )
    outputs, flat, fmt, shape = _evaluate(fn_or_outputs, inputs, function)
    errors = fractional_errors(outputs, flat, fmt, function)
    beyond = int(np.count_nonzero(errors > max_ulp))
    if beyond == 0:
        return
    worst = int(np.argmax(errors))
    want = mpfr_rounded(function, flat, fmt)
    raise AssertionError(
        message(
            f"{function}: {beyond:,} of {errors.size:,} {fmt.name} results are farther than "
            f"{max_ulp:g} ULP from the true value.",
            worst,
            shape,
            fmt,
            [*(("input", a) for a in flat), ("got", outputs), ("want", want)],
            f"error  {errors[worst]:.9g} ULP from the true value",
        )
    )


def assert_bitwise_same(got: object, want: object, *, any_nan: bool = False) -> None:
    """Assert that two arrays or tensors hold the same encodings.

    +0 and -0 differ. NaNs differ in sign and payload too, unless ``any_nan`` is true.

    Raises:
        AssertionError: shows how many differ and the pair farthest apart in hex.
        CheckError: different dtypes or shapes; nothing to compare.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    first, second, fmt = _pair(got, want, "assert_bitwise_same")
    if first.size == 0:
        raise CheckError("Both arrays are empty, so the check could not fail.")
    a, b = first.reshape(-1), second.reshape(-1)
    (differ,) = np.nonzero(canonical(a, fmt) != canonical(b, fmt) if any_nan else a != b)
    if differ.size == 0:
        return
    distance = _distance(a[differ], b[differ], fmt)
    worst = int(np.argmax(distance))
    steps = int(distance[worst])
    raise AssertionError(
        message(
            f"{differ.size:,} of {a.size:,} {fmt.name} elements differ.",
            int(differ[worst]),
            first.shape,
            fmt,
            [("got", a), ("want", b)],
            apart(steps),
        )
    )
