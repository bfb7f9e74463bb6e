# SPDX-License-Identifier: Apache-2.0
"""Rows of operators that map elements, and of their gradients."""

from __future__ import annotations

from typing import Any, Final

from pytest_udftorch.swap.operators import scalars
from pytest_udftorch.swap.operators.calls import WHOLE, plain
from pytest_udftorch.swap.operators.row import (
    BOTH,
    COMPOSED,
    COMPOSED_ON_GPUS,
    FUNCTION,
    ON_CPU,
    ON_CUDA,
    OWN,
    ROUNDED,
    TRIED,
    TRIED_ON_CPU,
    WIDENED,
    WIDENED_ON_GPUS,
    Contract,
    Held,
    Kind,
    Operator,
    Row,
    backward,
    binary,
    everywhere,
    over_rows,
    pointwise,
    row,
    unary,
)

_MAPS: Final = Kind.MAPS

#: The contract's own on the CPU; torch's kernels for GPUs are exact.
_EXACT_ON_CPUS: Final = Contract(Held.OWN, Held.OWN, Held.TRIED, Held.TRIED, every_overload=True)


def _function(name: str, *, foreach: bool = True, **facts: Any) -> Row:
    """Return the row of a function of one argument whose operator has the same name."""
    op = unary(name, foreach=foreach, launched=BOTH)
    return row(name, _MAPS, name, leaf=True, contract=FUNCTION, cuda=op, stubs=True, **facts)


#: Functions, each by itself.
_FUNCTIONS: Final = (
    _function("exp"),
    _function("exp2", foreach=False),
    _function("expm1"),
    _function("log"),
    _function("log2"),
    _function("log10"),
    _function("log1p"),
    _function("sin"),
    _function("cos"),
    _function("tan"),
    _function("sinh"),
    _function("cosh"),
    _function("tanh"),
    _function("asin"),
    _function("acos"),
    _function("atan"),
    _function("asinh", foreach=False),
    _function("acosh", foreach=False),
    _function("atanh", foreach=False),
    _function("erf", cpu=True),
    _function("erfc"),
)

