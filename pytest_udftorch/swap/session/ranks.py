# SPDX-License-Identifier: Apache-2.0
"""The ranks of a process group compare their sessions.

A collective would hang if a rank opened no session. Each rank instead writes what it has open
into the store of the default process group, and reads there what the others wrote, up to a
deadline. Only the store's own traffic is added; no tensor is sent.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

from pytest_udftorch.base.compat import default_store, import_torch
from pytest_udftorch.errors import RanksDifferError, RanksDifferWarning, SessionStateError
from pytest_udftorch.swap.toolchain.cache import setting
from pytest_udftorch.swap.toolchain.progress import Progress

#: What happens where ranks differ.
Ranks: TypeAlias = Literal["warn", "error", "ignore"]
RANKS: Final = ("warn", "error", "ignore")

#: Seconds for which a rank waits for the others.
TIMEOUT: Final = "UDFTORCH_RANKS_TIMEOUT"
_SECONDS: Final = 60.0

# Where the function that watches ``init_process_group`` keeps the function itself.
_STOCK: Final = "udftorch_stock"

# Backends without processes, or without a store.
_NO_STORE: Final = ("fake", "mpi", "threaded")

#: What one session computes with, as plain data for JSON.
Facts: TypeAlias = dict[str, Any]


def timeout() -> float:
    """Return for how many seconds a rank waits for the others.

    Raises:
        SessionStateError: ``UDFTORCH_RANKS_TIMEOUT`` is not a number of seconds.
    """
    return setting(TIMEOUT, _SECONDS, SessionStateError)


class _Group:
    """What this process knows of the other ranks of a process group."""

    def __init__(self, world: Any, number: int) -> None:
        self.world = weakref.ref(world)
        self._prefix = f"udftorch/{number}"
        self._written = 0
        #: How many entries of each rank were read, and the last one if it differed.
        self._read: dict[int, int] = {}
        self._differing: dict[int, int] = {}

    def compare(self, dist: Any, mine: Sequence[Facts]) -> dict[int, str]:
        """Return rank -> how it differs from this one."""
        store, rank, seconds = default_store(), dist.get_rank(), timeout()
        store.set(f"{self._prefix}/{rank}/{self._written}", json.dumps(mine))
        self._written += 1
        differs: dict[int, str] = {}
        pending = set(range(dist.get_world_size())) - {rank}
        deadline, pause = time.monotonic() + seconds, 0.001
        with Progress(_wait(rank, pending, seconds), len(pending)) as progress:
            while pending:
                late = time.monotonic() >= deadline
                for other in sorted(pending):
                    found = self._next(store, other, mine)
                    if found is not None:
                        progress.step()
                    elif late:
                        found = f"has opened no session within {seconds:g} s ({TIMEOUT})"
                    if found is not None:
                        pending.remove(other)
                        differs |= {other: found} if found else {}
                if pending:
                    progress.text = _wait(rank, pending, seconds)
                    time.sleep(pause)
                    pause = min(2 * pause, 0.1)
        return differs

    def _next(self, store: Any, rank: int, mine: Sequence[Facts]) -> str | None:
        """Read what a rank has written; "" if it agrees, None if there is nothing new.

        An entry is compared once, so that the ranks stay in step after one of them has opened a
        session alone. The last one is compared again if it differed: this rank may since have
        opened the same.
        """
        found = None
        first = self._differing.pop(rank, self._read.get(rank, 0))
        while store.check([key := f"{self._prefix}/{rank}/{first}"]):
            theirs = json.loads(store.get(key))
            new = first >= self._read.get(rank, 0)
            self._read[rank] = max(first + 1, self._read.get(rank, 0))
            if _agree(mine, theirs):
                return ""
            if new:
                found = "has " + _text(theirs)
            self._differing[rank] = first
            first += 1
        return found


def _wait(rank: int, pending: set[int], seconds: float) -> str:
    """Return what a rank waits for, as words; the first ranks of many."""
    first = sorted(pending)[:8]
    names = ", ".join(map(str, first)) + (", …" if len(pending) > len(first) else "")
    return f"rank {rank} waits up to {seconds:g} s ({TIMEOUT}) for sessions on these ranks: {names}"


def _agree(mine: Sequence[Facts], theirs: Sequence[Facts]) -> bool:
    """Tell whether two ranks compute with the same functions.

    A build for another CPU level has another id and the same bits. So the ids of builds are
    compared only on the same level.
    """
    if len(mine) != len(theirs):
        return False
    for ours, other in zip(mine, theirs, strict=True):
        build = ours["cpu_level"] == other["cpu_level"]
        if any(ours[k] != other[k] for k in ours if k != "cpu_level" and (build or k != "build")):
            return False
    return True


def _text(sessions: Sequence[Facts]) -> str:
    """Return what a rank has open, as words."""
    texts = []
    for facts in sessions:
        build = ", build {build}, CPU level {cpu_level}".format(**facts) if facts["build"] else ""
        names = ", ".join(facts["functions"]) or "none"
        texts.append(f"{facts['library']} {facts['version']}{build}, functions: {names}")
    return " inside ".join(reversed(texts)) or "no session"


_group: _Group | None = None
_groups = 0
# One comparison at a time: entries are numbered, and a store's client is not for two threads.
_lock = threading.Lock()
_inherited: weakref.ref[Any] | None = None


def _world() -> tuple[Any, Any]:
    """Return torch.distributed and its default group, or None for the group."""
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return dist, None
    return dist, dist.group.WORLD


def _after_fork() -> None:
    # A forked child has the connection of its parent, and would break it by using it.
    global _inherited, _lock
    _lock = threading.Lock()
    world = _world()[1]
    _inherited = None if world is None else weakref.ref(world)


os.register_at_fork(after_in_child=_after_fork)


def compare(mine: Sequence[Facts], how: Ranks) -> None:
    """Compare what this rank has open with the others, if there is a process group.

    Raises:
        RanksDifferError: ``how`` is ``error``, and a rank differs or has no session.
    """
    global _group, _groups
    dist, world = _world()
    if not mine or world is None or dist.get_world_size() < 2:
        return
    if dist.get_backend() in _NO_STORE or (_inherited is not None and _inherited() is world):
        return
    with _lock:
        if _group is None or _group.world() is not world:
            _group = _Group(world, _groups)
            _groups += 1
        try:
            differs = _group.compare(dist, mine)
        except RuntimeError as error:  # torch.distributed's errors derive from it
            differs = {dist.get_rank(): f"cannot use the store of the process group: {error}"}
    if not differs:
        return
    others = "; ".join(f"rank {rank} {text}" for rank, text in sorted(differs.items()))
    message = (
        "The ranks of the process group do not compute with the same functions. Rank "
        f"{dist.get_rank()}, which says this, has {_text(mine)}; {others}. Open the same session "
        "on every rank, or pass ranks='ignore' to patched() where only some ranks need it."
    )
    if how == "error":
        raise RanksDifferError(message)
    warnings.warn(message, RanksDifferWarning, stacklevel=4)


def watch(compare_now: Callable[[], None]) -> None:
    """Call ``compare_now`` after each ``init_process_group`` from now on."""
    dist = import_torch().distributed
    if not dist.is_available() or hasattr(dist.init_process_group, _STOCK):
        return
    stock = dist.init_process_group

    @functools.wraps(stock)
    def init_process_group(*args: Any, **options: Any) -> None:
        stock(*args, **options)
        compare_now()

    setattr(init_process_group, _STOCK, stock)
    for module in (dist, dist.distributed_c10d):
        module.init_process_group = init_process_group


def unwatch() -> None:
    """Put ``init_process_group`` back, if it is watched."""
    dist = import_torch().distributed
    stock = getattr(getattr(dist, "init_process_group", None), _STOCK, None)
    if stock is not None:
        for module in (dist, dist.distributed_c10d):
            module.init_process_group = stock
