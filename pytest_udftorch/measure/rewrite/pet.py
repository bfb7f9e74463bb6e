# SPDX-License-Identifier: Apache-2.0
"""The backend ``udf_pet``: convolutions as faster ones that are right in part, and corrections.

A mutant computes another convolution of the same elements in another shape. The box test names the
boxes of the output in which it is wrong, and a correction computes these anew. A mutant is kept
where it and its correction take less time than the convolution.

Source: Wang et al., PET: Optimizing Tensor Programs with Partially Equivalent Transformations and
Automated Corrections, OSDI 2021.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import fx
from torch.nn import functional as F

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
from pytest_udftorch.measure.rewrite.boxes import Box, equivalence
from pytest_udftorch.measure.rewrite.deadline import NEVER, Deadline, OutOfTime
from pytest_udftorch.measure.rewrite.graphs import packet_name, value
from pytest_udftorch.measure.rewrite.report import GraphReport
from pytest_udftorch.measure.rewrite.templates import Firing
from pytest_udftorch.measure.timing.timers import SyncTimer

#: Rows and columns of an output: the first row, the one after the last, and the same of columns.
Region: TypeAlias = tuple[int, int, int, int]

#: The box test looks at so many channels: they are only added up.
_CHANNELS: Final = 2


@dataclass(frozen=True)
class Setting:
    """Stride, padding and dilation of a convolution, for rows and columns."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def stock(self, x: Any, w: Any, bias: Any = None) -> Any:
        """Return the convolution."""
        return F.conv2d(x, w, bias, self.stride, self.padding, self.dilation)


