# SPDX-License-Identifier: Apache-2.0
"""What a search for the cheapest libraries found, as text and as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pytest_udftorch.base.result import Result
from pytest_udftorch.base.table import text_table
from pytest_udftorch.diagnose.runs.switch import Site


@dataclass(frozen=True)
class Need:
    """The library that a site needs.

    Attributes:
        function: torch's name.
        layer: the path of the module.
        library: the cheapest that the search found.
        evaluations: how often one run of the metric evaluates the function there.
        exact_ns: what an evaluation costs under the first library of the ladder.
        ns: under this one.
    """

    function: str
    layer: str
    library: str
    evaluations: int
    exact_ns: float
    ns: float


@dataclass(frozen=True, repr=False)
class Tolerance(Result):
    """The cheapest assignment that keeps a metric.

    Attributes:
        needs: every site, in the order of the first run.
        ladder: the libraries, the most exact first.
        reference: the metric under the first library everywhere.
        value: under the assignment, from a run of its own at the end.
        within: the bound.
        held_out: the reference and the value of the metric on held-out data; or None.
        runs: of the metric.
    """

    needs: tuple[Need, ...]
    ladder: tuple[str, ...]
    reference: float
    value: float
    within: float
    held_out: tuple[float, float] | None
    runs: int

    @property
    def holds(self) -> bool:
        """Whether the assignment keeps the metric, on held-out data too if there are any."""
        pairs = [(self.reference, self.value), *([self.held_out] if self.held_out else [])]
        return all(abs(b - a) <= self.within for a, b in pairs)

    @property
    def saved(self) -> float:
        """The share of the functions' time that the assignment saves, from costs per element."""
        before = sum(n.evaluations * n.exact_ns for n in self.needs)
        after = sum(n.evaluations * n.ns for n in self.needs)
        return 1 - after / before if before else 0.0

    def assignment(self) -> dict[Site, str]:
        """Return site -> library."""
        return {Site(n.function, n.layer): n.library for n in self.needs}

    def verdict(self) -> str:
        """Return the answer in a line."""
        cheaper = sum(n.library != self.ladder[0] for n in self.needs)
        said = (
            f"{cheaper} of {len(self.needs)} functions in layers can be cheaper than "
            f"{self.ladder[0]}, which saves {self.saved:.0%} of the functions' time"
        )
        if self.holds:
            where = " on held-out data too" if self.held_out is not None else ""
            return f"{said}; the metric stays within {self.within:g}{where}."
        return f"{said}, but that does NOT hold: the metric leaves the bound of {self.within:g}."

    def text(self) -> str:
        """Return a report for a terminal."""
        rows = [
            (
                f"{n.function} in {n.layer}", n.library, f"{n.evaluations:,} evaluations",
                f"{n.exact_ns:.2f} -> {n.ns:.2f} ns",
            )
            for n in self.needs
        ]  # fmt: skip
        lines = [self.verdict(), text_table((), rows)]
        lines.append(
            f"metric: {self.reference:.9g} -> {self.value:.9g}, within {self.within:g}; "
            f"{self.runs} runs"
        )
        if self.held_out is not None:
            before, after = self.held_out
            holds = "within the bound" if abs(after - before) <= self.within else "out of the bound"
            lines.append(f"on held-out data: {before:.9g} -> {after:.9g}, {holds}")
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "format": "udftorch-tolerance-1",
            "verdict": self.verdict(),
            **asdict(self),
            "holds": self.holds,
            "saved": self.saved,
        }
