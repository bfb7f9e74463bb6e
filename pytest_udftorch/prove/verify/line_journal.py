# SPDX-License-Identifier: Apache-2.0
"""An append-only record of what is done, which survives the end of the process.

Each line holds the start of a SHA-256 over its payload, a space, and the payload as JSON. It
reaches the disk before a part of the work counts as finished. The first line names the run; only a
run of the same name may resume it. A last line without its end was being written when the process
died; readers cut it off. Any other line that contradicts its hash is an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.errors import JournalError
from pytest_udftorch.prove.verify.certificate_file import canonical_json

_HEAD: Final = shapes.record({"run": shapes.of(dict)}, closed=True)


def _hash(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:16].encode()


class LineJournal:
    """The finished parts of one run, a line each.

    Args:
        path: of the file.
        name: identifies the run; a resumed run must have the same.
        resume: continue an earlier run instead of refusing to.
        parts: what a line is about, in words.
        option: of the command, which names the place of the file.

    Raises:
        JournalError: the file exists and ``resume`` is false; the file is of another run; it is
            damaged or cannot be written.
    """

    _parts = "chunks"

    def __init__(
        self,
        path: Path,
        name: Mapping[str, Any],
        *,
        resume: bool,
        parts: str = "chunks",
        option: str = "--out",
    ) -> None:
        self.path, self._parts = path, parts
        try:
            if path.exists():
                self._read(name, resume)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer: what the disk refuses must not be tried again on closing.
            self._file = path.open("ab", buffering=0)
            try:
                if self._file.tell() == 0:
                    self._append({"run": dict(name)})
            except OSError:
                self._file.close()
                raise
        except OSError as error:
            raise JournalError(
                f"Cannot use the journal {path}: {error}. Choose another place with {option}."
            ) from error

    def _read(self, name: Mapping[str, Any], resume: bool) -> None:
        content = shapes.read_file(self.path, None)
        whole = content.rfind(b"\n") + 1
        payloads: list[dict[str, Any]] = []
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            stated, _, text = line.partition(b" ")
            if _hash(text) != stated:
                raise self._damaged(number)
            try:
                payload = shapes.parse_json(text)
                if payloads:
                    self.read(payload)
                else:
                    _HEAD(payload, "the line")
            except shapes.Malformed as error:
                raise self._damaged(number, f": {error}") from error
            payloads.append(payload)
        if payloads:
            self._check_name(payloads[0], name, resume, len(payloads) - 1)
        if whole < len(content):
            os.truncate(self.path, whole)

    def read(self, payload: dict[str, Any]) -> None:
        """Take in a line of an earlier run.

        Raises:
            Malformed: it is none of this kind.
        """
        raise NotImplementedError

    def _damaged(self, number: int, why: str = "") -> JournalError:
        return JournalError(
            f"Line {number} of the journal {self.path} is damaged{why}. Delete the file; the "
            "run starts again from the beginning."
        )

    def _check_name(
        self, head: Mapping[str, Any], name: Mapping[str, Any], resume: bool, finished: int
    ) -> None:
        mine = json.loads(canonical_json(name))
        found = head["run"]
        if found != mine:
            differ = sorted(k for k in {*found, *mine} if found.get(k) != mine.get(k))
            raise JournalError(
                f"The unfinished run in {self.path} differs in {', '.join(differ)}: it belongs to "
                "another build or another question. Delete the file to start again, or restore "
                "what the run was made with."
            )
        if not resume:
            raise JournalError(
                f"There is an unfinished run in {self.path} ({finished} {self._parts} are done). "
                "Continue it with --resume, or delete the file to start again."
            )

    def _append(self, payload: Mapping[str, Any]) -> None:
        text = canonical_json(payload)
        line = memoryview(_hash(text) + b" " + text + b"\n")
        end = self._file.tell()
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            with contextlib.suppress(OSError):  # a later line must follow a whole one
                self._file.truncate(end)
            raise

    def add(self, payload: Mapping[str, Any]) -> None:
        """Add a finished part; when this returns, it is on the disk.

        Raises:
            JournalError: the disk refuses it.
        """
        try:
            self._append(payload)
        except OSError as error:
            raise JournalError(
                f"Cannot write to the journal {self.path}: {error}. The finished {self._parts} "
                "stay recorded; continue with --resume."
            ) from error

    def close(self) -> None:
        """Close the file; the record stays."""
        self._file.close()

    def remove(self) -> None:
        """Delete the record, once its contents are elsewhere."""
        self.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
