# SPDX-License-Identifier: Apache-2.0
"""NaNs, infinities and subnormal numbers: where a tensor has them, and whether they reach an end.

torch makes many that it masks away: the gradient of a norm at zero, of a power of zero, an entropy
under ``where``. Such a number reaches an end if it lies in a tensor that no operator used (a
result, a gradient, a parameter), or if Python reads it. One that an operator got and did not hand
on is masked: whatever that operator gives is clean. An infinity may be handed on as a NaN.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_udftorch.base.tensor_contents import contents
from pytest_udftorch.swap.operators.overload import name_of
from pytest_udftorch.swap.operators.row import Kind
from pytest_udftorch.swap.operators.rows import find

Special = Literal["nan", "inf", "subnormal"]


def mask_of(kind: Special, plain: Any) -> Any:
    """Return which elements of a plain tensor of real or complex numbers are special."""
    import torch

    if plain.element_size() == 1:  # of the types of eight bits few operators know more
        plain = plain.float()
    if kind == "nan":
        return plain.isnan()
    if kind == "inf":
        return plain.isinf()
    if plain.is_complex():
        return mask_of(kind, torch.view_as_real(plain.detach().resolve_conj())).any(-1)
    return (plain != 0) & (plain.abs() < torch.finfo(plain.dtype).tiny)


def special_part(kind: Special, tensor: Any) -> Any:
    """Return the first plain tensor in a tensor that holds a special number, and which do, or None.

    Args:
        kind: what to look for.
        tensor: of any kind; one that cannot be looked at holds none.
    """
    for part in contents(tensor) or ():
        if (part.is_floating_point() or part.is_complex()) and part.numel():
            mask = mask_of(kind, part)
            if bool(mask.any()):
                return part, mask
    return None


def is_special(kind: Special, value: Any) -> bool:
    """Tell whether an argument of an operator is or holds a special number."""
    import torch

    if isinstance(value, float | complex):
        if kind == "nan":
            return cmath.isnan(value)
        return kind == "inf" and cmath.isinf(value)
    return isinstance(value, torch.Tensor) and special_part(kind, value) is not None


@dataclass
class _Trace:
    """A tensor's memory that holds special numbers which an operator made.

    Attributes:
        made: the number of the call that made the first of them.
        backward: whether they were written in a backward pass.
        used: whether an operator got them since.
    """

    made: int
    backward: bool
    used: bool = False


@dataclass
class Ends:
    """Follows special numbers from the operators that made them to where they end.

    Attributes:
        reached: the numbers of the calls whose special numbers reached an end so far.
    """

    reached: set[int] = field(default_factory=set)
    _traces: dict[int, _Trace] = field(default_factory=dict)  # address of memory -> what is there

    def cause(self, given: Iterable[Any]) -> int | None:
        """Return which call made the special numbers that an operator gets, None if none did."""
        found = [self._traces[a].made for a in _addresses(given) if a in self._traces]
        return min(found, default=None)

    def saw(
        self,
        operator: Any,
        given: Sequence[Any],
        outputs: Sequence[tuple[Any, bool]],
        cause: int | None,
        backward: bool,
    ) -> None:
        """Take in a call.

        Args:
            operator: its overload.
            given: the tensors that it got and did not only overwrite.
            outputs: the tensors that it made or wrote into, and whether each holds a special one.
            cause: the call that made the special numbers in its outputs; None if nobody did.
            backward: whether it belongs to a backward pass.
        """
        row = find(name_of(operator))
        asks = row is not None and row.kind in (Kind.ASKS, Kind.MAKES)
        got = set(_addresses(given))
        numbers = any(t.is_floating_point() or t.is_complex() for t, _ in outputs)
        # Comparisons, checks and copies of a shape look at numbers without using them. A gradient
        # may be clean although the forward result that it is computed from is not.
        if numbers and not asks:
            for address in got & self._traces.keys():
                trace = self._traces[address]
                trace.used |= trace.backward or not backward
        for tensor, special in outputs:
            for address in _addresses([tensor]):
                self._wrote(address, address in got, special, tensor, cause, backward)

    def _wrote(
        self, address: int, known: bool, special: bool, tensor: Any, cause: int | None, back: bool
    ) -> None:
        before = self._traces.get(address)
        if before is not None and not known:
            self._end(self._traces.pop(address))  # its memory was given back and is used again
            before = None
        if special and cause is not None:
            self._traces[address] = _Trace(cause, back)
        elif before is not None and _covers(tensor):
            del self._traces[address]

    def _end(self, trace: _Trace) -> None:
        if not trace.used:
            self.reached.add(trace.made)

    def end(self) -> set[int]:
        """Return the calls whose special numbers reached an end, now that nothing follows."""
        for trace in self._traces.values():
            self._end(trace)
        self._traces.clear()
        return self.reached


def _addresses(tensors: Iterable[Any]) -> list[int]:
    """Return where the memory of tensors lies, of their contents where they have none."""
    parts = [part for tensor in tensors for part in contents(tensor) or ()]
    return [int(part.untyped_storage().data_ptr()) for part in parts if part.numel()]


def _covers(tensor: Any) -> bool:
    """Tell whether a tensor is all of its memory, so that nothing special is left in the rest."""
    parts = contents(tensor) or ()
    return all(p.numel() * p.element_size() >= p.untyped_storage().nbytes() for p in parts)


def text_of(value: complex) -> str:
    """Return a number as a report shows it."""
    return f"{value:g}"


def real_or_text(value: complex) -> float | str:
    """Return a number as plain data: a complex one as text."""
    if isinstance(value, complex):
        return str(value)
    return value if math.isfinite(value) else str(value)
