"""Collects what instrumented functions count, from the start of a session to its end.

The runtime (llvm/runtime/udfprof.h) keeps a cell per function, form and context of each
thread. This module tells it the contexts that only Python knows, the modules, hands the
callers' contexts to the workers of parallel regions, and turns its cells into records.

One collector is active in a process. A forked child goes on counting from zero; what it
counted is written to a file when it ends, which the parent reads.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util
import os
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from pytest_udftorch.cuda.counters import counters
from pytest_udftorch.errors import (
    ProfileBusyError,
    ProfileDepthError,
    RestoreError,
    UdfError,
    nearest,
)
from pytest_udftorch.native.runtime import Cells, Slot, runtime
from pytest_udftorch.profile.aggregate import Profile, add_cells, add_operators, merge
from pytest_udftorch.profile.observer import Observer, load_observer
from pytest_udftorch.records import file as record
from pytest_udftorch.records import layout
from pytest_udftorch.records.file import ProfileWriter
from pytest_udftorch.records.layout import DEPTHS, Records, StringTable

#: Every how many blocks enter the histograms unless stated otherwise.
STRIDE: Final = 512

#: Events that fit into the ring between two readings; 10 MB.
RING: Final = 1 << 17

# How often events are taken out of the ring, in seconds.
_DRAIN_S: Final = 0.1

_active: Collector | None = None
_lock = threading.Lock()


def depth_of(profile: bool | str) -> str:
    """Return the depth that ``profile=`` asks for.

    Raises:
        ProfileDepthError: there is no such depth.
    """
    if profile is True:
        return DEPTHS[0]
    if not isinstance(profile, str) or profile not in DEPTHS:
        raise ProfileDepthError(
            f"There is no depth {profile!r} of profiling. {nearest(str(profile), DEPTHS)} "
            "True stands for 'counters'."
        )
    return profile


def check_stride(stride: int) -> int:
    """Return the stride if it is one.

    Raises:
        ProfileDepthError: it is no power of two from 1 to 65536.
    """
    if not isinstance(stride, int) or not 1 <= stride <= 1 << 16 or stride & (stride - 1):
        raise ProfileDepthError(
            f"The stride {stride!r} of the histograms is no power of two from 1 to 65536. 1 "
            "takes every value, and costs most."
        )
    return stride


def check_free() -> None:
    """Raise if a collector is active.

    Raises:
        ProfileBusyError: it is.
    """
    if _active is not None:
        raise ProfileBusyError(
            "A profiled session is open in this process, and there is one set of counters. Close "
            "it first, or open the inner session without profile=: what its functions do is then "
            "not counted."
        )


class Collector:
    """Counts from :meth:`start` to :meth:`stop`.

    Attributes:
        depth: ``counters``, ``timed`` or ``events``.
        stride: every how many blocks enter the histograms.
        meta: for the header of the profile.
        strings: the table that the ids of the records belong to.
        writer: of the profile's file, or None.

    Args:
        operators: names of the UDFs at operator level, by the numbers they count under.
    """

    def __init__(
        self,
        depth: str,
        stride: int,
        meta: Mapping[str, Any],
        out: str | Path | None,
        operators: Sequence[str] = (),
    ) -> None:
        self.depth = depth
        self.stride = stride
        self.strings = StringTable()
        # At once, while an id fits into the 16 bits of a function.
        self._operator_ids = np.array([self.strings.id(n) for n in operators], np.uint16)
        self.meta = {
            **meta,
            "depth": depth,
            "stride": stride,
            "rank": os.environ.get("RANK"),
            "session": secrets.token_hex(8),
        }
        self.out = None if out is None else Path(out)
        self.writer: ProfileWriter | None = None
        self._cells: Cells = runtime().cells
        self._ids = np.zeros(0, np.uint32)  # the runtime's ids of strings -> ours
        self._parts: list[tuple[Records, Records]] = []
        self._events: list[Records] = []
        self._lost = self._lost_before = 0
        self._missed = 0  # launches on GPUs, before the last take
        self._spool: Path | None = None
        self._pid = os.getpid()
        self._reading = threading.RLock()
        self._stopping = threading.Event()
        self._drain: threading.Thread | None = None
        self._undo = contextlib.ExitStack()
        self._final: Profile | None = None

    # ---------------------------------------------------------------------------------
    # Start and end

    def start(self, slots: Sequence[Slot]) -> None:
        """Begin to count.

        Args:
            slots: through which libtorch calls GOMP_parallel.

        Raises:
            ProfileBusyError: another collector of this process is active.
            ObserverBuildError: the observer of libtorch cannot be compiled.
            ProfileFileError, ProfileFileBusyError, ProfileFileExistsError: see ProfileWriter.
        """
        global _active
        with _lock:
            check_free()
            _active = self
        try:
            with contextlib.ExitStack() as undo:
                undo.callback(_deactivate)
                self._start(slots, undo)
                self._undo = undo.pop_all()
        except BaseException:
            self._stopping.set()
            raise

    def _start(self, slots: Sequence[Slot], undo: contextlib.ExitStack) -> None:
        observer = load_observer()
        if self.out is not None:
            self.meta = {**self.meta, "clocks": record.clocks()}
            self.writer = ProfileWriter(record.new_path(self.out), self.strings, self.meta)
            undo.callback(self.writer.close)
        self.meta = {"clocks": record.clocks(), **self.meta, "pid": self._pid}
        if self.depth == "events":
            self._cells.ring(RING)
            undo.callback(self._cells.ring, 0)
        _register_fork()
        undo.callback(self._remove_spool)
        undo.enter_context(_parallel_regions(self._cells, slots))
        undo.enter_context(_Modules(self._cells, observer))
        # A UDF at operator level may stand in for any operator.
        if not observer.start(all_operators=bool(self._operator_ids.size)):
            raise UdfError("torch refused the callbacks of the observer (at::addGlobalCallback).")
        undo.callback(observer.stop)
        self._started_ns = time.monotonic_ns()
        self._clock = self._cells.clocks()
        if self.depth == "events":
            self._drain = threading.Thread(
                target=self._drain_loop, name="udftorch-events", daemon=True
            )
            self._drain.start()
            undo.callback(self._drain.join)
            undo.callback(self._stopping.set)
        self._count()
        undo.callback(self._cells.stop)
        undo.callback(counters.stop)

    def _count(self) -> None:
        """Begin to count from zero."""
        self._cells.start(DEPTHS.index(self.depth), self.stride)
        counters.start(self.stride)

    def stop(self) -> None:
        """End: everything is put back, and the file, if there is one, is closed.

        Raises:
            RestoreError: something else had been put in a place that is ours.
        """
        if self._pid != os.getpid():  # a child that leaves the parent's with block
            self._write_child()
            _deactivate()
            return
        self._cells.stop()
        counters.stop()
        self.meta = {**self.meta, "wall_ns": time.monotonic_ns() - self._started_ns}
        try:
            self._final = self.profile()
            if self.writer is not None:
                self._write(self.writer, *self._new_part(), "")
                self.writer.mark(wall_ns=self.meta["wall_ns"])
        finally:
            self._undo.close()

    @property
    def is_active(self) -> bool:
        """True from start to stop, in the process that started it."""
        return _active is self

    # ---------------------------------------------------------------------------------
    # Records

    def cells(self) -> Records:
        """Return what was counted since the start or the last :meth:`take`: dtype CELL."""
        return self._new_part()[0]

    def operators(self) -> Records:
        """Return the operators' calls since the start or the last :meth:`take`."""
        return self._new_part()[1]

    def drain_events(self) -> Records:
        """Take the events out of the ring: dtype EVENT. They are in no later answer."""
        with self._reading:
            found = []
            while True:
                rows = np.zeros(4096, layout.EVENT)
                count = self._cells.read("events", rows.ctypes.data, len(rows))
                found.append(rows[:count])
                if count < len(rows):
                    break
            events = np.concatenate(found)
            ticks, now, rate = self._clock_rate()
            for name in ("start_ns", "end_ns"):
                # By the distance from now: ticks as such have more bits than a double.
                ago = (ticks - events[name].astype(np.int64)) * rate
                events[name] = (now - np.rint(ago).astype(np.int64)).astype(np.uint64)
            return self._named(events)

    def flush(self) -> None:
        """Take the events out of the ring now, as otherwise happens ten times a second."""
        self._keep_events()

    def take(self, scope: str) -> Profile:
        """Return what was counted since the start or the last call, and count from zero.

        The whole stays in :meth:`profile`. A file gets the part under the name ``scope``.
        """
        with self._reading:
            self._keep_events()
            part = self._new_part()
            # From here the runtime counts what is lost from zero, too.
            self._lost_before = self._lost
            self._missed += counters.missed
            self._count()
            self._parts.append(part)
            if self.writer is not None:
                self._write(self.writer, *part, scope)
        return Profile.from_arrays(self.strings, self.meta, cells=part[0], operators=part[1])

    def profile(self) -> Profile:
        """Return everything since the start, forked children that have ended included."""
        if self._final is not None:
            return self._final
        with self._reading:
            cells, operators = self._new_part()
            for more in self._parts:
                cells = add_cells(np.concatenate([cells, more[0]]))
                operators = add_operators(np.concatenate([operators, more[1]]))
            self._keep_events()
            notes = []
            if self._lost:
                notes.append(f"{self._lost:,} events were lost: the buffer overflowed.")
            if missed := self._missed + counters.missed:
                notes.append(
                    f"{missed:,} launches on GPUs were not counted: a CUDA graph was being "
                    "captured, and there was no room for another row. Call the operators once "
                    "before the capture."
                )
            mine = Profile.from_arrays(
                self.strings,
                {"wall_ns": time.monotonic_ns() - self._started_ns, **self.meta},
                cells=cells,
                operators=operators,
                events=np.concatenate(self._events) if self._events else None,
                notes=notes,
            )
        return merge([mine, *self._children()])

    def _new_part(self) -> tuple[Records, Records]:
        with self._reading:
            parts = []
            on_gpus = counters.read()
            kinds = (("cells", layout.CELL), ("operators", layout.OPERATOR))
            for (what, dtype), more in zip(kinds, on_gpus, strict=True):
                # Other threads may add contexts between the two calls.
                rows = np.zeros(self._cells.count(what) + 16, dtype)
                count = self._cells.read(what, rows.ctypes.data, len(rows))
                rows = self._named(np.concatenate([rows[: min(count, len(rows))], more]))
                rows["time_ns"] *= self._clock_rate()[2]
                parts.append(rows)
            return add_cells(parts[0]), add_operators(parts[1])

    def _named(self, rows: Records) -> Records:
        """Put the runtime's ids of strings over to those of ``strings``."""
        count = self._cells.string_count()
        if count > len(self._ids):
            fresh = [self.strings.id(self._cells.string(i)) for i in range(len(self._ids), count)]
            self._ids = np.concatenate([self._ids, np.array(fresh, np.uint32)])
        if len(rows):
            for name in ("operator", "module"):
                rows[name] = self._ids[rows[name]]
            if "function" in (rows.dtype.names or ()):
                whole = rows["function"] >= layout.FIRST_OPERATOR_UDF
                numbers = rows["function"][whole] - layout.FIRST_OPERATOR_UDF
                rows["function"][whole] = self._operator_ids[numbers]
        return rows

    def _clock_rate(self) -> tuple[int, int, float]:
        """Return a reading of both clocks, and ns per tick since the start."""
        ticks, now = self._cells.clocks()
        first_ticks, first = self._clock
        return ticks, now, (now - first) / max(1, ticks - first_ticks)

    def _drain_loop(self) -> None:
        while not self._stopping.wait(_DRAIN_S):
            self._keep_events()

    def _keep_events(self) -> None:
        if self.depth != "events":
            return
        with self._reading:
            events = self.drain_events()
            lost = self._lost_before + self._cells.lost_events()
            if self.writer is not None:
                self.writer.events(events)
                self.writer.lost_events(lost - self._lost)
            elif len(events):
                self._events.append(events)
            self._lost = lost

    @staticmethod
    def _write(writer: ProfileWriter, cells: Records, operators: Records, scope: str) -> None:
        writer.cells(cells, scope)
        writer.operators(operators, scope)

    # ---------------------------------------------------------------------------------
    # Forked children

    def _make_spool(self) -> None:
        """In the parent, before a fork: the folder that children write to."""
        if self._spool is None and self._pid == os.getpid():
            self._spool = self.out or Path(tempfile.mkdtemp(prefix="udftorch-profile-"))

    def _remove_spool(self) -> None:
        if self._spool is not None and self._spool != self.out and self._pid == os.getpid():
            shutil.rmtree(self._spool, ignore_errors=True)
        self._spool = None

    def _in_child(self) -> None:
        """In the child, after a fork: nothing of the parent's counts here."""
        self._reading = threading.RLock()
        self._parts, self._events = [], []
        self._lost = self._lost_before = 0
        self._drain = None
        self.writer = None
        self._undo = contextlib.ExitStack()  # the parent undoes; a child ends as it is
        # Ends by sys.exit run the first, those of multiprocessing the second, which clears
        # what was registered before the child's own code begins.
        atexit.register(self._write_child)

    def _arm_child(self) -> None:
        if self._pid != os.getpid():
            multiprocessing.util.Finalize(None, self._write_child, exitpriority=0)

    def _write_child(self) -> None:
        spool, self._spool = self._spool, None
        if spool is None or not self.is_active:
            return
        self._cells.stop()
        meta = {k: v for k, v in self.meta.items() if k not in ("pid", "clocks", "wall_ns")}
        with contextlib.suppress(UdfError, OSError):
            cells, operators = self._new_part()
            if not len(cells):
                return
            writer = ProfileWriter(
                record.new_path(spool), self.strings, {**meta, "parent_pid": self._pid}
            )
            with writer:
                self._write(writer, cells, operators, "")
                if self.depth == "events":
                    writer.events(self.drain_events())
                    writer.lost_events(self._cells.lost_events())

    def _children(self) -> list[Profile]:
        found: list[Profile] = []
        if self._spool is None:
            return found
        for path in sorted(self._spool.glob("profiled-*.bin")):
            if self.writer is not None and path == self.writer.path:
                continue
            # One that is being written now is read next time.
            with contextlib.suppress(UdfError, OSError):
                file = record.read(path)
                if file.meta.get("session") == self.meta["session"] and file.ended:
                    found.append(Profile.load(path))
        return found


