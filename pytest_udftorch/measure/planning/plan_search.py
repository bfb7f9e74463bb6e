# SPDX-License-Identifier: Apache-2.0
"""Find, keep and apply the fastest measured way to run a model.

``oracle(model, inputs)`` measures uniform executors (the whole model one way), cuts the model
into units, measures each unit in its place under each executor that can still win, and
searches segments of neighbouring units (see ``plans.segment_search``). The winner must beat the
best uniform executor in a fresh, interleaved measurement; otherwise the plan *is* that
executor, so that applying a plan never makes a model slower than the best uniform choice.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.base.units import time_text
from pytest_udftorch.errors import PlanError, UntraceableModelError
from pytest_udftorch.measure.planning import executors as registry
from pytest_udftorch.measure.planning.executor import without_noise
from pytest_udftorch.measure.planning.identity import describe_input, device_name, fingerprint, home
from pytest_udftorch.measure.planning.pairs import check_inputs, copied, copies, on_device
from pytest_udftorch.measure.planning.plans import StoredPlan
from pytest_udftorch.measure.planning.search import Guard, OracleOptions, Search
from pytest_udftorch.measure.planning.segment_times import SegmentBench, without_gradients
from pytest_udftorch.measure.planning.segments import Units
from pytest_udftorch.measure.timing.layers import positional
from pytest_udftorch.measure.timing.timers import require_device
from pytest_udftorch.swap.toolchain.progress import Progress


def _time_of(item: tuple[str, Any]) -> float:
    return float(item[1]) if isinstance(item[1], int | float) else math.inf


def _layers(named: Any, first: int, stop: int) -> str:
    """Return the layers of a segment; a plan from a file may hold a report of another version."""
    try:
        begin, end = named[first][0], named[stop - 1][1]
    except (IndexError, KeyError, TypeError):
        return ""
    return str(begin) if begin == end else f"{begin} to {end}"


def _whole_times(report: dict[str, Any]) -> dict[str, float]:
    """Return executor -> nanoseconds of the whole model.

    The last measurement, which decided, goes before that of the beginning.
    """
    times = report.get("uniform")
    found = dict(times) if isinstance(times, dict) else {}
    fresh = report.get("fresh_measurement")
    last = fresh.get("timings") if isinstance(fresh, dict) else None
    for name, timing in last.items() if isinstance(last, dict) else ():
        plain = name.removesuffix("+cudagraph")
        if plain in found and isinstance(timing, dict):
            found[plain] = timing.get("median_ns", found[plain])
    return {name: ns for name, ns in found.items() if isinstance(ns, int | float)}


@dataclass(repr=False)
class Plan(Result):
    """A plan that can be applied, kept, and read again.

    Attributes:
        stored: what :meth:`save` writes.
        inputs: those that the plan was made with; None after :meth:`load`.
    """

    stored: StoredPlan
    inputs: tuple[Any, ...] | None = field(default=None, repr=False, compare=False)

    @property
    def report(self) -> dict[str, Any]:
        """What was measured when the plan was made."""
        return self.stored.report

    @property
    def uniform(self) -> str | None:
        """The executor of the whole model, or None for a plan of several segments."""
        only = self.stored.segments
        return only[0][2] if len(only) == 1 else None

    def verdict(self) -> str:
        """Return the answer in a line: what runs the model fastest, and by how much."""
        if self.uniform is not None:
            return f"{self.uniform} alone is the fastest that was found."
        said = f"{len(self.stored.segments)} segments are the fastest that was found"
        gain, best = self.report.get("fresh_speedup"), self.report.get("best_uniform")
        # A plan from a file may hold a report of another version.
        if isinstance(gain, list) and gain and isinstance(gain[0], int | float) and best:
            return f"{said}, {gain[0]:.2f} times as fast as the best single executor, {best}."
        return f"{said}."

    def _shown(self) -> Shown:
        stored = self.stored
        title = f"{self.verdict()} On {stored.device}, torch {stored.torch}, for "
        title += ", ".join(stored.inputs)
        # A plan from a file may hold a report of another version.
        rows = [
            (f"{first} to {stop - 1}", _layers(self.report.get("layers"), first, stop), executor)
            for first, stop, executor in stored.segments
        ]
        notes = [
            f"whole model under {name}: {time_text(ns)}"
            for name, ns in sorted(_whole_times(self.report).items(), key=_time_of)
        ]
        return Shown(title, ("units", "layers", "executor"), rows, notes)

    def document(self) -> dict[str, Any]:
        """Return what :meth:`save` writes."""
        return self.stored.content()

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        self.stored.save(path)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan; see :meth:`StoredPlan.load` for the errors."""
        return cls(StoredPlan.load(path))

    def apply(
        self, model: nn.Module, inputs: Sequence[Any] | torch.Tensor | None = None
    ) -> Callable[..., Any]:
        """Return a callable that runs a copy of ``model`` by the plan, without gradients.

        On CUDA the callable replays a graph, and its next call overwrites its output. Units of a
        model that FX cannot trace are exported, and serve inputs of these shapes and flags only.

        Args:
            model: has the architecture that the plan was made for; its weights may differ.
            inputs: a tensor or the positional arguments, of the shapes that the plan was made
                for; by default those that it was made with.

        Raises:
            PlanError: the plan was made for another model, device or torch version, or for other
                shapes; no inputs, and the plan was read from a file.
        """
        if inputs is None and self.inputs is None:
            raise PlanError(
                "A plan's file holds no inputs. Give some of the shapes that it was made for: "
                f"plan.apply(model, inputs) with {', '.join(self.stored.inputs)}."
            )
        arguments = positional(model, self.inputs if inputs is None else inputs)
        traced = copied(model).eval()
        units = None
        if len(self.stored.bounds) > 2:
            with contextlib.suppress(UntraceableModelError):
                units = Units(traced, arguments, bounds=self.stored.bounds)
        # A model that cannot be traced is not the one that was cut into units.
        self.stored.check(
            model=fingerprint(traced, units),
            inputs=[describe_input(t) for t in arguments],
            device=device_name(home(arguments)),
            torch=str(torch.__version__),
        )
        name = self.uniform
        if name is not None:
            full = f"{name}+cudagraph" if self.stored.cuda_graph else name
            # The model may keep state, and tracing has called it. This copy was not called yet.
            own = copied(model).eval()
            with torch.no_grad():
                call = registry.make(registry.resolve(full), own, copies(arguments))
            return call if self.stored.cuda_graph else without_gradients(call)
        assert units is not None
        return SegmentBench(units, arguments).whole(self.stored.segments)


