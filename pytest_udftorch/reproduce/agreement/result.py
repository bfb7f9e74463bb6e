# SPDX-License-Identifier: Apache-2.0
"""Which ways of running a model agree, as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.reproduce.agreement.parting import First

#: More ways that differ are not named in the verdict.
_NAMED: Final = 3

#: What is compared, and how the verdict says it.
_SAID: Final = (("logits", "logits"), ("log p", "log-probabilities"), ("gradients", "gradients"))


@dataclass(frozen=True)
class Part:
    """How much of one kind of number differs.

    Attributes:
        name: ``logits``, ``log p`` or ``gradients``.
        differ: how many numbers have other bits.
        total: how many were compared.
        largest: the largest absolute difference; NaN where only one is a number.
    """

    name: str
    differ: int = 0
    total: int = 0
    largest: float = 0.0

    def __add__(self, other: Part) -> Part:
        sizes = (self.largest, other.largest)
        largest = math.nan if any(map(math.isnan, sizes)) else max(sizes)
        return Part(self.name, self.differ + other.differ, self.total + other.total, largest)

    @property
    def share(self) -> float:
        """How many of the numbers differ, from 0 to 1."""
        return self.differ / self.total if self.total else 0.0

    def __str__(self) -> str:
        if not self.differ:
            return "equal"
        share = f"{self.share:.1%}" if self.share >= 0.001 else "< 0.1%"
        return f"{share.replace('%', ' %')}, {self.largest:.2g}"


@dataclass(frozen=True)
class Outcome:
    """What came of a way under one library.

    Attributes:
        parts: what was compared.
        first: the operator by which the way parts, or None if it is not known, or nothing differs.
        far: whether results differ by more than rounding explains: the model computes something
            else in this way.
        failed: the error with which the model ended; empty if it did not.
        seconds: how long it ran.
    """

    parts: tuple[Part, ...]
    first: First | None = None
    far: bool = False
    failed: str = ""
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether every number has the same bits."""
        return not self.failed and not any(part.differ for part in self.parts)


