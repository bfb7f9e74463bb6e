# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of a graph: tiles that fit into the cache, on threads, joined in their order."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from pytest_udftorch.base import compat
from pytest_udftorch.measure.rewrite.tiled.parts import JOINS, Parts
from pytest_udftorch.measure.rewrite.tiled.schedules import SCHEDULES

pytree: Any = compat.pytree()

#: What a tile may need of memory where the system does not tell the size of the L2 cache.
_USUAL_BYTES: Final = 1 << 20

#: ``_SC_LEVEL2_CACHE_SIZE`` of glibc, which Python has no name for.
_LEVEL2_CACHE_SIZE: Final = 191


@functools.cache
def cache_bytes() -> int:
    """Return the size of a core's L2 cache, half of which a tile may take."""
    try:
        found = os.sysconf(_LEVEL2_CACHE_SIZE)
    except (ValueError, OSError):
        found = 0
    return found if found > 0 else 2 * _USUAL_BYTES


@functools.cache
def _pool(workers: int) -> concurrent.futures.ThreadPoolExecutor:
    """Return threads in each of which torch uses one thread."""
    threads = torch.get_num_threads()
    started = threading.Barrier(workers + 1)

    def single() -> None:
        torch.set_num_threads(1)
        started.wait()

    pool = concurrent.futures.ThreadPoolExecutor(workers, "udftorch-tiles", single)
    for _ in range(workers):
        pool.submit(_nothing)
    started.wait()
    # The setting is of the calling thread, but later threads begin with the last one.
    torch.set_num_threads(threads)
    return pool


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Settings:
    """How tiles are made and scheduled.

    Attributes:
        schedule: a name in ``SCHEDULES``.
        threads: that compute tiles.
        tile_bytes: of memory that a tile may need.
        memory: what needs at most so many bytes at once is not cut; None cuts everything.
    """

    schedule: str
    threads: int
    tile_bytes: int
    memory: int | None = None


def gathered(
    parts: Parts, rows: Sequence[torch.Tensor], held: Sequence[Any], settings: Settings
) -> list[Any]:
    """Run all tiles; return their rows together, and their joined parts.

    Parts are joined in the order of the tiles, so schedules and threads do not change a bit.
    """
    count = rows[0].shape[0]
    height = max(1, settings.tile_bytes // parts.row_bytes)
    bounds = [*range(0, count, height), count]
    tiles = len(bounds) - 1
    whole = [
        None if of is None else torch.empty_strided((count, *of[0]), of[1], dtype=of[2])
        for of in parts.layouts
    ]
    found: list[list[Any]] = [[None] * tiles for _ in parts.joins]
    failed = threading.Event()

    def work(mine: Iterator[int]) -> None:
        try:
            with torch.no_grad():
                for tile in mine:
                    if failed.is_set():
                        return
                    first, last = bounds[tile], bounds[tile + 1]
                    given = [t[first:last] for t in rows]
                    for place, value in enumerate(parts.tile(*given, *held)):
                        target = whole[place]
                        if target is None:
                            found[place][tile] = value
                        else:
                            target[first:last] = value
        except BaseException:
            failed.set()
            raise

    workers = min(settings.threads, tiles)
    shares = SCHEDULES[settings.schedule](tiles, workers)
    pool = _pool(settings.threads)
    for future in [pool.submit(work, share) for share in shares]:
        future.result()
    return [
        target if target is not None else functools.reduce(JOINS[join], values)
        for join, target, values in zip(parts.joins, whole, found, strict=True)
    ]


class Tiled:
    """A graph that runs tile by tile.

    Args:
        parts: of the graph.
        cut: the numbers of the inputs that are cut into tiles.
        settings: of the tiles.
    """

    def __init__(self, parts: Parts, cut: Collection[int], settings: Settings) -> None:
        self.parts, self.cut, self.settings = parts, sorted(cut), settings

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph."""
        held = self.parts.before(*inputs)
        rows = [inputs[number] for number in self.cut]
        found = gathered(self.parts, rows, held, self.settings)
        flat = self.parts.after(*found, *held, rows[0].shape[0])
        return pytree.tree_unflatten(list(flat), self.parts.structure)
