# SPDX-License-Identifier: Apache-2.0
"""Sums and products of docs/reproduce/contract.md as Triton kernels.

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
def _plus(x, y):
    return x + y


@triton.jit
def _tree(x, LOG: tl.constexpr):
    """Add neighbours of the last of two dimensions level by level."""
    LANES: tl.constexpr = x.shape[0]
    for level in tl.static_range(LOG):
        # Of two each. With tl.split, Triton's passes over layouts can take minutes.
        x = tl.reduce(tl.reshape(x, [LANES, 1 << (LOG - level - 1), 2]), 2, _plus)
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
    to = y + group * y_group + block * y_block + lane * y_lane
    tl.store(to, found.to(y.dtype.element_ty), lane < lanes)


@triton.jit
def _taken(room, one, acc, q, SIZE: tl.constexpr):
    """Add the sum of chunk q to the tree; return the chunk that waits in registers.

    Sums of 2, 4, 8, ... chunks wait in ``room`` for a partner of their size.
    """
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
    return one


@triton.jit
def _closed(room, one, chunks, SIZE: tl.constexpr):
    """Return the sum of a tree that so many chunks were added to."""
    total = tl.broadcast_to(_minus_zero(), one.shape)
    if (chunks & 1) == 1:
        total = one + total
    rest = chunks >> 1
    level = 0
    while rest > 0:
        if (rest & 1) == 1:
            total = tl.load(room + level * SIZE) + total
        level += 1
        rest = rest >> 1
    return total


@triton.jit
def _banded(tile, down, across):
    """Return the row and the column of a tile of down x across, in bands of eight rows.

    Neighbours share rows and columns, which then are in the cache.
    """
    BAND: tl.constexpr = 8
    band = tile // (BAND * across)
    height = tl.minimum(down - band * BAND, BAND)
    return band * BAND + tile % (BAND * across) % height, tile % (BAND * across) // height


@triton.jit(
    # Strides are: without their divisors loads are narrow.
    do_not_specialize=["m", "n", "k", "batches", "splits"],
)
def products(a, b, c, waiting, bias, m, n, k, batches, splits, a_batch, a_row, a_k, b_batch, b_k,
             b_column, LEVELS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
             COLUMNS: tl.constexpr, STEP: tl.constexpr, WHOLE: tl.constexpr,
             TILED: tl.constexpr):  # fmt: skip
    """Multiply batches of matrices; of each split of k, which has 2^LEVELS chunks, a part.

    c is dense: (splits, batches, m, n). In ``waiting`` each program has room for LEVELS tiles. bias
    has a number for each column, or is None. WHOLE says that k is a multiple of STEP, TILED that m
    and n are those of ROWS and COLUMNS: then loads are wide.
    """
    across = tl.cdiv(n, COLUMNS)
    down = tl.cdiv(m, ROWS)
    tiles = down * across
    nothing = _minus_zero()
    SIZE: tl.constexpr = ROWS * COLUMNS
    PARTS: tl.constexpr = CHUNK // STEP
    places = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    room = waiting + tl.program_id(0).to(tl.int64) * (LEVELS * SIZE) + places
    for task in range(tl.program_id(0), tiles * batches * splits, tl.num_programs(0)):
        tile = task % tiles
        batch = (task // tiles % batches).to(tl.int64)
        split = (task // tiles // batches).to(tl.int64)
        up, over = _banded(tile, down, across)
        i = up * ROWS + tl.arange(0, ROWS)
        j = over * COLUMNS + tl.arange(0, COLUMNS)
        first = (split * (CHUNK << LEVELS)).to(tl.int32)
        end = tl.minimum(first.to(tl.int64) + (CHUNK << LEVELS), k).to(tl.int32)
        at = first + tl.arange(0, STEP)
        row = i if TILED else i % m
        column = j if TILED else j % n
        left = a + batch * a_batch + row[:, None].to(tl.int64) * a_row
        left += at[None, :].to(tl.int64) * a_k
        right = b + batch * b_batch + column[None, :].to(tl.int64) * b_column
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
                one = _taken(room, one, acc, s // PARTS, SIZE)
                acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        total = _closed(room, one, tl.cdiv(end - first, CHUNK), SIZE)
        if bias is not None:
            total += tl.load(bias + j, j < n, other=0.0)[None, :]
        to = c + (split * batches + batch) * m * n + i[:, None].to(tl.int64) * n + j[None, :]
        tl.store(to, total, (i < m)[:, None] & (j < n)[None, :])
        tl.debug_barrier()


# Convolutions -------------------------------------------------------------------------------


@triton.jit
def _seen(base, c, z, y, x, depth, height, width, gap_z, gap_y, gap_x,
          RANK: tl.constexpr, GAPS: tl.constexpr):  # fmt: skip
    """Load what windows see of a dense input; padding, and what is between gaps, is +0.

    c is the offset of a channel, and z, y, x are the places in the padded and spread input less the
    padding, of which the last RANK count.
    """
    inside = x >= 0
    if GAPS:
        inside = inside & (x % gap_x == 0)
        x = x // gap_x
    inside = inside & (x < width)
    at = c + x
    if RANK > 1:
        inside = inside & (y >= 0)
        if GAPS:
            inside = inside & (y % gap_y == 0)
            y = y // gap_y
        inside = inside & (y < height)
        at += y * width
    if RANK > 2:
        inside = inside & (z >= 0)
        if GAPS:
            inside = inside & (z % gap_z == 0)
            z = z // gap_z
        inside = inside & (z < depth)
        at += z * height * width
    return tl.load(base + at, inside, other=0.0)


@triton.jit(
    do_not_specialize=["m", "n", "k", "groups", "splits", "count", "w_group", "x_sample", "x_group",
                       "depth", "height", "width", "gap_z", "gap_y", "gap_x"]
)  # fmt: skip
def convolved(w, x, y, waiting, taps, places, bias, m, n, k, groups, splits, count, w_group, w_row,
              x_sample, x_group, depth, height, width, gap_z, gap_y, gap_x, RANK: tl.constexpr,
              GAPS: tl.constexpr, LINEAR: tl.constexpr, LEVELS: tl.constexpr, CHUNK: tl.constexpr,
              ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
              WHOLE: tl.constexpr):  # fmt: skip
    """Multiply rows of a weight and the windows of an input; of each split of k a part.

    y is dense: (splits, samples, groups, m, count), where n is samples times count. ``taps`` has
    for each of k the offset of the channel, the places in three directions, and the offset in the
    weight, which is k itself if LINEAR; ``places`` has for each result of a sample those in three
    directions. bias may be None. The tree is that of ``products``.
    """
    across = tl.cdiv(n, COLUMNS)
    down = tl.cdiv(m, ROWS)
    SIZE: tl.constexpr = ROWS * COLUMNS
    PARTS: tl.constexpr = CHUNK // STEP
    slots = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    room = waiting + tl.program_id(0).to(tl.int64) * (LEVELS * SIZE) + slots
    tasks = down * across * groups * splits
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        # Programs that run side by side share windows.
        i = task % down * ROWS + tl.arange(0, ROWS)
        j = task // down % across * COLUMNS + tl.arange(0, COLUMNS)
        group = (task // down // across % groups).to(tl.int64)
        split = (task // down // across // groups).to(tl.int64)
        first = (split * (CHUNK << LEVELS)).to(tl.int32)
        end = tl.minimum(first.to(tl.int64) + (CHUNK << LEVELS), k).to(tl.int32)
        column = tl.minimum(j, n - 1)
        sample = (column // count).to(tl.int64)
        place = column % count
        left = w + group * w_group + tl.minimum(i, m - 1).to(tl.int64)[:, None] * w_row
        right = (x + group * x_group + sample * x_sample)[None, :]
        p_x = tl.load(places + 2 * count + place)[None, :]
        p_y = tl.load(places + count + place)[None, :] if RANK > 1 else p_x
        p_z = tl.load(places + place)[None, :] if RANK > 2 else p_x
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        one = acc
        steps = tl.cdiv(end - first, STEP)
        for s in range(steps):
            at = first + s * STEP + tl.arange(0, STEP)
            inside = at < end
            tap = at if WHOLE else tl.minimum(at, k - 1)
            channel = tl.load(taps + tap)[:, None]
            t_x = tl.load(taps + 3 * k + tap)[:, None]
            t_y = tl.load(taps + 2 * k + tap)[:, None] if RANK > 1 else t_x
            t_z = tl.load(taps + k + tap)[:, None] if RANK > 2 else t_x
            factor = (tap if LINEAR else tl.load(taps + 4 * k + tap))[None, :]
            if WHOLE:
                f = tl.load(left + factor)
            else:
                f = tl.load(left + factor, inside[None, :], other=0.0)
            v = _seen(right, channel, p_z + t_z, p_y + t_y, p_x + t_x, depth, height, width,
                      gap_z, gap_y, gap_x, RANK, GAPS)  # fmt: skip
            if not WHOLE:
                v = tl.where(inside[:, None], v, _minus_zero())
            acc = tl.dot(f, v, acc, input_precision="ieee")
            if (s % PARTS == PARTS - 1) | (s == steps - 1):
                one = _taken(room, one, acc, s // PARTS, SIZE)
                acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        total = _closed(room, one, tl.cdiv(end - first, CHUNK), SIZE)
        if bias is not None:
            total += tl.load(bias + group * m + i, i < m, other=0.0)[:, None]
        to = y + split * groups * m * n + (sample * groups + group)[None, :] * m * count
        to += i[:, None].to(tl.int64) * count + place[None, :]
        tl.store(to, total, (i < m)[:, None] & (j < n)[None, :])
        tl.debug_barrier()


@triton.jit(
    do_not_specialize=["m", "n", "k", "batches", "groups", "splits", "x_sample", "x_group", "depth",
                       "height", "width"]
)  # fmt: skip
def convolved_weights(grad, x, y, waiting, taps, places, m, n, k, batches, groups, splits, x_sample,
                      x_group, depth, height, width, RANK: tl.constexpr, LEVELS: tl.constexpr,
                      CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                      STEP: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    """Multiply rows of a gradient and the windows of an input over the k results of a sample.

    grad is dense: (batches, m, k), and so is y: (splits, batches, m, n), where n counts channels
    and taps, and batches samples and groups. The tables are those of ``convolved``.
    """
    across = tl.cdiv(n, COLUMNS)
    down = tl.cdiv(m, ROWS)
    SIZE: tl.constexpr = ROWS * COLUMNS
    PARTS: tl.constexpr = CHUNK // STEP
    slots = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    room = waiting + tl.program_id(0).to(tl.int64) * (LEVELS * SIZE) + slots
    tasks = down * across * batches * splits
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        i = task % down * ROWS + tl.arange(0, ROWS)
        j = task // down % across * COLUMNS + tl.arange(0, COLUMNS)
        batch = (task // down // across % batches).to(tl.int64)
        split = (task // down // across // batches).to(tl.int64)
        first = (split * (CHUNK << LEVELS)).to(tl.int32)
        end = tl.minimum(first.to(tl.int64) + (CHUNK << LEVELS), k).to(tl.int32)
        tap = tl.minimum(j, n - 1)
        left = grad + (batch * m + tl.minimum(i, m - 1))[:, None] * k
        right = x + batch // groups * x_sample + batch % groups * x_group
        channel = tl.load(taps + tap)[None, :]
        t_x = tl.load(taps + 3 * n + tap)[None, :]
        t_y = tl.load(taps + 2 * n + tap)[None, :] if RANK > 1 else t_x
        t_z = tl.load(taps + n + tap)[None, :] if RANK > 2 else t_x
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        one = acc
        steps = tl.cdiv(end - first, STEP)
        for s in range(steps):
            at = first + s * STEP + tl.arange(0, STEP)
            inside = at < end
            place = at if WHOLE else tl.minimum(at, k - 1)
            p_x = tl.load(places + 2 * k + place)[:, None]
            p_y = tl.load(places + k + place)[:, None] if RANK > 1 else p_x
            p_z = tl.load(places + place)[:, None] if RANK > 2 else p_x
            if WHOLE:
                f = tl.load(left + place[None, :])
            else:
                f = tl.load(left + place[None, :], inside[None, :], other=0.0)
            v = _seen(right, channel, p_z + t_z, p_y + t_y, p_x + t_x, depth, height, width,
                      1, 1, 1, RANK, False)  # fmt: skip
            if not WHOLE:
                v = tl.where(inside[:, None], v, _minus_zero())
            acc = tl.dot(f, v, acc, input_precision="ieee")
            if (s % PARTS == PARTS - 1) | (s == steps - 1):
                one = _taken(room, one, acc, s // PARTS, SIZE)
                acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        total = _closed(room, one, tl.cdiv(end - first, CHUNK), SIZE)
        to = y + (split * batches + batch) * m * n + i[:, None].to(tl.int64) * n + j[None, :]
        tl.store(to, total, (i < m)[:, None] & (j < n)[None, :])
        tl.debug_barrier()


# Random numbers -----------------------------------------------------------------------------


@triton.jit
def _drawn(key, BLOCK: tl.constexpr):
    """Return a program's words, four for each of BLOCK counters, and which ones they are."""
    quad = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    zero = tl.zeros((BLOCK,), tl.uint32)
    w, x, y, z = tl.philox(
        tl.zeros([], tl.int64) + key, quad.to(tl.uint32), (quad >> 32).to(tl.uint32), zero, zero
    )
    # Joined twice, the last dimension is the outer one of a quad.
    word = tl.reshape(tl.join(tl.join(w, y), tl.join(x, z)), [4 * BLOCK])
    return word, tl.program_id(0).to(tl.int64) * (4 * BLOCK) + tl.arange(0, 4 * BLOCK)


