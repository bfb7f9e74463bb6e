# SPDX-License-Identifier: Apache-2.0
"""The recorder in C++ (native/observer/recorder.cpp): it notes operators without Python.

It uses classes of libtorch and Python's C interface, so it is compiled against the headers of the
installed torch and of the running Python, when it is first needed. Where that is not possible, the
mode of :mod:`pytest_udftorch.swap.observe.recorder` does the same in Python.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Collection, Sequence
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.errors import NativeError, UdfError
from pytest_udftorch.swap.native.runtime import address as native_address
from pytest_udftorch.swap.native.runtime import load_built
from pytest_udftorch.swap.toolchain.torch_part import HEADERS_NEEDED, TorchPart


def _failed(version: str, message: str) -> NativeError:
    return NativeError(
        f"The recorder does not compile against torch {version}, so runs are recorded in Python, "
        f"which takes longer. The compiler says:\n{message}\n{HEADERS_NEEDED}"
    )


#: The recorder as it is compiled.
RECORDER: Final = TorchPart(
    source="recorder.cpp",
    headers=("glibc.h", "libstdcxx.h"),
    what="the recorder of operators",
    failed=_failed,
    lost="Runs are recorded in Python, which takes longer",
)


class NativeRecorder:
    """Typed access to the compiled recorder's functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        # The interpreter's lock is held in a PYFUNCTYPE: these functions touch Python's objects.
        self._start = ctypes.PYFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.py_object
        )(("udfrecorder_start", library))
        self._note = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(
            ("udfrecorder_note", library)
        )
        self._stop = ctypes.PYFUNCTYPE(ctypes.py_object)(("udfrecorder_stop", library))
        #: Takes the number of the layer that runs in this thread, -1 for none.
        self.layer = ctypes.PYFUNCTYPE(None, ctypes.c_int64)(("udfrecorder_layer", library))
        #: Takes whether an optimizer runs, and how many of its steps ended.
        self.step = ctypes.PYFUNCTYPE(None, ctypes.c_int, ctypes.c_int64)(
            ("udfrecorder_step", library)
        )

    def start(
        self, mode: Any, parts: Sequence[Any], kept: Collection[int], hasher: int | None
    ) -> bool:
        """Record the operators under a mode from now on; return False if that is not possible.

        Args:
            mode: the innermost mode of torch's dispatcher.
            parts: what ``udfrecorder_start`` describes.
            kept: positions of calls that the mode has to see.
            hasher: the address of :func:`xxh3_address`.
        """
        return bool(self._start(hasher, mode, tuple(parts), tuple(kept)) == 0)

    def note(self, tensor: Any) -> Any:
        """Return the note of a tensor, between :meth:`start` and :meth:`stop`."""
        return self._note(compat.address_of(tensor))

    def stop(self) -> BaseException | None:
        """End what :meth:`start` began; return the error that ended the run."""
        found: BaseException | None = self._stop()
        return found


@functools.cache
def xxh3_address() -> int | None:
    """Return the address of ``XXH3_128bits_withSeed`` in the package xxhash.

    None where its module does not show the function, or is linked to a library that does.
    """
    try:
        path = importlib.import_module("xxhash._xxhash").__file__
        return native_address(ctypes.CDLL(path), "XXH3_128bits_withSeed_dispatch")
    except (ImportError, OSError, AttributeError):
        return None


@functools.cache
def load_recorder() -> NativeRecorder | None:
    """Return the recorder of the installed torch, compiled on first use if none was shipped.

    None if it can be had in no way; :func:`why_not` says why.
    """
    try:
        return NativeRecorder(load_built(RECORDER.obtain()))
    except UdfError as error:
        _reasons.append(str(error))
        return None


_reasons: list[str] = []


def why_not() -> str | None:
    """Return why this process records in Python; None if it does not, or has recorded nothing."""
    return _reasons[-1] if _reasons else None
