# SPDX-License-Identifier: Apache-2.0
"""``profiled.bin``, the file that keeps the records of a profile: writing, and checked reading.

``docs/watch/profile.md`` has the bytes of the file.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import struct
import sys
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base import whole_file
from pytest_udftorch.base.host import require_host
from pytest_udftorch.errors import ProfileFileError, ProfileLossWarning
from pytest_udftorch.swap.records.layout import (
    CELL,
    CELL_DTYPES,
    CELL_FORMS,
    DEVICES,
    EVENT,
    OPERATOR,
    STAGES,
    Records,
    StringTable,
)

try:
    import fcntl
except ImportError:  # Windows
    require_host()
    raise

# The first byte is not text. The last one shows whether something converted the line ends.
MAGIC: Final = b"\x89UDFPRF\n"
VERSION: Final = 1
_BYTE_ORDER: Final = 0x01020304
# Magic, byte order, version, 0, size of the whole header, CRC-32 of the header without this field.
_HEADER: Final = struct.Struct("<8sIHHII")
# Type, flags, bytes of the payload, CRC-32 of the payload, CRC-32 of the preceding 12 bytes.
_FRAME: Final = struct.Struct("<HHIII")
_SCOPED: Final = struct.Struct("<II")  # id of the scope, 0
_STRING: Final = struct.Struct("<II")  # id, bytes of the text

STRINGS: Final = 1
CELLS: Final = 2
OPERATORS: Final = 3
EVENTS: Final = 4
MARK: Final = 5
END: Final = 6

_ZLIB: Final = 1  # flag: the payload is compressed

# Histograms are mostly zeros: cells shrink to a few percent at the fastest level.
_LEVEL: Final = 1


#: Far more than the cells of any run need.
_MOST_UNPACKED: Final = 1 << 30

_TIME: Final = shapes.whole(0, 1 << 62)
_CLOCKS: Final = shapes.record(
    dict.fromkeys(("monotonic_ns", "realtime_ns"), _TIME), {"process_ns": _TIME}, closed=False
)
_PROCESS: Final = {
    **dict.fromkeys(
        ("library", "version", "claim", "build_id", "cpu_level", "torch", "depth", "host"),
        shapes.of(str),
    ),
    **dict.fromkeys(("pid", "stride"), shapes.whole()),
    "wall_ns": _TIME,
}
#: Shape of what a header says; readers of profiles need no other entries.
_META: Final = shapes.record(
    {},
    {
        **_PROCESS,
        "clocks": shapes.optional(_CLOCKS),
        "processes": shapes.each(shapes.record({"clocks": _CLOCKS}, _PROCESS, closed=False)),
    },
    closed=False,
)
_MARK: Final = shapes.record(
    {},
    {
        "lost_events": shapes.whole(),
        "wall_ns": _TIME,
        "note": shapes.of(str),
        "lines": shapes.each(shapes.row(_TIME, shapes.of(str))),
    },
    closed=False,
)


def _header(meta: Mapping[str, Any]) -> bytes:
    text = json.dumps(meta, allow_nan=False).encode()
    size = _HEADER.size + len(text)
    bare = _HEADER.pack(MAGIC, _BYTE_ORDER, VERSION, 0, size, 0)[:-4]
    return bare + struct.pack("<I", zlib.crc32(text, zlib.crc32(bare))) + text


def _frame(kind: int, payload: bytes, flags: int = 0) -> bytes:
    start = struct.pack("<HHII", kind, flags, len(payload), zlib.crc32(payload))
    return start + struct.pack("<I", zlib.crc32(start)) + payload


def clocks() -> dict[str, int]:
    """Return one reading of CLOCK_MONOTONIC and CLOCK_REALTIME, in ns, and ``process_ns``.

    ``process_ns`` is when this process began, on CLOCK_REALTIME, to some hundredths of a second.

    The realtime clock is read between two readings of the monotonic clock, whose midpoint
    counts. Of ten tries, the one with the shortest interval is returned.
    """
    tries = []
    for _ in range(10):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        real = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        tries.append((after - before, (before + after) // 2, real))
    _, monotonic, real = min(tries)
    return {"monotonic_ns": monotonic, "realtime_ns": real, "process_ns": real - _age_ns()}


def _age_ns() -> int:
    """Return for how long this process has run, in ns."""
    # proc_pid_stat(5): field 22 is the start in ticks since the machine was booted. The name of
    # the program, field 2, may hold anything but ends with the last parenthesis.
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    started = int(fields[19]) * 10**9 // os.sysconf("SC_CLK_TCK")
    return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started)


def new_path(folder: Path) -> Path:
    """Return a path in ``folder`` for this process's profile that no file has yet."""
    stem = f"profiled-{socket.gethostname()}-{os.getpid()}"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(1)))
    return next(path for name in names if not (path := folder / f"{name}.bin").exists())


