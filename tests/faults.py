# SPDX-License-Identifier: Apache-2.0
"""Counts of injected faults, and of what came of them.

A test counts with the fixture ``faults``; ``python -m benches.store faults`` runs the tests and
adds up what they counted.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field


@dataclass
class Outcome:
    """What came of one fault: the right answer, unless a test says that it was refused."""

    refused: bool = False


@dataclass
class Row:
    """Faults of one kind; those that neither healed nor led to a clear error went wrong."""

    kind: str
    fault: str
    injected: int = 0
    healed: int = 0
    errors: int = 0


@dataclass
class Faults:
    """The rows of one test."""

    rows: list[Row] = field(default_factory=list)

    def add(self, kind: str, fault: str, injected: int, healed: int, errors: int = 0) -> None:
        """Count several faults at once."""
        self.rows.append(Row(kind, fault, injected, healed, errors))

    @contextlib.contextmanager
    def __call__(self, kind: str, fault: str) -> Iterator[Outcome]:
        """Count one fault, whose outcome is right if nothing raises in the block."""
        row = Row(kind, fault, injected=1)
        self.rows.append(row)
        outcome = Outcome()
        yield outcome
        if outcome.refused:
            row.errors = 1
        else:
            row.healed = 1

    def as_json(self) -> str:
        """Return the rows for the report of a test."""
        return json.dumps([asdict(row) for row in self.rows])
