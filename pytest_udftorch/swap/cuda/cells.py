# SPDX-License-Identifier: Apache-2.0
"""Triton kernels of the cells of LSTM and GRU, with the gates in the order of ATen's.

This module imports triton, so it is itself imported when the first kernel is needed.
"""

# Triton evaluates the annotations of a kernel, so their evaluation is not postponed here.

import triton
import triton.language as tl

from pytest_udftorch.swap.cuda.kernels import _OPERATIONS, _exp, _launched

_tanh = _OPERATIONS["_tanh"]


@triton.jit
def _sigmoid(x, seen):
    return tl.div_rn(1.0, 1.0 + _exp(-x, seen))


@triton.jit
def _sum(x, h, of_x, of_h, at, gate, inside):
    """Return a gate before its function: what the inputs, the state and the biases give to it."""
    total = tl.load(x + at, inside, other=0.0).to(tl.float32)
    if of_x is not None:
        total += tl.load(of_x + gate, inside, other=0.0).to(tl.float32)
    total += tl.load(h + at, inside, other=0.0).to(tl.float32)
    if of_h is not None:
        total += tl.load(of_h + gate, inside, other=0.0).to(tl.float32)
    return total


@triton.jit
def _place(size, n, BLOCK: tl.constexpr):
    cell = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return cell, cell // size, cell % size, cell < n


@triton.jit(do_not_specialize=["n"])
def lstm_cell(x, h, of_x, of_h, c, hy, cy, kept, size, n, row, BLOCK: tl.constexpr):
    if row is not None:
        _launched(row, n, 0)
    cell, line, unit, inside = _place(size, n, BLOCK)
    seen = (row, inside)
    at = line * 4 * size + unit
    enters = _sigmoid(_sum(x, h, of_x, of_h, at, unit, inside), seen)
    stays = _sigmoid(_sum(x, h, of_x, of_h, at + size, unit + size, inside), seen)
    new = _tanh(_sum(x, h, of_x, of_h, at + 2 * size, unit + 2 * size, inside), seen, 1)
    leaves = _sigmoid(_sum(x, h, of_x, of_h, at + 3 * size, unit + 3 * size, inside), seen)
    now = stays * tl.load(c + cell, inside, other=0.0).to(tl.float32) + enters * new
    kind = hy.dtype.element_ty
    tl.store(hy + cell, (leaves * _tanh(now, seen, 1)).to(kind), inside)
    tl.store(cy + cell, now.to(kind), inside)
    tl.store(kept + at, enters.to(kind), inside)
    tl.store(kept + at + size, stays.to(kind), inside)
    tl.store(kept + at + 2 * size, new.to(kind), inside)
    tl.store(kept + at + 3 * size, leaves.to(kind), inside)


@triton.jit(do_not_specialize=["n"])
def lstm_cell_backward(of_h, of_c, c, cy, kept, gates, gc, size, n, row, BLOCK: tl.constexpr):
    if row is not None:
        _launched(row, n, 0)
    cell, line, unit, inside = _place(size, n, BLOCK)
    at = line * 4 * size + unit
    enters = tl.load(kept + at, inside, other=0.0).to(tl.float32)
    stays = tl.load(kept + at + size, inside, other=0.0).to(tl.float32)
    new = tl.load(kept + at + 2 * size, inside, other=0.0).to(tl.float32)
    leaves = tl.load(kept + at + 3 * size, inside, other=0.0).to(tl.float32)
    before = tl.load(c + cell, inside, other=0.0).to(tl.float32)
    bent = _tanh(tl.load(cy + cell, inside, other=0.0).to(tl.float32), (row, inside))
    slope = tl.zeros([BLOCK], tl.float32)
    if of_h is not None:
        slope += tl.load(of_h + cell, inside, other=0.0).to(tl.float32)
    of_leaves = slope * bent
    inner = slope * leaves * (1.0 - bent * bent)
    if of_c is not None:
        inner += tl.load(of_c + cell, inside, other=0.0).to(tl.float32)
    kind = gates.dtype.element_ty
    tl.store(gates + at, (inner * new * (1.0 - enters) * enters).to(kind), inside)
    tl.store(gates + at + size, (inner * before * (1.0 - stays) * stays).to(kind), inside)
    tl.store(gates + at + 2 * size, (inner * enters * (1.0 - new * new)).to(kind), inside)
    tl.store(gates + at + 3 * size, (of_leaves * (1.0 - leaves) * leaves).to(kind), inside)
    tl.store(gc + cell, (inner * stays).to(kind), inside)


@triton.jit(do_not_specialize=["n"])
def gru_cell(x, h, of_x, of_h, state, y, kept, size, n, row, BLOCK: tl.constexpr):
    if row is not None:
        _launched(row, n, 0)
    cell, line, unit, inside = _place(size, n, BLOCK)
    seen = (row, inside)
    at = line * 3 * size + unit
    resets = _sigmoid(_sum(x, h, of_x, of_h, at, unit, inside), seen)
    stays = _sigmoid(_sum(x, h, of_x, of_h, at + size, unit + size, inside), seen)
    at += 2 * size
    gate = unit + 2 * size
    of_input = tl.load(x + at, inside, other=0.0).to(tl.float32)
    of_state = tl.load(h + at, inside, other=0.0).to(tl.float32)
    if of_x is not None:
        of_input += tl.load(of_x + gate, inside, other=0.0).to(tl.float32)
        of_state += tl.load(of_h + gate, inside, other=0.0).to(tl.float32)
    new = _tanh(of_input + resets * of_state, seen, 1)
    before = tl.load(state + cell, inside, other=0.0).to(tl.float32)
    kind = y.dtype.element_ty
    tl.store(y + cell, (new + stays * (before - new)).to(kind), inside)
    to = kept + line * 5 * size + unit
    tl.store(to, resets.to(kind), inside)
    tl.store(to + size, stays.to(kind), inside)
    tl.store(to + 2 * size, new.to(kind), inside)
    tl.store(to + 3 * size, before.to(kind), inside)
    tl.store(to + 4 * size, of_state.to(kind), inside)
