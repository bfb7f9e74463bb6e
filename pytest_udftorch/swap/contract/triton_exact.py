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

from pytest_udftorch.swap.contract.triton_kernels import _banded, _closed, _taken


@triton.jit
def _power(exponent):
    """Return powers of two, of exponents from -126 to 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _top(bits):
    """Return the encodings of the largest magnitudes of rows of bfloat16 numbers."""
    return tl.max(bits.to(tl.int32) & 0x7FFF, 1)


@triton.jit
def _exponent(top):
    """Return the exponents of the units of rows."""
    # A carry out of the significand: of 255 the upper digit would be 128.
    return tl.maximum((top + 1) >> 7, 1) - 141


@triton.jit
def _units(top):
    """Return the units of rows, NaN where a number is infinite or NaN, and what divides by them.

    The latter has two factors, because one may lie beyond the powers of float32.
    """
    unit = _exponent(top)
    half = unit >> 1
    one = _power(half)
    other = _power(unit - half)
    return tl.where(top >= 0x7F80, float("nan"), one * other), _power(-half), _power(half - unit)


@triton.jit
def _shifted(bits, one, other):
    """Return integers plus ``OFFSET``: numbers of bfloat16 over the units of their rows.

    Adding 1.5 * 2^23 rounds to an integer, which then stands in the lower bits. Of NaNs and
    infinities it returns something.
    """
    x = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True) * one[:, None]
    magic = tl.full(x.shape, 12582912.0 + 128.0, tl.float32)
    return tl.fma(x, tl.broadcast_to(other[:, None], x.shape), magic).to(tl.int32, bitcast=True)


#: An integer q plus this has its lower digit plus 128 in the lowest byte, and its upper one above.
OFFSET = tl.constexpr(0x4B400000 + 128)
UPPER = tl.constexpr(0x4B4000)


@triton.jit
def _store_digits(high, low, whole, inside):
    """Store the digits of integers plus ``OFFSET``."""
    tl.store(high, (whole >> 8).to(tl.int8), inside)
    tl.store(low, (whole ^ 128).to(tl.int8), inside)


@triton.jit
def _joined(hh, mid, ll):
    """Return 65536 hh + 256 mid + ll in float32, of integers below 2^24, as the contract rounds."""
    upper = hh.to(tl.int32) * 256 + mid.to(tl.int32)
    return tl.fma(upper.to(tl.float32), tl.full(upper.shape, 256.0, tl.float32), ll.to(tl.float32))


@triton.jit
def _scaled(value, one, other):
    """Return whole numbers below 2^39 times the units of rows and columns, rounded once."""
    # A unit above 2^88 could overflow where that of the column makes up for it.
    vast = one > 2.0**88
    near = tl.where(vast, one * 2.0**-40, one)
    value = value * near[:, None] * other[None, :]
    return value * tl.where(vast, 2.0**40, 1.0)[:, None]


#: The exponent of a row of values of which one is infinite or NaN.
BROKEN = tl.constexpr(1 << 20)


@triton.jit(do_not_specialize=["k", "padded"])
def value_digits(v, high, low, exponents, k, n, padded, v_batch, v_row, v_column,
                 SHORT: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Write rows of values as digits, one column behind the other, with zeros from k to ``padded``.

    Each row of n values has a unit of its own, whose exponent goes to ``exponents``. SHORT says
    that n is a multiple of 16.
    """
    padded = padded // 128 * 128
    if SHORT:
        n = n // 16 * 16
    blocks = padded // ROWS
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    row = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < k)[:, None] & (column < n)[None, :]
    at = v + batch * v_batch + row[:, None].to(tl.int64) * v_row + column[None, :] * v_column
    bits = tl.load(at, inside, other=0.0).to(tl.int16, bitcast=True)
    top = _top(bits)
    exponent = _exponent(top)
    half = -exponent >> 1
    broken = top >= 0x7F80
    bits = tl.where(broken[:, None], 0, bits)
    whole = tl.trans(_shifted(bits, _power(half), _power(-exponent - half)))
    to = (batch * n + column)[:, None] * padded + row[None, :]
    inside = (column < n)[:, None] & (row < padded)[None, :]
    _store_digits(high + to, low + to, whole, inside)
    tl.store(exponents + batch * padded + row, tl.where(broken, BROKEN, exponent))


