"""Triton kernels behind the operators that ``cuda_operators`` overrides.

Every function is computed in float32 and rounded once to the dtype of the result, as ATen
does. The formulas have the operations of ATen's CPU kernels in their order, and are compiled
without fusing a multiplication into an addition (``enable_fp_fusion=False``); where the
compiler of torch's CPU kernels fuses, ``tl.fma`` is written. Division is ``div_rn``: Triton's
``/`` is an approximation.

Imports triton, so it is imported when the first kernel is needed.
"""

# Triton reads annotations when it reads a kernel: no postponed evaluation here.

import triton
import triton.language as tl
from triton.language.extra import libdevice

# Functions of one argument. a, b and c are the operator's scalars as float32.


@triton.jit
def exp(x, a, b, c):
    return libdevice.exp(x)


@triton.jit
def exp2(x, a, b, c):
    return libdevice.exp2(x)


@triton.jit
def expm1(x, a, b, c):
    return libdevice.expm1(x)


@triton.jit
def log(x, a, b, c):
    return libdevice.log(x)


@triton.jit
def log2(x, a, b, c):
    return libdevice.log2(x)


@triton.jit
def log10(x, a, b, c):
    return libdevice.log10(x)


@triton.jit
def log1p(x, a, b, c):
    return libdevice.log1p(x)


@triton.jit
def sin(x, a, b, c):
    return libdevice.sin(x)


@triton.jit
def cos(x, a, b, c):
    return libdevice.cos(x)


@triton.jit
def tan(x, a, b, c):
    return libdevice.tan(x)


@triton.jit
def sinh(x, a, b, c):
    return libdevice.sinh(x)


@triton.jit
def cosh(x, a, b, c):
    return libdevice.cosh(x)


@triton.jit
def tanh(x, a, b, c):
    return libdevice.tanh(x)


@triton.jit
def asin(x, a, b, c):
    return libdevice.asin(x)


@triton.jit
def acos(x, a, b, c):
    return libdevice.acos(x)


@triton.jit
def atan(x, a, b, c):
    return libdevice.atan(x)


@triton.jit
def asinh(x, a, b, c):
    return libdevice.asinh(x)


@triton.jit
def acosh(x, a, b, c):
    return libdevice.acosh(x)


@triton.jit
def atanh(x, a, b, c):
    return libdevice.atanh(x)


@triton.jit
def erf(x, a, b, c):
    return libdevice.erf(x)


@triton.jit
def erfc(x, a, b, c):
    return libdevice.erfc(x)


@triton.jit
def sigmoid(x, a, b, c):
    return tl.div_rn(1.0, 1.0 + libdevice.exp(-x))


@triton.jit
def silu(x, a, b, c):
    return tl.div_rn(x, 1.0 + libdevice.exp(-x))


@triton.jit
def elu(x, a, b, c):
    # a: alpha times scale; b: scale; c: scale of the input.
    return tl.where(x > 0.0, x * b, libdevice.expm1(x * c) * a)


@triton.jit
def gelu_erf(x, a, b, c):
    return x * 0.5 * (1.0 + libdevice.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x, a, b, c):
    cubic = x * x * x
    inner = 0.7978845608028654 * tl.fma(0.044715, cubic, x)
    return 0.5 * x * (1.0 + libdevice.tanh(inner))


@triton.jit
def softplus(x, a, b, c):
    # a: beta; b: threshold.
    scaled = x * a
    return tl.where(scaled > b, x, tl.div_rn(libdevice.log1p(libdevice.exp(scaled)), a))


@triton.jit
def mish(x, a, b, c):
    return x * libdevice.tanh(libdevice.log1p(libdevice.exp(x)))


@triton.jit
def logsigmoid(x, a, b, c):
    # A NaN has to come through the minimum.
    least = tl.where(x > 0.0, 0.0, x)
    return least - libdevice.log1p(libdevice.exp(-tl.abs(x)))


# Functions of two arguments; in a backward formula g is the gradient.


@triton.jit
def pow(x, y, a, b, c):
    return libdevice.pow(x, y)


@triton.jit
def atan2(x, y, a, b, c):
    return libdevice.atan2(x, y)


@triton.jit
def hypot(x, y, a, b, c):
    return libdevice.hypot(x, y)


@triton.jit
def silu_backward(g, x, a, b, c):
    s = tl.div_rn(1.0, 1.0 + libdevice.exp(-x))
    return g * s * tl.fma(x, 1.0 - s, 1.0)


@triton.jit
def elu_backward_input(g, x, a, b, c):
    return tl.where(x <= 0.0, g * c * a * libdevice.exp(x * c), g * b)


@triton.jit
def elu_backward_result(g, y, a, b, c):
    return tl.where(y <= 0.0, g * c * (y + a), g * b)


@triton.jit
def gelu_backward_erf(g, x, a, b, c):
    cdf = 0.5 * (1.0 + libdevice.erf(x * 0.7071067811865476))
    pdf = libdevice.exp(x * x * -0.5) * 0.3989422804014327
    return g * tl.fma(x, pdf, cdf)


@triton.jit
def gelu_backward_tanh(g, x, a, b, c):
    square = x * x
    cubic = square * x
    inner = 0.7978845608028654 * tl.fma(0.044715, cubic, x)
    t = libdevice.tanh(inner)
    left = 0.5 * x
    right = 1.0 + t
    by_left = 0.5 * right
    by_tanh = tl.fma(-t, t, 1.0)
    by_inner = 0.7978845608028654 * tl.fma(0.134145, square, 1.0)
    return g * (by_left + left * by_tanh * by_inner)


@triton.jit
def softplus_backward(g, x, a, b, c):
    scaled = x * a
    z = libdevice.exp(scaled)
    return tl.where(scaled > b, g, tl.div_rn(g * z, z + 1.0))


@triton.jit
def mish_backward(g, x, a, b, c):
    s = tl.div_rn(1.0, 1.0 + libdevice.exp(-x))
    t = libdevice.tanh(libdevice.log1p(libdevice.exp(x)))
    return g * tl.fma(x * s, tl.fma(-t, t, 1.0), t)


@triton.jit
def logsigmoid_backward(g, x, a, b, c):
    z = libdevice.exp(-tl.abs(x))
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
    power = libdevice.exp(value - peak)
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
        sums += tl.where(inside, libdevice.exp(value.to(tl.float32) - peak), 0.0)
    total = tl.sum(sums, 0)[None, :]
    for start in range(0, n, TILE):
        inside = (start + steps < n) & (column < inner)
        at = (start + steps) * inner + column
        value = tl.load(x + at, inside, other=-float("inf")).to(tl.float32)
        power = value
        if not LOG:
            power = libdevice.exp(value - peak)
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
    power = libdevice.exp(tl.load(y + at, inside, other=-float("inf")).to(tl.float32))
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
        power = libdevice.exp(tl.load(y + at, inside, other=-float("inf")).to(tl.float32))
        tl.store(gx + at, (grad - power * total).to(gx.dtype.element_ty), inside)
