# SPDX-License-Identifier: Apache-2.0
"""Exclusive sessions: the functions are switched while no thread is in an operator.

Without it, a session that one thread opens or closes can change the functions in the middle of an
operator of another thread, and one result holds elements of two libraries. While an exclusive
session is open, every opening and closing in the process goes through a gate instead
(native/observer/gate.cpp):

1. Each thread notes in a word of its own that it is in an operator, and then looks at the gate. If
   the gate is closed, it takes the note back and waits.
2. A switch closes the gate, and then reads the words of all threads until all are clear. It changes
   the functions and opens the gate.

Both sides write before they read, and these writes and reads have one order that all threads agree
on. So either the thread sees the closed gate, or the switch sees the thread's note: no operator
runs while the functions change. An operator that ran before has read only the old functions,
because the switch waited for its end. One that begins afterwards reads only the new ones, because
it saw the gate open again. What an operator starts in other threads (OpenMP, the threads of
autograd) runs between its begin and its end.

Operators that began before the gate was there have left no note. The first switch asks each thread
that was there for its stack, until it finds no code of torch on it. A thread that is never without
an operator is known by the end of one that Python has called directly.

An operator may wait for another thread which itself waits at the gate. So the gate does not stay
closed: a switch that is not done within 0.1 seconds opens it for as long, then tries for twice as
long, and so on until the deadline. In the breaks it also lets go of the lock on the sessions, which
an operator written in Python may want.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import NativeError, SessionBusyError, SessionStateError
from pytest_udftorch.swap.native.runtime import load_built
from pytest_udftorch.swap.toolchain.torch_part import HEADERS_NEEDED, TorchPart

#: Seconds for which a switch waits for the operators that run.
TIMEOUT: Final = "UDFTORCH_EXCLUSIVE_TIMEOUT"
_SECONDS: Final = 30.0

#: How long the gate is closed at first, in seconds.
_FIRST: Final = 0.1
#: Python runs signal handlers this often while a switch waits, in seconds.
_SLICE: Final = 0.05
#: How much longer than a switch an operator waits, in seconds: a switch itself takes time.
_LONGER: Final = 60.0


def timeout() -> float:
    """Return for how many seconds a switch waits for the operators that run.

    Raises:
        SessionStateError: ``UDFTORCH_EXCLUSIVE_TIMEOUT`` is not a number of seconds.
    """
    text = os.environ.get(TIMEOUT, "")
    with contextlib.suppress(ValueError):
        seconds = float(text or _SECONDS)
        if 0 <= seconds <= 1e6:
            return seconds
    raise SessionStateError(
        f"{TIMEOUT}={text!r} is not a number of seconds. Set it to 30, for instance, or unset it."
    )


class _Native:
    """Typed access to the compiled gate's functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        number, count = ctypes.c_uint, ctypes.c_size_t
        threads = ctypes.POINTER(ctypes.c_int32)
        self.start = ctypes.CFUNCTYPE(ctypes.c_int)(("udfgate_start", library))
        self.stop = ctypes.CFUNCTYPE(None)(("udfgate_stop", library))
        self.close = ctypes.CFUNCTYPE(ctypes.c_int, number)(("udfgate_close", library))
        self.open = ctypes.CFUNCTYPE(ctypes.c_int)(("udfgate_open", library))
        self.passed = ctypes.CFUNCTYPE(ctypes.c_uint64)(("udfgate_passed", library))
        self.held = ctypes.CFUNCTYPE(ctypes.c_uint64)(("udfgate_held", library))
        self.patience = ctypes.CFUNCTYPE(None, number)(("udfgate_patience", library))
        self._in_the_way = ctypes.CFUNCTYPE(count, threads, count)(("udfgate_in_the_way", library))
        # The interpreter's lock is held in a PYFUNCTYPE.
        self.pause = ctypes.PYFUNCTYPE(None, ctypes.py_object, number)(("udfgate_pause", library))

    def in_the_way(self) -> list[int]:
        """Return the native ids of the threads that are in an operator, or may be."""
        found = (ctypes.c_int32 * 64)()
        return list(found[: min(64, self._in_the_way(found, 64))])


def _failed(version: str, message: str) -> NativeError:
    return NativeError(
        f"The gate of exclusive sessions does not compile against torch {version}. The compiler "
        f"says:\n{message}\n{HEADERS_NEEDED}"
    )


#: The gate as it is compiled.
GATE: Final = TorchPart(
    source="gate.cpp",
    headers=("glibc.h", "libstdcxx.h"),
    what="the gate of exclusive sessions",
    failed=_failed,
    lost="A session cannot be exclusive here (open it without exclusive=True, or install a "
    "compiler)",
)


