# SPDX-License-Identifier: Apache-2.0
"""Sums and products of docs/contract.md as Triton kernels.

What is absent is padded with -0: x + -0 is x for every x, and so is a fused multiply-add of +0, -0
and x. So a tree over a power of two of terms gives the bits of the tree over fewer.

The kernels use no tensor cores: with ``input_precision="ieee"`` a thread takes one fused
multiply-add for each k, in their order. They are compiled without contraction.

This module imports triton, so it is itself imported when the first kernel is needed.
"""

# Triton evaluates the annotations of a kernel, so their evaluation is not postponed here.

import triton
import triton.language as tl


@triton.jit
def _minus_zero():
    # A constant of -0.0 would become +0.
    return tl.full([], -0x80000000, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _tree(x, LOG: tl.constexpr):
    """Add neighbours of the last of two dimensions level by level."""
    LANES: tl.constexpr = x.shape[0]
    for level in tl.static_range(LOG):
        first, second = tl.split(tl.reshape(x, [LANES, 1 << (LOG - level - 1), 2]))
        x = first + second
    return tl.reshape(x, [LANES])


@triton.jit(do_not_specialize=["n", "lanes", "groups", "blocks", "y_group", "y_block", "y_lane"])
def sums(x, y, n, lanes, groups, blocks, x_group, x_lane, x_term, y_group, y_block, y_lane,
         LANES: tl.constexpr, LOG: tl.constexpr):  # fmt: skip
    """Sum blocks of 2^LOG terms: y[group, block, lane] of x[group, term, lane]."""
    across = tl.cdiv(lanes, LANES)
    program = tl.program_id(0).to(tl.int64)
    block = program % blocks
    lane = (program // blocks) % across * LANES + tl.arange(0, LANES)
    group = program // blocks // across
    term = (block << LOG) + tl.arange(0, 1 << LOG)
    at = x + group * x_group + lane[:, None] * x_lane + term[None, :] * x_term
    inside = (lane < lanes)[:, None] & (term < n)[None, :]
    found = _tree(tl.load(at, inside, other=_minus_zero()), LOG)
    tl.store(y + group * y_group + block * y_block + lane * y_lane, found, lane < lanes)


@triton.jit
def _level(kept, total, q, LEVEL: tl.constexpr):
    """Carry a sum of whole chunks into one digit of a binary counter of q + 1 chunks."""
    ones: tl.constexpr = (1 << LEVEL) - 1
    low = q & ((1 << (LEVEL + 1)) - 1)
    stays = low == ones
    joined = kept + total
    return tl.where(stays, total, kept), tl.where(low == 2 * ones + 1, joined, total)


@triton.jit
def _rest(kept, total, q, LEVEL: tl.constexpr):
    return tl.where(((q >> LEVEL) & 1) != 0, kept + total, total)


@triton.jit(do_not_specialize=["m", "n", "k", "batches", "a_batch", "b_batch"])
def products(a, b, c, m, n, k, batches, a_batch, a_row, a_k, b_batch, b_k, b_column,
             LEVELS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
             COLUMNS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """Multiply batches of matrices; of each split of k, which has 2^LEVELS chunks, a part.

    c is dense: (splits, batches, m, n).
    """
    across = tl.cdiv(n, COLUMNS)
    tiles = tl.cdiv(m, ROWS) * across
    program = tl.program_id(0)
    tile = program % tiles
    batch = (program // tiles % batches).to(tl.int64)
    split = (program // tiles // batches).to(tl.int64)
    i = tile // across * ROWS + tl.arange(0, ROWS)
    j = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    start = split * (CHUNK << LEVELS)
    end = tl.minimum(start + (CHUNK << LEVELS), k).to(tl.int32)
    first = start.to(tl.int32)
    left = a + batch * a_batch + i[:, None].to(tl.int64) * a_row
    right = b + batch * b_batch + j[None, :].to(tl.int64) * b_column
    nothing = _minus_zero()
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    l0 = acc
    l1 = acc
    l2 = acc
    l3 = acc
    l4 = acc
    l5 = acc
    l6 = acc
    top = acc
    PARTS: tl.constexpr = CHUNK // STEP
    steps = tl.cdiv(end - first, STEP)
    for s in range(steps):
        at = first + s * STEP + tl.arange(0, STEP)
        x = tl.load(left + at[None, :].to(tl.int64) * a_k, (i < m)[:, None] & (at < end)[None, :],
                    other=0.0)  # fmt: skip
        y = tl.load(right + at[:, None].to(tl.int64) * b_k, (at < end)[:, None] & (j < n)[None, :],
                    other=nothing)  # fmt: skip
        acc = tl.dot(x, y, acc, input_precision="ieee")
        if (s % PARTS == PARTS - 1) | (s == steps - 1):
            q = s // PARTS
            total = acc
            if LEVELS > 0:
                l0, total = _level(l0, total, q, 0)
            if LEVELS > 1:
                l1, total = _level(l1, total, q, 1)
            if LEVELS > 2:
                l2, total = _level(l2, total, q, 2)
            if LEVELS > 3:
                l3, total = _level(l3, total, q, 3)
            if LEVELS > 4:
                l4, total = _level(l4, total, q, 4)
            if LEVELS > 5:
                l5, total = _level(l5, total, q, 5)
            if LEVELS > 6:
                l6, total = _level(l6, total, q, 6)
            if q == (1 << LEVELS) - 1:
                top = total
            acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    chunks = tl.cdiv(end - first, CHUNK)
    total = tl.broadcast_to(nothing, (ROWS, COLUMNS))
    if LEVELS > 0:
        total = _rest(l0, total, chunks, 0)
    if LEVELS > 1:
        total = _rest(l1, total, chunks, 1)
    if LEVELS > 2:
        total = _rest(l2, total, chunks, 2)
    if LEVELS > 3:
        total = _rest(l3, total, chunks, 3)
    if LEVELS > 4:
        total = _rest(l4, total, chunks, 4)
    if LEVELS > 5:
        total = _rest(l5, total, chunks, 5)
    if LEVELS > 6:
        total = _rest(l6, total, chunks, 6)
    total = _rest(top, total, chunks, LEVELS)
    to = c + (split * batches + batch) * m * n + i[:, None].to(tl.int64) * n + j[None, :]
    tl.store(to, total, (i < m)[:, None] & (j < n)[None, :])


@triton.jit(do_not_specialize=["n", "key_low", "key_high"])
def words(out, n, key_low, key_high, BLOCK: tl.constexpr):
    """Word e of Philox-4x32 with ten rounds: word e mod 4 at the counter e / 4."""
    quad = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a = quad.to(tl.uint32)
    b = (quad >> 32).to(tl.uint32)
    c = tl.zeros((BLOCK,), tl.uint32)
    d = c
    k = tl.full((BLOCK,), 0, tl.uint32) + key_low.to(tl.uint32)
    m = tl.full((BLOCK,), 0, tl.uint32) + key_high.to(tl.uint32)
    p = tl.full((BLOCK,), 0xD2511F53, tl.uint32)
    q = tl.full((BLOCK,), 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        a_next = tl.umulhi(c, q) ^ b ^ k
        b = c * q
        c_next = tl.umulhi(a, p) ^ d ^ m
        d = a * p
        a = a_next
        c = c_next
        k += tl.full((BLOCK,), 0x9E3779B9, tl.uint32)
        m += tl.full((BLOCK,), 0xBB67AE85, tl.uint32)
    at = quad * 4
    tl.store(out + at, a.to(tl.int32, bitcast=True), at < n)
    tl.store(out + at + 1, b.to(tl.int32, bitcast=True), at + 1 < n)
    tl.store(out + at + 2, c.to(tl.int32, bitcast=True), at + 2 < n)
    tl.store(out + at + 3, d.to(tl.int32, bitcast=True), at + 3 < n)


@triton.jit(do_not_specialize=["n", "inner", "level"])
def joins(x, bits, starts, n, inner, level, COLUMNS: tl.constexpr):
    """Add each run of terms that joins the one before it at a bit to where that run begins."""
    across = tl.cdiv(inner, COLUMNS)
    program = tl.program_id(0).to(tl.int64)
    term = program // across
    if tl.load(bits + term) == level:
        i = program % across * COLUMNS + tl.arange(0, COLUMNS)
        to = x + tl.load(starts + term) * inner + i
        right = tl.load(x + term * inner + i, i < inner, other=0.0)
        tl.store(to, tl.load(to, i < inner, other=0.0) + right, i < inner)


# Single elements ----------------------------------------------------------------------------


@triton.jit(do_not_specialize=["n"])
def elements(x, y, z, out, n, a, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Map elements with the roundings of the contract; y and z may be None."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    first = tl.load(x + at, inside, other=1.0)
    number = tl.full((BLOCK,), a, tl.float32)
    if KIND == "divided":
        found = tl.div_rn(first, number)
    elif KIND == "root":
        found = tl.sqrt_rn(first)
    elif KIND == "one over the root":
        found = tl.div_rn(tl.zeros_like(first) + 1.0, tl.sqrt_rn(first))
    elif KIND == "add":
        second = tl.load(y + at, inside, other=1.0)
        found = tl.fma(second, number, first)
    elif KIND == "lerp":
        second = tl.load(y + at, inside, other=1.0)
        d = second - first
        found = tl.where(
            tl.abs(number) < 0.5, tl.fma(number, d, first), tl.fma(number - 1.0, d, second)
        )
    elif KIND == "addcmul":
        second = tl.load(y + at, inside, other=1.0)
        third = tl.load(z + at, inside, other=1.0)
        found = tl.fma(number * second, third, first)
    else:
        second = tl.load(y + at, inside, other=1.0)
        third = tl.load(z + at, inside, other=1.0)
        found = first + tl.div_rn(number * second, third)
    tl.store(out + at, found, inside)
