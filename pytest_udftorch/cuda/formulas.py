# SPDX-License-Identifier: Apache-2.0
"""Formulas of the CUDA operators, each written once.

A formula maps the elements of one tensor, or of two, to those of the result. It is computed in
float32, with the operations of ATen's CPU kernel in their order. This module leaves some names in
it undefined. Three readers define them:

* ``kernels`` compiles it with Triton's operations and the session's functions;
* ``table`` counts the functions in it;
* ``table.evaluate`` gives it to Inductor, operation by operation.

``_exp`` and the like are the functions. ``_exp_by_two`` is the same function with a branch after
every two elements, which takes fewer registers. ``_div`` rounds correctly. ``_fma`` stands where
the compiler of torch's CPU kernels fuses a product and a sum. ``a``, ``b`` and ``c`` are the
operator's scalars as float32. ``seen`` is a pair: the row to count in, or None, and a mask of the
lanes that hold elements, or None for all. A number after it is the function's slot in that row.

A formula consists of assignments and one result: no branches and no loops.
"""

# Functions of one argument ----------------------------------------------------------------
#
# They differ in their text, although one template would do: Triton's cache of compiled kernels
# tells formulas apart by their source.


def exp(x, a, b, c, seen):
    return _exp_by_two(x, seen)


def exp2(x, a, b, c, seen):
    return _exp2_by_two(x, seen)


def expm1(x, a, b, c, seen):
    return _expm1_by_two(x, seen)


def log(x, a, b, c, seen):
    return _log(x, seen)


def log2(x, a, b, c, seen):
    return _log2(x, seen)


def log10(x, a, b, c, seen):
    return _log10(x, seen)


def log1p(x, a, b, c, seen):
    return _log1p(x, seen)


def sin(x, a, b, c, seen):
    return _sin(x, seen)


def cos(x, a, b, c, seen):
    return _cos(x, seen)


def tan(x, a, b, c, seen):
    return _tan(x, seen)


def sinh(x, a, b, c, seen):
    return _sinh(x, seen)


def cosh(x, a, b, c, seen):
    return _cosh(x, seen)


def tanh(x, a, b, c, seen):
    return _tanh(x, seen)


def asin(x, a, b, c, seen):
    return _asin(x, seen)


def acos(x, a, b, c, seen):
    return _acos(x, seen)


def atan(x, a, b, c, seen):
    return _atan(x, seen)


def asinh(x, a, b, c, seen):
    return _asinh(x, seen)


def acosh(x, a, b, c, seen):
    return _acosh(x, seen)


def atanh(x, a, b, c, seen):
    return _atanh(x, seen)


def erf(x, a, b, c, seen):
    return _erf(x, seen)


def erfc(x, a, b, c, seen):
    return _erfc(x, seen)


def sigmoid(x, a, b, c, seen):
    return _div(1.0, 1.0 + _exp(-x, seen))


def silu(x, a, b, c, seen):
    return _div(x, 1.0 + _exp(-x, seen))


def reciprocal(x, a, b, c, seen):
    # For compilers only: it calls no function.
    return _div(1.0, x)


def elu(x, a, b, c, seen):
    # a: alpha times scale; b: scale; c: scale of the input.
    return _where(x > 0.0, x * b, _expm1(x * c, seen) * a)


def elu_of_ones(x, a, b, c, seen):
    # elu where all three scalars are 1.
    return _where(x > 0.0, x, _expm1_by_two(x, seen))


def celu(x, a, b, c, seen):
    # a: alpha; b: its reciprocal. For compilers only: eager torch calls elu.
    return _where(x > 0.0, x, _expm1(x * b, seen) * a)


def gelu_erf(x, a, b, c, seen):
    return x * 0.5 * (1.0 + _erf(x * 0.7071067811865476, seen))


def gelu_tanh(x, a, b, c, seen):
    cubic = x * x * x
    inner = 0.7978845608028654 * _fma(0.044715, cubic, x)
    return 0.5 * x * (1.0 + _tanh(inner, seen))


def softplus(x, a, b, c, seen):
    # a: beta; b: threshold.
    scaled = x * a
    return _where(scaled > b, x, _div(_log1p(_exp(scaled, seen), seen, 1), a))


def mish(x, a, b, c, seen):
    return x * _tanh(_log1p(_exp(x, seen), seen, 1), seen, 2)


def logsigmoid(x, a, b, c, seen):
    # The minimum must keep a NaN.
    least = _where(x > 0.0, 0.0, x)
    return least - _log1p(_exp(-_abs(x), seen), seen, 1)


