# SPDX-License-Identifier: Apache-2.0
"""Changes between figures, and limits on them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from pytest_udftorch.base.result import Result
from pytest_udftorch.base.table import text_table
from pytest_udftorch.errors import CompareError, nearest
from pytest_udftorch.watch.compare.figures import QUANTITIES, Figures, Key, Step

#: What becomes of a line of a table: beyond a limit, or changed to more, to less or otherwise.
Mark: TypeAlias = Literal["beyond", "more", "less", "other", ""]

#: How many rows of a kind that only some files have are named.
_NAMED: Final = 5

#: Words of limits -> whether a percentage means something there.
LIMITS: Final = {
    "time": True, "ulp": False, "range": False, "count": True, "nan": True, "inf": True,
    "wrong": True,
}  # fmt: skip

_LIMIT: Final = re.compile(r"([a-z]+):(\d+(?:\.\d+)?)(%?)")


@dataclass(frozen=True)
class Limit:
    """How far a quantity may move to the worse.

    Attributes:
        word: one of :data:`LIMITS`.
        amount: ns for time, ULP, binades for a range, or a number.
        percent: the amount is a percentage of the first value.
    """

    word: str
    amount: float
    percent: bool

    def __str__(self) -> str:
        return f"{self.word}:{self.amount:g}{'%' if self.percent else ''}"


def limits_of(texts: Iterable[str]) -> tuple[Limit, ...]:
    """Read limits such as ``time:10%,ulp:1``.

    Raises:
        CompareError: a text is none.
    """
    found = []
    for text in (part.strip() for given in texts for part in given.split(",")):
        match = _LIMIT.fullmatch(text)
        if match is None:
            raise CompareError(
                f"{text!r} is not a limit. Write a word, a colon and a number from 0, such as "
                f"time:10%, ulp:1, range:0.5 (binades) or count:0. Words: {', '.join(LIMITS)}."
            )
        word, amount, percent = match.groups()
        if word not in LIMITS:
            raise CompareError(f"There is no limit {word!r}. {nearest(word, LIMITS)}")
        if percent and not LIMITS[word]:
            raise CompareError(
                f"{text!r}: a percentage of {word} has no meaning. Leave out the sign %; the unit "
                f"is {'ULP' if word == 'ulp' else 'binades, factors of two'}."
            )
        found.append(Limit(word, float(amount), bool(percent)))
    return tuple(found)


@dataclass(frozen=True)
class Change:
    """One quantity of one row in all of the files.

    Attributes:
        key: names of the row.
        quantity: its name in ``QUANTITIES``.
        values: one for each file; None where the row or the quantity is missing.
        steps: from the first file to each other one; None where nothing can be compared.
        broken: limits that a step is beyond.
    """

    key: Key
    quantity: str
    values: tuple[Any, ...]
    steps: tuple[Step | None, ...]
    broken: tuple[Limit, ...]

    @property
    def mark(self) -> Mark:
        """Whether the change is beyond a limit, to more, to less, or neither."""
        if self.broken:
            return "beyond"
        amounts = [s.amount for s in self.steps if s is not None and s.amount is not None]
        if QUANTITIES[self.quantity].either or not any(amounts):
            return "other"
        return "more" if max(amounts) > 0 else "less"

    def cells(self) -> list[str]:
        """Return its line of a table."""
        shown = QUANTITIES[self.quantity].shown
        first, *others = ("-" if value is None else shown(value) for value in self.values)
        cells = [self.name, first]
        for value, step in zip(others, self.steps, strict=True):
            cells += [value, "" if step is None else step.text]
        if self.broken:
            cells[-1] += f"  beyond {', '.join(map(str, self.broken))}"
        return cells

    @property
    def changed(self) -> bool:
        """Whether a value differs from the first."""
        return any(step is not None and step.text for step in self.steps)

    @property
    def name(self) -> str:
        """The row and the quantity as one text."""
        return f"{', '.join(self.key)}: {QUANTITIES[self.quantity].title}"

    def sentences(self, labels: Sequence[str]) -> list[str]:
        """Say what is beyond a limit, one sentence for each file."""
        shown = QUANTITIES[self.quantity].shown
        found = []
        for limit in self.broken:
            for label, value, step in zip(labels[1:], self.values[1:], self.steps, strict=True):
                if step is not None and _beyond(step, limit, self.quantity):
                    old, new = ("none" if v is None else shown(v) for v in (self.values[0], value))
                    moved = f"{old} in {labels[0]}, {new} in {label}"
                    found.append(f"{self.name}: {moved} ({step.text}); the limit is {limit}.")
        return found


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Figures of several files, the first of which is what the others are compared with.

    Attributes:
        files: at least two, of one kind.
        changes: one for each row and quantity that two files have.
        only: rows that some file lacks, each with the labels of those that have it.
    """

    files: tuple[Figures, ...]
    changes: tuple[Change, ...]
    only: tuple[tuple[Key, tuple[str, ...]], ...]

    @property
    def labels(self) -> list[str]:
        """What the files are called."""
        return [f.label for f in self.files]

    @property
    def failures(self) -> list[str]:
        """What is beyond a limit, one sentence each."""
        return [s for change in self.changes for s in change.sentences(self.labels)]

    @property
    def differs(self) -> dict[str, list[str]]:
        """Facts about machines and versions that all files state, and not alike."""
        names = [n for n in self.files[0].about if all(n in f.about for f in self.files)]
        facts = {name: [f.about[name] or "none" for f in self.files] for name in names}
        return {name: values for name, values in facts.items() if len(set(values)) > 1}

    @property
    def header(self) -> list[str]:
        """The names of the columns behind that of the figure."""
        first, *others = self.labels
        if len(others) == 1:
            return [first, others[0], "change"]
        return [first, *(text for label in others for text in (label, "change"))]

    @property
    def missing(self) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
        """Labels of files -> rows that these alone have."""
        found: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for key, labels in self.only:
            found.setdefault(labels, []).append(key)
        return found

    def lines(self, *, everything: bool = False) -> list[tuple[str, Mark]]:
        """Return the lines of a table for a terminal, each with its mark.

        Args:
            everything: show what has not changed, too.
        """
        found: list[tuple[str, Mark]] = []
        for name, values in self.differs.items():
            said = "; ".join(f"{v} in {f}" for v, f in zip(values, self.labels, strict=True))
            found.append((f"{name} differs: {said}", "other"))
        chosen = [c for c in self.changes if everything or c.changed or c.broken]
        if chosen:
            table = text_table(["", *self.header], [change.cells() for change in chosen])
            head, rule, *body = table.split("\n")
            found += [(head, ""), (rule, "")]
            found += [(line, change.mark) for line, change in zip(body, chosen, strict=True)]
        same = sum(not (c.changed or c.broken) for c in self.changes)
        if same and not everything:
            others = "other figures" if chosen else "figures"
            found.append((f"{same:,} {others} are the same", ""))
        for labels, keys in self.missing.items():
            named = "; ".join(", ".join(key) for key in keys[:_NAMED])
            more = f"; and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
            found.append((f"only in {', '.join(labels)}: {named}{more}", "other"))
        return found

    def text(self) -> str:
        """Return the table of what has changed, for a terminal."""
        return "\n".join(line for line, _ in self.lines())

    def document(self) -> dict[str, Any]:
        """Return everything as plain data, with infinities as text."""
        files = [{"label": f.label, "kind": f.kind, "about": dict(f.about)} for f in self.files]
        return {
            "files": files,
            "changes": [
                {
                    "row": list(change.key),
                    "quantity": change.quantity,
                    "values": [_plain(value) for value in change.values],
                    "changes": [
                        None
                        if step is None
                        else {
                            "amount": _plain(step.amount), "share": _plain(step.share),
                            "text": step.text,
                        }
                        for step in change.steps
                    ],
                    "beyond": [str(limit) for limit in change.broken],
                }
                for change in self.changes
            ],
            "only": [{"row": list(key), "in": list(labels)} for key, labels in self.only],
            "failures": self.failures,
        }  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