def _deactivate() -> None:
    global _active
    _active = None


# Forks -------------------------------------------------------------------------------

_fork_registered = False


def _register_fork() -> None:
    global _fork_registered
    if not _fork_registered:
        _fork_registered = True
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
        multiprocessing.util.register_after_fork(_ARM, _Arm.run)


def _before_fork() -> None:
    if _active is not None:
        _active._make_spool()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    if _active is not None:
        _active._in_child()


class _Arm:
    """What multiprocessing calls in a child before the child's own code."""

    def run(self) -> None:
        if _active is not None:
            _active._arm_child()


_ARM = _Arm()

# Parallel regions --------------------------------------------------------------------


@contextlib.contextmanager
def _parallel_regions(cells: Cells, slots: Sequence[Slot]) -> Any:
    """Hand the context of whoever opens a parallel region to its workers."""
    native = runtime()
    if not slots:  # a libtorch without OpenMP has no regions
        yield
        return
    stock = native.resolve(slots[0])
    cells.set_gomp_parallel(stock)
    before = native.read(slots)
    ours = [cells.parallel] * len(slots)
    native.exchange(slots, before, ours)
    try:
        yield
    finally:
        found = native.exchange(slots, ours, before)
        if found != ours:
            raise RestoreError(
                "Something else rebound GOMP_parallel while a profiled session was open; it was "
                "left as it is. Close the other tool's hook before the session."
            )


