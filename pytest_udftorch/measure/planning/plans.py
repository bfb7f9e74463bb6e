# SPDX-License-Identifier: Apache-2.0
"""Choosing an executor for each unit of a model: recurrences, bounds, and stored plans.

These are pure functions over tables of times; torch is not imported here. ``search`` measures the
tables, and ``oracle`` carries a plan out.

Units are numbered 0 to n - 1; a segment is a run of neighbouring units that one executor runs
as one region. All times are nanoseconds.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base import whole_file
from pytest_udftorch.errors import PlanError

#: A unit's or segment's executor: (first unit, one past the last unit, executor).
Choice: TypeAlias = tuple[int, int, str]
Costs: TypeAlias = Mapping[str, Sequence[float]]
#: Cost of handing the value at a boundary from one executor to another.
Switch: TypeAlias = Callable[[int, str, str], float]

FORMAT: Final = 1


_PLAN: Final = shapes.record(
    {
        "segments": shapes.each(shapes.row(shapes.whole(), shapes.whole(), shapes.text())),
        "bounds": shapes.each(shapes.whole()),
        "inputs": shapes.each(shapes.text()),
        **dict.fromkeys(("model", "device", "torch"), shapes.text()),
        "cuda_graph": shapes.flag,
    },
    {"report": shapes.of(dict)},
    closed=True,
)


def _units(costs: Costs) -> int:
    return len(next(iter(costs.values())))


def joined_segments(choices: Sequence[str]) -> list[Choice]:
    """Join neighbouring units of the same executor into segments."""
    segments: list[Choice] = []
    first = 0
    for name, run in itertools.groupby(choices):
        stop = first + sum(1 for _ in run)
        segments.append((first, stop, name))
        first = stop
    return segments


def unit_segments(choices: Sequence[str]) -> list[Choice]:
    """Return each unit as a segment of its own."""
    return [(unit, unit + 1, name) for unit, name in enumerate(choices)]


def layer_bound(costs: Costs) -> float:
    """Return the sum of the units' smallest times.

    No choice among these executors, unit by unit, can be predicted faster. A segment can, since
    these times do not hold fusion across units.
    """
    return sum(min(row[unit] for row in costs.values()) for unit in range(_units(costs)))


def fastest(costs: Costs) -> list[str]:
    """Return each unit's fastest executor; switching is not counted.

    This is the choice of the layer-timed and the profiler-timed oracle, and best of two runs.
    """
    return [min(costs, key=lambda name: costs[name][unit]) for unit in range(_units(costs))]


def greedy(costs: Costs, switch: Switch) -> list[str]:
    """Return for each unit the executor that is fastest after the choice before it."""
    chosen: list[str] = []
    for unit in range(_units(costs)):

        def spent(name: str, unit: int = unit) -> float:
            change = switch(unit, chosen[-1], name) if chosen else 0.0
            return costs[name][unit] + change

        chosen.append(min(costs, key=spent))
    return chosen


def unit_programme(costs: Costs, switch: Switch) -> list[str]:
    """Return the choice with the smallest sum of unit times and switching costs.

    The recurrence is T(i, e) = c(i, e) + min over d of (T(i-1, d) + s(i, d, e)): a shortest
    path through one layer of nodes per unit (Bellman, Dynamic Programming, 1957). Every unit is
    a region of its own, so fusion across units does not count.
    """
    names = list(costs)
    best = {name: costs[name][0] for name in names}
    paths = {name: [name] for name in names}
    for unit in range(1, _units(costs)):
        came: dict[str, float] = {}
        longer: dict[str, list[str]] = {}
        for name in names:
            before = min(names, key=lambda d: best[d] + switch(unit, d, name))
            came[name] = best[before] + switch(unit, before, name) + costs[name][unit]
            longer[name] = [*paths[before], name]
        best, paths = came, longer
    return paths[min(names, key=best.__getitem__)]


@dataclass
class SearchResult:
    """What :func:`segment_search` found.

    Attributes:
        segments: the plan, or None when nothing can beat ``limit``.
        predicted_ns: the sum of its measured segments and switches.
        measured: the number of segments longer than a unit that were measured.
        pruned: the number of those that were not, since their bound could not win.
    """

    segments: list[Choice] | None
    predicted_ns: float
    measured: int
    pruned: int


def segment_search(
    costs: Costs,
    whole: Mapping[str, float],
    switch: Switch,
    measure: Callable[[int, int, str], float],
    limit: float = math.inf,
    most: int = 64,
) -> SearchResult:
    """Find the fastest sequence of segments; measure only segments that may be in it.

    A dynamic programme over (boundary, executor): T(j, e) is the least over i and d of
    T(i, d) + s(i, d, e) + c(i, j, e). The cost of a segment longer than a unit starts as a
    lower bound: the sum of its units less all that this executor gains by running the whole
    model as one region instead of unit by unit. While the best path holds an unmeasured
    segment, that segment is measured and the programme runs again (lazy shortest path; Dellin
    and Srinivasa, ICAPS 2016). What is never on a best path is never compiled.

    Args:
        costs: unit times by executor.
        whole: time of the whole model as one region, by executor.
        switch: cost at a boundary.
        measure: takes first, stop and executor; returns the segment's time in its place, or
            ``inf`` if it fails.
        limit: the search ends when the bound of the best path is not below this.
        most: the most segments that are measured; after that, unmeasured ones are left out.
    """
    n = _units(costs)
    names = list(costs)
    gain = {e: max(0.0, sum(costs[e]) - whole.get(e, sum(costs[e]))) for e in names}
    known = {(unit, unit + 1, e): costs[e][unit] for e in names for unit in range(n)}
    if n > 1:
        known |= {(0, n, e): whole[e] for e in names if e in whole}
    all_segments = len(names) * (n * (n + 1) // 2)

    def cost(i: int, j: int, e: str) -> float:
        if (i, j, e) in known:
            return known[i, j, e]
        if len(asked) >= most:
            return math.inf
        units = costs[e][i:j]
        return max(max(units), sum(units) - gain[e])

    asked: list[Choice] = []
    while True:
        # Neighbouring segments of one executor are allowed: two regions can beat one.
        best: dict[tuple[int, str], float] = {}
        path: dict[tuple[int, str], list[Choice]] = {}
        for j in range(1, n + 1):
            for e in names:
                for i in range(j):
                    here = cost(i, j, e)
                    if i == 0:
                        options = [(here, [(0, j, e)])]
                    else:
                        options = [
                            (best[i, d] + switch(i, d, e) + here, [*path[i, d], (i, j, e)])
                            for d in names
                        ]
                    value, route = min(options, key=lambda option: option[0])
                    if value < best.get((j, e), math.inf) or (j, e) not in best:
                        best[j, e], path[j, e] = value, route
        end = min(names, key=lambda e: best[n, e])
        value, route = best[n, end], path[n, end]
        pruned = all_segments - len(known)
        if value >= limit:
            return SearchResult(None, value, len(asked), pruned)
        unknown = [segment for segment in route if segment not in known]
        if not unknown:
            return SearchResult(route, value, len(asked), pruned)
        for segment in unknown:
            known[segment] = measure(*segment)
            asked.append(segment)


@dataclass(frozen=True)
class StoredPlan:
    """What a plan's file keeps: all but the model.

    Attributes:
        segments: the executors of the segments; a uniform plan has one segment over all units.
        bounds: node positions of the cuts, as in ``segments.Units``.
        model: fingerprint of graph, cuts and parameter shapes.
        inputs: dtype, shape and memory format of each input.
        device: the device's name.
        torch: the torch version.
        cuda_graph: whether the whole is captured in a CUDA graph.
        report: what was measured when the plan was made.
    """

    segments: tuple[Choice, ...]
    bounds: tuple[int, ...]
    model: str
    inputs: tuple[str, ...]
    device: str
    torch: str
    cuda_graph: bool
    report: dict[str, Any] = field(default_factory=dict)

    def check(self, *, model: str, inputs: Sequence[str], device: str, torch: str) -> None:
        """Check that the plan fits.

        Raises:
            PlanError: names what differs.
        """
        here = {"device": device, "torch": torch, "inputs": list(inputs), "model": model}
        for name, found in here.items():
            made = getattr(self, name)
            made = list(made) if isinstance(made, tuple) else made
            if made != found:
                raise PlanError(
                    f"The plan was made for {name} {made}, but here it is {found}. Times do not "
                    "carry over: make a new plan with oracle(...)."
                )

    def content(self) -> dict[str, Any]:
        """Return what the file holds."""
        return shapes.sealed({"udftorch_plan": FORMAT, **asdict(self)})

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; the file appears whole, or stays as it was.

        Raises:
            PlanError: the file cannot be written.
        """
        try:
            whole_file.write(path, json.dumps(self.content(), indent=1) + "\n")
        except OSError as error:
            raise PlanError(
                f"{path} cannot be written ({error.strerror}). The plan is not lost: give "
                "plan.save() a file in a folder that exists and may be written to."
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> StoredPlan:
        """Read a plan.

        Raises:
            PlanError: the file holds no plan, or one of another version of this package.
        """
        try:
            # Reports hold the infinite times of segments that failed.
            content = shapes.parse_json(shapes.read_file(Path(path)), finite=False)
            version = content.pop("udftorch_plan")
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise PlanError(
                f"{path} holds no plan ({type(error).__name__}). plan.save() writes plans."
            ) from error
        if type(version) is not int or version != FORMAT:
            raise PlanError(
                f"{path} is a plan of format {shapes.shown(version)}, but this package reads "
                f"{FORMAT}. Make a new plan with oracle(...)."
            )
        try:
            whole = content
            content = {name: value for name, value in whole.items() if name != shapes.SEAL}
            _PLAN(content, "the plan")
            segments = tuple((first, stop, name) for first, stop, name in content.pop("segments"))
            bounds = tuple(content.pop("bounds"))
            inputs = tuple(content.pop("inputs"))
            ends = [0, *(stop for _, stop, _ in segments)]
            if [first for first, _, _ in segments] != ends[:-1] or ends[-1] != len(bounds) - 1:
                raise shapes.Malformed("its segments do not cover the model")
            for positions in (ends, bounds):
                if any(a >= b for a, b in itertools.pairwise(positions)):
                    raise shapes.Malformed("its segments or cuts are not in order")
            shapes.check_seal({"udftorch_plan": version, **whole})
        except shapes.Malformed as error:
            raise PlanError(f"{path} is a damaged plan: {error}. Make a new one.") from error
        return cls(segments=segments, bounds=bounds, inputs=inputs, **content)
