# SPDX-License-Identifier: Apache-2.0
"""Attention as products and a softmax of docs/reproduce/contract.md."""

from __future__ import annotations

import math
from typing import Any

from pytest_udftorch.swap.contract.layouts import spreads
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.outside import declined as stock
from pytest_udftorch.swap.contract.sums import over


def taken(query: Any, key: Any, value: Any, dropout_p: float, mask: Any = None) -> bool:
    """Tell whether a call has results, no dropout inside of it, and a mask that fits."""
    return bool(
        not dropout_p
        and query.dim() == key.dim() == value.dim() == 4
        and query.numel()
        and key.numel()
        and query.shape[0] == key.shape[0] == value.shape[0]
        and key.shape[1:] == value.shape[1:]
        and query.shape[1] % key.shape[1] == 0
        and query.shape[3] == key.shape[3]
        and (
            mask is None
            or (mask.dim() in (2, 4) and spreads(mask.shape, (*query.shape[:3], key.shape[2])))
        )
    )


def _shared(x: Any, heads: int) -> Any:
    """Repeat each head of keys or values for the heads of queries that share it."""
    return x.repeat_interleave(heads // x.shape[1], 1) if heads != x.shape[1] else x


def _product(a: Any, b: Any) -> Any:
    found = contract().products(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]))
    return found.view(*a.shape[:-1], b.shape[-1])


def _scores(query: Any, key: Any, is_causal: bool, mask: Any, scale: Any) -> tuple[Any, float]:
    import torch

    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = _product(query, key.mT).mul_(factor)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores.masked_fill_(~allowed, -math.inf)
    if mask is not None:
        if mask.dtype is torch.bool:
            scores.masked_fill_(~mask, -math.inf)
        else:
            scores += mask
    return scores, factor


def _weights(scores: Any) -> tuple[Any, Any]:
    """Return the softmax of rows, and the logarithms of their sums of exponentials.

    A row in which everything is masked has weights of 0.
    """
    largest = scores.amax(-1, keepdim=True)
    largest.masked_fill_(largest == -math.inf, 0.0)
    e = (scores - largest).exp_()
    total = over(e, [-1], keep=True)
    logs = total.log().add_(largest).squeeze(-1)
    return e.div_(total.masked_fill(total == 0, 1.0)), logs


def attention(
    query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Any = None, scale: Any = None,
) -> Any:  # fmt: skip
    """Return the attended values, and the logarithms of the sums of exponentials."""
    import torch

    if not taken(query, key, value, dropout_p, attn_mask):
        return stock(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    heads = query.shape[1]
    scores = _scores(query, _shared(key, heads), is_causal, attn_mask, scale)[0]
    weights, logs = _weights(scores)
    # The layouts are those of the stock kernel, which callers that view the result rely on.
    out = torch.empty_like(query).copy_(_product(weights, _shared(value, heads)))
    return out, logs.mT.contiguous().mT


def attention_backward(  # noqa: PLR0913
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, dropout_p: float,
    is_causal: bool, *, attn_mask: Any = None, scale: Any = None,
) -> Any:  # fmt: skip
    """Return the gradients of query, key and value."""
    if not taken(query, key, value, dropout_p, attn_mask):
        return stock(
            grad_out, query, key, value, out, logsumexp, dropout_p, is_causal,
            attn_mask=attn_mask, scale=scale,
        )  # fmt: skip
    keys, values = (_shared(x, query.shape[1]) for x in (key, value))
    scores, factor = _scores(query, keys, is_causal, attn_mask, scale)
    weights = _weights(scores)[0]
    of_value = _product(weights.mT, grad_out)
    of_weights = _product(grad_out, values.mT)
    total = over(of_weights * weights, [-1], keep=True)
    of_scores = of_weights.sub_(total).mul_(weights).mul_(factor)
    found = (_product(of_scores, keys), _product(of_scores.mT, query), of_value)
    return tuple(_gathered(g, like) for g, like in zip(found, (query, key, value), strict=True))


def _gathered(gradient: Any, like: Any) -> Any:
    """Add up what heads that shared one head give it; the layout is the stock kernel's."""
    if gradient.shape != like.shape:
        gradient = over(gradient.unflatten(1, (like.shape[1], -1)), [2])
    return by_positions(gradient)


def by_positions(x: Any) -> Any:
    """Lay heads out beside each other, for each position."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)