@dataclass(frozen=True, repr=False)
class Sameness(Result):
    """Which ways of running a model give the bits of the evaluation of the whole batch.

    Attributes:
        subject: the model, as it was named.
        dtype: of its weights.
        libraries: those under which it ran; the verdict is about the last.
        ways: those that were asked for.
        outcomes: library -> way -> what came of it; ways that the limit left out are missing.
        batch: rows of the inputs.
        length: positions of a row, or 0.
    """

    subject: str
    dtype: str
    libraries: tuple[str, ...]
    ways: tuple[str, ...]
    outcomes: Mapping[str, Mapping[str, Outcome]]
    batch: int
    length: int = 0

    @property
    def equal(self) -> bool:
        """Whether all ways agree under the last library."""
        found = self.outcomes[self.libraries[-1]]
        return len(found) == len(self.ways) and all(o.equal for o in found.values())

    def differing(self, library: str) -> list[str]:
        """Return the ways that do not agree under a library."""
        return [way for way, outcome in self.outcomes[library].items() if not outcome.equal]

    def _shown(self) -> Shown:
        rows = [row for way in self.ways for row in self._rows(way)]
        notes = [*self._firsts(), *self._failures(), *self._left_out()]
        size = f"{self.batch} rows" + (f" of {self.length}" if self.length else "")
        head = f"{self.subject}, {self.dtype}, {size}: share that differs, and by how much"
        return Shown(head, ("way", "of", *self.libraries), rows, [*notes, self.verdict()])

    def _rows(self, way: str) -> list[list[str]]:
        names = list(
            dict.fromkeys(
                part.name
                for library in self.libraries
                if way in self.outcomes[library]
                for part in self.outcomes[library][way].parts
            )
        )
        rows = [[way, name, *(self._cell(lib, way, name) for lib in self.libraries)]
                for name in names]  # fmt: skip
        if not rows:
            return [[way, "", *(self._cell(lib, way, "") for lib in self.libraries)]]
        merged = [rows[0]]
        for row in rows[1:]:
            if row[2:] == merged[-1][2:]:
                merged[-1][1] += f", {row[1]}"
            else:
                merged.append(["", *row[1:]])
        return merged

    def _cell(self, library: str, way: str, name: str) -> str:
        outcome = self.outcomes[library].get(way)
        if outcome is None:
            return "left out"
        if outcome.failed:
            return "fails"
        part = next((p for p in outcome.parts if p.name == name), None)
        if part is None:
            return ""
        return f"{part} (!)" if outcome.far and part.differ else str(part)

    def _firsts(self) -> list[str]:
        notes = []
        for library in self.libraries:
            by_operator: dict[str, list[str]] = {}
            for way, outcome in self.outcomes[library].items():
                if outcome.first is not None:
                    by_operator.setdefault(str(outcome.first), []).append(way)
            notes += [
                f"{library} parts first by {operator}: {', '.join(ways)}"
                for operator, ways in by_operator.items()
            ]
        return notes

    def _failures(self) -> list[str]:
        by_error: dict[tuple[str, str], list[str]] = {}
        for library in self.libraries:
            for way, outcome in self.outcomes[library].items():
                if outcome.failed:
                    by_error.setdefault((way, outcome.failed), []).append(library)
        return [
            f"{way} fails under {', '.join(libraries)}: {said[:160]}"
            for (way, said), libraries in by_error.items()
        ]

    def _left_out(self) -> list[str]:
        missing = [
            f"{library}: {', '.join(w for w in self.ways if w not in self.outcomes[library])}"
            for library in self.libraries
            if len(self.outcomes[library]) < len(self.ways)
        ]
        marked = any(o.far for found in self.outcomes.values() for o in found.values())
        notes = ["(!) differs by more than rounding explains: the model computes something else."]
        return [*(notes * marked), *(f"The limit left out, under {one}." for one in missing)]

    def verdict(self) -> str:
        """Return what came out, in words, in one line."""
        said = [self._said(library) for library in self.libraries]
        return f"{'; '.join(said)}."

    def _said(self, library: str) -> str:
        found = self.outcomes[library]
        bad = self.differing(library)
        if not found:
            return f"under {library} no way was run"
        if not bad:
            run = " that were run" if len(found) < len(self.ways) else ""
            return f"under {library} all {len(found)} ways{run} give the same bits"
        named = f" ({', '.join(bad)})" if len(bad) <= _NAMED else ""
        head = f"under {library} {len(bad)} of {len(found)} ways differ{named}"
        worst = {name: Part(name) for name, _ in _SAID}
        for part in (p for way in bad for p in found[way].parts):
            share = max(worst[part.name], part, key=lambda p: p.share)
            size = max(worst[part.name].largest, part.largest)
            worst[part.name] = replace(share, largest=size)
        said = [
            f"in {_up_to(worst[name].share)} of the {words}, by up to {worst[name].largest:.2g}"
            for name, words in _SAID
            if worst[name].differ
        ]
        return ": ".join([head, ", ".join(said)]) if said else head

    def document(self) -> dict[str, Any]:
        """Return everything as plain data."""
        outcomes = {
            library: {way: _plain(outcome) for way, outcome in found.items()}
            for library, found in self.outcomes.items()
        }
        return {
            "format": "udftorch-same-1", "subject": self.subject, "dtype": self.dtype,
            "batch": self.batch, "length": self.length, "libraries": list(self.libraries),
            "ways": list(self.ways), "outcomes": outcomes, "equal": self.equal,
            "verdict": self.verdict(),
        }  # fmt: skip


def _up_to(share: float) -> str:
    return f"up to {share:.0%}" if share >= 0.005 else "less than 1%"


def _plain(outcome: Outcome) -> dict[str, Any]:
    found = asdict(outcome)
    first = outcome.first
    found["first"] = None if first is None else {"operator": first.operator, "layer": first.layer}
    found["parts"] = [asdict(part) for part in outcome.parts]
    return found
