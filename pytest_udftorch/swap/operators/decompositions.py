# SPDX-License-Identifier: Apache-2.0
"""Definitions of operators that torch does not decompose, or decomposes to other results.

They are formulas in simpler operators. Coverage asks them which elements of a result depend on a
function, and those of attention give the truth where its kernels have no float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

#: A score so far below the largest has no weight: exp of it is 0 by every definition.
_HIDDEN: Final = -200.0


def _scores(query: Any, keys: Any, causal: bool, mask: Any, scale: float | None) -> Any:
    """Return the scaled scores of attention; hidden ones are -inf."""
    scores = query @ keys.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if causal:
        later = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def _weights(scores: Any) -> Any:
    return torch.exp(scores).masked_fill(scores < _HIDDEN, 0.0)


def attention(query: Any, key: Any, value: Any, dropout: float = 0.0, causal: bool = False, *,
              attn_mask: Any = None, scale: float | None = None) -> Any:  # fmt: skip
    """Return attention and the logarithms of its rows' sums.

    torch's decomposition returns the weights in their place.
    """
    group = query.shape[1] // key.shape[1]
    keys, values = (t.repeat_interleave(group, 1) for t in (key, value))
    scores = _scores(query, keys, causal, attn_mask, scale)
    largest = scores.amax(-1, keepdim=True)
    # A row that sees nothing is 0.
    largest = largest.masked_fill(largest == -math.inf, 0.0)
    weights = _weights(scores - largest)
    sums = weights.sum(-1, keepdim=True)
    shares = weights / sums.masked_fill(sums == 0, 1.0)
    return shares @ values, (torch.log(sums) + largest)[..., 0]


def attention_gradients(*args: Any, attn_mask: Any = None, scale: float | None = None) -> Any:
    """Return the gradients of queries, keys and values, for which torch has no decomposition."""
    grad, query, key, value, out, sums, _, causal = args
    by = query.shape[-1] ** -0.5 if scale is None else scale
    group = query.shape[1] // key.shape[1]
    keys, values = (t.repeat_interleave(group, 1) for t in (key, value))
    weights = _weights(_scores(query, keys, causal, attn_mask, scale) - sums[..., None])
    each = grad @ values.mT
    less = each - (grad * out).sum(-1, keepdim=True)
    # What cancels is rounding, which is no result.
    less = less.masked_fill(less.abs() < 64 * torch.finfo(less.dtype).eps * each.abs().amax(), 0.0)
    inner = weights * less * by
    of_keys = ((inner.mT @ query), (weights.mT @ grad))
    return (inner @ keys, *(t.unflatten(1, (-1, group)).sum(2) for t in of_keys))


def _flash(*args: Any, scale: float | None = None) -> Any:
    """Return what flash attention on CUDA does; nobody asks for its weights."""
    return *attention(*args[:5], scale=scale), args[0].new_empty(0)


def _flash_gradients(*args: Any, scale: float | None = None) -> Any:
    return attention_gradients(*args[:6], *args[10:12], scale=scale)


def _efficient(*args: Any, scale: float | None = None) -> Any:
    """Return what memory-efficient attention does: its rows of logarithms are padded."""
    query, key, value, mask, wants_sums, *rest = args
    dropout, causal = (*rest, 0.0, False)[:2]
    out, sums = attention(query, key, value, dropout, causal, attn_mask=mask, scale=scale)
    if not wants_sums:
        return out, sums[..., :0]
    return out, torch.nn.functional.pad(sums, (0, -sums.shape[-1] % 32), value=math.inf)


def _efficient_gradients(*args: Any, scale: float | None = None) -> Any:
    grad, query, key, value, mask, out, sums, _, _, dropout, _, *causal = args
    return attention_gradients(
        grad, query, key, value, out, sums[..., : query.shape[2]], dropout, *(causal or [False]),
        attn_mask=mask, scale=scale,
    )  # fmt: skip


def _cudnn(*args: Any, scale: float | None = None) -> Any:
    query, key, value, mask, wants_sums, *rest = args
    dropout, causal = (*rest, 0.0, False)[:2]
    out, sums = attention(query, key, value, dropout, causal, attn_mask=mask, scale=scale)
    return out, sums[..., None] if wants_sums else sums.new_empty(0)


def _cudnn_gradients(*args: Any, scale: float | None = None) -> Any:
    grad, query, key, value, out, sums, _, _, mask, _, _, _, _, dropout, causal = args
    return attention_gradients(
        grad, query, key, value, out, sums[..., 0], dropout, causal, attn_mask=mask, scale=scale
    )  # fmt: skip


def _alphas(log_probabilities: Any, labels: Any, blank: int) -> Any:
    """Return steps x states: log-probability to be in a state, over all ways to it.

    Graves, Fernandez, Gomez, Schmidhuber: Connectionist Temporal Classification (2006), section 4.

    Args:
        log_probabilities: steps x classes.
        labels: the classes, with a blank around each.
        blank: its class.
    """
    emitted = log_probabilities[:, labels]
    skips = (labels[2:] != labels[:-2]) & (labels[2:] != blank)
    outside = emitted.new_full((2,), -math.inf)
    row = emitted.new_full((len(labels),), -math.inf)
    row[:2] = emitted[0, :2]
    rows = [row]
    for step in emitted[1:]:
        padded = torch.cat((outside, row))
        two = padded[:-2].clone()
        two[2:] = two[2:].masked_fill(~skips, -math.inf)
        rows.append(_log_sum(torch.stack((row, padded[1:-1], two)), 0) + step)
        row = rows[-1]
    return torch.stack(rows)


def _log_sum(values: Any, dim: int) -> Any:
    largest = values.amax(dim, keepdim=True)
    largest = largest.masked_fill(largest == -math.inf, 0.0)
    return (torch.log(torch.exp(values - largest).sum(dim, keepdim=True)) + largest).squeeze(dim)


def _lines(log_probabilities: Any, targets: Any, steps: Any, lengths: Any, blank: int) -> Any:
    """Return the log-probabilities and states of each line of a batch; None if lengths differ."""
    steps, lengths = (torch.as_tensor(v).tolist() for v in (steps, lengths))
    batch = log_probabilities.unbind(1)
    if set(steps) != {log_probabilities.shape[0]} or len(set(lengths)) != 1:
        return None
    rows = targets.reshape(len(batch), -1)
    states = targets.new_full((len(batch), 2 * lengths[0] + 1), blank, device=batch[0].device)
    states[:, 1::2] = rows[:, : lengths[0]]
    return list(zip(batch, states, strict=True))


def alignments(
    log_probabilities: Any, targets: Any, steps: Any, lengths: Any, blank: int = 0, *_: Any
) -> Any:
    """Return the loss of ctc_loss, and what its gradient needs."""
    lines = _lines(log_probabilities, targets, steps, lengths, blank)
    if lines is None:
        return None
    alphas = torch.stack([_alphas(p, states, blank) for p, states in lines])
    return -_log_sum(alphas[:, -1, -2:], -1), alphas


def _summed_ways(through: Any, less: Any) -> Any:
    """Return the sums of classes from logarithms of steps x states x classes."""
    # One way alone is not summed up.
    several = (through > -math.inf).sum(1) > 1
    return torch.exp(torch.where(several, _log_sum(through, 1), through.amax(1)) + less)


def _shares_of_classes(through: Any, less: Any) -> Any:
    """Return the same sums without another logarithm."""
    return torch.exp(through + less[:, None]).sum(1)


def alignments_gradient(*args: Any) -> Any:
    """Return the gradient of ctc_loss: see ``definitions`` for what GPUs add up."""
    grad, log_probabilities, targets, steps, lengths, loss, alphas, blank = args[:8]
    lines = _lines(log_probabilities, targets, steps, lengths, blank)
    if lines is None:
        return None
    found = []
    for (given, states), alpha, line_loss, line_grad in zip(lines, alphas, loss, grad, strict=True):
        beta = _alphas(given.flip(0), states.flip(0), blank).flip(0, 1)
        of_class = states[:, None] == torch.arange(given.shape[1], device=given.device)
        # A state that nothing leads to has no share, whatever follows it: under a wrong logarithm
        # beta is NaN where nothing follows.
        ways = (alpha + beta).masked_fill(alpha == -math.inf, -math.inf)
        through = ways[..., None].masked_fill(~of_class, -math.inf)
        sums = _shares_of_classes if given.is_cuda else _summed_ways
        occupied = sums(through, line_loss - given)
        # A class that no state has is no sum over states.
        occupied = occupied.masked_fill(~of_class.any(0), 0.0)
        found.append((torch.exp(given) - occupied) * line_grad)
    return torch.stack(found, 1)


def _oscillating(x: Any) -> Any:
    """Return where a function is made of sines and cosines: beyond 5, in Cephes."""
    return torch.where(x.abs() > 5.0, torch.sin(x) + 2 * torch.cos(x), 0.0)


def _spherical(x: Any) -> Any:
    return torch.where(x.abs() >= 0.5, torch.sin(x), 0.0)


def _second_kind(x: Any) -> Any:
    """Return where Bessel's functions of the second kind take logarithms, or oscillate."""
    return torch.where(x > 5.0, torch.sin(x) + 2 * torch.cos(x), torch.log(x))


