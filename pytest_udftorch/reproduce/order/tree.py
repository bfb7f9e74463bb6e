# SPDX-License-Identifier: Apache-2.0
"""Orders of additions, as trees."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

#: A term's number, or the nodes that are added. More than two are added in one step.
Node = int | tuple["Node", ...]
Value = TypeVar("Value")


def walk(root: Node) -> Iterator[Node]:
    """Yield every node, children before parents, without recursion: trees can be deep."""
    waiting: list[tuple[Node, bool]] = [(root, False)]
    while waiting:
        node, seen = waiting.pop()
        if seen or isinstance(node, int):
            yield node
        else:
            waiting.append((node, True))
            waiting.extend((child, False) for child in reversed(node))


@dataclass(frozen=True)
class SummationTree:
    """The order in which an operator adds the terms of one result.

    Attributes:
        root: nested tuples of terms' numbers. Addition of two numbers is commutative, so the
            children of a node have no order; the one with the lowest term comes first.
        terms: how many terms there are.
    """

    root: Node
    terms: int

    def fold(self, values: Sequence[Value], add: Callable[[list[Value]], Value]) -> Value:
        """Add values in this order; ``add`` adds the values of one node."""
        done: list[Value] = []
        for node in walk(self.root):
            if isinstance(node, int):
                done.append(values[node])
            else:
                at = len(done) - len(node)
                done[at:] = [add(done[at:])]
        return done[0]

    @property
    def widest(self) -> int:
        """The largest number of values that are added in one step; 2 without fused sums."""
        return max((len(n) for n in walk(self.root) if isinstance(n, tuple)), default=1)

    @property
    def depth(self) -> int:
        """Additions on the longest way from a term to the result."""
        return self.fold([0] * self.terms, lambda below: 1 + max(below))

    @property
    def is_sequential(self) -> bool:
        """True if the terms are added one after the other, in their order."""
        return str(self) == str(SummationTree(sequential(self.terms), self.terms))

    @property
    def digest(self) -> str:
        """16 hex digits that name the order."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        parts = self.fold([str(i) for i in range(self.terms)], lambda below: f"({' '.join(below)})")
        return parts

    def kind(self) -> str:
        """Describe the order in a few words."""
        if self.terms == 1:
            return "one term"
        if self.is_sequential:
            return "one after the other"
        fused = f", up to {self.widest} terms in one step" if self.widest > 2 else ""
        return f"{self.terms} terms, depth {self.depth}{fused}"


def sequential(terms: int) -> Node:
    """Return the order in which each term is added to the sum of those before it."""
    root: Node = 0
    for term in range(1, terms):
        root = (root, term)
    return root
