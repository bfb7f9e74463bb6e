# SPDX-License-Identifier: Apache-2.0
"""Attention in bfloat16 without a mask on a GPU: what launches which kernel.

It gives the bits of ``contract.attention``. Heads that share keys and values are rows of one
matrix. Scores are computed for some heads at once, and forward for some queries, so that they take
bounded memory; nothing of them is kept for the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pytest_udftorch.swap.contract import cuda_exact
from pytest_udftorch.swap.contract.cuda_exact import CHUNK, PAD, Digits, Values
from pytest_udftorch.swap.contract.cuda_sums import log2
from pytest_udftorch.swap.contract.launches import launch
from pytest_udftorch.swap.overrides.tape import recording

#: Rows of scores that a program holds have so many terms at most, as a power of two.
_LONGEST: Final = 13

#: Scores that are in memory at once, if a head has no more.
SCORES: Final = 1 << 26

#: Terms of a warp.
_OF_WARP: Final = 9

#: A negative control changes how many scores are in memory here.
_scores = SCORES


def takes(query: Any, key: Any, mask: Any) -> bool:
    """Tell whether ``attention`` and ``gradients`` compute a call."""
    return bool(
        mask is None
        and cuda_exact.takes(query)
        and key.shape[2] <= 1 << _LONGEST
        and query.shape[3] <= CHUNK
    )


def _held(n: int) -> tuple[int, dict[str, Any], int]:
    """Return how many rows a program holds, the constants that say so, and its warps."""
    log = max(log2(n), log2(PAD))
    lanes = 1 << max(0, _OF_WARP + 2 - log)
    constants = {"EVEN": n % 16 == 0, "LANES": lanes, "LOG": log}
    return lanes, constants, 1 << min(4, max(2, log - _OF_WARP))


class _Problem:
    """Matrices of the heads of keys and values, of which each has rows of some heads of queries.

    Args:
        query: (samples, heads, queries, size) in bfloat16.
        key: (samples, heads or a divisor of it, keys, size).
        value: as ``key``.
        causal: whether a query sees no later key.
        factor: of scores.
    """

    def __init__(self, query: Any, key: Any, value: Any, causal: bool, factor: float) -> None:
        self.matrices = key.shape[0] * key.shape[1]
        self.queries, self.keys, self.size = query.shape[2], key.shape[2], query.shape[3]
        self.sharing = query.shape[1] // key.shape[1]
        self.rows = self.sharing * self.queries
        self.query = self.folded(query)
        self.key, self.value = (
            t.reshape(self.matrices, self.keys, self.size) for t in (key, value)
        )
        self.causal, self.factor = causal, float(factor)

    def folded(self, x: Any) -> Any:
        """Return heads of queries as rows of the matrices that they share."""
        return x.reshape(self.matrices, self.rows, self.size)

    def heads(self, least: int) -> Iterator[slice]:
        """Yield which matrices are computed at once; each has ``least`` scores or more."""
        step = max(1, _scores // max(1, least * self.keys))
        for first in range(0, self.matrices, step):
            yield slice(first, min(first + step, self.matrices))

    def blocks(self) -> Iterator[slice]:
        """Yield which rows of a matrix are computed at once."""
        step = max(1, min(self.rows, _scores // self.keys))
        for first in range(0, self.rows, step):
            yield slice(first, min(first + step, self.rows))

    def turns(self, least: int) -> list[slice]:
        """Return ``heads``; what takes several turns is not recorded, which would hold them all."""
        found = list(self.heads(least))
        tapes = recording()
        if tapes is not None and len(found) * len(list(self.blocks())) > 1:
            tapes.refuse(b"attention in several turns")
        return found

    def exponentials(self, query: Any, keys: Digits, first: int) -> tuple[Any, Any]:
        """Return e to the scores less the largest of their row, and that.

        Args:
            query: some rows of matrices; more than one matrix has all of its rows.
            keys: their digits.
            first: the number of the first row in its matrix.
        """
        import torch

        count, rows = query.shape[:2]
        x = cuda_exact.multiplied(
            cuda_exact.digits(query), keys, (count, rows, self.keys, self.size), None, torch.float32
        )
        largest = torch.empty(count * rows, device=x.device)
        lanes, constants, warps = _held(self.keys)
        launch(
            "attention_less", -(-count * rows // lanes), (x, largest),
            (count * rows, self.keys, self.queries, first, self.factor),
            {"CAUSAL": self.causal, **constants}, warps,
        )  # fmt: skip
        return x.exp_(), largest

    def attended(self, e: Any, values: Values) -> tuple[Any, Any]:
        """Return the values that rows of exponentials attend to, and the rows' sums."""
        import torch

        count, rows = e.shape[:2]
        weights = cuda_exact.empty_digits(count * rows, self.keys, e.device)
        totals = torch.empty(count * rows, device=e.device)
        lanes, constants, warps = _held(self.keys)
        launch(
            "attention_digits", -(-count * rows // lanes),
            (e, values.exponents, *weights.parts, weights.units, totals),
            (count * rows, self.keys, weights.parts.shape[2], rows),
            {"SLACK": PAD, "CHUNK": cuda_exact.chunk(), **constants}, warps,
        )  # fmt: skip
        found = cuda_exact.multiplied(
            weights, values.digits, (count, rows, self.size, self.keys), None,
            torch.bfloat16,
        )  # fmt: skip
        return found, totals


def attention(query: Any, key: Any, value: Any, causal: bool, factor: float) -> tuple[Any, Any]:
    """Return attended values in bfloat16 and logarithms of sums, both dense.

    Args:
        query: (samples, heads, queries, size) in bfloat16.
        key: (samples, heads or a divisor of it, keys, size).
        value: as ``key``.
        causal: whether a query sees no later key.
        factor: of scores.
    """
    import torch

    p = _Problem(query, key, value, causal, factor)
    out = torch.empty(p.matrices, p.rows, p.size, dtype=query.dtype, device=query.device)
    logs = torch.empty(p.matrices, p.rows, device=query.device)
    blocks = list(p.blocks())
    for heads in p.turns(p.rows if len(blocks) == 1 else _scores):
        keys = cuda_exact.digits(p.key[heads])
        values = cuda_exact.values(p.value[heads])
        for rows in blocks:
            e, largest = p.exponentials(p.query[heads, rows], keys, rows.start)
            found, totals = p.attended(e, values)
            out[heads, rows] = found
            logs[heads, rows] = totals.log_().add_(largest).view(found.shape[:2])
    return out.view(query.shape), logs.view(query.shape[:3])


def gradients(
    grad: Any, query: Any, key: Any, value: Any, causal: bool, factor: float
) -> tuple[Any, Any, Any]:
    """Return the gradients of query, key and value in float32, of the last two for each head.

    Args:
        grad: of the attended values, like ``query``.
        query: as in ``attention``.
        key: as there.
        value: as there.
        causal: as there.
        factor: as there.
    """
    import torch

    p = _Problem(query, key, value, causal, factor)
    grads = p.folded(grad)
    of_query = torch.empty(p.matrices, p.rows, p.size, device=query.device)
    shape = (p.matrices * p.sharing, p.keys, p.size)
    of_key, of_value = (torch.empty(shape, device=query.device) for _ in range(2))
    for heads in p.turns(p.rows):
        own = slice(heads.start * p.sharing, heads.stop * p.sharing)
        of_query[heads], of_key[own], of_value[own] = _block(p, heads, grads)
    return (
        of_query.view(query.shape),
        of_key.view(*query.shape[:2], *key.shape[2:]),
        of_value.view(*query.shape[:2], *key.shape[2:]),
    )


def _block(p: _Problem, heads: slice, grads: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of some matrices; those of keys and values for each head of queries."""
    query, key, grad = p.query[heads], p.key[heads], grads[heads]
    e, _ = p.exponentials(query, cuda_exact.digits(key), 0)
    g = cuda_exact.product(grad, p.value[heads].mT, wide=True)
    lanes, constants, warps = _held(p.keys)
    rows = e.shape[0] * e.shape[1]
    launch(
        "attention_slopes", -(-rows // lanes), (e, g), (rows, p.keys, p.queries, p.factor),
        {"CAUSAL": p.causal, **constants}, warps,
    )  # fmt: skip
    # The sums over queries are those of a head.
    shape = (-1, p.queries, p.size)
    w, slopes = (t.view(-1, p.queries, p.keys).mT for t in (e, g))
    return (
        cuda_exact.weighted(g, key),
        cuda_exact.weighted(slopes, query.reshape(shape)),
        cuda_exact.weighted(w, grad.reshape(shape)),
    )
