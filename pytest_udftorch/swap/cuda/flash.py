# SPDX-License-Identifier: Apache-2.0
"""Triton kernels of attention: scores, softmax and values in one pass over the keys.

The running maximum and sum of a row are those of online softmax (Milakov and Gimelshein, 2018);
the gradient computes the weights again from the logarithm of the sum (Dao and others, 2022).
Scores and sums are float32. Weights are exp, rounded to the dtype of the values: for their product,
as the stock kernels round them, but also for their sum, so that the weights of a row add up to one
as the values see them. ``sixteen`` computes them without most of the work of a float32 result, from
scores in base 2 (QUICK is 2) where the session has exp2 as well. In 16 bits the sums of weights are
a matrix product with ones: tensor cores have the time. A row's sum is scaled anew only where its
maximum has grown by ``_GROWTH``. Each result has one writer, so there are no atomics, and equal
calls give equal bits.

A kernel has a parameter for each pointer, stride and size: see ``kernels``.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from pytest_udftorch.swap.cuda.kernels import _count, _known, _launched
from pytest_udftorch.swap.cuda.sixteen import exp2_rounded, exp_rounded

#: exp and exp2 of it are far from the largest number of half.
_GROWTH = tl.constexpr(8.0)

#: Columns of ones: the fewest that a product takes.
_ONES = tl.constexpr(16)

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)

#: Numbers of heads, rows and scores: kernels are compiled for none of them, as every token that is
#: decoded with a cache brings other ones.
_SIZES = [
    "heads", "group", "queries", "keys", "lse_row", "blocks", "offset", "counted",
]  # fmt: skip


@triton.jit
def _shrink_one(growth, less):
    result = 1.0
    if less != growth:
        result = libdevice.exp(growth - less)
    return result


@triton.jit
def _shrink_two(growth, less):
    result = 1.0
    if less != growth:
        result = libdevice.exp2(growth - less)
    return result


@triton.jit
def _weights(
    x, seen, DTYPE: tl.constexpr, QUICK: tl.constexpr, PACK: tl.constexpr,
    LARGE: tl.constexpr = True,
):  # fmt: skip
    """Return the session's exp, or exp2 of scores in base 2, rounded to a dtype."""
    if QUICK == 2:
        power = exp2_rounded(x, DTYPE, PACK)
    else:
        power = exp_rounded(x, seen, DTYPE, QUICK == 1, PACK, LARGE)
    return power


@triton.jit
def _exponent(score, less, scale, FOLD: tl.constexpr):
    """Return scores minus those of their rows; with FOLD, scores lack their scale."""
    if FOLD:
        x = tl.fma(score, tl.broadcast_to(scale, score.shape), tl.broadcast_to(-less, score.shape))
    else:
        x = score - less
    return x


@triton.jit
def _tile(at, row, rows, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr, BOUND: tl.constexpr):
    """Return rows of a matrix whose elements lie side by side."""
    column = tl.arange(0, BLOCK)[None, :]
    place = at + row.to(tl.int64)[:, None] * stride + column
    if SIZE == BLOCK and BOUND:
        tile = tl.load(place, row[:, None] < rows, other=0.0)
    elif SIZE == BLOCK:
        tile = tl.load(place)
    elif BOUND:
        tile = tl.load(place, (row[:, None] < rows) & (column < SIZE), other=0.0)
    else:
        tile = tl.load(place, column < SIZE, other=0.0)
    return tile


@triton.jit
def _put(at, row, rows, stride, value, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)[None, :]
    place = at + row.to(tl.int64)[:, None] * stride + column
    inside = (row[:, None] < rows) & (column < SIZE)
    tl.store(place, value.to(at.dtype.element_ty), inside)


