# SPDX-License-Identifier: Apache-2.0
"""The package's native files, and ctypes bindings of the runtime ``llvm/runtime``."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_udftorch.errors import NativeLibraryError

_ABI: Final = 1  # UDFRT_ABI in llvm/runtime/udfrt.h
_TRAMPOLINES: Final = 512  # UDFRT_TRAMPOLINES there
_PROFILER_ABI: Final = 3  # UDFPROF_ABI in llvm/runtime/udfprof.h


class _CSlot(ctypes.Structure):
    """``struct udfrt_slot`` of llvm/runtime/udfrt.h, field for field."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("symbol", ctypes.c_uint32),
        ("object", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
        ("relro", ctypes.c_uint32),
        ("version", ctypes.c_char * 24),
    )


@dataclass(frozen=True, eq=False)
class Slot:
    """One relocated pointer of a loaded shared object; equal to itself only.

    Attributes:
        address: where it lies in memory.
        symbol: the name it was resolved for.
        object: file name of the object that calls through it.
        kind: ``JUMP_SLOT``, ``GLOB_DAT`` or ``64`` (the R_X86_64_* relocation).
        relro: True if the loader write-protected it.
        version: symbol version asked for, or the empty string.
    """

    address: int
    symbol: str
    object: str
    kind: str
    relro: bool
    version: str


_KINDS = {7: "JUMP_SLOT", 6: "GLOB_DAT", 1: "64"}
_TYPES = {kind: number for number, kind in _KINDS.items()}


def native_files(pattern: str) -> list[Path]:
    """Return the installed native files that match ``pattern``."""
    import pytest_udftorch

    return [
        path
        for entry in pytest_udftorch.__path__
        for path in sorted((Path(entry) / "_native").glob(pattern))
    ]


def pass_plugin() -> tuple[Path, int]:
    """Return the path of the LLVM pass plugin and the LLVM major version it is built for.

    Raises:
        NativeLibraryError: it is not installed.
    """
    for path in native_files("UdfPass-*.so"):
        match = re.fullmatch(r"UdfPass-(\d+)\.so", path.name)
        if match:
            return path, int(match.group(1))
    raise NativeLibraryError(
        "The LLVM pass plugin UdfPass-<LLVM major>.so is not installed with pytest_udftorch. "
        "Install the package (pip install .) where LLVM's development files are present."
    )


@functools.cache
def runtime() -> Runtime:
    """Load the native runtime once per process.

    Raises:
        NativeLibraryError: it is missing, cannot be loaded, or has another ABI.
    """
    for path in native_files("libudfrt.so"):
        return Runtime(path)
    raise NativeLibraryError(
        "The native runtime libudfrt.so is not installed with pytest_udftorch. Install the "
        "package (pip install .) instead of importing its source tree."
    )


def load_built(path: Path) -> ctypes.CDLL:
    """Load a library out of the build cache.

    Raises:
        NativeLibraryError: it cannot be loaded.
    """
    runtime()  # a profiled library names it; once loaded, the loader finds it by that name
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeLibraryError(
            f"The cached build {path} cannot be loaded: {error}. Delete its folder; the next run "
            "builds it again."
        ) from error


