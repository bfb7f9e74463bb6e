# SPDX-License-Identifier: Apache-2.0
"""The loss of connectionist temporal classification, and its gradient.

Graves, Fernandez, Gomez and Schmidhuber, Connectionist Temporal Classification, 2006. A state's
probability is the sum of three, in their order; a class adds what its states give it as a sum over
the states of its own sample.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.outside import declined as stock
from pytest_udftorch.swap.overrides.python_override import stock as unwatched


class _States(NamedTuple):
    """The states of a batch, padded to those of its longest sample.

    Attributes:
        labels: samples x states: the class of each.
        skips: samples x states: whether it can be reached from the one before the last.
        counts: states of each sample.
        steps: steps of each sample.
    """

    labels: Any
    skips: Any
    counts: Any
    steps: Any


def _states(targets: Any, steps: Any, lengths: Any, blank: int) -> _States:
    import torch

    steps, lengths = (torch.as_tensor(v).long().cpu() for v in (steps, lengths))
    longest = int(lengths.max())
    if targets.dim() == 1:
        starts = lengths.cumsum(0) - lengths
        places = (starts.unsqueeze(1) + torch.arange(longest)).clamp(max=max(len(targets) - 1, 0))
        rows = targets[places] if targets.numel() else targets.new_zeros(len(lengths), longest)
    else:
        rows = targets[:, :longest]
    labels = rows.new_full((len(lengths), 2 * longest + 1), blank, dtype=torch.int64)
    labels[:, 1::2] = rows.masked_fill(torch.arange(longest) >= lengths.unsqueeze(1), blank)
    skips = torch.zeros_like(labels, dtype=torch.bool)
    skips[:, 2:] = (labels[:, 2:] != labels[:, :-2]) & (labels[:, 2:] != blank)
    return _States(labels, skips, 2 * lengths + 1, steps)


def _log_sum(*logarithms: Any) -> Any:
    """Return the logarithm of the sum of numbers that are given by theirs, in their order."""
    import torch

    largest = logarithms[0]
    for other in logarithms[1:]:
        largest = torch.maximum(largest, other)
    largest = largest.masked_fill(largest == -math.inf, 0.0)
    total = (logarithms[0] - largest).exp()
    for other in logarithms[1:]:
        total = total + (other - largest).exp()
    return total.log() + largest


def _moved(row: Any, by: int) -> Any:
    """Return a row whose states are moved to the right, with none in front."""
    from torch.nn import functional as F

    return F.pad(row, (by, 0), value=-math.inf)[:, : row.shape[1]]


def _alphas(emitted: Any, of: _States) -> Any:
    """Return samples x steps x states: log-probability to be in a state, over all ways to it.

    Args:
        emitted: steps x samples x states: that of the state's class.
        of: the states.
    """
    import torch

    row = torch.full_like(emitted[0], -math.inf)
    row[:, :2] = emitted[0, :, :2]
    row = _within(row, of)
    rows = [row]
    for step in emitted[1:]:
        two = _moved(row, 2).masked_fill(~of.skips, -math.inf)
        row = _within(_log_sum(row, _moved(row, 1), two) + step, of)
        rows.append(row)
    return torch.stack(rows, 1)


def _betas(emitted: Any, of: _States) -> Any:
    """Return the same for all ways from a state to the end, each from the sample's last step."""
    import torch

    places = torch.arange(of.labels.shape[1])
    ends = (places == of.counts.unsqueeze(1) - 1) | (places == of.counts.unsqueeze(1) - 2)
    # A state is left by the skip of the one after the next.
    leaves = torch.zeros_like(of.skips)
    leaves[:, :-2] = of.skips[:, 2:]
    row = torch.full_like(emitted[0], -math.inf)
    rows = []
    for number in range(len(emitted) - 1, -1, -1):
        step = emitted[number]
        one, two = (_moved(row.flip(1), k).flip(1) for k in (1, 2))
        further = _log_sum(row, one, two.masked_fill(~leaves, -math.inf)) + step
        last = (of.steps == number + 1).unsqueeze(1)
        first = step.masked_fill(~ends, -math.inf)
        row = torch.where(last, first, further.masked_fill((of.steps <= number).unsqueeze(1),
                                                           -math.inf))  # fmt: skip
        row = _within(row, of)
        rows.append(row)
    return torch.stack(rows[::-1], 1)


def _within(row: Any, of: _States) -> Any:
    import torch

    places = torch.arange(row.shape[1])
    return row.masked_fill(places >= of.counts.unsqueeze(1), -math.inf)


def _emitted(log_probs: Any, of: _States) -> Any:
    # Stock does not look whether there is such a class.
    labels = of.labels.clamp(0, log_probs.shape[2] - 1)
    return log_probs.gather(2, labels.expand(len(log_probs), -1, -1))


def _ours(log_probs: Any) -> bool:
    return bool(log_probs.dim() == 3 and log_probs.numel())


def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0,
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """Return the losses of samples, and the logarithms that the gradient takes."""
    import torch

    if not _ours(log_probs):
        return stock(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    contract()
    made = unwatched(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    of = _states(targets, input_lengths, target_lengths, blank)
    alphas = _alphas(_emitted(log_probs, of), of)
    samples = torch.arange(len(of.steps))
    last = alphas[samples, (of.steps - 1).clamp(min=0)]
    ends = last.gather(1, torch.stack([of.counts - 1, (of.counts - 2).clamp(min=0)], 1))
    second = ends[:, 1].masked_fill(of.counts < 2, -math.inf)
    loss = -_log_sum(ends[:, 0], second)
    # Of no steps there is one way to no label, and none to others.
    none = torch.where(of.counts == 1, 0.0, math.inf).to(loss.dtype)
    loss = torch.where(of.steps == 0, none, loss)
    if zero_infinity:
        loss = loss.masked_fill(loss == math.inf, 0.0)
    kept = made[1].fill_(-math.inf)
    kept[:, :, : alphas.shape[2]] = alphas[:, : kept.shape[1]]
    return loss, kept


def ctc_loss_backward(  # noqa: PLR0913
    grad: Any, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any,
    neg_log_likelihood: Any, log_alpha: Any, blank: int, zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """Return the gradient of the logarithms of probabilities."""
    import torch

    if not _ours(log_probs):
        return stock(
            grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha,
            blank, zero_infinity,
        )  # fmt: skip
    made = contract()
    of = _states(targets, input_lengths, target_lengths, blank)
    emitted = _emitted(log_probs, of)
    alphas, betas = _alphas(emitted, of), _betas(emitted, of)
    loss = neg_log_likelihood.view(-1, 1, 1)
    ways = alphas + betas - emitted.transpose(0, 1) + loss
    unreached = (alphas == -math.inf) | (betas == -math.inf)
    shares = ways.exp().masked_fill(unreached, 0.0)
    classes = log_probs.shape[2]
    found = torch.zeros_like(log_probs, memory_format=torch.contiguous_format)
    for sample, (count, length) in enumerate(
        zip(of.counts.tolist(), of.steps.tolist(), strict=True)
    ):
        terms = shares[sample, :length, :count].mT
        y = log_probs.new_zeros(classes, length)
        made.scatter(y, of.labels[sample, :count].clamp(0, classes - 1), terms)
        own = log_probs[:length, sample]
        found[:length, sample] = (own.exp() - y.mT) * grad.view(-1)[sample]
    if zero_infinity:
        found.masked_fill_((neg_log_likelihood.view(1, -1, 1) == math.inf), 0.0)
    return found
