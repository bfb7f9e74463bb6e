# SPDX-License-Identifier: Apache-2.0
"""The backend ``udf_pet``: linear operators as faster ones that are right in part, and corrections.

``mutants`` makes other convolutions of the same elements, ``stages`` other chains of up to three
operators, and ``programs`` other programs where products are among them. The box test names the
boxes of the output in which one is wrong, and a correction computes these anew. A mutant is kept
where it and its correction take less time than what it replaces. ``batches`` and ``programs`` are
right everywhere.

Source: Wang et al., PET: Optimizing Tensor Programs with Partially Equivalent Transformations and
Automated Corrections, OSDI 2021.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.errors import EquivalenceError
from pytest_udftorch.measure.rewrite import graphs, programs, stages
from pytest_udftorch.measure.rewrite.backends import (
    COMMON,
    Candidate,
    compile_graph,
    further,
    settings,
    simplified,
    terms_of,
)
from pytest_udftorch.measure.rewrite.batches import Batch, batches
from pytest_udftorch.measure.rewrite.deadline import NEVER, Deadline, OutOfTime
from pytest_udftorch.measure.rewrite.graphs import packet_name, value
from pytest_udftorch.measure.rewrite.mutants import (
    Mutant,
    Region,
    Setting,
    corrected,
    generated,
    judged,
    regions,
)
from pytest_udftorch.measure.rewrite.programs import FoundTree, found_trees
from pytest_udftorch.measure.rewrite.report import GraphReport
from pytest_udftorch.measure.rewrite.stage_nodes import Found, found_chains
from pytest_udftorch.measure.rewrite.templates import Firing
from pytest_udftorch.measure.timing.timers import Comparison, SyncTimer

#: The most mutants of a convolution that are measured, those that are right in most places first.
_MEASURED: Final = 6


def _convolution(node: fx.Node) -> tuple[tuple[Any, ...], Setting] | None:
    """Return the arguments and the setting of a convolution of images."""
    args: tuple[Any, ...] = node.args
    if packet_name(node) != "convolution" or args[6] or not value(node).is_contiguous():
        return None
    rank = value(args[1]).dim() - 2
    stride, padding, dilation = (tuple(p) * (rank if len(p) == 1 else 1) for p in args[3:6])
    return args[:3], Setting(stride, padding, dilation, args[8])


@dataclass(frozen=True)
class Measured:
    """The fastest mutant of a convolution, beside it.

    Attributes:
        name: of the mutant.
        mutant: it, as tuples of numbers.
        tried: mutants that were measured.
        needed: at how many positions the box test needs programs to agree.
        regions: which its correction computes.
        mutant_ns: median of the mutant alone.
        corrected_ns: with its correction.
        stock_ns: of the convolution.
        verdict: of the mutant with its correction, over the convolution.
    """

    name: str
    mutant: tuple[Any, ...]
    tried: int
    needed: int
    regions: tuple[Region, ...]
    mutant_ns: float
    corrected_ns: float
    stock_ns: float
    verdict: str

    def kept(self, gain: float) -> bool:
        """Whether it gains enough."""
        fast = self.stock_ns >= gain * self.corrected_ns
        return fast and (gain < 1 or self.verdict != "slower")


def _timed(
    calls: dict[str, Callable[[], Any]], device: torch.device, runs: int, deadline: Deadline
) -> Comparison:
    """Return the times of calls that take turns, until the deadline."""
    limit = None if math.isinf(deadline.left()) else max(deadline.left(), 1e-9)
    timer = SyncTimer(device, runs=runs, rounds=3, warmup=2, gpu_state=False, seconds=limit)
    return timer.compare(calls).complete()


def measured_mutant(
    image: Any, kernel: Any, offset: Any, setting: Setting, runs: int, deadline: Deadline = NEVER
) -> Measured | None:
    """Return the fastest mutant of a convolution, measured; None if there is none.

    Args:
        image: batch x channels x rows x columns.
        kernel: outputs x channels x rows x columns.
        offset: of each output, or None.
        setting: of the convolution.
        runs: measurements of each.
        deadline: after which nothing is begun.

    Raises:
        OutOfTime: the deadline has passed.
    """
    shapes = tuple(image.shape), tuple(kernel.shape)
    calls: dict[str, Callable[[], Any]] = {"stock": lambda: setting.stock(image, kernel, offset)}
    known: dict[str, tuple[Mutant, tuple[Region, ...], int]] = {}
    plain = (setting.stride, setting.padding, setting.dilation, setting.groups)
    for mutant in generated(*shapes, setting):
        if len(known) == _MEASURED:
            break
        deadline.check("convolutions")
        try:
            verdict = judged(mutant, *shapes, setting)
        except EquivalenceError:
            continue  # it suits smaller images alone
        wrong = regions(verdict.differing)
        whole = math.prod(setting.made(*shapes)[2:])
        if sum(math.prod(end - start for start, end in region) for region in wrong) > whole / 2:
            continue
        name = f"{mutant.name} {len(known) + 1}"
        known[name] = mutant, wrong, verdict.needed
        calls[f"{name}, uncorrected"] = functools.partial(mutant, image, kernel, offset, setting)
        calls[name] = functools.partial(
            corrected, mutant.plain(), image, kernel, offset, plain, wrong
        )
    if not known:
        return None
    deadline.check("convolutions")
    timing = _timed(calls, image.device, runs, deadline)
    best = min(known, key=lambda name: timing[name].median_ns)
    mutant, wrong, needed = known[best]
    return Measured(
        mutant.name,
        mutant.plain(),
        len(known),
        needed,
        wrong,
        timing[f"{best}, uncorrected"].median_ns,
        timing[best].median_ns,
        timing["stock"].median_ns,
        timing.verdict(best, "stock"),
    )


class _Search:
    """The mutants of a graph's convolutions; equal convolutions are measured once."""

    def __init__(self, report: GraphReport, runs: int, gain: float, deadline: Deadline) -> None:
        self.report, self.runs, self.gain, self.deadline = report, runs, gain, deadline
        self.known: dict[tuple[Any, ...], Measured | None] = {}

    def chosen(self, node: fx.Node) -> tuple[Any, ...] | None:
        """Return the arguments of ``corrected`` that replace a node; None for the original."""
        found = _convolution(node)
        if found is None:
            return None
        (x, w, bias), setting = found
        given = [value(x), value(w)]
        kind = [(tuple(g.shape), g.dtype, g.device) for g in given]
        key = (*kind, bias is None, setting)

        def measured() -> Measured | None:
            image, kernel = (torch.randn(g.shape, dtype=g.dtype, device=g.device) for g in given)
            offset = None if bias is None else kernel.new_empty(kernel.shape[0]).normal_()
            return measured_mutant(image, kernel, offset, setting, self.runs, self.deadline)

        best = self._once(key, "convolutions", measured)
        if best is None:
            return None
        kept = best.kept(self.gain)
        self._note(node, best, kept)
        plain = (setting.stride, setting.padding, setting.dilation, setting.groups)
        shapes = [list(g.shape) for g in given]
        figures = {**asdict(best), **asdict(setting), "image": shapes[0], "kernel": shapes[1]}
        rule = f"convolution {best.name}"
        self.report.details.append({"node": str(node), "rule": rule, **figures, "kept": kept})
        return (best, x, w, bias, plain, best.regions) if kept else None

    def _once(
        self, key: tuple[Any, ...], what: str, measure: Callable[[], Measured | None]
    ) -> Measured | None:
        """Return what was measured for a key, now or before; None also if there is no time."""
        if key not in self.known:
            if self.deadline.passed(what):
                return None
            try:
                self.known[key] = measure()
            except OutOfTime:
                return None
        return self.known[key]

    def _note(self, node: fx.Node, best: Measured, kept: bool) -> None:
        self.report.notes.append(
            f"{node}: {best.name} {best.mutant_ns / 1000:,.0f} us, with its correction of "
            f"{len(best.regions)} regions {best.corrected_ns / 1000:,.0f} us, stock "
            f"{best.stock_ns / 1000:,.0f} us; {'kept' if kept else 'not kept'}, the fastest of "
            f"{best.tried} mutants"
        )

    def chained(self, found: Found) -> stages.Other | None:
        """Return the chain that takes another's place, or None; equal ones are measured once."""
        problem, like = found.problem(), value(found.node)
        key = ("chain", problem, like.dtype, like.device)
        best = self._once(key, "chains", lambda: self._fastest(problem, like))
        shapes = {"image": list(problem.image), "kernels": [*map(list, problem.tensors)]}
        other: stages.Other | None = self._other(found.node, "chain", best, shapes)
        return other

    def programmed(self, found: FoundTree) -> programs.Program | None:
        """Return the program that takes a tree's place, or None; equal ones are measured once."""
        best = self._once(found.key(), "programs", lambda: self._fastest_program(found))
        shapes = {"inputs": [*map(list, found.tree.shapes)]}
        other: programs.Program | None = self._other(found.node, "program", best, shapes)
        return other

    def _other(
        self, node: fx.Node, kind: str, best: Measured | None, shapes: Mapping[str, Any]
    ) -> Any:
        """Return what takes a node's place if it gains enough, and say so."""
        if best is None:
            return None
        kept = best.kept(self.gain)
        self._note(node, best, kept)
        plain = {k: v for k, v in asdict(best).items() if k != "mutant"}
        rule = f"{kind} {best.name}"
        self.report.details.append(
            {"node": str(node), "rule": rule, **plain, **shapes, "kept": kept}
        )
        return best.mutant[0] if kept else None

    def _fastest(self, problem: stages.Problem, like: torch.Tensor) -> Measured | None:
        """Return the fastest chain in the place of another one, measured."""
        x, *tensors = (
            torch.randn(shape, dtype=like.dtype, device=like.device)
            for shape in (problem.image, *problem.tensors)
        )
        chain = problem.chain
        calls: dict[str, Callable[[], Any]] = {"stock": lambda: stages.run(chain, x, tensors)}
        known: dict[str, Any] = {}
        for other in stages.generated(problem)[:_MEASURED]:
            self.deadline.check("chains")
            name = f"{other.name} {len(known) + 1}"
            known[name] = other
            ready, kernels = stages.prepared(other.chain, tensors)
            calls[f"{name}, uncorrected"] = functools.partial(stages.run, ready, x, kernels)
            calls[name] = functools.partial(
                stages.corrected, replace(other, chain=ready), chain, x, kernels, tensors
            )
        return self._best(calls, known, x.device)

    def _fastest_program(self, found: FoundTree) -> Measured | None:
        """Return the fastest program in the place of a tree, measured."""
        fakes = map(value, found.inputs)
        tensors = [
            torch.empty_strided(f.shape, f.stride(), dtype=f.dtype, device=f.device).normal_()
            for f in fakes
        ]
        stock = functools.partial(programs.contiguous, found.tree.term, tensors)
        calls: dict[str, Callable[[], Any]] = {"stock": stock}
        known: dict[str, Any] = {}
        for other in programs.generated(found.tree):
            self.deadline.check("programs")
            name = f"{other.name} {len(known) + 1}"
            known[name] = other
            given = list(tensors)
            term = programs.prepared(other.term, found.tree, given)
            calls[name] = functools.partial(programs.contiguous, term, given)
        return self._best(calls, known, tensors[0].device)

    def _best(
        self, calls: dict[str, Callable[[], Any]], known: Mapping[str, Any], device: torch.device
    ) -> Measured | None:
        """Return the fastest of some calls by name; None if there are none."""
        if not known:
            return None
        timing = _timed(calls, device, self.runs, self.deadline)
        best = min(known, key=lambda name: timing[name].median_ns)
        other, alone = known[best], f"{best}, uncorrected"
        return Measured(
            other.name, (other,), len(known), other.needed, other.wrong,
            timing[alone if alone in calls else best].median_ns, timing[best].median_ns,
            timing["stock"].median_ns, timing.verdict(best, "stock"),
        )  # fmt: skip

    def joined(self, batch: Batch) -> bool:
        """Whether calls are to be one; equal batches are measured once."""
        key = ("batch", *batch.key())
        if key not in self.known:
            if self.deadline.passed("batches") or not batch.holds():
                return False
            before, after, shapes = batch.programs()
            like = value(batch.nodes[0])
            tensors = [torch.randn(s, dtype=like.dtype, device=like.device) for s in shapes]
            calls = {"stock": lambda: before(*tensors), "one": lambda: after(*tensors)}
            timing = _timed(calls, like.device, self.runs, self.deadline)
            own = timing["one"].median_ns
            self.known[key] = Measured(
                batch.name, (), 1, 0, (), own, own, timing["stock"].median_ns,
                timing.verdict("one", "stock"),
            )  # fmt: skip
        found = self.known[key]
        assert found is not None
        kept = found.kept(self.gain)
        names = ", ".join(map(str, batch.nodes))
        self.report.notes.append(
            f"{names}: {found.name} {found.mutant_ns / 1000:,.0f} us, stock "
            f"{found.stock_ns / 1000:,.0f} us; {'kept' if kept else 'not kept'}"
        )
        rule = {"node": names, "rule": found.name}
        self.report.details.append({**rule, **asdict(found), "kept": kept})
        return kept