#: What is composed of them.
_COMPOSED: Final = (
    row("sigmoid", _MAPS, "exp", leaf=True, contract=TRIED, uncompiled="sigmoid",
        composites="sigmoid", stubs=True, cuda=unary("sigmoid", foreach=True, launched=BOTH)),
    row("silu", _MAPS, "exp", contract=TRIED, uncompiled="silu", composites="silu", stubs=True,
        cuda=unary("silu", launched=BOTH)),
    row("elu", _MAPS, "expm1", contract=TRIED, uncompiled="elu", composites="elu selu", stubs=True,
        cuda=unary("elu", scalars.elu, kernels=("elu", "elu_of_ones"), launched=BOTH,
                   signature="T, S, S, S")),
    row("gelu", _MAPS, "erf tanh", contract=TRIED, uncompiled="gelu", stubs="GeluKernel",
        composites="gelu_erf gelu_tanh", compiled=scalars.compiled_gelu, cpu=True,
        cuda=unary("gelu", scalars.gelu, kernels=("gelu_erf", "gelu_tanh"), launched=BOTH,
                   signature="T, Text")),
    row("softplus", _MAPS, "exp log1p", contract=TRIED, uncompiled="softplus", stubs=True,
        composites="softplus", compiled=scalars.compiled_softplus,
        cuda=unary("softplus", scalars.softplus, kernels=("softplus", "softplus_of_one"),
                   inplace=False, launched=BOTH, signature="T, S, S")),
    row("mish", _MAPS, "exp log1p tanh", contract=TRIED, uncompiled="mish", composites="mish",
        stubs=True, cuda=unary("mish", launched=BOTH)),
    row("logit", _MAPS, "log", contract=COMPOSED_ON_GPUS, uncompiled="logit", stubs=True,
        cuda=unary("logit", scalars.logit, kernels=("logit", "logit_clamped"))),
    row("sinc", _MAPS, "sin", contract=TRIED, stubs=True, cuda=unary("sinc")),
    row("erfinv", _MAPS, "erf", leaf=True, also="erf_inv", contract=TRIED, stubs=True, cpu=True,
        left_compiled=True, cuda=unary("erfinv", launched=ON_CPU)),
    row("digamma", _MAPS, "log", leaf=True, contract=TRIED_ON_CPU, stubs=True,
        cuda=unary("digamma")),
    # The kernel for the CPU is nearer to the exact result.
    row("lgamma", _MAPS, "log", leaf=True, contract=TRIED_ON_CPU, stubs=True, left_compiled=True,
        cuda=unary("lgamma", foreach=True),
        cpu=unary("lgamma", lambda: plain("lgamma_wide"), kernels=("lgamma_wide",),
                  launched=ON_CPU)),
    row("special_entr", _MAPS, "log", stubs=True, cuda=unary("special_entr", inplace=False)),
    row("special_ndtri", _MAPS, "log", leaf=True, also="ndtri", stubs=True,
        cuda=unary("special_ndtri", inplace=False)),
    # Stock has it in float32 and double only.
    row("special_log_ndtr", _MAPS, "log log1p erfc", counted="log_ndtr", stubs=True, cpu=True,
        cpu_dtypes="float32",
        cuda=unary("special_log_ndtr", inplace=False, launched=ON_CPU)),
    row("silu_backward", _MAPS, "exp", contract=TRIED, uncompiled="silu_backward", stubs=True,
        cuda=backward("silu_backward", launched=ON_CUDA)),
    row("elu_backward", _MAPS, "exp", contract=TRIED, uncompiled="elu_backward", stubs=True,
        mislaid=True,
        cuda=backward("elu_backward", scalars.elu_backward, places=(0, 5),
                      kernels=("elu_backward_input", "elu_backward_result"), launched=ON_CUDA,
                      signature="T, S, S, S, bool, T")),
    row("gelu_backward", _MAPS, "erf exp tanh", contract=TRIED, uncompiled="gelu_backward",
        stubs="GeluBackwardKernel", cpu=True,
        cuda=backward("gelu_backward", scalars.gelu_backward, launched=BOTH,
                      kernels=("gelu_backward_erf", "gelu_backward_tanh"),
                      signature="T, T, Text")),
    row("softplus_backward", _MAPS, "exp", contract=TRIED, uncompiled="softplus_backward",
        stubs=True,
        cuda=backward("softplus_backward", scalars.softplus_backward, launched=ON_CUDA,
                      signature="T, T, S, S")),
    row("mish_backward", _MAPS, "exp log1p tanh", contract=TRIED, uncompiled="mish_backward",
        stubs=True, cuda=backward("mish_backward", out=None, launched=ON_CUDA)),
    row("atan2", _MAPS, "atan2", leaf=True, contract=FUNCTION, stubs=True,
        cuda=binary("atan2", launched=ON_CUDA)),
    row("hypot", _MAPS, "hypot", leaf=True, contract=FUNCTION, stubs=True,
        cuda=binary("hypot", launched=ON_CUDA)),
    row("logaddexp", _MAPS, "exp log1p", contract=TRIED, uncompiled="logaddexp", stubs=True,
        cuda=pointwise("logaddexp", places=(0, 1), out=("logaddexp.out", "out"))),
    row("logaddexp2", _MAPS, "exp2 log1p", stubs=True,
        cuda=pointwise("logaddexp2", places=(0, 1), out=("logaddexp2.out", "out"))),
    row("xlogy", _MAPS, "log", contract=COMPOSED_ON_GPUS, stubs=True,
        uncompiled="xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor",
        cuda=pointwise("xlogy", places=(0, 1), functional="xlogy.Tensor",
                       out=("xlogy.OutTensor", "out"), inplace="xlogy_.Tensor")),
    row("special_xlog1py", _MAPS, "log1p", stubs="xlog1py_stub",
        cuda=pointwise("special_xlog1py", lambda: plain("xlog1py"), kernels=("xlog1py",),
                       places=(0, 1), out=("special_xlog1py.out", "out"))),
    # Stock computes whole vectors by a number in float32 on the CPU, and the rest in double.
    row("pow", _MAPS, "pow", contract=FUNCTION,
        stubs="pow_tensor_tensor_stub pow_tensor_scalar_stub",
        cuda=(
            pointwise("pow", places=(0, 1), functional="pow.Tensor_Tensor",
                      out=("pow.Tensor_Tensor_out", "out"), inplace="pow_.Tensor",
                      launched=ON_CUDA),
            Operator("pow", ("pow",),
                     ("pow.Tensor_Scalar", "pow.Tensor_Scalar_out", "pow_.Scalar", "pow.Scalar",
                      "pow.Scalar_out"), (("pow.Tensor_Scalar", "make<PowOfNumber>"),)),
        ),
        cpu=pointwise("pow", scalars.pow_by, kernels=("pow_by",), functional="pow.Tensor_Scalar",
                      out=("pow.Tensor_Scalar_out", "out"), inplace="pow_.Scalar",
                      launched=ON_CPU, signature="T, S")),
    # Composed of pow and its like as operators.
    row("_foreach_pow", _MAPS, "pow", counted="powers", contract=FUNCTION,
        cuda=Operator("_foreach_pow", ("pow",), (
            *(f"_foreach_pow.{n}" for n in ("List", "Scalar", "ScalarList", "ScalarAndTensor")),
            *(f"_foreach_pow_.{n}" for n in ("List", "Scalar", "ScalarList"))))),
    # It also returns a buffer.
    row("log_sigmoid_forward", _MAPS, "exp log1p", contract=TRIED,
        uncompiled="log_sigmoid_forward", composites="logsigmoid",
        stubs="log_sigmoid_cpu_stub",
        cuda=Operator(
            "log_sigmoid", ("logsigmoid", "logsigmoid_backward"),
            ("log_sigmoid_forward", "log_sigmoid_forward.output", "log_sigmoid_backward",
             "log_sigmoid_backward.grad_input"),
            (("log_sigmoid_forward", "make<Elements<std::tuple<Tensor, Tensor>(T), false>>"),
             ("log_sigmoid_backward", "M::functional<T, T, T>")))),
    row("log_sigmoid_backward", _MAPS, "exp", contract=COMPOSED_ON_GPUS,
        uncompiled="log_sigmoid_backward", stubs=True),
    # Not all of their tensors have the shape of the result.
    row("glu", _MAPS, "exp", contract=TRIED, uncompiled="glu",
        stubs="glu_stub glu_jvp_stub:glu_jvp", cuda=Operator("glu", ("glu",), ("glu", "glu.out"))),
    row("glu_backward", _MAPS, "exp", contract=COMPOSED_ON_GPUS, uncompiled="glu_backward",
        stubs=True,
        cuda=Operator("glu_backward", ("glu_backward_value", "glu_backward_gate"),
                      ("glu_backward", "glu_backward.grad_input"))),
    row("celu", _MAPS, "expm1", contract=TRIED, uncompiled="celu", compiled=scalars.compiled_celu),
    row("rsqrt", _MAPS, roundings=2, uncompiled="rsqrt", composites="rsqrt", stubs=True,
        # Behind the last whole vector of a thread stock's for 16 bits does not round the root.
        contract=Contract(Held.TRIED, Held.OWN, Held.OWN, Held.OWN),
        whole=unary("rsqrt", lambda: None, kernels=(f"{WHOLE}rsqrt",), launched=BOTH)),
)  # fmt: skip

