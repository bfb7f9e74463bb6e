# SPDX-License-Identifier: Apache-2.0
"""Several products or convolutions by one matrix or kernel, as one of a larger batch.

``conv(a, k)`` and ``conv(b, k)`` become one convolution of both images, and a product of a batch of
matrices by one matrix, which torch expands, becomes one product of all rows. Each program is judged
by the box test, as mutants are: it has to be right everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.measure.rewrite.boxes import equivalence
from pytest_udftorch.measure.rewrite.graphs import aten, calls, packet_name, value
from pytest_udftorch.measure.rewrite.mutants import CHANNELS
from pytest_udftorch.measure.rewrite.taso.matcher import called, in_order

#: Operator -> which of its arguments is a batch, or rows, of which each is computed alone.
_ALONE: Final = {"convolution": 0, "mm": 0, "addmm": 1}
#: The box test looks at matrices of at most so many rows and columns.
_SIZE: Final = 6


@dataclass(frozen=True)
class Batch:
    """Calls that one can take the place of.

    Attributes:
        name: what reports call it.
        nodes: the calls.
    """

    name: str
    nodes: tuple[fx.Node, ...]

    def key(self) -> tuple[Any, ...]:
        """Return what decides its times."""
        kinds = [(str(t.dtype), tuple(t.shape), tuple(t.stride())) for t in self._values()]
        return self.name, len(self.nodes), str(self.nodes[0].target), *kinds, str(self._rest())

    def _values(self) -> list[torch.Tensor]:
        return [value(n) for n in self.nodes[0].all_input_nodes]

    def _rest(self) -> list[Any]:
        return [a for a in self.nodes[0].args if not isinstance(a, fx.Node)]

    def programs(self) -> tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]:
        """Return the calls and the one call as programs, and the shapes of their inputs.

        The inputs are what each call has alone, then what all have.
        """
        first = self.nodes[0]
        if self.name == "one product":
            left, right = (tuple(value(a).shape) for a in first.all_input_nodes)
            return (
                lambda a, b: aten.bmm(a, b.expand(a.shape[0], *b.shape)),
                lambda a, b: aten.mm(a.reshape(-1, a.shape[2]), b).reshape(*a.shape[:2], -1),
                [left, right[1:]],
            )
        at = _ALONE[packet_name(first)]
        given: list[Any] = list(first.args)
        shared = [n for n, a in enumerate(given) if isinstance(a, fx.Node) and n != at]
        count = len(self.nodes)
        target: Any = first.target

        def call(x: Any, others: Sequence[Any]) -> Any:
            args = list(given)
            args[at] = x
            for number, tensor in zip(shared, others, strict=True):
                args[number] = tensor
            return target(*args)

        shapes = [tuple(value(given[at]).shape)] * count
        return (
            lambda *t: tuple(call(x, t[count:]) for x in t[:count]),
            lambda *t: tuple(call(torch.cat(t[:count]), t[count:]).split(t[0].shape[0])),
            [*shapes, *(tuple(value(given[n]).shape) for n in shared)],
        )

    def holds(self) -> bool:
        """Whether the one call gives what the calls give, by the box test."""
        before, after, shapes = self.programs()
        if packet_name(self.nodes[0]) != "convolution":
            shapes = [tuple(min(size, _SIZE) for size in shape) for shape in shapes]
        elif self.nodes[0].args[8] == 1:
            *images, kernel = (s for s in shapes if len(s) > 1)
            some, made = min(kernel[1], CHANNELS), min(kernel[0], CHANNELS)
            shapes = [
                *((image[0], some, *image[2:]) for image in images),
                (made, some, *kernel[2:]),
                *((made,) for shape in shapes if len(shape) == 1),
            ]
        return equivalence(before, after, shapes).equal

    def replace(self) -> None:
        """Put the one call in the place of the calls."""
        first, graph = self.nodes[0], self.nodes[0].graph
        args: list[Any] = list(first.args)
        with graph.inserting_before(first):
            if self.name == "one product":
                shape = list(value(first).shape)
                left = called(graph, aten.reshape.default, args[0], [-1, value(args[0]).shape[2]])
                right = called(graph, aten.select.int, args[1], 0, 0)
                found = called(graph, aten.mm.default, left, right)
                new = [called(graph, aten.view.default, found, shape)]
            else:
                at = _ALONE[packet_name(first)]
                args[at] = called(graph, aten.cat.default, [n.args[at] for n in self.nodes])
                found = called(graph, first.target, *args)
                size = value(first).shape[0]
                new = [
                    called(graph, aten.slice.Tensor, found, 0, n * size, (n + 1) * size)
                    for n in range(len(self.nodes))
                ]
        for old, part in zip(self.nodes, new, strict=True):
            old.replace_all_uses_with(part)
        in_order(graph)
        graph.eliminate_dead_code()


def _after(node: fx.Node, others: Sequence[fx.Node]) -> bool:
    """Whether a node is computed from one of others."""
    waiting, seen = [node], {node}
    while waiting:
        new = [n for n in waiting.pop().all_input_nodes if n not in seen]
        if any(n in others for n in new):
            return True
        seen.update(new)
        waiting += new
    return False


def batches(graph: fx.Graph) -> Iterator[Batch]:
    """Return what can be one call."""
    groups: dict[str, list[fx.Node]] = {}
    for node in calls(graph):
        name = packet_name(node)
        if name == "bmm" and value(node.args[1]).stride()[0] == 0 < value(node).shape[0] - 1:  # type: ignore[arg-type]
            yield Batch("one product", (node,))
        at = _ALONE.get(name)
        if at is None or node.kwargs or not value(node).is_contiguous():
            continue
        own: Any = node.args[at]
        if name == "addmm" and value(node.args[0]).dim() != 1:  # type: ignore[arg-type]
            continue
        rest = [a for n, a in enumerate(node.args) if n != at]
        group = groups.setdefault(f"{node.target} {rest} {value(own).shape} {value(own).dtype}", [])
        if not _after(node, group):
            group.append(node)
    yield from (Batch("one batch", tuple(nodes)) for nodes in groups.values() if len(nodes) > 1)
