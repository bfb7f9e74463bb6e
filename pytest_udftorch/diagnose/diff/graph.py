# SPDX-License-Identifier: Apache-2.0
"""The operators of both runs as one graph, with the distance of each one's outputs.

An operator takes what the last operator before it gave with the same bits, as far as digests tell:
views are not operators, and a tensor that nobody made is an input of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_udftorch.diagnose.diff.alignment import Gap, same_inputs, same_outputs
from pytest_udftorch.swap.observe.digests import UNREADABLE, distance
from pytest_udftorch.swap.observe.layers import Place
from pytest_udftorch.swap.observe.recorder import Call, Recording

On = Literal["both", "a", "b"]


@dataclass(frozen=True)
class Node:
    """An operator of one run or of both.

    Attributes:
        operator: the overload.
        place: its layer, phase and step.
        on: the side that calls it.
        calls: its position among a's calls and among b's.
        differs: whether its outputs differ.
        same_inputs: whether it gets the same bits on both sides.
        distance: the largest distance of an output, relative to its norm and estimated from
            samples; 0 where the samples are equal, None where they cannot be compared.
        sources: the nodes whose outputs it gets.
    """

    operator: str
    place: Place
    on: On
    calls: tuple[int | None, int | None]
    differs: bool = False
    same_inputs: bool = True
    distance: float | None = None
    sources: tuple[int, ...] = ()


def graph_of(
    a: Recording, b: Recording, pairs: Sequence[tuple[int, int] | Gap]
) -> tuple[Node, ...]:
    """Return the nodes in the order of the runs; a's come first where only one side has them."""
    found: list[Node] = []
    makers: dict[str, dict[bytes, int]] = {"a": {}, "b": {}}

    def add(node: Node, one: Call, other: Call | None) -> None:
        side = "b" if node.on == "b" else "a"
        known = (makers[side].get(note.digest) for note in one.inputs)
        sources = tuple(dict.fromkeys(k for k in known if k is not None))
        number = len(found)
        found.append(Node(**{**vars(node), "sources": sources}))
        for name, call in ((side, one), ("b", other)):
            for note in call.outputs if call is not None else ():
                if note.digest != UNREADABLE:
                    makers[name][note.digest] = number

    for pair in pairs:
        if isinstance(pair, Gap):
            for i in range(*pair.a):
                add(Node(a.calls[i].operator, a.calls[i].place, "a", (i, None)), a.calls[i], None)
            for j in range(*pair.b):
                add(Node(b.calls[j].operator, b.calls[j].place, "b", (None, j)), b.calls[j], None)
            continue
        one, other = a.calls[pair[0]], b.calls[pair[1]]
        differs = not same_outputs(one, other)
        add(
            Node(
                one.operator, one.place, "both", pair, differs, same_inputs(one, other),
                _distance(one, other) if differs else 0.0,
            ),
            one,
            other,
        )  # fmt: skip
    return tuple(found)


def _distance(one: Call, other: Call) -> float | None:
    far = [distance(x, y) for x, y in zip(one.outputs, other.outputs, strict=False)]
    return max((d for d in far if d is not None), default=None)