#: Special functions. Stock's function without its factor, which needs no function, times the
#: factor, is what overrides some of them.
_SPECIAL: Final = (
    # Two orders of many; the others are stock's.
    row("polygamma", _MAPS, "log sin exp pow", counted="polygamma", definition="polygamma",
        stubs="polygamma_stub trigamma_stub:trigamma",
        cuda=Operator("polygamma", ("digamma", "trigamma"), ("polygamma", "polygamma.out"))),
    row("i0", _MAPS, "exp", leaf=True, unscaled="special_i0e", also="bessel_i0", stubs=True,
        cuda=Operator("i0", ("exp_times",), ("i0", "i0.out", "i0_"))),
    row("special_i1", _MAPS, "exp", leaf=True, unscaled="special_i1e", also="bessel_i1", stubs=True,
        cuda=Operator("special_i1", ("exp_times",), ("special_i1", "special_i1.out"))),
    row("special_modified_bessel_i0", _MAPS, "exp", leaf=True, unscaled="special_i0e", stubs=True,
        cuda=Operator("special_modified_bessel_i0", ("exp_times",),
                      ("special_modified_bessel_i0", "special_modified_bessel_i0.out"))),
    row("special_modified_bessel_i1", _MAPS, "exp", leaf=True, unscaled="special_i1e", stubs=True,
        cuda=Operator("special_modified_bessel_i1", ("exp_times",),
                      ("special_modified_bessel_i1", "special_modified_bessel_i1.out"))),
    row("special_erfcx", _MAPS, "exp", leaf=True, unscaled="special_erfcx", also="erfcx",
        stubs=True,
        cuda=Operator("special_erfcx", ("special_erfcx",), ("special_erfcx", "special_erfcx.out"))),
    row("special_i0e", _MAPS, stubs=True),
    row("special_i1e", _MAPS, stubs=True),
    row("special_airy_ai", _MAPS, "exp sin cos", stubs=True),
    row("special_bessel_j0", _MAPS, "sin cos", leaf=True, also="bessel_j0", stubs=True,
        definition="oscillating"),
    row("special_bessel_j1", _MAPS, "sin cos", leaf=True, also="bessel_j1", stubs=True,
        definition="oscillating"),
    row("special_bessel_y0", _MAPS, "log sin cos", leaf=True, stubs=True,
        definition="second_kind"),
    row("special_bessel_y1", _MAPS, "log sin cos", leaf=True, stubs=True,
        definition="second_kind"),
    row("special_modified_bessel_k0", _MAPS, "exp log", leaf=True, stubs=True,
        definition="decaying"),
    row("special_modified_bessel_k1", _MAPS, "exp log", leaf=True, stubs=True,
        definition="decaying"),
    row("special_scaled_modified_bessel_k0", _MAPS, "exp log", leaf=True, stubs=True,
        definition="decaying_scaled"),
    row("special_scaled_modified_bessel_k1", _MAPS, "exp log", leaf=True, stubs=True,
        definition="decaying_scaled"),
    row("special_spherical_bessel_j0", _MAPS, "sin", leaf=True, also="spherical_bessel_j0",
        stubs=True, definition="spherical"),
    row("special_zeta", _MAPS, "pow", leaf=True, also="zeta", stubs="zeta_stub"),
    row("igamma", _MAPS, "exp", leaf=True, beside="log pow", stubs=True),
    row("igammac", _MAPS, "exp", leaf=True, beside="log pow", stubs=True),
    row("polar", _MAPS, "sin cos", leaf=True, stubs=True),
    row("angle", _MAPS, stubs=True),
    row("cbrt", _MAPS, undefined=True),
    row("fft_c2c", Kind.REDUCES, undefined=True),
    row("fft_c2r", Kind.REDUCES, undefined=True),
    row("fft_r2c", Kind.REDUCES, undefined=True),
)  # fmt: skip