def is_written(path: Path) -> bool:
    """Tell whether a process that lives has the file open for writing.

    Raises:
        OSError: the file cannot be opened.
    """
    with path.open("rb") as file:
        return whole_file.lock(file.fileno()) is not True


def remove_earlier(folder: Path) -> None:
    """Make a folder if needed, and remove the profiles of an earlier run from it.

    Raises:
        ProfileFileError: one of them is being written; the folder cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("profiled-*.bin"):
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if file.read(len(MAGIC)) in (b"", MAGIC):
                    path.unlink()
        with tempfile.TemporaryFile(dir=folder):
            pass
    except BlockingIOError:
        raise ProfileFileError(
            f"Another session is writing the profile {path}. Give each run a folder of its own."
        ) from None
    except OSError as error:
        raise ProfileFileError(
            f"Cannot write profiles into {folder}: {error.strerror or error}. Choose another "
            "folder."
        ) from error


def claim(path: Path) -> int:
    """Make an empty file for a profile; return a descriptor that keeps other writers out.

    Raises:
        ProfileFileError: another writer has the file open; the file holds an earlier profile; the
            folder cannot be made, or the file cannot be opened.
    """
    fd = -1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = os.fstat(fd).st_size
    except BlockingIOError:
        os.close(fd)
        raise ProfileFileError(
            f"Another session is writing the profile {path}. Give each session a file, or "
            "each run a folder, of its own."
        ) from None
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise ProfileFileError(
            f"Cannot write the profile {path}: {error.strerror or error}. Choose another "
            "folder for it."
        ) from error
    if size:
        os.close(fd)
        raise ProfileFileError(f"{path} holds an earlier profile. Delete it, or name another file.")
    return fd


@contextlib.contextmanager
def whole(path: Path, strings: StringTable, meta: Mapping[str, Any]) -> Iterator[ProfileWriter]:
    """Yield a writer of a file that gets its name when it is whole.

    Raises:
        ProfileFileError: as from ``claim``.
    """
    path = Path(os.path.realpath(path))
    held = claim(path)
    scratch = whole_file.scratch_name(path)
    try:
        with ProfileWriter(scratch, strings, meta) as writer:
            writer.path = path  # for what it says of itself
            yield writer
        os.replace(scratch, path)
        whole_file.remove_left(path)
    except BaseException as error:
        for left in (scratch, path):  # the path is empty as long as it is not the scratch
            with contextlib.suppress(OSError):
                left.unlink()
        if isinstance(error, OSError):
            raise ProfileFileError(
                f"Cannot write the profile {path}: {error.strerror or error}. Choose another "
                "folder for it."
            ) from error
        raise
    finally:
        os.close(held)


@dataclass
class Loss:
    """What could not be written.

    Attributes:
        records: how many the file lacks.
        events: how many the file lacks, including those that the sender dropped.
        reason: the first error that the system reported.
    """

    records: int = 0
    events: int = 0
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.records or self.events or self.reason)


class ProfileWriter:
    """Appends records to one file.

    A record goes to the system in one piece, so it survives any end of the process. Only
    :meth:`close` waits for the disk (fsync), so a power failure during a run may cost the end
    of its file. The writer counts what the disk refuses, and :meth:`close` reports it: once the
    file is open, nothing here stops the user's run.

    After a fork, the child's first record opens a file of its own beside the parent's.

    Args:
        path: the file to write; the writer makes its folder if needed.
        strings: the table that the records' ids belong to.
        meta: plain data for the header: library, build_id, cpu_level, torch, depth, stride,
            rank, ...; ``pid``, ``host`` and ``clocks`` are added unless given.

    Raises:
        ProfileFileError: another writer has the file open; the file holds an earlier profile; the
            folder cannot be made, or the file cannot be opened.
    """

    def __init__(self, path: Path, strings: StringTable, meta: Mapping[str, Any]) -> None:
        self.strings = strings
        self._given = dict(meta)
        self._open(path)

    def _open(self, path: Path) -> None:
        self.path = path
        self.loss = Loss()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._sent = 0
        self._records = 0
        self._end = 0
        self._fd = -1
        self._fd = claim(path)
        self.meta = {
            "pid": self._pid,
            "host": socket.gethostname(),
            "clocks": clocks(),
            **self._given,
        }
        # On a full disk the run goes on, as it does if the disk fills up later.
        self._write(b"")

    @property
    def is_open(self) -> bool:
        """Whether :meth:`close` has not been called in this process."""
        return self._fd >= 0

    def cells(self, cells: Records, scope: str = "") -> None:
        """Append a snapshot of cells (dtype CELL), which replaces an earlier one of ``scope``.

        Scopes are disjoint parts of a run, such as its tests; the whole is their sum.
        """
        self._scoped(CELLS, cells, CELL, scope)

    def operators(self, operators: Records, scope: str = "") -> None:
        """Append a snapshot of operators (dtype OPERATOR) of ``scope``."""
        self._scoped(OPERATORS, operators, OPERATOR, scope)

    def events(self, events: Records) -> None:
        """Append events (dtype EVENT) to those already in the file."""
        if len(events):
            payload = np.ascontiguousarray(events, EVENT).tobytes()
            self._append(EVENTS, payload, events=len(events))

    def mark(self, **data: Any) -> None:
        """Append plain data, such as ``test="test_x.py::test_y", at="start"``."""
        self._append(MARK, json.dumps(data, allow_nan=False).encode())

    def lines(self, lines: Mapping[int, str]) -> None:
        """Note the lines that made first special values: CLOCK_MONOTONIC, in ns -> line."""
        if lines:
            self.mark(lines=[[time, line] for time, line in lines.items()])

    def lost_events(self, count: int) -> None:
        """Count events that were dropped before they came here, and note it in the file."""
        if count:
            self.loss.events += count
            self.loss.reason = self.loss.reason or "the buffer of events overflowed"
            self.mark(lost_events=count)

    def _scoped(self, kind: int, rows: Records, dtype: np.dtype[np.void], scope: str) -> None:
        body = np.ascontiguousarray(rows, dtype).tobytes()
        payload = _SCOPED.pack(self.strings.id(scope), 0) + body
        self._append(kind, zlib.compress(payload, _LEVEL), _ZLIB)

    def _append(self, kind: int, payload: bytes, flags: int = 0, events: int = 0) -> None:
        if os.getpid() != self._pid:
            self._reopen()
        with self._lock:
            self._records += 1
            if self._fd < 0 or not self._write(_frame(kind, payload, flags)):
                self.loss.records += 1
                self.loss.events += events

    def _reopen(self) -> None:
        """Open a file for the child; the parent's file keeps its lock and content."""
        if self._fd >= 0:
            os.close(self._fd)
        self._given["parent_pid"] = self._pid
        try:
            self._open(new_path(self.path.parent))
        except (OSError, ProfileFileError) as error:
            self.loss.reason = str(error)

    def _write(self, record: bytes) -> bool:
        """Write the header and the strings that the file lacks, then a record."""
        table = self.strings.items()
        data = b"" if self._end else _header(self.meta)
        fresh = table[self._sent :]
        if fresh:
            texts = ((number, text.encode(errors="backslashreplace")) for text, number in fresh)
            data += _frame(STRINGS, b"".join(_STRING.pack(n, len(t)) + t for n, t in texts))
        data += record
        try:
            done = 0
            while done < len(data):
                done += os.write(self._fd, memoryview(data)[done:])
        except OSError as error:
            self.loss.reason = self.loss.reason or error.strerror or str(error)
            # Remove the part that was written: a later record must follow a whole one.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            return False
        self._end += len(data)
        self._sent = len(table)
        return True

    def close(self) -> None:
        """End the file, wait for the disk, and warn once about what was lost."""
        if self._fd < 0 or os.getpid() != self._pid:
            return
        self._append(END, b"")
        try:
            os.fsync(self._fd)
            if os.fstat(self._fd).st_nlink == 0:
                self.loss.records = self._records
                self.loss.reason = "the file or its folder was deleted during the run"
        except OSError as error:
            self.loss.reason = self.loss.reason or error.strerror or str(error)
        os.close(self._fd)
        self._fd = -1
        if self.loss:
            _warn(
                f"The profile {self.path} is not complete: {self.loss.reason}; lost: "
                f"{self.loss.records} of {self._records} records, {self.loss.events} events."
            )

    def __enter__(self) -> ProfileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _warn(text: str) -> None:
    try:
        warnings.warn(text, ProfileLossWarning, stacklevel=3)
    except ProfileLossWarning:
        # Warnings are errors here, but a lost profile must not end what was profiled.
        print(f"ProfileLossWarning: {text}", file=sys.stderr)


