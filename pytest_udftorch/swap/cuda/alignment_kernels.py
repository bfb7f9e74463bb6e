# SPDX-License-Identifier: Apache-2.0
"""Triton kernels of ctc_loss: sums over all alignments, forwards and backwards.

Graves, Fernandez, Gomez, Schmidhuber: Connectionist Temporal Classification (2006), section 4. A
program has a line of the batch and all of its states: the labels, with a blank around each.

This module imports triton, so it is itself imported when the first kernel is needed.
"""

# Triton evaluates the annotations of a kernel, so their evaluation is not postponed here.

import triton
import triton.language as tl

from pytest_udftorch.swap.cuda.kernels import _ELEMENTS, _LAUNCHES, _OPERATIONS, _exp

_log = _OPERATIONS["_log"]


@triton.jit
def _counted(row, states):
    zero = tl.full([], 0, tl.int64)
    if tl.program_id(0) == 0:
        tl.atomic_add(row + _LAUNCHES, zero + 1, sem="relaxed")
    tl.atomic_add(row + _ELEMENTS, zero + states, sem="relaxed")


@triton.jit
def _label(targets, first, apart, state, states, blank):
    """Return the classes of states; those beyond the last are blanks."""
    odd = (state % 2 == 1) & (state > 0) & (state < states)
    return tl.load(targets + first + (state // 2) * apart, odd, other=blank).to(tl.int64)


@triton.jit
def _log_sum(one, two, three, seen):
    most = tl.maximum(one, tl.maximum(two, three))
    by = tl.where(most == float("-inf"), 0.0, most)
    total = _exp(one - by, seen) + _exp(two - by, seen) + _exp(three - by, seen)
    return _log(total, seen, 1) + by


@triton.jit(do_not_specialize=["steps", "size", "blank"])
def alignments(
    given, targets, firsts, lengths, labels, alpha, by_step, by_line, by_class, apart, steps, size,
    blank, row, BLOCK: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + line)
    states = 2 * tl.load(labels + line) + 1
    first = tl.load(firsts + line)
    state = tl.arange(0, BLOCK)
    inside = state < states
    if row is not None:
        _counted(row, tl.maximum(length - 1, 0) * states)
    label = _label(targets, first, apart, state, states, blank)
    skips = inside & (state >= 2) & (label != blank)
    skips &= label != _label(targets, first, apart, state - 2, states, blank)
    given += line * by_line + label * by_class
    alpha += line * steps * size + state
    emitted = tl.load(given, inside & (state < 2), other=float("-inf")).to(tl.float32)
    tl.store(alpha, emitted, state < size)
    now = emitted
    for step in range(1, length):
        tl.debug_barrier()
        before = alpha + (step - 1) * size
        two = tl.load(before - 1, inside & (state >= 1), other=float("-inf"))
        three = tl.load(before - 2, skips, other=float("-inf"))
        emitted = tl.load(given + step * by_step, inside, other=float("-inf")).to(tl.float32)
        now = _log_sum(now, two, three, (row, inside)) + emitted
        tl.store(alpha + step.to(tl.int64) * size, now, state < size)


@triton.jit(do_not_specialize=["steps", "size", "blank"])
def alignments_backward(
    given, targets, firsts, lengths, labels, alpha, beta, nll, grad, made, by_step, by_line,
    by_class, m_step, m_line, m_class, apart, steps, size, blank, row, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take from ``made`` the share that each class has in the alignments of each step."""
    line = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + line)
    states = 2 * tl.load(labels + line) + 1
    first = tl.load(firsts + line)
    state = tl.arange(0, BLOCK)
    inside = state < states
    if row is not None:
        _counted(row, length * states)
    label = _label(targets, first, apart, state, states, blank)
    skips = (state + 2 < states) & (label != blank)
    skips &= label != _label(targets, first, apart, state + 2, states, blank)
    given += line * by_line + label * by_class
    made += line * m_line
    alpha += line * steps * size + state
    beta += line * steps * size + state
    loss = tl.load(nll + line)
    weight = tl.load(grad + line)
    seen = (row, inside)
    now = tl.where(inside & (state >= states - 2), 0.0, float("-inf"))
    for back in range(0, length):
        step = (length - 1 - back).to(tl.int64)
        emitted = tl.load(given + step * by_step, inside, other=float("-inf")).to(tl.float32)
        if back > 0:
            tl.debug_barrier()
            after = beta + (step + 1) * size
            two = tl.load(after + 1, state + 1 < states, other=float("-inf"))
            three = tl.load(after + 2, skips, other=float("-inf"))
            now = _log_sum(now, two, three, seen)
        until = tl.load(alpha + step * size, inside, other=float("-inf"))
        share = _exp(until + now + loss, seen)
        # A state without any alignment.
        share = (
            tl.where((until == float("-inf")) | (now == float("-inf")) | ~inside, 0.0, share)
            * weight
        )
        blanks = tl.sum(tl.where(label == blank, share, 0.0), 0)
        tl.atomic_add(made + step * m_step + blank * m_class, -blanks, sem="relaxed")
        at = made + step * m_step + label * m_class
        tl.atomic_add(at, -share, inside & (label != blank), sem="relaxed")
        now += emitted
        tl.store(beta + step * size, now, state < size)
