# SPDX-License-Identifier: Apache-2.0
"""The package's native files, and ctypes bindings of the runtime ``native/c``."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import package
from pytest_udftorch.base.host import require_host
from pytest_udftorch.errors import NativeError
from pytest_udftorch.swap.library.symbols import PROCESSORS, Processor, this_processor

_ABI: Final = 5  # UDFRT_ABI in native/c/udfrt.h
_TRAMPOLINES: Final = 512  # UDFRT_TRAMPOLINES there
_PROFILER_ABI: Final = 5  # UDFPROF_ABI in native/c/udfprof.h


#: Functions of Python's C API in the order of ``struct udfrt_python`` of native/c/udfrt.h.
_PYTHON: Final = ("PyObject_CallNoArgs", "Py_DecRef", "PyErr_Fetch", "PyErr_Restore")

#: A signal handler may raise again and again. A step that fails by itself does so at once.
_TRIES: Final = 100


class _CSight(ctypes.Structure):
    """``struct udfprof_sight`` of native/c/udfprof.h, field for field."""

    _fields_ = (
        ("operator_id", ctypes.c_uint32),
        ("line_id", ctypes.c_uint32),
        ("place", ctypes.c_uint64),
    )


class _CFirstLine(ctypes.Structure):
    """``struct udfprof_first_line`` of native/c/udfprof.h, field for field."""

    _fields_ = (("ns", ctypes.c_uint64), ("line_id", ctypes.c_uint32), ("pad", ctypes.c_uint32))


class _CSlot(ctypes.Structure):
    """``struct udfrt_slot`` of native/c/udfrt.h, field for field."""

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
        symbol: the name that it was resolved for.
        object: file name of the object that calls through it.
        kind: ``JUMP_SLOT``, ``GLOB_DAT`` or ``64`` (the R_X86_64_* or R_AARCH64_* relocation; the
            last is R_AARCH64_ABS64).
        relro: True if the loader has write-protected it.
        version: the symbol version that is asked for, or the empty string.
    """

    address: int
    symbol: str
    object: str
    kind: str
    relro: bool
    version: str


_TYPES = {kind: number for number, kind in this_processor().relocations.items()}

#: ``e_machine`` of ELF files, by ``platform.machine()`` (<elf.h>).
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}


def native_files(pattern: str) -> list[Path]:
    """Return the installed native files that match ``pattern``."""
    return [
        path for folder in package.folders() for path in sorted((folder / "_native").glob(pattern))
    ]


def native_file(name: str) -> Path:
    """Return the path of an installed native file.

    Raises:
        NativeError: it is not installed.
    """
    for path in native_files(name):
        return path
    raise NativeError(
        f"{name} is not installed with pytest_udftorch. Install the package (pip install .) "
        "instead of importing its source tree."
    )


def pass_plugin() -> tuple[Path, int]:
    """Return the path of the LLVM pass plugin and the LLVM major version it is built for.

    Raises:
        NativeError: it is not installed.
    """
    for path in native_files("UdfPass-*.so"):
        match = re.fullmatch(r"UdfPass-(\d+)\.so", path.name)
        if match:
            return path, int(match.group(1))
    raise NativeError(
        "The LLVM pass plugin UdfPass-<LLVM major>.so is not installed with pytest_udftorch. "
        "Install the package (pip install .) where LLVM's development files are present."
    )


@functools.cache
def runtime() -> Runtime:
    """Load the native runtime once per process.

    Raises:
        UnsupportedHostError: this system, processor or Python cannot have it.
        NativeError: it is missing, cannot be loaded, or has another ABI.
    """
    require_host()
    return Runtime(native_file("libudfrt.so"))


def load_built(path: Path) -> ctypes.CDLL:
    """Load a library out of the build cache.

    Raises:
        NativeError: it cannot be loaded.
    """
    runtime()  # a profiled library names it; once loaded, the loader finds it by that name
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(
            f"The cached build {path} cannot be loaded: {error}. Delete its folder; the next run "
            "builds it again."
        ) from error


def address(lib: ctypes.CDLL, name: str) -> int:
    """Return the address of a function of a library."""
    return ctypes.cast(getattr(lib, name), ctypes.c_void_p).value or 0


def _declare(lib: ctypes.CDLL, prefix: str, functions: Mapping[str, Sequence[Any]]) -> None:
    """Declare functions of a library: name -> types of the result and of the arguments."""
    for name, (result, *arguments) in functions.items():
        function = getattr(lib, f"{prefix}_{name}")
        function.restype, function.argtypes = result, arguments


