# SPDX-License-Identifier: Apache-2.0
"""Attention in bfloat16 as Triton kernels, between which the library computes exponentials.

Rows of scores, or of what is made of them, lie in blocks, one behind the other; a block consists of
tiles, of which those are left out that no row of it sees. Products are exact, weights become digits
as docs/reproduce/contract_exact.md says, and sums are trees: of a tile, of a chunk and of a row.

This module imports triton, so it is itself imported when the first kernel is needed.
"""

# Triton evaluates the annotations of a kernel, so their evaluation is not postponed here.

import triton
import triton.language as tl

from pytest_udftorch.swap.contract.triton_exact import (
    _joined,
    _power,
    _products,
    _scaled,
    _weight_codes,
    _weight_integers,
    _weight_units,
)
from pytest_udftorch.swap.contract.triton_kernels import _closed, _minus_zero, _taken, _tree

#: What differs from call to call; kernels are not compiled for it.
_SIZES = [
    "first", "queries", "keys", "blocks", "sharing", "size", "padded", "parts", "chunks", "splits",
    "units", "rows",
]  # fmt: skip


@triton.jit
def _seen(block, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr):
    """Return how many tiles a block has."""
    if CAUSAL:
        tiles = tl.minimum(tl.cdiv((block + 1) * ROWS, COLUMNS), tiles)
    return tiles


@triton.jit
def _program(chunks):
    """Return the numbers of a program's block and chunk, and how many blocks there are."""
    return tl.program_id(0) // chunks, tl.program_id(0) % chunks, tl.num_programs(0) // chunks


@triton.jit
def _of_chunk(chunk, block, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr, NODES: tl.constexpr,
              CAUSAL: tl.constexpr):  # fmt: skip
    """Return where a chunk of 2^NODES tiles of a block begins and ends."""
    start = chunk << NODES
    return start, tl.minimum(start + (1 << NODES), _seen(block, tiles, ROWS, COLUMNS, CAUSAL))