def side_by_side(x: Any, w: Any, bias: Any, setting: Setting) -> Any:
    """Convolve a batch as one wide image: wrong where a window reaches into the next image."""
    count, channels, rows, columns = x.shape
    wide = x.permute(1, 2, 0, 3).reshape(1, channels, rows, count * columns)
    found = setting.stock(wide, w, bias)
    _, outputs, height, width = found.shape
    return found.reshape(outputs, height, count, width // count).permute(2, 0, 1, 3)


def by_parts(x: Any, w: Any, bias: Any, setting: Setting) -> Any:
    """Convolve the images of every d-th row and column without dilation."""
    d = setting.dilation[0]
    count, channels, rows, columns = x.shape
    below, right = -rows % d, -columns % d
    high, wide = (rows + below) // d, (columns + right) // d
    padded = F.pad(x, (0, right, 0, below))
    parts = padded.reshape(count, channels, high, d, wide, d).permute(3, 5, 0, 1, 2, 4)
    found = F.conv2d(
        parts.reshape(d * d * count, channels, high, wide),
        w, bias, 1, (setting.padding[0] // d, setting.padding[1] // d),
    )  # fmt: skip
    together = found.reshape(d, d, count, w.shape[0], high, wide).permute(2, 3, 4, 0, 5, 1)
    whole = together.reshape(count, w.shape[0], high * d, wide * d)
    return whole[:, :, :rows, :columns]


def by_phases(x: Any, w: Any, bias: Any, setting: Setting) -> Any:
    """Convolve with a stride s as without: each s-th row and column is a channel of its own.

    The kernel is taken apart alike, filled up with zeros.
    """
    s = setting.stride[0]
    count: int = x.shape[0]
    channels: int = x.shape[1]
    outputs: int = w.shape[0]
    pads: list[int] = []
    more: list[int] = []
    kernels: list[int] = []
    for dim in (1, 0):
        size, kernel, padding = x.shape[2 + dim], w.shape[2 + dim], setting.padding[dim]
        made = (size + 2 * padding - kernel) // s + 1
        kernels.insert(0, -(-kernel // s))
        whole = s * (made + kernels[0] - 1)
        # Rows that no window reaches are left out.
        x = x.narrow(2 + dim, 0, min(size, whole - padding))
        pads += [padding, max(0, whole - padding - size)]
        more += [0, s * kernels[0] - kernel]
    phases, filled = F.pad(x, pads), F.pad(w, more)
    high, wide = phases.shape[2] // s, phases.shape[3] // s
    phases = phases.reshape(count, channels, high, s, wide, s).permute(0, 1, 3, 5, 2, 4)
    parts = filled.reshape(outputs, channels, kernels[0], s, kernels[1], s).permute(
        0, 1, 3, 5, 2, 4
    )
    return F.conv2d(
        phases.reshape(count, channels * s * s, high, wide),
        parts.reshape(outputs, channels * s * s, *kernels),
        bias,
    )


Mutant: TypeAlias = Callable[[Any, Any, Any, Setting], Any]


def mutants(x: Sequence[int], w: Sequence[int], setting: Setting) -> list[str]:
    """Return the mutants whose output has the shape of the convolution's."""
    found: list[str] = []
    keeps = tuple(d * (k - 1) for d, k in zip(setting.dilation, w[2:], strict=True)) == tuple(
        2 * p for p in setting.padding
    )
    if setting.stride == (1, 1) and keeps:
        d = setting.dilation
        if x[0] > 1:
            found.append("side by side")
        if d[0] == d[1] > 1 and all(p % d[0] == 0 for p in setting.padding):
            found.append("by parts")
    s = setting.stride
    if s[0] == s[1] > 1 and setting.dilation == (1, 1) and min(w[2:]) > 1:
        found.append("by phases")
    return found


def regions(boxes: Iterable[Box]) -> tuple[Region, ...]:
    """Return the rows and columns to correct, in all images, as few rectangles as simply found."""
    rows: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for box in boxes:
        rows.setdefault(box.ranges[3], set()).add(box.ranges[2])
    found: list[Region] = []
    for (left, right), spans in rows.items():
        top, bottom = -1, -1
        for start, end in sorted(spans):
            if start > bottom:
                if bottom > top:
                    found.append((top, bottom, left, right))
                top = start
            bottom = max(bottom, end)
        found.append((top, bottom, left, right))
    return tuple(sorted(found))


def region_of(x: Any, w: Any, bias: Any, setting: Setting, region: Region) -> Any:
    """Compute some rows and columns of a convolution alone."""
    first = region[0::2]
    last = (region[1] - 1, region[3] - 1)
    pads: list[int] = []
    for dim in (1, 0):
        size, kernel = x.shape[2 + dim], w.shape[2 + dim]
        start = first[dim] * setting.stride[dim] - setting.padding[dim]
        end = last[dim] * setting.stride[dim] - setting.padding[dim]
        end += setting.dilation[dim] * (kernel - 1) + 1
        pads += [max(0, -start), max(0, end - size)]
        x = x.narrow(2 + dim, max(0, start), min(end, size) - max(0, start))
    return F.conv2d(F.pad(x, pads), w, bias, setting.stride, 0, setting.dilation)


#: The mutants by name, as graphs hold them.
MUTANTS: Final[dict[str, Mutant]] = {
    "side by side": side_by_side,
    "by parts": by_parts,
    "by phases": by_phases,
}


def corrected(
    name: str, x: Any, w: Any, bias: Any, setting: Sequence[Any], wrong: Sequence[Any]
) -> Any:
    """Return a mutant's result with its wrong regions computed anew.

    Args:
        name: of the mutant.
        x: images.
        w: the kernel.
        bias: of each channel of the output, or None.
        setting: stride, padding and dilation.
        wrong: the regions.
    """
    own = Setting(*(tuple(part) for part in setting))
    found = MUTANTS[name](x, w, bias, own).contiguous()
    for top, bottom, left, right in wrong:
        region = region_of(x, w, bias, own, (top, bottom, left, right))
        found[:, :, top:bottom, left:right] = region
    return found


def wrong_regions(
    mutant: Mutant, x: Sequence[int], w: Sequence[int], setting: Setting
) -> tuple[Region, ...]:
    """Return where a mutant is wrong, by the box test, with few channels."""
    some = min(x[1], _CHANNELS)
    shapes = [(x[0], some, *x[2:]), (min(w[0], _CHANNELS), some, *w[2:])]
    found = equivalence(
        lambda a, b: setting.stock(a, b), lambda a, b: mutant(a, b, None, setting), shapes
    )
    return regions(found.differing)


def _convolution(node: fx.Node) -> tuple[tuple[Any, ...], Setting] | None:
    """Return the arguments and the setting of a convolution of images without groups."""
    args: tuple[Any, ...] = node.args
    if packet_name(node) != "convolution" or args[6] or args[8] != 1 or len(args[3]) != 2:
        return None
    if not value(node).is_contiguous():
        return None
    return args[:3], Setting(*(tuple(a) for a in args[3:6]))


@dataclass(frozen=True)
class Measured:
    """The fastest mutant of a convolution, beside it.

    Attributes:
        name: of the mutant.
        regions: which its correction computes.
        mutant_ns: median of the mutant alone.
        corrected_ns: with its correction.
        stock_ns: of the convolution.
        verdict: of the mutant with its correction, over the convolution.
    """

    name: str
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
    shapes = [tuple(image.shape), tuple(kernel.shape)]
    known = mutants(shapes[0], shapes[1], setting)
    if not known:
        return None
    calls: dict[str, Callable[[], Any]] = {"stock": lambda: setting.stock(image, kernel, offset)}
    wrong: dict[str, tuple[Region, ...]] = {}
    plain = (setting.stride, setting.padding, setting.dilation)
    for name in known:
        deadline.check("convolutions")
        wrong[name] = wrong_regions(MUTANTS[name], shapes[0], shapes[1], setting)
        tensors = (image, kernel, offset)
        calls[f"{name}, uncorrected"] = functools.partial(MUTANTS[name], *tensors, setting)
        calls[name] = functools.partial(corrected, name, *tensors, plain, wrong[name])
    deadline.check("convolutions")
    limit = None if math.isinf(deadline.left()) else max(deadline.left(), 1e-9)
    timer = SyncTimer(image.device, runs=runs, rounds=3, warmup=2, gpu_state=False, seconds=limit)
    timing = timer.compare(calls).complete()
    best = min(known, key=lambda name: timing[name].median_ns)
    return Measured(
        best,
        wrong[best],
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
            offset = None if bias is None else torch.randn_like(kernel[:, 0, 0, 0])
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
            f"{best.stock_ns / 1000:,.0f} us; {'kept' if kept else 'not kept'}"
        )
        plain = (setting.stride, setting.padding, setting.dilation)
        shapes = [list(g.shape) for g in given]
        measured = {**asdict(best), **asdict(setting), "image": shapes[0], "kernel": shapes[1]}
        self.report.details.append({"node": str(node), **measured, "kept": kept})
        return (best.name, x, w, bias, plain, best.regions) if kept else None


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
            made[node.name] = chosen[0]
            return node.graph.call_function(corrected, chosen)

        fired = [
            Firing(f"convolution {made[old.name]}", f"at {old.name}")
            for old, _ in graphs.replacing(graph.graph, make)
        ]
        return further(start, graph, fired)

    return compile_graph("udf_pet", rewriter, module, examples, terms_of(wanted))
