# SPDX-License-Identifier: Apache-2.0
"""Which results are written to memory, and which are computed again where they are used.

A node used in several kernels can be written by one and read by the others, or computed in each.
Every choice for all such nodes is a plan. Branch and bound finds the cheapest: a partial choice is
given up as soon as what it costs at least is not less than the best plan.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from torch import fx

from pytest_udftorch.measure.rewrite.deadline import NEVER, Deadline
from pytest_udftorch.measure.rewrite.fusion.cells import (
    bytes_of,
    cost_ns,
    device,
    is_cell,
    is_sum,
    shape,
)

#: Estimated nanoseconds to move one byte.
BYTE_NS: Final = 0.1
#: At most so many choices are searched; further nodes are computed again where they are used.
CHOICES: Final = 14


@dataclass(frozen=True)
class Kernel:
    """One pass over the elements of a shape.

    Attributes:
        roots: nodes that it writes, and sums that it returns.
        body: the nodes that it computes, in order.
        inputs: the nodes whose elements it reads.
    """

    roots: tuple[fx.Node, ...]
    body: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]

    @property
    def space(self) -> tuple[int, ...]:
        """The shape over which it runs."""
        return shape(self.body[0])

    @property
    def reads(self) -> tuple[fx.Node, ...]:
        """The nodes whose tensors it is given."""
        return self.inputs

    def cost_ns(self) -> float:
        """Return its estimated time."""
        moved = sum(map(bytes_of, (*self.inputs, *self.roots)))
        return BYTE_NS * moved + math.prod(self.space) * sum(map(cost_ns, self.body))


@dataclass(frozen=True)
class Plan:
    """The cheapest plan, and how it was found.

    Attributes:
        kernels: in the order in which they can run.
        cost_ns: their estimated time.
        enumerated: the plans that there are.
        evaluated: the plans whose cost was computed.
        pruned: the plans that were given up before.
    """

    kernels: tuple[Kernel, ...]
    cost_ns: float
    enumerated: int
    evaluated: int
    pruned: int


class Planner:
    """The fusion plans of a graph."""

    def __init__(self, graph: fx.Graph, taken: Collection[fx.Node] = ()) -> None:
        """Plan for all nodes but those that are taken, which other kernels compute."""
        nodes = list(graph.nodes)
        self.cells = [n for n in nodes if n not in taken and is_cell(n)]
        chosen = set(self.cells)
        self.sums = [
            n
            for n in nodes
            if n not in taken and is_sum(n) and chosen.issuperset(n.all_input_nodes)
        ]
        self.taken = taken
        self.order = {n: i for i, n in enumerate(nodes)}
        fused = {*self.cells, *self.sums}
        #: All nodes on which a node depends.
        self.before: dict[fx.Node, set[fx.Node]] = {}
        for node in nodes:
            inputs = node.all_input_nodes
            self.before[node] = {*inputs, *(b for n in inputs for b in self.before[n])}
        #: Nodes that something else than a kernel of their shape reads.
        self.forced = [
            n
            for n in self.cells
            if any(u not in fused or (u in chosen and shape(u) != shape(n)) for u in n.users)
        ]
        shared = [n for n in self.cells if n not in self.forced and len(n.users) > 1]
        weight = {n: math.prod(shape(n)) for n in shared}
        self.choices = sorted(shared, key=lambda n: (-weight[n], self.order[n]))[:CHOICES]

    def kernels(self, written: Collection[fx.Node]) -> tuple[Kernel, ...]:
        """Return the kernels of a plan that writes some of the shared nodes."""
        stored = {*self.forced, *written}
        level: dict[fx.Node, int] = {}
        groups: dict[tuple[int, tuple[int, ...], str], list[fx.Node]] = {}
        for root in sorted([*stored, *self.sums], key=self.order.__getitem__):
            start = root.all_input_nodes[0] if is_sum(root) else root
            _, inputs, within = self._closure(start, stored - {root}, shape(start))
            outside = {b for n in inputs - within for b in (n, *self.before[n])}
            # What it needs from memory lies on a lower level; what it shares with its own level
            # stays in a register.
            floors = [level[n] for n in within] + [level[b] + 1 for b in outside if b in level]
            level[root] = max(floors, default=0)
            groups.setdefault((level[root], shape(start), device(start)), []).append(root)
        return tuple(self._kernel(groups[key], stored) for key in sorted(groups))

    def _closure(
        self, start: fx.Node, stored: Collection[fx.Node], space: tuple[int, ...]
    ) -> tuple[set[fx.Node], set[fx.Node], set[fx.Node]]:
        """Return what is computed from a node back, what is read, and what of that is stored."""
        body, inputs, todo = set(), set(), [start]
        within = set()
        while todo:
            node = todo.pop()
            if node in body or node in inputs:
                continue
            if node in self.taken or not is_cell(node) or shape(node) != space:
                inputs.add(node)
            elif node in stored:
                inputs.add(node)
                within.add(node)
            else:
                body.add(node)
                todo += node.all_input_nodes
        return body, inputs, within

    def _kernel(self, roots: list[fx.Node], stored: Collection[fx.Node]) -> Kernel:
        mine = set(roots)
        body: set[fx.Node] = set()
        inputs: set[fx.Node] = set()
        for root in roots:
            start = root.all_input_nodes[0] if is_sum(root) else root
            more, read, _ = self._closure(start, set(stored) - mine, shape(start))
            body |= more
            inputs |= read
        place = self.order.__getitem__
        return Kernel(tuple(roots), *(tuple(sorted(s, key=place)) for s in (body, inputs)))

    def _least(self, chosen: Iterable[fx.Node]) -> float:
        """Return what every plan costs at least that writes these nodes."""
        written = sum(map(bytes_of, {*self.forced, *self.sums, *chosen}))
        fused = {*self.cells, *self.sums}
        read = {i for n in fused for i in n.all_input_nodes if i not in fused}
        needed = [n for n in self.cells if n.users]
        work = sum(math.prod(shape(n)) * cost_ns(n) for n in needed)
        return BYTE_NS * (written + sum(map(bytes_of, read))) + work

    def best(self, deadline: Deadline = NEVER) -> Plan | None:
        """Return the cheapest plan, or None if nothing can be fused.

        When the deadline passes, it is the cheapest so far.
        """
        if not self.forced and not self.sums:
            return None
        best = self.kernels(())
        price = sum(k.cost_ns() for k in best)
        evaluated, pruned = 1, 0
        number = len(self.choices)
        # A choice: the nodes decided so far, and which of them are written.
        todo: list[tuple[int, tuple[fx.Node, ...]]] = [(0, ())]
        while todo and not deadline.passed("plans"):
            depth, chosen = todo.pop()
            if self._least(chosen) >= price:
                pruned += 2 ** (number - depth) - (not chosen)
                continue
            if depth == number:
                if chosen:
                    evaluated += 1
                    kernels = self.kernels(chosen)
                    cost = sum(k.cost_ns() for k in kernels)
                    if cost < price:
                        best, price = kernels, cost
                continue
            todo += [(depth + 1, chosen), (depth + 1, (*chosen, self.choices[depth]))]
        return Plan(best, price, 2**number, evaluated, pruned)