def compare(files: Sequence[Figures], limits: Sequence[Limit] = ()) -> Comparison:
    """Compare figures with those of the first file.

    Raises:
        CompareError: fewer than two, of different kinds, or without a row in common; a limit on
            what none of the figures has.
    """
    if len(files) < 2:
        raise CompareError("A comparison needs at least two files. Name another one.")
    first = files[0]
    for other in files[1:]:
        if other.kind != first.kind:
            raise CompareError(
                f"{first.label} is a {first.kind} and {other.label} a {other.kind}. Compare files "
                "of one kind."
            )
    keys = list(dict.fromkeys(key for f in files for key in f.rows))
    common = [key for key in keys if sum(key in f.rows for f in files) > 1]
    if not common:
        raise CompareError(
            f"{' and '.join(f.label for f in files)} have no row in common: "
            f"{_some(first)} against {_some(files[1])}."
        )
    having = {key: tuple(f.label for f in files if key in f.rows) for key in keys}
    only = tuple((key, labels) for key, labels in having.items() if len(labels) < len(files))
    changes = tuple(
        change
        for key in keys
        for name in QUANTITIES
        if (change := _change(files, key, name, limits))
    )
    _refuse_idle(changes, limits, first)
    return Comparison(tuple(files), changes, only)


def _some(figures: Figures) -> str:
    names = [", ".join(key) for key in list(figures.rows)[:3]]
    return f"{'; '.join(names) or 'nothing'}{'; ...' if len(figures.rows) > 3 else ''}"


