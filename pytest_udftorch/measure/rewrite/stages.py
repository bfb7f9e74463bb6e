# SPDX-License-Identifier: Apache-2.0
"""Chains of up to three linear operators of images as other chains, and as one operator.

A chain is a convolution, plain or transposed, an average, or zeros added to or cut from the edges,
one after the other. Moves lead from a chain to others: two stages become one convolution, two
change places, edges become padding, and a transposed convolution becomes a plain one whose channels
are the phases of its stride. All chains that a few moves reach are tried. The box test says where
one is wrong, and the stages of the original compute these places anew.

Source: Wang et al., PET: Optimizing Tensor Programs with Partially Equivalent Transformations and
Automated Corrections, OSDI 2021.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import torch
from torch.nn import functional as F

from pytest_udftorch.errors import EquivalenceError
from pytest_udftorch.measure.rewrite.boxes import Equivalence, equivalence
from pytest_udftorch.measure.rewrite.mutants import (
    CHANNELS,
    SHARE,
    Region,
    Setting,
    placed,
    regions,
)

#: A kernel or an offset: the number of a tensor, or a function of others and what it takes besides.
Operand: TypeAlias = "int | tuple[Any, ...] | None"
#: A chain has at most so many stages.
LENGTH: Final = 3
#: Chains that are tried, those with fewest moves first.
_TRIED: Final = 24
_AVERAGES: Final[dict[int, Callable[..., Any]]] = {
    1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d,
}  # fmt: skip
_TRANSPOSED: Final[dict[int, Callable[..., Any]]] = {
    1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d,
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """A linear operator of images.

    Attributes:
        kind: ``convolution``, ``transposed``, ``phases``, ``average`` or ``edges``.
        setting: stride, padding, dilation and groups.
        size: of the window; for ``edges`` none.
        kernel: of a convolution.
        offset: that is added to each channel of the result.
        edges: how many zeros are added before and behind each dimension, or, below 0, how many
            elements are cut off; for ``transposed`` and ``phases``, the rows that the result has
            beyond those that it needs.
    """

    kind: str
    setting: Setting
    size: tuple[int, ...] = ()
    kernel: Operand = None
    offset: Operand = None
    edges: tuple[tuple[int, int], ...] = ()

    @property
    def reaches(self) -> tuple[int, ...]:
        """How many elements of each dimension a window lies over."""
        pairs = zip(self.size, self.setting.dilation, strict=True)
        return tuple(d * (k - 1) + 1 for k, d in pairs)

    def run(self, x: Any, tensors: Sequence[Any]) -> Any:
        """Return its result, of images and the tensors that kernels and offsets are."""
        if self.kind == "edges":
            return F.pad(x, [n for pair in reversed(self.edges) for n in pair])
        s, rank = self.setting, len(self.setting.stride)
        if self.kind == "average":
            found = _AVERAGES[rank](x, self.size, s.stride, s.padding)
            return _offset(found, made(self.offset, tensors))
        w, b = (made(operand, tensors) for operand in (self.kernel, self.offset))
        if self.kind == "convolution":
            return s.stock(x, w, b)
        if self.kind == "phases":
            return _by_phases(x, w, b, self)
        more = tuple(high for _, high in self.edges)
        return _TRANSPOSED[rank](x, w, b, s.stride, s.padding, more, s.groups, s.dilation)


def _offset(x: Any, b: Any) -> Any:
    return x if b is None else x + b.reshape(-1, *(1,) * (x.dim() - 2))


def _spread(w: Any, steps: Sequence[int]) -> Any:
    """Return a kernel with zeros between its elements: a dilated one written out."""
    for dim, step in enumerate(steps, 2):
        if step > 1:
            size = w.shape[dim]
            w = F.pad(w.unsqueeze(dim + 1), [0, 0] * (w.dim() - dim - 1) + [0, step - 1])
            w = w.reshape(*w.shape[:dim], size * step, *w.shape[dim + 2 :])
            w = w.narrow(dim, 0, (size - 1) * step + 1)
    return w


def _followed(first: Any, second: Any, steps: Sequence[int], later: Sequence[int]) -> Any:
    """Return the kernel of a convolution that does what two do one after the other."""
    first, second = _spread(first, steps), _spread(second, later)
    rank = second.dim() - 2
    turned = second.flip(*range(2, second.dim()))
    whole = Setting((1,) * rank, tuple(n - 1 for n in second.shape[2:]), (1,) * rank)
    return whole.stock(first.transpose(0, 1), turned).transpose(0, 1)


def _meaning(like: Any, size: Sequence[int], channels: int) -> Any:
    """Return the kernel of a convolution that averages each channel."""
    # A one, c zeros, a one, ...: the matrix with ones on its diagonal, row after row.
    flat = F.pad(like.new_ones((channels, 1)), [0, channels]).reshape(-1)
    eye = flat.narrow(0, 0, channels * channels).reshape(channels, channels, *(1,) * len(size))
    return eye.expand(channels, channels, *size) / math.prod(size)


def _carried(offset: Any, second: Any, own: Any) -> Any:
    """Return the offset of two convolutions as one."""
    sums = second.flatten(2).sum(2)
    found = (sums * offset).sum(1)
    return found if own is None else found + own


def made(operand: Operand, tensors: Sequence[Any]) -> Any:
    """Return the tensor that an operand stands for."""
    if operand is None or isinstance(operand, int):
        return None if operand is None else tensors[operand]
    name, *given = operand
    if name == "followed":
        first, second, steps, later = given
        return _followed(made(first, tensors), made(second, tensors), steps, later)
    if name == "mean":
        like, size, dim = given
        kernel = made(like, tensors)
        return _meaning(kernel, size, kernel.shape[dim])
    if name == "phases":
        return _phases(made(given[0], tensors), given[1])
    offset, second, own = (made(o, tensors) for o in given)
    return _carried(offset, second, own)


def _phases(w: Any, stride: Sequence[int]) -> Any:
    """Return the kernel of a transposed convolution with the phases of its stride as outputs."""
    (inputs, outputs, *sizes), rank = w.shape, len(stride)
    # Zeros behind the last dimension first.
    pads = [(0, -k % s) for k, s in zip(sizes, stride, strict=True)]
    parts = F.pad(w, [n for pair in reversed(pads) for n in pair])
    steps = [n // s for n, s in zip(parts.shape[2:], stride, strict=True)]
    split = [n for pair in zip(steps, stride, strict=True) for n in pair]
    order = [1, *range(3, 3 + 2 * rank, 2), 0, *range(2, 2 + 2 * rank, 2)]
    parts = parts.reshape(inputs, outputs, *split).permute(order)
    parts = parts.reshape(outputs * math.prod(stride), inputs, *steps)
    return parts.flip(*range(2, 2 + rank))


def _by_phases(x: Any, w: Any, b: Any, stage: Stage) -> Any:
    """Return a transposed convolution by a plain one, whose channels become rows and columns."""
    stride, rank = stage.setting.stride, len(stage.setting.stride)
    plain = Setting((1,) * rank, tuple(n - 1 for n in w.shape[2:]), (1,) * rank)
    found = plain.stock(x, w)
    sizes = found.shape[2:]
    found = found.reshape(x.shape[0], -1, *stride, *sizes)
    turned = [n for d in range(rank) for n in (2 + rank + d, 2 + d)]
    found = found.permute(0, 1, *turned)
    found = found.reshape(*found.shape[:2], *(n * s for n, s in zip(sizes, stride, strict=True)))
    wanted = _size_behind(stage, x.shape[2:])
    for dim, (start, size) in enumerate(zip(stage.setting.padding, wanted, strict=True), 2):
        missing = start + size - found.shape[dim]
        if missing > 0:
            found = F.pad(found, [0, 0] * (found.dim() - dim - 1) + [0, missing])
        found = found.narrow(dim, start, size)
    return _offset(found.contiguous(), b)


Chain: TypeAlias = tuple[Stage, ...]


def run(chain: Chain, x: Any, tensors: Sequence[Any]) -> Any:
    """Return the result of a chain."""
    for stage in chain:
        x = stage.run(x, tensors)
    return x


def _merged(a: Stage, b: Stage) -> Iterator[tuple[Stage, ...]]:
    """Return one convolution in the place of two stages."""
    kinds = (a.kind, b.kind)
    if kinds.count("convolution") == 0 or not {*kinds} <= {"convolution", "average"}:
        return
    if a.setting.groups > 1 or b.setting.groups > 1:
        return
    first, second = a.kernel, b.kernel
    if a.kind == "average":
        first = ("mean", second, a.size, 1)
    if b.kind == "average":
        second = ("mean", first, b.size, 0)
    one, two = a.setting, b.setting
    later = tuple(d * s for d, s in zip(two.dilation, one.stride, strict=True))
    stride = tuple(s * t for s, t in zip(one.stride, two.stride, strict=True))
    padding = tuple(p + s * q for p, s, q in zip(one.padding, one.stride, two.padding, strict=True))
    size = tuple(n + d * (k - 1) for n, d, k in zip(a.reaches, later, b.size, strict=True))
    offset = b.offset
    if a.offset is not None:
        offset = ("carried", a.offset, second, b.offset)
    kernel = ("followed", first, second, one.dilation, later)
    setting = Setting(stride, padding, (1,) * len(stride))
    yield (Stage("convolution", setting, size, kernel, offset),)


def _swapped(a: Stage, b: Stage) -> Iterator[tuple[Stage, ...]]:
    """Return two stages in the other order; whether that is right, the tests say."""
    if {a.kind, b.kind} not in ({"convolution", "average"}, {"convolution", "edges"}):
        return
    yield (b, a)
    if a.kind == "average" and b.offset is not None:
        # Zeros around an image are averaged too, so that what is added comes last.
        yield (replace(b, offset=None), replace(a, offset=b.offset))


def _edged(a: Stage, b: Stage) -> Iterator[tuple[Stage, ...]]:
    """Return edges as padding, and the edges that a convolution need not compute."""
    if (a.kind, b.kind) == ("edges", "convolution"):
        widths = [low for low, high in a.edges if low == high >= 0]
        if len(widths) == len(a.edges):
            padding = tuple(p + w for p, w in zip(b.setting.padding, widths, strict=True))
            yield (replace(b, setting=replace(b.setting, padding=padding)),)
    cut = all(low <= 0 and high <= 0 for low, high in b.edges)
    if (a.kind, b.kind) == ("convolution", "edges") and cut:
        s = a.setting
        edges = tuple(
            (p + low * t, p + high * t)
            for p, t, (low, high) in zip(s.padding, s.stride, b.edges, strict=True)
        )
        inside = replace(a, setting=replace(s, padding=(0,) * len(edges)))
        yield (Stage("edges", replace(s, groups=1), (), edges=edges), inside)


def _phased(stage: Stage) -> Iterator[Stage]:
    plain = stage.setting.groups == 1 and set(stage.setting.dilation) == {1}
    if stage.kind == "transposed" and plain:
        yield replace(stage, kind="phases", kernel=("phases", stage.kernel, stage.setting.stride))


#: Name -> what it makes of two stages.
_PAIRS: Final[dict[str, Callable[[Stage, Stage], Iterator[tuple[Stage, ...]]]]] = {
    "merged": _merged,
    "swapped": _swapped,
    "edges moved": _edged,
}


def _steps(chain: Chain) -> Iterator[tuple[str, Chain]]:
    """Return the chains that one move leads to, each with its name."""
    for at, stage in enumerate(chain):
        for phased in _phased(stage):
            yield "by phases", (*chain[:at], phased, *chain[at + 1 :])
    for at, (name, move) in itertools.product(range(len(chain) - 1), _PAIRS.items()):
        for new in move(chain[at], chain[at + 1]):
            yield name, (*chain[:at], *new, *chain[at + 2 :])


def reached(chain: Chain) -> dict[Chain, tuple[str, ...]]:
    """Return the chains that moves lead to, each with the names of the moves."""
    found: dict[Chain, tuple[str, ...]] = {chain: ()}
    waiting = [chain]
    while waiting and len(found) <= _TRIED:
        now = waiting.pop(0)
        for name, new in _steps(now):
            if new not in found and len(found[now]) < LENGTH:
                found[new] = (*found[now], name)
                waiting.append(new)
    return {c: names for c, names in found.items() if names}


@dataclass(frozen=True)
class Problem:
    """A chain, the shape of its images, and those of its kernels and offsets."""

    chain: Chain
    image: tuple[int, ...]
    tensors: tuple[tuple[int, ...], ...]

    def few(self) -> Problem:
        """Return it with few images and channels, which are only added up."""
        grouped = any(stage.setting.groups > 1 for stage in self.chain)
        some = CHANNELS**2 if grouped else CHANNELS
        chain = tuple(
            replace(s, setting=replace(s.setting, groups=min(s.setting.groups, CHANNELS)))
            for s in self.chain
        )
        kernels: dict[Operand, int] = {s.kernel: s.setting.groups for s in chain}
        tensors = tuple(
            (some, some // kernels.get(n, 1), *shape[2:]) if len(shape) > 1 else (some,)
            for n, shape in enumerate(self.tensors)
        )
        image = (min(self.image[0], CHANNELS), some, *self.image[2:])
        return Problem(chain, image, tensors)

    def result(self) -> tuple[int, ...]:
        """Return the shape of the result.

        Raises:
            RuntimeError: the shapes do not fit.
        """
        with torch.device("meta"):
            given = [torch.empty(shape) for shape in (self.image, *self.tensors)]
            return tuple(run(self.chain, given[0], given[1:]).shape)


def _with_groups_of(chain: Chain, few: Chain) -> Chain:
    """Return a chain with as many groups as one with few has."""
    known: dict[Operand, int] = {s.kernel: s.setting.groups for s in few if s.kernel is not None}
    return tuple(
        replace(s, setting=replace(s.setting, groups=known.get(s.kernel, s.setting.groups)))
        for s in chain
    )


def judged(mutant: Chain, problem: Problem) -> Equivalence:
    """Return where a chain gives what another one gives, by the box test with few channels.

    Raises:
        EquivalenceError: it is no program of sums of products.
        RuntimeError, ValueError: its shapes do not fit.
    """
    few = problem.few()
    own = _with_groups_of(mutant, few.chain)
    return equivalence(
        lambda x, *t: run(few.chain, x, t), lambda x, *t: run(own, x, t), [few.image, *few.tensors]
    )


def right_share(mutant: Chain, problem: Problem) -> float:
    """Return in which part of its result a chain is right; 0 where its shapes do not fit."""
    few = problem.few()
    generator = torch.Generator().manual_seed(0)
    x, *tensors = (
        torch.randint(-9, 10, s, generator=generator).double() for s in (few.image, *few.tensors)
    )
    wanted = run(few.chain, x, tensors)
    try:
        found = run(_with_groups_of(mutant, few.chain), x, tensors)
    except (ValueError, RuntimeError):
        return 0.0
    if found.shape != wanted.shape:
        return 0.0
    # Averages divide, so that numbers that agree may differ in their last bits.
    return float(torch.isclose(found, wanted, rtol=1e-9, atol=1e-6).double().mean())


@dataclass(frozen=True)
class Other:
    """A chain that may take another's place.

    Attributes:
        names: of the moves that lead to it.
        chain: it.
        wrong: where it is wrong.
        needed: at how many positions the box test needs it to agree.
    """

    names: tuple[str, ...]
    chain: Chain
    wrong: tuple[Region, ...]
    needed: int

    @property
    def name(self) -> str:
        """What reports call it."""
        return ", ".join(self.names)


def _fits(chain: Chain) -> bool:
    """Whether the places where a mutant is wrong can be computed by a chain alone."""
    return all(stage.kind in ("convolution", "average", "edges") for stage in chain)


@functools.lru_cache(maxsize=256)
def generated(problem: Problem) -> tuple[Other, ...]:
    """Return the chains that are right in most places, those with the fewest wrong ones first."""
    found: list[tuple[int, Other]] = []
    seen = set()
    for mutant, names in reached(problem.chain).items():
        kind = tuple((s.kind, s.setting, s.size, s.edges, s.offset is None) for s in mutant)
        if kind in seen or right_share(mutant, problem) < SHARE:
            continue
        try:
            verdict = judged(mutant, problem)
        except EquivalenceError:
            continue
        wrong = regions(verdict.differing)
        whole = math.prod(problem.result()[2:])
        size = sum(math.prod(end - start for start, end in region) for region in wrong)
        if size <= (1 - SHARE) * whole and (not wrong or _fits(problem.chain)):
            seen.add(kind)
            found.append((size, Other(names, mutant, wrong, verdict.needed)))
    return tuple(other for _, other in sorted(found, key=lambda pair: pair[0]))


def region_of(chain: Chain, x: Any, tensors: Sequence[Any], region: Region) -> Any:
    """Compute a region of a chain's result alone."""
    sizes = [tuple(x.shape[2:])]
    for stage in chain:
        sizes.append(_size_behind(stage, sizes[-1]))
    # From the result back: what each stage reads, with the zeros around it.
    spans, read = list(region), []
    for stage, size in zip(reversed(chain), reversed(sizes[:-1]), strict=True):
        windows = list(_windows(stage, spans))
        pads = [(max(0, -a), max(0, b - n)) for (a, b), n in zip(windows, size, strict=True)]
        spans = [(max(0, a), min(b, n)) for (a, b), n in zip(windows, size, strict=True)]
        read.append(pads)
    for dim, (start, end) in enumerate(spans, 2):
        x = x.narrow(dim, start, end - start)
    for stage, pads in zip(chain, reversed(read), strict=True):
        x = F.pad(x, [n for pair in reversed(pads) for n in pair])
        if stage.kind != "edges":
            inside = replace(stage.setting, padding=(0,) * len(pads))
            x = replace(stage, setting=inside).run(x, tensors)
    return x


