# SPDX-License-Identifier: Apache-2.0
"""Collects what instrumented functions count, from the start of a session to its end.

The runtime (native/c/udfprof.h) keeps a cell per function, form and context of each thread.
This module tells it the modules, which only Python knows, hands the callers' contexts to the
workers of parallel regions, and turns the cells into records. One collector is active in a
process. See ``forks`` for the children.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from pytest_udftorch.errors import ProfileError, RestoreError, UdfError, nearest
from pytest_udftorch.swap.counting.counters import Counting
from pytest_udftorch.swap.counting.forks import Spool, active
from pytest_udftorch.swap.counting.modules import ModuleNames
from pytest_udftorch.swap.counting.observer import load_observer
from pytest_udftorch.swap.native.runtime import Cells, Slot, runtime
from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records.file import ProfileWriter
from pytest_udftorch.swap.records.layout import DEPTHS, Records
from pytest_udftorch.swap.records.profile import Profile, merge_profiles
from pytest_udftorch.swap.records.runs import own
from pytest_udftorch.swap.records.totals import add_cells, add_operators

#: The histograms sample one block in this many by default.
STRIDE: Final = 512

#: Events that fit into the ring between two readings; 10 MB.
RING: Final = 1 << 17

# Seconds between two readings of the ring.
_DRAIN_S: Final = 0.1

# A child of multiprocessing writes what it has counted after so many seconds, and then whenever
# its age has grown by this share. What a kill costs is at most that share, and the snapshots, each
# as long as the last, are few.
_SAVE_S: float = 0.5
_SAVE_SHARE: Final = 1 / 8


def depth_of(profile: bool | str) -> str:
    """Return the depth that ``profile=`` asks for.

    Raises:
        ProfileError: there is no such depth.
    """
    if profile is True:
        return DEPTHS[0]
    if not isinstance(profile, str) or profile not in DEPTHS:
        raise ProfileError(
            f"There is no depth {profile!r} of profiling. {nearest(str(profile), DEPTHS)} "
            "True stands for 'counters'."
        )
    return profile


def check_stride(stride: int) -> int:
    """Return the stride if it is valid.

    Raises:
        ProfileError: it is not a power of two from 1 to 65536.
    """
    if not isinstance(stride, int) or not 1 <= stride <= 1 << 16 or stride & (stride - 1):
        raise ProfileError(
            f"The stride {stride!r} of the histograms is not a power of two from 1 to 65536. 1 "
            "takes every value and costs most."
        )
    return stride


class Collector:
    """Counts from :meth:`start` to :meth:`stop`.

    Attributes:
        strings: the table that the ids of the records belong to.
        writer: the writer of the profile's file, or None.

    Args:
        depth: ``counters``, ``timed`` or ``events``.
        stride: the histograms sample one block in this many.
        meta: for the header of the profile.
        out: the folder of the profile's file, or None for no file.
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
        self._counting = Counting(depth, stride, operators)
        self.strings = self._counting.strings
        self._all_operators = bool(operators)
        self.meta = {
            **meta,
            "depth": depth,
            "stride": stride,
            "rank": os.environ.get("RANK"),
            "session": secrets.token_hex(8),
            **own(),
        }
        self.out = None if out is None else Path(out)
        self.writer: ProfileWriter | None = None
        self._child_writer: ProfileWriter | None = None
        self._parts: list[tuple[Records, Records]] = []
        self._events: list[Records] = []
        self._lines: dict[int, str] = {}
        self._lost = self._lost_before = 0
        self._missed = 0  # launches on GPUs, before the last take
        self._spool = Spool(self.out)
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._undo = contextlib.ExitStack()
        self._final: Profile | None = None

    # Start and end -------------------------------------------------------------------

    def start(self, slots: Sequence[Slot]) -> None:
        """Begin to count.

        Args:
            slots: those through which libtorch calls GOMP_parallel.

        Raises:
            SessionBusyError: another collector of this process is active.
            NativeError: the observer of libtorch cannot be compiled.
            ProfileFileError: see ProfileWriter.
        """
        active.claim(self)
        try:
            with contextlib.ExitStack() as undo:
                undo.callback(active.release)
                self._start(slots, undo)
                self._undo = undo.pop_all()
        except BaseException:
            self._stopping.set()
            raise

    def _start(self, slots: Sequence[Slot], undo: contextlib.ExitStack) -> None:
        observer, cells = load_observer(), self._counting.cells
        if self.out is not None:
            self.meta = {**self.meta, "clocks": record.clocks()}
            self.writer = ProfileWriter(record.new_path(self.out), self.strings, self.meta)
            undo.callback(self.writer.close)
        self.meta = {"clocks": record.clocks(), **self.meta, "pid": self._pid}
        if self.depth == "events":
            cells.ring(RING)
            undo.callback(cells.ring, 0)
        undo.callback(self._spool.remove)
        undo.enter_context(_parallel_regions(cells, slots))
        undo.enter_context(ModuleNames(cells, observer))
        # A UDF at operator level may stand in for any operator.
        if not observer.start(all_operators=self._all_operators):
            raise UdfError("torch refused the callbacks of the observer (at::addGlobalCallback).")
        undo.callback(observer.stop)
        self._started_ns = time.monotonic_ns()
        self._counting.set_clock()
        if self.depth == "events":
            drain = threading.Thread(target=self._drain, name="udftorch-events", daemon=True)
            drain.start()
            undo.callback(drain.join)
            undo.callback(self._stopping.set)
        self._counting.begin()
        undo.callback(self._counting.end)

    @contextlib.contextmanager
    def starting_over(self) -> Iterator[None]:
        """Count nothing inside, and from zero afterwards."""
        self._counting.end()
        try:
            yield
        finally:
            self._counting.begin()

    def stop(self) -> None:
        """Restore everything, and close the file if there is one; can be repeated.

        Raises:
            RestoreError: something else replaced what the collector had put in place.
        """
        if self._pid != os.getpid():  # a child that leaves the parent's with block
            self._write_child()
            active.release()
            return
        try:
            if self.is_active and self._final is None:
                self._counting.end()
                self.meta = {**self.meta, "wall_ns": time.monotonic_ns() - self._started_ns}
                self._final = self.profile()
                if self.writer is not None:
                    self._write(self.writer, *self._counting.part(), "")
                    self.writer.lines(self._lines)
                    self.writer.mark(wall_ns=self.meta["wall_ns"])
        finally:
            self._undo.close()

    @property
    def is_active(self) -> bool:
        """True from start to stop, in the process that started it."""
        return active.collector is self

    # Records -------------------------------------------------------------------------

    def cells(self) -> Records:
        """Return the cells of :meth:`part`: dtype CELL."""
        return self._counting.part()[0]

    def part(self) -> Profile:
        """Return what was counted since the start or the last :meth:`take`; no events."""
        return self._profile_of(*self._counting.part())

    def _profile_of(self, cells: Records, operators: Records) -> Profile:
        return Profile.from_arrays(
            self.strings, self.meta, cells=cells, operators=operators, lines=self._known_lines()
        )

    def _known_lines(self) -> dict[int, str]:
        """Return the lines of first special values since the start."""
        self._lines |= self._counting.cells.first_lines()
        return self._lines

    def flush(self) -> None:
        """Take the events out of the ring now; a thread does so ten times a second."""
        if self.depth != "events":
            return
        with self._counting.lock:
            events = self._counting.events()
            lost = self._lost_before + self._counting.cells.lost_events()
            if self.writer is not None:
                self.writer.events(events)
                self.writer.lost_events(lost - self._lost)
            elif len(events):
                self._events.append(events)
            self._lost = lost

    def take(self, scope: str) -> Profile:
        """Return what was counted since the start or the last call, and count from zero.

        The whole stays in :meth:`profile`. A file gets the part under the name ``scope``.
        """
        with self._counting.lock:
            self.flush()
            part = self._counting.part()
            self._known_lines()
            # From here the runtime counts what is lost from zero, too.
            self._lost_before = self._lost
            self._missed += self._counting.missed
            self._counting.begin()
            self._parts.append(part)
            if self.writer is not None:
                self._write(self.writer, *part, scope)
        if self._pid != os.getpid():  # pytest-forked ends its children by os._exit
            self._save_child()
        return self._profile_of(*part)

    def _total(self) -> tuple[Records, Records]:
        """Return the cells and operators since the start, those that were taken included."""
        cells, operators = self._counting.part()
        for more in self._parts:
            cells = add_cells(np.concatenate([cells, more[0]]))
            operators = add_operators(np.concatenate([operators, more[1]]))
        return cells, operators

    def profile(self) -> Profile:
        """Return everything since the start, forked children that have ended included."""
        if self._final is not None:
            return self._final
        with self._counting.lock:
            cells, operators = self._total()
            self.flush()
            notes = []
            if self._lost:
                notes.append(f"{self._lost:,} events were lost: the buffer overflowed.")
            if missed := self._missed + self._counting.missed:
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
                lines=self._known_lines(),
            )
        own = None if self.writer is None else self.writer.path
        return merge_profiles([mine, *self._spool.profiles(self.meta["session"], own)])

    def _drain(self) -> None:
        while not self._stopping.wait(_DRAIN_S):
            self.flush()

    @staticmethod
    def _write(writer: ProfileWriter, cells: Records, operators: Records, scope: str) -> None:
        writer.cells(cells, scope)
        writer.operators(operators, scope)

    # Forked children -----------------------------------------------------------------

    def before_fork(self) -> None:
        """Make the folder that children write to; called in the parent, before a fork."""
        self._spool.make()

    def in_child(self) -> None:
        """Forget what the parent counted; called in the child, after a fork."""
        self._counting.lock = threading.RLock()
        self._parts, self._events, self._lines = [], [], {}
        self._lost = self._lost_before = 0
        self.writer = self._child_writer = None
        self._stopping = threading.Event()
        self._undo = contextlib.ExitStack()  # the parent undoes; a child ends as it is
        # For a child that ends by sys.exit. A child of multiprocessing needs arm_child:
        # multiprocessing clears what was registered before the child's own code begins.
        atexit.register(self._write_child)

    def arm_child(self) -> None:
        """Make a child of multiprocessing write while it runs, and when it ends."""
        if self._pid != os.getpid():
            multiprocessing.util.Finalize(None, self._write_child, exitpriority=0)
            threading.Thread(target=self._save, name="udftorch-profile", daemon=True).start()

    def _save(self) -> None:
        start = time.monotonic()
        pause = _SAVE_S
        while not self._stopping.wait(pause):
            self._save_child()
            pause = max(_SAVE_S, _SAVE_SHARE * (time.monotonic() - start))

    def _save_child(self) -> None:
        """Write what this child has counted so far, in the place of what it wrote before."""
        with self._counting.lock, contextlib.suppress(UdfError, OSError):
            folder = self._spool.folder
            cells, operators = self._total()
            if folder is None or not self.is_active or not len(cells):
                return
            if self._child_writer is None:
                meta = {k: v for k, v in self.meta.items() if k not in ("pid", "clocks", "wall_ns")}
                meta["parent_pid"] = self._pid
                path = record.new_path(folder)
                self._child_writer = ProfileWriter(path, self.strings, meta)
            self._write(self._child_writer, cells, operators, "")
            self._child_writer.lines(self._known_lines())

    def _write_child(self) -> None:
        self._stopping.set()
        if self._spool.folder is None or not self.is_active:
            return
        self._counting.cells.stop()
        self._save_child()
        with self._counting.lock, contextlib.suppress(UdfError, OSError):
            self._spool.folder = None
            writer, self._child_writer = self._child_writer, None
            if writer is not None:
                if self.depth == "events":
                    writer.events(self._counting.events())
                    writer.lost_events(self._counting.cells.lost_events())
                writer.close()


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
                "Something else rebound GOMP_parallel while a profiled session was open; it "
                "keeps its value. Remove the other tool's hook before you open the session."
            )
