# SPDX-License-Identifier: Apache-2.0
"""Triton kernels of random distributions, with the uniform numbers of torch's own kernels.

torch's generator on CUDA is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as
easy as 1, 2, 3, 2011). Thread ``lane`` of torch's kernel draws four words at a time, with its
number and the generator's offset as the counter, for elements that lie as far apart as there are
threads. Normal variates are Box and Muller's of two words each (A note on the generation of random
normal deviates, 1958).

This module imports triton, so it is itself imported when the first kernel is needed.
"""

# Triton evaluates the annotations of a kernel, so their evaluation is not postponed here.

import triton
import triton.language as tl

from pytest_udftorch.swap.cuda import philox_constants as _K
from pytest_udftorch.swap.cuda.kernels import _OPERATIONS, _launched

_cos = _OPERATIONS["_cos"]
_exp = _OPERATIONS["_exp"]
_log = _OPERATIONS["_log"]
_sin = _OPERATIONS["_sin"]
_tan = _OPERATIONS["_tan"]

_STEP = tl.constexpr(2.0**-32)
_FRACTION = tl.constexpr(2.0**-24)
_SHIFT = tl.constexpr(1.5 * 2.0**23)
_HALF_STEP = tl.constexpr(2.0**-33)
_PI = tl.constexpr(3.1415927410125732)
_TURN = tl.constexpr(6.2831854820251465)
#: Where torch's kernels cut uniform numbers and logarithms off.
_EPSILON = tl.constexpr(2.0**-23)


@triton.jit
def _words(seed, offset, threads, BLOCK: tl.constexpr):
    """Return a program's numbers: draw and lane of each of its threads, and the four words."""
    thread = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    draw = thread // threads
    lane = thread % threads
    counter = (offset + draw).to(tl.uint64)
    zero = lane.to(tl.uint32) * 0
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    words = tl.philox(tl.zeros([], tl.int64) + seed, low, high, lane.to(tl.uint32), zero)
    return draw, lane, words


@triton.jit
def _uniform(word):
    return word.to(tl.float32) * _STEP + _HALF_STEP


@triton.jit
def _pair(u, v, seen):
    """Return two normal variates for each pair of uniform words."""
    radius = tl.sqrt_rn(-2.0 * _log(_uniform(u), seen))
    angle = tl.fma(v.to(tl.float32), _STEP * _TURN, _HALF_STEP * _TURN)
    return _sin(angle, seen, 2) * radius, _cos(angle, seen, 1) * radius


@triton.jit(do_not_specialize=["n", "pairs", "seed", "offset", "threads"])
def normal_variates(
    y, n, pairs, seed, offset, threads, a, b, row, LOG: tl.constexpr, BLOCK: tl.constexpr
):
    """Fill ``y`` with mean ``a`` and deviation ``b``, or with exp of that."""
    if row is not None:
        _launched(row, pairs, 0)
    draw, lane, words = _words(seed, offset, threads, BLOCK)
    half = tl.arange(0, 2)[None, :]
    first = (draw * 4 * threads + lane)[:, None] + half * 2 * threads
    inside = first < n
    second = first + threads
    one, two = _pair(tl.join(words[0], words[2]), tl.join(words[1], words[3]), (row, inside))
    one = tl.fma(one, b, a)
    two = tl.fma(two, b, a)
    if LOG:
        one = _exp(one, (row, inside), 3)
        two = _exp(two, (row, second < n), 3)
    tl.store(y + first, one.to(y.dtype.element_ty), inside)
    tl.store(y + second, two.to(y.dtype.element_ty), second < n)


@triton.jit
def _wide(x, C: tl.constexpr):
    """Return a constant of float64; a literal would be rounded to float32."""
    return tl.full(x.shape, C, tl.float64)


@triton.jit
def _widened(k):
    """Return small integers as float64; an addition is faster than the conversion."""
    return (k.to(tl.int64) + 0x4338000000000000).to(tl.float64, bitcast=True) - 1.5 * 2.0**52


@triton.jit
def _log_of_rest(k):
    """Return log(1 - k / 2^24), correctly rounded, for integers 0 <= k < 2^24.

    1 - k / 2^24 is 2^e m with m in [sqrt(1/2), sqrt(2)), s = (m - 1) / (m + 1), and the logarithm
    is e log(2) + 2 s + s^3 P(s^2), in float64. Two steps of Newton from a reciprocal of float32,
    which is the square of an approximate reciprocal root, leave s the error of its rounding. None
    of the 2^24 results is nearer to the middle of two floats than 21 units in the last place of
    float64, and the error is below 4 of them.
    """
    bits = ((1 << 24) - k).to(tl.float32).to(tl.int32, bitcast=True) - (24 << 23)
    above = bits - 0x3F3504F3
    m = (bits - (above & -0x800000)).to(tl.float32, bitcast=True)
    top = (m - 1.0).to(tl.float64)
    below = top + 2.0
    root = tl.rsqrt(m + 1.0)
    inverse = (root * root).to(tl.float64)
    s = top * inverse
    s = tl.fma(tl.fma(-s, below, top), inverse, s)
    s = tl.fma(tl.fma(-s, below, top), inverse, s)
    z = s * s
    q = tl.fma(z, _wide(z, _K.LOG5), _wide(z, _K.LOG4))
    q = tl.fma(z, q, _wide(z, _K.LOG3))
    q = tl.fma(z, q, _wide(z, _K.LOG2))
    q = tl.fma(z, q, _wide(z, _K.LOG1))
    q = tl.fma(z, q, _wide(z, _K.LOG0))
    y = tl.fma(s * z, q, s + s)
    return tl.fma(_widened(above >> 23), _wide(z, _K.LN2), y).to(tl.float32)