OPTIONS: Final[dict[str, Any]] = {**COMMON, "runs": 7, "gain": 1.05}


def pet(
    module: fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Backend ``udf_pet``: linear operators by mutants with corrections, where these are faster.

    Options are ``runs``, the measurements of each; ``gain``, how many times as fast a mutant, and
    the whole graph, has to be (0 keeps all, to study them); ``seconds``, after which the search
    ends; and ``strict``. The templates that ``udf_templates`` applies are applied first.
    """
    wanted = settings("udf_pet", options, OPTIONS)

    def rewriter(
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        held: Collection[int],
        report: GraphReport,
        deadline: Deadline,
    ) -> Candidate | None:
        start = simplified(graph, held, deadline)
        graph = copy.deepcopy(start.module)
        made: dict[str, str] = {}
        search = _Search(report, wanted["runs"], wanted["gain"], deadline)

        def make(node: fx.Node) -> fx.Node | None:
            chosen = search.chosen(node)
            if chosen is None:
                return None
            best, *rest = chosen
            made[node.name] = best.name
            return node.graph.call_function(corrected, (best.mutant, *rest))

        fired = []
        for batch in list(batches(graph.graph)):
            if search.joined(batch):
                batch.replace()
                fired.append(Firing(batch.name, f"of {', '.join(map(str, batch.nodes))}"))
        for chain in list(found_chains(graph.graph)):
            other = search.chained(chain)
            if other is not None:
                problem = chain.problem()
                where = f"{len(problem.chain)} operators, at {chain.node}"
                fired.append(Firing(f"chain {other.name}", where))
                chain.replace(other, problem.chain)
        constant = graphs.constant_nodes(graph.graph, held)
        for tree in list(found_trees(graph.graph, constant)):
            program = search.programmed(tree)
            if program is not None:
                fired.append(Firing(f"program {program.name}", f"at {tree.node}"))
                tree.replace(program.term)
        # What was traced anew has fake tensors of another kind than the inputs.
        graphs.propagate(graph)
        fired += [
            Firing(f"convolution {made[old.name]}", f"at {old.name}")
            for old, _ in graphs.replacing(graph.graph, make)
        ]
        return further(start, graph, fired)

    return compile_graph("udf_pet", rewriter, module, examples, terms_of(wanted))
