# SPDX-License-Identifier: Apache-2.0
"""The CUDA operators that a session can override: their overloads, functions and formulas.

``operators`` registers the operators, ``counters`` counts the calls that their formulas make, and
``compiled.inductor`` gives Inductor the same formulas. This module needs neither torch nor Triton.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.operators import formulas

#: Functions of one argument whose operator has the same name.
BARE: Final = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh",
    "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc",
)  # fmt: skip

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


# Scalars of the operators ------------------------------------------------------------------


def _f32(value: Any) -> float:
    return ctypes.c_float(float(value)).value


def plain(formula: str) -> Applied:
    """Return the application of a formula that has no scalars."""
    return formula, 0.0, 0.0, 0.0


def _elu(alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Applied:
    scalars = _f32(_f32(alpha) * _f32(scale)), _f32(scale), _f32(input_scale)
    return "elu_of_ones" if scalars == (1.0, 1.0, 1.0) else "elu", *scalars


def _elu_backward(alpha: Any, scale: Any, input_scale: Any, is_result: bool) -> Applied:
    _, a, b, c = _elu(alpha, scale, input_scale)
    return f"elu_backward_{'result' if is_result else 'input'}", a, b, c


def _form_of_gelu(approximate: str) -> str:
    if approximate not in ("none", "tanh"):  # in torch's words
        raise RuntimeError("approximate argument must be either none or tanh.")
    return "erf" if approximate == "none" else approximate


def _gelu(*, approximate: str = "none") -> Applied:
    return plain(f"gelu_{_form_of_gelu(approximate)}")


def _gelu_backward(*, approximate: str = "none") -> Applied:
    return plain(f"gelu_backward_{_form_of_gelu(approximate)}")


def _softplus(beta: Any = 1, threshold: Any = 20) -> Applied:
    formula = "softplus_of_one" if _f32(beta) == 1.0 else "softplus"
    return formula, _f32(beta), _f32(threshold), 0.0


def _softplus_backward(beta: Any, threshold: Any) -> Applied:
    return "softplus_backward", _f32(beta), _f32(threshold), 0.0


def _logit(eps: float | None = None) -> Applied:
    if eps is None or eps < 0:
        return plain("logit")
    return "logit_clamped", _f32(eps), _f32(1 - _f32(eps)), 0.0


#: Exponents for which ATen multiplies, divides or takes a root; overload.h has the same.
MULTIPLIED_OUT: Final = frozenset((0.0, 0.5, 1.0, 2.0, 3.0, -0.5, -1.0, -2.0))


def _pow_by(exponent: Any) -> Applied:
    """Return the formula of a power by a number.

    Raises:
        KeyError: the stock kernel calls no pow for it, or the number is complex.
    """
    if isinstance(exponent, complex) or float(exponent) in MULTIPLIED_OUT:
        raise KeyError(exponent)
    return "pow_by", _f32(exponent), 0.0, 0.0


# The operators -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Operator:
    """An operator of ATen.

    Attributes:
        name: its name.
        kernels: formulas, or kernels over rows, that compute its calls.
        overloads: the overloads that are overridden.
    """

    name: str
    kernels: tuple[str, ...]
    overloads: tuple[str, ...]

    @property
    def functions(self) -> frozenset[str]:
        """The functions that it calls."""
        return frozenset(call.function for kernel in self.kernels for call in calls(kernel))


@dataclass(frozen=True)
class Pointwise(Operator):
    """An operator that maps elements.

    Attributes:
        functional: the overload that returns a new tensor.
        out: the overload that writes into a tensor of the caller, and that tensor's name; None
            if there is none.
        inplace: the overload that writes into its first tensor; empty if there is none.
        foreach: whether it has operators on lists of tensors.
        places: positions of the tensors among the arguments.
        formula: takes the operator's scalars and returns the formula to apply, or None if the call
            is for the stock kernel.
        has_scalars: whether the operator has scalars.
    """

    functional: str
    out: tuple[str, str] | None
    inplace: str
    foreach: bool
    places: tuple[int, ...]
    formula: Callable[..., Applied | None]
    has_scalars: bool


def _pointwise(
    name: str,
    formula: Callable[..., Applied] | None = None,
    *,
    kernels: Sequence[str] = (),
    places: tuple[int, ...] = (0,),
    functional: str = "",
    out: tuple[str, str] | None,
    inplace: str = "",
    foreach: bool = False,
) -> Pointwise:
    functional = functional or name
    lists = (f"_foreach_{name}", f"_foreach_{name}_") if foreach else ()
    overloads = (functional, inplace, out[0] if out else "", *lists)
    return Pointwise(
        name, tuple(kernels) or (name,), tuple(filter(None, overloads)), functional, out, inplace,
        foreach, places, formula or functools.partial(plain, name), formula is not None,
    )  # fmt: skip


def _unary(name: str, *args: Any, inplace: bool = True, **options: Any) -> Pointwise:
    inplace_name = f"{name}_" if inplace else ""
    return _pointwise(name, *args, out=(f"{name}.out", "out"), inplace=inplace_name, **options)


def _binary(name: str) -> Pointwise:
    return _pointwise(name, places=(0, 1), out=(f"{name}.out", "out"), inplace=f"{name}_")


def _backward(name: str, *args: Any, places: tuple[int, ...] = (0, 1), **options: Any) -> Pointwise:
    out = (f"{name}.grad_input", "grad_input")
    return _pointwise(name, *args, **{"out": out, "places": places, **options})


def _rows(name: str, kernel: str) -> Operator:
    return Operator(name, (f"{kernel}_rows", f"{kernel}_tiles"), (name, f"{name}.out"))


POINTWISE: Final[tuple[Pointwise, ...]] = (
    *(_unary(n, foreach=n not in ("exp2", "asinh", "acosh", "atanh")) for n in BARE),
    _unary("sigmoid", foreach=True),
    _unary("silu"),
    _unary("elu", _elu, kernels=("elu", "elu_of_ones")),
    _unary("gelu", _gelu, kernels=("gelu_erf", "gelu_tanh")),
    _unary("softplus", _softplus, kernels=("softplus", "softplus_of_one"), inplace=False),
    _unary("mish"),
    _unary("logit", _logit, kernels=("logit", "logit_clamped")),
    _unary("sinc"),
    _unary("erfinv", foreach=False),
    _unary("digamma"),
    _unary("lgamma", foreach=True),
    *(_unary(f"special_{n}", inplace=False) for n in ("entr", "ndtri", "log_ndtr")),
    _backward("silu_backward"),
    _backward("elu_backward", _elu_backward, places=(0, 5),
              kernels=("elu_backward_input", "elu_backward_result")),
    _backward("gelu_backward", _gelu_backward,
              kernels=("gelu_backward_erf", "gelu_backward_tanh")),
    _backward("softplus_backward", _softplus_backward),
    _backward("mish_backward", out=None),
    _binary("atan2"),
    _binary("hypot"),
    *(_pointwise(n, places=(0, 1), out=(f"{n}.out", "out")) for n in ("logaddexp", "logaddexp2")),
    _pointwise("xlogy", places=(0, 1), functional="xlogy.Tensor", out=("xlogy.OutTensor", "out"),
               inplace="xlogy_.Tensor"),
    _pointwise("special_xlog1py", lambda: plain("xlog1py"), kernels=("xlog1py",), places=(0, 1),
               out=("special_xlog1py.out", "out")),
    _pointwise("pow", places=(0, 1), functional="pow.Tensor_Tensor",
               out=("pow.Tensor_Tensor_out", "out"), inplace="pow_.Tensor"),
)  # fmt: skip

#: It maps elements too, but also returns a buffer.
LOG_SIGMOID: Final = Operator(
    "log_sigmoid",
    ("logsigmoid", "logsigmoid_backward"),
    ("log_sigmoid_forward", "log_sigmoid_forward.output", "log_sigmoid_backward",
     "log_sigmoid_backward.grad_input"),
)  # fmt: skip
POW_OF_NUMBERS: Final = Operator(
    "pow",
    ("pow",),
    ("pow.Tensor_Scalar", "pow.Tensor_Scalar_out", "pow_.Scalar", "pow.Scalar", "pow.Scalar_out"),
)
#: The same on the CPU; stock computes whole vectors in float32, and the rest in double.
POW_BY: Final = _pointwise(
    "pow", _pow_by, kernels=("pow_by",), functional="pow.Tensor_Scalar",
    out=("pow.Tensor_Scalar_out", "out"), inplace="pow_.Scalar",
)  # fmt: skip
#: The same on the CPU, nearer to the exact result.
LGAMMA_WIDE: Final = _unary("lgamma", lambda: plain("lgamma_wide"), kernels=("lgamma_wide",))
#: Not all of their tensors have the shape of the result.
GLU: Final = Operator("glu", ("glu",), ("glu", "glu.out"))
GLU_BACKWARD: Final = Operator(
    "glu_backward",
    ("glu_backward_value", "glu_backward_gate"),
    ("glu_backward", "glu_backward.grad_input"),
)
BINARY_CROSS_ENTROPY: Final = Operator(
    "binary_cross_entropy",
    ("binary_cross_entropy",),
    ("binary_cross_entropy", "binary_cross_entropy.out"),
)
#: Two orders of many; the others are stock's.
POLYGAMMA: Final = Operator("polygamma", ("digamma", "trigamma"), ("polygamma", "polygamma.out"))
#: Stock's function without its factor, which needs no function, times the factor.
SCALED: Final[dict[Operator, str]] = {
    Operator("i0", ("exp_times",), ("i0", "i0.out", "i0_")): "special_i0e",
    Operator("special_i1", ("exp_times",), ("special_i1", "special_i1.out")): "special_i1e",
    Operator(
        "special_modified_bessel_i0", ("exp_times",),
        ("special_modified_bessel_i0", "special_modified_bessel_i0.out"),
    ): "special_i0e",
    Operator(
        "special_modified_bessel_i1", ("exp_times",),
        ("special_modified_bessel_i1", "special_modified_bessel_i1.out"),
    ): "special_i1e",
    Operator(
        "special_erfcx", ("special_erfcx",), ("special_erfcx", "special_erfcx.out")
    ): "special_erfcx",
}  # fmt: skip
LOG_CUMULATIVE: Final = Operator(
    "_logcumsumexp", ("logaddexp",), ("_logcumsumexp", "_logcumsumexp.out")
)
#: Composed of pow and its like as operators.
POW_OF_LISTS: Final = Operator(
    "_foreach_pow",
    ("pow",),
    (
        *(f"_foreach_pow.{n}" for n in ("List", "Scalar", "ScalarList", "ScalarAndTensor")),
        *(f"_foreach_pow_.{n}" for n in ("List", "Scalar", "ScalarList")),
    ),
)
DISTANCES: Final = Operator(
    "_cdist_forward",
    ("pow",),
    ("_cdist_forward", "_cdist_backward", "_pdist_forward", "_pdist_backward"),
)
NORM: Final = Operator(
    "linalg_vector_norm", ("pow",), ("linalg_vector_norm", "linalg_vector_norm.out")
)
#: nn.LSTM and the like run the cells where cuDNN would have kernels of its own for whole layers.
RECURRENT: Final = Operator(
    "_cudnn_rnn", ("lstm_cell", "gru_cell"),
    ("_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl", "_thnn_fused_gru_cell",
     "_cudnn_rnn"),
)  # fmt: skip
_OF_TENSORS: Final = ("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
VARIATES: Final = (
    Operator("normal_", ("normal_variates",),
             ("normal_", *_OF_TENSORS, *(f"{n}_out" for n in _OF_TENSORS))),
    *(Operator(f"{n}_", (f"{n}_variates",), (f"{n}_",))
      for n in ("log_normal", "exponential", "geometric", "cauchy")),
)  # fmt: skip
ALIGNMENTS: Final = Operator(
    "_ctc_loss", ("alignments", "alignments_backward"),
    tuple(f"{n}{end}" for n in ("_ctc_loss", "_ctc_loss_backward", "_use_cudnn_ctc_loss")
          for end in ("", ".Tensor")),
)  # fmt: skip
SOFTMAX: Final = _rows("_softmax", "softmax")
LOG_SOFTMAX: Final = _rows("_log_softmax", "log_softmax")
LOG_SOFTMAX_BACKWARD: Final = _rows("_log_softmax_backward_data", "log_softmax_backward")

_FUSED: Final = [f"_scaled_dot_product_{n}_attention" for n in ("flash", "efficient", "cudnn")]
ATTENTION: Final = Operator(
    "scaled_dot_product_attention",
    ("attention_forward", "attention_queries", "attention_keys"),
    tuple(f"{name}{end}" for name in _FUSED for end in ("", "_backward")),
)

OPERATORS: Final[tuple[Operator, ...]] = (
    *POINTWISE, LOG_SIGMOID, POW_OF_NUMBERS, GLU, GLU_BACKWARD, BINARY_CROSS_ENTROPY,
    SOFTMAX, LOG_SOFTMAX, LOG_SOFTMAX_BACKWARD, ATTENTION, POLYGAMMA, *SCALED, LOG_CUMULATIVE,
    POW_OF_LISTS, DISTANCES, NORM, RECURRENT, *VARIATES, ALIGNMENTS,
)  # fmt: skip


def reached() -> dict[str, frozenset[str]]:
    """Return overload -> the functions it calls, for every overload that can be overridden."""
    return {overload: op.functions for op in OPERATORS for overload in op.overloads}


def overloads(functions: frozenset[str]) -> list[str]:
    """Return the names of the overloads that a session of these functions overrides."""
    return sorted(name for name, held in reached().items() if held & functions)


# Formulas for compilers ----------------------------------------------------------------------

#: Overload -> a function of a call's scalars. It returns the formula that a compiler uses, or None
#: where the compiler keeps its own code. The scalars are unrounded: the compiler rounds them.
COMPILED: Final[dict[str, Callable[..., Applied | None]]] = {
    "aten::softplus": lambda beta=1.0, threshold=20.0: ("softplus", beta, threshold, 0.0),
    "aten::celu": lambda alpha=1.0: ("celu", alpha, 1.0 / alpha, 0.0),
    "aten::gelu": lambda approximate="none": plain("gelu_tanh") if approximate == "tanh" else None,
}

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