class Runtime:
    """Typed access to ``libudfrt.so``."""

    def __init__(self, path: Path) -> None:
        try:
            self._lib = ctypes.CDLL(str(path))
            abi = self._lib.udfrt_abi()
        except (OSError, AttributeError) as error:
            raise NativeError(f"{path} cannot be used: {error}. Reinstall.") from error
        if abi != _ABI:
            raise NativeError(
                f"{path} has ABI {abi}, but this package needs {_ABI}: another version left it. "
                "Reinstall pytest_udftorch."
            )
        strings, slots = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(_CSlot)
        words, size = ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t
        functions = {
            "find": (ctypes.c_long, strings, size, strings, size, slots, size),
            "find_in_file": (
                ctypes.c_long, ctypes.c_char_p, strings, size, slots, size,
                ctypes.POINTER(ctypes.c_uint32),
            ),
            "exchange": (ctypes.c_int, slots, size, words, words, words),
            "object": (ctypes.c_uint64, ctypes.c_uint64),
            "read": (None, slots, size, words),
            "states": (ctypes.c_uint64, ctypes.c_char_p, size),
            "resolve": (ctypes.c_uint64, *(ctypes.c_char_p,) * 3),
            "trampoline": (ctypes.c_uint64, size),
            "marker": (ctypes.c_uint64, size),
        }  # fmt: skip
        _declare(self._lib, "udfrt", functions)
        table = ctypes.c_uint64 * _TRAMPOLINES
        self.hits = table.in_dll(self._lib, "udfrt_hits")
        self.targets = table.in_dll(self._lib, "udfrt_targets")
        self.marks = (ctypes.c_uint8 * _TRAMPOLINES).in_dll(self._lib, "udfrt_marks")
        self.marked = table.in_dll(self._lib, "udfrt_marked")
        self.trampoline_count = _TRAMPOLINES
        # A PyDLL keeps the GIL, and raises the error that the function leaves set.
        self._insist = ctypes.PyDLL(str(path)).udfrt_insist
        self._insist.restype = None
        self._insist.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_int)
        addresses = [ctypes.cast(getattr(ctypes.pythonapi, n), ctypes.c_void_p) for n in _PYTHON]
        self._python = (ctypes.c_void_p * len(_PYTHON))(*(a.value for a in addresses))
        #: The address of the counting trampoline with an index.
        self.trampoline: Callable[[int], int] = self._lib.udfrt_trampoline
        #: The address of the marking trampoline with an index.
        self.marker: Callable[[int], int] = self._lib.udfrt_marker

    def insisting(self, step: Callable[[], object]) -> Callable[[], None]:
        """Return a callable that repeats a step until it raises nothing.

        If a signal handler raises in the middle of restoring, its error comes once everything is
        restored. A loop in Python would not do: Python runs signal handlers at the loop's own
        lines too. The callable is made of C, so nothing comes between its call and the loop; get
        it before the step can be needed.

        Args:
            step: does what is left to do, or nothing.

        Returns:
            The callable. It raises the first error of the step, after the last attempt.
        """
        return functools.partial(self._insist, self._python, step, _TRIES)

    def cpu_level(self) -> int:
        """Return the highest x86-64 level (1 to 4) of this CPU."""
        return int(self._lib.udfrt_cpu_level())

    def find(self, symbols: Sequence[str], objects: Sequence[str]) -> list[Slot]:
        """Return the slots of ``symbols`` in the loaded ``objects`` (file names)."""
        names = (ctypes.c_char_p * len(symbols))(*(s.encode() for s in symbols))
        files = (ctypes.c_char_p * len(objects))(*(o.encode() for o in objects))
        capacity = 4 * len(symbols) * max(1, len(objects))
        found = (_CSlot * capacity)()
        count = self._lib.udfrt_find(names, len(symbols), files, len(objects), found, capacity)
        if count < 0 or count > capacity:
            raise NativeError(
                f"The relocations of {', '.join(objects)} cannot be read ({count} slots)."
            )
        return _slots(found[:count], symbols, objects, this_processor())

    def find_in_file(self, path: Path, symbols: Sequence[str]) -> tuple[Processor, list[Slot]]:
        """Return the slots of ``symbols`` in a shared object that is not loaded.

        It need not be for the processor of this process. The file is laid out in memory as the
        loader would, and read by the code that reads loaded objects.

        Returns:
            The processor that the file is for, and the slots with their addresses in the file.

        Raises:
            NativeError: it is not a 64-bit shared object for a processor that is known.
        """
        names = (ctypes.c_char_p * len(symbols))(*(s.encode() for s in symbols))
        capacity = 4 * len(symbols)
        found, machine = (_CSlot * capacity)(), ctypes.c_uint32()
        count = self._lib.udfrt_find_in_file(
            os.fsencode(path), names, len(symbols), found, capacity, ctypes.byref(machine)
        )
        if count < 0 or count > capacity:
            raise NativeError(
                f"The relocations of {path} cannot be read ({count} slots): it is not a shared "
                f"object for {' or '.join(_MACHINES)}. Name a libtorch of the registry's wheels."
            )
        name = next(n for n, number in _MACHINES.items() if number == machine.value)
        processor = PROCESSORS[name]
        return processor, _slots(found[:count], symbols, [Path(path).name], processor)

    def loaders(self, slots: Sequence[Slot]) -> list[Slot]:
        """Return those slots that lie in the object which the loader knows by the slot's name.

        Another object may have the same file name. The program can unload it at any time.
        """
        start = self._lib.udfrt_object
        starts = {name: _start(name, start) for name in {slot.object for slot in slots}}
        # A page belongs to one object.
        pages = {slot.address >> 12: slot.address for slot in slots}
        lies = {page: start(address) for page, address in pages.items()}
        return [s for s in slots if (at := starts[s.object]) and lies[s.address >> 12] == at]

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

    def exchange_packed(self, packed: Packed) -> bool:
        """Do what :meth:`exchange` does, as packed; tell whether all slots held as expected.

        Raises:
            OSError: a write-protected page could not be opened for writing.
        """
        error = self._lib.udfrt_exchange(
            packed.slots, len(packed.slots), packed.expected, packed.desired, packed.found
        )
        if error:
            raise OSError(error, "mprotect of a relocation slot failed")
        return bytes(packed.found) == packed.whole

    def states(self, paths: bytes, count: int) -> int:
        """Return a number that changes when one of some files or folders does.

        Args:
            paths: their names, each with a zero at its end.
            count: how many.
        """
        return int(self._lib.udfrt_states(paths, count))

    def resolve(self, slot: Slot) -> int:
        """Return the address that the loader would put into ``slot``, or 0."""
        names = (slot.object, slot.symbol, slot.version)
        return int(self._lib.udfrt_resolve(*(name.encode() for name in names)))

    @functools.cached_property
    def cells(self) -> Cells:
        """The part of the runtime that instrumented functions count in."""
        return Cells(self._lib)


