# SPDX-License-Identifier: Apache-2.0
"""Exact products of docs/reproduce/contract_exact.md for GPUs of Hopper's generation, in Gluon.

``tiled_products`` does what ``triton_exact.exact_products`` does. Triton waits for each product of
integers before it begins the next; here the products of one step and the loads of later ones are
under way at once. Both digits of the columns lie one behind the other, as one factor: then a
product reads the digits of the rows once for both.

This module imports triton, so it is itself imported when the first kernel is needed.
"""

# Gluon evaluates the annotations of a kernel, so their evaluation is not postponed here.

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from pytest_udftorch.swap.contract.gluon_products import _banded

# Its name from Triton 3.8 on, and the one before.
_copy = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


def descriptor(x, rows, step):
    """Return how the kernel loads tiles of a dense matrix of bytes."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=step, element_bitwidth=8, rank=2)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, step], layout)


@gluon.jit
def _load(a, b, a_parts, b_parts, bars, stage, a_row, b_row, a_low, b_low, at, on):
    """Load the digits of one step into the buffers of a stage, if it is on."""
    ROWS: gl.constexpr = a.block_type.shape[0]
    COLUMNS: gl.constexpr = b.block_type.shape[0]
    STEP: gl.constexpr = a.block_type.shape[1]
    bar = bars.index(stage)
    mbarrier.expect(bar, 2 * (ROWS + COLUMNS) * STEP, pred=on)
    _copy(a, [a_row, at], bar, a_parts.index(2 * stage), pred=on)
    both = b_parts.index(stage)
    _copy(b, [b_row, at], bar, both.slice(0, COLUMNS), pred=on)
    _copy(b, [b_low, at], bar, both.slice(COLUMNS, COLUMNS), pred=on)
    _copy(a, [a_low, at], bar, a_parts.index(2 * stage + 1), pred=on)


@gluon.jit
def _halves(x):
    """Return the left and the right half of a tile."""
    ROWS: gl.constexpr = x.shape[0]
    HALF: gl.constexpr = x.shape[1] // 2
    return x.reshape([ROWS, 2, HALF]).permute([0, 2, 1]).split()


@gluon.jit
def _joined(hh, mid, ll, one, other):
    """Return sums of a chunk in float32, times the units of rows and of columns."""
    scale = gl.full(hh.shape, 256.0, gl.float32, layout=hh.type.layout)
    value = gl.fma((hh * 256 + mid).to(gl.float32), scale, ll.to(gl.float32))
    # A unit above 2^88 could overflow where that of the column makes up for it.
    vast = one > 2.0**88
    value = value * gl.expand_dims(gl.where(vast, one * 2.0**-40, one), 1)
    value = value * gl.expand_dims(other, 0)
    return value * gl.expand_dims(gl.where(vast, 2.0**40, 1.0), 1)


@gluon.jit
def _places(ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr, across):
    """Return the places of the elements of a tile in a matrix."""
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    return gl.expand_dims(row.to(gl.int64) * across, 1) + gl.expand_dims(column, 0)


@gluon.jit
def _waited(room, slots, value, q, is_last, half: gl.constexpr, LEVELS: gl.constexpr,
            SLOTS: gl.constexpr, WARPS: gl.constexpr):  # fmt: skip
    """Add the sum of chunk q, of one half of a tile, to the tree; return what the last one makes.

    Sums of 1, 2, 4, ... chunks wait for a partner of their size: the small ones in ``slots``,
    others in ``room``. The last chunk takes all that wait.
    """
    SIZE: gl.constexpr = value.shape[0] * value.shape[1]
    moves = True
    for level in gl.static_range(SLOTS):
        if moves:
            if ((q >> level) & 1) == 1:
                value = slots.index(2 * level + half).load(value.type.layout) + value
            elif not is_last:
                slots.index(2 * level + half).store(value)
                moves = False
    if LEVELS > SLOTS:
        # A layout of few addresses, by way of the slot that this sum has left.
        wide: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [WARPS, 1], [1, 0])
        layout: gl.constexpr = value.type.layout
        here = room + half * SIZE + _places(value.shape[0], value.shape[1], wide, value.shape[1])
        slot = slots.index(half)
        at = SLOTS + (q & 0)
        while moves & (at < LEVELS):
            if ((q >> at) & 1) == 1:
                slot.store(gl.load(here + at * (2 * SIZE)))
                value = slot.load(layout) + value
            elif not is_last:
                slot.store(value)
                gl.store(here + at * (2 * SIZE), slot.load(wide))
                moves = False
            at += 1
    return value


@gluon.jit
def _stored(c, value, bias, row, column, m, n):
    """Store a part of a tile, which begins at a row and a column, with what is added."""
    layout: gl.constexpr = value.type.layout
    i = row + gl.arange(0, value.shape[0], layout=gl.SliceLayout(1, layout))
    j = column + gl.arange(0, value.shape[1], layout=gl.SliceLayout(0, layout))
    if bias is not None:
        added = gl.load(bias + j, j < n, other=0.0).to(gl.float32)
        value += gl.expand_dims(added, 0)
    to = c + row.to(gl.int64) * n + column
    to += _places(value.shape[0], value.shape[1], layout, n)
    inside = gl.expand_dims(i < m, 1) & gl.expand_dims(j < n, 0)
    gl.store(to, value.to(c.dtype.element_ty), inside)


@gluon.jit(do_not_specialize=["m", "n", "padded", "chunks", "batches", "splits"])
def tiled_products(ua, ub, c, waiting, bias, a, b, m, n, padded, chunks, batches, splits,
                   LEVELS: gl.constexpr, CHUNK: gl.constexpr, STAGES: gl.constexpr,
                   SLOTS: gl.constexpr, SLACK: gl.constexpr, WARPS: gl.constexpr):  # fmt: skip
    """Multiply batches of matrices of digits; of each split of k, of 2^LEVELS chunks, a part.

    a and b are descriptors of digits: the upper ones of all rows, then the lower ones. c is dense:
    (splits, batches, m, n). In ``waiting`` each program has room for LEVELS tiles, of which it uses
    none of the first SLOTS. bias has a number for each column, or is None.
    """
    ROWS: gl.constexpr = a.block_type.shape[0]
    STEP: gl.constexpr = a.block_type.shape[1]
    COLUMNS: gl.constexpr = b.block_type.shape[0]
    PARTS: gl.constexpr = CHUNK // STEP
    HALF: gl.constexpr = COLUMNS // 2
    tile_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, 2 * COLUMNS, 32]
    )
    # Eight rows of a warp take turns at the banks.
    slot_layout: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, order=[1, 0])
    a_parts = gl.allocate_shared_memory(gl.int8, [2 * STAGES, ROWS, STEP], a.layout)
    b_parts = gl.allocate_shared_memory(gl.int8, [STAGES, 2 * COLUMNS, STEP], b.layout)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    slots = gl.allocate_shared_memory(gl.float32, [2 * max(SLOTS, 1), ROWS, HALF], slot_layout)
    for number in gl.static_range(STAGES):
        mbarrier.init(bars.index(number), count=1)
    fence_async_shared()
    across = gl.cdiv(n, COLUMNS)
    down = gl.cdiv(m, ROWS)
    tiles = down * across
    room = waiting + gl.program_id(0).to(gl.int64) * (LEVELS * ROWS * COLUMNS)
    before = 0  # steps of the tasks before this one
    for task in range(gl.program_id(0), tiles * batches * splits, gl.num_programs(0)):
        tile = task % tiles
        batch = task // tiles % batches
        split = task // tiles // batches
        top, left = _banded(tile, down, across)
        top *= ROWS
        left *= COLUMNS
        first = split << LEVELS
        count = gl.minimum(chunks - first, 1 << LEVELS)
        start = first * CHUNK
        steps = gl.cdiv(gl.minimum(padded - start, count * CHUNK), STEP)
        a_row = batch * m + top
        b_row = batch * n + left
        a_low = a_row + batches * m
        b_low = b_row + batches * n
        for early in gl.static_range(STAGES - 1):
            _load(a, b, a_parts, b_parts, bars, (before + early) % STAGES, a_row, b_row, a_low,
                  b_low, start + early * STEP, early < steps)  # fmt: skip
        # Products of the upper digits of rows, and of the lower ones, with both of columns.
        of_high = gl.zeros((ROWS, 2 * COLUMNS), gl.int32, layout=tile_layout)
        of_low = gl.zeros((ROWS, 2 * COLUMNS), gl.int32, layout=tile_layout)
        one = _halves(_halves(gl.zeros(of_low.shape, gl.float32, layout=tile_layout))[0])[0]
        other = one
        for q in range(count):
            # Units beyond the last row are those of nothing that is stored.
            i = gl.arange(0, ROWS, layout=gl.SliceLayout(1, one.type.layout))
            j = gl.arange(0, HALF, layout=gl.SliceLayout(0, one.type.layout))
            of_rows = gl.load(ua + (first + q).to(gl.int64) * (batches * m + SLACK) + a_row + i)
            of_columns = ub + (first + q).to(gl.int64) * (batches * n + SLACK) + b_row + j
            of_left, of_right = gl.load(of_columns), gl.load(of_columns + HALF)
            for part in range(gl.minimum(PARTS, steps - q * PARTS)):
                step = q * PARTS + part
                stage = (before + step) % STAGES
                mbarrier.wait(bars.index(stage), ((before + step) // STAGES) & 1)
                xh = a_parts.index(2 * stage)
                xl = a_parts.index(2 * stage + 1)
                y = b_parts.index(stage).permute((1, 0))
                more = part > 0
                of_high = warpgroup_mma(xh, y, of_high, use_acc=more, is_async=True)
                of_low = warpgroup_mma(xl, y, of_low, use_acc=more, is_async=True)
                # The products of the step before have ended, so that its buffers are free.
                of_high, of_low = warpgroup_mma_wait(2, deps=(of_high, of_low))
                ahead = step + STAGES - 1
                _load(a, b, a_parts, b_parts, bars, (before + ahead) % STAGES, a_row, b_row,
                      a_low, b_low, start + ahead * STEP, ahead < steps)  # fmt: skip
            of_high, of_low = warpgroup_mma_wait(0, deps=(of_high, of_low))
            hh, mid = _halves(of_high)
            other_mid, ll = _halves(of_low)
            mid += other_mid
            hh_left, hh_right = _halves(hh)
            mid_left, mid_right = _halves(mid)
            ll_left, ll_right = _halves(ll)
            # One half of a tile after the other takes fewer registers.
            one = _joined(hh_left, mid_left, ll_left, of_rows, of_left)
            if LEVELS > 0:
                one = _waited(room, slots, one, q, q == count - 1, 0, LEVELS, SLOTS,
                              WARPS)  # fmt: skip
            other = _joined(hh_right, mid_right, ll_right, of_rows, of_right)
            if LEVELS > 0:
                other = _waited(room, slots, other, q, q == count - 1, 1, LEVELS, SLOTS,
                                WARPS)  # fmt: skip
        here = c + (split * batches + batch).to(gl.int64) * m * n
        _stored(here, one, bias, top, left, m, n)
        _stored(here, other, bias, top, left + HALF, m, n)
        before += steps
