# SPDX-License-Identifier: Apache-2.0
"""The cheapest libraries that keep a metric: delta debugging, and a greedy that knows costs.

Precimonious (Rubio-González, Nguyen, Nguyen, Demmel, Kahan, Sen, Bailey, Iancu and Hough, SC 2013)
lowers the types of variables by delta debugging, from type to type. Here the variables are sites,
and the types are the libraries of a ladder. From rung to rung it finds a set of sites that have to
stay, of which none can be left out; the others go down.

The greedy begins where all sites are exact, and lowers what saves most first, as far as it goes.
It also ends where no single site can go down. The cheaper answer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_udftorch.base.delta_debugging import smallest
from pytest_udftorch.diagnose.runs.switch import Assignment, Site

Holds = Callable[[Sequence[Assignment]], list[bool]]


class Search:
    """A search over assignments.

    Args:
        sites: what can be lowered.
        ladder: libraries, the most exact first.
        price: site and library -> what it costs.
        holds: tries several assignments and says which keep the metric.
        at_once: how many it can try at once.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        ladder: Sequence[str],
        price: Callable[[Site, str], float],
        holds: Holds,
        at_once: int,
    ) -> None:
        self.sites, self.ladder = list(sites), list(ladder)
        self._price, self._holds, self._at_once = price, holds, max(1, at_once)

    def exact(self) -> dict[Site, str]:
        """Return the assignment of the most exact library."""
        return dict.fromkeys(self.sites, self.ladder[0])

    def cost(self, assignment: Assignment) -> float:
        """Return what an assignment costs."""
        return sum(self._price(site, library) for site, library in assignment.items())

    def cheapest(self) -> dict[Site, str]:
        """Return the cheaper of the answers of both searches."""
        found = [self.by_delta_debugging(), self.by_greed(self.exact())]
        return min(found, key=self.cost)

    def by_delta_debugging(self) -> dict[Site, str]:
        """Lower as many sites as possible from rung to rung, then single ones further."""
        current = self.exact()
        going = list(self.sites)
        for library in self.ladder[1:]:
            staying = self._staying(current, going, library)
            going = [site for site in going if site not in staying]
            if not going:
                break
            current |= dict.fromkeys(going, library)
        return self.by_greed(current)

    def _staying(
        self, current: Mapping[Site, str], going: Sequence[Site], library: str
    ) -> frozenset[Site]:
        """Return sites that cannot go down to a library together with the others."""

        def lowered(keep: Sequence[Site]) -> dict[Site, str]:
            kept = frozenset(keep)
            return {**current, **{s: library for s in going if s not in kept}}

        if self._holds([lowered(())])[0]:
            return frozenset()

        def first(candidates: Sequence[Sequence[Site]]) -> int | None:
            for begin in range(0, len(candidates), self._at_once):
                some = candidates[begin : begin + self._at_once]
                for at, holds in enumerate(self._holds([lowered(c) for c in some])):
                    if holds:
                        return begin + at
            return None

        found, _ = smallest(going, lambda keep: self._holds([lowered(keep)])[0], first=first)
        return frozenset(found)

    def by_greed(self, start: Mapping[Site, str]) -> dict[Site, str]:
        """Lower single sites as far as they go, the largest saving first, until none goes."""
        current = dict(start)
        tried: set[tuple[Site, str]] = set()
        while True:
            moves = [
                (self._price(site, current[site]) - self._price(site, library), site, library)
                for site in self.sites
                for library in self.ladder[self.ladder.index(current[site]) + 1 :]
                if (site, library) not in tried
            ]
            moves = sorted((m for m in moves if m[0] > 0), key=lambda m: -m[0])
            if not moves:
                return current
            batch = moves[: self._at_once]
            outcomes = self._holds([{**current, site: library} for _, site, library in batch])
            for (_, site, library), holds in zip(batch, outcomes, strict=True):
                tried.add((site, library))
                if holds:
                    current[site] = library
                    break
