# SPDX-License-Identifier: Apache-2.0
"""The observer (native/observer/observer.cpp): it knows which operator and module a thread is in.

It uses classes of libtorch and Python's C interface, so it is compiled against the headers of the
installed torch and of the running Python, when it is first needed.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Final

from pytest_udftorch.base.source_line import source_line
from pytest_udftorch.errors import NativeError
from pytest_udftorch.swap.native.runtime import load_built
from pytest_udftorch.swap.operators import header
from pytest_udftorch.swap.toolchain.torch_part import HEADERS_NEEDED, TorchPart


def _failed(what: str, message: str) -> NativeError:
    return NativeError(
        f"{what} cannot be compiled, so nothing can be profiled. The compiler says:\n"
        f"{message}\n"
        f"{HEADERS_NEEDED}"
    )


# The observer ------------------------------------------------------------------------


class Observer:
    """Typed access to the compiled observer's functions.

    A profile and the search for what a session misses may use it at once. The first to start it
    and to watch modules says how, and the last to leave puts everything back.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._started = self._watching = 0
        # The interpreter's lock is held in a PYFUNCTYPE: these functions touch Python's objects.
        self._start = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(("udfobserver_start", library))
        self._watch_modules = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object)(
            ("udfobserver_watch_modules", library)
        )
        self._stop = ctypes.CFUNCTYPE(None)(("udfobserver_stop", library))
        self._leave_modules = ctypes.PYFUNCTYPE(None)(("udfobserver_leave_modules", library))
        ctypes.PYFUNCTYPE(None, ctypes.py_object)(("udfobserver_ask_lines", library))(source_line)
        #: Takes the ``id()`` of a module, whose name is then asked for again.
        self.forget = ctypes.PYFUNCTYPE(None, ctypes.c_uint64)(("udfobserver_forget", library))

    def start(self, *, all_operators: bool) -> bool:
        """Follow operators and optimizers; return False if torch refuses.

        Args:
            all_operators: also those that are not known to call a function.
        """
        if not self._started and self._start(all_operators):
            return False
        self._started += 1
        return True

    def stop(self) -> None:
        """Put back what :meth:`start` changed, unless somebody else still uses it."""
        self._started -= 1
        if not self._started:
            self._stop()

    def watch_modules(self, function: Callable[..., Any], find: Callable[[Any, int], int]) -> bool:
        """Report from now on which module is being called; return False if impossible.

        Args:
            function: ``torch.nn.Module.__call__``, a function written in Python.
            find: takes a module and the id of the name of its caller, and returns the id of the
                module's name; called once for each module.
        """
        if not self._watching and self._watch_modules(function, find):
            return False
        self._watching += 1
        return True

    def leave_modules(self) -> None:
        """End what :meth:`watch_modules` began, unless somebody else still uses it."""
        self._watching -= 1
        if not self._watching:
            self._leave_modules()


#: The observer as it is compiled.
OBSERVER: Final = TorchPart(
    source="observer.cpp",
    headers=("glibc.h", "udfprof.h"),
    what="the observer",
    failed=lambda version, said: _failed(f"The observer of torch {version}", said),
    lost="Nothing can be profiled",
    texts=lambda _: header.observer(),
)


@functools.cache
def load_observer() -> Observer:
    """Return the observer of the installed torch, compiled on first use if none was shipped.

    Raises:
        NativeError: it does not compile; the message quotes the compiler.
        CompilerNotFoundError: there is no usable clang.
        CacheError: the cache folder cannot be written.
    """
    return Observer(load_built(OBSERVER.obtain()))
