# SPDX-License-Identifier: Apache-2.0
"""Roots, powers and remainders of single elements, as docs/reproduce/contract.md says."""

from __future__ import annotations

import math
from typing import Any

from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.sums import root
from pytest_udftorch.swap.overrides.python_override import stock

#: Torch computes these powers by products and a quotient, the same everywhere.
_BY_PRODUCTS = (0, 1, 2, 3, -1, -2)


def sqrt(self: Any, *, out: Any) -> Any:
    """Put correctly rounded roots into ``out``."""
    return contract().roots(self, out=out)


def rsqrt_on_cpus(self: Any, *, out: Any) -> Any:
    """Put one over the correctly rounded roots of 16 bits into ``out``, rounded once."""
    return out.copy_(root(self.float()).reciprocal_())


def pow_scalar(self: Any, exponent: Any) -> Any:
    """Return powers whose exponent is a number.

    Stock rounds the exponent to float32 for whole vectors, and does not for the elements behind the
    last one, of which each thread has some. Here it is always rounded.
    """
    import torch

    if isinstance(exponent, complex) or exponent in _BY_PRODUCTS:
        contract()  # kernels in C++ take calls once one is chosen
        return stock(self, exponent)
    if abs(exponent) == 0.5:
        found = root(self)
        return found if exponent > 0 else found.reciprocal_()
    return torch.pow(self, self.new_full((), exponent))


def pow_scalar_(self: Any, exponent: Any) -> Any:
    """Replace elements by their powers."""
    if isinstance(exponent, complex) or exponent in _BY_PRODUCTS:
        contract()  # kernels in C++ take calls once one is chosen
        return stock(self, exponent)
    return self.copy_(pow_scalar(self, exponent))


def fmod(self: Any, other: Any) -> Any:
    """Return what a division toward zero leaves, which is exact."""
    return _mended(stock(self, other), self, other, floor=False)


def fmod_(self: Any, other: Any) -> Any:
    """Replace elements by what a division toward zero leaves."""
    return _overwritten(self, other, floor=False)


def fmod_out(self: Any, other: Any, *, out: Any) -> Any:
    """Put what a division toward zero leaves into ``out``, which may be an argument."""
    return _overwritten(self, other, floor=False, out=out)


def remainder(self: Any, other: Any) -> Any:
    """Return what a division toward minus infinity leaves, which is rounded once."""
    return _mended(stock(self, other), self, other, floor=True)


def remainder_(self: Any, other: Any) -> Any:
    """Replace elements by what a division toward minus infinity leaves."""
    return _overwritten(self, other, floor=True)


def remainder_out(self: Any, other: Any, *, out: Any) -> Any:
    """Put what a division toward minus infinity leaves into ``out``, which may be an argument."""
    return _overwritten(self, other, floor=True, out=out)


def _overwritten(self: Any, other: Any, *, floor: bool, **out: Any) -> Any:
    """Call the stock kernel of a form that may write an argument, and put right what it finds."""
    x, y = self.clone(), other.clone()
    return _mended(stock(self, other, **out), x, y, floor=floor)


def _mended(found: Any, self: Any, other: Any, *, floor: bool) -> Any:
    """Put right what stock finds where a quotient is beyond float32.

    It gives NaN in whole vectors, and the rest for the elements behind the last one. In float64
    no such quotient is too large.
    """
    import torch

    kind = torch.result_type(self, other)
    ours = kind in (torch.float32, torch.bfloat16, torch.float16)
    if not ours or not found.numel() or not bool(found.amax().isnan()):
        return found
    x, y = self.to(kind), other.to(kind).float()
    rest = torch.fmod(x.double(), y.double()).float()
    if floor:
        rest = rest.add(y).where((rest != 0) & ((y < 0) != (rest < 0)), rest)
    return found.copy_(rest)


def arange_(start: Any, end: Any, step: Any = 1, *, out: Any) -> Any:
    """Put ``start + i * step`` into ``out``, computed in float64 and rounded once to float32.

    Stock adds within vectors, from where a thread's part begins. Whole numbers are stock's, and so
    is what stock refuses.
    """
    import torch

    numbers = (start, end, step)
    plain = all(isinstance(n, int) or (isinstance(n, float) and n.is_integer()) for n in numbers)
    if plain or step == 0 or (end - start) / step < 0 or not all(map(math.isfinite, numbers)):
        return stock(start, end, step, out=out)
    count = math.ceil((end - start) / step)
    places = torch.arange(count, device=out.device).double()
    return out.resize_(count).copy_(places.mul_(step).add_(start))