#: Arithmetic.
_ARITHMETIC: Final = (
    # In 16 bits torch rounds alpha in some places of a vector, and not in others.
    row("add", _MAPS, roundings=1, contract=everywhere(Held.ROUNDED, unless=("alpha",)),
        with_numbers="add.Scalar add.Tensor", uncompiled="_foreach_add.List _foreach_add.Tensor"),
    row("sub", _MAPS, roundings=1, contract=everywhere(Held.ROUNDED, unless=("alpha",)),
        with_numbers="sub.Scalar sub.Tensor", uncompiled="_foreach_sub.List"),
    row("rsub", _MAPS, roundings=1,
        contract=everywhere(Held.TRIED, unless=("alpha",))),
    row("mul", _MAPS, roundings=1, contract=ROUNDED, with_numbers="mul.Scalar mul.Tensor"),
    row("div", _MAPS, roundings=1, contract=everywhere(Held.ROUNDED, unless=("rounding_mode",)),
        with_numbers="div.Scalar div.Tensor"),
    row("reciprocal", _MAPS, roundings=1, contract=ROUNDED, stubs=True),
    row("sqrt", _MAPS, roundings=1, stubs=True,
        contract=everywhere(Held.OWN, every_overload=True)),
    row("addcmul", Kind.PRODUCTS, roundings=2, contract=TRIED,
        uncompiled="addcmul _foreach_addcmul.Scalar _foreach_addcmul.ScalarList "
        "_foreach_addcmul.Tensor"),
    row("addcdiv", _MAPS, roundings=3, contract=TRIED,
        uncompiled="addcdiv _foreach_addcdiv.Scalar _foreach_addcdiv.ScalarList "
        "_foreach_addcdiv.Tensor"),
    row("lerp", _MAPS, roundings=2, contract=TRIED,
        uncompiled="lerp.Scalar lerp.Tensor _foreach_lerp.List _foreach_lerp.Scalar "
        "_foreach_lerp.ScalarList"),
    row("fmod", _MAPS, contract=_EXACT_ON_CPUS, uncompiled="fmod.Scalar fmod.Tensor"),
    row("remainder", _MAPS, contract=_EXACT_ON_CPUS,
        uncompiled="remainder.Scalar remainder.Scalar_Tensor remainder.Tensor"),
    row("linspace", Kind.MAKES, contract=TRIED, uncompiled="linspace"),
)  # fmt: skip

