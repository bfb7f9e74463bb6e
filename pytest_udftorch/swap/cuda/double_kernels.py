# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel of eager float64 operators: functions of libdevice, which the session fills.

This module imports triton, so it is itself imported when the first kernel is needed.
"""

# Triton evaluates the annotations of a kernel, so their evaluation is not postponed here.

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice


@triton.jit(do_not_specialize=["n"])
def unary_double(x, y, n, F: tl.constexpr, BLOCK: tl.constexpr):
    # 64 bits for the block's place, 32 within the block.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    inside = at < n - start
    tl.store(y + start + at, F(tl.load(x + start + at, inside, other=1.0)), inside)


# They differ in their text, by which Triton's cache of compiled kernels tells functions apart.


@triton.jit
def exp(x):
    return libdevice.exp(x)


@triton.jit
def exp2(x):
    return libdevice.exp2(x)


@triton.jit
def log(x):
    return libdevice.log(x)


@triton.jit
def log1p(x):
    return libdevice.log1p(x)


@triton.jit
def log2(x):
    return libdevice.log2(x)


@triton.jit
def sin(x):
    return libdevice.sin(x)


@triton.jit
def cos(x):
    return libdevice.cos(x)


@triton.jit
def tanh(x):
    return libdevice.tanh(x)
