# SPDX-License-Identifier: Apache-2.0
"""Change the results of operators by one unit in the last place, up or down at random.

Where IEEE 754 rounds an operation once (sums, differences, products, quotients, roots of tensors),
float64 says whether a result in a shorter type is exact, and on which side of it the true one lies:
an exact result stays, another goes to one of the two numbers around the true one, each with
probability 1/2 (random rounding: Vignes 1993, Parker 1997). The results of other operators that
compute go one number up or down. Zeros, infinities and NaNs stay, and so do results of operators
that move or select numbers, make them from none, or draw random ones.

Numbers may cancel inside one operator. So an operator that has a definition in torch is also
computed by that, with the results of each operator in it changed; sums and products are also
computed from inputs that are changed. Where that leads farther than eight units from the result, it
takes its place. Complex numbers are changed in both parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import watching
from pytest_udftorch.base.tensor_contents import contents, is_plain
from pytest_udftorch.prove.judge.truth import unwritten
from pytest_udftorch.swap.observe.recording import draws, results
from pytest_udftorch.swap.operators.overload import is_exact, name_of
from pytest_udftorch.swap.operators.row import Kind
from pytest_udftorch.swap.operators.rows import find

#: Integers of the width of a type, whose order is that of the magnitudes.
_WIDTHS: Final = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}

#: Units beyond which a sample takes the place of a result: less is what sums round off otherwise.
_FAR: Final = 8

#: Definitions within definitions that are followed.
_DEEPEST: Final = 3


class Perturbation:
    """Changes results by one unit in the last place.

    Args:
        seed: of what goes up and what goes down.
        operators: base names of the operators that are changed (``mm``); None: all.

    Attributes:
        changed: how many results were.
        unseen: operators inside of which nothing was changed: they have no definition.
    """

    def __init__(self, seed: int, operators: Collection[str] | None = None) -> None:
        self._seed = seed
        self._only = None if operators is None else frozenset(operators)
        self._generators: dict[Any, Any] = {}
        self._depth = 0
        self.changed = 0
        self.unseen: set[str] = set()

    def call(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator, and change its results."""
        if not self.applies(operator, args, kwargs):
            return operator(*args, **kwargs)
        truth = self.truth(operator, args, kwargs)
        samples = self._samples(operator, args, kwargs) if truth is None else None
        returned = operator(*args, **kwargs)
        for number, tensor in enumerate(results(operator, args, kwargs, returned)):
            sample = samples[number] if samples is not None and number < len(samples) else None
            self.change(tensor, None if truth is None else truth(), sample)
        return returned

    def _samples(self, operator: Any, args: Any, kwargs: Any) -> list[Any] | None:
        """Return what an operator gives if rounding inside it goes otherwise; None if unknown."""
        name = str(operator.name())
        row = find(name_of(operator).removesuffix("_"))
        kind = None if row is None else row.kind
        leaves = compat.pytree().tree_leaves((args, kwargs))
        if kind is Kind.MAPS or self._depth >= _DEEPEST or not _all_plain(leaves):
            return None
        args, kwargs = unwritten(operator, args, kwargs)
        definition = compat.decompositions().get(operator)
        self._depth += 1
        try:
            if kind in (Kind.SUMS, Kind.PRODUCTS) or (definition is None and kind is Kind.REDUCES):
                args, kwargs = compat.pytree().tree_map(self._shaken, (args, kwargs))
                returned = operator(*args, **kwargs)
            elif definition is not None:
                with watching(self.call):
                    returned = definition(*args, **kwargs)
            else:
                returned = NotImplemented
        except Exception:  # of a definition that does not hold for these arguments
            returned = NotImplemented
        finally:
            self._depth -= 1
        if returned is NotImplemented:
            self.unseen.add(name)
            return None
        return results(operator, args, kwargs, returned)

    def _shaken(self, value: Any) -> Any:
        """Return a copy of a tensor with its numbers up or down by one unit."""
        import torch

        if not isinstance(value, torch.Tensor) or not _is_inexact(value.dtype):
            return value
        copied = value.detach().resolve_conj().clone()
        self._change(torch.view_as_real(copied) if copied.is_complex() else copied, None)
        return copied

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

    def change(self, tensor: Any, truth: Any = None, sample: Any = None) -> None:
        """Change a result in place.

        Args:
            tensor: the result.
            truth: it in float64, if it is known.
            sample: what it is if rounding inside the operator goes otherwise, if that is known.
        """
        import torch

        far: Any = None
        if sample is not None and _is_like(sample, tensor):
            units = _FAR * torch.finfo(tensor.dtype).eps * tensor.abs()
            far = ((sample - tensor).abs() > units) & sample.isfinite()
        for part in contents(tensor) or ():
            if part.is_complex() and not part.is_conj():
                wide = truth is not None and truth.is_complex() and is_plain(tensor)
                self._change(torch.view_as_real(part), torch.view_as_real(truth) if wide else None)
            elif part.is_floating_point():
                self._change(part, truth if is_plain(tensor) else None)
        if far is not None and bool(far.any()):
            tensor.copy_(torch.where(far, sample, tensor))

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


def _all_plain(values: Any) -> bool:
    import torch

    return all(is_plain(v) for v in values if isinstance(v, torch.Tensor))


def _is_like(sample: Any, tensor: Any) -> bool:
    """Tell whether a sample of a result can take its place."""
    like = sample.shape == tensor.shape and sample.dtype == tensor.dtype
    return like and is_plain(tensor) and is_plain(sample) and _is_inexact(tensor.dtype)


def _is_inexact(dtype: Any) -> bool:
    return bool(dtype.is_floating_point or dtype.is_complex)


def _widened(tensor: Any) -> Any:
    """Return a copy in double precision; the values of a complex tensor stay complex."""
    import torch

    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()