@triton.jit
def _weight_codes(w, exponent):
    """Return the sizes of weights times the units of values, as integers in their order.

    A weight below 2^-126 is zero. The largest code is that of a weight, or of a value that has one,
    which is infinite or NaN.
    """
    bits = w.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    given = bits >= 0x00800000
    broken = (bits >= 0x7F800000) | (given & (exponent == BROKEN))
    code = tl.where(given, (bits >> 2) + exponent * (1 << 21), 0)
    return tl.where(broken, 400 << 21, code)


@triton.jit
def _weight_units(top):
    """Return the units of rows with these largest codes, NaN of the broken, and exponents."""
    top = tl.maximum((top + 0x4040) >> 21, 1)
    unit = tl.minimum(top, 268) - 141
    low = unit >> 1
    return tl.where(top > 268, float("nan"), _power(low) * _power(unit - low)), unit


@triton.jit
def _weight_integers(w, exponent, unit):
    """Return integers plus ``OFFSET`` of weights times the units of values."""
    bits = w.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    given = (bits >= 0x00800000) & (bits < 0x7F800000)
    by = tl.maximum(exponent - unit, -200)
    by = tl.where(by > 200, 0, by)
    half = by >> 1
    magic = tl.full(w.shape, 12582912.0 + 128.0, tl.float32)
    whole = tl.fma(tl.where(given, w, 0.0) * _power(half), _power(by - half), magic)
    return whole.to(tl.int32, bitcast=True)


