# SPDX-License-Identifier: Apache-2.0
"""What a search for the functions that make a test or a metric differ ends with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pytest_udftorch.base.result import Result
from pytest_udftorch.diagnose.blame.trial import Outcome
from pytest_udftorch.diagnose.runs.switch import Unit


@dataclass(frozen=True)
class Cause:
    """A set that makes the difference by itself, and of which nothing can be left out.

    Attributes:
        units: what has to come from b.
        alone: what comes out with these from b and all else from a.
        minimal: whether every set without one of them was tried, or ruled out, and shows nothing.
    """

    units: tuple[Unit, ...]
    alone: Outcome
    minimal: bool = True


@dataclass(frozen=True, repr=False)
class Blame(Result):
    """The answer.

    Attributes:
        target: the test or metric.
        names: of the libraries a and b.
        a: what comes out under a.
        b: what comes out under b.
        units: how many there are, of function, layer and operator.
        causes: independent of each other.
        without: what comes out with all from b but the causes.
        proved: whether that is what comes out under a, so that there is no other cause.
        trials: runs that the search took.
        remembered: outcomes that a journal had.
    """

    target: str
    names: tuple[str, str]
    a: Outcome
    b: Outcome
    units: int
    causes: tuple[Cause, ...]
    without: Outcome
    proved: bool
    trials: int
    remembered: int = 0

    @property
    def blamed(self) -> tuple[Unit, ...]:
        """The units of all causes."""
        return tuple(unit for cause in self.causes for unit in cause.units)

    def verdict(self) -> str:
        """Return the answer in a line."""
        count, b = len(self.causes), self.names[1]
        if not self.blamed:
            return f"No cause was found: with all from {b}, {self.without.shown}."
        first = self.blamed[0]
        units = len(self.blamed)
        what = f"{first}" + (f" and {units - 1} more" if units > 1 else "")
        many = "One cause" if count == 1 else f"{count} causes"
        if not self.proved:
            return f"{many}, and there are more: {what}, from {b}."
        least = "" if all(c.minimal for c in self.causes) else " (the smallest set is not known)"
        them = "it" if units == 1 or count == 1 else "them"
        return f"{many}{least}: {what}, from {b}; without {them} nothing differs."

    def text(self) -> str:
        """Return a report for a terminal."""
        a, b = self.names
        lines = [
            self.verdict(),
            f"{self.target}: {self.a.shown} under {a}, {self.b.shown} under {b}.",
        ]
        for cause in self.causes:
            many = len(cause.units) > 1
            for unit in cause.units:
                lines += [f"  {unit}", *([f"    at {unit.source}"] if unit.source else [])]
            only = f"With only {'these' if many else 'this'} from {b}: {cause.alone.shown}"
            least = "; with any fewer, the difference is gone" if many and cause.minimal else ""
            lines.append(f"    {only}{least}.")
        without = f"With all from {b} but {'these' if len(self.blamed) > 1 else 'this'}"
        if self.proved:
            lines.append(f"  Proof: {without}: {self.without.shown}, and so no difference.")
        else:
            lines.append(
                f"  {without}: {self.without.shown}. There are more causes; --causes looks for "
                "them."
            )
        if not all(cause.minimal for cause in self.causes):
            lines.append("  The search ended before the smallest set was known; --tries allows it.")
        known = f", {self.remembered} of them from the journal" if self.remembered else ""
        lines.append(
            f"  {len(self.blamed)} of {self.units:,} units (function, layer, operator); "
            f"{self.trials} runs{known}."
        )
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """Return everything as plain data."""
        causes = [
            {
                "units": [asdict(unit) for unit in cause.units],
                "alone": _plain(cause.alone),
                "minimal": cause.minimal,
            }
            for cause in self.causes
        ]
        return {
            "format": "udftorch-blame-1",
            "verdict": self.verdict(),
            **asdict(self),
            "a": _plain(self.a),
            "b": _plain(self.b),
            "without": _plain(self.without),
            "causes": causes,
        }


def _plain(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain data; JSON knows no NaN."""
    value = outcome.value if outcome.value == outcome.value else None
    return {"shown": outcome.shown, "digest": outcome.digest, "value": value}
