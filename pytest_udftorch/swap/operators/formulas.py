# SPDX-License-Identifier: Apache-2.0
"""Formulas of the CUDA operators, each written once.

A formula maps the elements of one tensor, or of two, to those of the result. It is computed in
float32, with the operations of ATen's CPU kernel in their order. This module leaves some names in
it undefined. Three readers define them:

* ``kernels`` compiles it with Triton's operations and the session's functions;
* ``calls`` counts the functions in it;
* ``calls.evaluate`` gives it to Inductor, operation by operation.

``_exp`` and the like are the functions. ``_exp_by_two`` is the same function with a branch after
every two elements, which takes fewer registers. ``_div`` and ``_sqrt`` round correctly. ``_fma``
stands where the compiler of torch's CPU kernels fuses a product and a sum, and where an error of
rounding is wanted. ``a``, ``b`` and ``c`` are the
operator's scalars as float32. ``seen`` is a pair: the row to count in, or None, and a mask of the
lanes that hold elements, or None for all. A number after it is the function's slot in that row.

A formula whose name ends in ``_wide`` is for the CPU alone, whose arithmetic in double is quick.
All but its functions is computed in double: ``_single`` rounds to float32, and a number is its
``_mantissa``, between the roots of 1/2 and 2, times 2 to the power of its ``_exponent``.

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


def softplus_of_one(x, a, b, c, seen):
    # softplus where beta is 1.
    return _where(x > b, x, _log1p(_exp(x, seen), seen, 1))


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


def special_entr(x, a, b, c, seen):
    below = _where(x < 0.0, -1e999, x)
    return _where(x > 0.0, -x * _log(x, seen), _where(x == 0.0, 0.0, below))


def erfinv(x, a, b, c, seen):
    # A first value by Winitzki (A handy approximation for the error function and its inverse,
    # 2008), within 0.2 %, with two steps of Newton's method. The first solves log(erfc) with the
    # logarithm's Pade approximant, which converges for values near 1 too. The second solves erf
    # below a half, where erfc has no more digits than 1 has.
    size = _abs(x)
    rest = 1.0 - size
    left = _log1p(-(size * size), seen)
    half = 4.330746750799873 + 0.5 * left
    ratio = left * -6.802721088435374
    first = _sqrt(_div(ratio, _sqrt(half * half + ratio) + half))
    tail = _erfc(first, seen, 1)
    slope = 1.1283791670955126 * _exp(-(first * first), seen, 2)
    second = first + _div(_div(2.0 * (tail - rest), tail + rest) * tail, slope)
    tail = _erfc(second, seen, 1)
    slope = 1.1283791670955126 * _exp(-(second * second), seen, 2)
    above = second + _div(_div(2.0 * (tail - rest), tail + rest) * tail, slope)
    below = second - _div(_erf(second, seen, 3) - size, slope)
    found = _where(size > 0.5, above, below)
    found = _where(size == 1.0, 1e999, found)
    return _where(x == 0.0, x, _where(x < 0.0, -found, found))


def special_ndtri(x, a, b, c, seen):
    # As erfinv, with the logarithm itself: arguments near 0 are farther out.
    least = _where(x >= 0.5, 1.0 - x, x)
    rest = least + least
    size = 1.0 - rest
    left = _log(2.0 * rest * (1.0 - least), seen)
    half = 4.330746750799873 + 0.5 * left
    ratio = left * -6.802721088435374
    first = _sqrt(_div(ratio, _sqrt(half * half + ratio) + half))
    tail = _erfc(first, seen, 1)
    slope = 1.1283791670955126 * _exp(-(first * first), seen, 2)
    second = first + _div(_log(_div(tail, rest), seen) * tail, slope)
    tail = _erfc(second, seen, 1)
    slope = 1.1283791670955126 * _exp(-(second * second), seen, 2)
    above = second + _div(_log(_div(tail, rest), seen) * tail, slope)
    below = second - _div(_erf(second, seen, 3) - size, slope)
    found = 1.4142135623730951 * _where(size > 0.5, above, below)
    found = _where(least == 0.0, 1e999, found)
    return _where(x >= 0.5, found, -found)


def special_log_ndtr(x, a, b, c, seen):
    # log(erfc(u) / 2) or log1p(-erfc(u) / 2), with erfc at the unrounded u: its derivative is
    # about -2u times itself. Far out, the logarithm of the asymptotic series of erfc (Abramowitz
    # and Stegun, 7.1.23).
    up = _abs(x)
    u = up * 0.7071067811865476
    lost = _fma(up, 0.7071067811865476, -u) + up * 1.210161710447897e-08
    tail = _erfc(u, seen)
    by = _where(u > 0.5, _where(u < 9.0, -2.0 * u * lost, 0.0), 0.0)
    tail = _fma(tail, by, tail)
    value = _log(_where(x < -10.0, -x, 0.5 * tail), seen, 1)
    s = _div(1.0, x * x)
    series = s * (s * (2.5 - s * 12.333333333333334) - 1.0)
    far = -0.5 * x * x - value - 0.9189385332046728 + series
    near = _log1p(-0.5 * tail, seen, 2)
    return _where(x < -10.0, far, _where(x < 0.0, value, near))


def digamma(x, a, b, c, seen):
    # Reflection below 0, recurrence up to 10, and the asymptotic series (Abramowitz and Stegun,
    # 6.3.7, 6.3.5 and 6.3.18). The distance to the next integer is exact. lost: what the sums
    # of the recurrence round away.
    from_integer = x - _floor(x + 0.5)
    mirrored = _div(3.141592653589793, _tan(3.141592653589793 * from_integer, seen))
    y = _where(x < 0.0, 1.0 - x, x)
    total = _where(y < 10.0, _div(-1.0, y), 0.0)
    lost = 0.0
    y = _where(y < 10.0, y + 1.0, y)
    term = _where(y < 10.0, _div(1.0, y), 0.0)
    more = total - term
    lost = lost + ((total - more) - term)
    total = more
    y = _where(y < 10.0, y + 1.0, y)
    term = _where(y < 10.0, _div(1.0, y), 0.0)
    more = total - term
    lost = lost + ((total - more) - term)
    total = more
    y = _where(y < 10.0, y + 1.0, y)
    term = _where(y < 10.0, _div(1.0, y), 0.0)
    more = total - term
    lost = lost + ((total - more) - term)
    total = more
    y = _where(y < 10.0, y + 1.0, y)
    term = _where(y < 10.0, _div(1.0, y), 0.0)
    more = total - term
    lost = lost + ((total - more) - term)
    total = more
    y = _where(y < 10.0, y + 1.0, y)
    term = _where(y < 10.0, _div(1.0, y), 0.0)
    more = total - term
    lost = lost + ((total - more) - term)
    total = more
    y = _where(y < 10.0, y + 1.0, y)
    term = _where(y < 10.0, _div(1.0, y), 0.0)
    more = total - term
    lost = lost + ((total - more) - term)
    total = more
    y = _where(y < 10.0, y + 1.0, y)
    term = _where(y < 10.0, _div(1.0, y), 0.0)
    more = total - term
    lost = lost + ((total - more) - term)
    total = more
    y = _where(y < 10.0, y + 1.0, y)
    term = _where(y < 10.0, _div(1.0, y), 0.0)
    more = total - term
    lost = lost + ((total - more) - term)
    total = more
    y = _where(y < 10.0, y + 1.0, y)
    term = _where(y < 10.0, _div(1.0, y), 0.0)
    more = total - term
    lost = lost + ((total - more) - term)
    total = more
    y = _where(y < 10.0, y + 1.0, y)
    s = _div(1.0, y * y)
    series = s * (0.08333333333333333 - s * (0.008333333333333333 - s * 0.003968253968253968))
    found = total + _log(y, seen, 1) + (lost - _div(0.5, y) - series)
    found = _where(y > 3.4028234663852886e38, y, found)
    found = _where(_abs(total) > 3.4028234663852886e38, total, found)
    below = _where(from_integer == 0.0, _div(from_integer, from_integer), found - mirrored)
    return _where(x == 0.0, _div(-1.0, x), _where(x < 0.0, below, found))


def trigamma(x, a, b, c, seen):
    # As digamma (Abramowitz and Stegun, 6.4.7, 6.4.6 and 6.4.12), up to 6.
    from_integer = x - _floor(x + 0.5)
    sine = _sin(3.141592653589793 * from_integer, seen)
    y = _where(x < 0.5, 1.0 - x, x)
    total = _where(y < 6.0, _div(1.0, y * y), 0.0)
    y = _where(y < 6.0, y + 1.0, y)
    total = total + _where(y < 6.0, _div(1.0, y * y), 0.0)
    y = _where(y < 6.0, y + 1.0, y)
    total = total + _where(y < 6.0, _div(1.0, y * y), 0.0)
    y = _where(y < 6.0, y + 1.0, y)
    total = total + _where(y < 6.0, _div(1.0, y * y), 0.0)
    y = _where(y < 6.0, y + 1.0, y)
    total = total + _where(y < 6.0, _div(1.0, y * y), 0.0)
    y = _where(y < 6.0, y + 1.0, y)
    total = total + _where(y < 6.0, _div(1.0, y * y), 0.0)
    y = _where(y < 6.0, y + 1.0, y)
    s = _div(1.0, y * y)
    series = s * (0.16666666666666666 - s * (0.03333333333333333 - s * 0.023809523809523808))
    found = total + _div(1.0 + _div(0.5, y) + series, y)
    return _where(x < 0.5, _div(9.869604401089358, sine * sine) - found, found)


def lgamma(x, a, b, c, seen):
    # Around 1 and 2 the series of Abramowitz and Stegun, 6.1.33, whose coefficients are
    # (zeta(k) - 1) / k, for k from 2 to 19. Recurrence to it below 8.5, Stirling's series
    # (6.1.41) above, reflection (6.1.17) below -0.5.
    y = _where(x < -0.5, -x, x)
    t = _where(y < 0.5, y, _where(y < 1.25, y - 1.0, y - 2.0))
    product = _where(y < 0.5, _abs(y), 1.0)
    product = _where(t > 0.5, product * (t + 1.0), product)
    t = _where(t > 0.5, t - 1.0, t)
    product = _where(t > 0.5, product * (t + 1.0), product)
    t = _where(t > 0.5, t - 1.0, t)
    product = _where(t > 0.5, product * (t + 1.0), product)
    t = _where(t > 0.5, t - 1.0, t)
    product = _where(t > 0.5, product * (t + 1.0), product)
    t = _where(t > 0.5, t - 1.0, t)
    product = _where(t > 0.5, product * (t + 1.0), product)
    t = _where(t > 0.5, t - 1.0, t)
    product = _where(t > 0.5, product * (t + 1.0), product)
    t = _where(t > 0.5, t - 1.0, t)
    series = 1.0043224823715715e-07
    series = 2.1207184805780185e-07 - t * series
    series = 4.4924691987384167e-07 - t * series
    series = 9.551412130381909e-07 - t * series
    series = 2.0392157537981365e-06 - t * series
    series = 4.374866789915087e-06 - t * series
    series = 9.439488275270618e-06 - t * series
    series = 2.0507212775670396e-05 - t * series
    series = 4.492623673812979e-05 - t * series
    series = 9.94575127817976e-05 - t * series
    series = 0.00022315475845356857 - t * series
    series = 0.0005096695247430449 - t * series
    series = 0.0011927539117032751 - t * series
    series = 0.0028905103307415394 - t * series
    series = 0.007385551028673998 - t * series
    series = 0.020580808427784536 - t * series
    series = 0.06735230105319807 - t * series
    series = 0.3224670334241132 - t * series
    near = t * (0.42278433509846713 + t * series)
    near = near - _where(y < 1.25, _log1p(_where(y < 1.25, t, 0.0), seen), 0.0)
    value = _log(_where(y > 8.5, y, product), seen, 1)
    near = near + _where(y < 0.5, -value, value)
    s = _div(1.0, y)
    square = s * s
    series = 0.002777777777777778 - square * 0.0007936507936507937
    series = s * (0.08333333333333333 - square * series)
    far = (y - 0.5) * (value - 1.0) + 0.4189385332046727 + series
    found = _where(y > 8.5, far, near)
    from_integer = x - _floor(x + 0.5)
    sine = _abs(x * _sin(3.141592653589793 * from_integer, seen, 2))
    mirrored = 1.1447298858494002 - _log(sine, seen, 1) - found
    mirrored = _where(from_integer == 0.0, 1e999, mirrored)
    found = _where(x < -0.5, mirrored, found)
    return _where(_abs(x) > 3.4028234663852886e38, _abs(x), found)


def lgamma_wide(x, a, b, c, seen):
    # For the CPU, in double but for the functions. Around 1 and 2 the series of Abramowitz and
    # Stegun, 6.1.33, with coefficients zeta(k) / k, k from 2 to 29, and (zeta(k) - 1) / k, to 19.
    # The rest as lgamma. A logarithm is the session's of the mantissa: what its rounding loses is
    # in proportion to that.
    y = _where(x < -0.5, -x, x)
    t = _where(y < 0.5, y, _where(y < 1.5, y - 1.0, y - 2.0))
    product = _where(y < 0.5, _abs(y), 1.0)
    product = _where(t > 0.5, product * (t + 1.0), product)
    t = _where(t > 0.5, t - 1.0, t)
    product = _where(t > 0.5, product * (t + 1.0), product)
    t = _where(t > 0.5, t - 1.0, t)
    product = _where(t > 0.5, product * (t + 1.0), product)
    t = _where(t > 0.5, t - 1.0, t)
    product = _where(t > 0.5, product * (t + 1.0), product)
    t = _where(t > 0.5, t - 1.0, t)
    product = _where(t > 0.5, product * (t + 1.0), product)
    t = _where(t > 0.5, t - 1.0, t)
    product = _where(t > 0.5, product * (t + 1.0), product)
    t = _where(t > 0.5, t - 1.0, t)
    first = 0.034482758684919304
    first = _fma(-t, first, 0.035714285847333355)
    first = _fma(-t, first, 0.037037037312989324)
    first = _fma(-t, first, 0.03846153903467518)
    first = _fma(-t, first, 0.04000000119214014)
    first = _fma(-t, first, 0.04166666915034121)
    first = _fma(-t, first, 0.04347826605304026)
    first = _fma(-t, first, 0.04545455629320467)
    first = _fma(-t, first, 0.047619070330142226)
    first = _fma(-t, first, 0.05000004769810169)
    first = _fma(-t, first, 0.05263167937961666)
    first = _fma(-t, first, 0.055555767627403614)
    first = _fma(-t, first, 0.058823978658684585)
    first = _fma(-t, first, 0.06250095514121304)
    first = _fma(-t, first, 0.06666870588242046)
    first = _fma(-t, first, 0.07143294629536133)
    first = _fma(-t, first, 0.0769325164113522)
    first = _fma(-t, first, 0.083353840546109)
    first = _fma(-t, first, 0.09095401714582904)
    first = _fma(-t, first, 0.1000994575127818)
    first = _fma(-t, first, 0.11133426586956469)
    first = _fma(-t, first, 0.12550966952474304)
    first = _fma(-t, first, 0.1440498967688461)
    first = _fma(-t, first, 0.1695571769974082)
    first = _fma(-t, first, 0.20738555102867398)
    first = _fma(-t, first, 0.27058080842778454)
    first = _fma(-t, first, 0.40068563438653143)
    first = _fma(-t, first, 0.8224670334241132)
    first = t * _fma(t, first, -0.5772156649015329)
    second = 1.0043224823968099e-07
    second = _fma(-t, second, 2.1207184805554665e-07)
    second = _fma(-t, second, 4.492469198764566e-07)
    second = _fma(-t, second, 9.55141213040742e-07)
    second = _fma(-t, second, 2.039215753801366e-06)
    second = _fma(-t, second, 4.374866789907488e-06)
    second = _fma(-t, second, 9.439488275268397e-06)
    second = _fma(-t, second, 2.050721277567069e-05)
    second = _fma(-t, second, 4.492623673813314e-05)
    second = _fma(-t, second, 9.945751278180853e-05)
    second = _fma(-t, second, 0.00022315475845357939)
    second = _fma(-t, second, 0.0005096695247430425)
    second = _fma(-t, second, 0.001192753911703261)
    second = _fma(-t, second, 0.0028905103307415234)
    second = _fma(-t, second, 0.007385551028673986)
    second = _fma(-t, second, 0.020580808427784546)
    second = _fma(-t, second, 0.0673523010531981)
    second = _fma(-t, second, 0.3224670334241132)
    second = t * _fma(t, second, 0.42278433509846713)
    product = _where(y > 8.5, y, product)
    part = _mantissa(product)
    near = _single(part)
    value = _log(near, seen) + _div(part - near, near)
    value = _fma(_exponent(product), 0.6931471805599453, value)
    s = _div(1.0, y)
    square = s * s
    series = 0.0007936507936507937 - square * (
        0.0005952380952380953 - square * 0.0008417508417508417
    )
    series = s * (0.08333333333333333 - square * (0.002777777777777778 - square * series))
    far = (y - 0.5) * (value - 1.0) + 0.4189385332046727 + series
    series = _where(y < 1.5, first, second)
    found = _where(y > 8.5, far, series + _where(y < 0.5, -value, value))
    # The sine of pi times the distance from an integer: of a multiple of pi / 8, and the session's
    # of the rest, whose rounding then loses less.
    from_integer = _abs(x - _floor(x + 0.5))
    eighths = _floor(8.0 * from_integer + 0.5)
    angle = 3.141592653589793 * (from_integer - 0.125 * eighths)
    near = _single(angle)
    sine = _sin(near, seen, 1)
    cosine = _sqrt(_fma(-sine, sine, 1.0))
    sine = _fma(cosine, angle - near, sine)
    outer = _where(
        eighths == 1.0, 0.3826834323650898, _where(eighths == 2.0, 0.7071067811865476, 1.0)
    )
    outer = _where(eighths == 3.0, 0.9238795325112867, _where(eighths == 0.0, 0.0, outer))
    inner = _where(
        eighths == 3.0, 0.3826834323650898, _where(eighths == 2.0, 0.7071067811865476, 0.0)
    )
    inner = _where(eighths == 1.0, 0.9238795325112867, _where(eighths == 0.0, 1.0, inner))
    sine = outer * cosine + inner * sine
    # Reflection. Below 8.5 both logarithms are one.
    sine = _abs(x) * sine * _where(y > 8.5, 1.0, product)
    part = _mantissa(sine)
    near = _single(part)
    value = _log(near, seen) + _div(part - near, near)
    value = _fma(_exponent(sine), 0.6931471805599453, value)
    mirrored = 1.1447298858494002 - value - _where(y > 8.5, far, series)
    found = _where(x < -0.5, mirrored, found)
    # Poles and infinities; what else is no number stays NaN.
    found = _where(_where(x < 0.5, from_integer, 1.0) == 0.0, 1e999, found)
    return _where(_abs(x) > 3.4028234663852886e38, _abs(x), found)


def pow_by(x, a, b, c, seen):
    # a: the exponent. For the CPU, whose kernel takes numbers.
    return _pow(x, a, seen)


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


def exp_times(x, y, a, b, c, seen):
    # y: the function without its factor, which grows with the size of x.
    return _exp(_abs(x), seen) * y


def special_erfcx(x, y, a, b, c, seen):
    # y: erfcx of the size of x. The rounding of the square is put back.
    square = x * x
    power = _exp(square, seen)
    power = _where(power > 3.4028234663852886e38, power, _fma(power, _fma(x, x, -square), power))
    return _where(x < 0.0, 2.0 * power - y, y)


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
