"""Triton kernels behind the operators that ``cuda_operators`` overrides.

Every function is computed in float32 and rounded once to the dtype of the result, as ATen
does. The formulas have the operations of ATen's CPU kernels in their order, and are compiled
without fusing a multiplication into an addition (``enable_fp_fusion=False``); where the
compiler of torch's CPU kernels fuses, ``tl.fma`` is written. Division is ``div_rn``: Triton's
``/`` is an approximation.

The functions come from the session's libdevice (``bitcode.SPLIT``) as fast path, doubt and
accurate path, so that a thread computes the fast paths of its elements side by side. One
function call of libdevice for each element would put a branch after each.

Imports triton, so it is imported when the first kernel is needed.
"""

# Triton reads annotations when it reads a kernel: no postponed evaluation here.

import triton
import triton.language as tl
from triton.language import core
from triton.language.extra import libdevice

from pytest_udftorch.bitcode import SPLIT
from pytest_udftorch.symbols import FUNCTIONS

#: Elements of a thread between two branches; a thread must have a multiple of it.
PACK = tl.constexpr(4)


def _extern(function, part):
    known = FUNCTIONS[function]
    float32 = core.dtype("fp32")
    result = {"float": float32, "i32": core.dtype("int32")}[SPLIT[part]]
    kinds = (float32,) * known.arity
    symbol = f"__nv_udf_{known.c_name('float32')}_{part}"

    def call(*args, _semantic=None):
        return core.extern_elementwise(
            "", "", list(args), {kinds: (symbol, result)}, is_pure=True, _semantic=_semantic
        )

    return core.extern(call)


def _jit(function, name):
    # Triton tells functions of one module apart by their names.
    function.__name__ = function.__qualname__ = name
    return triton.jit(function)


def _mapped(name):
    """Return a function of libdevice as one of tensors."""
    value, hard, rest = (_extern(name, part) for part in ("value", "hard", "rest"))

    def four(x0, x1, x2, x3):
        y0 = value(x0)
        y1 = value(x1)
        y2 = value(x2)
        y3 = value(x3)
        if (hard(x0) | hard(x1) | hard(x2) | hard(x3)) != 0:
            if hard(x0) != 0:
                y0 = rest(x0)
            if hard(x1) != 0:
                y1 = rest(x1)
            if hard(x2) != 0:
                y2 = rest(x2)
            if hard(x3) != 0:
                y3 = rest(x3)
        return y0, y1, y2, y3

    def four_pairs(x0, x1, x2, x3, z0, z1, z2, z3):
        y0 = value(x0, z0)
        y1 = value(x1, z1)
        y2 = value(x2, z2)
        y3 = value(x3, z3)
        if (hard(x0, z0) | hard(x1, z1) | hard(x2, z2) | hard(x3, z3)) != 0:
            if hard(x0, z0) != 0:
                y0 = rest(x0, z0)
            if hard(x1, z1) != 0:
                y1 = rest(x1, z1)
            if hard(x2, z2) != 0:
                y2 = rest(x2, z2)
            if hard(x3, z3) != 0:
                y3 = rest(x3, z3)
        return y0, y1, y2, y3

    if FUNCTIONS[name].arity == 1:
        inner = _jit(four, f"{name}_four")

        def whole(x):
            return tl.map_elementwise(inner, x, pack=PACK)[0]

        return _jit(whole, f"{name}_whole")
    inner = _jit(four_pairs, f"{name}_four")

    def whole_pairs(x, z):
        return tl.map_elementwise(inner, x, z, pack=PACK)[0]

    return _jit(whole_pairs, f"{name}_whole")


def _mapped_by_two(name):
    """Return the same with a branch after two elements, which takes fewer registers."""
    value, hard, rest = (_extern(name, part) for part in ("value", "hard", "rest"))

    def two(x0, x1):
        y0 = value(x0)
        y1 = value(x1)
        if (hard(x0) | hard(x1)) != 0:
            if hard(x0) != 0:
                y0 = rest(x0)
            if hard(x1) != 0:
                y1 = rest(x1)
        return y0, y1

    inner = _jit(two, f"{name}_two")

    def whole(x):
        return tl.map_elementwise(inner, x, pack=2)[0]

    return _jit(whole, f"{name}_whole_by_two")