@triton.jit
def _circle(k):
    """Return sine and cosine of k / 2^24 times 2 pi in float32, correctly rounded.

    The angle less a multiple of pi/2 in 22 bits is exact in float32; what that is too much is added
    in float64. Of the results none is nearer to the middle of two floats than 9 units in the last
    place of float64, and the error is below 2 of them.
    """
    turn = k.to(tl.float32) * _FRACTION
    # The sum rounds to the nearest integer and has it in its last bits.
    shifted = tl.fma(turn, 4.0, _SHIFT)
    quarter = shifted.to(tl.int32, bitcast=True) & 7
    rest = tl.fma(shifted - _SHIFT, -_K.HALF_PI, turn * _TURN).to(tl.float64)
    r = tl.fma(_widened(quarter), _wide(rest, _K.HALF_PI_ABOVE), rest)
    z = r * r
    p = tl.fma(z, _wide(z, _K.SIN5), _wide(z, _K.SIN4))
    q = tl.fma(z, _wide(z, _K.COS4), _wide(z, _K.COS3))
    p = tl.fma(z, p, _wide(z, _K.SIN3))
    q = tl.fma(z, q, _wide(z, _K.COS2))
    p = tl.fma(z, p, _wide(z, _K.SIN2))
    q = tl.fma(z, q, _wide(z, _K.COS1))
    p = tl.fma(z, p, _wide(z, _K.SIN1))
    q = tl.fma(z, q, _wide(z, _K.COS0))
    p = tl.fma(z, p, _wide(z, _K.SIN0))
    sine = tl.fma(r * z, p, r).to(tl.float32)
    cosine = tl.fma(z * z, q, tl.fma(z, _wide(z, -0.5), _wide(z, 1.0))).to(tl.float32)
    turned = (quarter & 1) == 1
    one = tl.where(turned, cosine, sine)
    other = tl.where(turned, sine, cosine)
    one = tl.where((quarter & 2) == 2, -one, one)
    other = tl.where(((quarter + 1) & 2) == 2, -other, other)
    return one, other


@triton.jit
def normals_of_words(u, v):
    """Return the two normal variates of docs/reproduce/contract.md that two words give.

    They need no other functions than these: there are only 2^24 fractions, for which a test
    compares them with the functions of ``corem``.
    """
    radius = tl.sqrt_rn(-2.0 * _log_of_rest((u >> 8).to(tl.int32)))
    sine, cosine = _circle((v >> 8).to(tl.int32))
    return radius * cosine, radius * sine


@triton.jit(do_not_specialize=["n", "key"])
def normals_of_places(
    y, n, key, a, b, SCALED: tl.constexpr, SHIFTED: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill ``y`` with the normal variates of docs/reproduce/contract.md, times ``b``, plus ``a``.

    Word e of the key is word e mod 4 at the counter e / 4. Each two make two variates. WHOLE says
    that n is a multiple of 4: then a thread stores four at once.
    """
    quad = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    zero = tl.zeros((BLOCK,), tl.uint32)
    words = tl.philox(
        tl.zeros([], tl.int64) + key, quad.to(tl.uint32), (quad >> 32).to(tl.uint32), zero, zero
    )
    first, second = normals_of_words(tl.join(words[0], words[2]), tl.join(words[1], words[3]))
    z = tl.join(first, second)
    if SCALED:
        z = z * b
    if SHIFTED:
        z = z + a
    if WHOLE:
        n = n // 4 * 4
    at = tl.program_id(0).to(tl.int64) * (4 * BLOCK) + tl.arange(0, 4 * BLOCK)
    tl.store(y + at, tl.reshape(z, [4 * BLOCK]), at < n)


@triton.jit(do_not_specialize=["n", "pairs", "seed", "offset", "threads"])
def variates_of_uniform(
    y, n, pairs, seed, offset, threads, a, b, row, F: tl.constexpr, BLOCK: tl.constexpr
):
    """Fill ``y`` with a function of uniform numbers."""
    if row is not None:
        _launched(row, n, 0)
    draw, lane, words = _words(seed, offset, threads, BLOCK)
    word = tl.join(tl.join(words[0], words[1]), tl.join(words[2], words[3]))
    index = tl.arange(0, 2)[None, :, None] + 2 * tl.arange(0, 2)[None, None, :]
    at = (draw * 4 * threads + lane)[:, None, None] + index * threads
    inside = at < n
    tl.store(y + at, F(_uniform(word), a, b, (row, inside)).to(y.dtype.element_ty), inside)


@triton.jit
def uniform_variates(u, a, b, seen):
    # As torch's: 1 is not among them.
    return tl.where(u == 1.0, 0.0, u)


@triton.jit
def exponential_variates(u, a, b, seen):
    # a: -1 / rate. The logarithm is never 0.
    log = _log(u, seen)
    return a * tl.where(u >= 1.0 - _EPSILON / 2, -_EPSILON / 2, log)


@triton.jit
def geometric_variates(u, a, b, seen):
    # a: log(1 - probability).
    return tl.ceil(tl.div_rn(_log(u, seen), tl.zeros_like(u) + a))


@triton.jit
def cauchy_variates(u, a, b, seen):
    # a: the median; b: the scale.
    u = tl.where(u > 1.0 - _EPSILON, 1.0 - _EPSILON, u)
    u = tl.where(u < _EPSILON, _EPSILON, u)
    return a + b * _tan(_PI * (u - 0.5), seen)