# The options are the documented interface, and most of the lines document them.
def oracle(  # noqa: PLR0913
    model: nn.Module,
    inputs: Sequence[Any] | torch.Tensor,
    *,
    executors: str | Sequence[str] | None = None,
    opponents: str | Sequence[str] | None = None,
    device: str | torch.device | None = None,
    max_units: int = 8,
    budget: float = 2.0,
    max_ulp: int | None = None,
    expected_calls: float = math.inf,
    runs: int = 20,
    rounds: int = 10,
    max_seconds: float = 600.0,
    journal: str | Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    compiling: Guard = contextlib.nullcontext,
    measuring: Guard = contextlib.nullcontext,
) -> Plan:
    """Make a plan for a model on these inputs.

    Args:
        model: in evaluation mode; left as it is. If neither FX nor ``torch.export`` can capture
            it, or it writes into its inputs, the plan is the best uniform executor.
        inputs: a tensor, or the positional arguments, on the device to plan for.
        executors: of segments; by default those of ``search.EXECUTORS``. On CUDA everything
            runs in a CUDA graph, so leave out ``+cudagraph``.
        opponents: executors that plans are only measured against; by default ``compile`` on
            CUDA if an executor compiles, and none on CPU.
        device: if given, a copy of the model and the inputs are moved there first.
        max_units: the most units that the model is cut into.
        budget: an executor is not used if its uniform result is farther from the float64
            reference than this many times the eager one's, and neither is such a plan.
        max_ulp: the same for the largest ULP distance of an output element.
        expected_calls: how often the plan will be called; first-call time divided by it counts
            as cost of an executor. Infinite: compiling is free.
        runs: medians of a measurement; the last one is fresh and interleaved.
        rounds: timed calls in a run.
        max_seconds: no segment is compiled after this time; the search ends with what it has.
        journal: file for what was measured; a search of the same model and options over the
            same file goes on from it, and Ctrl-C leaves it complete.
        progress: called with steps done, steps in all, and a text. One of the texts says about
            how long the search will take. By default they are shown on a terminal.
        compiling: context entered while executors are made; for machines shared by processes.
        measuring: context entered while the device is timed.

    Returns:
        The plan; its ``report`` holds every executor's time, the bounds, the other oracles'
        choices, the regret against the bound, and the fresh measurement.

    Raises:
        PlanError: too few runs for a verdict, no unit, no call expected, executors with
            cudagraph, or an error budget that no executor stays within.
        JournalError: the journal's folder is missing, or the file is something else.
        DeviceMissingError, MeasureError, ExecutorError: as from ``model_pair``.
    """
    # The other parameters are the fields of the options, name by name.
    given = locals()
    options = OracleOptions(**{f.name: given[f.name] for f in fields(OracleOptions)})
    model, arguments = on_device(model, positional(model, inputs), device)
    found = require_device(home(arguments))
    # Everything is checked before the journal of an earlier search is overwritten.
    options.check(options.names(found.type))
    check_inputs(model, arguments)
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_noise())
        if options.progress is None and sys.stderr is not None and sys.stderr.isatty():
            shown = stack.enter_context(Progress("looking for the fastest way", 0))
            options = replace(
                options,
                progress=lambda done, of, text: shown.tell(f"step {done} of {of}, {text}"),
            )
        return Plan(Search(model, arguments, found, options).run(), arguments)
