# SPDX-License-Identifier: Apache-2.0
"""Products of docs/reproduce/contract.md in float32, in Gluon, for GPUs that copy asynchronously.

``copied_products`` does what ``triton_kernels.products`` does. There, a factor whose columns lie
along k, as the weights of a linear layer do, is read from shared memory by threads that wait for
one another. Here the layout of shared memory and the results of a thread fit each other, and the
copies of later steps are under way while one is multiplied.

This module imports triton, so it is itself imported when the first kernel is needed.
"""

# Gluon evaluates the annotations of a kernel, so their evaluation is not postponed here.

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

# Its name from Triton 3.9 on, and the one before.
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.jit
def _minus_zero():
    # A constant of -0.0 would become +0.
    return gl.full([], -0x80000000, gl.int32).to(gl.float32, bitcast=True)


@gluon.constexpr_function
def _shared(step, along):
    """Return the layout in shared memory of a factor of (rows, step).

    Args:
        step: how many places of k it has.
        along: whether neighbours in k are neighbours there, too. Then a thread reads four of these
            at once, and rows take turns at the banks.
    """
    if not along:
        return gl.SwizzledSharedLayout(1, 1, 1, order=[0, 1])
    fours = step // 4
    return gl.SwizzledSharedLayout(4, max(1, 8 // fours), min(8, fours), order=[1, 0])


@gluon.constexpr_function
def _copied(rows, step, along, wide, warps):
    """Return who copies what of a factor of (rows, step)."""
    each = 4 if wide else 1
    if along:
        across = min(32, step // each)
        return gl.BlockedLayout([1, each], [32 // across, across], [warps, 1], [1, 0])
    down = min(32, rows // each)
    return gl.BlockedLayout([each, 1], [down, 32 // down], [1, warps], [0, 1])


@gluon.jit
def _fours(stride, WIDE: gl.constexpr):
    """Tell the compiler that a stride is a multiple of four, where that holds."""
    return stride // 4 * 4 if WIDE else stride


@gluon.jit
def _around(at, n, WIDE: gl.constexpr):
    """Return places below n, of which those beyond the last begin anew, by fours if WIDE."""
    at = at % n
    return gl.max_contiguous(gl.multiple_of(at, 4), 4) if WIDE else at


@gluon.jit
def _addresses(x, batch, row, place, of_batch, of_row, of_k, ALONG: gl.constexpr,
               WIDE: gl.constexpr):  # fmt: skip
    """Return where the factors of a step are, (rows, step)."""
    across = gl.expand_dims(row.to(gl.int64) * _fours(of_row, WIDE and ALONG), 1)
    along = gl.expand_dims(place.to(gl.int64) * _fours(of_k, WIDE and not ALONG), 0)
    return x + batch * _fours(of_batch, WIDE) + across + along


@gluon.jit
def _fetch_both(a_part, b_part, x, y, a_place, b_place, nothing, first, end, WHOLE: gl.constexpr):
    """Copy both factors' step that begins at place ``first``, as one group of copies."""
    _fetch(a_part, x, a_place, 0.0, first, end, WHOLE)
    _fetch(b_part, y, b_place, nothing, first, end, WHOLE)
    async_copy.commit_group()


@gluon.jit
def _fetch(part, at, place, missing, first, end, WHOLE: gl.constexpr):
    """Copy a factor's step that begins at place ``first`` of k, if that is before the end."""
    if first < end:
        # Compile-time conditions and others do not mix.
        if WHOLE:  # noqa: SIM114
            _copy(part, at)
        elif first + part.shape[1] <= end:
            _copy(part, at)
        else:
            inside = gl.expand_dims(first + place < end, 0)
            part.store(gl.load(at, inside, other=missing))


@gluon.jit
def _banded(tile, down, across):
    """Return the row and the column of a tile of down x across, in bands of eight rows.

    Neighbours share rows and columns, which then are in the cache.
    """
    BAND: gl.constexpr = 8
    band = tile // (BAND * across)
    height = gl.minimum(down - band * BAND, BAND)
    return band * BAND + tile % (BAND * across) % height, tile % (BAND * across) // height


@gluon.jit
def _waited(slots, room, value, q, is_last, LEVELS: gl.constexpr, SLOTS: gl.constexpr):
    """Add the sum of chunk q to the tree; return what the last one makes.

    Sums of 1, 2, 4, ... chunks wait for a partner of their size: the small ones in ``slots``,
    others in ``room``. The last chunk takes all that wait.
    """
    moves = True
    for level in gl.static_range(SLOTS):
        if moves:
            if ((q >> level) & 1) == 1:
                value = slots.index(level).load(value.type.layout) + value
            elif not is_last:
                slots.index(level).store(value)
                moves = False
    if LEVELS > SLOTS:
        SIZE: gl.constexpr = value.shape[0] * value.shape[1]
        at = SLOTS + (q & 0)
        while moves & (at < LEVELS):
            if ((q >> at) & 1) == 1:
                value = gl.load(room + at * SIZE) + value
            elif not is_last:
                gl.store(room + at * SIZE, value)
                moves = False
            at += 1
    return value


@gluon.jit(do_not_specialize=["m", "n", "k", "batches", "splits"])
def copied_products(a, b, c, waiting, bias, m, n, k, batches, splits, a_batch, a_row, a_k, b_batch,
                    b_k, b_column, LEVELS: gl.constexpr, CHUNK: gl.constexpr, ROWS: gl.constexpr,
                    COLUMNS: gl.constexpr, STEP: gl.constexpr, STAGES: gl.constexpr,
                    SLOTS: gl.constexpr, WARPS: gl.constexpr, A_ALONG: gl.constexpr,
                    B_ALONG: gl.constexpr, A_WIDE: gl.constexpr, B_WIDE: gl.constexpr,
                    WHOLE: gl.constexpr, TILED: gl.constexpr):  # fmt: skip
    """Multiply batches of matrices; of each split of k, which has 2^LEVELS chunks, a part.

    c is dense: (splits, batches, m, n). In ``waiting`` each program has room for LEVELS tiles, of
    which it uses none of the first SLOTS. bias has a number for each column, or is None. WHOLE says
    that k is a multiple of STEP, TILED that m and n are those of ROWS and COLUMNS, ALONG that
    neighbours of a factor are so in k, and WIDE that four of them can be copied at once.
    """
    PARTS: gl.constexpr = CHUNK // STEP
    # Of a factor that lies along k, neighbouring threads read neighbouring rows.
    UP: gl.constexpr = 1 if A_ALONG else 4
    OVER: gl.constexpr = 1 if B_ALONG else 4
    tile_layout: gl.constexpr = gl.BlockedLayout(
        [UP, OVER], [4, 8], [WARPS // 2, 2] if WARPS > 2 else [WARPS, 1], [1, 0]
    )
    a_layout: gl.constexpr = _copied(ROWS, STEP, A_ALONG, A_WIDE, WARPS)
    b_layout: gl.constexpr = _copied(COLUMNS, STEP, B_ALONG, B_WIDE, WARPS)
    a_parts = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS, STEP], _shared(STEP, A_ALONG))
    b_parts = gl.allocate_shared_memory(gl.float32, [STAGES, COLUMNS, STEP], _shared(STEP, B_ALONG))
    slots = gl.allocate_shared_memory(
        gl.float32, [max(SLOTS, 1), ROWS, COLUMNS], gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
    )
    nothing = _minus_zero()
    across = gl.cdiv(n, COLUMNS)
    down = gl.cdiv(m, ROWS)
    tiles = down * across
    up = gl.arange(0, ROWS, layout=gl.SliceLayout(1, tile_layout))
    over = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, tile_layout))
    room = waiting + gl.program_id(0).to(gl.int64) * (LEVELS * ROWS * COLUMNS)
    room += gl.expand_dims(up * COLUMNS, 1) + gl.expand_dims(over, 0)
    a_place = gl.arange(0, STEP, layout=gl.SliceLayout(0, a_layout))
    b_place = gl.arange(0, STEP, layout=gl.SliceLayout(0, b_layout))
    for task in range(gl.program_id(0), tiles * batches * splits, gl.num_programs(0)):
        tile = task % tiles
        batch = (task // tiles % batches).to(gl.int64)
        split = (task // tiles // batches).to(gl.int64)
        top, left = _banded(tile, down, across)
        top *= ROWS
        left *= COLUMNS
        start = (split * (CHUNK << LEVELS)).to(gl.int32)
        end = gl.minimum(start.to(gl.int64) + (CHUNK << LEVELS), k).to(gl.int32)
        a_up = top + gl.arange(0, ROWS, layout=gl.SliceLayout(1, a_layout))
        b_over = left + gl.arange(0, COLUMNS, layout=gl.SliceLayout(1, b_layout))
        if not TILED:
            # What lies beyond the last row or column is not stored.
            a_up = _around(a_up, m, A_WIDE and not A_ALONG)
            b_over = _around(b_over, n, B_WIDE and not B_ALONG)
        x = _addresses(a, batch, a_up, start + a_place, a_batch, a_row, a_k, A_ALONG, A_WIDE)
        y = _addresses(b, batch, b_over, start + b_place, b_batch, b_column, b_k, B_ALONG, B_WIDE)
        steps = gl.cdiv(end - start, STEP)
        for early in gl.static_range(STAGES - 1):
            _fetch_both(a_parts.index(early), b_parts.index(early), x, y, a_place, b_place, nothing,
                        start + early * STEP, end, WHOLE)  # fmt: skip
            x += STEP * a_k
            y += STEP * b_k
        acc = gl.zeros((ROWS, COLUMNS), gl.float32, layout=tile_layout)
        value = acc
        for s in range(steps):
            async_copy.wait_group(STAGES - 2)
            here = s % STAGES
            u = a_parts.index(here).load(gl.DotOperandLayout(0, tile_layout, 0))
            v = b_parts.index(here).permute((1, 0)).load(gl.DotOperandLayout(1, tile_layout, 0))
            acc = gl.dot_fma(u, v, acc)
            ahead = s + STAGES - 1
            to = ahead % STAGES
            _fetch_both(a_parts.index(to), b_parts.index(to), x, y, a_place, b_place, nothing,
                        start + ahead * STEP, end, WHOLE)  # fmt: skip
            x += STEP * a_k
            y += STEP * b_k
            if (s % PARTS == PARTS - 1) | (s == steps - 1):
                value = acc
                if LEVELS > 0:
                    value = _waited(slots, room, acc, s // PARTS, s == steps - 1, LEVELS, SLOTS)
                acc = gl.zeros((ROWS, COLUMNS), gl.float32, layout=tile_layout)
        i = top + up
        j = left + over
        if bias is not None:
            value += gl.expand_dims(gl.load(bias + j, j < n, other=0.0), 0)
        to = c + (split * batches + batch) * m * n
        to += gl.expand_dims(i.to(gl.int64) * n, 1) + gl.expand_dims(j, 0)
        gl.store(to, value, gl.expand_dims(i < m, 1) & gl.expand_dims(j < n, 0))
