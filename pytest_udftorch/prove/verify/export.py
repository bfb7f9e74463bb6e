# SPDX-License-Identifier: Apache-2.0
"""Certified functions for other tools: as FPCore, and as a platform of Herbie.

FPCore is the input of the tools of FPBench (Damouche, Martel, Panchekha, Qiu, Sanchez-Stern and
Tatlock, Toward a Standard Benchmark Format and Suite for Floating-Point Analysis, NSV 2016); the
syntax is that of the standard 2.0, https://fpbench.org/spec/fpcore-2.0.html. A platform tells
Herbie which operations there are and what they cost; the syntax is that of Herbie 2.2 and 2.3,
https://herbie.uwplse.org/doc/2.2/platforms.html, with nothing in which the two differ.

A platform says how an operation is computed. Herbie's ``from-rival`` gives the correctly rounded
result of a formula, which is what a certificate of a correctly rounded function proves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from pytest_udftorch.errors import CertificateError, nearest
from pytest_udftorch.prove.verify.certificate import Certificate
from pytest_udftorch.swap.library.symbols import SELU_ALPHA, SELU_SCALE

#: An expression: a number, a variable, ``PI``, or an operation and its arguments. ``neg`` is the
#: minus of one argument.
Expression = int | str | Fraction | tuple[Any, ...]

_ONE_ARGUMENT: Final = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2",
    "expm1", "log", "log10", "log1p", "log2", "sin", "sinh", "tan", "tanh",
)  # fmt: skip
_TWO_ARGUMENTS: Final = ("atan2", "hypot", "pow")

_HALF: Final = ("/", "x", 2)
_CUBIC: Final = ("*", Fraction(44715, 1000000), ("*", "x", ("*", "x", "x")))

#: Function -> what it is of real numbers.
FORMULAS: Final[dict[str, Expression]] = {
    **{name: (name, "x") for name in _ONE_ARGUMENT},
    **{name: (name, "x", "y") for name in _TWO_ARGUMENTS},
    "sigmoid": ("/", 1, ("+", 1, ("exp", ("neg", "x")))),
    "silu": ("/", "x", ("+", 1, ("exp", ("neg", "x")))),
    "softplus": ("log1p", ("exp", "x")),
    "logsigmoid": ("neg", ("log1p", ("exp", ("neg", "x")))),
    "gelu_erf": ("*", _HALF, ("erfc", ("neg", ("/", "x", ("sqrt", 2))))),
    "gelu_tanh": (
        "*", _HALF, ("+", 1, ("tanh", ("*", ("sqrt", ("/", 2, "PI")), ("+", "x", _CUBIC)))),
    ),
    "mish": ("*", "x", ("tanh", ("log1p", ("exp", "x")))),
    "elu": ("if", (">", "x", 0), "x", ("expm1", "x")),
    "selu": (
        "*", Fraction(SELU_SCALE),
        ("if", (">", "x", 0), "x", ("*", Fraction(SELU_ALPHA), ("expm1", "x"))),
    ),
    "rsqrt": ("/", 1, ("sqrt", "x")),
}  # fmt: skip

#: What Herbie's specifications have no name for, in their terms.
_SPELT_OUT: Final[dict[str, Expression]] = {
    "erfc": ("-", 1, ("erf", "x")),
    "expm1": ("-", ("exp", "x"), 1),
    "log1p": ("log", ("+", 1, "x")),
    "hypot": ("sqrt", ("+", ("*", "x", "x"), ("*", "y", "y"))),
}

#: dtype -> the precision of FPCore. Herbie's own representations are the last two.
PRECISIONS: Final = {
    "bfloat16": "(float 8 16)",
    "float16": "binary16",
    "float32": "binary32",
    "float64": "binary64",
}
_REPRESENTATIONS: Final = {"float32": ("binary32", "f32"), "float64": ("binary64", "f64")}

#: Arithmetic of a platform: operation -> Racket's function of flonums.
_ARITHMETIC: Final = {"+": "+", "-": "-", "*": "*", "/": "/"}
_COMPARISONS: Final = {"==": "=", "!=": "(negate =)", "<": "<", ">": ">", "<=": "<=", ">=": ">="}


# Expressions -------------------------------------------------------------------------


def fpcore_text(expression: Expression) -> str:
    """Return an expression in the syntax of FPCore."""
    if not isinstance(expression, tuple):
        return str(expression)
    operation, *parts = expression
    name = "-" if operation == "neg" else operation
    return f"({' '.join([name, *map(fpcore_text, parts)])})"


def spec_text(expression: Expression) -> str:
    """Return an expression in the syntax of Herbie's specifications."""
    if not isinstance(expression, tuple):
        return "(PI)" if expression == "PI" else str(expression)
    operation, *parts = expression
    if operation in _SPELT_OUT:
        meant = dict(zip(("x", "y"), parts, strict=False))
        return spec_text(_replaced(_SPELT_OUT[operation], meant))
    return f"({' '.join([operation, *map(spec_text, parts)])})"