class Runtime:
    """Typed access to ``libudfrt.so``; one method per exported function."""

    def __init__(self, path: Path) -> None:
        try:
            self._lib = ctypes.CDLL(str(path))
            abi = self._lib.udfrt_abi()
        except (OSError, AttributeError) as error:
            raise NativeLibraryError(f"{path} cannot be used: {error}. Reinstall.") from error
        if abi != _ABI:
            raise NativeLibraryError(
                f"{path} has ABI {abi}, this package needs {_ABI}: it was left by another "
                "version. Reinstall pytest_udftorch."
            )
        lib = self._lib
        strings = ctypes.POINTER(ctypes.c_char_p)
        slots = ctypes.POINTER(_CSlot)
        words = ctypes.POINTER(ctypes.c_uint64)
        size = ctypes.c_size_t
        lib.udfrt_find.argtypes = (strings, size, strings, size, slots, size)
        lib.udfrt_find.restype = ctypes.c_long
        lib.udfrt_exchange.argtypes = (slots, size, words, words, words)
        lib.udfrt_read.argtypes = (slots, size, words)
        lib.udfrt_read.restype = None
        lib.udfrt_resolve.argtypes = (ctypes.c_char_p,) * 3
        lib.udfrt_resolve.restype = ctypes.c_uint64
        lib.udfrt_trampoline.argtypes = (size,)
        lib.udfrt_trampoline.restype = ctypes.c_uint64
        lib.udfrt_mxcsr.restype = ctypes.c_uint32
        table = ctypes.c_uint64 * _TRAMPOLINES
        self.hits = table.in_dll(lib, "udfrt_hits")
        self.targets = table.in_dll(lib, "udfrt_targets")
        self.trampoline_count = _TRAMPOLINES

    def cpu_level(self) -> int:
        """Return the highest x86-64 level (1 to 4) of this CPU."""
        return int(self._lib.udfrt_cpu_level())

    def mxcsr(self) -> int:
        """Return the calling thread's MXCSR; FTZ is bit 15, DAZ bit 6."""
        return int(self._lib.udfrt_mxcsr())

    def find(self, symbols: Sequence[str], objects: Sequence[str]) -> list[Slot]:
        """Return the slots of ``symbols`` in the loaded ``objects`` (file names)."""
        names = (ctypes.c_char_p * len(symbols))(*(s.encode() for s in symbols))
        files = (ctypes.c_char_p * len(objects))(*(o.encode() for o in objects))
        capacity = 4 * len(symbols) * max(1, len(objects))
        found = (_CSlot * capacity)()
        count = self._lib.udfrt_find(names, len(symbols), files, len(objects), found, capacity)
        if count < 0 or count > capacity:
            raise NativeLibraryError(
                f"The relocations of {', '.join(objects)} cannot be read ({count} slots)."
            )
        return [
            Slot(s.address, symbols[s.symbol], objects[s.object], _KINDS[s.type], bool(s.relro),
                 s.version.decode())
            for s in found[:count]
        ]  # fmt: skip

    def read(self, slots: Sequence[Slot]) -> list[int]:
        """Return what the slots hold."""
        values = (ctypes.c_uint64 * len(slots))()
        self._lib.udfrt_read(_pack(slots), len(slots), values)
        return list(values)

    def exchange(
        self, slots: Sequence[Slot], expected: Sequence[int], desired: Sequence[int]
    ) -> list[int]:
        """Store ``desired[i]`` in each slot that holds ``expected[i]``.

        Returns:
            What each slot held. Where that differs from ``expected``, nothing was stored.

        Raises:
            OSError: a write-protected page could not be opened for writing.
        """
        n = len(slots)
        array = ctypes.c_uint64 * n
        found = array()
        error = self._lib.udfrt_exchange(_pack(slots), n, array(*expected), array(*desired), found)
        if error:
            raise OSError(error, "mprotect of a relocation slot failed")
        return list(found)

    def resolve(self, slot: Slot) -> int:
        """Return the address the loader would put into ``slot``, or 0."""
        return int(
            self._lib.udfrt_resolve(
                slot.object.encode(), slot.symbol.encode(), slot.version.encode()
            )
        )

    def trampoline(self, index: int) -> int:
        """Return the address of counting trampoline ``index``."""
        return int(self._lib.udfrt_trampoline(index))

    @functools.cached_property
    def cells(self) -> Cells:
        """The part of the runtime that instrumented functions count in."""
        return Cells(self._lib)


