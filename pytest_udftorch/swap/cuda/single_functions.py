# SPDX-License-Identifier: Apache-2.0
"""Triton formulas of operators that are one function, and a kernel that looks results up.

The parts of activations come from bitcode that is linked beside libdevice
(``libdevice.composites_for``).

This module imports triton, so it is itself imported when the first kernel is needed.
"""

# Triton evaluates the annotations of a kernel, so their evaluation is not postponed here.

import triton
import triton.language as tl

from pytest_udftorch.swap.cuda.kernels import _count, _known, _launched, _mapped

_sigmoid = _mapped("sigmoid")
_silu = _mapped("silu")
_softplus = _mapped("softplus")
_logsigmoid = _mapped("logsigmoid")
_gelu_erf = _mapped("gelu_erf")
_gelu_tanh = _mapped("gelu_tanh")
_mish = _mapped("mish")
_elu = _mapped("elu")
_selu = _mapped("selu")
_rsqrt = _mapped("rsqrt")


# They differ in their text, by which Triton's cache of compiled kernels tells formulas apart.


@triton.jit
def whole_sigmoid(x, a, b, c, seen):
    return _sigmoid(x, seen)


@triton.jit
def whole_silu(x, a, b, c, seen):
    return _silu(x, seen)


@triton.jit
def whole_softplus(x, a, b, c, seen):
    return _softplus(x, seen)


@triton.jit
def whole_logsigmoid(x, a, b, c, seen):
    return _logsigmoid(x, seen)


@triton.jit
def whole_gelu_erf(x, a, b, c, seen):
    return _gelu_erf(x, seen)


@triton.jit
def whole_gelu_tanh(x, a, b, c, seen):
    return _gelu_tanh(x, seen)


@triton.jit
def whole_mish(x, a, b, c, seen):
    return _mish(x, seen)


@triton.jit
def whole_elu(x, a, b, c, seen):
    return _elu(x, seen)


@triton.jit
def whole_selu(x, a, b, c, seen):
    return _selu(x, seen)


@triton.jit
def whole_rsqrt(x, a, b, c, seen):
    return _rsqrt(x, seen)


@triton.jit(do_not_specialize=["n"])
def lookup(x, y, table, wide, n, row, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Look up numbers of 16 bits, whose encodings ``x``, ``y`` and ``table`` hold.

    wide: the results in float32, to be counted.
    KIND: a number of their dtype.
    """
    if row is not None:
        _launched(row, n, 0)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    given = tl.load(x + at, inside, other=0)
    place = given.to(tl.int32) & 0xFFFF
    if row is not None:
        seen = (row, inside)
        kind: tl.constexpr = tl.float16 if KIND == "float16" else tl.bfloat16
        values = given.to(kind, bitcast=True).to(tl.float32)
        _count(values, None, tl.load(wide + place), seen, _known(seen, 0), 0)
    tl.store(y + at, tl.load(table + place, inside, other=0), inside)
