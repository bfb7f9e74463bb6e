# SPDX-License-Identifier: Apache-2.0
"""The first operator by which a way parts from the run over the whole batch.

Both runs are recorded, and their operators aligned, as in a diff. The shapes differ: a step of
decoding has one position, a packed row many sequences. So of each output the part is kept that
belongs to one row of the batch and to the positions that both runs have; equal parts have equal
digests. What is no such part (the tokens of an expert, for one) is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_udftorch.base.dispatch_mode import OperatorWatch
from pytest_udftorch.base.tensor_contents import is_plain, is_real
from pytest_udftorch.diagnose.diff.alignment import Gap, aligned
from pytest_udftorch.swap.observe.digests import note_of
from pytest_udftorch.swap.observe.layers import Place, Whereabouts
from pytest_udftorch.swap.observe.recorder import Call
from pytest_udftorch.swap.observe.recording import given, results
from pytest_udftorch.swap.operators.overload import is_view, name_of, says_numbers
from pytest_udftorch.swap.operators.row import Kind
from pytest_udftorch.swap.operators.rows import find

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
            if self.length and not axis and size > tokens and size % tokens == 0:
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
    """What a call got and gave.

    Attributes:
        inputs: the parts of the tensors that it got; weights have none.
        sources: for each of these tensors, the call that wrote it last, or None.
        outputs: the parts of the tensors that it made.
        moves: whether it only moves numbers.
    """

    inputs: list[Parts]
    sources: list[int | None]
    outputs: list[Parts]
    moves: bool


class Watch(OperatorWatch):
    """Keeps, of every operator's tensors of real numbers, the digests of their parts.

    Attributes:
        calls: the operators in order.
        seen: what each of them got and gave.
    """

    def __init__(self, where: Whereabouts, cut: Cut) -> None:
        self._where, self._cut = where, cut
        self.calls: list[Call] = []
        self.seen: list[_Seen] = []
        self._writers: dict[int, int] = {}  # address of memory -> call

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator, and keep digests of what it got and gave."""
        if is_view(func) or not says_numbers(func):
            return func(*args, **kwargs)
        now = self._where.now()
        place = Place(now.layer, now.phase, 0)
        tensors = _tensors(given(func, args, kwargs))
        inputs = [self._parts(t) for t in tensors]
        sources = [self._writers.get(_address(t)) for t in tensors]
        returned = func(*args, **kwargs)
        made = _tensors(results(func, args, kwargs, returned))
        self._writers |= dict.fromkeys(map(_address, made), len(self.calls))
        self.calls.append(Call(str(func.name()), place, (), (), ""))
        row = find(name_of(func))
        moves = row is not None and row.kind is Kind.MOVES and not row.rounds_if
        self.seen.append(_Seen(inputs, sources, [self._parts(t) for t in made], moves))
        return returned

    def _parts(self, tensor: Any) -> Parts:
        import torch

        if isinstance(tensor, torch.nn.Parameter) or not is_real(tensor):
            return {}
        return self._cut.parts(tensor.detach())


def _tensors(values: Iterable[Any]) -> list[Any]:
    return [v for v in values if is_plain(v)]


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


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

    If what it got differs already, nothing before it that both runs call made the difference: so it
    is the operator where the values come from that ``b`` alone calls.

    Args:
        a: the run over the whole batch.
        b: the other one.
        ends: whether the runs end with other results, so that an operator behind the last one that
            agrees may be it.
    """
    pairs = [p for p in aligned(a.calls, b.calls, shapes=False) if not isinstance(p, Gap)]
    shared = {own: whole for whole, own in pairs if _comparable(a.seen[whole], b.seen[own])}
    known = _agreeing(a, b) | shared.keys()
    for own, whole in shared.items():
        one, other = a.seen[whole], b.seen[own]
        if not any(map(_apart, one.outputs, other.outputs)):
            continue
        for mine, its, source in zip(one.inputs, other.inputs, other.sources, strict=False):
            origin = _origin(b, source, known) if _apart(mine, its) else None
            if origin is not None:
                return _first(b.calls[origin])
        return _first(a.calls[whole])
    forward = [i for i, c in enumerate(b.calls) if c.place.layer and c.place.phase == "forward"]
    origin = _origin(b, forward[-1], known) if ends and forward else None
    return None if origin is None else _first(b.calls[origin])


def _agreeing(a: Watch, b: Watch) -> set[int]:
    """Return the calls of ``b`` that give what occurs in ``a`` too, as copies do."""
    found = {
        part
        for seen in a.seen
        for parts in (*seen.inputs, *seen.outputs)
        for part in parts.values()
    }
    return {
        i
        for i, seen in enumerate(b.seen)
        if any(part in found for parts in seen.outputs for part in parts.values())
    }


def _comparable(a: _Seen, b: _Seen) -> bool:
    """Tell whether two calls give parts that can be compared."""
    return any(
        a_part[name][0] == b_part[name][0]
        for a_part, b_part in zip(a.outputs, b.outputs, strict=False)
        for name in a_part
        if name in b_part
    )


def _origin(run: Watch, call: int | None, known: Set[int]) -> int | None:
    """Return the first operator on the way to a call that cannot be compared with the other run's.

    None if the call itself can, or if no module makes it. What only moves numbers is passed by.
    """
    found: int | None = None
    while call is not None and call not in known and run.calls[call].place.layer:
        found = found if run.seen[call].moves else call
        before = [s for s in run.seen[call].sources if s is not None and s not in known]
        call = min(before, default=None)
    return found


def _first(call: Call) -> First:
    return First(call.operator, call.place.layer)
