# SPDX-License-Identifier: Apache-2.0
"""Overloads that write what others return: in place, or into a tensor that they are given.

Torch's kernels of these do not go through the overload that returns a tensor, so it is called here.
What torch refuses, it refuses in its own words.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from pytest_udftorch.swap.overrides.python_override import stock as unwatched


def _written(name: str, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Put what an operator returns into its first tensor."""
    import torch

    try:
        found = getattr(torch, name)(self, *args, **kwargs)
    except (RuntimeError, IndexError):
        found = None
    if found is None or self.shape != found.shape or self.dtype is not found.dtype:
        return unwatched(self, *args, **kwargs)
    return self.copy_(found)


def _filled(name: str, out: Any, *args: Any, **kwargs: Any) -> Any:
    """Put what an operator returns into ``out``, which gets its shape."""
    import torch

    try:
        found = attrgetter(name)(torch)(*args, **kwargs)
    except (RuntimeError, IndexError):
        found = None
    if found is None or out.dtype is not found.dtype:
        return unwatched(*args, **kwargs, out=out)
    if out.shape != found.shape:
        out.resize_(found.shape)
    return out.copy_(found)


def addmm_(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Replace a matrix by itself plus a product."""
    return _written("addmm", self, mat1, mat2, beta=beta, alpha=alpha)


def baddbmm_(self: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Replace matrices by themselves plus products."""
    return _written("baddbmm", self, batch1, batch2, beta=beta, alpha=alpha)


def addmv_(self: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Replace a vector by itself plus a product."""
    return _written("addmv", self, mat, vec, beta=beta, alpha=alpha)


def cumsum_(self: Any, dim: int, *, dtype: Any = None) -> Any:
    """Replace numbers by their running sums."""
    return _written("cumsum", self, dim, dtype=dtype)


def mm_out(self: Any, mat2: Any, *, out: Any) -> Any:
    """Put a product into ``out``."""
    return _filled("mm", out, self, mat2)


def bmm_out(self: Any, mat2: Any, *, out: Any) -> Any:
    """Put products into ``out``."""
    return _filled("bmm", out, self, mat2)


def addmm_out(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any) -> Any:
    """Put a matrix plus a product into ``out``."""
    return _filled("addmm", out, self, mat1, mat2, beta=beta, alpha=alpha)


def baddbmm_out(
    self: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any
) -> Any:
    """Put matrices plus products into ``out``."""
    return _filled("baddbmm", out, self, batch1, batch2, beta=beta, alpha=alpha)


def addmv_out(self: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1, out: Any) -> Any:
    """Put a vector plus a product into ``out``."""
    return _filled("addmv", out, self, mat, vec, beta=beta, alpha=alpha)


def cumsum_out(self: Any, dim: int, *, dtype: Any = None, out: Any) -> Any:
    """Put running sums into ``out``."""
    return _filled("cumsum", out, self, dim, dtype=dtype)


def sum_out(self: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None, out: Any) -> Any:
    """Put sums into ``out``."""
    return _filled("sum", out, self, dim, keepdim, dtype=dtype)


def mean_out(self: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None, out: Any) -> Any:
    """Put means into ``out``."""
    return _filled("mean", out, self, dim, keepdim, dtype=dtype)


def vector_norm_out(
    self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any
) -> Any:
    """Put norms of vectors into ``out``; ``aten::norm`` is composed of it."""
    return _filled("linalg.vector_norm", out, self, ord, dim, keepdim, dtype=dtype)