class Packed:
    """An exchange that is made again and again, as the native runtime takes it."""

    def __init__(
        self, slots: Sequence[Slot], expected: Sequence[int], desired: Sequence[int]
    ) -> None:
        array = ctypes.c_uint64 * len(slots)
        self.slots = _pack(slots)
        self.expected, self.desired, self.found = array(*expected), array(*desired), array()
        self.whole = bytes(self.expected)

    def changed(self) -> list[int | None]:
        """Return what each slot held that held something else; None for the others."""
        pairs = zip(self.found, self.expected, strict=True)
        return [value if value != before else None for value, before in pairs]


class Cells:
    """Typed access to the functions of native/c/udfprof.h."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._lib = lib
        abi = lib.udfprof_abi()
        if abi != _PROFILER_ABI:
            raise NativeError(
                f"libudfrt.so counts in the layout {abi}, but this package reads {_PROFILER_ABI}: "
                "another version left it. Reinstall pytest_udftorch."
            )
        size, word, number = ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint32
        records = (size, ctypes.c_void_p, size)
        functions = {
            **dict.fromkeys(("cells", "operators", "events"), records),
            **dict.fromkeys(("lost_events", "memory", "place", "ticks"), (word,)),
            "ring": (ctypes.c_int, size),
            "start": (None, number, number),
            "stop": (None,),
            "intern": (number, ctypes.c_char_p),
            "string": (ctypes.c_char_p, number),
            "string_count": (number,),
            "operator_udf": (None, number, word, word),
            "first_lines": (size, ctypes.POINTER(_CFirstLine), size),
            "sighting": (None, ctypes.c_int),
            "sight": (ctypes.c_int, size, ctypes.POINTER(_CSight)),
            "clocks": (None, ctypes.POINTER(word), ctypes.POINTER(word)),
        }
        _declare(lib, "udfprof", functions)
        #: Where the calling thread is: its module's id times 4, plus the stage.
        self.place: Callable[[], int] = lib.udfprof_place
        #: Zero everything and begin to count, to a depth and with a stride.
        self.start: Callable[[int, int], None] = lib.udfprof_start
        #: Stop counting; what was counted can still be read.
        self.stop: Callable[[], None] = lib.udfprof_stop
        #: How many events have found the ring full since the start.
        self.lost_events: Callable[[], int] = lib.udfprof_lost_events
        #: How many strings there are; ids are counted from 0.
        self.string_count: Callable[[], int] = lib.udfprof_string_count
        #: How many bytes the cells, their contexts and the events' ring take.
        self.memory: Callable[[], int] = lib.udfprof_memory
        #: The time stamp counter.
        self.ticks: Callable[[], int] = lib.udfprof_ticks
        #: Count a call of a UDF at operator level: its number, elements, and ticks at the start.
        self.operator_udf: Callable[[int, int, int], None] = lib.udfprof_operator_udf

    def count(self, what: str) -> int:
        """Return the number of records of ``cells`` or ``operators``."""
        return int(getattr(self._lib, f"udfprof_{what}")(None, 0))

    def read(self, what: str, address: int, capacity: int) -> int:
        """Write up to ``capacity`` records of ``cells``, ``operators`` or ``events``.

        Returns:
            How many records there are. For events, which are removed, how many were written.
        """
        return int(getattr(self._lib, f"udfprof_{what}")(address, capacity))

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

    def first_lines(self) -> dict[int, str]:
        """Return when cells first made special values, in ns, and the lines that called for it.

        The observer has to follow operators. What no line of Python called is missing, and so is
        what comes after the first 256.
        """
        found = (_CFirstLine * 256)()
        count = self._lib.udfprof_first_lines(found, len(found))
        return {one.ns: self.string(one.line_id) for one in found[:count]}

    def sighting(self, wanted: bool) -> None:
        """Note from now on where marked symbols are called first, or no longer; forget the rest.

        The observer has to follow the operators.
        """
        self._lib.udfprof_sighting(wanted)

    def sight(self, index: int) -> tuple[str, str, int, str] | None:
        """Return where the symbol of a trampoline was first called, or None if unknown.

        Returns:
            The names of operator and module, empty if unknown, the number of the stage, and the
            line that calls the operator, empty if unknown.
        """
        found = _CSight()
        if not self._lib.udfprof_sight(index, ctypes.byref(found)):
            return None
        stage, line = found.place & 3, self.string(found.line_id)
        return self.string(found.operator_id), self.string(found.place >> 2), stage, line

    def clocks(self) -> tuple[int, int]:
        """Return one reading of the time stamp counter and CLOCK_MONOTONIC (ns)."""
        ticks, now = ctypes.c_uint64(), ctypes.c_uint64()
        self._lib.udfprof_clocks(ctypes.byref(ticks), ctypes.byref(now))
        return ticks.value, now.value

    @property
    def parallel(self) -> int:
        """The address of the function that stands in for GOMP_parallel."""
        return address(self._lib, "udfprof_parallel")

    @property
    def within(self) -> int:
        """The address of the function that calls another in the context of an operator."""
        return address(self._lib, "udfprof_within")

    def set_gomp_parallel(self, address: int) -> None:
        """Set the function that the stand-in for GOMP_parallel calls."""
        ctypes.c_void_p.in_dll(self._lib, "udfprof_gomp_parallel").value = address


_LINK_MAP: Final = 2  # RTLD_DI_LINKMAP of dlfcn.h
_DYNAMIC: Final = 2  # l_ld among the pointers of struct link_map (link.h)


def _start(name: str, start: Callable[[int], int]) -> int:
    """Return where the object begins that the loader knows by a name, or 0.

    For a stand-in of a patched libtorch, that is the original.

    Args:
        name: of the object, without a folder.
        start: returns where the object begins that an address lies in.
    """
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return 0
    words = ctypes.POINTER(ctypes.c_uint64)()
    ctypes.CDLL(None).dlinfo(ctypes.c_void_p(library._handle), _LINK_MAP, ctypes.byref(words))
    found = start(words[_DYNAMIC])
    with contextlib.suppress(ValueError):  # found in the dependencies too
        original = ctypes.c_char_p.in_dll(library, "udfpatch_original")
        if original.value and start(ctypes.addressof(original)) == found:
            return _start(os.fsdecode(original.value), start)
    return found


def _slots(
    found: Sequence[_CSlot], symbols: Sequence[str], objects: Sequence[str], processor: Processor
) -> list[Slot]:
    return [
        Slot(s.address, symbols[s.symbol], objects[s.object], processor.relocations[s.type],
             bool(s.relro), s.version.decode())
        for s in found
    ]  # fmt: skip


def _pack(slots: Sequence[Slot]) -> ctypes.Array[_CSlot]:
    packed = (_CSlot * len(slots))()
    for c, slot in zip(packed, slots, strict=True):
        c.address, c.type, c.relro = slot.address, _TYPES[slot.kind], slot.relro
    return packed


def written_text(write: Callable[[Any, int], int]) -> str:
    """Return the text that a function in C writes.

    Args:
        write: takes a buffer and its size, and returns the length of the text, which it writes
            only if that fits.
    """
    size = 4096
    while True:
        text = ctypes.create_string_buffer(size)
        need = write(text, size)
        if need <= size:
            return text.raw[:need].decode()
        size = need
