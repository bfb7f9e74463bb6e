# SPDX-License-Identifier: Apache-2.0
"""Exact products of docs/reproduce/contract_exact.md as Triton kernels.

``digits`` writes each chunk of a row as integers in one power of two, in two digits of 8 bits.
``exact_products`` multiplies digits, and ``exact_rows`` a few rows by a matrix, whose digits it
finds on the way. A sum of integers has no order, so tiles and tensor cores change no result.

This module imports triton, so it is itself imported when the first kernel is needed.
"""

# Triton evaluates the annotations of a kernel, so their evaluation is not postponed here.

import triton
import triton.language as tl

from pytest_udftorch.swap.contract.triton_kernels import _closed, _taken


@triton.jit
def _power(exponent):
    """Return powers of two, of exponents from -126 to 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _digits(x, BROKEN: tl.constexpr):
    """Return upper and lower digits of rows of bfloat16 numbers, and the exponent of their unit.

    The exponent is BROKEN where a number is infinite or NaN.
    """
    bits = x.to(tl.int16, bitcast=True).to(tl.int32)
    top = tl.max(bits & 0x7FFF, 1)
    # A carry out of the significand: of 255 the upper digit would be 128.
    unit = tl.where(top == 0, 0, tl.maximum((top + 1) >> 7, 1) - 141)
    broken = top >= 0x7F80
    # Two factors, because one may lie beyond the powers of float32.
    half = (-unit) >> 1
    y = (
        (bits << 16).to(tl.float32, bitcast=True)
        * _power(half)[:, None]
        * _power(-unit - half)[:, None]
    )
    # Adding 1.5 * 2^23 rounds to an integer, which then stands in the lower bits.
    whole = (y + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    whole = tl.where(broken[:, None], 0, whole)
    high = (whole + 128) >> 8
    return high, whole - (high << 8), tl.where(broken, BROKEN, unit)


@triton.jit
def _joined(hh, mid, ll):
    """Return 65536 hh + 256 mid + ll in float32, of integers below 2^24, as the contract rounds."""
    upper = hh.to(tl.int32) * 256 + mid.to(tl.int32)
    return tl.fma(upper.to(tl.float32), tl.full(upper.shape, 256.0, tl.float32), ll.to(tl.float32))


@triton.jit
def _scaled(value, one, other, BROKEN: tl.constexpr):
    """Return whole numbers times 2^one of their row and 2^other of their column, rounded once."""
    least = tl.minimum(tl.min(one, 0), tl.min(other, 0))
    most = tl.maximum(tl.max(one, 0), tl.max(other, 0))
    # Below 2^39 in magnitude, so that both products are exact.
    if (least >= -63) & (most <= 44):
        value = value * _power(one)[:, None] * _power(other)[None, :]
    else:
        both = one[:, None] + other[None, :]
        first = tl.minimum(tl.maximum(both, -126), 127)
        second = tl.minimum(tl.maximum(both - first, -126), 127)
        value = value * _power(first) * _power(second)
        broken = (one == BROKEN)[:, None] | (other == BROKEN)[None, :]
        value = tl.where(broken, float("nan"), value)
    return value


@triton.jit(do_not_specialize=["rows", "k", "padded"])
def digits(x, high, low, units, rows, k, padded, x_batch, x_row, x_k, EVEN: tl.constexpr,
           ALIGNED: tl.constexpr, BROKEN: tl.constexpr, CHUNK: tl.constexpr,
           ROWS: tl.constexpr):  # fmt: skip
    """Write rows of batches of matrices as digits, dense, with zeros from k to ``padded``.

    ``padded`` is a multiple of 128. EVEN says that k is a multiple of 16, ALIGNED that rows is:
    then loads are wide.
    """
    padded = padded // 128 * 128
    if EVEN:
        k = k // 16 * 16
    if ALIGNED:
        rows = rows // 16 * 16
    chunks = tl.cdiv(k, CHUNK)
    blocks = tl.cdiv(rows, ROWS)
    program = tl.program_id(0)
    block = (program % blocks).to(tl.int64)
    chunk = (program // blocks % chunks).to(tl.int64)
    batch = (program // blocks // chunks).to(tl.int64)
    row = block * ROWS + tl.arange(0, ROWS)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = (row < rows)[:, None]
    here = x + batch * x_batch + row[:, None] * x_row + at[None, :] * x_k
    upper, lower, unit = _digits(tl.load(here, inside & (at < k)[None, :], other=0.0), BROKEN)
    to = (batch * rows + row)[:, None] * padded + at[None, :]
    inside = inside & (at < padded)[None, :]
    tl.store(high + to, upper.to(tl.int8), inside)
    tl.store(low + to, lower.to(tl.int8), inside)
    tl.store(units + (batch * rows + row) * chunks + chunk, unit, row < rows)


@triton.jit
def _factor(x, KIND: tl.constexpr):
    if KIND == "half":
        x = x.to(tl.float16)
    elif KIND == "plain":
        x = x.to(tl.float32)
    return x


@triton.jit
def _more(x, y, acc, KIND: tl.constexpr):
    """Add a product of digits: by integers, tensor cores of 16 bits, or none."""
    if KIND == "int8":
        acc = tl.dot(x, y, acc, out_dtype=tl.int32)
    elif KIND == "half":
        acc = tl.dot(x, y, acc)
    else:
        acc = tl.dot(x, y, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["m", "n", "padded", "chunks", "batches", "splits"])
def exact_products(ah, al, ua, bh, bl, ub, c, waiting, bias, m, n, padded, chunks, batches, splits,
                   LEVELS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
                   COLUMNS: tl.constexpr, STEP: tl.constexpr, TILED: tl.constexpr,
                   KIND: tl.constexpr, BROKEN: tl.constexpr):  # fmt: skip
    """Multiply batches of matrices of digits; of each split of k, of 2^LEVELS chunks, a part.

    c is dense: (splits, batches, m, n). In ``waiting`` each program has room for LEVELS tiles. bias
    has a number for each column, or is None. TILED says that m and n are multiples of ROWS and
    COLUMNS.
    """
    padded = padded // 128 * 128
    across = tl.cdiv(n, COLUMNS)
    down = tl.cdiv(m, ROWS)
    tiles = down * across
    SIZE: tl.constexpr = ROWS * COLUMNS
    BAND: tl.constexpr = 8
    PARTS: tl.constexpr = CHUNK // STEP
    WHOLE: tl.constexpr = tl.int32 if KIND == "int8" else tl.float32
    places = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    room = waiting + tl.program_id(0).to(tl.int64) * (LEVELS * SIZE) + places
    for task in range(tl.program_id(0), tiles * batches * splits, tl.num_programs(0)):
        tile = task % tiles
        batch = (task // tiles % batches).to(tl.int64)
        split = task // tiles // batches
        # Neighbours share rows and columns, which then are in the cache.
        band = tile // (BAND * across)
        height = tl.minimum(down - band * BAND, BAND)
        i = (band * BAND + tile % (BAND * across) % height) * ROWS + tl.arange(0, ROWS)
        j = tile % (BAND * across) // height * COLUMNS + tl.arange(0, COLUMNS)
        row = batch * m + (i if TILED else i % m)
        column = batch * n + (j if TILED else j % n)
        first = split << LEVELS
        count = tl.minimum(chunks - first, 1 << LEVELS)
        at = tl.arange(0, STEP) + first * CHUNK
        left = row[:, None] * padded + at[None, :]
        right = column[None, :] * padded + at[:, None]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        steps = tl.cdiv(tl.minimum(padded - first * CHUNK, count * CHUNK), STEP)
        for q in range(count):
            hh = tl.zeros((ROWS, COLUMNS), WHOLE)
            mid = tl.zeros((ROWS, COLUMNS), WHOLE)
            ll = tl.zeros((ROWS, COLUMNS), WHOLE)
            for _s in range(tl.minimum(PARTS, steps - q * PARTS)):
                xh = _factor(tl.load(ah + left), KIND)
                yh = _factor(tl.load(bh + right), KIND)
                xl = _factor(tl.load(al + left), KIND)
                yl = _factor(tl.load(bl + right), KIND)
                hh = _more(xh, yh, hh, KIND)
                mid = _more(xh, yl, mid, KIND)
                mid = _more(xl, yh, mid, KIND)
                ll = _more(xl, yl, ll, KIND)
                left += STEP
                right += STEP
            one = tl.load(ua + row * chunks + first + q)
            other = tl.load(ub + column * chunks + first + q)
            value = _scaled(_joined(hh, mid, ll), one, other, BROKEN)
            total = value if LEVELS == 0 else _taken(room, total, value, q, SIZE)
        if LEVELS > 0:
            total = _closed(room, total, count, SIZE)
        if bias is not None:
            total += tl.load(bias + j, j < n, other=0.0).to(tl.float32)[None, :]
        to = c + (split * batches + batch) * m * n + i[:, None].to(tl.int64) * n + j[None, :]
        tl.store(to, total.to(c.dtype.element_ty), (i < m)[:, None] & (j < n)[None, :])
        if LEVELS > 0:
            tl.debug_barrier()


@triton.jit(do_not_specialize=["m", "n", "k", "chunks", "splits"])
def exact_rows(a, b, c, waiting, bias, m, n, k, chunks, splits, a_row, a_k, b_k, b_column,
               EVEN: tl.constexpr, LEVELS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
               COLUMNS: tl.constexpr, TENSOR: tl.constexpr, BROKEN: tl.constexpr):  # fmt: skip
    """Multiply up to ROWS rows by a matrix, of which each number is read once.

    c is dense: (splits, m, n). EVEN says that k is a multiple of 16, TENSOR that rows, 16 or more,
    are multiplied on tensor cores of 8 bits.
    """
    if EVEN:
        k = k // 16 * 16
    across = tl.cdiv(n, COLUMNS)
    SIZE: tl.constexpr = ROWS * COLUMNS
    split = tl.program_id(0) // across
    j = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, ROWS)
    room = waiting + tl.program_id(0).to(tl.int64) * (LEVELS * SIZE)
    room += i[None, :] * COLUMNS + tl.arange(0, COLUMNS)[:, None]
    column = tl.minimum(j, n - 1).to(tl.int64)
    first = split << LEVELS
    count = tl.minimum(chunks - first, 1 << LEVELS)
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for q in range(count):
        at = (first + q).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
        there = b + column[:, None] * b_column + at[None, :] * b_k
        yh, yl, other = _digits(tl.load(there, (at < k)[None, :], other=0.0), BROKEN)
        here = a + i[:, None] * a_row + at[None, :] * a_k
        given = tl.load(here, (i < m)[:, None] & (at < k)[None, :], other=0.0)
        xh, xl, one = _digits(given, BROKEN)
        if TENSOR:
            xh, xl = tl.trans(xh.to(tl.int8)), tl.trans(xl.to(tl.int8))
            yh, yl = yh.to(tl.int8), yl.to(tl.int8)
            hh = tl.dot(yh, xh, out_dtype=tl.int32)
            mid = tl.dot(yh, xl, out_dtype=tl.int32)
            mid = tl.dot(yl, xh, mid, out_dtype=tl.int32)
            value = _joined(hh, mid, tl.dot(yl, xl, out_dtype=tl.int32))
        else:
            whole = (yh << 8) + yl
            scale = tl.full((COLUMNS,), 256.0, tl.float32)
            value = tl.zeros((COLUMNS, ROWS), tl.float32)
            for r in tl.static_range(ROWS):
                chosen = (i == r)[:, None]
                high = tl.sum(tl.where(chosen, xh, 0), 0)[None, :]
                low = tl.sum(tl.where(chosen, xl, 0), 0)[None, :]
                upper = tl.sum(whole * high + yh * low, 1).to(tl.float32)
                found = tl.fma(upper, scale, tl.sum(yl * low, 1).to(tl.float32))
                value = tl.where((i == r)[None, :], found[:, None], value)
        value = _scaled(value, other, one, BROKEN)
        total = value if LEVELS == 0 else _taken(room, total, value, q, SIZE)
    if LEVELS > 0:
        total = _closed(room, total, count, SIZE)
    if bias is not None:
        total += tl.load(bias + j, j < n, other=0.0).to(tl.float32)[:, None]
    to = c + (split * m + i[None, :]).to(tl.int64) * n + j[:, None]
    tl.store(to, total.to(c.dtype.element_ty), (i < m)[None, :] & (j < n)[:, None])
