# SPDX-License-Identifier: Apache-2.0
"""The cheapest graph that substitutions reach: TASO's backtracking search, by measured costs."""

from __future__ import annotations

import contextlib
import copy
import heapq
import itertools
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base.journal import Journal, Words
from pytest_udftorch.measure.planning.identity import device_name
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.deadline import NEVER, Deadline, OutOfTime
from pytest_udftorch.measure.rewrite.taso.matcher import apply, matches
from pytest_udftorch.measure.rewrite.taso.rules import Rule
from pytest_udftorch.measure.rewrite.templates import Firing
from pytest_udftorch.measure.timing.timers import SyncTimer

#: A graph may cost so many times the best one's cost and still be rewritten further: the
#: paper's factor.
ALPHA: Final = 1.05


def signature(node: fx.Node) -> str:
    """Return what decides what a call costs: operator, shapes, layouts and other arguments."""

    def shown(argument: Any) -> Any:
        tensor = graphs.value(argument)
        if not isinstance(tensor, torch.Tensor):
            return "?"
        return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.device}"

    return f"{node.target} {fx.map_arg((node.args, node.kwargs), lambda n: shown(n))}"


_ROW: Final = shapes.record(
    {**dict.fromkeys(("call", "device", "where"), shapes.text()), "ns": shapes.number()},
    closed=True,
)


class _Times(Journal):
    """Times of calls, on any machine."""

    kind = "times"
    words = Words(parts="times", option='options={"journal": ...}')

    def __init__(self, path: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        super().__init__(path, {})

    def read(self, payload: dict[str, Any]) -> None:
        _ROW(payload, "the line")
        self.rows.append(payload)


@dataclass
class Costs:
    """Times of single calls, each measured once, with all threads of torch.

    Attributes:
        runs: measurements of a call.
        journal: a file of measured times, to which each new one is added; those of other machines,
            versions of torch and numbers of threads are left out.
        known: signature -> ns.
        deadline: after which none is measured.
    """

    runs: int = 5
    journal: Path | None = None
    known: dict[str, float] = field(default_factory=dict)
    deadline: Deadline = NEVER

    def __post_init__(self) -> None:
        self._times = None if self.journal is None else _Times(self.journal)
        for row in () if self._times is None else self._times.rows:
            with contextlib.suppress(RuntimeError):  # this machine has no such device
                if row["where"] == self._where(row["device"]):
                    self.known[row["call"]] = float(row["ns"])

    @staticmethod
    def _where(device: str) -> str:
        name = device_name(torch.device(device))
        return f"torch {torch.__version__}, {torch.get_num_threads()} threads, {name}"

    def of_node(self, node: fx.Node) -> float:
        """Return the time of a node's call in ns; 0 for views.

        Raises:
            OutOfTime: it is not known, and the deadline has passed.
        """
        if graphs.is_view(node):
            return 0.0
        key = signature(node)
        if key not in self.known:
            self.deadline.check("the search among graphs")
            tensors = [graphs.value(n) for n in node.all_input_nodes]
            devices = (t.device for t in tensors if isinstance(t, torch.Tensor))
            home = next(devices, torch.device("cpu"))
            self.known[key] = self._measured(node, home)
            if self._times is not None:
                row = {"call": key, "ns": self.known[key], "device": str(home)}
                self._times.add({**row, "where": self._where(str(home))})
        return self.known[key]

    def _measured(self, node: fx.Node, home: torch.device) -> float:
        target: Any = node.target

        def example(argument: fx.Node) -> Any:
            tensor = graphs.value(argument)
            if not isinstance(tensor, torch.Tensor):
                raise RuntimeError(f"{argument} has several results")
            made = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
            return made.normal_() if tensor.is_floating_point() else made.zero_()

        try:
            args, kwargs = fx.map_arg((node.args, node.kwargs), example)
            timer = SyncTimer(home, runs=self.runs, rounds=3, warmup=2)
            return float(timer.time(lambda: target(*args, **kwargs)).median_ns)
        except Exception:
            return 0.0  # alike in all graphs: rules do not touch it

    def of_graph(self, module: fx.GraphModule, held: Collection[int]) -> float:
        """Return the time of a graph's calls in ns, without what depends on weights alone."""
        constant = graphs.constant_nodes(module.graph, held)
        return sum(self.of_node(n) for n in graphs.calls(module.graph) if n not in constant)


@dataclass
class Found:
    """What a search found.

    Attributes:
        module: the cheapest graph.
        fired: the rules that lead to it.
        cost_ns: its cost; the cost of the graph as it was.
        visited: graphs whose matches were tried.
        seconds: the time of the search.
    """

    module: fx.GraphModule
    fired: list[Firing]
    cost_ns: tuple[float, float]
    visited: int
    seconds: float


def backtracking(
    module: fx.GraphModule,
    rules: Sequence[Rule],
    held: Collection[int],
    costs: Costs,
    limits: Mapping[str, float],
) -> Found:
    """Search graphs in the order of their costs, each one substitution away from another.

    Args:
        module: the graph, with fake tensors.
        rules: the substitutions.
        held: the numbers of the inputs that are weights.
        costs: of single calls.
        limits: ``graphs``, the most graphs to look at.

    The search ends at the deadline of the costs, with the best graph so far.
    """
    began = time.monotonic()
    try:
        first = costs.of_graph(module, held)
    except OutOfTime:
        return Found(module, [], (math.nan, math.nan), 0, time.monotonic() - began)
    best: tuple[float, fx.GraphModule, list[Firing]] = (first, module, [])
    ticket = itertools.count()
    queue: list[tuple[float, int, fx.GraphModule, list[Firing]]] = [
        (first, next(ticket), module, [])
    ]
    seen = {str(module.graph)}
    visited = 0
    given = list(rules)
    # A search that is cut short says so through the deadline.
    with contextlib.suppress(OutOfTime):
        while queue and visited < limits["graphs"]:
            _, _, current, fired = heapq.heappop(queue)
            visited += 1
            for number, found in enumerate(matches(current.graph, given)):
                costs.deadline.check("the search among graphs")
                candidate = copy.deepcopy(current)
                same = next(itertools.islice(matches(candidate.graph, given), number, None))
                if not apply(same):
                    continue
                text = _shape_of(candidate)
                if text in seen:
                    continue
                seen.add(text)
                cost = costs.of_graph(candidate, held)
                step = Firing(found.rule.name, f"at {found.node.name}")
                if cost < best[0]:
                    best = cost, candidate, [*fired, step]
                if cost < ALPHA * best[0]:
                    heapq.heappush(queue, (cost, next(ticket), candidate, [*fired, step]))
    return Found(best[1], best[2], (best[0], first), visited, time.monotonic() - began)


def _shape_of(module: fx.GraphModule) -> str:
    """Return a text that is the same for graphs that differ in names and order alone."""
    numbers: dict[fx.Node, str] = {}

    def text(node: fx.Node) -> str:
        if node not in numbers:
            if node.op == "placeholder":
                numbers[node] = node.name
            else:
                inside = fx.map_arg((node.args, node.kwargs), lambda n: f"<{text(n)}>")
                numbers[node] = str(hash(f"{node.target} {inside}"))
        return numbers[node]

    ends = [n for n in graphs.outputs(module.graph) if isinstance(n, fx.Node)]
    return " ".join(map(text, ends))
