# SPDX-License-Identifier: Apache-2.0
"""Running the loops of CPU operators from C++ (native/launch/cpu_launch.cpp).

The first call of a kind goes through the kernels in Python, which then tell the C++ which loop
they ran; later calls of that kind do not enter Python. The C++ is compiled against the headers of
the installed torch, unless a build was shipped. Without it, every call goes through Python, with
the same results.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import NativeError, UdfError
from pytest_udftorch.swap.native.runtime import load_built
from pytest_udftorch.swap.operators import header
from pytest_udftorch.swap.overrides import dispatcher
from pytest_udftorch.swap.toolchain.torch_part import HEADERS_NEEDED, TorchPart

#: ``python`` sends every call through Python.
VARIABLE: Final = "UDFTORCH_CPU_LAUNCH"

#: What a loop is; the numbers are those of ``enum Shape`` of cpu_launch.cpp.
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
    """``struct udfcpu_loop`` of cpu_launch.cpp, field for field."""

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
    """Typed access to the compiled launcher; a process has one, ``load()``."""

    def __init__(self, library: Path) -> None:
        lib = load_built(library)
        message = (ctypes.c_char_p, ctypes.c_size_t)
        self._look = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, *message)(("udfcpu_look", lib))
        self._register = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32, *message)(
            ("udfcpu_register", lib)
        )
        self._unregister = ctypes.CFUNCTYPE(ctypes.c_int, *message)(("udfcpu_unregister", lib))
        self._knows = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_char_p)(("udfcpu_knows", lib))
        self._ran = ctypes.PYFUNCTYPE(ctypes.c_size_t, *message)(("udfcpu_ran", lib))
        self._to_python = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int)(("udfcpu_to_python", lib))
        self._publish = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
            ("udfcpu_publish", lib)
        )
        #: Whether this thread is in a kernel in Python that may publish its loop.
        self.pending = ctypes.PYFUNCTYPE(ctypes.c_int)(("udfcpu_pending", lib))
        #: How many loops were run without Python so far.
        self.launches = ctypes.PYFUNCTYPE(ctypes.c_uint64)(("udfcpu_launches", lib))
        # A bypass leads through the kernels in Python, which know of it.
        dispatcher.mode_setters.append(self._mode)

    def knows(self, name: str) -> bool:
        """Tell whether there are kernels for an overload (``log.out``)."""
        return bool(self._knows(name.encode()))

    def look(self, names: Mapping[str, Any]) -> None:
        """Note the kernels that overloads have now as the stock kernels."""
        for name in filter(self.knows, names):
            self._call(self._look, name.encode())

    def register(self, names: Mapping[str, int]) -> None:
        """Register kernels above those in Python, for the overloads that C++ knows.

        Args:
            names: overload -> a bit for each dtype, by its number in ``enum dtype`` of
                ``cpu_loops.h``, that the kernel in Python computes; the others go to stock.

        Raises:
            NativeError: torch rejects a kernel. Then none is registered.
        """
        try:
            for name in filter(self.knows, names):
                self._call(self._register, name.encode(), names[name])
        except BaseException:
            self.unregister()
            raise

    def unregister(self) -> None:
        """Remove all that is registered."""
        self._call(self._unregister)

    def publish(self, first: int, loop: Loop) -> None:
        """Tell which loop this thread's call led to, and the address of what it read first."""
        self._publish(first, ctypes.byref(loop))

    def ran(self) -> set[str]:
        """Return the names of functions that loops were run for since the last time."""
        size = 4096
        while True:
            text = ctypes.create_string_buffer(size)
            need = self._ran(text, size)
            if need <= size:
                return set(text.raw[:need].decode().split())
            size = need

    @contextlib.contextmanager
    def through_python(self) -> Iterator[None]:
        """Send this thread's calls through the kernels in Python."""
        before = self._to_python(1)
        try:
            yield
        finally:
            self._to_python(before)

    def _mode(self, mode: int) -> int:
        bypass = dispatcher.Mode.BYPASS
        old = self._to_python(mode == bypass)
        return bypass if old else dispatcher.Mode.NORMAL

    def _call(self, call: Callable[..., int], *args: Any) -> None:
        message = ctypes.create_string_buffer(4096)
        if call(*args, message, len(message)):
            raise NativeError(
                "A kernel for the CPU that is run from C++ cannot be put into torch's "
                f"dispatcher, or taken out of it: {message.value.decode(errors='replace')}. Set "
                f"{VARIABLE}=python to go through Python, and report torch's version."
            )


@functools.cache
def kept(value: Any) -> Any:
    """Return the same object for equal values: what C++ points to lives as long as the process.

    Args:
        value: a text, or a tuple of addresses, which becomes an array in C.
    """
    if isinstance(value, str):
        return value.encode()
    return (ctypes.c_void_p * max(1, len(value)))(*value)


# Building ------------------------------------------------------------------------------

_loaded: Direct | None = None
_tried = False


def loaded() -> Direct | None:
    """Return the launcher if this process has loaded it."""
    return _loaded


def load() -> Direct | None:
    """Return the launcher, or None where every call goes through Python.

    The first call of a process compiles it if no build was shipped or cached.
    """
    global _loaded, _tried
    if not _tried:
        if os.environ.get(VARIABLE) != "python":
            try:
                _loaded = Direct(LAUNCHER.obtain())
            except (UdfError, OSError):  # ``udftorch doctor`` says why
                _loaded = None
        _tried = True
    return _loaded


def _failed(version: str, message: str) -> NativeError:
    return NativeError(
        f"The launcher of CPU operators for torch {version} cannot be compiled, so they are "
        f"called through Python. The compiler says:\n{message}\n{HEADERS_NEEDED}"
    )


#: The launcher as it is compiled.
LAUNCHER: Final = TorchPart(
    source="cpu_launch.cpp",
    headers=("overload.h", "glibc.h", "libstdcxx.h"),
    what="the launcher of CPU operators",
    failed=_failed,
    lost="Overridden CPU operators are called through Python",
    texts=header.launcher("cpu"),
)