_exp = _mapped("exp")
_exp_by_two = _mapped_by_two("exp")
_exp2 = _mapped("exp2")
_expm1 = _mapped("expm1")
_log = _mapped("log")
_log2 = _mapped("log2")
_log10 = _mapped("log10")
_log1p = _mapped("log1p")
_sin = _mapped("sin")
_cos = _mapped("cos")
_tan = _mapped("tan")
_sinh = _mapped("sinh")
_cosh = _mapped("cosh")
_tanh = _mapped("tanh")
_asin = _mapped("asin")
_acos = _mapped("acos")
_atan = _mapped("atan")
_asinh = _mapped("asinh")
_acosh = _mapped("acosh")
_atanh = _mapped("atanh")
_erf = _mapped("erf")
_erfc = _mapped("erfc")
_pow = _mapped("pow")
_atan2 = _mapped("atan2")
_hypot = _mapped("hypot")

# Functions of one argument. a, b and c are the operator's scalars as float32.


@triton.jit
def exp(x, a, b, c):
    return _exp_by_two(x)


@triton.jit
def exp2(x, a, b, c):
    return _exp2(x)


@triton.jit
def expm1(x, a, b, c):
    return _expm1(x)


@triton.jit
def log(x, a, b, c):
    return _log(x)


@triton.jit
def log2(x, a, b, c):
    return _log2(x)


@triton.jit
def log10(x, a, b, c):
    return _log10(x)


@triton.jit
def log1p(x, a, b, c):
    return _log1p(x)


@triton.jit
def sin(x, a, b, c):
    return _sin(x)


@triton.jit
def cos(x, a, b, c):
    return _cos(x)


@triton.jit
def tan(x, a, b, c):
    return _tan(x)


@triton.jit
def sinh(x, a, b, c):
    return _sinh(x)


@triton.jit
def cosh(x, a, b, c):
    return _cosh(x)


@triton.jit
def tanh(x, a, b, c):
    return _tanh(x)


@triton.jit
def asin(x, a, b, c):
    return _asin(x)


@triton.jit
def acos(x, a, b, c):
    return _acos(x)


@triton.jit
def atan(x, a, b, c):
    return _atan(x)


@triton.jit
def asinh(x, a, b, c):
    return _asinh(x)


@triton.jit
def acosh(x, a, b, c):
    return _acosh(x)


@triton.jit
def atanh(x, a, b, c):
    return _atanh(x)


@triton.jit
def erf(x, a, b, c):
    return _erf(x)


@triton.jit
def erfc(x, a, b, c):
    return _erfc(x)


@triton.jit
def sigmoid(x, a, b, c):
    return tl.div_rn(1.0, 1.0 + _exp(-x))


@triton.jit
def silu(x, a, b, c):
    return tl.div_rn(x, 1.0 + _exp(-x))


@triton.jit
def elu(x, a, b, c):
    # a: alpha times scale; b: scale; c: scale of the input.
    return tl.where(x > 0.0, x * b, _expm1(x * c) * a)


@triton.jit
def elu_of_ones(x, a, b, c):
    # elu where all three scalars are 1.
    return tl.where(x > 0.0, x, _expm1(x))


@triton.jit
def gelu_erf(x, a, b, c):
    return x * 0.5 * (1.0 + _erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x, a, b, c):
    cubic = x * x * x
    inner = 0.7978845608028654 * tl.fma(0.044715, cubic, x)
    return 0.5 * x * (1.0 + _tanh(inner))


@triton.jit
def softplus(x, a, b, c):
    # a: beta; b: threshold.
    scaled = x * a
    return tl.where(scaled > b, x, tl.div_rn(_log1p(_exp(scaled)), a))


@triton.jit
def mish(x, a, b, c):
    return x * _tanh(_log1p(_exp(x)))


