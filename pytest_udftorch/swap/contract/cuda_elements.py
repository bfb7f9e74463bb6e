# SPDX-License-Identifier: Apache-2.0
"""Operators on single elements that stock CUDA rounds otherwise than docs/reproduce/contract.md.

A division by a number is a product with its reciprocal there, ``rsqrt`` an approximation, and the
compiler of the kernels fuses where it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pytest_udftorch.swap.contract.gpu import GPU
from pytest_udftorch.swap.contract.sixteen import NAMES, held
from pytest_udftorch.swap.cuda import direct
from pytest_udftorch.swap.operators.tensors import alike
from pytest_udftorch.swap.overrides.python_override import stock

_FLOATS: Final = ("torch.float32", *NAMES)


def _taken(*tensors: Any) -> bool:
    """Tell whether tensors of a GPU have one dtype, of float32 and those of 16 bits."""
    dtype = tensors[0].dtype
    return str(dtype) in _FLOATS and all(t.is_cuda and t.dtype is dtype for t in tensors)


def _number(x: Any) -> bool:
    """Tell whether a tensor is a number that an operator was given, or as good as one."""
    return bool(not x.is_cuda and not x.dim() and not x.is_complex())


def _real(*numbers: Any) -> bool:
    return not any(isinstance(n, complex) for n in numbers)


def div(self: Any, other: Any) -> Any:
    """Return quotients; that by a number is rounded once."""
    if _taken(self) and _number(other):
        return GPU.elements("divided", (self,), float(other))
    return stock(self, other)


def div_(self: Any, other: Any) -> Any:
    """Divide in place."""
    if _taken(self) and _number(other):
        return GPU.elements("divided", (self,), float(other), out=self)
    return stock(self, other)


def div_out(self: Any, other: Any, *, out: Any) -> Any:
    """Put quotients into ``out``."""
    if _taken(self, out) and _number(other) and out.shape == self.shape:
        return GPU.elements("divided", (self,), float(other), out=out)
    return stock(self, other, out=out)


def rsqrt(self: Any, *, out: Any) -> Any:
    """Put one over the correctly rounded roots into ``out``."""
    return GPU.elements("one over the root", (self,), 0.0, out=out)


def hardsigmoid(self: Any, *, out: Any) -> Any:
    """Put numbers plus 3, between 0 and 6, over 6 into ``out``."""
    return GPU.elements("hardsigmoid", (self,), 0.0, out=out)


def hardswish(self: Any, *, out: Any) -> Any:
    """Put numbers times what hardsigmoid divides, over 6, into ``out``."""
    return GPU.elements("hardswish", (self,), 0.0, out=out)


def lerp(self: Any, end: Any, weight: Any) -> Any:
    """Return what lies between two tensors."""
    if _taken(self, end) and _real(weight):
        return GPU.elements("lerp", (self, end), float(weight))
    return stock(self, end, weight)


def lerp_(self: Any, end: Any, weight: Any) -> Any:
    """Go towards another tensor."""
    if _taken(self, end) and _real(weight) and self.shape == end.shape:
        return GPU.elements("lerp", (self, end), float(weight), out=self)
    return stock(self, end, weight)


def addcmul(self: Any, tensor1: Any, tensor2: Any, *, value: Any = 1, out: Any) -> Any:
    """Put value times a product, fused with a sum, into ``out``."""
    if _taken(self, tensor1, tensor2) and _real(value):
        return GPU.elements("addcmul", (self, tensor1, tensor2), float(value), out=out)
    return stock(self, tensor1, tensor2, value=value, out=out)


def addcdiv(self: Any, tensor1: Any, tensor2: Any, *, value: Any = 1, out: Any) -> Any:
    """Put a sum with a quotient, of which value times tensor1 is the dividend, into ``out``."""
    if _taken(self, tensor1, tensor2) and _real(value):
        return GPU.elements("addcdiv", (self, tensor1, tensor2), float(value), out=out)
    return stock(self, tensor1, tensor2, value=value, out=out)


# Numbers that kernels for CPUs round to 16 bits first ------------------------------------------


def _held(number: Any, x: Any) -> Any:
    """Return a number, or a tensor of one, as the dtype of ``x`` holds it if that has 16 bits."""
    import torch

    if str(x.dtype) not in NAMES or not x.is_cuda:
        return number
    if isinstance(number, int | float) and not isinstance(number, bool):
        return held(number, x.dtype)
    if not isinstance(number, torch.Tensor) or number.dtype is torch.bool:
        return number
    return number.to(x.dtype) if _number(number) and x.dim() else number


def add(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return sums, or differences; in place the first of these is written."""
    return stock(_held(self, other), _held(other, self), alpha=alpha)