@triton.jit
def _rows_to_digits(program, x, exponents, high, low, units, rows, k, padded, batches, x_batch,
                    x_row, x_k, EVEN: tl.constexpr, ALIGNED: tl.constexpr, SLACK: tl.constexpr,
                    CHUNK: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Do what one program of ``digits`` does."""
    padded = padded // 128 * 128
    if EVEN:
        k = k // 16 * 16
    if ALIGNED:
        rows = rows // 16 * 16
    chunks = tl.cdiv(k, CHUNK)
    blocks = tl.cdiv(rows, ROWS)
    block = (program % blocks).to(tl.int64)
    chunk = (program // blocks % chunks).to(tl.int64)
    batch = (program // blocks // chunks).to(tl.int64)
    row = block * ROWS + tl.arange(0, ROWS)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = (row < rows)[:, None]
    here = x + batch * x_batch + row[:, None] * x_row + at[None, :] * x_k
    given = tl.load(here, inside & (at < k)[None, :], other=0.0)
    if exponents is None:
        bits = given.to(tl.int16, bitcast=True)
        unit, one, other = _units(_top(bits))
        whole = _shifted(bits, one, other)
    else:
        exponent = tl.load(exponents + batch * padded + at, at < padded, other=0)
        codes = _weight_codes(given, exponent[None, :])
        unit, to_unit = _weight_units(tl.max(codes, 1))
        whole = _weight_integers(given, exponent[None, :], to_unit[:, None])
    to = (batch * rows + row)[:, None] * padded + at[None, :]
    inside = inside & (at < padded)[None, :]
    _store_digits(high + to, low + to, whole, inside)
    total = batches * rows + SLACK
    tl.store(units + chunk * total + batch * rows + row, unit, row < rows)


@triton.jit(do_not_specialize=["rows", "k", "padded", "batches"])
def digits(x, exponents, high, low, units, rows, k, padded, batches, x_batch, x_row, x_k,
           EVEN: tl.constexpr, ALIGNED: tl.constexpr, SLACK: tl.constexpr, CHUNK: tl.constexpr,
           ROWS: tl.constexpr):  # fmt: skip
    """Write rows of batches of matrices as digits, dense, with zeros from k to ``padded``.

    The matrices have bfloat16; or weights in float32, of which each is first multiplied by the unit
    of its value, if ``exponents`` has those.
    Units of one chunk lie one behind the other, and behind them is room for SLACK. ``padded`` is a
    multiple of 128. EVEN says that k is a multiple of 16, ALIGNED that rows is: then loads are
    wide.
    """
    _rows_to_digits(tl.program_id(0), x, exponents, high, low, units, rows, k, padded, batches,
                    x_batch, x_row, x_k, EVEN, ALIGNED, SLACK, CHUNK, ROWS)  # fmt: skip


@triton.jit(do_not_specialize=["x_rows", "y_rows", "k", "padded", "batches"])
def both_digits(x, x_high, x_low, x_units, y, y_high, y_low, y_units, x_rows, y_rows, k, padded,
                batches, x_batch, x_row, x_k, y_batch, y_row, y_k, EVEN: tl.constexpr,
                X_ALIGNED: tl.constexpr, Y_ALIGNED: tl.constexpr, SLACK: tl.constexpr,
                CHUNK: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Do what ``digits`` does for both factors of a product in bfloat16."""
    program = tl.program_id(0)
    first = batches * tl.cdiv(x_rows, ROWS) * tl.cdiv(k, CHUNK)
    if program < first:
        _rows_to_digits(program, x, None, x_high, x_low, x_units, x_rows, k, padded, batches,
                        x_batch, x_row, x_k, EVEN, X_ALIGNED, SLACK, CHUNK, ROWS)  # fmt: skip
    else:
        _rows_to_digits(program - first, y, None, y_high, y_low, y_units, y_rows, k, padded,
                        batches, y_batch, y_row, y_k, EVEN, Y_ALIGNED, SLACK, CHUNK,
                        ROWS)  # fmt: skip


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


@triton.jit
def _products(xh, xl, yh, yl, hh, mid, ll, KIND: tl.constexpr):
    """Add products of digits of rows and of columns."""
    xh, xl, yh, yl = _factor(xh, KIND), _factor(xl, KIND), _factor(yh, KIND), _factor(yl, KIND)
    hh = _more(xh, yh, hh, KIND)
    mid = _more(xh, yl, mid, KIND)
    mid = _more(xl, yh, mid, KIND)
    return hh, mid, _more(xl, yl, ll, KIND)


@triton.jit(do_not_specialize=["m", "n", "padded", "chunks", "batches", "splits"])
def exact_products(ah, al, ua, bh, bl, ub, c, waiting, bias, m, n, padded, chunks, batches, splits,
                   LEVELS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
                   COLUMNS: tl.constexpr, STEP: tl.constexpr, TILED: tl.constexpr,
                   KIND: tl.constexpr, SLACK: tl.constexpr):  # fmt: skip
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
    PARTS: tl.constexpr = CHUNK // STEP
    WHOLE: tl.constexpr = tl.int32 if KIND == "int8" else tl.float32
    places = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    room = waiting + tl.program_id(0).to(tl.int64) * (LEVELS * SIZE) + places
    for task in range(tl.program_id(0), tiles * batches * splits, tl.num_programs(0)):
        tile = task % tiles
        batch = (task // tiles % batches).to(tl.int64)
        split = task // tiles // batches
        up, over = _banded(tile, down, across)
        i = up * ROWS + tl.arange(0, ROWS)
        j = over * COLUMNS + tl.arange(0, COLUMNS)
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
                xh, yh = tl.load(ah + left), tl.load(bh + right)
                xl, yl = tl.load(al + left), tl.load(bl + right)
                hh, mid, ll = _products(xh, xl, yh, yl, hh, mid, ll, KIND)
                left += STEP
                right += STEP
            here = (first + q).to(tl.int64)
            one = tl.load(ua + here * (batches * m + SLACK) + row)
            other = tl.load(ub + here * (batches * n + SLACK) + column)
            value = _scaled(_joined(hh, mid, ll), one, other)
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
               COLUMNS: tl.constexpr, STEP: tl.constexpr, TENSOR: tl.constexpr):  # fmt: skip
    """Multiply up to ROWS rows by a matrix, of which each number is read from memory once.

    c is dense: (splits, m, n). EVEN says that k is a multiple of 16, TENSOR that rows, 16 or more,
    are multiplied on tensor cores of 8 bits, STEP terms at once. Otherwise STEP is CHUNK.
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
    columns = b + tl.minimum(j, n - 1).to(tl.int64)[:, None] * b_column
    rows = a + i.to(tl.int64)[:, None] * a_row
    first = split << LEVELS
    count = tl.minimum(chunks - first, 1 << LEVELS)
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    if not TENSOR:
        at = first * CHUNK + tl.arange(0, CHUNK)
        loaded = tl.load(columns + at[None, :] * b_k, (at < k)[None, :], other=0.0)
    for q in range(count):
        start = (first + q) * CHUNK
        at = start + tl.arange(0, CHUNK)
        given = tl.load(rows + at[None, :] * a_k, (i < m)[:, None] & (at < k)[None, :], other=0.0)
        unit, one, other = _units(_top(given.to(tl.int16, bitcast=True)))
        if TENSOR:
            top = tl.zeros((COLUMNS,), tl.int32)
            for s in tl.range(0, CHUNK, STEP, num_stages=1):
                part = start + s + tl.arange(0, STEP)
                y = tl.load(columns + part[None, :] * b_k, (part < k)[None, :], other=0.0)
                top = tl.maximum(top, _top(y.to(tl.int16, bitcast=True)))
            of_column, y_one, y_other = _units(top)
            hh = tl.zeros((COLUMNS, ROWS), tl.int32)
            mid = tl.zeros((COLUMNS, ROWS), tl.int32)
            ll = tl.zeros((COLUMNS, ROWS), tl.int32)
            for s in tl.range(0, CHUNK, STEP, num_stages=1):
                # What was just read is in the cache.
                part = start + s + tl.arange(0, STEP)
                inside = (part < k)[None, :]
                y = tl.load(columns + part[None, :] * b_k, inside, other=0.0)
                x = tl.load(rows + part[None, :] * a_k, (i < m)[:, None] & inside, other=0.0)
                y = _shifted(y.to(tl.int16, bitcast=True), y_one, y_other)
                x = tl.trans(_shifted(x.to(tl.int16, bitcast=True), one, other))
                xh, xl = (x >> 8).to(tl.int8), (x ^ 128).to(tl.int8)
                yh, yl = (y >> 8).to(tl.int8), (y ^ 128).to(tl.int8)
                hh = tl.dot(yh, xh, hh, out_dtype=tl.int32)
                mid = tl.dot(yh, xl, mid, out_dtype=tl.int32)
                mid = tl.dot(yl, xh, mid, out_dtype=tl.int32)
                ll = tl.dot(yl, xl, ll, out_dtype=tl.int32)
            value = _joined(hh, mid, ll)
        else:
            bits = loaded.to(tl.int16, bitcast=True)
            # The next chunk is on its way while this one is multiplied.
            at += CHUNK
            inside = at < tl.minimum(k, (first + count) * CHUNK)
            loaded = tl.load(columns + at[None, :] * b_k, inside[None, :], other=0.0)
            of_column, y_one, y_other = _units(_top(bits))
            whole = _shifted(bits, y_one, y_other)
            x = _shifted(given.to(tl.int16, bitcast=True), one, other) - OFFSET
            xh = (x + 128) >> 8
            xl = x - (xh << 8)
            scale = tl.full((COLUMNS,), 256.0, tl.float32)
            value = tl.zeros((COLUMNS, ROWS), tl.float32)
            for r in tl.static_range(ROWS):
                # Sums wrap, and what was added to digits is taken from the sums.
                chosen = (i == r)[:, None]
                high = tl.sum(tl.where(chosen, xh, 0), 0)[None, :]
                low = tl.sum(tl.where(chosen, xl, 0), 0)[None, :]
                highs, lows = tl.sum(high, 1), tl.sum(low, 1)
                upper = tl.sum(whole * high, 1) + tl.sum((whole >> 8) * low, 1)
                upper -= OFFSET * highs + UPPER * lows
                lower = tl.sum((whole & 255) * low, 1) - 128 * lows
                found = tl.fma(upper.to(tl.float32), scale, lower.to(tl.float32))
                value = tl.where((i == r)[None, :], found[:, None], value)
        value = _scaled(value, of_column, unit)
        total = value if LEVELS == 0 else _taken(room, total, value, q, SIZE)
    if LEVELS > 0:
        total = _closed(room, total, count, SIZE)
    if bias is not None:
        total += tl.load(bias + j, j < n, other=0.0).to(tl.float32)[:, None]
    to = c + (split * m + i[None, :]).to(tl.int64) * n + j[:, None]
    tl.store(to, total.to(c.dtype.element_ty), (i < m)[None, :] & (j < n)[:, None])