def _decaying(x: Any) -> Any:
    """Return where Macdonald's functions take logarithms; exp is everywhere."""
    return torch.exp(-x) + torch.where(x > 2.0, 0.0, torch.log(x))


def _decaying_scaled(x: Any) -> Any:
    return torch.where(x > 2.0, 0.0, torch.log(x) + 2 * torch.exp(x))


def polygamma(order: int, x: Any) -> Any:
    """Return polygamma's dependence: trigamma reflects below a half, and is algebraic above."""
    if order == 1:
        return torch.where(x < 0.5, torch.sin(math.pi * x) ** -2, 0.0)
    return None


def _masked_softmax(x: Any, mask: Any, dim: int | None = None, kind: int | None = None) -> Any:
    """Return the softmax of what no mask hides."""
    if kind == 0:
        mask = mask.expand(x.shape)
    elif kind == 1:
        mask = mask[:, None, None].expand(x.shape)
    rows = x.masked_fill(mask, -math.inf)
    weights = _weights(rows - rows.amax(-1 if dim is None else dim, keepdim=True))
    return weights / weights.sum(-1 if dim is None else dim, keepdim=True)


#: What a row names as its definition.
DEFINITIONS: Final[dict[str, Callable[..., Any]]] = {
    "attention": attention,
    "attention_gradients": attention_gradients,
    "flash": _flash,
    "flash_gradients": _flash_gradients,
    "efficient": _efficient,
    "efficient_gradients": _efficient_gradients,
    "cudnn": _cudnn,
    "cudnn_gradients": _cudnn_gradients,
    "alignments": alignments,
    "alignments_gradient": alignments_gradient,
    "polygamma": polygamma,
    "oscillating": _oscillating,
    "spherical": _spherical,
    "second_kind": _second_kind,
    "decaying": _decaying,
    "decaying_scaled": _decaying_scaled,
    "masked_softmax": _masked_softmax,
}
