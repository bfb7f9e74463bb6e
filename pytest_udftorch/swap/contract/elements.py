# SPDX-License-Identifier: Apache-2.0
"""Roots and powers of single elements, as docs/reproduce/contract.md says."""

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
