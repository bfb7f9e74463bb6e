# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: CPU operators that map elements.

They compute float32, bfloat16 and half. A call with another dtype goes to the stock kernel; so
does a call that the stock kernel refuses, for its message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from pytest_udftorch.swap.cpu.loops import Loops
from pytest_udftorch.swap.operators.calls import Applied
from pytest_udftorch.swap.operators.row import Pointwise
from pytest_udftorch.swap.operators.rows import find
from pytest_udftorch.swap.operators.tensors import is_dense
from pytest_udftorch.swap.overrides.switchboard import switchboard


@functools.cache
def numbers() -> dict[Any, int]:
    """Return dtype -> its number in ``enum dtype`` of ``cpu_loops.h``."""
    import torch

    return {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def numbers_of(op: Pointwise) -> dict[Any, int]:
    """Return the dtypes that the kernels of an operator compute, as ``numbers`` does."""
    row = find(op.name)
    named = row.cpu_dtypes if row is not None else ()
    return {
        dtype: at for dtype, at in numbers().items()
        if not named or str(dtype).removeprefix("torch.") in named
    }  # fmt: skip


def stock_kernel(name: str) -> Callable[..., Any]:
    """Return what calls the stock kernel of an overload at the key CPU."""
    return switchboard.stock(f"aten::{name}", "CPU")


def is_plain(tensors: Sequence[Any]) -> bool:
    """Tell whether tensors are dense and alike in dtype, shape and strides."""
    first = tensors[0]
    return is_dense(first) and all(
        t.dtype == first.dtype and t.shape == first.shape and t.stride() == first.stride()
        for t in tensors[1:]
    )


def _shares(a: Any, b: Any) -> bool:
    """Tell whether a write to one tensor may change the other."""
    return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())


class Kernels:
    """The kernels of one operator."""

    def __init__(self, loops: Loops, op: Pointwise) -> None:
        self.loops = loops
        self.op = op
        self.numbers = numbers_of(op)
        self.scalars = [i for i in range(8) if i not in op.places]
        #: What the formula is told (gelu's word, or nothing) -> the formula.
        self.known: dict[str | None, Applied | None] = {}

    def split(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """Return the tensors of a call and its formula; None if it is for the stock kernel."""
        places = self.op.places
        # One tensor, and at most a word for the formula, is the common case; small tensors feel it.
        alone = len(args) == len(places) == 1
        tensors = tuple(args) if alone else tuple(args[i] for i in places)
        dtype = tensors[0].dtype
        if dtype not in self.numbers:
            return tensors, None
        word = kwargs.get("approximate", "") if alone else None
        if (known := self.known.get(word)) is not None and len(kwargs) == bool(word):
            return tensors, known
        if any(t.dtype != dtype for t in tensors):
            return tensors, None
        try:
            scalars = (args[i] for i in self.scalars if i < len(args))
            formula = self.op.formula(*scalars, **kwargs)
        except KeyError:  # the stock kernel has the words for it
            return tensors, None
        if word is not None and len(kwargs) == bool(word):
            self.known[word] = formula
        return tensors, formula

    def compute(self, formula: Applied, tensors: Sequence[Any], y: Any) -> None:
        """Compute into a dense tensor from tensors like it."""
        if y.numel():
            self.loops.run(self.op.name, formula, tensors, y, self.numbers[y.dtype])

    def overwrite(self, formula: Applied, tensors: Sequence[Any], y: Any) -> None:
        """Overwrite what a stock kernel has computed; ``y`` may have any strides and dtype."""
        import torch

        dtype = tensors[0].dtype
        moved = [t.expand(y.shape).contiguous() for t in tensors]
        fresh = torch.empty(y.shape, dtype=dtype)
        self.compute(formula, moved, fresh)
        y.copy_(fresh)

    def functional(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Return the kernel of the overload that returns a new tensor."""
        import torch

        def kernel(*args: Any, **kwargs: Any) -> Any:
            tensors, formula = self.split(args, kwargs)
            if formula is None:
                return stock(*args, **kwargs)
            first = tensors[0]
            if is_plain(tensors):
                y = torch.empty_like(first)
                self.compute(formula, tensors, y)
            elif len(tensors) == 1:
                # The same strides as TensorIterator gives the result of one tensor with gaps.
                y = torch.empty_like(first).copy_(first)
                self.compute(formula, (y,), y)
            else:
                y = stock(*args, **kwargs)
                self.overwrite(formula, tensors, y)
            return y

        return kernel

    def out(self, stock: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return the kernel of the overload that writes into its argument ``name``."""

        def kernel(*args: Any, **kwargs: Any) -> Any:
            out = kwargs[name]
            others = {k: v for k, v in kwargs.items() if k != name}
            tensors, formula = self.split(args, others)
            if formula is None:
                return stock(*args, **kwargs)
            if is_plain((out, *tensors)) and not any(_shares(t, out) for t in tensors):
                self.compute(formula, tensors, out)
                return out
            # The stock kernel checks and resizes, but must not change what is read afterwards.
            kept = tuple(t.clone() if _shares(t, out) else t for t in tensors)
            stock(*args, **kwargs)
            self.overwrite(formula, kept, out)
            return out

        return kernel

    def inplace(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Return the kernel of the overload that writes into its first tensor."""

        def kernel(*args: Any, **kwargs: Any) -> Any:
            tensors, formula = self.split(args, kwargs)
            if formula is None:
                return stock(*args, **kwargs)
            x = tensors[0]
            if is_plain(tensors):
                self.compute(formula, tensors, x)
                return x
            kept = tuple(t.clone() for t in tensors)
            stock(*args, **kwargs)
            self.overwrite(formula, kept, x)
            return x

        return kernel


def overloads(op: Pointwise) -> tuple[str, ...]:
    """Return the overloads of an operator that are overridden.

    Those on lists of tensors call these.
    """
    return tuple(filter(None, (op.functional, op.out[0] if op.out else "", op.inplace)))


def pointwise_kernels(loops: Loops, op: Pointwise) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of an operator that maps elements."""
    return kernels_of(Kernels(loops, op), stock_kernel)


def kernels_of(
    made: Kernels, below: Callable[[str], Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of an operator.

    Args:
        made: its kernels.
        below: returns what a call that they do not compute goes to.
    """
    op = made.op
    found = {op.functional: made.functional(below(op.functional))}
    if op.out is not None:
        found[op.out[0]] = made.out(below(op.out[0]), op.out[1])
    if op.inplace:
        found[op.inplace] = made.inplace(below(op.inplace))
    return found
