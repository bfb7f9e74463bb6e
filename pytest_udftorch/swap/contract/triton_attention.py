# SPDX-License-Identifier: Apache-2.0
"""What attention in bfloat16 does between its exact products, as Triton kernels.

A program holds whole rows of scores. Sums are trees, and weights become digits as
docs/reproduce/contract_exact.md says; exponentials are the library's, between two kernels.

This module imports triton, so it is itself imported when the first kernel is needed.
"""

# Triton evaluates the annotations of a kernel, so their evaluation is not postponed here.

import triton
import triton.language as tl

from pytest_udftorch.swap.contract.triton_exact import _store_digits, _weight_digits
from pytest_udftorch.swap.contract.triton_kernels import _sums_of


@triton.jit(do_not_specialize=["rows", "n", "queries", "first"])
def attention_less(x, largest, rows, n, queries, first, factor, CAUSAL: tl.constexpr,
                   EVEN: tl.constexpr, LANES: tl.constexpr, LOG: tl.constexpr):  # fmt: skip
    """Scale rows of scores and take their largest from them, which goes to ``largest``.

    Row 0 is that of number ``first`` of heads with so many queries each. CAUSAL says that a query
    sees no later key, EVEN that n is a multiple of 16.
    """
    if EVEN:
        n = n // 16 * 16
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    term = tl.arange(0, 1 << LOG)
    inside = (row < rows)[:, None] & (term < n)[None, :]
    at = row[:, None] * n + term[None, :]
    v = tl.load(x + at, inside, other=float("-inf")) * factor
    if CAUSAL:
        v = tl.where(term[None, :] <= ((first + row) % queries)[:, None], v, float("-inf"))
    top = tl.max(v, 1)
    top = tl.where(top == float("-inf"), 0.0, top)
    tl.store(x + at, v - top[:, None], inside)
    tl.store(largest + row, top, row < rows)


@triton.jit
def _weights(e, at, inside, LOG: tl.constexpr):
    """Return the weights of rows of exponentials, and the sums of these."""
    v = tl.load(e + at, inside, other=0.0)
    total = _sums_of(v, inside, LOG)
    by = tl.where(total == 0, 1.0, total)
    return tl.div_rn(v, tl.zeros_like(v) + by[:, None]), total


@triton.jit(do_not_specialize=["rows", "n", "padded", "each"])
def attention_digits(e, exponents, high, low, units, totals, rows, n, padded, each,
                     EVEN: tl.constexpr, SLACK: tl.constexpr, CHUNK: tl.constexpr,
                     LANES: tl.constexpr, LOG: tl.constexpr):  # fmt: skip
    """Write the weights of rows of exponentials as ``digits`` does, and the rows' sums.

    So many rows, ``each``, have the values of one head. 2^LOG is not below ``padded``.
    """
    padded = padded // 128 * 128
    if EVEN:
        n = n // 16 * 16
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    term = tl.arange(0, 1 << LOG)
    inside = (row < rows)[:, None] & (term < n)[None, :]
    w, total = _weights(e, row[:, None] * n + term[None, :], inside, LOG)
    tl.store(totals + row, total, row < rows)
    inside = (row < rows)[:, None] & (term < padded)[None, :]
    exponent = tl.load(exponents + (row // each)[:, None] * padded + term[None, :], inside, other=0)
    SIZE: tl.constexpr = CHUNK if CHUNK < (1 << LOG) else 1 << LOG
    PARTS: tl.constexpr = (1 << LOG) // SIZE
    unit, whole = _weight_digits(
        tl.reshape(w, [LANES * PARTS, SIZE]), tl.reshape(exponent, [LANES * PARTS, SIZE])
    )
    whole = tl.reshape(whole, [LANES, 1 << LOG])
    to = row[:, None] * padded + term[None, :]
    _store_digits(high + to, low + to, whole, inside)
    chunk = tl.arange(0, PARTS)
    inside = (row < rows)[:, None] & (chunk * SIZE < n)[None, :]
    to = chunk[None, :] * (rows + SLACK).to(tl.int64) + row[:, None]
    tl.store(units + to, tl.reshape(unit, [LANES, PARTS]), inside)


@triton.jit(do_not_specialize=["rows", "n", "queries"])
def attention_slopes(e, g, rows, n, queries, factor, CAUSAL: tl.constexpr, EVEN: tl.constexpr,
                     LANES: tl.constexpr, LOG: tl.constexpr):  # fmt: skip
    """Turn exponentials into weights, and gradients of weights into those of scores.

    Keys without weight, and those behind a causal mask, add nothing and get nothing, whatever their
    values are.
    """
    if EVEN:
        n = n // 16 * 16
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    term = tl.arange(0, 1 << LOG)
    inside = (row < rows)[:, None] & (term < n)[None, :]
    at = row[:, None] * n + term[None, :]
    w, _ = _weights(e, at, inside, LOG)
    if CAUSAL:
        w = tl.where(term[None, :] <= (row % queries)[:, None], w, 0.0)
    v = tl.load(g + at, inside, other=0.0)
    less = _sums_of(tl.where(w == 0, 0.0, v * w), inside, LOG)
    tl.store(e + at, w, inside)
    tl.store(g + at, tl.where(w == 0, 0.0, ((v - less[:, None]) * w) * factor), inside)
