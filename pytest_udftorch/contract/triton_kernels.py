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


@triton.jit(
    do_not_specialize=["m", "n", "k", "batches", "splits", "a_batch", "b_batch"],
)
def products(a, b, c, waiting, m, n, k, batches, splits, a_batch, a_row, a_k, b_batch, b_k,
             b_column, LEVELS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
             COLUMNS: tl.constexpr, STEP: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    """Multiply batches of matrices; of each split of k, which has 2^LEVELS chunks, a part.

    c is dense: (splits, batches, m, n). Sums of 2, 4, 8, ... chunks wait in global memory for a
    partner of their size, where each program has room for LEVELS tiles. WHOLE says that k is a
    multiple of STEP.
    """
    across = tl.cdiv(n, COLUMNS)
    down = tl.cdiv(m, ROWS)
    tiles = down * across
    nothing = _minus_zero()
    SIZE: tl.constexpr = ROWS * COLUMNS
    PARTS: tl.constexpr = CHUNK // STEP
    BAND: tl.constexpr = 8
    places = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    room = waiting + tl.program_id(0).to(tl.int64) * (LEVELS * SIZE) + places
    for task in range(tl.program_id(0), tiles * batches * splits, tl.num_programs(0)):
        tile = task % tiles
        batch = (task // tiles % batches).to(tl.int64)
        split = (task // tiles // batches).to(tl.int64)
        # Neighbours share rows and columns, which then are in the cache.
        band = tile // (BAND * across)
        height = tl.minimum(down - band * BAND, BAND)
        i = (band * BAND + tile % (BAND * across) % height) * ROWS + tl.arange(0, ROWS)
        j = tile % (BAND * across) // height * COLUMNS + tl.arange(0, COLUMNS)
        first = (split * (CHUNK << LEVELS)).to(tl.int32)
        end = tl.minimum(first.to(tl.int64) + (CHUNK << LEVELS), k).to(tl.int32)
        at = first + tl.arange(0, STEP)
        left = a + batch * a_batch + (i % m)[:, None].to(tl.int64) * a_row
        left += at[None, :].to(tl.int64) * a_k
        right = b + batch * b_batch + (j % n)[None, :].to(tl.int64) * b_column
        right += at[:, None].to(tl.int64) * b_k
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        one = acc
        steps = tl.cdiv(end - first, STEP)
        for s in range(steps):
            if WHOLE:
                x = tl.load(left)
                y = tl.load(right)
            else:
                inside = at + s * STEP < end
                x = tl.load(left, inside[None, :], other=0.0)
                y = tl.load(right, inside[:, None], other=nothing)
            left += STEP * a_k
            right += STEP * b_k
            acc = tl.dot(x, y, acc, input_precision="ieee")
            if (s % PARTS == PARTS - 1) | (s == steps - 1):
                q = s // PARTS
                if (q & 1) == 0:
                    one = acc
                else:
                    total = one + acc
                    level = 0
                    rest = q >> 1
                    while (rest & 1) == 1:
                        total = tl.load(room + level * SIZE) + total
                        level += 1
                        rest = rest >> 1
                    tl.store(room + level * SIZE, total)
                    tl.debug_barrier()
                acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        chunks = tl.cdiv(end - first, CHUNK)
        total = tl.broadcast_to(nothing, (ROWS, COLUMNS))
        if (chunks & 1) == 1:
            total = one + total
        rest = chunks >> 1
        level = 0
        while rest > 0:
            if (rest & 1) == 1:
                total = tl.load(room + level * SIZE) + total
            level += 1
            rest = rest >> 1
        to = c + (split * batches + batch) * m * n + i[:, None].to(tl.int64) * n + j[None, :]
        tl.store(to, total, (i < m)[:, None] & (j < n)[None, :])
        tl.debug_barrier()


@triton.jit(do_not_specialize=["n", "key"])
def words(out, n, key, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Word e of Philox-4x32 with ten rounds: word e mod 4 at the counter e / 4.

    With BITS, the so many upper bits of a word, as a fraction of float32.
    """
    quad = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    zero = tl.zeros((BLOCK,), tl.uint32)
    a, b, c, d = tl.philox(
        tl.zeros([], tl.int64) + key, quad.to(tl.uint32), (quad >> 32).to(tl.uint32), zero, zero
    )
    # Joined twice, the last dimension is the outer one of a quad.
    word = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [4 * BLOCK])
    at = tl.program_id(0).to(tl.int64) * (4 * BLOCK) + tl.arange(0, 4 * BLOCK)
    if BITS:
        tl.store(out + at, (word >> (32 - BITS)).to(tl.float32) * 2.0**-BITS, at < n)
    else:
        tl.store(out + at, word.to(tl.int32, bitcast=True), at < n)


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
