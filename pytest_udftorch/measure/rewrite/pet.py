# SPDX-License-Identifier: Apache-2.0
"""The backend ``udf_pet``: convolutions as faster ones that are right in part, and corrections.

``mutants`` makes other convolutions of the same elements. The box test names the boxes of the
output in which one is wrong, and a correction computes these anew. A mutant is kept where it and
its correction take less time than the convolution. ``batches`` are right everywhere.

Source: Wang et al., PET: Optimizing Tensor Programs with Partially Equivalent Transformations and
Automated Corrections, OSDI 2021.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.errors import EquivalenceError
from pytest_udftorch.measure.rewrite import graphs
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
    wrong_regions,
)
from pytest_udftorch.measure.rewrite.report import GraphReport
from pytest_udftorch.measure.rewrite.templates import Firing
from pytest_udftorch.measure.timing.timers import SyncTimer

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
        regions: which its correction computes.
        mutant_ns: median of the mutant alone.
        corrected_ns: with its correction.
        stock_ns: of the convolution.
        verdict: of the mutant with its correction, over the convolution.
    """

    name: str
    mutant: tuple[Any, ...]
    tried: int
    regions: tuple[Region, ...]
    mutant_ns: float
    corrected_ns: float
    stock_ns: float
    verdict: str

    def kept(self, gain: float) -> bool:
        """Whether it gains enough."""
        fast = self.stock_ns >= gain * self.corrected_ns
        return fast and (gain < 1 or self.verdict != "slower")


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
    known: dict[str, tuple[Mutant, tuple[Region, ...]]] = {}
    plain = (setting.stride, setting.padding, setting.dilation, setting.groups)
    for mutant in generated(*shapes, setting):
        if len(known) == _MEASURED:
            break
        deadline.check("convolutions")
        try:
            wrong = wrong_regions(mutant, *shapes, setting)
        except EquivalenceError:
            continue  # it suits smaller images alone
        whole = math.prod(setting.made(*shapes)[2:])
        if sum(math.prod(end - start for start, end in region) for region in wrong) > whole / 2:
            continue
        name = f"{mutant.name} {len(known) + 1}"
        known[name] = mutant, wrong
        calls[f"{name}, uncorrected"] = functools.partial(mutant, image, kernel, offset, setting)
        calls[name] = functools.partial(
            corrected, mutant.plain(), image, kernel, offset, plain, wrong
        )
    if not known:
        return None
    deadline.check("convolutions")
    limit = None if math.isinf(deadline.left()) else max(deadline.left(), 1e-9)
    timer = SyncTimer(image.device, runs=runs, rounds=3, warmup=2, gpu_state=False, seconds=limit)
    timing = timer.compare(calls).complete()
    best = min(known, key=lambda name: timing[name].median_ns)
    mutant, wrong = known[best]
    return Measured(
        mutant.name,
        mutant.plain(),
        len(known),
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
        if key not in self.known:
            if self.deadline.passed("convolutions"):
                return None
            image, kernel = (torch.randn(g.shape, dtype=g.dtype, device=g.device) for g in given)
            offset = None if bias is None else kernel.new_empty(kernel.shape[0]).normal_()
            try:
                self.known[key] = measured_mutant(
                    image, kernel, offset, setting, self.runs, self.deadline
                )
            except OutOfTime:
                return None
        best = self.known[key]
        if best is None:
            return None
        kept = best.kept(self.gain)
        self.report.notes.append(
            f"{node}: {best.name} {best.mutant_ns / 1000:,.0f} us, with its correction of "
            f"{len(best.regions)} regions {best.corrected_ns / 1000:,.0f} us, stock "
            f"{best.stock_ns / 1000:,.0f} us; {'kept' if kept else 'not kept'}, the fastest of "
            f"{best.tried} mutants"
        )
        plain = (setting.stride, setting.padding, setting.dilation, setting.groups)
        shapes = [list(g.shape) for g in given]
        measured = {**asdict(best), **asdict(setting), "image": shapes[0], "kernel": shapes[1]}
        self.report.details.append({"node": str(node), **measured, "kept": kept})
        return (best, x, w, bias, plain, best.regions) if kept else None

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
            limit = None if math.isinf(self.deadline.left()) else max(self.deadline.left(), 1e-9)
            timer = SyncTimer(
                like.device, runs=self.runs, rounds=3, warmup=2, gpu_state=False, seconds=limit
            )
            timing = timer.compare(calls).complete()
            own = timing["one"].median_ns
            self.known[key] = Measured(
                batch.name, (), 1, (), own, own, timing["stock"].median_ns,
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
        self.report.details.append({"node": names, **asdict(found), "kept": kept})
        return kept


OPTIONS: Final[dict[str, Any]] = {**COMMON, "runs": 7, "gain": 1.05}


def pet(
    module: fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Backend ``udf_pet``: convolutions by mutants with corrections, where these are faster.

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
        fired += [
            Firing(f"convolution {made[old.name]}", f"at {old.name}")
            for old, _ in graphs.replacing(graph.graph, make)
        ]
        return further(start, graph, fired)

    return compile_graph("udf_pet", rewriter, module, examples, terms_of(wanted))