class Cells:
    """Typed access to llvm/runtime/udfprof.h; one method per exported function."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._lib = lib
        abi = lib.udfprof_abi()
        if abi != _PROFILER_ABI:
            raise NativeLibraryError(
                f"libudfrt.so counts in the layout {abi}, this package reads {_PROFILER_ABI}: it "
                "was left by another version. Reinstall pytest_udftorch."
            )
        size, word = ctypes.c_size_t, ctypes.c_uint64
        for name in ("cells", "operators", "events"):
            function = getattr(lib, f"udfprof_{name}")
            function.argtypes, function.restype = (ctypes.c_void_p, size), size
        lib.udfprof_lost_events.restype = word
        lib.udfprof_ring.argtypes = (size,)
        lib.udfprof_start.argtypes = (ctypes.c_uint32, ctypes.c_uint32)
        lib.udfprof_start.restype = None
        lib.udfprof_stop.restype = None
        lib.udfprof_intern.argtypes = (ctypes.c_char_p,)
        lib.udfprof_intern.restype = ctypes.c_uint32
        lib.udfprof_string.argtypes = (ctypes.c_uint32,)
        lib.udfprof_string.restype = ctypes.c_char_p
        lib.udfprof_string_count.restype = ctypes.c_uint32
        lib.udfprof_ticks.restype = word
        lib.udfprof_operator_udf.argtypes = (ctypes.c_uint32, word, word)
        lib.udfprof_operator_udf.restype = None
        lib.udfprof_memory.restype = word
        #: Where the calling thread is: its module's id times 4, plus the stage.
        self.place = lib.udfprof_place
        self.place.argtypes, self.place.restype = (), word
        lib.udfprof_clocks.argtypes = (ctypes.POINTER(word), ctypes.POINTER(word))
        lib.udfprof_clocks.restype = None

    def start(self, depth: int, stride: int) -> None:
        """Zero everything and begin to count."""
        self._lib.udfprof_start(depth, stride)

    def stop(self) -> None:
        """Stop counting; what was counted can still be read."""
        self._lib.udfprof_stop()

    def count(self, what: str) -> int:
        """Return the number of records of ``cells`` or ``operators``."""
        return int(getattr(self._lib, f"udfprof_{what}")(None, 0))

    def read(self, what: str, address: int, capacity: int) -> int:
        """Write up to ``capacity`` records of ``cells``, ``operators`` or ``events``.

        Returns:
            How many records there are. For events, which are removed, how many were written.
        """
        return int(getattr(self._lib, f"udfprof_{what}")(address, capacity))

    def lost_events(self) -> int:
        """Return how many events found the ring full since the start."""
        return int(self._lib.udfprof_lost_events())

    def ring(self, capacity: int) -> None:
        """Give the ring room for ``capacity`` events.

        Raises:
            MemoryError: there is not enough memory.
        """
        if self._lib.udfprof_ring(capacity):
            raise MemoryError(f"no room for {capacity} events")

    def intern(self, text: str) -> int:
        """Return the runtime's id of a string."""
        return int(self._lib.udfprof_intern(text.encode(errors="backslashreplace")))

    def string(self, number: int) -> str:
        """Return the string with the id ``number``."""
        return bytes(self._lib.udfprof_string(number)).decode()

    def string_count(self) -> int:
        """Return how many strings there are; ids are counted from 0."""
        return int(self._lib.udfprof_string_count())

    def memory(self) -> int:
        """Return how many bytes the cells, their contexts and the events' ring take."""
        return int(self._lib.udfprof_memory())

    def ticks(self) -> int:
        """Return the time stamp counter."""
        return int(self._lib.udfprof_ticks())

    def operator_udf(self, number: int, elements: int, start: int) -> None:
        """Count a call, begun at ``start`` ticks, of the UDF ``number`` at operator level."""
        self._lib.udfprof_operator_udf(number, elements, start)

    def clocks(self) -> tuple[int, int]:
        """Return one reading of the time stamp counter and CLOCK_MONOTONIC (ns)."""
        ticks, now = ctypes.c_uint64(), ctypes.c_uint64()
        self._lib.udfprof_clocks(ctypes.byref(ticks), ctypes.byref(now))
        return ticks.value, now.value

    @property
    def parallel(self) -> int:
        """The address of the function that stands in for GOMP_parallel."""
        return ctypes.cast(self._lib.udfprof_parallel, ctypes.c_void_p).value or 0

    def set_gomp_parallel(self, address: int) -> None:
        """Set the function that the stand-in for GOMP_parallel calls."""
        ctypes.c_void_p.in_dll(self._lib, "udfprof_gomp_parallel").value = address


def _pack(slots: Sequence[Slot]) -> ctypes.Array[_CSlot]:
    packed = (_CSlot * len(slots))()
    for c, slot in zip(packed, slots, strict=True):
        c.address, c.type, c.relro = slot.address, _TYPES[slot.kind], slot.relro
    return packed
