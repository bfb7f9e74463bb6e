# SPDX-License-Identifier: Apache-2.0
"""Change the results of operators by one unit in the last place, up or down at random.

Where IEEE 754 rounds an operation once (sums, differences, products, quotients, roots of tensors),
float64 says whether a result in a shorter type is exact, and on which side of it the true one lies:
an exact result stays, another goes to one of the two numbers around the true one, each with
probability 1/2 (random rounding: Vignes 1993, Parker 1997). The results of other operators that
compute go one number up or down. Zeros, infinities and NaNs stay, and so do results of operators
that move or select numbers, make them from none, or draw random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.base.tensor_contents import contents, is_plain
from pytest_udftorch.swap.observe.recording import draws
from pytest_udftorch.swap.operators.overload import is_exact, name_of
from pytest_udftorch.swap.operators.rows import find

#: Integers of the width of a type, whose order is that of the magnitudes.
_WIDTHS: Final = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


class Perturbation:
    """Changes results by one unit in the last place.

    Args:
        seed: of what goes up and what goes down.
        operators: base names of the operators that are changed (``mm``); None: all.
    """

    def __init__(self, seed: int, operators: Collection[str] | None = None) -> None:
        self._seed = seed
        self._only = None if operators is None else frozenset(operators)
        self._generators: dict[Any, Any] = {}
        self.changed = 0

    def applies(self, operator: Any, args: Any, kwargs: Any) -> bool:
        """Tell whether results of this call are changed."""
        import torch

        name = name_of(operator).removesuffix("_")
        if self._only is not None and name not in self._only:
            return False
        if is_exact(operator, args, kwargs) or draws(operator, args, kwargs):
            return False
        given = compat.pytree().tree_leaves((args, kwargs))
        return any(isinstance(t, torch.Tensor) and _is_inexact(t.dtype) for t in given)

    def truth(self, operator: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """Return what gives the result in float64, for a call that has not been done yet.

        None if the operator rounds more than once, or in float64 itself.
        """
        import torch

        name = name_of(operator).removesuffix("_")
        tensors = [t for t in compat.pytree().tree_leaves(args) if isinstance(t, torch.Tensor)]
        row = find(name)
        once = row is not None and row.roundings == 1
        shortest = all(t.dtype not in (torch.float64, torch.complex128) for t in tensors)
        if not once or kwargs or not shortest or not all(map(is_plain, tensors)):
            return None
        packet = getattr(torch.ops.aten, name)
        # What is written in place is read first.
        wide = [_widened(a) if isinstance(a, torch.Tensor) else a for a in args]
        return lambda: packet(*wide)

    def change(self, tensor: Any, truth: Any = None) -> None:
        """Change a result in place."""
        import torch

        for part in contents(tensor) or ():
            if part.is_complex() and not part.is_conj():
                wide = truth is not None and truth.is_complex() and is_plain(tensor)
                self._change(torch.view_as_real(part), torch.view_as_real(truth) if wide else None)
            elif part.is_floating_point():
                self._change(part, truth if is_plain(tensor) else None)

    def _change(self, tensor: Any, truth: Any) -> None:
        """Change a plain tensor of real numbers."""
        import torch

        if not tensor.numel() or 0 in tensor.stride():
            return
        bits = tensor.view(getattr(torch, _WIDTHS[tensor.element_size()]))
        magnitude = bits & torch.iinfo(bits.dtype).max
        largest = torch.tensor(torch.finfo(tensor.dtype).max, dtype=tensor.dtype)
        most = int(largest.view(bits.dtype))
        up = self._coins(tensor)
        plain = (magnitude > 0) & (magnitude <= most)
        if truth is not None and truth.shape == tensor.shape:
            # Up stands for away from zero.
            rest = (truth - tensor.double()) * tensor.sign()
            plain &= rest != 0
            moves, up = up, rest > 0
            plain &= moves
        plain &= ~(up & (magnitude == most))
        bits += torch.where(plain, torch.where(up, 1, -1), 0).to(bits.dtype)
        self.changed += 1

    def _coins(self, like: Any) -> Any:
        import torch

        own = self._generators.get(like.device)
        if own is None:
            own = torch.Generator(like.device).manual_seed(self._seed)
            self._generators[like.device] = own
        drawn = torch.rand(like.shape, generator=own, device=like.device, dtype=torch.float32)
        return drawn < 0.5


def _is_inexact(dtype: Any) -> bool:
    return bool(dtype.is_floating_point or dtype.is_complex)


def _widened(tensor: Any) -> Any:
    """Return a copy in double precision; the values of a complex tensor stay complex."""
    import torch

    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()