def _windows(stage: Stage, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Return what a stage reads, for each dimension, to compute a part of its result."""
    if stage.kind == "edges":
        yield from ((a - low, b - low) for (a, b), (low, _) in zip(spans, stage.edges, strict=True))
        return
    s = stage.setting
    for (a, b), t, p, n in zip(spans, s.stride, s.padding, stage.reaches, strict=True):
        yield a * t - p, (b - 1) * t - p + n


def _size_behind(stage: Stage, size: Sequence[int]) -> tuple[int, ...]:
    if stage.kind == "edges":
        return tuple(n + low + high for n, (low, high) in zip(size, stage.edges, strict=True))
    s = stage.setting
    rows = zip(size, s.padding, stage.reaches, s.stride, strict=True)
    if stage.kind in ("transposed", "phases"):
        more = (high for _, high in stage.edges)
        return tuple(
            (n - 1) * t - 2 * p + k + m for (n, p, k, t), m in zip(rows, more, strict=True)
        )
    return tuple((n + 2 * p - k) // t + 1 for n, p, k, t in rows)


def prepared(chain: Chain, tensors: Sequence[Any]) -> tuple[Chain, list[Any]]:
    """Return a chain whose kernels and offsets are computed, and these."""
    known: dict[Operand, int] = {}
    found: list[Any] = []

    def number(operand: Operand) -> Operand:
        if operand is not None and operand not in known:
            known[operand] = len(found)
            found.append(made(operand, tensors).contiguous())
        return None if operand is None else known[operand]

    ready = tuple(replace(s, kernel=number(s.kernel), offset=number(s.offset)) for s in chain)
    return ready, found


def parts_of(
    other: Other, chain: Chain, x: Any, kernels: Sequence[Any], tensors: Sequence[Any]
) -> tuple[Any, ...]:
    """Return the result of another chain, and what belongs where it is wrong.

    Args:
        other: the other chain.
        chain: the original.
        x: images.
        kernels: and offsets of the other chain.
        tensors: those of the original.
    """
    wrong = (region_of(chain, x, tensors, region) for region in other.wrong)
    return (run(other.chain, x, kernels), *wrong)


def corrected(
    other: Other, chain: Chain, x: Any, kernels: Sequence[Any], tensors: Sequence[Any]
) -> Any:
    """Return the result of a chain by another one, with its wrong regions computed anew."""
    found, *parts = parts_of(other, chain, x, kernels, tensors)
    return placed(found, other.wrong, *parts) if parts else found