def _replaced(expression: Expression, meant: Mapping[str, Expression]) -> Expression:
    if isinstance(expression, tuple):
        return (expression[0], *[_replaced(part, meant) for part in expression[1:]])
    return meant.get(expression, expression) if isinstance(expression, str) else expression


def _variables(function: str) -> tuple[str, ...]:
    return ("x", "y") if function in _TWO_ARGUMENTS else ("x",)


# Certificates ------------------------------------------------------------------------


def _formula(certificate: Certificate) -> Expression:
    """Return what a certificate proves to be correctly rounded.

    Raises:
        CertificateError: it does not prove that, or nobody knows the function's formula.
    """
    wrong = [*certificate.failures(), *certificate.unfinished()]
    if wrong:
        raise CertificateError(
            f"{certificate.name} does not prove what it claims: {wrong[0]} Run `udftorch verify` "
            "to the end, or leave it out."
        )
    bound = certificate.subject["max_ulp"]
    if bound is None or bound > 0.5:
        raise CertificateError(
            f"{certificate.name} does not claim correct rounding, and what is exported stands for "
            "the correctly rounded result. Leave it out."
        )
    function = certificate.subject["function"]
    if function not in FORMULAS:
        raise CertificateError(
            f"There is no formula for {function!r} to export. {nearest(function, FORMULAS)}"
        )
    return FORMULAS[function]


def _proof(certificate: Certificate) -> str:
    """Return in words which inputs were run, and what says so."""
    subject, domain = certificate.subject, certificate.domain
    digest = certificate.runs[0].digest() if certificate.runs else ""
    return (
        f"{subject['library']} {subject['version']}, correctly rounded: {domain['count']:,} inputs "
        f"({domain['inputs']}), outputs {digest}"
    )


def fpcore(certificates: Sequence[Certificate]) -> str:
    """Return certified functions as FPCore, a benchmark for each.

    ``:spec`` is the function of real numbers. Its result, rounded once to ``:precision``, is what
    the library gives.

    Raises:
        CertificateError: a certificate proves no correct rounding.
    """
    found = []
    for one in certificates:
        formula, function = fpcore_text(_formula(one)), one.subject["function"]
        found.append(
            f"(FPCore {function} ({' '.join(_variables(function))})\n"
            f' :name "{one.name}"\n'
            f' :description "{_proof(one)}"\n'
            f" :precision {PRECISIONS[one.subject['dtype']]}\n"
            f" :spec {formula}\n"
            f" {formula})\n"
        )
    return "\n".join(found)


