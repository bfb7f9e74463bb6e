# SPDX-License-Identifier: Apache-2.0
"""Bags of embeddings: each is the sum of its own rows, wherever it lies among the others."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.outside import declined as stock
from pytest_udftorch.swap.contract.scatters import embedding_backward
from pytest_udftorch.swap.contract.sums import over
from pytest_udftorch.swap.overrides.python_override import stock as unwatched

#: torch's numbers of the modes.
_MEAN: Final = 1
_MAX: Final = 2


class _Terms(NamedTuple):
    """Which rows of the weight go to which bag, in their order.

    Attributes:
        rows: of the weight.
        bags: those that they go to.
        kept: their places among the indices: those of padding are left out.
    """

    rows: Any
    bags: Any
    kept: Any


def _terms(indices: Any, offsets: Any, bags: int, padding: int) -> _Terms:
    import torch

    ends = torch.cat([offsets[1:bags].long(), offsets.new_full((1,), len(indices)).long()])
    own = torch.repeat_interleave(torch.arange(bags), ends - offsets[:bags].long())
    rows = indices.long()
    kept = torch.arange(len(rows)) if padding < 0 else (rows != padding).nonzero()[:, 0]
    return _Terms(rows[kept], own[kept], kept)


def _scaled(terms: Any, found: _Terms, weights: Any, sizes: Any) -> Any:
    """Return terms times the weights of their places, over the sizes of their bags."""
    if weights is not None:
        terms = terms * weights[found.kept].unsqueeze(1)
    return terms if sizes is None else terms / sizes[found.bags].unsqueeze(1)


def _sizes(found: _Terms, bags: int) -> Any:
    """Return how many terms each bag has; the mean of none is one of none, which is 0."""
    import torch

    return torch.bincount(found.bags, minlength=bags).clamp_(min=1).float()


def embedding_bag(  # noqa: PLR0913
    weight: Any, indices: Any, offsets: Any, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Any = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    """Return sums or means of bags, and what their gradients need; a maximum rounds nothing."""
    import torch

    made = unwatched(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
        include_last_offset, padding_idx,
    )  # fmt: skip
    if mode == _MAX:
        contract()
        return made
    bags = made[0].shape[0]
    if not bags or not made[0].numel():
        return made
    found = _terms(indices, offsets, bags, padding_idx)
    terms = _scaled(weight[found.rows], found, per_sample_weights, None)
    counts = torch.bincount(found.bags, minlength=bags)
    starts = counts.cumsum(0) - counts
    out = torch.zeros_like(made[0])
    for count in sorted(set(counts.tolist())):  # bags of one size are added together
        if count:
            (chosen,) = (counts == count).nonzero(as_tuple=True)
            places = starts[chosen].unsqueeze(1) + torch.arange(count)
            out[chosen] = over(terms[places], [1])
    if mode == _MEAN:
        out /= _sizes(found, bags).unsqueeze(1)
    return out, *made[1:]


def embedding_bag_backward(  # noqa: PLR0913
    grad: Any, indices: Any, offsets: Any, offset2bag: Any, bag_size: Any, maximum_indices: Any,
    num_weights: int, scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    """Return the gradient of the weight: what all bags give a row, as one scattered sum."""
    import torch

    if sparse or not grad.numel():
        return stock(
            grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights,
            scale_grad_by_freq, mode, sparse, per_sample_weights, padding_idx,
        )  # fmt: skip
    bags, width = grad.shape
    found = _terms(indices, offsets, bags, padding_idx)
    if mode == _MAX:
        filled = torch.bincount(found.bags, minlength=bags) > 0
        y = grad.new_zeros(num_weights * width, 1)
        places = maximum_indices[filled].long() * width + torch.arange(width)
        contract().scatter(y, places.reshape(-1), grad[filled].reshape(-1, 1))
        return y.view(num_weights, width)
    sizes = _sizes(found, bags) if mode == _MEAN else None
    terms = _scaled(grad[found.bags], found, per_sample_weights, sizes)
    return embedding_backward(terms, found.rows, num_weights, -1, scale_grad_by_freq)


def embedding_bag_of_weights(
    grad: Any, weight: Any, indices: Any, offsets: Any, offset2bag: Any, mode: int,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    """Return the gradients of the weights of single places: products over a row."""
    found = _terms(indices, offsets, grad.shape[0], padding_idx)
    y = grad.new_zeros(len(indices))
    if found.rows.numel() and grad.shape[1]:
        rows, columns = grad[found.bags].unsqueeze(1), weight[found.rows].unsqueeze(2)
        y[found.kept] = contract().products(rows, columns).view(-1)
    return y
