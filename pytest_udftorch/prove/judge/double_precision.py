# SPDX-License-Identifier: Apache-2.0
"""Run a computation in float64 throughout, or say where it leaves it.

A model in float64 need not compute in it: ``x.float()``, a constant of float32, a function of
integers, a norm that computes in float32 by design. Its result is then no truth. Here such casts
go to float64, operators get their numbers in it, and what leaves it all the same is said.
"""

from __future__ import annotations

from typing import Any, Self

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import OperatorWatch
from pytest_udftorch.base.tensor_contents import is_plain
from pytest_udftorch.prove.judge.definitions import by_definition
from pytest_udftorch.swap.observe.recorder import Recording
from pytest_udftorch.swap.observe.recording import draws, effects

#: Operators that read the bits of numbers as those of another type.
_BITS = ("aten::view.dtype",)


class DoublePrecision(OperatorWatch):
    """While entered, computes in float64 what operators would compute in shorter types.

    Attributes:
        left: the first operator that leaves float64 nevertheless, in words; empty if none does.
        drew: the first operator that draws random numbers, which are others in float64; or empty.
        recording: an empty one.
    """

    def __init__(self) -> None:
        self.left = self.drew = ""
        self.recording = Recording()

    def __enter__(self) -> Self:
        import torch

        # Functions of integers give it, and numbers of Python become tensors of it.
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        import torch

        super().__exit__(*exception)
        torch.set_default_dtype(self._default)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator in float64."""
        import torch

        name, leaves = str(func.name()), compat.pytree().tree_leaves
        if draws(func, args, kwargs):
            self.drew = self.drew or name
        written = {id(t) for p in effects(func).written for t in leaves(p.of(args, kwargs))}
        if any(map(_is_cut_off, leaves((args, kwargs)))):
            raise RuntimeError(
                f"{name} gets a tensor that is longer than its memory: something gives memory "
                "by the bytes of a shorter type"
            )

        def wide(value: Any) -> Any:
            return value if id(value) in written else widened(value)

        args, kwargs = compat.pytree().tree_map(wide, (args, kwargs))
        try:
            returned = func(*args, **kwargs)
        except RuntimeError:
            # Attention's kernels, for instance, know shorter types alone.
            returned = NotImplemented if written else by_definition(func, args, kwargs)
            if returned is NotImplemented:
                raise
        made = [t for t in leaves(returned) if isinstance(t, torch.Tensor)]
        if name in _BITS or any(_is_short(t.dtype) for t in made):
            self.left = self.left or name
        return returned


def widened(value: Any) -> Any:
    """Return an argument of an operator with real numbers in float64, complex ones in complex128.

    Args:
        value: a tensor or a dtype; anything else is returned as it is.
    """
    import torch

    if isinstance(value, torch.dtype) and _is_short(value):
        return torch.complex128 if value.is_complex else torch.float64
    if isinstance(value, torch.Tensor) and _is_short(value.dtype):
        return value.to(widened(value.dtype))
    return value


def _is_cut_off(value: Any) -> bool:
    """Tell whether a tensor ends behind its memory, of which torch would read and write anyway."""
    import torch

    if not isinstance(value, torch.Tensor) or not is_plain(value) or not value.numel():
        return False
    last = sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    end = (value.storage_offset() + last + 1) * value.element_size()
    return bool(end > value.untyped_storage().nbytes())


def _is_short(dtype: Any) -> bool:
    import torch

    inexact = dtype.is_floating_point or dtype.is_complex
    return bool(inexact and dtype not in (torch.float64, torch.complex128))
