# SPDX-License-Identifier: Apache-2.0
"""Running the loops of CPU operators from C++ (native/switch/cpu_kernels.h).

The first call of a kind goes through the kernels in Python, which then tell the C++ which loop
they ran; later calls of that kind do not enter Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from typing import Any, Final

from pytest_udftorch.swap.native.runtime import written_text
from pytest_udftorch.swap.overrides.switchboard import native

#: ``python`` sends every call through Python.
VARIABLE: Final = "UDFTORCH_CPU_LAUNCH"

#: What a loop is; the numbers are those of ``enum Shape`` of cpu_kernels.h.
MAPPED, WHOLE, VARIATES = range(3)


class Threads(ctypes.Structure):
    """``struct threads`` of ``cpu_loops.h``, field for field."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("name", ctypes.c_char_p),
        ("within", ctypes.c_void_p),
    )


class Loop(ctypes.Structure):
    """``struct udfcpu_loop`` of cpu_kernels.h, field for field."""

    _fields_ = (
        ("code", ctypes.c_void_p),
        ("functions", ctypes.c_void_p),
        ("amended", ctypes.c_void_p),
        ("names", ctypes.c_char_p),
        ("where", Threads),
        ("a", ctypes.c_float),
        ("b", ctypes.c_float),
        ("c", ctypes.c_float),
        ("kind", ctypes.c_int32),
    )


# The library ---------------------------------------------------------------------------


class Direct:
    """Typed access to the kernels of the switchboard; a process has one, ``load()``."""

    def __init__(self) -> None:
        lib = native().lib
        self._target = ctypes.PYFUNCTYPE(
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32
        )(("udfcpu_target", lib))
        self._ran = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)(
            ("udfcpu_ran", lib)
        )
        self._to_python = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int)(("udfcpu_to_python", lib))
        self._publish = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
            ("udfcpu_publish", lib)
        )
        #: Whether this thread is in a kernel in Python that may publish its loop.
        self.pending = ctypes.PYFUNCTYPE(ctypes.c_int)(("udfcpu_pending", lib))
        #: How many loops were run without Python so far.
        self.launches = ctypes.PYFUNCTYPE(ctypes.c_uint64)(("udfcpu_launches", lib))

    def target(self, board: int, below: int, dtypes: int) -> int | None:
        """Return the address of a target above one in Python; None if C++ has no kernel for it.

        Args:
            board: address of the board.
            below: address of the target in Python.
            dtypes: a bit for each dtype, by its number in ``enum dtype`` of ``cpu_loops.h``, that
                the kernel in Python computes; the others go to stock.
        """
        found: int | None = self._target(board, below, dtypes)
        return found

    def publish(self, first: int, loop: Loop) -> None:
        """Tell which loop this thread's call led to, and the address of what it read first."""
        self._publish(first, ctypes.byref(loop))

    def ran(self) -> set[str]:
        """Return the names of functions that loops were run for since the last time."""
        return set(written_text(self._ran).split())

    @contextlib.contextmanager
    def through_python(self) -> Iterator[None]:
        """Send this thread's calls through the kernels in Python."""
        before = self._to_python(1)
        try:
            yield
        finally:
            self._to_python(before)


@functools.cache
def kept(value: Any) -> Any:
    """Return the same object for equal values: what C++ points to lives as long as the process.

    Args:
        value: a text, or a tuple of addresses, which becomes an array in C.
    """
    if isinstance(value, str):
        return value.encode()
    return (ctypes.c_void_p * max(1, len(value)))(*value)


_loaded: Direct | None = None


def loaded() -> Direct | None:
    """Return the kernels if this process has used them."""
    return _loaded


def load() -> Direct | None:
    """Return the kernels; None if ``UDFTORCH_CPU_LAUNCH`` sends every call through Python."""
    global _loaded
    if _loaded is None and os.environ.get(VARIABLE) != "python":
        _loaded = Direct()
    return _loaded
