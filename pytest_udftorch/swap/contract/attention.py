# SPDX-License-Identifier: Apache-2.0
"""Attention as products and a softmax of docs/reproduce/contract.md.

Of bfloat16, products of two tensors are exact, and those of weights are the weighted sums of
docs/reproduce/contract_exact.md. Scores, weights and their gradients stay in float32.

A sum over keys begins at the first key that its row sees, and not at keys that a mask hides before
it. So a sequence has the same bits wherever it lies: behind padding, behind others in a packed row,
or in a window that slides. Hidden keys behind those that a row sees add zeros at the end of the
tree, which change nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, Final

from pytest_udftorch.swap.contract import cuda_attention
from pytest_udftorch.swap.contract.layouts import spreads
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.outside import captures
from pytest_udftorch.swap.contract.outside import declined as stock
from pytest_udftorch.swap.contract.sums import over
from pytest_udftorch.swap.overrides.python_override import stock as unwatched

#: What a mask of numbers adds to a score at most to hide the key: the least number of half.
_HIDDEN: Final = -65504.0

#: So many rows are multiplied one by one, each with its own terms.
_FEW: Final = 4


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
    """Return products in float32, also of weights in float32 with values in bfloat16."""
    multiply = contract().products if a.dtype is b.dtype else contract().weighted
    found = multiply(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]))
    return found.view(*a.shape[:-1], b.shape[-1])


def _factor(query: Any, scale: Any) -> float:
    """Return what scores are multiplied by."""
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(query: Any, key: Any, is_causal: bool, mask: Any, scale: Any) -> tuple[Any, float]:
    import torch

    factor = _factor(query, scale)
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


def _exponentials(scores: Any) -> tuple[Any, Any]:
    """Return e to the scores less the largest of their row, and that, which is 0 if all are -inf.

    A row in which everything is masked has weights of 0.
    """
    largest = scores.amax(-1, keepdim=True)
    largest.masked_fill_(largest == -math.inf, 0.0)
    return (scores - largest).exp_(), largest


def _seen(e: Any, mask: Any) -> Any:
    """Return which keys each row sees; None if there is no mask.

    A key is seen if the mask allows it, or if its exponential is not zero.
    """
    import torch

    if mask is None or mask.shape[-1] < 2:
        return None
    allowed = mask if mask.dtype is torch.bool else mask > _HIDDEN
    return allowed | (e != 0)


def _first(seen: Any) -> Any:
    """Return, for each row, the first key that it sees; None if each sees the first of all."""
    import torch

    if seen is None:
        return None
    first = seen.to(torch.uint8).argmax(-1)
    return first if captures(seen) or bool(first.any()) else None


def _first_queries(seen: Any, first: Any) -> Any:
    """Return where sums over queries begin, for each key; None if they begin at the first.

    Where queries and keys are one sequence, they begin where a row's sum over keys does, unless an
    earlier query sees the key.
    """
    import torch

    if first is None or seen.shape[-2] != seen.shape[-1]:
        return None
    return torch.minimum(first, seen.mT.to(torch.uint8).argmax(-1))


def _from_first(rows: Any, first: Any) -> Any:
    """Return rows that begin at their first term, with zeros behind the last."""
    import torch

    size = rows.shape[-1]
    places = torch.arange(size, device=rows.device) + first.unsqueeze(-1)
    found = rows.gather(-1, places.clamp(max=size - 1))
    return found.masked_fill_(places >= size, 0.0)


def _sum(rows: Any, first: Any) -> Any:
    return over(rows if first is None else _from_first(rows, first), [-1], keep=True)


def _product_from(a: Any, b: Any, first: Any) -> Any:
    """Return products of matrices in which each row of ``a`` begins at its first term.

    Rows that begin at the same term are multiplied together.
    """
    if first is None:
        return _product(a, b)
    if a.shape[-2] <= _FEW or captures(a):
        return _products_of_rows(a, b, first)
    flat_a, flat_b = a.flatten(0, 1), b.flatten(0, 1)
    flat_first = first.flatten(0, 1)
    found = a.new_empty(*flat_a.shape[:-1], b.shape[-1])
    for start in flat_first.unique().tolist():
        chosen = flat_first == start
        if bool((chosen == chosen[:1]).all()):
            parts = [slice(None)]
        else:
            parts = [slice(n, n + 1) for n in chosen.any(1).nonzero()[:, 0].tolist()]
        for part in parts:
            rows = chosen[part][0].nonzero()[:, 0]
            left = flat_a[part][:, rows, start:]
            found[part, rows] = _product(left, flat_b[part, start:])
    return found.view(*a.shape[:-1], b.shape[-1])


def _products_of_rows(a: Any, b: Any, first: Any) -> Any:
    """Return what :func:`_product_from` does, row by row, without asking for a number."""
    import torch

    size = a.shape[-1]
    places = (torch.arange(size, device=a.device) + first.unsqueeze(-1)).clamp_(max=size - 1)
    index = places.unsqueeze(-1).expand(*places.shape, b.shape[-1])
    terms = b.unsqueeze(-3).expand(*places.shape[:-1], *b.shape[-2:]).gather(-2, index)
    return _product(_from_first(a, first).unsqueeze(-2), terms).squeeze(-2)


def attention(
    query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Any = None, scale: Any = None,
) -> Any:  # fmt: skip
    """Return the attended values, and the logarithms of the sums of exponentials, in float32."""
    import torch

    if not taken(query, key, value, dropout_p, attn_mask):
        return stock(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    if cuda_attention.takes(query, key, attn_mask):
        found, logs = cuda_attention.attention(query, key, value, is_causal, _factor(query, scale))
        return torch.empty_like(query).copy_(found), logs.mT.contiguous().mT
    heads = query.shape[1]
    scores = _scores(query, _shared(key, heads), is_causal, attn_mask, scale)[0]
    e, largest = _exponentials(scores)
    first = _first(_seen(e, attn_mask))
    total = _sum(e, first)
    logs = total.log().add_(largest).squeeze(-1)
    weights = e.div_(total.masked_fill(total == 0, 1.0))
    # The layouts are those of the stock kernel, which callers that view the result rely on.
    out = torch.empty_like(query, dtype=torch.float32)
    out.copy_(_product_from(weights, _shared(value, heads), first))
    return out, logs.mT.contiguous().mT


def attention_backward(  # noqa: PLR0913
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, dropout_p: float,
    is_causal: bool, *, attn_mask: Any = None, scale: Any = None,
) -> Any:  # fmt: skip
    """Return the gradients of query, key and value."""
    import torch

    if not taken(query, key, value, dropout_p, attn_mask):
        return stock(
            grad_out, query, key, value, out, logsumexp, dropout_p, is_causal,
            attn_mask=attn_mask, scale=scale,
        )  # fmt: skip
    if cuda_attention.takes(query, key, attn_mask):
        found = cuda_attention.gradients(
            grad_out, query, key, value, is_causal, _factor(query, scale)
        )
        return tuple(_gathered(g, like) for g, like in zip(found, (query, key, value), strict=True))
    keys, values = (_shared(x, query.shape[1]) for x in (key, value))
    scores, factor = _scores(query, keys, is_causal, attn_mask, scale)
    e = _exponentials(scores)[0]
    seen = _seen(e, attn_mask)
    first = _first(seen)
    own = _first_queries(seen, first)
    total = _sum(e, first)
    weights = e.div_(total.masked_fill(total == 0, 1.0))
    if is_causal and query.dtype is torch.bfloat16:
        weights.tril_()  # of a query whose sum is NaN, too
    of_value = _product_from(weights.mT, grad_out, own)
    of_weights = _product(grad_out, values.mT)
    unseen = weights == 0 if query.dtype is torch.bfloat16 else None
    weighted = _sum(_zeroed(of_weights * weights, unseen), first)
    of_scores = _zeroed(of_weights.sub_(weighted).mul_(weights).mul_(factor), unseen)
    of_query = _product_from(of_scores, keys, first)
    found = (of_query, _product_from(of_scores.mT, query, own), of_value)
    return tuple(_gathered(g, like) for g, like in zip(found, (query, key, value), strict=True))


#: The operators of a GPU and of a CPU that have a mask, and heads that share keys, in compiled
#: code, too.
_ON_GPUS: Final = "_scaled_dot_product_cudnn_attention"
_ON_CPUS: Final = "_scaled_dot_product_flash_attention_for_cpu"


def added(mask: Any, query: Any) -> Any:
    """Return a mask as numbers that are added to scores, as torch makes them of truth values."""
    import torch

    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)


def fused(
    query: Any, key: Any, value: Any, mask: Any, is_causal: bool, *, scale: Any
) -> Any:  # fmt: skip
    """Return what one operator of a GPU gives for a call that a CPU fuses.

    Args:
        query: (samples, heads, queries, size), on a GPU.
        key: (samples, heads or a divisor of it, keys, size).
        value: as ``key``.
        mask: of truth values, or of numbers to add, that can be broadcast; or None.
        is_causal: whether a query sees no later key.
        scale: of scores; None is one over the root of the size.
    """
    import torch

    if mask is not None:
        mask = added(mask, query).expand(*query.shape[:3], key.shape[2])
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    attend = getattr(torch.ops.aten, _ON_GPUS)
    return attend(query, key, value, mask, wanted, 0.0, is_causal, scale=scale)[0]


def _on_cpus(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, *, scale: Any) -> Any:
    """Return what the operator gives that torch chooses on a CPU."""
    import torch

    attend = getattr(torch.ops.aten, _ON_CPUS)
    mask = added(mask, query)
    return attend(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)[0]


class _Dropped(threading.local):
    now = False


#: Whether this thread computes weights that who asks for attention drops.
dropped: Final = _Dropped()


def composed_attention(  # noqa: PLR0913
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, dropout_mask: Any = None, *, scale: Any = None,
    enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Return attention and its weights, which torch composes of operators on a CPU.

    Without dropout attention is the operator that it is for others, since torch composes it by what
    differs between ways of running a model: whether a mask learns, or how a batch lies in memory.
    Heads of another size than others get zeros at their ends, which change no sum.
    """
    import torch
    from torch.nn import functional as F

    parts = query, key, value
    masked = attn_mask is not None
    mask = attn_mask[None] if masked and attn_mask.dim() == 3 else attn_mask
    alone = dropout_p or dropout_mask is not None or (masked and is_causal)
    if alone or not _could_be_fused(parts, mask, enable_gqa):
        return unwatched(
            *parts, attn_mask, dropout_p, is_causal, dropout_mask,
            scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
    learns = masked and mask.requires_grad and torch.is_grad_enabled()
    mask = mask.detach() if learns else mask
    rows, own = max(x.shape[0] for x in parts), value.shape[-1]
    size = max(query.shape[-1], own)
    q, k, v = (
        F.pad(x, (0, size - x.shape[-1])).expand(rows, -1, -1, -1).contiguous()
        for x in (_laid(query), _laid(key.mT).mT, _laid(value))
    )
    factor = _factor(query, scale)
    out = (fused if query.is_cuda else _on_cpus)(q, k, v, mask, is_causal, scale=factor)
    out = out[..., :own].contiguous()
    given = (x.detach() for x in parts) if learns else (query, key, value[..., :1])
    before, dropped.now = dropped.now, True
    try:
        composed, weights = unwatched(
            *given, attn_mask, 0.0, is_causal, None, scale=factor, enable_gqa=enable_gqa
        )
    finally:
        dropped.now = before
    if learns:  # the mask gets its gradient through what is composed, whose numbers are replaced
        out, fused_out = out + composed, out
        out.detach().copy_(fused_out.detach())
    return out, weights


def _laid(x: Any) -> Any:
    """Return a tensor that gets a contiguous gradient, as from a product."""
    return x.flatten().view(x.shape)


def _could_be_fused(parts: Sequence[Any], mask: Any, enable_gqa: bool) -> bool:
    """Tell whether one operator can give what torch composes, and nobody chose the composition."""
    import torch

    query, key, value = parts
    if not all(x.dim() == 4 and x.numel() and x.layout is torch.strided for x in parts):
        return False
    rows = max(x.shape[0] for x in parts)
    scores = (rows, *query.shape[1:3], key.shape[2])
    forward_ad: Any = torch.autograd.forward_ad
    switches: Any = torch.backends.cuda
    return bool(
        switches.flash_sdp_enabled()
        and query.dtype is key.dtype is value.dtype
        and all(x.shape[0] in (1, rows) for x in parts)
        and key.shape[1:3] == value.shape[1:3]
        and (key.shape[1] in (1, query.shape[1]) or enable_gqa)
        and query.shape[3] == key.shape[3]
        and (mask is None or (mask.dim() in (2, 4) and spreads(mask.shape, scores)))
        and all(forward_ad.unpack_dual(x).tangent is None for x in parts)
    )


def _zeroed(x: Any, unseen: Any) -> Any:
    """Clear what keys without weight give, whose values may be infinite, in bfloat16."""
    return x if unseen is None else x.masked_fill_(unseen, 0.0)


def _gathered(gradient: Any, like: Any) -> Any:
    """Add up what heads that shared one head give it; the layout is the stock kernel's."""
    if gradient.shape != like.shape:
        gradient = over(gradient.unflatten(1, (like.shape[1], -1)), [2])
    return by_positions(gradient)


def by_positions(x: Any) -> Any:
    """Lay heads out beside each other, for each position."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)
