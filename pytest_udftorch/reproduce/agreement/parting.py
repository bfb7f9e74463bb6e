# SPDX-License-Identifier: Apache-2.0
"""The first operator by which a way parts from the run over the whole batch.

Both runs are recorded, and their operators aligned, as in a diff. The shapes differ: a step of
decoding has one position, a packed row many sequences. So of each output the part is kept that
belongs to one row of the batch and to the positions that both runs have; equal parts have equal
digests. What is no such part (the tokens of an expert, for one) is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import OperatorWatch
from pytest_udftorch.diagnose.diff.alignment import Gap, aligned
from pytest_udftorch.swap.observe.digests import note_of
from pytest_udftorch.swap.observe.layers import Whereabouts
from pytest_udftorch.swap.observe.recorder import Call
from pytest_udftorch.swap.observe.recording import draws, effects, results
from pytest_udftorch.swap.operators.overload import is_view, says_numbers

#: Variant of a cut -> the sizes and the digest of the part that it leaves.
Parts = Mapping[str, tuple[tuple[int, ...], bytes]]


class First(NamedTuple):
    """The operator by which two runs part.

    Attributes:
        operator: its overload, such as ``aten::addmm``.
        layer: the path of the module that calls it.
    """

    operator: str
    layer: str

    def __str__(self) -> str:
        return f"{self.operator} in {self.layer}" if self.layer else self.operator


@dataclass(frozen=True)
class Cut:
    """Which part of a run's tensors belongs to one row and to some positions.

    Attributes:
        batch: how many rows the run has.
        row: the one.
        length: how many positions it has.
        start: the first of those that count.
        stop: the one behind the last.
        memory: how many positions keys have.
        first: the key of the first token.
        last: the one behind that of the last token that counts.
    """

    batch: int
    row: int
    length: int
    start: int
    stop: int
    memory: int
    first: int
    last: int

    def parts(self, tensor: Any) -> Parts:
        """Return the digests of the parts, without dimensions of size 1."""
        found: dict[str, tuple[tuple[int, ...], bytes]] = {}
        own = self._of_row(tensor)
        if own is None or (own.dim() < 2 and not self._axes(own)):
            return found
        for name in ("queries", "keys", "both"):
            part = self._of_positions(own, name).squeeze()
            if part.numel():
                found[name] = tuple(part.shape), note_of(part.contiguous()).digest
        return found

    def _of_row(self, tensor: Any) -> Any:
        """Take the row out of the first dimension that is the batch, or begins with it."""
        lengths = {self.length, self.memory} - {0, self.batch}
        tokens = self.batch * max(self.length, 1)
        for axis, size in enumerate(tensor.shape[:2]):
            if self.length and size > tokens and size % tokens == 0:
                return None  # tokens in the order of a router
            if size in lengths or self.batch == 1 == size:
                continue
            whole = size in (self.batch, self.batch * self.length)
            if not whole and (axis or size % self.batch or not size):
                continue
            tensor = tensor.unflatten(axis, (self.batch, size // self.batch))
            return tensor.select(axis, self.row)
        return tensor

    def _axes(self, tensor: Any) -> list[int]:
        """Return the dimensions that are positions of queries or keys."""
        return [i for i, n in enumerate(tensor.shape) if n in (self.length, self.memory) and n > 1]

    def _of_positions(self, tensor: Any, variant: str) -> Any:
        axes = self._axes(tensor)
        for axis in axes:
            size = tensor.shape[axis]
            by_keys = variant == "keys" or (variant == "both" and axis == axes[-1])
            if size == self.memory and (by_keys or size != self.length):
                tensor = tensor.narrow(axis, self.first, self.last - self.first)
            elif size == self.length and not by_keys:
                tensor = tensor.narrow(axis, self.start, self.stop - self.start)
        return tensor


class _Seen(NamedTuple):
    """What a call got and gave, as parts; weights are left out."""

    inputs: list[Parts]
    outputs: list[Parts]


class Watch(OperatorWatch):
    """Keeps, of every operator's tensors of real numbers, the digests of their parts.

    Attributes:
        calls: the operators in order.
        seen: for each of them, its parts.
    """

    def __init__(self, where: Whereabouts, cut: Cut) -> None:
        self._where, self._cut = where, cut
        self.calls: list[Call] = []
        self.seen: list[_Seen] = []

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator, and keep digests of what it got and gave."""
        if is_view(func) or not says_numbers(func):
            return func(*args, **kwargs)
        place = self._where.now()._replace(step=0)
        random = b"" if draws(func, args, kwargs) else None
        over = {id(p.of(args, kwargs)) for p in effects(func).overwritten}
        given = compat.pytree().tree_leaves((args, kwargs))
        inputs = self._parts(v for v in given if id(v) not in over)
        returned = func(*args, **kwargs)
        outputs = self._parts(results(func, args, kwargs, returned))
        self.calls.append(Call(str(func.name()), place, (), (), "", random))
        self.seen.append(_Seen(inputs, outputs))
        return returned

    def _parts(self, values: Iterable[Any]) -> list[Parts]:
        import torch

        return [
            self._cut.parts(v.detach())
            for v in values
            if isinstance(v, torch.Tensor)
            and not isinstance(v, torch.nn.Parameter)
            and v.is_floating_point()
        ]


def recorded(run: Callable[[], Any], cut: Cut) -> Watch:
    """Run something, and return what its operators got and gave."""
    where = Whereabouts()
    watch = Watch(where, cut)
    with where, watch:
        run()
    return watch


def _apart(a: Parts, b: Parts) -> bool:
    """Tell whether two tensors have comparable parts, and none of them is equal."""
    common = [name for name in a if name in b and a[name][0] == b[name][0]]
    return bool(common) and all(a[name][1] != b[name][1] for name in common)


def first_parting(a: Watch, b: Watch, ends: bool = True) -> First | None:
    """Return the first operator of two runs whose outputs differ where they can be compared.

    If its inputs differ already, an operator between it and the last one before that agrees makes
    the difference, and one run alone calls it: one that draws random numbers, else the last.

    Args:
        a: one run.
        b: the other.
        ends: whether the runs end with other results, so that an operator behind the last one that
            agrees may be it.
    """
    alone: list[First] = []
    drawn: list[First] = []
    for pair in aligned(a.calls, b.calls, shapes=False):
        if isinstance(pair, Gap):
            for run, (start, end) in ((a, pair.a), (b, pair.b)):
                for call in run.calls[start:end]:
                    (alone if call.random is None else drawn).append(_first(call))
            continue
        one, other = a.seen[pair[0]], b.seen[pair[1]]
        if any(map(_apart, one.outputs, other.outputs)):
            if any(map(_apart, one.inputs, other.inputs)) and (drawn or alone):
                return [*alone, *drawn][-1]
            return _first(a.calls[pair[0]])
        if one.outputs and other.outputs:
            alone, drawn = [], []
    return [*alone, *drawn][-1] if ends and (alone or drawn) else None


def _first(call: Call) -> First:
    return First(call.operator, call.place.layer)
