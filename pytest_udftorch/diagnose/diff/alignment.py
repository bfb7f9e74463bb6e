# SPDX-License-Identifier: Apache-2.0
"""Which call of one run is which of the other, and the first at which they part."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pytest_udftorch.swap.observe.digests import TensorNote, comparable, same_bits
from pytest_udftorch.swap.observe.recorder import Call, Recording

#: Beyond this many calls that are not the same on both sides, blocks are compared by operator and
#: layer alone: the time of an alignment grows with the square.
_FINE: Final = 4000

Kind = Literal["operator", "arguments", "random", "sequence", "inputs", "result", "compiled"]


@dataclass(frozen=True)
class Gap:
    """Calls that only one side has, or that the sides have in another form.

    Attributes:
        a: the first position in a's calls, and the one behind the last.
        b: likewise.
    """

    a: tuple[int, int]
    b: tuple[int, int]


@dataclass(frozen=True)
class Parting:
    """The first place at which two runs part.

    Attributes:
        kind: ``operator``: equal inputs, other outputs. ``arguments``: equal tensors, but other
            numbers among the arguments. ``random``: the generators' states differ. ``sequence``:
            the sides call other operators, and what they give differs. ``inputs``: an operator gets
            other tensors, which no operator before made. ``result``: only what the run gives
            differs. ``compiled``: what a compiled run gives differs.
        a: position in a's calls, or None.
        b: position in b's calls, or None.
        gap: the calls of which the other side has none, for ``sequence``.
    """

    kind: Kind
    a: int | None = None
    b: int | None = None
    gap: Gap | None = None


def _keys(calls: Sequence[Call], fine: bool, shapes: bool) -> list[Hashable]:
    if not fine:
        return [(c.operator, c.place) for c in calls]
    return [
        (c.operator, c.place, tuple(t.shape for t in c.inputs) if shapes else len(c.inputs))
        for c in calls
    ]


def aligned(
    a: Sequence[Call], b: Sequence[Call], shapes: bool = True
) -> list[tuple[int, int] | Gap]:
    """Return pairs of positions of the same call, and gaps, in order.

    Args:
        a: calls of one run.
        b: calls of the other.
        shapes: whether a call has the same shapes on both sides.
    """
    fine = max(len(a), len(b)) <= _FINE
    first, second = _keys(a, fine, shapes), _keys(b, fine, shapes)
    head = 0
    while head < min(len(first), len(second)) and first[head] == second[head]:
        head += 1
    tail = 0
    while tail < min(len(first), len(second)) - head and first[-1 - tail] == second[-1 - tail]:
        tail += 1
    found: list[tuple[int, int] | Gap] = [(i, i) for i in range(head)]
    middle = first[head : len(first) - tail], second[head : len(second) - tail]
    for tag, i, end_i, j, end_j in difflib.SequenceMatcher(
        None, *middle, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            found += [(head + i + k, head + j + k) for k in range(end_i - i)]
        else:
            found.append(Gap((head + i, head + end_i), (head + j, head + end_j)))
    found += [(len(first) - tail + k, len(second) - tail + k) for k in range(tail)]
    return found


def same_inputs(a: Call, b: Call) -> bool:
    """Tell whether two calls get tensors of the same bits."""
    return len(a.inputs) == len(b.inputs) and all(map(same_bits, a.inputs, b.inputs))


def same_outputs(a: Call, b: Call) -> bool:
    """Tell whether two calls give tensors of the same bits."""
    return len(a.outputs) == len(b.outputs) and all(map(same_bits, a.outputs, b.outputs))


def differing(
    a: Recording, b: Recording, pairs: Sequence[tuple[int, int] | Gap]
) -> list[tuple[int, int]]:
    """Return the pairs whose outputs differ."""
    return [
        p
        for p in pairs
        if not isinstance(p, Gap) and not same_outputs(a.calls[p[0]], b.calls[p[1]])
    ]


def _shapes(notes: Sequence[TensorNote]) -> list[tuple[int, ...]]:
    return [note.shape for note in notes]


def _mixes_rows(one: Call, other: Call) -> bool:
    """Tell whether calls with a batch and with a row of it give tensors of the same shape."""
    inputs = _shapes(one.inputs) == _shapes(other.inputs)
    return not inputs and _shapes(one.outputs) == _shapes(other.outputs)


def _beyond_rows(one: Call, other: Call) -> bool:
    """Tell whether calls give tensors of which none is a row of the other."""
    return not all(map(comparable, one.outputs, other.outputs))


def _kind(one: Call, other: Call, batch: bool) -> Kind | None:
    """Return why two aligned calls are a place of parting, or None if they are none."""
    if same_outputs(one, other):
        return None
    if not same_inputs(one, other):
        return "inputs"
    if batch and (_mixes_rows(one, other) or _beyond_rows(one, other)):
        return None
    if one.random != other.random:
        return "random"
    # The row alone has other sizes among its arguments.
    if one.arguments != other.arguments and not batch:
        return "arguments"
    return "operator"


def parting(
    a: Recording,
    b: Recording,
    pairs: Sequence[tuple[int, int] | Gap],
    *,
    batch: bool = False,
) -> Parting | None:
    """Return the first place at which two runs part, or None if all that they give is equal.

    Args:
        a: one run.
        b: the other.
        pairs: from :func:`aligned`.
        batch: whether one side runs a row of the other's batch.
    """
    gap: Gap | None = None
    for pair in pairs:
        if isinstance(pair, Gap):
            gap = gap or pair
            continue
        kind = _kind(a.calls[pair[0]], b.calls[pair[1]], batch)
        if kind == "inputs" and gap is not None:
            return Parting("sequence", *pair, gap)
        if kind is not None:
            return Parting(kind, *pair)
    if not same_result(a, b):
        return Parting("sequence", gap=gap) if gap is not None else Parting("result")
    return None


def same_result(a: Recording, b: Recording) -> bool:
    """Tell whether two runs give the same names and bits."""
    return a.result.keys() == b.result.keys() and all(
        same_bits(note, b.result[name]) for name, note in a.result.items()
    )
