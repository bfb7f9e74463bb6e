# SPDX-License-Identifier: Apache-2.0
"""Append-only journals: what is finished of a long piece of work, a line each.

A line holds the start of a SHA-256 over its payload, a space, and the payload as JSON. It reaches
the disk before a part of the work counts as finished, so that the end of the process loses nothing.
The first line says what the journal is of, and the same work alone may go on with it. A last line
without its end was being written when the process died; readers cut it off. Any other line that
contradicts its hash is an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base import whole_file
from pytest_udftorch.errors import JournalError

_HEAD: Final = shapes.record({"journal": shapes.text(), "run": shapes.of(dict)}, closed=True)
_DAMAGED: Final = (
    "Line {line} of the journal {path} is damaged{why}. Delete the file; the run starts again "
    "from the beginning."
)


@dataclass(frozen=True)
class Words:
    """What the errors of a journal say; names in braces stand for what happened.

    Attributes:
        parts: what a line is about.
        option: what names the place of the file.
        unusable: the system does not let it be read or made: ``path``, ``error``.
        full: the system refuses a line.
        foreign: the file is no journal of this kind: ``path``, ``line``, ``why``, ``start``.
        other: it is of another run: ``path``, ``start``, and ``differ``, the names of what differs.
        unfinished: nobody said that the run goes on: ``path``, and ``done``, a number of lines.
        damaged: a line is not what was written: ``path``, ``line``, ``why``.
    """

    parts: str = "parts"
    option: str = "--journal"
    unusable: str = "Cannot use the journal {path}: {error}. Choose another place with {option}."
    full: str = (
        "Cannot write to the journal {path}: {error}. The finished {parts} stay recorded; "
        "continue with --resume."
    )
    foreign: str = _DAMAGED
    other: str = (
        "The unfinished run in {path} differs in {differ}: it belongs to another build or another "
        "question. Delete the file to start again, or restore what the run was made with."
    )
    unfinished: str = (
        "There is an unfinished run in {path} ({done} {parts} are done). Continue it with "
        "--resume, or delete the file to start again."
    )
    damaged: str = _DAMAGED


class Journal:
    """The finished parts of one run, a line each.

    Args:
        path: of the file.
        run: identifies the run: plain data, which is the same when the run goes on.
        resume: go on with the file of an earlier run instead of refusing to.

    Attributes:
        kind: what such journals are of.
        words: what its errors say.
        finite: whether infinities and NaN are refused.
        makes_folder: whether the file's folder is made.
        restarts: whether the file of another run is begun anew, and not refused.

    Raises:
        JournalError: the file is damaged, of another run or of another kind, or cannot be used; or
            it is there and ``resume`` is false.
    """

    kind: ClassVar[str]
    words: ClassVar[Words]
    finite: ClassVar[bool] = True
    makes_folder: ClassVar[bool] = False
    restarts: ClassVar[bool] = False

    def __init__(self, path: Path, run: Mapping[str, Any], *, resume: bool = True) -> None:
        self.path = path
        head = self._line({"journal": self.kind, "run": dict(run)})
        try:
            if self.makes_folder:
                path.parent.mkdir(parents=True, exist_ok=True)
            if not (path.exists() and self._goes_on(head, resume)):
                # Nobody ever finds a journal without its first line.
                whole_file.write(path, head.decode())
        except OSError as error:
            raise self._error(self.words.unusable, error=error) from error

    def read(self, payload: dict[str, Any]) -> None:
        """Take in a line of an earlier run.

        Raises:
            Malformed: it is none of this kind.
        """
        raise NotImplementedError

    def add(self, *payloads: Mapping[str, Any]) -> None:
        """Add finished parts; when this returns, they are on the disk.

        Raises:
            JournalError: the disk refuses them.
        """
        try:
            self._append(b"".join(map(self._line, payloads)))
        except OSError as error:
            raise self._error(self.words.full, error=error) from error

    def remove(self) -> None:
        """Delete the file, once its contents are elsewhere."""
        self.path.unlink(missing_ok=True)

    def _goes_on(self, head: bytes, resume: bool) -> bool:
        """Read what is there; tell whether it begins with the right line."""
        content = shapes.read_file(self.path, None)
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        start = shapes.shown(content.partition(b"\n")[0].decode(errors="replace")[:80])
        if not lines and not head.startswith(content):
            raise self._error(self.words.foreign, line=1, why="", start=start)
        if not lines:
            return False
        try:
            found = self._payload(lines[0])
            _HEAD(found, "the line")
            if found["journal"] != self.kind:
                raise shapes.Malformed(f"it is of {found['journal']}")
        except shapes.Malformed as error:
            why = _why(error)
            raise self._error(self.words.foreign, line=1, why=why, start=start) from error
        mine = self._payload(head[:-1])["run"]
        if found["run"] != mine:
            if self.restarts:
                return False
            names = {*found["run"], *mine}
            differ = sorted(n for n in names if found["run"].get(n) != mine.get(n))
            raise self._error(self.words.other, differ=", ".join(differ), start=start)
        if not resume:
            raise self._error(self.words.unfinished, done=len(lines) - 1)
        if whole < len(content):
            os.truncate(self.path, whole)
        for number, line in enumerate(lines[1:], start=2):
            try:
                payload = self._payload(line)
                shapes.of(dict)(payload, "the line")
                self.read(payload)
            except shapes.Malformed as error:
                why = _why(error)
                raise self._error(self.words.damaged, line=number, why=why) from error
        return True

    def _line(self, payload: Mapping[str, Any]) -> bytes:
        text = shapes.canonical_json(payload, finite=self.finite)
        return _hash(text) + b" " + text + b"\n"

    def _payload(self, line: bytes) -> Any:
        stated, _, text = line.partition(b" ")
        if _hash(text) != stated:
            raise shapes.Malformed("")
        return shapes.parse_json(text, finite=self.finite)

    def _append(self, lines: bytes) -> None:
        # Without a buffer: what the disk refuses must not be tried again on closing.
        with self.path.open("ab", buffering=0) as file:
            end, rest = file.tell(), memoryview(lines)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):  # a later line must follow a whole one
                    file.truncate(end)
                raise

    def _error(self, text: str, **more: Any) -> JournalError:
        return JournalError(text.format(path=self.path, **asdict(self.words), **more))


def _why(error: shapes.Malformed) -> str:
    return f": {error}" if str(error) else ""


def _hash(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:16].encode()
