# SPDX-License-Identifier: Apache-2.0
"""Which thread computes which tile.

``static`` gives each thread an equal run of tiles beforehand. ``guided`` gives a thread that asks
the remaining tiles divided by the number of threads (Polychronopoulos and Kuck, Guided
Self-Scheduling, IEEE Trans. Computers C-36(12), 1987). ``stealing`` starts like ``static``; a
thread without tiles takes the later half of those of the thread that has the most (Blumofe and
Leiserson, Scheduling Multithreaded Computations by Work Stealing, J. ACM 46(5), 1999).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final


def _share(tiles: int, workers: int, worker: int) -> range:
    return range(tiles * worker // workers, tiles * (worker + 1) // workers)


def static(tiles: int, workers: int) -> list[Iterator[int]]:
    """Return for each worker the tiles that it computes."""
    return [iter(_share(tiles, workers, worker)) for worker in range(workers)]


def guided(tiles: int, workers: int) -> list[Iterator[int]]:
    """Return for each worker the tiles that it computes, taken in shrinking runs."""
    lock = threading.Lock()
    begun = 0

    def taken() -> range:
        nonlocal begun
        with lock:
            first = begun
            begun = min(tiles, first - (first - tiles) // workers)
            return range(first, begun)

    def worker() -> Iterator[int]:
        while mine := taken():
            yield from mine

    return [worker() for _ in range(workers)]


def stealing(tiles: int, workers: int) -> list[Iterator[int]]:
    """Return for each worker the tiles that it computes: its own, then those of others."""
    lock = threading.Lock()
    queues = [deque(_share(tiles, workers, worker)) for worker in range(workers)]

    def worker(own: deque[int]) -> Iterator[int]:
        while True:
            with lock:
                if not own:
                    victim = max(queues, key=len)
                    own.extendleft(victim.pop() for _ in range((len(victim) + 1) // 2))
                if not own:
                    return
                tile = own.popleft()
            yield tile

    return [worker(queue) for queue in queues]


SCHEDULES: Final[dict[str, Callable[[int, int], list[Iterator[int]]]]] = {
    "static": static,
    "guided": guided,
    "stealing": stealing,
}