@dataclass(frozen=True)
class ProfileFile:
    """What a file holds.

    Attributes:
        path: where it was read from.
        meta: the header's data.
        strings: id -> string.
        cells: scope -> the last snapshot, dtype CELL; the whole is the sum of the scopes.
        operators: scope -> the last snapshot, dtype OPERATOR.
        events: all of them, dtype EVENT.
        marks: in the order written.
        ended: whether the writer closed the file.
        truncated: whether the file stops within a record.
    """

    path: Path
    meta: Mapping[str, Any]
    strings: Mapping[int, str]
    cells: Mapping[str, Records]
    operators: Mapping[str, Records]
    events: Records
    marks: tuple[Mapping[str, Any], ...]
    ended: bool
    truncated: bool


@dataclass
class _Content:
    strings: dict[int, str] = field(default_factory=dict)
    cells: dict[str, Records] = field(default_factory=dict)
    operators: dict[str, Records] = field(default_factory=dict)
    events: list[Records] = field(default_factory=list)
    marks: list[Mapping[str, Any]] = field(default_factory=list)
    ended: bool = False


class _Damage(Exception):
    """What is wrong with a record."""


def read(path: Path, *, until_damage: bool = False) -> ProfileFile:
    """Read a file, up to its last whole record if it was cut off.

    Args:
        path: the file to read.
        until_damage: stop at a damaged record instead of raising, as if it were cut there.

    Raises:
        ProfileFileError: the file cannot be read; it is not a profile, or ends within its header; a
            newer version of this package wrote it; its header or a record is not as it was written.
    """
    try:
        data = shapes.read_file(path, None)
    except OSError as error:
        raise ProfileFileError(
            f"Cannot read the profile {path}: {error.strerror or error}."
        ) from error
    meta, offset = _read_header(path, data)
    content = _Content()
    truncated = False
    try:
        for end, kind, payload in _frames(data, offset):
            if payload is None:
                if content.ended:
                    raise _Damage("bytes after the end")
                truncated = True
                break
            _take(content, kind, payload)
            offset = end
    except _Damage as damage:
        if not until_damage:
            raise ProfileFileError(
                f"The profile {path} is damaged at byte {offset}: {damage}. Copy the file again, "
                "or read what comes before with record.read(path, until_damage=True)."
            ) from None
        truncated = True
    events = np.concatenate(content.events) if content.events else np.zeros(0, EVENT)
    if len(events) and events["process"].max() >= len(meta.get("processes", [meta])):
        raise ProfileFileError(
            f"The profile {path} has events of a process that its header does not have. It was "
            "not written by this package: make it again."
        )
    found = {**vars(content), "events": events, "marks": tuple(content.marks)}
    return ProfileFile(path=path, meta=meta, truncated=truncated, **found)