def herbie_platform(
    certificates: Sequence[Certificate], costs: Mapping[str, float] | None = None
) -> str:
    """Return a platform of Herbie with the arithmetic of torch and certified functions.

    Args:
        certificates: of correctly rounded functions in float32 or float64.
        costs: operation (``+``, ``sqrt``, ``exp``) -> what it costs; others cost 1.

    Raises:
        CertificateError: a certificate proves no correct rounding, is of a dtype that Herbie
            has no representation for, or of a function that another one is also of.
    """
    costs = costs or {}
    blocks: dict[str, list[str]] = {}
    seen: set[tuple[str, str]] = set()
    for one in certificates:
        function, dtype = one.subject["function"], one.subject["dtype"]
        if dtype not in _REPRESENTATIONS:
            raise CertificateError(
                f"{one.name}: Herbie has no representation for {dtype}. Export float32 and float64."
            )
        if (function, dtype) in seen:
            raise CertificateError(
                f"There are two certificates of {function} in {dtype}, and an operation has one "
                f"implementation. Leave {one.name} or the other out."
            )
        seen.add((function, dtype))
        block = blocks.setdefault(dtype, [])
        block.append(f"; {_proof(one)}\n{_certified(function, _formula(one), dtype, costs)}")
    parts = [_HEAD, *[_basic(dtype, costs) + "\n".join(blocks[dtype]) for dtype in sorted(blocks)]]
    return "\n".join(parts)


_HEAD: Final = """#lang herbie/platform

; Arithmetic of torch and certified functions of pytest-udftorch. `udftorch certificate export`
; wrote this file. Use it: herbie report --platform FILE

(require math/flonum)

(define-representation <bool> #:cost 1)
(define-operation (not [x <bool>]) <bool> #:spec (not x) #:impl not #:cost 1)
"""


def _cost(name: str, costs: Mapping[str, float]) -> str:
    return f"{costs.get(name, 1):.4g}"


def _operation(
    name: str, dtype: str, types: tuple[str, ...], result: str, fields: tuple[str, str, str, str]
) -> str:
    """Return one ``define-operation``.

    Args:
        name: without the suffix of its dtype.
        dtype: of the operation.
        types: representations of its arguments.
        result: the representation of its result.
        fields: specification, implementation, expression of FPCore, cost.
    """
    spec, implementation, core, cost = fields
    precision, suffix = _REPRESENTATIONS[dtype]
    names = ("c", "t", "f") if name == "if" else ("x", "y")
    arguments = " ".join(f"[{n} <{t}>]" for n, t in zip(names, types, strict=False))
    return (
        f"(define-operation ({name}.{suffix} {arguments}) <{result}>\n"
        f"  #:spec {spec} #:impl {implementation}\n"
        f"  #:fpcore (! :precision {precision} {core}) #:cost {cost})\n"
    )


def _certified(function: str, formula: Expression, dtype: str, costs: Mapping[str, float]) -> str:
    own = _REPRESENTATIONS[dtype][0]
    fields = spec_text(formula), "(from-rival)", fpcore_text(formula), _cost(function, costs)
    return _operation(function, dtype, (own,) * len(_variables(function)), own, fields)


def _basic(dtype: str, costs: Mapping[str, float]) -> str:
    """Return the representation, and what every processor has for it."""
    own, _ = _REPRESENTATIONS[dtype]
    # Rounding a sum, product, quotient or root of float32 numbers to double precision first
    # does no harm (Figueroa, When is Double Rounding Innocuous?, SIGNUM 30(3), 1995).
    rounded = "(compose flsingle {})" if own == "binary32" else "{}"
    two, one = (own, own), (own,)
    found = [f"(define-representation <{own}> #:cost 1)\n"]
    for name, racket in _COMPARISONS.items():
        text = f"({name} x y)"
        found.append(_operation(name, dtype, two, "bool", (text, racket, text, _cost(name, costs))))
    text = "(if c t f)"
    fields = text, "if-impl", text, _cost("if", costs)
    found.append(_operation("if", dtype, ("bool", *two), own, fields))
    fields = "(neg x)", "-", "(- x)", _cost("neg", costs)
    found.append(_operation("neg", dtype, one, own, fields))
    for name, racket in _ARITHMETIC.items():
        text = f"({name} x y)"
        fields = text, rounded.format(racket), text, _cost(name, costs)
        found.append(_operation(name, dtype, two, own, fields))
    for name, racket in (("sqrt", rounded.format("flsqrt")), ("fabs", "abs")):
        text = f"({name} x)"
        found.append(_operation(name, dtype, one, own, (text, racket, text, _cost(name, costs))))
    return "\n".join(found) + "\n"