def add_out(self: Any, other: Any, *, alpha: Any = 1, out: Any) -> Any:
    """Put sums, or differences, into ``out``."""
    return stock(_held(self, other), _held(other, self), alpha=alpha, out=out)


for _function in (add, add_out):
    _function.__dict__["above"] = direct.above


def foreach_number(self: Any, scalar: Any) -> Any:
    """Do what stock does with each tensor and a number, in place or not."""
    return stock(self, _held(scalar, self[0]) if _alike([self]) else scalar)


def foreach_numbers(self: Any, scalars: Any) -> Any:
    """Do what stock does with each tensor and a number of its own, in place or not."""
    return stock(self, [_held(n, t) for n, t in zip(scalars, self, strict=True)])


# Functions, as kernels for CPUs compose them ------------------------------------------------


def glu_backward(grad_output: Any, self: Any, dim: int, *, grad_input: Any) -> Any:
    """Put the gradients of both halves into ``grad_input``; the sigmoid is rounded."""
    import torch

    first, second = self.chunk(2, dim)
    share = torch.sigmoid(second)
    wide = share.float()
    slope = (1 - wide).mul_(wide).mul_(first).mul_(grad_output)
    return torch.cat([share * grad_output, slope.to(self.dtype)], dim, out=grad_input)


def log_sigmoid_backward(grad_output: Any, self: Any, buffer: Any, *, grad_input: Any) -> Any:
    """Put the gradient into ``grad_input``; the exponential, which a CPU keeps, is rounded."""
    import torch

    below = self < 0
    kept = self.float().abs().neg_().exp_().to(self.dtype).float()
    part = kept / (1 + kept)
    return grad_input.copy_(torch.where(below, 1 - part, part).mul_(grad_output))


def logit(self: Any, eps: Any = None, *, out: Any) -> Any:
    """Put logarithms of odds into ``out``; each step is rounded to the dtype."""
    import torch

    x = self if eps is None else self.clamp(eps, 1 - eps)
    return torch.log(x / (1 - x), out=out)


def xlogy(self: Any, other: Any) -> Any:
    """Return products with logarithms; the logarithm is rounded to the dtype."""
    found = self * other.log()
    return found.masked_fill_((self == 0) & ~other.isnan(), 0.0)


def xlogy_(self: Any, other: Any) -> Any:
    """Multiply by logarithms."""
    return self.copy_(xlogy(self, other))


def xlogy_out(self: Any, other: Any, *, out: Any) -> Any:
    """Put products with logarithms into ``out``."""
    found = xlogy(self, other)
    return out.resize_(found.shape).copy_(found)


# Lists of tensors -------------------------------------------------------------------------


def _alike(lists: Sequence[Any]) -> bool:
    """Tell whether lists hold tensors of a GPU and a dtype, one for one of the same shape."""
    first = lists[0]
    return all(
        len(other) == len(first)
        and _taken(first[0], *other)
        and all(a.shape == b.shape for a, b in zip(first, other, strict=True))
        for other in lists
    )


def _each(numbers: Any, count: int) -> list[float] | None:
    """Return a number for each tensor, or nothing where they are not numbers."""
    if isinstance(numbers, list | tuple):
        found = list(numbers)
    elif hasattr(numbers, "dim"):
        if numbers.is_cuda or numbers.is_complex():
            return None
        found = [numbers.item()] * count if not numbers.dim() else numbers.tolist()
    else:
        found = [numbers] * count
    if len(found) != count or not _real(*found):
        return None
    return [float(n) for n in found]


