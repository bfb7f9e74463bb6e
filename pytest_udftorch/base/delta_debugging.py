# SPDX-License-Identifier: Apache-2.0
"""The smallest part of a set that still shows something, by few trials.

Delta debugging: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE
Transactions on Software Engineering 28(2), 2002, algorithm ddmin. It takes few trials if few items
are needed. Where the trials that are left hardly suffice for leaving out one item after the other,
that is done instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def smallest(
    items: Sequence[Item],
    shows: Callable[[Sequence[Item]], bool],
    tries: int | None = None,
    first: Callable[[Sequence[Sequence[Item]]], int | None] | None = None,
) -> tuple[list[Item], bool]:
    """Return a subset that shows something, of which no single item can be left out.

    Args:
        items: the whole set; if it does not show it, nothing is returned.
        shows: tries a subset.
        tries: subsets that are tried, at most; by default as many as it takes.
        first: tries several subsets and returns the position of the first that shows it, or None.
            A caller with several processors tries them at once. By default one after the other.

    Returns:
        The subset, in the order of the items, and whether it is known that nothing can be left out.
    """
    if not items or not shows(items):
        return [], True

    def in_turn(candidates: Sequence[Sequence[Item]]) -> int | None:
        return next((i for i, some in enumerate(candidates) if shows(some)), None)

    search = first or in_turn
    current, parts = list(items), 2
    left = math.inf if tries is None else tries - 1
    while len(current) > 1:
        if left <= 0:
            return current, False
        size = math.ceil(len(current) / parts)
        cuts = [(i, min(i + size, len(current))) for i in range(0, len(current), size)]
        # First each part alone; then everything but a part, which for halves is the same.
        alone = [current[i:j] for i, j in cuts]
        without = [current[:i] + current[j:] for i, j in cuts] if len(cuts) > 2 else []
        if len(current) <= left < 2 * len(current) + len(alone) + len(without):
            return _one_by_one(current, shows, int(left))
        candidates = [*alone, *without][: None if left == math.inf else int(left)]
        at = search(candidates)
        left -= len(candidates) if at is None else at + 1
        if at is not None:
            current = candidates[at]
            parts = 2 if at < len(alone) else max(2, parts - 1)
        elif len(candidates) < len(alone) + len(without):
            return current, False
        elif size == 1:
            return current, True
        else:
            parts = min(len(current), 2 * parts)
    return current, True


def _one_by_one(
    items: list[Item], shows: Callable[[Sequence[Item]], bool], tries: int
) -> tuple[list[Item], bool]:
    """Leave out each item that is not needed, until each of the others was tried last."""
    at, needed = 0, 0
    while len(items) > 1 and needed < len(items):
        if not tries:
            return items, False
        tries -= 1
        without = items[:at] + items[at + 1 :]
        if shows(without):
            items, needed = without, 0
        else:
            at, needed = at + 1, needed + 1
        at %= len(items)
    return items, True
