# SPDX-License-Identifier: Apache-2.0
"""The journal of the finished chunks of a verification."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import journal
from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.prove.verify.certificate import SHA256, ChunkResult, Tally

_CHUNK: Final = shapes.record(
    {
        "chunk": shapes.whole(),
        "digest": SHA256,
        "normal_digest": SHA256,
        "tally": shapes.of(dict),
    },
    closed=True,
)


class Journal(journal.Journal):
    """The finished chunks of one run; arguments and errors are those of the base class."""

    kind = "verification"
    words = journal.Words(parts="chunks", option="--out")
    makes_folder = True

    def __init__(self, path: Path, run: Mapping[str, Any], *, resume: bool) -> None:
        self.finished: dict[int, ChunkResult] = {}
        super().__init__(path, run, resume=resume)

    def read(self, payload: dict[str, Any]) -> None:
        """Take in a chunk of an earlier run."""
        _CHUNK(payload, "the line")
        chunk, tally = payload["chunk"], Tally.from_json(payload["tally"])
        self.finished[chunk] = ChunkResult(
            chunk, payload["digest"], payload["normal_digest"], tally
        )

    def record(self, result: ChunkResult) -> None:
        """Add a finished chunk; when this returns, it is on the disk.

        Raises:
            JournalError: the disk refuses it.
        """
        self.add(
            {
                "chunk": result.index,
                "digest": result.digest,
                "normal_digest": result.normal_digest,
                "tally": result.tally.as_json(32),
            }
        )
        self.finished[result.index] = result
