# SPDX-License-Identifier: Apache-2.0
"""Operators that add to places which an index names, in the order of docs/reproduce/contract.md.

A place gets what it had, plus the sum of the terms that belong to it. Other terms are left out of
the tree over all of them, so terms of other places do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.outside import declined as stock
from pytest_udftorch.swap.overrides.python_override import stock as unwatched


def embedding_backward(
    grad_output: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    """Return the gradient of an embedding's weights."""
    width = grad_output.shape[-1] if grad_output.dim() else 0
    if not _ours(grad_output) or grad_output.shape[:-1] != indices.shape:
        return stock(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)
    rows = indices.reshape(-1).long()
    terms = grad_output.reshape(-1, width)
    # Terms of no row go to one that is not read, so that the others keep their places.
    unread = (rows < 0) | (rows >= num_weights)
    if padding_idx >= 0:
        unread |= rows == padding_idx
    rows = rows.masked_fill(unread, num_weights)
    found = contract().scatter(grad_output.new_zeros(num_weights + 1, width), rows, terms)
    if scale_grad_by_freq:
        found /= rows.bincount(minlength=num_weights + 1).clamp(min=1)[:, None]
    return found[:num_weights]


def index_add(self: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    """Return a tensor with slices added to where an index names."""
    rank = self.dim()
    if not _slices(self, dim, index, source):
        return stock(self, dim, index, source, alpha=alpha)
    dim %= rank
    y = self.movedim(dim, 0)
    terms = source.movedim(dim, 0).reshape(len(index), -1)
    rows = y.reshape(len(y), -1).clone(memory_format=_dense())
    if alpha != 1:
        terms = terms * alpha
    contract().scatter(rows, index.long(), terms)
    return rows.view(y.shape).movedim(0, dim).contiguous()


def index_add_(self: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    """Add slices to where an index names."""
    if not _slices(self, dim, index, source):
        return stock(self, dim, index, source, alpha=alpha)
    return self.copy_(index_add(self, dim, index, source, alpha=alpha))


def _ours(x: Any) -> bool:
    return str(x.dtype) == "torch.float32" and bool(x.numel())


def _dense() -> Any:
    import torch

    return torch.contiguous_format


def _slices(self: Any, dim: int, index: Any, source: Any) -> bool:
    rank = self.dim()
    if not _ours(source) or source.dtype is not self.dtype or not rank:
        return False
    if source.dim() != rank or index.dim() != 1 or not -rank <= dim < rank:
        return False
    size = self.shape[dim]
    wanted = list(self.shape)
    wanted[dim] = len(index)
    return list(source.shape) == wanted and _inside(index, size)


def _inside(index: Any, size: int) -> bool:
    return bool(index.numel()) and int(index.min()) >= 0 and int(index.max()) < size


def scatter_add(self: Any, dim: int, index: Any, src: Any) -> Any:
    """Return a tensor with elements added to where an index names along a dimension."""
    import torch

    rank = self.dim()
    if not _elements(self, dim, index, src):
        return stock(self, dim, index, src)
    dim %= rank
    terms = src[tuple(slice(s) for s in index.shape)].movedim(dim, 0)
    places = torch.arange(self.numel(), device=self.device).view(self.shape)
    here = places[tuple(slice(None if d == dim else s) for d, s in enumerate(index.shape))]
    rows = here.gather(dim, index).movedim(dim, 0)
    y = self.clone(memory_format=_dense())
    contract().scatter(
        y.view(-1, 1), rows.reshape(-1), terms.reshape(-1, 1), each=math.prod(rows.shape[1:])
    )
    return y


def scatter_add_(self: Any, dim: int, index: Any, src: Any) -> Any:
    """Add elements to where an index names along a dimension."""
    if not _elements(self, dim, index, src):
        return stock(self, dim, index, src)
    return self.copy_(scatter_add(self, dim, index, src))


def _elements(self: Any, dim: int, index: Any, src: Any) -> bool:
    rank = self.dim()
    return bool(
        rank
        and _ours(src)
        and src.dtype is self.dtype
        and index.dim() == src.dim() == rank
        and -rank <= dim < rank
        and all(i <= s for i, s in zip(index.shape, src.shape, strict=True))
        and all(
            d == dim % rank or i <= s
            for d, (i, s) in enumerate(zip(index.shape, self.shape, strict=True))
        )
        and _inside(index, self.shape[dim])
    )


def index_put_(
    self: Any, indices: Sequence[Any], values: Any, accumulate: bool = False, unsafe: bool = False
) -> Any:
    """Put values where indices name, or add them."""
    import torch

    if not accumulate:
        # It adds nothing. Two values for one place are outside: ``outside`` finds them.
        return unwatched(self, indices, values, accumulate, unsafe)
    if not _ours(self) or values.dtype is not self.dtype:
        return stock(self, indices, values, accumulate, unsafe)
    chosen = tuple(slice(None) if i is None else i for i in indices)
    try:
        places = torch.arange(self.numel(), device=self.device).view(self.shape)[chosen]
        terms = values.expand(places.shape)
    except (IndexError, RuntimeError):
        return stock(self, indices, values, accumulate, unsafe)
    y = self.clone(memory_format=_dense())
    contract().scatter(y.view(-1, 1), places.reshape(-1), terms.reshape(-1, 1))
    return self.copy_(y)