#: Activations without functions, and gradients.
_ACTIVATIONS: Final = (
    row("leaky_relu", _MAPS, roundings=1, contract=TRIED, uncompiled="leaky_relu"),
    row("leaky_relu_backward", _MAPS, roundings=1, contract=TRIED,
        uncompiled="leaky_relu_backward"),
    row("_prelu_kernel", _MAPS, roundings=1, contract=WIDENED_ON_GPUS,
        uncompiled="_prelu_kernel"),
    row("hardsigmoid", _MAPS, contract=COMPOSED_ON_GPUS, uncompiled="hardsigmoid"),
    row("hardsigmoid_backward", _MAPS, contract=TRIED, uncompiled="hardsigmoid_backward"),
    row("hardswish", _MAPS, contract=COMPOSED_ON_GPUS, uncompiled="hardswish"),
    row("hardswish_backward", _MAPS, contract=TRIED, uncompiled="hardswish_backward"),
    row("sigmoid_backward", _MAPS, contract=WIDENED,
        uncompiled="sigmoid_backward"),
    row("logit_backward", _MAPS, contract=WIDENED, uncompiled="logit_backward"),
    row("tanh_backward", _MAPS, contract=WIDENED_ON_GPUS, uncompiled="tanh_backward"),
    row("softshrink_backward", _MAPS, contract=TRIED),
    row("mse_loss_backward", _MAPS, contract=TRIED, uncompiled="mse_loss_backward"),
    # Behind the last whole vector its kernel multiplies in another order.
    row("huber_loss_backward", _MAPS),
    row("smooth_l1_loss_backward", _MAPS, contract=OWN, mislaid=True),
    row("binary_cross_entropy_backward", _MAPS, contract=OWN, mislaid=True),
    row("nll_loss_backward", _MAPS, contract=WIDENED_ON_GPUS,
        uncompiled="nll_loss_backward"),
    row("nll_loss2d_backward", _MAPS, contract=WIDENED_ON_GPUS),
    row("soft_margin_loss", Kind.REDUCES, "exp log1p", contract=TRIED,
        uncompiled="soft_margin_loss"),
)  # fmt: skip

#: What computes rows, and losses.
_ROWS: Final = (
    row("_softmax", Kind.REDUCES, "exp", along_rows=True, contract=OWN,
        stubs="softmax_lastdim_kernel* softmax_kernel",
        cuda=over_rows("_softmax", "softmax", "Softmax")),
    row("_log_softmax", Kind.REDUCES, "exp log", along_rows=True, contract=OWN,
        stubs="log_softmax_lastdim_kernel* log_softmax_kernel",
        cuda=over_rows("_log_softmax", "log_softmax", "Softmax")),
    row("_log_softmax_backward_data", Kind.REDUCES, "exp", contract=OWN,
        mislaid=True,
        stubs="log_softmax_backward_lastdim_kernel* log_softmax_backward_kernel",
        cuda=over_rows("_log_softmax_backward_data", "log_softmax_backward",
                       "LogSoftmaxBackward")),
    row("_softmax_backward_data", Kind.REDUCES, contract=OWN),
    row("_safe_softmax", Kind.REDUCES, "exp", contract=COMPOSED),
    row("_masked_softmax", Kind.REDUCES, "exp", leaf=True, definition="masked_softmax",
        mixes=True),
    row("logsumexp", Kind.REDUCES, "exp log", contract=OWN),
    row("binary_cross_entropy", Kind.REDUCES, "log log1p", contract=OWN,
        cuda=Operator("binary_cross_entropy", ("binary_cross_entropy",),
                      ("binary_cross_entropy", "binary_cross_entropy.out"))),
    row("binary_cross_entropy_with_logits", Kind.REDUCES, "exp log1p",
        contract=OWN),
    row("mse_loss", Kind.REDUCES, contract=OWN),
    row("smooth_l1_loss", Kind.REDUCES, contract=OWN),
    row("huber_loss", Kind.REDUCES, contract=OWN),
    row("nll_loss_forward", Kind.REDUCES, contract=OWN),
    row("nll_loss2d_forward", Kind.REDUCES, contract=OWN),
    row("_logcumsumexp", Kind.REDUCES, "exp log1p", leaf=True, stubs="logcumsumexp_stub",
        cuda=Operator("_logcumsumexp", ("logaddexp",), ("_logcumsumexp", "_logcumsumexp.out"))),
    row("logcumsumexp", Kind.REDUCES, "exp log1p", leaf=True, along_rows=True),
)  # fmt: skip

ROWS: Final = (
    *_FUNCTIONS, *_COMPOSED, *_SPECIAL, *_ARITHMETIC, *_ACTIVATIONS, *_ROWS,
)  # fmt: skip