@triton.jit
def logsigmoid(x, a, b, c):
    # A NaN has to come through the minimum.
    least = tl.where(x > 0.0, 0.0, x)
    return least - _log1p(_exp(-tl.abs(x)))


# Functions of two arguments; in a backward formula g is the gradient.


@triton.jit
def pow(x, y, a, b, c):
    return _pow(x, y)


@triton.jit
def atan2(x, y, a, b, c):
    return _atan2(x, y)


@triton.jit
def hypot(x, y, a, b, c):
    return _hypot(x, y)


@triton.jit
def silu_backward(g, x, a, b, c):
    s = tl.div_rn(1.0, 1.0 + _exp(-x))
    return g * s * tl.fma(x, 1.0 - s, 1.0)


@triton.jit
def elu_backward_input(g, x, a, b, c):
    return tl.where(x <= 0.0, g * c * a * _exp(x * c), g * b)


@triton.jit
def elu_backward_result(g, y, a, b, c):
    return tl.where(y <= 0.0, g * c * (y + a), g * b)


@triton.jit
def gelu_backward_erf(g, x, a, b, c):
    cdf = 0.5 * (1.0 + _erf(x * 0.7071067811865476))
    pdf = _exp(x * x * -0.5) * 0.3989422804014327
    return g * tl.fma(x, pdf, cdf)


@triton.jit
def gelu_backward_tanh(g, x, a, b, c):
    square = x * x
    cubic = square * x
    inner = 0.7978845608028654 * tl.fma(0.044715, cubic, x)
    t = _tanh(inner)
    left = 0.5 * x
    right = 1.0 + t
    by_left = 0.5 * right
    by_tanh = tl.fma(-t, t, 1.0)
    by_inner = 0.7978845608028654 * tl.fma(0.134145, square, 1.0)
    return g * (by_left + left * by_tanh * by_inner)


@triton.jit
def softplus_backward(g, x, a, b, c):
    scaled = x * a
    z = _exp(scaled)
    return tl.where(scaled > b, g, tl.div_rn(g * z, z + 1.0))


@triton.jit
def mish_backward(g, x, a, b, c):
    s = tl.div_rn(1.0, 1.0 + _exp(-x))
    t = _tanh(_log1p(_exp(x)))
    return g * tl.fma(x * s, tl.fma(-t, t, 1.0), t)


@triton.jit
def logsigmoid_backward(g, x, a, b, c):
    z = _exp(-tl.abs(x))
    share = tl.div_rn(z, 1.0 + z)
    return g * tl.where(x < 0.0, 1.0 - share, share)


# Kernels over elements that lie side by side ---------------------------------------------


@triton.jit(do_not_specialize=["n"])
def unary(x, y, n, a, b, c, F: tl.constexpr, BLOCK: tl.constexpr):
    # 64 bits for the block's place, 32 within the block.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    x += start
    y += start
    at = tl.arange(0, BLOCK)
    # Without a mask the accesses are 16 bytes wide whatever n is.
    if n - start >= BLOCK:
        tl.store(y + at, F(tl.load(x + at).to(tl.float32), a, b, c).to(y.dtype.element_ty))
    else:
        inside = at < n - start
        value = F(tl.load(x + at, inside, other=0.0).to(tl.float32), a, b, c)
        tl.store(y + at, value.to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["n"])