@triton.jit
def _scored(
    q, k, scale, bias, b_row, b_key, query, key, queries, keys, offset,
    CAUSAL: tl.constexpr, BOUND: tl.constexpr, FOLD: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """Return the scores of queries and keys, and which of them exist."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee")
    if not FOLD:
        score *= scale
    inside = (query[:, None] < queries) & (key[None, :] < keys)
    if bias is not None:
        place = bias + query.to(tl.int64)[:, None] * b_row + key.to(tl.int64)[None, :] * b_key
        added = tl.load(place, inside, other=0.0).to(tl.float32)
        if QUICK == 2:
            added *= _LOG2E
        score += added
    if CAUSAL:
        inside = inside & (key[None, :] <= query[:, None] + offset)
    if BOUND:
        score = tl.where(inside, score, -float("inf"))
    return score, inside


@triton.jit
def _kept(seed, line, query, key, keys, dropout):
    """Return which weights dropout keeps: the same for each kernel and each size of a block."""
    at = query[:, None] * keys + key[None, :]
    return tl.rand(tl.load(seed) + line, at) >= dropout


@triton.jit
def _forward_step(
    first, out, total, peak, q, k_at, v_at, bias, b_row, b_key, k_row, v_row, scale, query,
    queries, keys, offset, seed, line, dropout, seen, CAUSAL: tl.constexpr, BOUND: tl.constexpr,
    SIZE: tl.constexpr, SIZE_V: tl.constexpr, BLOCK: tl.constexpr, BLOCK_V: tl.constexpr,
    KEYS: tl.constexpr, FOLD: tl.constexpr, QUICK: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    key = first + tl.arange(0, KEYS)
    k = _tile(k_at, key, keys, k_row, SIZE, BLOCK, BOUND)
    score, inside = _scored(
        q, k, scale, bias, b_row, b_key, query, key, queries, keys, offset, CAUSAL, BOUND, FOLD,
        QUICK,
    )  # fmt: skip
    highest = tl.max(score, 1)
    if FOLD:
        highest *= scale
    highest = tl.where(highest > peak + _GROWTH, highest, peak)
    # A row without a key so far has weights of zero.
    less = tl.where(highest == -float("inf"), 0.0, highest)
    x = _exponent(score, less[:, None], scale, FOLD)
    narrow = _weights(x, (seen, inside), v_at.dtype.element_ty, QUICK, PACK, False)
    power = narrow.to(tl.float32)
    if QUICK == 2:
        shrink = tl.map_elementwise(_shrink_two, peak, less)
    else:
        shrink = tl.map_elementwise(_shrink_one, peak, less)
    if narrow.dtype.primitive_bitwidth == 16:
        ones = tl.full([KEYS, _ONES], 1.0, narrow.dtype)
        total = tl.dot(narrow, ones, total * shrink[:, None])
    else:
        total = total * shrink + tl.sum(power, 1)
    if seed is not None:
        kept = _kept(seed, line, query, key, keys, dropout)
        power = tl.where(kept, power, 0.0)
    v = _tile(v_at, key, keys, v_row, SIZE_V, BLOCK_V, BOUND)
    out = out * shrink[:, None]
    out = tl.dot(power.to(v.dtype), v, out, input_precision="ieee")
    return out, total, highest


@triton.jit(do_not_specialize=_SIZES)
def attention_forward(
    q, k, v, out, lse, bias, seed, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch,
    v_head, v_row, o_batch, o_head, o_row, b_batch, b_head, b_row, b_key, heads, group, queries,
    keys, lse_row, blocks, offset, scale, dropout, counted, seen, CAUSAL: tl.constexpr,
    EMPTY: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_V: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, FOLD: tl.constexpr,
    QUICK: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    if seen is not None:
        lines = (tl.num_programs(0) // blocks).to(tl.int64) * queries
        _launched(seen, counted, lines)
    # The last queries see the most keys: they begin first.
    start = (blocks - 1 - tl.program_id(0) % blocks) * QUERIES
    line = tl.program_id(0) // blocks
    batch = (line // heads).to(tl.int64)
    head = (line % heads).to(tl.int64)
    query = start + tl.arange(0, QUERIES)
    rows = _tile(q + batch * q_batch + head * q_head, query, queries, q_row, SIZE, BLOCK, True)
    k += batch * k_batch + (head // group) * k_head
    v += batch * v_batch + (head // group) * v_head
    if bias is not None:
        bias += batch * b_batch + head * b_head
    peak = tl.full([QUERIES], -float("inf"), tl.float32)
    if rows.dtype.primitive_bitwidth == 16:
        total = tl.zeros([QUERIES, _ONES], tl.float32)
    else:
        total = tl.zeros([QUERIES], tl.float32)
    value = tl.zeros([QUERIES, BLOCK_V], tl.float32)
    if QUICK == 2:
        scale *= _LOG2E
    last = keys
    whole = keys // KEYS * KEYS
    if CAUSAL:
        last = tl.maximum(tl.minimum(keys, start + QUERIES + offset), 0)
        whole = tl.maximum(tl.minimum(whole, (start + offset + 1) // KEYS * KEYS), 0)
    # Blocks that every query sees as a whole, then the others.
    for first in range(0, whole, KEYS):
        value, total, peak = _forward_step(
            first, value, total, peak, rows, k, v, bias, b_row, b_key, k_row, v_row, scale, query,
            queries, keys, offset, seed, line, dropout, seen, False, False, SIZE, SIZE_V, BLOCK,
            BLOCK_V, KEYS, FOLD, QUICK, PACK,
        )  # fmt: skip
    for first in range(whole, last, KEYS):
        value, total, peak = _forward_step(
            first, value, total, peak, rows, k, v, bias, b_row, b_key, k_row, v_row, scale, query,
            queries, keys, offset, seed, line, dropout, seen, CAUSAL, True, SIZE, SIZE_V, BLOCK,
            BLOCK_V, KEYS, FOLD, QUICK, PACK,
        )  # fmt: skip
    if rows.dtype.primitive_bitwidth == 16:
        total = tl.max(total, 1)  # all columns are alike
    logarithm = libdevice.log(total)
    if seen is not None:
        each = (seen, query < queries)
        _count(total, None, logarithm, each, _known(each, 1), 1)
    none = total == 0.0
    value = tl.div_rn(value, tl.broadcast_to(tl.where(none, 1.0, total)[:, None], value.shape))
    if seed is not None:
        value *= 1.0 / (1.0 - dropout)
    out += batch * o_batch + head * o_head
    _put(out, query, queries, o_row, value, SIZE_V, BLOCK_V)
    if lse is not None:
        if QUICK == 2:
            peak *= _LN2
        known = tl.where(none, EMPTY, peak + logarithm)
        # What follows the queries in a padded row is infinity.
        known = tl.where(query < queries, known, float("inf"))
        tl.store(lse + line.to(tl.int64) * lse_row + query, known, query < lse_row)


@triton.jit
def _gradient(
    q, k, v, grad, lse, less, scale, bias, b_row, b_key, query, key, queries, keys, offset, seed,
    line, dropout, seen, CAUSAL: tl.constexpr, BOUND: tl.constexpr, FOLD: tl.constexpr,
    QUICK: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """Return the weights as the values saw them, and the gradient of the scores."""
    by = scale
    if QUICK == 2:
        by *= _LOG2E
        lse *= _LOG2E
    score, inside = _scored(
        q, k, by, bias, b_row, b_key, query, key, queries, keys, offset, CAUSAL, BOUND, FOLD,
        QUICK,
    )  # fmt: skip
    x = _exponent(score, lse[:, None], by, FOLD)
    weight = _weights(x, (seen, inside), v.dtype, QUICK, PACK).to(tl.float32)
    slope = tl.dot(grad, tl.trans(v), input_precision="ieee")
    used = weight
    if seed is not None:
        kept = _kept(seed, line, query, key, keys, dropout)
        used = tl.where(kept, weight * (1.0 / (1.0 - dropout)), 0.0)
        slope = tl.where(kept, slope * (1.0 / (1.0 - dropout)), 0.0)
    return used, weight * (slope - less[:, None]) * scale


@triton.jit
def _of_rows(lse, less, line, row, query, queries):
    inside = query < queries
    logarithm = tl.load(lse + line * row + query, inside, other=float("inf"))
    # A row without keys: its weights are zero.
    logarithm = tl.where(logarithm == -float("inf"), float("inf"), logarithm)
    return logarithm, tl.load(less + line * queries + query, inside, other=0.0)


@triton.jit
def _query_step(
    first, total, rows, k, v, slopes, logarithm, part, scale, bias, b_row, b_key, k_row, v_row,
    query, queries, keys, offset, seed, line, dropout, seen, CAUSAL: tl.constexpr,
    BOUND: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_V: tl.constexpr, KEYS: tl.constexpr, FOLD: tl.constexpr, QUICK: tl.constexpr,
    PACK: tl.constexpr,
):  # fmt: skip
    key = first + tl.arange(0, KEYS)
    k_rows = _tile(k, key, keys, k_row, SIZE, BLOCK, BOUND)
    v_rows = _tile(v, key, keys, v_row, SIZE_V, BLOCK_V, BOUND)
    _, inner = _gradient(
        rows, k_rows, v_rows, slopes, logarithm, part, scale, bias, b_row, b_key, query, key,
        queries, keys, offset, seed, line, dropout, seen, CAUSAL, BOUND, FOLD, QUICK, PACK,
    )  # fmt: skip
    return tl.dot(inner.to(k_rows.dtype), k_rows, total, input_precision="ieee")


@triton.jit(do_not_specialize=_SIZES)
def attention_queries(
    q, k, v, grad, lse, less, gq, bias, seed, q_batch, q_head, q_row, k_batch, k_head, k_row,
    v_batch, v_head, v_row, g_batch, g_head, g_row, r_batch, r_head, r_row, b_batch, b_head,
    b_row, b_key, heads, group, queries, keys, lse_row, blocks, offset, scale, dropout, counted,
    seen, CAUSAL: tl.constexpr, EVEN: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_V: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    FOLD: tl.constexpr, QUICK: tl.constexpr,
    PACK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the queries."""
    if seen is not None:
        _launched(seen, counted, 0)
    start = (blocks - 1 - tl.program_id(0) % blocks) * QUERIES
    line = tl.program_id(0) // blocks
    batch = (line // heads).to(tl.int64)
    head = (line % heads).to(tl.int64)
    query = start + tl.arange(0, QUERIES)
    rows = _tile(q + batch * q_batch + head * q_head, query, queries, q_row, SIZE, BLOCK, True)
    grad += batch * g_batch + head * g_head
    slopes = _tile(grad, query, queries, g_row, SIZE_V, BLOCK_V, True)
    k += batch * k_batch + (head // group) * k_head
    v += batch * v_batch + (head // group) * v_head
    if bias is not None:
        bias += batch * b_batch + head * b_head
    logarithm, part = _of_rows(lse, less, line.to(tl.int64), lse_row, query, queries)
    total = tl.zeros([QUERIES, BLOCK], tl.float32)
    last = keys
    whole = keys
    if CAUSAL:
        last = tl.maximum(tl.minimum(keys, start + QUERIES + offset), 0)
        whole = tl.maximum(tl.minimum(keys, (start + offset + 1) // KEYS * KEYS), 0)
    for first in range(0, whole, KEYS):
        total = _query_step(
            first, total, rows, k, v, slopes, logarithm, part, scale, bias, b_row, b_key, k_row,
            v_row, query, queries, keys, offset, seed, line, dropout, seen, False, not EVEN, SIZE,
            SIZE_V, BLOCK, BLOCK_V, KEYS, FOLD, QUICK, PACK,
        )  # fmt: skip
    for first in range(whole, last, KEYS):
        total = _query_step(
            first, total, rows, k, v, slopes, logarithm, part, scale, bias, b_row, b_key, k_row,
            v_row, query, queries, keys, offset, seed, line, dropout, seen, CAUSAL, True, SIZE,
            SIZE_V, BLOCK, BLOCK_V, KEYS, FOLD, QUICK, PACK,
        )  # fmt: skip
    _put(gq + batch * r_batch + head * r_head, query, queries, r_row, total, SIZE, BLOCK)


@triton.jit
def _key_step(
    first, of_keys, of_values, k_rows, v_rows, q, grad, lse, less, lse_row, scale, bias, b_row,
    b_key, q_row, g_row, key, queries, keys, offset, seed, line, dropout, seen,
    CAUSAL: tl.constexpr, BOUND: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_V: tl.constexpr, QUERIES: tl.constexpr, FOLD: tl.constexpr,
    QUICK: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    query = first + tl.arange(0, QUERIES)
    rows = _tile(q, query, queries, q_row, SIZE, BLOCK, BOUND)
    slopes = _tile(grad, query, queries, g_row, SIZE_V, BLOCK_V, BOUND)
    logarithm, part = _of_rows(lse, less, line.to(tl.int64), lse_row, query, queries)
    used, inner = _gradient(
        rows, k_rows, v_rows, slopes, logarithm, part, scale, bias, b_row, b_key, query, key,
        queries, keys, offset, seed, line, dropout, seen, CAUSAL, BOUND, FOLD, QUICK, PACK,
    )  # fmt: skip
    of_values = tl.dot(
        tl.trans(used.to(slopes.dtype)), slopes, of_values, input_precision="ieee"
    )  # fmt: skip
    of_keys = tl.dot(tl.trans(inner.to(rows.dtype)), rows, of_keys, input_precision="ieee")
    return of_keys, of_values


@triton.jit(do_not_specialize=_SIZES)
def attention_keys(
    q, k, v, grad, lse, less, gk, gv, bias, seed, q_batch, q_head, q_row, k_batch, k_head, k_row,
    v_batch, v_head, v_row, g_batch, g_head, g_row, r_batch, r_head, r_row, w_batch, w_head,
    w_row, b_batch, b_head, b_row, b_key, heads, group, queries, keys, lse_row, blocks, offset,
    scale, dropout, counted, seen, CAUSAL: tl.constexpr, EVEN: tl.constexpr, SIZE: tl.constexpr,
    SIZE_V: tl.constexpr, BLOCK: tl.constexpr, BLOCK_V: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, FOLD: tl.constexpr, QUICK: tl.constexpr,
    PACK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of keys and values, summed over the heads that share them."""
    if seen is not None:
        _launched(seen, counted, 0)
    start = tl.program_id(0) % blocks * KEYS
    shared = tl.program_id(0) // blocks
    batch = (shared // heads).to(tl.int64)
    shared_head = (shared % heads).to(tl.int64)
    key = start + tl.arange(0, KEYS)
    k_rows = _tile(k + batch * k_batch + shared_head * k_head, key, keys, k_row, SIZE, BLOCK, True)
    v += batch * v_batch + shared_head * v_head
    v_rows = _tile(v, key, keys, v_row, SIZE_V, BLOCK_V, True)
    of_keys = tl.zeros([KEYS, BLOCK], tl.float32)
    of_values = tl.zeros([KEYS, BLOCK_V], tl.float32)
    begin = 0
    whole = 0
    if CAUSAL:
        begin = tl.maximum(start - offset, 0) // QUERIES * QUERIES
        # From here on, each query sees all keys of the block.
        whole = tl.maximum(start + KEYS - 1 - offset, 0)
        whole = tl.minimum((whole + QUERIES - 1) // QUERIES * QUERIES, queries)
    for member in range(0, group):
        head = shared_head * group + member
        line = (batch * heads * group + head).to(tl.int32)
        q_at = q + batch * q_batch + head * q_head
        g_at = grad + batch * g_batch + head * g_head
        b_at = bias
        if bias is not None:
            b_at = bias + batch * b_batch + head * b_head
        for first in range(begin, whole, QUERIES):
            of_keys, of_values = _key_step(
                first, of_keys, of_values, k_rows, v_rows, q_at, g_at, lse, less, lse_row, scale,
                b_at, b_row, b_key, q_row, g_row, key, queries, keys, offset, seed, line, dropout,
                seen, CAUSAL, True, SIZE, SIZE_V, BLOCK, BLOCK_V, QUERIES, FOLD, QUICK, PACK,
            )  # fmt: skip
        for first in range(whole, queries, QUERIES):
            of_keys, of_values = _key_step(
                first, of_keys, of_values, k_rows, v_rows, q_at, g_at, lse, less, lse_row, scale,
                b_at, b_row, b_key, q_row, g_row, key, queries, keys, offset, seed, line, dropout,
                seen, False, not EVEN, SIZE, SIZE_V, BLOCK, BLOCK_V, QUERIES, FOLD, QUICK, PACK,
            )  # fmt: skip
    _put(gk + batch * r_batch + shared_head * r_head, key, keys, r_row, of_keys, SIZE, BLOCK)
    _put(gv + batch * w_batch + shared_head * w_head, key, keys, w_row, of_values, SIZE_V, BLOCK_V)