def _read_header(path: Path, data: bytes) -> tuple[dict[str, Any], int]:
    if not data.startswith(MAGIC[: len(data)]):
        raise ProfileFileError(
            f"{path} is not a profile: it does not start like one. Profiles are the files "
            "profiled-*.bin that --udf-profile-out and patched(..., profile=) write."
        )
    short = ProfileFileError(
        f"The profile {path} ends within its header ({len(data)} bytes): the process died as it "
        "began to write, or the disk was full. It holds no data; delete it."
    )
    if len(data) < _HEADER.size:
        raise short
    _, order, version, _, size, stated = _HEADER.unpack_from(data)
    damaged = ProfileFileError(
        f"The header of the profile {path} is damaged: it does not have the checksum that it "
        "states. Copy the file again from where it was written."
    )
    if order != _BYTE_ORDER:
        raise damaged
    if not _HEADER.size <= size <= len(data):
        # A wrong size and a cut header look the same; both leave nothing to read.
        raise short if _HEADER.size <= size else damaged
    text = data[_HEADER.size : size]
    if zlib.crc32(text, zlib.crc32(data[: _HEADER.size - 4])) != stated:
        raise damaged
    if version > VERSION:
        raise ProfileFileError(
            f"The profile {path} has version {version} of the format; this pytest_udftorch reads "
            f"up to version {VERSION}. Read it with the version that wrote it, or a newer one."
        )
    try:
        meta = shapes.parse_json(text)
    except shapes.Malformed:
        raise damaged from None
    if not isinstance(meta, dict):
        raise damaged
    try:
        _META(meta, "the header")
        if "processes" in meta and not meta["processes"]:
            raise shapes.Malformed("the header names no process")
    except shapes.Malformed as error:
        raise ProfileFileError(
            f"The profile {path} was not written by this package: {error}. Make it again."
        ) from None
    return meta, size


