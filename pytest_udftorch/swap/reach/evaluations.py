# SPDX-License-Identifier: Apache-2.0
"""The share of a run's evaluations that a profile of the run has seen in the session's functions.

:func:`evaluations` counts what the operators of a run evaluate by their definitions, as
``counted`` does, without repeating them. A profile counts what the functions of the session were
given. What a definition asks for and the profile lacks was computed by other code.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_udftorch.base.dispatch_mode import watching
from pytest_udftorch.swap.library.symbols import COMPOSITES
from pytest_udftorch.swap.operators import definitions
from pytest_udftorch.swap.operators.overload import is_view
from pytest_udftorch.swap.reach.coverage import counted

if TYPE_CHECKING:
    from pytest_udftorch.swap.records.profile import Profile

#: How many operators the line of a profile names.
_NAMED = 3


def _plain(operator: str) -> str:
    """Return the name that the forms of an operator share: of ``aten::exp_.out`` ``aten::exp``."""
    return operator.partition(".")[0].removesuffix("_")


def _by_family(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the first function of a family -> the evaluations of the family."""
    found: collections.Counter[str] = collections.Counter()
    for name, count in counts.items():
        group = next((g for g in definitions.FAMILIES if name in g), (name,))
        found[group[0]] += count
    return dict(found)


def sentence(asked: Mapping[str, int], had: Mapping[str, int], unknown: Sequence[str]) -> str:
    """Return the share that is swapped as a sentence.

    Args:
        asked: operator -> its evaluations.
        had: operator -> how many of them are swapped.
        unknown: operators whose definition is not known.
    """
    total = sum(asked.values())
    lacking = {name: lack for name in asked if (lack := asked[name] - had.get(name, 0))}
    kept = total - sum(lacking.values())
    text = counted(kept / total if total else 1.0, total)
    if lacking:
        worst = sorted(lacking, key=lambda name: -lacking[name])
        named = ", ".join(f"{lacking[name]:,} of {name}" for name in worst[:_NAMED])
        rest = f" and {len(worst) - _NAMED} other operators" if len(worst) > _NAMED else ""
        text += f"; not: {named}{rest}"
    if unknown:
        text += f"; what {', '.join(unknown)} evaluates is not known"
    return text + "."


@dataclasses.dataclass
class Evaluations:
    """What the operators of a run evaluate by definition.

    Attributes:
        operators: operator (``aten::gelu``) -> function -> how often.
        unknown: operators whose definition is not known.
    """

    operators: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    unknown: set[str] = dataclasses.field(default_factory=set)

    @property
    def total(self) -> int:
        """How often the run evaluates a function."""
        return sum(sum(counts.values()) for counts in self.operators.values())

    def swapped(self, profile: Profile) -> dict[str, int]:
        """Return operator -> how many of its evaluations a profile has in the session's functions.

        A function may stand for another of its family, and an activation that is one function
        (``composites``) for all. What an operator evaluates beyond its definition does not count.

        Args:
            profile: of the same run.
        """
        seen: dict[str, collections.Counter[str]] = {}
        for row in profile.rows("operator", "function"):
            counts = seen.setdefault(_plain(row.key["operator"]), collections.Counter())
            counts[row.key["function"]] += row.elements
        found = {}
        for operator, asked in self.operators.items():
            mine = seen.get(operator, collections.Counter())
            whole = any(name in COMPOSITES for name in mine)
            had = _by_family(mine)
            found[operator] = sum(
                count if whole else min(count, had.get(family, 0))
                for family, count in _by_family(asked).items()
            )
        return found

    def line(self, profile: Profile) -> str:
        """Return the share that is swapped as a sentence, with the operators that lack most.

        Args:
            profile: of the same run.
        """
        asked = {name: sum(counts.values()) for name, counts in self.operators.items()}
        return sentence(asked, self.swapped(profile), sorted(self.unknown))

    def noted(self, profile: Profile) -> Profile:
        """Return a profile with that line among its notes, for its table, page and JSON.

        Args:
            profile: of the same run.
        """
        return dataclasses.replace(profile, notes=(*profile.notes, self.line(profile)))


@contextlib.contextmanager
def evaluations() -> Iterator[Evaluations]:
    """Count what the operators inside evaluate by definition.

    Code that torch.compile generates calls no operator and is not counted: it needs
    ``coverage(step, compiled=True)``.

    Yields:
        What is counted, complete on exit.
    """
    found = Evaluations()
    known: dict[Any, tuple[definitions.Counts, list[str]]] = {}

    def call(func: Any, args: Any, kwargs: Any) -> Any:
        if not is_view(func):
            key = definitions.signature(func, (args, kwargs))
            if key not in known:
                known[key] = definitions.evaluations(func, args, kwargs)
            counts, unknown = known[key]
            found.unknown.update(unknown)
            if counts:
                mine = found.operators.setdefault(_plain(str(func.name())), {})
                for name, count in counts.items():
                    mine[name] = mine.get(name, 0) + count
        return func(*args, **kwargs)

    with watching(call, compiles=True):
        yield found
