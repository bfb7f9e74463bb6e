# SPDX-License-Identifier: Apache-2.0
"""The search behind ``oracle``: its options, its phases, and what each phase hands to the next.

The phases are: measure the uniform executors, find the roofline, cut the model into units, time
the units, choose plans, and let the plans contend.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.base.trees import convert
from pytest_udftorch.errors import PlanError, UntraceableModelError
from pytest_udftorch.measure.planning import executors as registry
from pytest_udftorch.measure.planning import plans, roofline
from pytest_udftorch.measure.planning.identity import (
    describe_input,
    device_name,
    fingerprint,
    graph_digest,
)
from pytest_udftorch.measure.planning.pairs import (
    Member,
    ModelPair,
    copied,
    copies,
    model_pair,
    recompile_limits,
    writes_inputs,
)
from pytest_udftorch.measure.planning.plans import Choice, StoredPlan
from pytest_udftorch.measure.planning.search_record import SearchRecord
from pytest_udftorch.measure.planning.segment_times import SegmentBench
from pytest_udftorch.measure.planning.segments import Units
from pytest_udftorch.measure.timing.statistics import FEWEST_RUNS
from pytest_udftorch.measure.timing.timers import Comparison, SyncTimer, Timing

#: Executors of segments; applied to the whole model, they are the uniform ones.
EXECUTORS: Final = {
    "cpu": ("eager", "eager+channels_last", "compile", "compile+channels_last"),
    "cuda": (
        "eager",
        "eager+channels_last",
        "compile",
        "compile+channels_last",
        "eager+fused+streams",
        "eager+fused+channels_last+streams",
        "compile+fused+channels_last",
    ),
}

#: An executor whose uniform time is more than this many times the best one's is not tried on
#: units: a unit would have to differ from the model's average by as much.
HOPELESS: Final = 1.4

#: A plan must be predicted at least this much faster than the best uniform executor before
#: longer segments are compiled for it.
WORTHWHILE: Final = 0.999

#: The most longer segments that are compiled for one plan.
MOST_SEGMENTS: Final = 8

Guard = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, kw_only=True)
class OracleOptions:
    """The options of ``oracle``, which describes them."""

    executors: str | Sequence[str] | None
    opponents: str | Sequence[str] | None
    max_units: int
    budget: float
    max_ulp: int | None
    expected_calls: float
    runs: int
    rounds: int
    max_seconds: float
    journal: str | Path | None
    progress: Callable[[int, int, str], None] | None
    compiling: Guard
    measuring: Guard

    def names(self, device: str) -> list[str]:
        """Return the executors of segments on a device, each once."""
        given = [self.executors] if isinstance(self.executors, str) else self.executors
        return list(dict.fromkeys(given or EXECUTORS[device]))

    def rivals(self) -> Sequence[str] | None:
        """Return the executors that plans are only measured against, or None for the default."""
        return [self.opponents] if isinstance(self.opponents, str) else self.opponents

    def check(self, names: Sequence[Any]) -> None:
        """Check the options; ``names`` are the executors of segments.

        Raises:
            PlanError: says which option makes no plan.
            ExecutorError: no such executor.
        """
        for name in (*names, *(self.rivals() or ())):
            if not isinstance(name, str):
                raise PlanError(
                    f"{name!r} is not a name, and a plan keeps its executors by name. Add yours "
                    "with executors.register(...) and give the name."
                )
            registry.resolve(name)
        whole = all(isinstance(n, int) for n in (self.runs, self.rounds, self.max_units))
        if not isinstance(self.max_seconds, int | float) or not self.max_seconds >= 0:
            raise PlanError(f"max_seconds={self.max_seconds}: give seconds, 0 or more.")
        wrong_ulp = self.max_ulp is not None and self.max_ulp < 0
        if not whole or self.rounds < 1 or not self.budget > 0 or wrong_ulp:
            raise PlanError(
                f"runs={self.runs}, rounds={self.rounds}, max_units={self.max_units}, "
                f"budget={self.budget}, max_ulp={self.max_ulp}: give whole numbers of runs, rounds "
                "and units, at least one round, and a positive error budget."
            )
        graphs = any("cudagraph" in name for name in names)
        if self.runs < FEWEST_RUNS or self.max_units < 1 or graphs:
            raise PlanError(
                f"runs={self.runs}, max_units={self.max_units}, executors={list(names)}: a verdict "
                f"needs {FEWEST_RUNS} runs, a plan needs one unit, and CUDA graphs are added by "
                "the oracle."
            )
        if not self.expected_calls > 0:
            raise PlanError(
                f"expected_calls={self.expected_calls}: the expected calls share the cost of "
                "compiling. Give a positive number, or leave it out to count compiling as free."
            )


@dataclass(frozen=True)
class _Uniform:
    """The whole model under each executor.

    Attributes:
        pair: the forms of the model.
        timed: their interleaved measurement.
        ns: times of the executors within the error budget, with their share of compiling.
        best: the fastest of these.
    """

    pair: ModelPair
    timed: Comparison
    ns: dict[str, float]
    best: str


@dataclass(frozen=True)
class _UnitTimes:
    """Times of the units in their places, by executor, in nanoseconds.

    Attributes:
        clock: by the clock, with each unit's share of compiling.
        profiled: by the profiler.
        switch: cost of a change of executor before a unit.
    """

    clock: dict[str, list[float]]
    profiled: dict[str, list[float]]
    switch: plans.Switch


@dataclass
class _Judged:
    """Plans that were made.

    Attributes:
        calls: the plans within the error budget.
        problems: why the others are not among them.
        distances: how far the result of each plan that ran lies from the float64 reference.
    """

    calls: dict[str, Callable[..., Any]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    distances: dict[str, float | str] = field(default_factory=dict)


def _told(error: Exception, most: int = 300) -> str:
    return f"{type(error).__name__}: {str(error)[:most]}"


def _regrets(timings: dict[str, Timing], bound: float) -> dict[str, float | None]:
    """Return how much longer each takes than the bound, as a share of the bound."""
    return {
        name: round(timing.median_ns / bound - 1, 4) if bound else None
        for name, timing in timings.items()
    }


class Search:
    """One search for a plan.

    Args:
        model: in evaluation mode.
        inputs: positional arguments.
        device: the device that both lie on.
        options: the options, already checked.

    Raises:
        JournalError: see :class:`SearchRecord`.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[Any, ...],
        device: torch.device,
        options: OracleOptions,
    ) -> None:
        self.model, self.inputs, self.device, self.options = model, inputs, device, options
        self.on_cuda = device.type == "cuda"
        self.suffix = "+cudagraph" if self.on_cuda else ""
        self.names = options.names(device.type)
        if "eager" not in self.names:
            self.names.insert(0, "eager")
        rivals = options.rivals()
        if rivals is None:
            compiled = any(name.startswith("compile") for name in self.names)
            rivals = ["compile"] if self.on_cuda and compiled else []
        self.rivals = rivals
        self._step, self._steps = 0, len(self.names) + len(rivals) + 5
        self.key: dict[str, Any] = {
            "inputs": [describe_input(t) for t in inputs],
            "device": device_name(device),
            "torch": str(torch.__version__),
            "executors": self.names,
            "graph": graph_digest(model, inputs),
            "max_units": options.max_units,
        }
        self.began_ns = time.perf_counter_ns()
        self.record = SearchRecord(Path(options.journal) if options.journal else None, self.key)
        self.record.keep(cuda_graph=self.on_cuda)

    def run(self) -> StoredPlan:
        """Go through all phases and return the plan."""
        uniform = self.measure_uniform()
        self.find_roofline(uniform)
        units = self.cut()
        if units is None or len(units) < 2:
            return self._uniform_plan(uniform.best, None)
        bench = SegmentBench(units, self.inputs)
        made_ns = sum(m.first_call_ns for m in uniform.pair.members.values())
        self._say(
            f"{len(units)} units; compiling units takes about as long again as the "
            f"{made_ns / 1e9:.0f} s of the whole models, at most {self.options.max_seconds:.0f} s"
        )
        times = self.time_units(bench, uniform)
        if not times.clock:
            return self._uniform_plan(uniform.best, units)
        return self.contend(bench, uniform, self.choose(bench, uniform, times))

    def _say(self, text: str) -> None:
        self._step += 1
        if self.options.progress is not None:
            self.options.progress(self._step, max(self._steps, self._step), text)

    # Phases ------------------------------------------------------------------------------

    def measure_uniform(self) -> _Uniform:
        """Make and time the whole model under each executor and each opponent."""
        options, suffix = self.options, self.suffix
        with options.compiling():
            pair = model_pair(
                self.model,
                self.inputs,
                [*(name + suffix for name in self.names), *self.rivals],
                tolerance=options.budget,
                progress=lambda done, of, text: self._say(text),
            ).complete()
        allowed = self._within_budget(pair)
        with options.measuring():
            timed = pair.measure(runs=options.runs, rounds=options.rounds, warmup=5).complete()
        ns = {
            name: timed[name + suffix].median_ns
            + pair.members[name + suffix].first_call_ns / options.expected_calls
            for name in allowed
        }
        best = min(ns, key=ns.__getitem__)
        self.record.keep(
            uniform={
                name: round(timed[name + suffix].median_ns, 1)
                for name in self.names
                if name + suffix in timed.timings
            },
            members={name: member.document() for name, member in pair.members.items()},
            best_uniform=best,
            uniform_measurement=timed.document(),
        )
        return _Uniform(pair, timed, ns, best)

    def _within_budget(self, pair: ModelPair) -> list[str]:
        """Return the executors that work and whose uniform result lies within the budget."""
        members = {name: pair.members[name + self.suffix] for name in self.names}
        allowed = [name for name, member in members.items() if self._accepted(member)]
        if allowed:
            return allowed
        reasons = []
        for name, member in members.items():
            found = member.accuracy
            why = member.error if found is None else found.problem or f"{found.worst_ulp} ULP"
            reasons.append(f"{name}: {why}")
        raise PlanError(
            "No executor stays within the error budget, not even eager. Give a larger max_ulp, or "
            f"mend the model where it is not a matter of rounding: {', '.join(reasons)}"
        )

    def _accepted(self, member: Member) -> bool:
        """Whether a member's result lies within the error budget."""
        most, found = self.options.max_ulp, member.accuracy
        return member.agrees and found is not None and (most is None or found.worst_ulp <= most)

    def find_roofline(self, uniform: _Uniform) -> None:
        """Find the lower bound of every executor; see ``roofline``."""
        self._say("the device's ceilings")
        with self.options.measuring():
            ceilings = roofline.ceilings(self.device)
        # This runs the model, whose state and inputs are the caller's.
        needed = roofline.work(copied(self.model), copies(self.inputs))
        least = roofline.bound_ns(needed, ceilings)
        self.record.keep(
            work=asdict(needed),
            ceilings=ceilings.document(),
            roofline_ns=round(least, 1),
            uniform_regret_over_roofline=_regrets(uniform.timed.timings, least),
        )

    def cut(self) -> Units | None:
        """Cut the model into units, or return None and keep the reason why it cannot be cut."""
        if writes_inputs(self.model, self.inputs):
            # Units are timed on the same values again and again.
            self.record.keep(not_cut="the model writes into its inputs")
            return None
        try:
            # A resumed search needs the same units, although the times differ.
            bounds = self.record.report.get("bounds")
            limit = self.options.max_units
            units = Units(copy.deepcopy(self.model), self.inputs, limit, bounds=bounds)
        except UntraceableModelError as error:
            self.record.keep(not_cut=str(error))
            return None
        self.record.keep(bounds=list(units.bounds), units=units.names, layers=units.layers)
        self.record.keep(exported=units.exported is not None)
        if len(units) < 2 and limit > 1:
            self.record.keep(not_cut="nowhere between two layers is one activation alone alive")
        return units

    def time_units(self, bench: SegmentBench, uniform: _Uniform) -> _UnitTimes:
        """Measure each unit in its place under each executor that is not hopeless."""
        least = min(uniform.ns.values())
        tried = [n for n, ns in uniform.ns.items() if ns <= HOPELESS * least or n == "eager"]
        self.record.keep(not_tried_on_units=sorted(set(uniform.ns) - set(tried)))
        self._steps += 3 * len(tried)
        failed: dict[str, str] = {}
        unprofiled: dict[str, str] = {}
        rows = self._make_units(bench, tried, failed)
        with self.options.measuring():
            clock = functools.partial(bench.time_in_place, runs=self.options.runs)
            costs = self._measure_units("timing", "unit_ns", rows, clock, failed)
            rows = {name: rows[name] for name in costs}
            profiled = self._measure_units(
                "profiling", "unit_profiled_ns", rows, bench.profile_in_place, unprofiled
            )
            changes = [bench.switch_ns(unit, 5) for unit in range(len(bench.units))]
        if unprofiled:
            why = "; ".join(f"{name}: {reason}" for name, reason in unprofiled.items())
            self.record.keep(not_profiled=why)
        for name, row_ns in costs.items():
            for unit in range(len(row_ns)):
                spent = bench.compile_ns[f"{unit}:{unit + 1} {name}"]
                row_ns[unit] += spent / self.options.expected_calls
        self.record.keep(failed_on_units=failed)
        self.record.keep(
            format_change_ns=[[round(c[True], 1), round(c[False], 1)] for c in changes]
        )

        def switch(unit: int, before: str, after: str) -> float:
            # Only the entry to "channels_last" converts. A plain executor takes channels_last as
            # it comes, but was not measured with it, so both ways count.
            to_last = "channels_last" in after
            return 0.0 if ("channels_last" in before) == to_last else changes[unit][to_last]

        return _UnitTimes(costs, profiled, switch)

    def _make_units(
        self, bench: SegmentBench, tried: Sequence[str], failed: dict[str, str]
    ) -> dict[str, list[Choice]]:
        """Return the units of each executor that could make all of them."""
        rows: dict[str, list[Choice]] = {}
        for name in tried:
            self._say(f"units under {name}")
            row = [(u, u + 1, name) for u in range(len(bench.units))]
            try:
                for choice in row:
                    with self.options.compiling():
                        bench.make(choice)
                rows[name] = row
            except Exception as error:
                failed[name] = _told(error)
        return rows

    def _measure_units(
        self,
        doing: str,
        key: str,
        rows: dict[str, list[Choice]],
        measure: Callable[[list[Choice]], list[float]],
        failed: dict[str, str],
    ) -> dict[str, list[float]]:
        """Return the units' times by executor: recorded ones, or new ones, which are recorded."""
        known: dict[str, list[float]] = self.record.report.get(key, {})
        times: dict[str, list[float]] = {}
        for name, row in rows.items():
            self._say(f"{doing} units under {name}")
            try:
                times[name] = list(known.get(name) or measure(row))
            except Exception as error:
                failed[name] = _told(error)
            self.record.keep(
                **{key: {name: [round(ns, 1) for ns in row] for name, row in times.items()}}
            )
        return times

    def choose(
        self, bench: SegmentBench, uniform: _Uniform, times: _UnitTimes
    ) -> dict[str, list[Choice]]:
        """Return the segments of every oracle by its name; ours is absent if nothing can win."""
        deadline = self.began_ns + self.options.max_seconds * 1e9
        costs, switch = times.clock, times.switch
        whole = {name: uniform.ns[name] for name in costs if name in uniform.ns}
        # Uniform times hold the copy of the inputs and the graph's launch; units' times do not.
        # Interpreted units fuse nothing, so their sum tells how much that is.
        # On the CPU nothing is copied or launched, and exported units leave out the model's Python.
        python_left_out = bench.units.exported is not None and not self.on_cuda
        outside = 0.0
        if "eager" in whole and not python_left_out:
            outside = max(0.0, whole["eager"] - sum(costs["eager"]))
        whole = {name: ns - outside for name, ns in whole.items()}
        limit = (uniform.ns[uniform.best] - outside) * WORTHWHILE
        measure = functools.partial(self._measure_segment, bench, deadline)
        found = plans.segment_search(costs, whole, switch, measure, limit, MOST_SEGMENTS)
        everything = plans.unit_programme(costs, switch)
        chosen: dict[str, list[Choice]] = {
            "layer-timed oracle": plans.unit_segments(plans.fastest(costs)),
            "greedy": plans.unit_segments(plans.greedy(costs, switch)),
            "programme over all executors": plans.unit_segments(everything),
        }
        # Eager is one of the two executors, and may be outside of the budget.
        if "eager" in costs:
            by_time = sorted(whole, key=whole.__getitem__)
            compiled = next((n for n in by_time if n.startswith("compile")), by_time[0])
            two = {n: costs[n] for n in ("eager", compiled)}
            chosen["best of two runs"] = plans.unit_segments(plans.fastest(two))
            # The name that stored results have.
            chosen["thesis programme"] = plans.unit_segments(plans.unit_programme(two, switch))
            self.record.keep(unit_bound_of_two_ns=round(plans.layer_bound(two), 1))
        if times.profiled:
            chosen["profiler-timed oracle"] = plans.unit_segments(plans.fastest(times.profiled))
            self.record.keep(unit_bound_profiled_ns=round(plans.layer_bound(times.profiled), 1))
        self.record.keep(
            unit_bound_ns=round(plans.layer_bound(costs), 1),
            segments_measured=found.measured,
            segments_pruned=found.pruned,
            predicted_ns=round(found.predicted_ns, 1),
            compile_ns=bench.compile_ns,
        )
        if found.segments is not None:
            chosen["ours"] = found.segments
        # What the units alone say, with neighbours of one executor joined into one region.
        joined = plans.joined_segments(everything)
        if len(joined) > 1 and time.perf_counter_ns() < deadline:
            chosen["joined programme"] = joined
        return chosen

    def _measure_segment(
        self, bench: SegmentBench, deadline: float, first: int, stop: int, name: str
    ) -> float:
        """Return the time of a segment among units of its executor; infinite if it fails."""
        if time.perf_counter_ns() > deadline:
            return math.inf
        self._say(f"units {first} to {stop - 1} as one region under {name}")
        around = [(u, u + 1, name) for u in range(len(bench.units))]
        row = [*around[:first], (first, stop, name), *around[stop:]]
        try:
            with self.options.compiling():
                bench.make((first, stop, name))
            with self.options.measuring():
                return bench.time_in_place(row, self.options.runs)[first]
        except Exception as error:
            failed = dict(self.record.report.get("failed_segments", {}))
            failed[f"{first}:{stop} {name}"] = _told(error, 200)
            self.record.keep(failed_segments=failed)
            return math.inf

    def contend(
        self, bench: SegmentBench, uniform: _Uniform, chosen: dict[str, list[Choice]]
    ) -> StoredPlan:
        """Measure all plans, then the best of them afresh against the uniform executors."""
        pair = uniform.pair
        judged = self._judge(bench, pair, chosen)
        calls = judged.calls
        stock = {name: pair[name] for name in self.rivals if name in pair.working}
        everyone = {name: pair[name] for name in pair.working}
        self._say("all plans, interleaved; then the best one against the uniform executors, afresh")
        with self.options.measuring():
            opponent = {"best uniform": pair[uniform.best + self.suffix], **stock}
            first = self._timed({**opponent, **calls}, seed=1)
            ours = min(calls, key=lambda name: first[name].median_ns, default=None)
            fresh = first
            if ours is not None:
                fresh = self._timed({**everyone, "plan": calls[ours]}, seed=2)
        report = self.record.report
        self.record.keep(
            plans={name: [list(c) for c in segments] for name, segments in chosen.items()},
            plan_problems=judged.problems,
            plan_distances=judged.distances,
            plan_measurement=first.document(),
            regret=_regrets(first.timings, float(report["unit_bound_ns"])),
            regret_over_roofline=_regrets(first.timings, float(report["roofline_ns"])),
        )
        if ours is None:
            return self._uniform_plan(uniform.best, bench.units)
        # The best of the fresh times, which is the harder opponent.
        best = min(uniform.ns, key=lambda name: fresh[name + self.suffix].median_ns)
        gain = fresh.speedup("plan", over=best + self.suffix)
        verdict = fresh.verdict("plan", over=best + self.suffix)
        self.record.keep(
            seconds=self._seconds(),
            chosen=ours,
            best_uniform=best,
            fresh_measurement=fresh.document(),
            fresh_speedup=[round(gain.value, 4), round(gain.low, 4), round(gain.high, 4)],
            fresh_verdict=verdict,
        )
        if verdict != "faster":
            return self._uniform_plan(best, bench.units)
        return self._plan(tuple(chosen[ours]), bench.units)

    def _judge(
        self, bench: SegmentBench, pair: ModelPair, chosen: dict[str, list[Choice]]
    ) -> _Judged:
        """Make each plan, and compare what its first two calls give with the reference."""
        found = _Judged()
        for name, segments in chosen.items():
            self._say(f"plan {name}")
            try:
                with self.options.compiling():
                    call = bench.whole(segments)
                    results = [convert(call(*self.inputs), torch.clone) for _ in range(2)]
            except Exception as error:
                found.problems[name] = _told(error)
                continue
            member = Member(name)
            pair.judge(member, results)
            accuracy = member.accuracy
            assert accuracy is not None
            found.distances[name] = member.document()["distance_to_float64"]
            if self._accepted(member):
                found.calls[name] = call
            else:
                found.problems[name] = accuracy.problem or (
                    f"outside the error budget: distance {accuracy.distance:.3g}, "
                    f"{accuracy.worst_ulp} ULP, eager {pair.exact[0].distance:.3g}"
                )
        return found

    def _timed(self, contenders: dict[str, Callable[..., Any]], seed: int) -> Comparison:
        runs, rounds = self.options.runs, self.options.rounds
        timer = SyncTimer(self.device, runs=runs, rounds=rounds, warmup=5, seed=seed)
        with torch.no_grad(), recompile_limits():
            return timer.compare(
                {name: functools.partial(call, *self.inputs) for name, call in contenders.items()}
            ).complete()

    # The result --------------------------------------------------------------------------

    def _seconds(self) -> float:
        return round((time.perf_counter_ns() - self.began_ns) / 1e9, 1)

    def _uniform_plan(self, best: str, units: Units | None) -> StoredPlan:
        self.record.keep(replaced_by=best, seconds=self._seconds())
        return self._plan(((0, len(units) if units is not None else 1, best),), units)

    def _plan(self, segments: tuple[Choice, ...], units: Units | None) -> StoredPlan:
        return StoredPlan(
            segments=segments,
            bounds=(0, 1) if units is None else tuple(units.bounds),
            model=fingerprint(self.model, units),
            inputs=tuple(self.key["inputs"]),
            device=self.key["device"],
            torch=self.key["torch"],
            cuda_graph=self.on_cuda,
            report=self.record.report,
        )