def _change(
    files: Sequence[Figures], key: Key, name: str, limits: Sequence[Limit]
) -> Change | None:
    quantity = QUANTITIES[name]
    tests = {k[0] for f in files for k in f.rows if len(k) > 1}
    rows = [f.rows.get(key) for f in files]
    values = [None if row is None else row.get(name) for row in rows]
    if quantity.absent is not None and len(key) > 1 and key[0] in tests:
        # A test that ran without calling the function called it 0 times.
        values = [
            quantity.absent if row is None and _has_test(f, key[0]) else value
            for f, row, value in zip(files, rows, values, strict=True)
        ]
    steps = tuple(
        None if value is None or values[0] is None else quantity.step(values[0], value)
        for value in values[1:]
    )
    if not any(step is not None for step in steps):
        return None
    broken = tuple(
        limit
        for limit in limits
        if any(step is not None and _beyond(step, limit, name) for step in steps)
    )
    return Change(key, name, tuple(values), steps, broken)


def _has_test(figures: Figures, test: str) -> bool:
    return any(key[0] == test for key in figures.rows)


def _beyond(step: Step, limit: Limit, name: str) -> bool:
    quantity = QUANTITIES[name]
    if limit.word != quantity.limit:
        return False
    amount = step.share if limit.percent else step.amount
    if amount is None:
        return False
    if quantity.either:
        amount = abs(amount)
    bound = limit.amount / 100 if limit.percent else limit.amount
    return amount > bound and not math.isclose(amount, bound, rel_tol=1e-9)


def _refuse_idle(changes: Sequence[Change], limits: Sequence[Limit], first: Figures) -> None:
    compared = {
        QUANTITIES[c.quantity].limit
        for c in changes
        if any(step is not None and step.amount is not None for step in c.steps)
    }
    for limit in limits:
        if limit.word not in compared:
            hint = {
                "time": "Profile with the depth timed, both times.",
                "ulp": "Results are kept for functions that ran on the CPU.",
                "wrong": "Only certificates say how many results are wrong.",
            }.get(limit.word, "")
            raise CompareError(
                f"The limit {limit} bounds nothing: no row of {first.label} and of what is "
                f"compared with it has such a figure. {hint}".rstrip()
            )