def binary(x1, x2, y, n, a, b, c, F: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    x1 += start
    x2 += start
    y += start
    at = tl.arange(0, BLOCK)
    if n - start >= BLOCK:
        first = tl.load(x1 + at).to(tl.float32)
        second = tl.load(x2 + at).to(tl.float32)
        tl.store(y + at, F(first, second, a, b, c).to(y.dtype.element_ty))
    else:
        inside = at < n - start
        first = tl.load(x1 + at, inside, other=0.0).to(tl.float32)
        second = tl.load(x2 + at, inside, other=0.0).to(tl.float32)
        tl.store(y + at, F(first, second, a, b, c).to(y.dtype.element_ty), inside)


# Kernels over rows --------------------------------------------------------------------
#
# Sums are float32: over a row in registers, the tree of tl.sum; over a longer one, a running
# sum for each lane of a tile and then that tree.


@triton.jit
def _row_result(x, power, peak, total, LOG: tl.constexpr):
    if LOG:
        result = x - peak - libdevice.log(total)
    else:
        result = tl.div_rn(power, tl.broadcast_to(total, power.shape))
    return result


@triton.jit(do_not_specialize=["rows"])
def softmax_rows(x, y, rows, n, LOG: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * ROWS
    x += first * n
    y += first * n
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    at = row[:, None] * n + column[None, :]
    inside = (first + row[:, None] < rows) & (column[None, :] < n)
    value = tl.load(x + at, inside, other=-float("inf")).to(tl.float32)
    peak = tl.max(value, 1)[:, None]
    power = _exp(value - peak)
    total = tl.sum(tl.where(inside, power, 0.0), 1)[:, None]
    tl.store(y + at, _row_result(value, power, peak, total, LOG).to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["blocks"])
def softmax_tiles(
    x, y, n, inner, blocks, LOG: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr
):
    # A program has COLUMNS of the inner dimension and goes three times over the n between
    # outer and inner: for the maximum, the sum and the results.
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x += outer * n * inner
    y += outer * n * inner
    steps = tl.arange(0, TILE)[:, None].to(tl.int64)
    largest = tl.full([TILE, COLUMNS], -float("inf"), tl.float32)
    for start in range(0, n, TILE):
        inside = (start + steps < n) & (column < inner)
        value = tl.load(x + (start + steps) * inner + column, inside, other=-float("inf"))
        # A NaN comes through the sum.
        largest = tl.maximum(largest, value.to(tl.float32))
    peak = tl.max(largest, 0)[None, :]
    sums = tl.zeros([TILE, COLUMNS], tl.float32)
    for start in range(0, n, TILE):
        inside = (start + steps < n) & (column < inner)
        value = tl.load(x + (start + steps) * inner + column, inside, other=-float("inf"))
        sums += tl.where(inside, _exp(value.to(tl.float32) - peak), 0.0)
    total = tl.sum(sums, 0)[None, :]
    for start in range(0, n, TILE):
        inside = (start + steps < n) & (column < inner)
        at = (start + steps) * inner + column
        value = tl.load(x + at, inside, other=-float("inf")).to(tl.float32)
        power = value
        if not LOG:
            power = _exp(value - peak)
        result = _row_result(value, power, peak, total, LOG)
        tl.store(y + at, result.to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["rows"])
def log_softmax_backward_rows(g, y, gx, rows, n, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * ROWS
    g += first * n
    y += first * n
    gx += first * n
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    at = row[:, None] * n + column[None, :]
    inside = (first + row[:, None] < rows) & (column[None, :] < n)
    grad = tl.load(g + at, inside, other=0.0).to(tl.float32)
    total = tl.sum(grad, 1)[:, None]
    power = _exp(tl.load(y + at, inside, other=-float("inf")).to(tl.float32))
    tl.store(gx + at, (grad - power * total).to(gx.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["blocks"])
def log_softmax_backward_tiles(
    g, y, gx, n, inner, blocks, TILE: tl.constexpr, COLUMNS: tl.constexpr
):
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    g += outer * n * inner
    y += outer * n * inner
    gx += outer * n * inner
    steps = tl.arange(0, TILE)[:, None].to(tl.int64)
    sums = tl.zeros([TILE, COLUMNS], tl.float32)
    for start in range(0, n, TILE):
        inside = (start + steps < n) & (column < inner)
        at = (start + steps) * inner + column
        sums += tl.load(g + at, inside, other=0.0).to(tl.float32)
    total = tl.sum(sums, 0)[None, :]
    for start in range(0, n, TILE):
        inside = (start + steps < n) & (column < inner)
        at = (start + steps) * inner + column
        grad = tl.load(g + at, inside, other=0.0).to(tl.float32)
        power = _exp(tl.load(y + at, inside, other=-float("inf")).to(tl.float32))
        tl.store(gx + at, (grad - power * total).to(gx.dtype.element_ty), inside)