def _listed(kind: str, lists: Sequence[Any], numbers: Any, *, into: bool) -> list[Any] | None:
    """Map each of the tensors; return nothing where the stock kernel has to."""
    if not lists[0] or not _alike(lists):
        return None
    each = _each(numbers, len(lists[0]))
    if each is None:
        return None
    import torch

    groups = list(zip(*lists, strict=True))
    if len(groups) > 1 and _in_one(groups, into):
        results = [g[0] if into else torch.empty_like(g[0]) for g in groups]
        GPU.lists(kind, groups, each, results)
        return results
    return [
        GPU.elements(kind, given, n, out=given[0] if into else None)
        for n, given in zip(each, groups, strict=True)
    ]


def _in_one(groups: Sequence[Sequence[Any]], into: bool) -> bool:
    """Tell whether one launch can map all: it copies a table, which a CUDA graph would not."""
    import torch

    device = groups[0][0].device
    return (
        all(g[0].device == device and g[0].numel() and alike(g) for g in groups)
        and not (into and len({g[0].data_ptr() for g in groups}) < len(groups))
        and not torch.cuda.is_current_stream_capturing()
    )


def foreach_add(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return sums, fused with products."""
    found = _listed("add", (self, other), alpha, into=False)
    return stock(self, other, alpha=alpha) if found is None else found


def foreach_add_(self: Any, other: Any, *, alpha: Any = 1) -> None:
    """Add products, fused."""
    if _listed("add", (self, other), alpha, into=True) is None:
        stock(self, other, alpha=alpha)


def foreach_sub(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return differences, fused with products."""
    found = _listed("add", (self, other), -alpha, into=False)
    return stock(self, other, alpha=alpha) if found is None else found


def foreach_sub_(self: Any, other: Any, *, alpha: Any = 1) -> None:
    """Subtract products, fused."""
    if _listed("add", (self, other), -alpha, into=True) is None:
        stock(self, other, alpha=alpha)


def foreach_lerp(self: Any, tensors1: Any, weight: Any) -> Any:
    """Return what lies between two tensors of each pair."""
    found = _listed("lerp", (self, tensors1), weight, into=False)
    return stock(self, tensors1, weight) if found is None else found


def foreach_lerp_(self: Any, tensors1: Any, weight: Any) -> None:
    """Go towards other tensors."""
    if _listed("lerp", (self, tensors1), weight, into=True) is None:
        stock(self, tensors1, weight)


def foreach_div(self: Any, other: Any) -> Any:
    """Return quotients by numbers."""
    found = _listed("divided", (self,), other, into=False)
    return stock(self, other) if found is None else found


def foreach_div_(self: Any, other: Any) -> None:
    """Divide by numbers."""
    if _listed("divided", (self,), other, into=True) is None:
        stock(self, other)


def foreach_addcmul(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    """Return sums with products."""
    found = _listed("addcmul", (self, tensor1, tensor2), value, into=False)
    return stock(self, tensor1, tensor2, value) if found is None else found


def foreach_addcmul_(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> None:
    """Add products."""
    if _listed("addcmul", (self, tensor1, tensor2), value, into=True) is None:
        stock(self, tensor1, tensor2, value)


def foreach_addcdiv(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    """Return sums with quotients."""
    found = _listed("addcdiv", (self, tensor1, tensor2), value, into=False)
    return stock(self, tensor1, tensor2, value) if found is None else found


def foreach_addcdiv_(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> None:
    """Add quotients."""
    if _listed("addcdiv", (self, tensor1, tensor2), value, into=True) is None:
        stock(self, tensor1, tensor2, value)


def foreach_norm(self: Any, ord: Any = 2, dtype: Any = None) -> Any:
    """Return norms, as of each tensor alone."""
    import torch

    if not all(_taken(t) for t in self):
        return stock(self, ord, dtype)
    return [torch.linalg.vector_norm(t, ord, dtype=dtype) for t in self]