@functools.cache
def _native() -> _Native:
    return _Native(load_built(GATE.obtain()))


class Gate:
    """The gate of this process. Its callers hold the lock on the sessions."""

    def __init__(self) -> None:
        self._native: _Native | None = None
        self._holders: list[Any] = []
        self._passed = 0
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        # A session that another thread was opening is opened by nobody.
        self._holders = [h for h in self._holders if h.is_open]

    @property
    def is_active(self) -> bool:
        """Whether switches have to wait: an exclusive session is open, or opening."""
        return bool(self._holders)

    @property
    def held(self) -> int:
        """How often an operator has waited at the gate so far, in this process."""
        return self._native.held() if self._native is not None else 0

    def join(self, holder: Any) -> None:
        """Let every switch wait until :meth:`leave`.

        Args:
            holder: an object with the attribute ``is_open``.

        Raises:
            NativeError: the gate cannot be compiled, or torch or the system refuse it.
            CompilerNotFoundError: there is no usable clang.
            CacheError: the cache folder cannot be written.
            SessionStateError: the time to wait is not a number.
        """
        seconds = timeout()
        self._native = native = _native()
        native.patience(int(1000 * (seconds + _LONGER)))
        # Noted first: an interrupt must not leave the callback in torch with nobody to remove it.
        self._holders.append(holder)
        if len(self._holders) == 1 and (refused := native.start()):
            self._holders.remove(holder)
            reason = "torch accepts no callback" if refused == -1 else "no real-time signal is free"
            raise NativeError(
                f"A session cannot be exclusive in this process: {reason}. Open it without "
                "exclusive=True."
            )

    def leave(self, holder: Any) -> None:
        """Undo :meth:`join`; does nothing if ``holder`` has not joined."""
        if self._native is None or holder not in self._holders:
            return
        if len(self._holders) == 1:
            self._native.stop()
        self._holders.remove(holder)

    def close(self, lock: Any, what: str) -> None:
        """Wait until no other thread is in an operator, and keep it so until :meth:`open`.

        Does nothing without an exclusive session, or if this thread has closed the gate already.

        Args:
            lock: the lock on the sessions, a ``threading.RLock`` that this thread holds.
            what: what happens on a timeout, for the message.

        Raises:
            SessionBusyError: a thread did not leave its operator in time. The gate is open.
        """
        native = self._native
        if not self._holders or native is None:
            return
        seconds, wait = timeout(), _FIRST
        deadline = time.monotonic() + seconds
        try:
            while not self._try(native, min(time.monotonic() + wait, deadline)):
                if time.monotonic() >= deadline:
                    raise SessionBusyError(_late(native.in_the_way(), seconds, what))
                native.open()
                pause = min(wait, max(0.0, deadline - time.monotonic()))
                native.pause(lock, int(1000 * pause))
                wait *= 2
        except BaseException:
            native.open()
            raise

    def _try(self, native: _Native, end: float) -> bool:
        """Close the gate and wait for the operators until ``end``; tell whether they have left."""
        while True:
            left = min(_SLICE, end - time.monotonic())
            if not native.close(max(1, int(1000 * left))):
                self._passed = native.passed()
                return True
            if left <= 0:
                return False

    def open(self) -> None:
        """Let operators begin again, if this thread has closed the gate.

        Raises:
            SessionBusyError: an operator waited so long that it did not wait any more.
        """
        native = self._native
        if native is not None and native.open() and native.passed() != self._passed:
            raise SessionBusyError(
                f"A switch took so long that operators of other threads went on without it after "
                f"{timeout() + _LONGER:g} s. Their results may mix two libraries. Open the session "
                f"once before those threads start, or set {TIMEOUT} to more seconds."
            )


def _late(threads: Sequence[int], seconds: float, what: str) -> str:
    names = {t.native_id: t.name for t in threading.enumerate()}
    texts = []
    for thread in dict.fromkeys(threads):
        name = names.get(thread, "")
        if not name:
            with contextlib.suppress(OSError):
                name = Path(f"/proc/self/task/{thread}/comm").read_text().strip()
        texts.append(f"{name or 'a thread that has ended'} ({thread})")
    who = ", ".join(texts) or "a thread that has left since"
    return (
        f"Within {seconds:g} s these threads did not leave their operators, or did not show that "
        f"they are in none: {who}. {what} Let the threads finish first, or set {TIMEOUT} to more "
        "seconds."
    )


#: The gate of this process.
gate: Final = Gate()