@triton.jit(do_not_specialize=["n", "key"])
def words(out, a, b, n, key, KIND: tl.constexpr, BITS: tl.constexpr, WHOLE: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    """Word e of Philox-4x32 with ten rounds: word e mod 4 at the counter e / 4.

    Or the BITS upper bits of a word, as a fraction of float32: such fractions, or each times a,
    plus b, or whether it is below a. WHOLE says that n is a multiple of 4: then a thread stores
    four at once.
    """
    word, at = _drawn(key, BLOCK)
    if WHOLE:
        n = n // 4 * 4
    if KIND == "words":
        tl.store(out + at, word.to(tl.int32, bitcast=True), at < n)
    else:
        fraction = (word >> (32 - BITS)).to(tl.float32) * 2.0**-BITS
        if KIND == "uniform":
            fraction = fraction * a + b
        elif KIND == "below":
            fraction = tl.where(fraction < a, 1.0, 0.0)
        tl.store(out + at, fraction, at < n)


@triton.jit
def _noise(kept, keep, DTYPE: tl.constexpr):
    """Return one over the probability to keep, in a dtype, for what is kept, and zeros."""
    one = tl.zeros(kept.shape, tl.float32) + 1.0
    return tl.where(kept, tl.div_rn(one, one * keep).to(DTYPE).to(tl.float32), 0.0)


@triton.jit(do_not_specialize=["n", "key"])
def dropped(x, out, mask, keep, n, key, DTYPE: tl.constexpr, WHOLE: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """Drop elements, and divide others by the probability to keep them; tell which were kept."""
    word, at = _drawn(key, BLOCK)
    if WHOLE:
        n = n // 4 * 4
    kept = (word >> 8).to(tl.float32) * 2.0**-24 < keep
    found = _wide(x, at, at < n) * _noise(kept, keep, out.dtype.element_ty)
    tl.store(out + at, found.to(out.dtype.element_ty), at < n)
    tl.store(mask + at, kept, at < n)


@triton.jit(do_not_specialize=["n"])
def kept(x, out, mask, keep, n, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """Do to a gradient what ``dropped`` did to the elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    noise = _noise(tl.load(mask + at, at < n, other=0) != 0, keep, out.dtype.element_ty)
    tl.store(out + at, (_wide(x, at, at < n) * noise).to(out.dtype.element_ty), at < n)


@triton.jit(do_not_specialize=["n", "inner", "level"])
def joins(x, bits, rows, places, n, inner, level, COLUMNS: tl.constexpr):
    """Add each run of terms that joins the one before it at a bit to where that run begins.

    Terms are in the order of the rows to which they belong, and in these of their places.
    """
    across = tl.cdiv(inner, COLUMNS)
    program = tl.program_id(0).to(tl.int64)
    term = program // across
    if tl.load(bits + term) == level:
        row = tl.load(rows + term)
        # Both runs have the bits of this place above the level, and nothing else has.
        place = (tl.load(places + term) >> (level + 1)) << (level + 1)
        first = term * 0
        end = term
        while first < end:
            middle = (first + end) // 2
            of = tl.load(rows + middle)
            before = (of < row) | ((of == row) & (tl.load(places + middle) < place))
            first = tl.where(before, middle + 1, first)
            end = tl.where(before, end, middle)
        i = program % across * COLUMNS + tl.arange(0, COLUMNS)
        to = x + first * inner + i
        right = tl.load(x + term * inner + i, i < inner, other=0.0)
        tl.store(to, tl.load(to, i < inner, other=0.0) + right, i < inner)


# Single elements ----------------------------------------------------------------------------


@triton.jit
def _wide(x, at, inside):
    """Return numbers of 16 or 32 bits in float32."""
    return tl.load(x + at, inside, other=1.0).to(tl.float32)


@triton.jit
def _mapped(x, y, z, at, inside, number, KIND: tl.constexpr):
    """Return what elements become; y and z are not read where the kind takes fewer."""
    first = _wide(x, at, inside)
    if KIND == "divided":
        found = tl.div_rn(first, number)
    elif KIND == "root":
        found = tl.sqrt_rn(first)
    elif KIND == "one over the root":
        found = tl.div_rn(tl.zeros_like(first) + 1.0, tl.sqrt_rn(first))
    elif KIND == "hardsigmoid":
        found = tl.div_rn(_six(first), tl.zeros_like(first) + 6.0)
    elif KIND == "hardswish":
        found = tl.div_rn(first * _six(first), tl.zeros_like(first) + 6.0)
    elif KIND == "add":
        found = tl.fma(_wide(y, at, inside), number, first)
    elif KIND == "lerp":
        second = _wide(y, at, inside)
        d = second - first
        found = tl.where(
            tl.abs(number) < 0.5, tl.fma(number, d, first), tl.fma(number - 1.0, d, second)
        )
    elif KIND == "addcmul":
        second = _wide(y, at, inside)
        found = tl.fma(number * second, _wide(z, at, inside), first)
    else:
        second = _wide(y, at, inside)
        found = first + tl.div_rn(number * second, _wide(z, at, inside))
    return found


@triton.jit
def _six(x):
    """Return x + 3 between 0 and 6, and NaN of NaN."""
    nan: tl.constexpr = tl.PropagateNan.ALL
    return tl.minimum(tl.maximum(x + 3.0, 0.0, propagate_nan=nan), 6.0, propagate_nan=nan)


@triton.jit(do_not_specialize=["n"])
def elements(x, y, z, out, n, a, KIND: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """Map elements of one dtype with the roundings of the contract; y and z may be None."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    number = tl.full((BLOCK,), a, tl.float32)
    found = _mapped(x, y, z, at, inside, number, KIND)
    tl.store(out + at, found.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["tensors", "programs"])
def lists(table, tensors, programs, a, SAME: tl.constexpr, KIND: tl.constexpr,
          DTYPE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Map the elements of lists of tensors, a program some blocks of one.

    A row of the table has the addresses of three tensors and of the result, the number of
    elements, and the bits of the number, which is a for all tensors if SAME.
    """
    row = table + tl.program_id(0) % tensors * 6
    block = tl.program_id(0) // tensors
    if DTYPE == "float32":
        kind = tl.pointer_type(tl.float32)
    elif DTYPE == "bfloat16":
        kind = tl.pointer_type(tl.bfloat16)
    else:
        kind = tl.pointer_type(tl.float16)
    x = tl.load(row).to(kind)
    y = tl.load(row + 1).to(kind)
    z = tl.load(row + 2).to(kind)
    out = tl.load(row + 3).to(kind)
    n = tl.load(row + 4)
    own = tl.load(row + 5).to(tl.int32).to(tl.float32, bitcast=True)
    number = tl.full((BLOCK,), 0, tl.float32) + (a if SAME else own)
    while block * BLOCK < n:
        at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        found = _mapped(x, y, z, at, at < n, number, KIND)
        tl.store(out + at, found.to(out.dtype.element_ty), at < n)
        block += programs


# Norms --------------------------------------------------------------------------------------


@triton.jit
def _sums_of(x, inside, LOG: tl.constexpr):
    """Add what is inside of each row."""
    return _tree(tl.where(inside, x, _minus_zero()), LOG)


@triton.jit(do_not_specialize=["rows", "n"])
def row_parts(x, g, y, rows, n, KIND: tl.constexpr, LANES: tl.constexpr,
              LOG: tl.constexpr):  # fmt: skip
    """Compute a part of a softmax for rows that a program holds; g may be None.

    KIND "less": x less the largest. "over": x over the sum. "gradient": g less the sum of g times
    x, times x.
    """
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    term = tl.arange(0, 1 << LOG)
    inside = (row < rows)[:, None] & (term < n)[None, :]
    at = row[:, None] * n + term[None, :]
    v = tl.load(x + at, inside, other=float("-inf"))
    if KIND == "less":
        found = v - tl.max(v, 1)[:, None]
    elif KIND == "over":
        found = tl.div_rn(v, tl.zeros_like(v) + _sums_of(v, inside, LOG)[:, None])
    else:
        w = tl.load(g + at, inside, other=1.0)
        found = (w - _sums_of(w * v, inside, LOG)[:, None]) * v
    tl.store(y + at, found, inside)


@triton.jit
def _one_over_root(squares, count, eps):
    return tl.div_rn(tl.zeros_like(squares) + 1.0, tl.sqrt_rn(tl.div_rn(squares, count) + eps))


@triton.jit(do_not_specialize=["rows", "n"])
def layer_norm(x, weight, bias, y, mean, rstd, rows, n, count, eps,
               LANES: tl.constexpr, LOG: tl.constexpr):  # fmt: skip
    """Normalize rows that a program holds; weight and bias may be None."""
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    term = tl.arange(0, 1 << LOG)
    inside = (row < rows)[:, None] & (term < n)[None, :]
    at = row[:, None] * n + term[None, :]
    number = tl.full((LANES,), count, tl.float32)
    v = tl.load(x + at, inside, other=1.0)
    m = tl.div_rn(_sums_of(v, inside, LOG), number)
    d = v - m[:, None]
    r = _one_over_root(_sums_of(d * d, inside, LOG), number, eps)
    found = d * r[:, None]
    if weight is not None:
        found = found * tl.load(weight + term, term < n, other=1.0)[None, :]
    if bias is not None:
        found = found + tl.load(bias + term, term < n, other=1.0)[None, :]
    tl.store(y + at, found, inside)
    tl.store(mean + row, m, row < rows)
    tl.store(rstd + row, r, row < rows)


@triton.jit(do_not_specialize=["rows", "n"])
def layer_norm_backward(x, grad, weight, mean, rstd, y, products, rows, n, count,
                        LANES: tl.constexpr, LOG: tl.constexpr):  # fmt: skip
    """Return the gradient of rows, and products for that of the weight; one may be None."""
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    term = tl.arange(0, 1 << LOG)
    inside = (row < rows)[:, None] & (term < n)[None, :]
    at = row[:, None] * n + term[None, :]
    number = tl.full((LANES,), count, tl.float32)
    m = tl.load(mean + row, row < rows, other=1.0)[:, None]
    r = tl.load(rstd + row, row < rows, other=1.0)[:, None]
    g = tl.load(grad + at, inside, other=1.0)
    hat = (tl.load(x + at, inside, other=1.0) - m) * r
    if products is not None:
        tl.store(products + at, g * hat, inside)
    if y is not None:
        if weight is not None:
            g = g * tl.load(weight + term, term < n, other=1.0)[None, :]
        one = tl.div_rn(_sums_of(g, inside, LOG), number)[:, None]
        two = tl.div_rn(_sums_of(g * hat, inside, LOG), number)[:, None]
        tl.store(y + at, ((g - one) - hat * two) * r, inside)


@triton.jit(do_not_specialize=["n", "rows", "channels", "blocks"])
def channel_rows(x, grad, mean, rstd, out, n, rows, channels, blocks, count, KIND: tl.constexpr,
                 LANES: tl.constexpr, LOG: tl.constexpr):  # fmt: skip
    """Sum blocks of 2^LOG positions of the channels of samples: out[part, row, block].

    KIND 0: numbers. 1: squares of what is left of the mean, of which ``mean`` is count times as
    much. 2: gradients, and after them their products with normalized numbers.
    """
    block = tl.program_id(0) % blocks
    row = (tl.program_id(0) // blocks).to(tl.int64) * LANES + tl.arange(0, LANES)
    term = (block << LOG) + tl.arange(0, 1 << LOG)
    inside = (row < rows)[:, None] & (term < n)[None, :]
    at = row[:, None] * n + term[None, :]
    to = out + row * blocks + block
    v = tl.load(x + at, inside, other=1.0)
    if KIND == 0:
        tl.store(to, _sums_of(v, inside, LOG), row < rows)
    else:
        m = tl.load(mean + row % channels, row < rows, other=1.0)
        if KIND == 1:
            d = v - tl.div_rn(m, tl.full((LANES,), count, tl.float32))[:, None]
            tl.store(to, _sums_of(d * d, inside, LOG), row < rows)
        else:
            g = tl.load(grad + at, inside, other=1.0)
            r = tl.load(rstd + row % channels, row < rows, other=1.0)
            tl.store(to, _sums_of(g, inside, LOG), row < rows)
            hat = (v - m[:, None]) * r[:, None]
            tl.store(to + rows.to(tl.int64) * blocks, _sums_of(g * hat, inside, LOG), row < rows)


@triton.jit(do_not_specialize=["channels"])
def channel_statistics(total, squares, mean, rstd, running_mean, running_var, channels, count, eps,
                       keep, momentum, BLOCK: tl.constexpr):  # fmt: skip
    """Turn sums into means and reciprocal deviations, and update the running ones or neither."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    number = tl.full((BLOCK,), count, tl.float32)
    q = tl.load(squares + c, inside, other=1.0)
    m = tl.div_rn(tl.load(total + c, inside, other=1.0), number)
    tl.store(mean + c, m, inside)
    tl.store(rstd + c, _one_over_root(q, number, eps), inside)
    if running_mean is not None:
        old = tl.load(running_mean + c, inside, other=1.0)
        tl.store(running_mean + c, old * keep + m * momentum, inside)
    if running_var is not None:
        old = tl.load(running_var + c, inside, other=1.0)
        unbiased = tl.div_rn(q, number - 1.0)
        tl.store(running_var + c, old * keep + unbiased * momentum, inside)


@triton.jit
def _channel_sum(v, inside, SAMPLES: tl.constexpr, LOG: tl.constexpr):
    """Add what is inside of 2^SAMPLES samples of 2^LOG positions, first over the positions."""
    found = _tree(tl.reshape(_sums_of(v, inside, LOG), [1, 1 << SAMPLES]), SAMPLES)
    return tl.max(found, 0)  # of one


@triton.jit(do_not_specialize=["samples", "n", "channels"])
def channel_norm(x, weight, bias, running_mean, running_var, y, mean, rstd, samples, n, channels,
                 count, eps, keep, momentum, SAMPLES: tl.constexpr, LOG: tl.constexpr):  # fmt: skip
    """Normalize a channel that a program holds; what may be None is that of the kernels above."""
    c = tl.program_id(0).to(tl.int64)
    sample = tl.arange(0, 1 << SAMPLES)
    term = tl.arange(0, 1 << LOG)
    inside = (sample < samples)[:, None] & (term < n)[None, :]
    at = (sample[:, None] * channels + c) * n + term[None, :]
    v = tl.load(x + at, inside, other=1.0)
    m = tl.div_rn(_channel_sum(v, inside, SAMPLES, LOG), count)
    d = v - m
    q = _channel_sum(d * d, inside, SAMPLES, LOG)
    r = tl.div_rn(q * 0 + 1.0, tl.sqrt_rn(tl.div_rn(q, count) + eps))
    found = d * r
    if weight is not None:
        found = found * tl.load(weight + c)
    if bias is not None:
        found = found + tl.load(bias + c)
    tl.store(y + at, found, inside)
    tl.store(mean + c, m)
    tl.store(rstd + c, r)
    if running_mean is not None:
        tl.store(running_mean + c, tl.load(running_mean + c) * keep + m * momentum)
    if running_var is not None:
        unbiased = tl.div_rn(q, count - 1.0)
        tl.store(running_var + c, tl.load(running_var + c) * keep + unbiased * momentum)


@triton.jit(do_not_specialize=["samples", "n", "channels"])
def channel_norm_backward(x, grad, weight, mean, rstd, y, sums, samples, n, channels, count,
                          SAMPLES: tl.constexpr, LOG: tl.constexpr):  # fmt: skip
    """Return the gradient of a channel that a program holds, and the sums of ``channels_mapped``.

    weight and y may be None.
    """
    c = tl.program_id(0).to(tl.int64)
    sample = tl.arange(0, 1 << SAMPLES)
    term = tl.arange(0, 1 << LOG)
    inside = (sample < samples)[:, None] & (term < n)[None, :]
    at = (sample[:, None] * channels + c) * n + term[None, :]
    r = tl.load(rstd + c)
    g = tl.load(grad + at, inside, other=1.0)
    hat = (tl.load(x + at, inside, other=1.0) - tl.load(mean + c)) * r
    total = _channel_sum(g, inside, SAMPLES, LOG)
    products = _channel_sum(g * hat, inside, SAMPLES, LOG)
    tl.store(sums + c, total)
    tl.store(sums + channels + c, products)
    if y is not None:
        one = tl.div_rn(total, count)
        two = tl.div_rn(products, count)
        if weight is not None:
            r = r * tl.load(weight + c)
        tl.store(y + at, ((g - one) - hat * two) * r, inside)


@triton.jit(do_not_specialize=["size", "n", "channels"])
def channels_mapped(x, grad, mean, rstd, weight, bias, sums, y, size, n, channels, count,
                    BLOCK: tl.constexpr):  # fmt: skip
    """Normalize channels, or return the gradient of that where there is ``grad``.

    ``sums`` has a sum of gradients for each channel, then one of products. Weight and bias may be
    None.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    c = at // n % channels
    r = tl.load(rstd + c, inside, other=1.0)
    d = tl.load(x + at, inside, other=1.0) - tl.load(mean + c, inside, other=1.0)
    found = d * r
    if grad is None:
        if weight is not None:
            found = found * tl.load(weight + c, inside, other=1.0)
        if bias is not None:
            found = found + tl.load(bias + c, inside, other=1.0)
    else:
        number = tl.full((BLOCK,), count, tl.float32)
        one = tl.div_rn(tl.load(sums + c, inside, other=1.0), number)
        two = tl.div_rn(tl.load(sums + channels + c, inside, other=1.0), number)
        if weight is not None:
            r = r * tl.load(weight + c, inside, other=1.0)
        found = ((tl.load(grad + at, inside, other=1.0) - one) - found * two) * r
    tl.store(y + at, found, inside)