# Modules -----------------------------------------------------------------------------


class _Modules:
    """Names modules, while it is entered, for the observer, which sees them being called."""

    def __init__(self, cells: Cells, observer: Observer) -> None:
        self._cells = cells
        self._observer = observer
        self._ids: dict[int, int] = {}  # id(module) -> id of its name
        self._roots: dict[int, int] = {}  # id(module) -> id(the root it was named under)
        self._taken: dict[str, int] = {}  # name -> id(module)
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        import torch
        from torch.fx import GraphModule

        self._graph = GraphModule
        if not self._observer.watch_modules(torch.nn.Module.__call__, self._find):
            raise UdfError(
                "Something replaced torch.nn.Module.__call__ by what is no Python function, so "
                "the profiler cannot see which module is being called. Close the other tool first."
            )

    def __exit__(self, *exception: object) -> None:
        self._observer.leave_modules()

    def _find(self, module: Any, caller: int) -> int:
        """Name a module that was not called before, and those below it."""
        with self._lock:
            if id(module) not in self._ids and not caller:
                self._walk(module)
            if id(module) not in self._ids:
                if caller and isinstance(module, self._graph):
                    # Compiled from the module that is being called, and no part of it.
                    self._remember(module, caller, module)
                else:
                    self._name(module, type(module).__name__, module)
            return self._ids[id(module)]

    def _walk(self, root: Any) -> None:
        """Name a root and everything below: ``features.3.elu``, the root by its class."""
        below = {path.removeprefix("_orig_mod."): m for path, m in root.named_modules()}
        mine = {id(m) for m in below.values()}
        own = type(root).__name__
        if "_orig_mod" in below:  # a compiled module stands for the one in it
            inner = below.pop("_orig_mod")
            own = type(inner).__name__
            self._name(inner, own, root)
        fresh = {
            path: m
            for path, m in below.items()
            if path and (id(m) not in self._ids or self._roots[id(m)] in mine)
        }
        # Two models that are alive at once may have layers of the same path.
        prefix, number = "", 1
        while any(self._taken.get(prefix + p, id(m)) != id(m) for p, m in fresh.items()):
            prefix = f"{own}." if number == 1 else f"{own}#{number}."
            number += 1
        for path, m in fresh.items():
            self._name(m, prefix + path, root)
        self._name(root, own, root)

    def _name(self, module: Any, text: str, root: Any) -> None:
        self._taken.setdefault(text, id(module))
        self._remember(module, self._cells.intern(text), root)

    def _remember(self, module: Any, number: int, root: Any) -> None:
        key = id(module)
        self._alive[key] = weakref.ref(module, lambda _: self._forget(key))
        self._roots[key] = id(root)
        self._ids[key] = number
        self._observer.forget(key)

    def _forget(self, key: int) -> None:
        # The address may be another module's next.
        with self._lock:
            self._observer.forget(key)
            self._ids.pop(key, None)
            self._roots.pop(key, None)
            self._alive.pop(key, None)
            for text in [t for t, owner in self._taken.items() if owner == key]:
                del self._taken[text]
