# SPDX-License-Identifier: Apache-2.0
"""What each use of a parameter adds to its gradient.

Autograd adds the gradients of a weight's uses one after the other, as its backward pass reaches
them: tied embeddings have two uses, a layer that runs several times has as many. The gradient of a
micro-batch has them added already, and is no node of any tree; the gradient of one use is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def _edges(loss: Any) -> dict[Any, list[tuple[Any, int]]]:
    """Return, for each leaf of a graph, the nodes that give it gradients, and which of theirs."""
    found: dict[Any, list[tuple[Any, int]]] = {}
    waiting = [] if loss.grad_fn is None else [loss.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for place, (after, _) in enumerate(node.next_functions):
            if hasattr(after, "variable"):
                found.setdefault(after, []).append((node, place))
            elif after is not None and after not in seen:
                seen.add(after)
                waiting.append(after)
    return found


@contextmanager
def gradients_of_uses(loss: Any) -> Iterator[Mapping[int, list[Any]]]:
    """Keep the gradients of leaves that are used several times, while a backward pass runs.

    Args:
        loss: what the pass begins with.

    Yields:
        the ``id`` of each such leaf -> its gradients, in the order in which the pass reaches them.
    """
    found: dict[int, list[Any]] = {}
    handles = []
    for leaf, edges in _edges(loss).items():
        if len(edges) < 2:
            continue
        kept = found.setdefault(id(leaf.variable), [])
        for node, place in edges:
            handles.append(node.register_hook(_keeper(kept, place)))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _keeper(kept: list[Any], place: int) -> Callable[[Any, Any], None]:
    def keep(given: Any, _: Any) -> None:
        if given[place] is not None:
            kept.append(given[place].detach().clone())  # others may get the same tensor

    return keep