@triton.jit
def _before(block, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr):
    """Return how many tiles the blocks before one have together."""
    count = block * tiles
    if CAUSAL:
        EACH: tl.constexpr = COLUMNS // ROWS
        rising = tl.minimum(block, EACH * tiles)
        group = rising // EACH
        count = EACH * (group * (group + 1) // 2) + rising % EACH * (group + 1)
        count += (block - rising) * tiles
    return count


@triton.jit
def _block(x, first, line, block, blocks, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
           CAUSAL: tl.constexpr):  # fmt: skip
    """Return where blocks begin; x begins with the block of number ``first``."""
    of_line = _before(blocks, tiles, ROWS, COLUMNS, CAUSAL)
    at = (line - first // blocks) * of_line
    at += _before(block, tiles, ROWS, COLUMNS, CAUSAL)
    at -= _before(first % blocks, tiles, ROWS, COLUMNS, CAUSAL)
    return x + at.to(tl.int64) * (ROWS * COLUMNS)


@triton.jit
def _tile(x, first, line, block, tile, blocks, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
          CAUSAL: tl.constexpr):  # fmt: skip
    """Return the places of a tile of a block."""
    begin = _block(x, first, line, block, blocks, tiles, ROWS, COLUMNS, CAUSAL)
    begin += tl.cast(tile, tl.int64) * (ROWS * COLUMNS)
    return begin + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def _held(high, low, row, padded, WIDE: tl.constexpr):
    """Return the digits of rows."""
    at = tl.arange(0, WIDE)[None, :]
    place = row.to(tl.int64)[:, None] * padded + at
    # Behind the last number of a row are zeros up to a multiple of 128.
    if WIDE <= 128:
        x, y = tl.load(high + place), tl.load(low + place)
    else:
        inside = at < padded
        x, y = tl.load(high + place, inside, other=0), tl.load(low + place, inside, other=0)
    return x, y


@triton.jit
def _zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr):
    return tl.zeros((ROWS, COLUMNS), tl.int32 if KIND == "int8" else tl.float32)


@triton.jit
def _multiplied(xh, xl, one, high, low, units, row, padded, WIDE: tl.constexpr,
                KIND: tl.constexpr, CALM: tl.constexpr = False):  # fmt: skip
    """Return products of rows, which are digits, and of other rows; neither has two chunks.

    CALM says that no unit of the rows is above 2^88.
    """
    yh, yl = _held(high, low, row, padded, WIDE)
    other = tl.load(units + row)
    zero = _zeros(xh.shape[0], yh.shape[0], KIND)
    hh, mid, ll = _products(xh, xl, tl.trans(yh), tl.trans(yl), zero, zero, zero, KIND)
    value = _joined(hh, mid, ll)
    return value * one[:, None] * other[None, :] if CALM else _scaled(value, one, other)


@triton.jit
def _hidden(score, query, key, queries, keys, CAUSAL: tl.constexpr):
    """Return scores, of which those that a row does not see are -inf."""
    inside = (query < queries)[:, None] & (key < keys)[None, :]
    if CAUSAL:
        inside = inside & (key[None, :] <= query[:, None])
    return tl.where(inside, score, float("-inf"))


@triton.jit(do_not_specialize=_SIZES)
def attention_scores(qh, ql, uq, kh, kl, uk, x, tops, largest, factor, first, queries, keys,
                     blocks, sharing, padded, parts, CAUSAL: tl.constexpr, KIND: tl.constexpr,
                     ROWS: tl.constexpr, LOG: tl.constexpr, WIDE: tl.constexpr,
                     PASS: tl.constexpr):  # fmt: skip
    """Write scores less the largest of their row, and that.

    Of a block, ``parts`` programs have some tiles each. If there are several, those of PASS "top"
    leave the largest scores in ``tops`` for those of "less".
    """
    padded = padded // 128 * 128
    COLUMNS: tl.constexpr = 1 << LOG
    unit = first + tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    line, block = unit // blocks, unit % blocks
    tiles = tl.cdiv(keys, COLUMNS)
    share = tl.cdiv(tiles, parts)
    end = tl.minimum(part * share + share, _seen(block, tiles, ROWS, COLUMNS, CAUSAL))
    query = block * ROWS + tl.arange(0, ROWS)
    row = line * queries + tl.minimum(query, queries - 1)
    xh, xl = _held(qh, ql, row, padded, WIDE)
    one = tl.load(uq + row)
    of_keys = line // sharing * keys
    # Of the first tiles every row sees every key. Rows behind the last one see none.
    plain = keys
    if CAUSAL:
        plain = tl.minimum(keys, block * ROWS + 1)
    if (block * ROWS + ROWS > queries) | (tl.max(one, 0) > 2.0**88):
        plain = 0
    plain = tl.maximum(tl.minimum(plain // COLUMNS, end), part * share)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    if PASS != "less":
        for tile in range(part * share, plain):
            column = of_keys + tile * COLUMNS + tl.arange(0, COLUMNS)
            score = _multiplied(xh, xl, one, kh, kl, uk, column, padded, WIDE, KIND, True) * factor
            top = tl.maximum(top, tl.max(score, 1))
        for tile in range(plain, end):
            key = tile * COLUMNS + tl.arange(0, COLUMNS)
            column = of_keys + tl.minimum(key, keys - 1)
            score = _multiplied(xh, xl, one, kh, kl, uk, column, padded, WIDE, KIND) * factor
            score = _hidden(score, query, key, queries, keys, CAUSAL)
            top = tl.maximum(top, tl.max(score, 1))
    places = tops + (unit - first) * ROWS + tl.arange(0, ROWS)
    several = tl.num_programs(0) // parts * ROWS
    if PASS == "top":
        tl.store(places + part * several, top)
    else:
        if PASS == "less":
            for other in range(parts):
                top = tl.maximum(top, tl.load(places + other * several))
        top = tl.where(top == float("-inf"), 0.0, top)
        if part == 0:
            tl.store(largest + row, top, query < queries)
        for tile in range(part * share, plain):
            column = of_keys + tile * COLUMNS + tl.arange(0, COLUMNS)
            score = _multiplied(xh, xl, one, kh, kl, uk, column, padded, WIDE, KIND, True) * factor
            to = _tile(x, first, line, block, tile, blocks, tiles, ROWS, COLUMNS, CAUSAL)
            tl.store(to, score - top[:, None])
        for tile in range(plain, end):
            key = tile * COLUMNS + tl.arange(0, COLUMNS)
            column = of_keys + tl.minimum(key, keys - 1)
            score = _multiplied(xh, xl, one, kh, kl, uk, column, padded, WIDE, KIND) * factor
            to = _tile(x, first, line, block, tile, blocks, tiles, ROWS, COLUMNS, CAUSAL)
            tl.store(to, _hidden(score - top[:, None], query, key, queries, keys, CAUSAL))


@triton.jit
def _totals(sums, unit, units, chunks, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """Return sums of rows, of those of their chunks."""
    chunk = tl.arange(0, 1 << CHUNKS)[None, :]
    at = chunk * (units * ROWS) + unit * ROWS + tl.arange(0, ROWS)[:, None]
    return _tree(tl.load(sums + at, chunk < chunks, other=_minus_zero()), CHUNKS)


#: Exponentials from here on are divided by a sum from 2^-20 to 2^60 without exceptions.
_LEAST = tl.constexpr(2.0**-96)


@triton.jit
def _dividing(total):
    """Return what rows are divided by, its inverse, and whether ``_weights`` may be quick."""
    by = tl.where(total == 0, 1.0, total)
    usual = (by >= 2.0**-20) & (by <= 2.0**60)
    return by, tl.div_rn(tl.full(by.shape, 1.0, tl.float32), by), tl.min(usual.to(tl.int32), 0) == 1


@triton.jit
def _weights(e, by, inverse, quick):
    """Return exponentials over the sums of their rows, rounded to nearest.

    Two steps of Newton's method from the product with the inverse, which is rounded to nearest,
    end at the quotient rounded to nearest, if no number is too small or too large for it
    (Markstein, IBM Journal of Research and Development 34, 1990).
    """
    by = tl.broadcast_to(by[:, None], e.shape)
    inverse = tl.broadcast_to(inverse[:, None], e.shape)
    if quick:
        w = e * inverse
        w = tl.fma(tl.fma(-w, by, e), inverse, w)
        w = tl.fma(tl.fma(-w, by, e), inverse, w)
    else:
        w = tl.div_rn(e, by)
    return w


@triton.jit
def _unless_later(w, query, key, CAUSAL: tl.constexpr):
    """Clear the weights of keys that a query does not see, even if its sum is NaN."""
    if CAUSAL:
        w = tl.where(key[None, :] <= query[:, None], w, 0.0)
    return w


@triton.jit(do_not_specialize=_SIZES)
def attention_sums(e, sums, odd, slopes, weighted, gh, gl, ug, vh, vl, uv, first, queries, keys,
                   blocks, sharing, padded, chunks, CAUSAL: tl.constexpr, KIND: tl.constexpr,
                   ROWS: tl.constexpr, LOG: tl.constexpr, WIDE: tl.constexpr,
                   SLOPES: tl.constexpr, NODES: tl.constexpr, CHUNKS: tl.constexpr):  # fmt: skip
    """Sum each chunk of rows of exponentials, and note whether one of a block's is too small.

    With SLOPES, sum instead weights times their gradients, to ``weighted``, and leave these
    gradients in ``slopes``. Each is the product of a row of digits of ``gh``, ``gl`` and one of
    ``vh``, ``vl``.
    """
    padded = padded // 128 * 128
    COLUMNS: tl.constexpr = 1 << LOG
    PARTS: tl.constexpr = 1 << NODES
    number, chunk, units = _program(chunks)
    line, block = (first + number) // blocks, (first + number) % blocks
    tiles = tl.cdiv(keys, COLUMNS)
    start, end = _of_chunk(chunk, block, tiles, ROWS, COLUMNS, NODES, CAUSAL)
    query = block * ROWS + tl.arange(0, ROWS)
    if SLOPES:
        row = line * queries + tl.minimum(query, queries - 1)
        xh, xl = _held(gh, gl, row, padded, WIDE)
        one = tl.load(ug + row)
        by, inverse, quick = _dividing(_totals(sums, number, units, chunks, ROWS, CHUNKS))
        quick = quick & (tl.load(odd + tl.program_id(0)) == 0)
    small = tl.zeros((ROWS, COLUMNS), tl.int32)
    nodes = tl.broadcast_to(_minus_zero(), (ROWS, PARTS))
    for tile in range(start, end):
        key = tile * COLUMNS + tl.arange(0, COLUMNS)
        v = tl.load(_tile(e, first, line, block, tile, blocks, tiles, ROWS, COLUMNS, CAUSAL))
        if SLOPES:
            w = _unless_later(_weights(v, by, inverse, quick), query, key, CAUSAL)
            column = line // sharing * keys + tl.minimum(key, keys - 1)
            g = _multiplied(xh, xl, one, vh, vl, uv, column, padded, WIDE, KIND)
            to = _tile(slopes, first, line, block, tile, blocks, tiles, ROWS, COLUMNS, CAUSAL)
            tl.store(to, g)
            v = tl.where(w == 0, 0.0, g * w)
        else:
            small = tl.where((v == 0) | (v >= _LEAST), small, 1)
        v = tl.where((key < keys)[None, :], v, _minus_zero())
        node = tl.arange(0, PARTS)[None, :] == tile - start
        nodes = tl.where(node, _tree(v, LOG)[:, None], nodes)
    to = (weighted if SLOPES else sums) + chunk * (units * ROWS) + number * ROWS
    tl.store(to + tl.arange(0, ROWS), _tree(nodes, NODES))
    if not SLOPES:
        tl.store(odd + tl.program_id(0), tl.max(tl.max(small, 1), 0))


@triton.jit
def _codes(w, exponent, LOW: tl.constexpr):
    """Return what ``_weight_codes`` does; with LOW, units are below 1, and zeros may be less."""
    if LOW:
        bits = w.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        code = tl.where(bits >= 0x7F800000, 400 << 21, (bits >> 2) + exponent * (1 << 21))
    else:
        code = _weight_codes(w, exponent)
    return code


@triton.jit
def _slope(at, to, w, less, factor, query, key, CAUSAL: tl.constexpr):
    """Store weights, and gradients of scores in place of those of weights; return the latter."""
    w = _unless_later(w, query, key, CAUSAL)
    slope = tl.where(w == 0, 0.0, ((tl.load(to) - less[:, None]) * w) * factor)
    tl.store(at, w)
    tl.store(to, slope)
    return slope


@triton.jit
def _weighed(e, slopes, by, inverse, less, factor, exponents, query, start, end,
             QUICK: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
             COLUMNS: tl.constexpr):  # fmt: skip
    """Return the largest codes of rows in tiles of a block, and whether a slope is too large."""
    places = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    largest = tl.zeros((ROWS, COLUMNS), tl.int32)
    codes = tl.zeros((ROWS, COLUMNS), tl.int32)
    for tile in range(start, end):
        key = tile * COLUMNS + tl.arange(0, COLUMNS)
        place = tl.cast(tile, tl.int64) * (ROWS * COLUMNS) + places
        w = _weights(tl.load(e + place), by, inverse, QUICK)
        if slopes is not None:
            w = _slope(e + place, slopes + place, w, less, factor, query, key, CAUSAL)
            largest = tl.maximum(largest, w.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
        codes = tl.maximum(codes, _codes(w, tl.load(exponents + key)[None, :], QUICK))
    return tl.max(codes, 1), tl.max(tl.max(largest, 1), 0) > _LARGE


@triton.jit(do_not_specialize=_SIZES)
def attention_weights(e, sums, odd, tops, slopes, weighted, exponents, factor, first, queries, keys,
                      blocks, sharing, chunks, padded, CAUSAL: tl.constexpr, KIND: tl.constexpr,
                      ROWS: tl.constexpr, LOG: tl.constexpr, WIDE: tl.constexpr,
                      NODES: tl.constexpr, CHUNKS: tl.constexpr):  # fmt: skip
    """Find the largest code of each row and chunk of weights, and note which blocks are odd.

    With ``slopes``, turn exponentials into weights, and gradients of weights into those of scores,
    whose codes then are found. ``exponents`` are those of the units of values.
    """
    COLUMNS: tl.constexpr = 1 << LOG
    number, chunk, units = _program(chunks)
    line, block = (first + number) // blocks, (first + number) % blocks
    tiles = tl.cdiv(keys, COLUMNS)
    start, end = _of_chunk(chunk, block, tiles, ROWS, COLUMNS, NODES, CAUSAL)
    query = block * ROWS + tl.arange(0, ROWS)
    by, inverse, quick = _dividing(_totals(sums, number, units, chunks, ROWS, CHUNKS))
    quick = quick & (tl.load(odd + tl.program_id(0)) == 0)
    less = by
    if slopes is not None:
        less = _totals(weighted, number, units, chunks, ROWS, CHUNKS)
    mine = exponents + line // sharing * padded
    term = start * COLUMNS + tl.arange(0, COLUMNS << NODES)
    low = tl.max(tl.load(mine + term, term < padded, other=-1), 0) < 0
    here = _block(e, first, line, block, blocks, tiles, ROWS, COLUMNS, CAUSAL)
    if slopes is not None:
        slopes = _block(slopes, first, line, block, blocks, tiles, ROWS, COLUMNS, CAUSAL)
    if quick & low:
        top, far = _weighed(here, slopes, by, inverse, less, factor, mine, query, start, end, True,
                            CAUSAL, ROWS, COLUMNS)  # fmt: skip
    else:
        top, far = _weighed(here, slopes, by, inverse, less, factor, mine, query, start, end, False,
                            CAUSAL, ROWS, COLUMNS)  # fmt: skip
    to = tops + chunk * (units * ROWS) + number * ROWS
    tl.store(to + tl.arange(0, ROWS), top)
    tl.store(odd + tl.program_id(0), (far | (not quick)).to(tl.int32))


# Weights become digits. This takes few instructions if no weight, and no unit, is far from 1.

#: Of values whose unit is less than 2^-100 weights are zero, and others are multiplied by the unit
#: in one step: if weights are below 2^40, and their units 2^-58 or more, this changes no integer.
_LOWEST = tl.constexpr(-100)
_HIGHEST = tl.constexpr(60)
_SMALL_UNIT = tl.constexpr(-58)
_LARGE = tl.constexpr(0x53800000)  # 2^40


@triton.jit
def _found_units(tops, highest):
    """Return units of rows with these largest codes, their exponents, and whether all are near 1.

    ``highest`` is the largest exponent of the units of values.
    """
    one, unit = _weight_units(tops)
    near = tl.max(((tops != 0) & (unit < _SMALL_UNIT)).to(tl.int32), 0) == 0
    return one, unit, near & (highest <= _HIGHEST)


@triton.jit
def _near_integers(w, exponent, unit):
    """Return what ``_weight_integers`` does, if all is near 1."""
    power = tl.where(exponent < _LOWEST, 0.0, _power(tl.maximum(exponent, _LOWEST)))
    magic = tl.full(w.shape, 12582912.0 + 128.0, tl.float32)
    by = tl.broadcast_to(_power(-tl.maximum(unit, _SMALL_UNIT)), w.shape)
    return tl.fma(w * power, by, magic).to(tl.int32, bitcast=True)


@triton.jit
def _times(w, exponent, unit, high, low, right, hh, mid, ll, NEAR: tl.constexpr,
           TURNED: tl.constexpr, KIND: tl.constexpr):  # fmt: skip
    """Add products of the digits of weights and of values; with TURNED, of columns of weights."""
    whole = _near_integers(w, exponent, unit) if NEAR else _weight_integers(w, exponent, unit)
    if TURNED:
        whole = tl.trans(whole)
    upper, lower = (whole >> 8).to(tl.int8), (whole ^ 128).to(tl.int8)
    return _products(upper, lower, tl.load(high + right), tl.load(low + right), hh, mid, ll, KIND)


@triton.jit
def _values_times(e, by, inverse, exponents, unit, vh, vl, right, start, end,
                  DIVIDE: tl.constexpr, NEAR: tl.constexpr, ROWS: tl.constexpr,
                  COLUMNS: tl.constexpr, WIDE: tl.constexpr, KIND: tl.constexpr):  # fmt: skip
    """Return the whole numbers that tiles of a block of weights, or of exponentials, give."""
    places = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    hh = _zeros(ROWS, WIDE, KIND)
    mid, ll = hh, hh
    for tile in range(start, end):
        w = tl.load(e + tl.cast(tile, tl.int64) * (ROWS * COLUMNS) + places)
        if DIVIDE:
            w = _weights(w, by, inverse, NEAR)
        key = tile * COLUMNS + tl.arange(0, COLUMNS)
        hh, mid, ll = _times(w, tl.load(exponents + key)[None, :], unit[:, None], vh, vl,
                             right + key[:, None], hh, mid, ll, NEAR, False, KIND)  # fmt: skip
    return _joined(hh, mid, ll)


@triton.jit
def _query_codes(w, exponents, first, line, tile, start, end, blocks, tiles, LOW: tl.constexpr,
                 CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """Return the largest codes of the weights that some keys have in blocks."""
    codes = tl.zeros((ROWS, COLUMNS), tl.int32)
    for block in range(start, end):
        at = _tile(w, first, line, block, tile, blocks, tiles, ROWS, COLUMNS, CAUSAL)
        exponent = tl.load(exponents + block * ROWS + tl.arange(0, ROWS))
        codes = tl.maximum(codes, _codes(tl.load(at), exponent[:, None], LOW))
    return tl.max(codes, 0)


@triton.jit
def _queries_times(w, exponents, unit, vh, vl, right, first, line, tile, start, end, blocks, tiles,
                   NEAR: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
                   COLUMNS: tl.constexpr, WIDE: tl.constexpr, KIND: tl.constexpr):  # fmt: skip
    """Return the whole numbers that the tiles of some keys, of blocks of weights, give."""
    hh = _zeros(COLUMNS, WIDE, KIND)
    mid, ll = hh, hh
    for block in range(start, end):
        at = _tile(w, first, line, block, tile, blocks, tiles, ROWS, COLUMNS, CAUSAL)
        query = block * ROWS + tl.arange(0, ROWS)
        hh, mid, ll = _times(tl.load(at), tl.load(exponents + query)[:, None], unit[None, :], vh,
                             vl, right + query[:, None], hh, mid, ll, NEAR, True, KIND)  # fmt: skip
    return _joined(hh, mid, ll)


@triton.jit(do_not_specialize=_SIZES)
def attention_values(e, sums, odd, tops, exponents, vh, vl, c, totals, waiting, first, queries,
                     keys, blocks, sharing, rows, size, padded, chunks, splits, units,
                     CAUSAL: tl.constexpr, KIND: tl.constexpr, ROWS: tl.constexpr,
                     LOG: tl.constexpr, WIDE: tl.constexpr, NODES: tl.constexpr,
                     CHUNKS: tl.constexpr, LEVELS: tl.constexpr):  # fmt: skip
    """Sum rows of values times weights; of each split of the keys, of 2^LEVELS chunks, a part.

    ``e`` has exponentials, whose sums of rows go to ``totals``; or weights, if ``totals`` is None.
    c is dense: (splits, rows, size), without what is before the first block. A task has WIDE
    columns of it. In ``waiting`` each program has room for LEVELS results.
    """
    padded = padded // 128 * 128
    COLUMNS: tl.constexpr = 1 << LOG
    SIZE: tl.constexpr = ROWS * WIDE
    tiles = tl.cdiv(keys, COLUMNS)
    across = tl.cdiv(size, WIDE)
    room = waiting + tl.program_id(0).to(tl.int64) * (LEVELS * SIZE)
    room += tl.arange(0, ROWS)[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
    for task in range(tl.program_id(0), units * splits * across, tl.num_programs(0)):
        # The last blocks of a line have the most tiles: they come first.
        number = units - 1 - task // splits // across
        split = task // across % splits
        j = task % across * WIDE + tl.arange(0, WIDE)
        line, block = (first + number) // blocks, (first + number) % blocks
        query = block * ROWS + tl.arange(0, ROWS)
        row = line * queries + query
        by = tl.full((ROWS,), 1.0, tl.float32)
        inverse = by
        if totals is not None:
            total = _totals(sums, number, units, chunks, ROWS, CHUNKS)
            by, inverse = _dividing(total)[:2]
            if split + task % across == 0:
                tl.store(totals + row, total, query < queries)
        mine = exponents + line // sharing * padded
        right = (line // sharing * size + tl.minimum(j, size - 1)).to(tl.int64)[None, :] * padded
        begin = split << LEVELS
        seen = _seen(block, tiles, ROWS, COLUMNS, CAUSAL)
        count = tl.minimum(tl.cdiv(seen, 1 << NODES) - begin, 1 << LEVELS)
        found = tl.zeros((ROWS, WIDE), tl.float32)
        for q in range(count):
            chunk = begin + q
            start = chunk << NODES
            end = tl.minimum(start + (1 << NODES), seen)
            top = tl.load(tops + chunk * (units * ROWS) + number * ROWS + tl.arange(0, ROWS))
            term = start * COLUMNS + tl.arange(0, COLUMNS << NODES)
            highest = tl.max(tl.load(mine + term, term < padded, other=-1), 0)
            one, unit, near = _found_units(top, highest)
            here = _block(e, first, line, block, blocks, tiles, ROWS, COLUMNS, CAUSAL)
            if near & (tl.load(odd + number * chunks + chunk) == 0):
                value = _values_times(
                    here, by, inverse, mine, unit, vh, vl, right, start, end, totals is not None,
                    True, ROWS, COLUMNS, WIDE, KIND,
                )  # fmt: skip
            else:
                value = _values_times(
                    here, by, inverse, mine, unit, vh, vl, right, start, end, totals is not None,
                    False, ROWS, COLUMNS, WIDE, KIND,
                )  # fmt: skip
            value *= one[:, None]
            found = value if LEVELS == 0 else _taken(room, found, value, q, SIZE)
        if LEVELS > 0:
            found = _closed(room, found, tl.maximum(count, 0), SIZE)
        base = first // blocks * queries + first % blocks * ROWS
        to = c + (split * rows + row - base).to(tl.int64)[:, None] * size + j[None, :]
        tl.store(to, found.to(c.dtype.element_ty), (query < queries)[:, None] & (j < size)[None, :])
        if LEVELS > 0:
            tl.debug_barrier()


@triton.jit(do_not_specialize=_SIZES)
def attention_columns(w, odd, exponents, vh, vl, c, waiting, first, queries, keys, blocks,
                      sharing, rows, size, padded, chunks, splits, units, CAUSAL: tl.constexpr,
                      KIND: tl.constexpr, ROWS: tl.constexpr, LOG: tl.constexpr,
                      WIDE: tl.constexpr, NODES: tl.constexpr, PARTS: tl.constexpr,
                      LEVELS: tl.constexpr):  # fmt: skip
    """Sum values of queries times weights that a key has there; of each split of them, a part.

    A chunk has PARTS blocks of queries. c is dense: (splits, rows, size), of a row for each key of
    each line. A task has WIDE columns of it. In ``waiting`` each program has room for LEVELS
    results.
    """
    padded = padded // 128 * 128
    COLUMNS: tl.constexpr = 1 << LOG
    SIZE: tl.constexpr = COLUMNS * WIDE
    tiles = tl.cdiv(keys, COLUMNS)
    across = tl.cdiv(size, WIDE)
    lines = units // blocks
    room = waiting + tl.program_id(0).to(tl.int64) * (LEVELS * SIZE)
    room += tl.arange(0, COLUMNS)[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
    for task in range(tl.program_id(0), tiles * splits * lines * across, tl.num_programs(0)):
        j = task % across * WIDE + tl.arange(0, WIDE)
        line = first // blocks + task // across % lines
        split = task // across // lines % splits
        # The first keys are seen by the most queries: they come first.
        tile = task // across // lines // splits
        key = tile * COLUMNS + tl.arange(0, COLUMNS)
        mine = exponents + line * padded
        right = (line * size + tl.minimum(j, size - 1)).to(tl.int64)[None, :] * padded
        begin = split << LEVELS
        count = tl.minimum(chunks - begin, 1 << LEVELS)
        found = tl.zeros((COLUMNS, WIDE), tl.float32)
        for q in range(count):
            chunk = begin + q
            start = chunk * PARTS
            end = tl.minimum(start + PARTS, blocks)
            part = start + tl.arange(0, PARTS)
            of_keys = tl.cdiv(tiles, 1 << NODES)
            marks = odd + (line * blocks - first + part) * of_keys + (tile >> NODES)
            mark = tl.max(tl.load(marks, part < end, other=0), 0)
            if CAUSAL:
                start = tl.maximum(start, tile * COLUMNS // ROWS)
            term = chunk * PARTS * ROWS + tl.arange(0, PARTS * ROWS)
            highest = tl.max(tl.load(mine + term, term < padded, other=-1), 0)
            if highest < 0:
                top = _query_codes(w, mine, first, line, tile, start, end, blocks, tiles, True,
                                   CAUSAL, ROWS, COLUMNS)  # fmt: skip
            else:
                top = _query_codes(w, mine, first, line, tile, start, end, blocks, tiles, False,
                                   CAUSAL, ROWS, COLUMNS)  # fmt: skip
            one, unit, near = _found_units(top, highest)
            if near & (mark == 0):
                value = _queries_times(
                    w, mine, unit, vh, vl, right, first, line, tile, start, end, blocks, tiles,
                    True, CAUSAL, ROWS, COLUMNS, WIDE, KIND,
                )  # fmt: skip
            else:
                value = _queries_times(
                    w, mine, unit, vh, vl, right, first, line, tile, start, end, blocks, tiles,
                    False, CAUSAL, ROWS, COLUMNS, WIDE, KIND,
                )  # fmt: skip
            value *= one[:, None]
            found = value if LEVELS == 0 else _taken(room, found, value, q, SIZE)
        if LEVELS > 0:
            found = _closed(room, found, count, SIZE)
        row = line * keys + key
        to = c + (split * rows + row - first // blocks * keys).to(tl.int64)[:, None] * size
        tl.store(to + j[None, :], found, (key < keys)[:, None] & (j < size)[None, :])
        if LEVELS > 0:
            tl.debug_barrier()
