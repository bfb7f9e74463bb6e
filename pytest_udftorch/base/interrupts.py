# SPDX-License-Identifier: Apache-2.0
"""Calls of other people's code that an interrupt must not break off."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from pytest_udftorch.base import compat

T = TypeVar("T")


def undisturbed(run: Callable[[], T]) -> T:
    """Return what ``run`` returns, computed in a thread of its own.

    Python runs signal handlers in the main thread alone. So a Ctrl-C, or another handler that
    raises, ends the wait of the caller and not ``run``, which goes on to its end and gives back
    the locks that it holds.

    Raises:
        What ``run`` raises.
    """
    found: list[T] = []
    raised: list[BaseException] = []

    def keep() -> None:
        try:
            found.append(run())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=keep, name="udftorch-undisturbed", daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return found[0]


@contextlib.contextmanager
def logging_goes_on() -> Iterator[None]:
    """Give back the lock of ``logging`` if an interrupt inside has left it taken.

    Python up to 3.12 takes it by a call, and a signal handler that raises where the call ends
    leaves it taken for good: no other thread of the process can log from then on. Dynamo logs
    whenever compiled code is dropped.
    """
    lock = compat.logging_lock()
    mine = lock is None or compat.is_mine(lock)
    try:
        yield
    except BaseException:
        while not mine and compat.is_mine(lock):
            lock.release()
        raise