def logit(x, a, b, c, seen):
    return _log(_div(x, 1.0 - x), seen)


def logit_clamped(x, a, b, c, seen):
    # a and b: the least and the largest x.
    kept = _where(x < a, a, _where(x > b, b, x))
    return _log(_div(kept, 1.0 - kept), seen)


def sinc(x, a, b, c, seen):
    product = 3.141592653589793 * x
    return _where(x == 0.0, 1.0, _div(_sin(product, seen), product))


# Formulas of two arguments; in a backward formula g is the gradient --------------------------


def pow(x, y, a, b, c, seen):
    return _pow(x, y, seen)


def atan2(x, y, a, b, c, seen):
    return _atan2(x, y, seen)


def hypot(x, y, a, b, c, seen):
    return _hypot(x, y, seen)


def logaddexp(x, y, a, b, c, seen):
    most = _where(x > y, x, y)
    total = most + _log1p(_exp(-_abs(x - y), seen), seen, 1)
    # Two infinities of one sign, whose difference is NaN.
    return _where(_where(x == y, _abs(x), 0.0) > 3.4028234663852886e38, x, total)


def logaddexp2(x, y, a, b, c, seen):
    most = _where(x > y, x, y)
    total = most + _log1p(_exp2(-_abs(x - y), seen), seen, 1) * 1.4426950408889634
    return _where(_where(x == y, _abs(x), 0.0) > 3.4028234663852886e38, x, total)


def xlogy(x, y, a, b, c, seen):
    return _where(y == y, _where(x == 0.0, 0.0, x * _log(y, seen)), y)


def xlog1py(x, y, a, b, c, seen):
    return _where(y == y, _where(x == 0.0, 0.0, x * _log1p(y, seen)), y)


def binary_cross_entropy(x, y, a, b, c, seen):
    # y: the target. A logarithm is at least -100, and a NaN stays.
    right = _log(x, seen)
    wrong = _log1p(-x, seen, 1)
    right = _where(right < -100.0, -100.0, right)
    wrong = _where(wrong < -100.0, -100.0, wrong)
    return (y - 1.0) * wrong - y * right


def glu(x, y, a, b, c, seen):
    return x * _div(1.0, 1.0 + _exp(-y, seen))


def glu_backward_value(g, y, a, b, c, seen):
    return _div(1.0, 1.0 + _exp(-y, seen)) * g


def glu_backward_gate(g, y, a, b, c, seen):
    # The gradient of the gate is this times the value.
    s = _div(1.0, 1.0 + _exp(-y, seen))
    return (1.0 - s) * s * g


def silu_backward(g, x, a, b, c, seen):
    s = _div(1.0, 1.0 + _exp(-x, seen))
    return g * s * _fma(x, 1.0 - s, 1.0)


def elu_backward_input(g, x, a, b, c, seen):
    return _where(x <= 0.0, g * c * a * _exp(x * c, seen), g * b)


def elu_backward_result(g, y, a, b, c, seen):
    return _where(y <= 0.0, g * c * (y + a), g * b)


def gelu_backward_erf(g, x, a, b, c, seen):
    cdf = 0.5 * (1.0 + _erf(x * 0.7071067811865476, seen))
    pdf = _exp(x * x * -0.5, seen, 1) * 0.3989422804014327
    return g * _fma(x, pdf, cdf)


def gelu_backward_tanh(g, x, a, b, c, seen):
    square = x * x
    cubic = square * x
    inner = 0.7978845608028654 * _fma(0.044715, cubic, x)
    t = _tanh(inner, seen)
    left = 0.5 * x
    right = 1.0 + t
    by_left = 0.5 * right
    by_tanh = _fma(-t, t, 1.0)
    by_inner = 0.7978845608028654 * _fma(0.134145, square, 1.0)
    return g * (by_left + left * by_tanh * by_inner)


def softplus_backward(g, x, a, b, c, seen):
    scaled = x * a
    z = _exp(scaled, seen)
    return _where(scaled > b, g, _div(g * z, z + 1.0))


def mish_backward(g, x, a, b, c, seen):
    s = _div(1.0, 1.0 + _exp(-x, seen))
    t = _tanh(_log1p(_exp(x, seen), seen, 1), seen, 2)
    return g * _fma(x * s, _fma(-t, t, 1.0), t)


def logsigmoid_backward(g, x, a, b, c, seen):
    z = _exp(-_abs(x), seen)
    share = _div(z, 1.0 + z)
    return g * _where(x < 0.0, 1.0 - share, share)
