# SPDX-License-Identifier: Apache-2.0
"""Which of equal numbers comes first: what sorts and chooses by size, as the contract orders it.

Torch leaves it open, and its kernels for CPUs and GPUs answer otherwise. Here the first of equal
numbers comes first, in either direction, and NaN is the largest number.
"""

from __future__ import annotations

from typing import Any

from pytest_udftorch.swap.overrides.python_override import stock


def sort(self: Any, *, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    """Sort numbers; equal ones keep their order."""
    return stock(self, stable=True, dim=dim, descending=descending)


def sort_out(
    self: Any, *, stable: Any = None, dim: int = -1, descending: bool = False, values: Any,
    indices: Any,
) -> Any:  # fmt: skip
    """Sort numbers into ``values``; equal ones keep their order."""
    return stock(self, stable=True, dim=dim, descending=descending, values=values, indices=indices)


def topk(self: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Choose the k largest or smallest numbers: of equal ones the first, in the order of sorts."""
    values, indices = found = stock(self, k, dim, largest, True)
    if not self.dim() or not values.numel():
        return found
    last = values.narrow(dim, k - 1, 1)
    # On a GPU a look at the numbers would wait for them.
    if self.is_cuda or _some_are_left(self, values, last, dim):
        taken = _first(self, last, k, dim, largest)
        n = self.shape[dim]
        chosen = stock(_places(self, dim).where(taken, n), k, dim, False, True)[0]
    else:
        chosen = indices.sort(dim=dim).values
    ordered = self.gather(dim, chosen).sort(dim=dim, descending=largest, stable=True)
    values.copy_(ordered.values)
    indices.copy_(chosen.gather(dim, ordered.indices))
    return found


def topk_out(
    self: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, values: Any,
    indices: Any,
) -> Any:  # fmt: skip
    """Choose the k largest or smallest numbers into ``values``."""
    import torch

    found = stock(self, k, dim, largest, True, values=values, indices=indices)
    for to, made in zip(found, torch.topk(self, k, dim, largest, sorted), strict=True):
        to.copy_(made)
    return found


def _some_are_left(x: Any, values: Any, last: Any, dim: int) -> bool:
    """Tell whether numbers equal to the last that is chosen were not chosen."""
    nan = x.is_floating_point() and bool(last.isnan().any())
    there, taken = (_equal(t, last, nan).count_nonzero(dim) for t in (x, values))
    return bool((there > taken).any())


def _equal(x: Any, last: Any, nan: bool) -> Any:
    """Tell which numbers are equal to the last that is chosen; NaN is to NaN, if there may be."""
    equal = x == last
    return equal.logical_or_(x.isnan() & last.isnan()) if nan else equal


def _places(x: Any, dim: int) -> Any:
    """Return the places in a direction, which spread over the others."""
    import torch

    places = torch.arange(x.shape[dim], device=x.device)
    return places.view(-1, *(1,) * (x.dim() - 1)).movedim(0, dim)


def _first(x: Any, last: Any, k: int, dim: int, largest: bool) -> Any:
    """Tell which k numbers are chosen if the last of these is known: of equal ones the first."""
    floats = x.is_floating_point()
    beyond, equal = (x > last if largest else x < last), _equal(x, last, floats)
    if floats:
        nan, least = x.isnan(), last.isnan()
        beyond |= (nan & ~least) if largest else (~nan & least)
    room = k - beyond.sum(dim, keepdim=True)
    return beyond | (equal & (equal.cumsum(dim) <= room))


def kthvalue(self: Any, k: int, dim: int = -1, keepdim: bool = False, *, values: Any,
             indices: Any) -> Any:  # fmt: skip
    """Find the k-th number in the order of sorts."""
    found = stock(self, k, dim, keepdim, values=values, indices=indices)
    if self.dim() and values.numel():
        _put_from(self, dim, keepdim, k - 1, values, indices)
    return found


def median(self: Any, dim: int, keepdim: bool = False, *, values: Any, indices: Any) -> Any:
    """Find the number in the middle, or the first NaN."""
    found = stock(self, dim, keepdim, values=values, indices=indices)
    if self.dim() and values.numel():
        there = self.shape[dim] - self.isnan().sum(dim, keepdim=True)
        middle = (self.shape[dim] - 1) // 2
        at = there.where(there < self.shape[dim], middle)
        _put_from(self, dim, keepdim, at, values, indices)
    return found


def nanmedian(self: Any, dim: int, keepdim: bool = False, *, values: Any, indices: Any) -> Any:
    """Find the number in the middle of those that are not NaN."""
    found = stock(self, dim, keepdim, values=values, indices=indices)
    if self.dim() and values.numel():
        there = self.shape[dim] - self.isnan().sum(dim, keepdim=True)
        _put_from(self, dim, keepdim, (there - 1).clamp_(min=0) // 2, values, indices)
    return found


def _put_from(x: Any, dim: int, keepdim: bool, at: Any, values: Any, indices: Any) -> None:
    """Put numbers that stand at places in the order of sorts, and where these are, into results."""
    import torch

    ordered = x.sort(dim=dim, stable=True)
    for to, whole in ((values, ordered.values), (indices, ordered.indices)):
        chosen = whole.gather(dim, at) if isinstance(at, torch.Tensor) else whole.narrow(dim, at, 1)
        to.copy_(chosen if keepdim else chosen.squeeze(dim))


def mode(self: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Find the number that is there most often, and the first place of the least of several."""
    import torch

    found = stock(self, dim, keepdim)
    if not self.dim() or not found[0].numel():
        return found
    ordered = self.sort(dim=dim, stable=True)
    n, places = self.shape[dim], _places(self, dim)
    first, rest = (ordered.values.narrow(dim, at, n - 1) for at in (0, 1))
    begins = torch.ones_like(ordered.values, dtype=torch.bool)
    begins.narrow(dim, 1, n - 1).copy_(first != rest)
    start = places.where(begins, 0).cummax(dim).values
    at = start.gather(dim, (places - start).argmax(dim, keepdim=True))
    values, indices = (w.gather(dim, at) for w in (ordered.values, ordered.indices))
    found[0].copy_(values if keepdim else values.squeeze(dim))
    found[1].copy_(indices if keepdim else indices.squeeze(dim))
    return found