def _frames(data: bytes, offset: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield end, type and payload of each record; no payload where the file is cut."""
    while offset < len(data):
        rest = data[offset : offset + _FRAME.size]
        # After a loss of power a file may end in zeros that were never written.
        if len(rest) < _FRAME.size or not any(rest):
            if any(data[offset + len(rest) :]):
                raise _Damage("zeros in the place of a record")
            yield offset, 0, None
            return
        kind, flags, length, stated, frame_crc = _FRAME.unpack(rest)
        if zlib.crc32(rest[:-4]) != frame_crc:
            raise _Damage("the start of a record does not have its checksum")
        start = offset + _FRAME.size
        payload = data[start : start + length]
        if len(payload) < length:
            yield offset, kind, None
            return
        if zlib.crc32(payload) != stated:
            raise _Damage("a record does not have its checksum")
        if flags & ~_ZLIB:
            raise _Damage(f"a record has unknown flags {flags:#x}")
        if flags & _ZLIB:
            try:
                unpacker = zlib.decompressobj()
                payload = unpacker.decompress(payload, _MOST_UNPACKED)
            except zlib.error as error:
                raise _Damage(f"a record cannot be decompressed ({error})") from None
            if not unpacker.eof:
                raise _Damage(f"a record is cut, or unpacks to more than {_MOST_UNPACKED:,} bytes")
        offset = start + length
        yield offset, kind, payload


def _take(content: _Content, kind: int, payload: bytes) -> None:
    if content.ended:
        raise _Damage("a record after the end")
    if kind == STRINGS:
        for number, text in _strings(payload):
            if content.strings.setdefault(number, text) != text:
                raise _Damage(f"two strings have the id {number}")
    elif kind in (CELLS, OPERATORS):
        if len(payload) < _SCOPED.size:
            raise _Damage("a snapshot without its scope")
        number, _ = _SCOPED.unpack_from(payload)
        scope = _text(content, [number])[0]
        into, dtype = (content.cells, CELL) if kind == CELLS else (content.operators, OPERATOR)
        into[scope] = _rows(content, payload[_SCOPED.size :], dtype)
    elif kind == EVENTS:
        content.events.append(_rows(content, payload, EVENT))
    elif kind == MARK:
        try:
            mark = shapes.parse_json(payload)
        except shapes.Malformed:
            raise _Damage("a mark is not JSON") from None
        if not isinstance(mark, dict):
            raise _Damage("a mark is not a JSON object")
        try:
            _MARK(mark, "a mark")
        except shapes.Malformed as error:
            raise _Damage(str(error)) from None
        content.marks.append(mark)
    elif kind == END:
        content.ended = True
    else:
        raise _Damage(f"a record of the unknown type {kind}")


def _strings(payload: bytes) -> Iterator[tuple[int, str]]:
    offset = 0
    while offset < len(payload):
        if len(payload) - offset < _STRING.size:
            raise _Damage("a string is not whole")
        number, length = _STRING.unpack_from(payload, offset)
        offset += _STRING.size
        raw = payload[offset : offset + length]
        if len(raw) < length:
            raise _Damage("a string is not whole")
        try:
            yield number, raw.decode()
        except UnicodeDecodeError:
            raise _Damage(f"string {number} is not UTF-8") from None
        offset += length


def _text(content: _Content, numbers: Iterable[int]) -> list[str]:
    try:
        return [content.strings[int(n)] for n in numbers]
    except KeyError as error:
        raise _Damage(f"it names string {error}, which is not written before it") from None


def _rows(content: _Content, raw: bytes, dtype: np.dtype[np.void]) -> Records:
    if len(raw) % dtype.itemsize:
        raise _Damage(f"{len(raw)} bytes are not a multiple of {dtype.itemsize}")
    rows = np.frombuffer(raw, dtype)
    names = dtype.names or ()
    for name in ("function", "operator", "module"):
        if name in names:
            _text(content, np.unique(rows[name]))
    coded = {"dtype": CELL_DTYPES, "form": CELL_FORMS, "stage": STAGES, "device": DEVICES}
    for name, known in coded.items():
        if name in names and len(rows) and rows[name].max() >= len(known):
            raise _Damage(f"{name} {rows[name].max()} is unknown")
    if "time_ns" in names and not np.isfinite(rows["time_ns"]).all():
        raise _Damage("a time is not finite")
    return rows
