# SPDX-License-Identifier: Apache-2.0
"""Convolutions as other convolutions of the same elements: enumerated, and judged by the box test.

A mutant moves factors of the image's dimensions into others, convolves with another stride,
padding and dilation, and moves the factors back. A factor that goes into the channels is added up
there, so the kernel's elements move alike, filled up with zeros. All combinations are tried on a
small image; those of the right shape that are right in most places are mutants. Where one is wrong
on the image at hand, the box test says.

Source: Wang et al., PET: Optimizing Tensor Programs with Partially Equivalent Transformations and
Automated Corrections, OSDI 2021.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Final, TypeAlias

import torch
from torch.nn import functional as F

from pytest_udftorch.errors import EquivalenceError
from pytest_udftorch.measure.rewrite.boxes import Box, Equivalence, equivalence

#: Positions of an output: for each dimension of the images the first, and the one after the last.
Region: TypeAlias = tuple[tuple[int, int], ...]

#: The box test looks at so many channels of each group: they are only added up.
CHANNELS: Final = 2
#: A mutant is right in this part of the output at least.
SHARE: Final = 0.5
#: Dimension of the batch, and of the channels.
BATCH: Final = 0
_CHANNEL: Final = 1
_CALLS: Final[dict[int, Callable[..., Any]]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class Setting:
    """Stride, padding and dilation of a convolution, for each dimension of the images; groups."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def stock(self, x: Any, w: Any, bias: Any = None) -> Any:
        """Return the convolution."""
        call = _CALLS[len(self.stride)]
        return call(x, w, bias, self.stride, self.padding, self.dilation, self.groups)

    def made(self, x: Sequence[int], w: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the convolution of an image and a kernel of these shapes."""
        sizes = (
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(
                x[2:], w[2:], self.stride, self.padding, self.dilation, strict=True
            )
        )
        return (x[0], w[0], *sizes)


@dataclass(frozen=True)
class Move:
    """A factor of one dimension that becomes a part of another.

    Attributes:
        source: the dimension that it is taken from.
        target: the one that it goes to.
        factor: its size; 0 is the whole dimension.
        slow: whether it counts the blocks of the source, and not the elements in a block.
        outer: whether it counts blocks in the target.
    """

    source: int
    target: int
    factor: int
    slow: bool
    outer: bool

    def _orders(self, rank: int) -> tuple[list[Any], list[Any]]:
        """Return the dimensions with the factor at the source, and with it at the target."""
        orders = []
        for place, first in ((self.source, self.slow), (self.target, self.outer)):
            order: list[Any] = list(range(rank))
            order.insert(place if first else place + 1, "factor")
            orders.append(order)
        return orders[0], orders[1]

    def _moved(self, x: Any, factor: int, back: bool) -> Any:
        before, after = self._orders(x.dim())
        taken, given = (self.target, self.source) if back else (self.source, self.target)
        if back:
            before, after = after, before
        sizes: dict[Any, int] = dict(enumerate(x.shape))
        if sizes[taken] % factor:
            raise ValueError(f"{sizes[taken]} positions have no factor {factor}")
        sizes[taken] //= factor
        sizes["factor"] = factor
        split = x.reshape([sizes[d] for d in before])
        turned = split.permute([before.index(d) for d in after])
        sizes[given] *= factor
        return turned.reshape([sizes[d] for d in range(x.dim())])

    def there(self, x: Any) -> Any:
        """Move the factor; zeros fill the source up where it has no such factor."""
        factor = self.factor or x.shape[self.source]
        missing = -x.shape[self.source] % factor
        if missing:
            pads = [0] * (2 * (x.dim() - self.source))
            pads[-1] = missing
            x = F.pad(x, pads)
        return self._moved(x, factor, back=False)

    def back(self, y: Any, whole: int) -> Any:
        """Move the factor back; ``whole`` is the size of a source that was moved altogether."""
        return self._moved(y, self.factor or whole, back=True)


@dataclass(frozen=True)
class Mutant:
    """A convolution by another one.

    Attributes:
        moves: of the image, in order.
        padded: whether the image is padded before them.
        stride: of the other convolution.
        padding: of it.
        dilation: of it.
    """

    moves: tuple[Move, ...]
    padded: bool
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def plain(self) -> tuple[Any, ...]:
        """Return it as tuples of numbers, as graphs hold it."""
        return astuple(self)

    @classmethod
    def of(cls, plain: Sequence[Any]) -> Mutant:
        """Return a mutant from tuples of numbers."""
        moves, padded, *rest = plain
        return cls(tuple(Move(*move) for move in moves), padded, *map(tuple, rest))

    @property
    def name(self) -> str:
        """What reports call it."""
        sources = {m.source for m in self.moves}
        targets = {m.target for m in self.moves}
        if sources == {BATCH}:
            last = 1 + len(self.stride)
            return "side by side" if targets == {last} else "one below the other"
        if targets == {_CHANNEL}:
            return "by phases"
        if targets == {BATCH}:
            return "by parts" if len(self.moves) == len(self.stride) else "by parts of a dimension"
        return "folded"

    def other(self, x: Any, w: Any, setting: Setting) -> tuple[Any, Any]:
        """Return the image and the kernel of the other convolution."""
        if self.padded:
            x = F.pad(x, [p for size in reversed(setting.padding) for p in (size, size)])
        for move in self.moves:
            x = move.there(x)
            if move.target == _CHANNEL:
                w = move.there(w)
        return x, w

    def __call__(self, x: Any, w: Any, bias: Any, setting: Setting) -> Any:
        """Return the result, which may be wrong in places.

        Raises:
            ValueError: the other convolution does not lead back to the shape of the result.
            RuntimeError: torch does not take its shapes.
        """
        shape = setting.made(x.shape, w.shape)
        image, kernel = self.other(x, w, setting)
        own = Setting(self.stride, self.padding, self.dilation, setting.groups)
        found = own.stock(image, kernel, bias)
        for move in reversed(self.moves):
            if move.target != _CHANNEL:
                found = move.back(found, x.shape[move.source])
        if any(has < size for has, size in zip(found.shape, shape, strict=True)):
            raise ValueError(f"the result is {tuple(found.shape)}, and not {shape}")
        for dim, size in enumerate(shape):
            if found.shape[dim] != size:
                found = found.narrow(dim, 0, size)
        return found


def _moves(batch: int, setting: Setting) -> Iterator[tuple[Move, ...]]:
    """Return the moves to try: each alone, and the same one of all dimensions of the images."""
    rank = len(setting.stride)
    images = range(2, 2 + rank)
    ways = list(itertools.product((False, True), repeat=2))
    if batch > 1:
        for target, (slow, outer) in itertools.product(images, ways):
            yield (Move(BATCH, target, 0, slow, outer),)
    targets = (BATCH, _CHANNEL) if setting.groups == 1 else (BATCH,)
    for target, (slow, outer) in itertools.product(targets, ways):
        for factors in (setting.stride, setting.dilation):
            found = [Move(d, target, factors[d - 2], slow, outer) for d in images
                     if factors[d - 2] > 1]  # fmt: skip
            yield from ((move,) for move in found)
            if len(found) > 1:
                yield tuple(found)


def _tried(batch: int, setting: Setting) -> Iterator[Mutant]:
    """Return the combinations to try."""
    strides = dict.fromkeys((setting.stride, (1,) * len(setting.stride)))
    dilations = dict.fromkeys((setting.dilation, (1,) * len(setting.dilation)))
    divided = tuple(p // d for p, d in zip(setting.padding, setting.dilation, strict=True))
    none = (0,) * len(setting.padding)
    paddings = dict.fromkeys(((False, setting.padding), (False, divided), (True, none)))
    for moves in dict.fromkeys(_moves(batch, setting)):
        for stride, dilation, (padded, padding) in itertools.product(strides, dilations, paddings):
            yield Mutant(moves, padded, stride, padding, dilation)


def _small(x: Sequence[int], w: Sequence[int], setting: Setting) -> list[tuple[int, ...]]:
    """Return shapes of a smaller image and kernel on which a mutant is wrong alike."""
    sizes = []
    for size, k, s, p, d in zip(
        x[2:], w[2:], setting.stride, setting.padding, setting.dilation, strict=True
    ):
        # Three windows beside each other, no multiple of the stride or of the dilation.
        wide = 3 * max(s, d) * k + 1
        sizes.append(size if size <= wide + 2 * p else wide - (wide - size) % math.lcm(s, d))
    return _few_channels([(min(x[0], 3), x[1], *sizes), tuple(w)], setting.groups)


def _few_channels(shapes: Sequence[Sequence[int]], groups: int) -> list[tuple[int, ...]]:
    """Return shapes with few channels."""
    (batch, _, *sizes), (outputs, inputs, *kernel) = shapes
    some, made = min(inputs, CHANNELS), min(outputs // groups, CHANNELS)
    few = min(groups, CHANNELS)
    return [(batch, some * few, *sizes), (made * few, some, *kernel)]


def judged(
    mutant: Callable[..., Any], x: Sequence[int], w: Sequence[int], setting: Setting
) -> Equivalence:
    """Return where a mutant is right, by the box test with few channels.

    Raises:
        EquivalenceError: it is no program of sums of products.
        ValueError, RuntimeError: its shapes do not fit.
    """
    few = replace(setting, groups=min(setting.groups, CHANNELS))
    shapes = _few_channels([x, w], setting.groups)
    return equivalence(few.stock, lambda a, b: mutant(a, b, None, few), shapes)


def right_share(
    mutant: Callable[..., Any], x: Sequence[int], w: Sequence[int], setting: Setting
) -> float:
    """Return in which part of its result a mutant is right; 0 where its shapes do not fit."""
    generator = torch.Generator().manual_seed(0)
    image, kernel = (torch.randint(-9, 10, s, generator=generator).double() for s in (x, w))
    try:
        found = mutant(image, kernel, None, setting)
    except (ValueError, RuntimeError):
        return 0.0
    wanted = setting.stock(image, kernel)
    if found.shape != wanted.shape:
        return 0.0
    return float((found == wanted).double().mean())


@functools.lru_cache(maxsize=256)
def generated(x: tuple[int, ...], w: tuple[int, ...], setting: Setting) -> tuple[Mutant, ...]:
    """Return the mutants of a convolution, those that are right in most places first.

    Of those that convolve images and kernels of the same shapes, the one that is right in the
    largest part is enough.

    Args:
        x: the shape of the image: batch, channels, and one to three dimensions.
        w: the shape of the kernel.
        setting: of the convolution.
    """
    image, kernel = _small(x, w, setting)
    few = replace(setting, groups=min(setting.groups, CHANNELS))
    best: dict[Any, tuple[float, Mutant]] = {}
    for mutant in _tried(x[0], setting):
        share = right_share(mutant, image, kernel, few)
        if share < SHARE:
            continue
        shapes = (
            tuple(t.shape) for t in mutant.other(torch.empty(image), torch.empty(kernel), few)
        )
        key = (*shapes, mutant.stride, mutant.padding, mutant.dilation)
        if key not in best or share > best[key][0]:
            best[key] = share, mutant
    order = sorted(best.values(), key=lambda found: -found[0])
    return tuple(mutant for share, mutant in order if _confirmed(mutant, image, kernel, few))


def _confirmed(mutant: Mutant, x: Sequence[int], w: Sequence[int], setting: Setting) -> bool:
    """Whether the box test, too, finds a mutant right in most places."""
    try:
        found = judged(mutant, x, w, setting)
    except EquivalenceError:
        return False
    wrong = sum(box.positions for box in found.differing)
    return wrong <= (1 - SHARE) * found.compared


def regions(boxes: Iterable[Box]) -> tuple[Region, ...]:
    """Return what to correct, in all images and channels, as few regions as simply found."""
    found = {tuple(box.ranges[2:]) for box in boxes}
    rank = len(next(iter(found), ()))
    for dim in range(rank):
        lines: dict[Any, list[tuple[int, int]]] = {}
        for region in found:
            lines.setdefault((region[:dim], region[dim + 1 :]), []).append(region[dim])
        found = {
            (*before, span, *behind)
            for (before, behind), spans in lines.items()
            for span in _joined(spans)
        }
    return tuple(sorted(found))


def _joined(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Return spans in order; those that touch are one."""
    low = high = -1
    for start, end in sorted(spans):
        if start > high:
            if high > low:
                yield low, high
            low = start
        high = max(high, end)
    yield low, high


def window_of(x: Any, w: Any, setting: Setting, region: Region) -> Any:
    """Return what a convolution reads to compute a region, with the zeros around the images."""
    pads: list[int] = []
    for dim in reversed(range(len(region))):
        first, last = region[dim][0], region[dim][1] - 1
        size = x.shape[2 + dim]
        start = first * setting.stride[dim] - setting.padding[dim]
        end = last * setting.stride[dim] - setting.padding[dim]
        end += setting.dilation[dim] * (w.shape[2 + dim] - 1) + 1
        pads += [max(0, -start), max(0, end - size)]
        x = x.narrow(2 + dim, max(0, start), min(end, size) - max(0, start))
    return F.pad(x, pads)


def computed_regions(
    x: Any, w: Any, bias: Any, setting: Setting, wrong: Sequence[Region]
) -> list[Any]:
    """Compute regions of a convolution alone, those of one size by one call."""
    inside = replace(setting, padding=(0,) * len(setting.padding))
    sizes: dict[Any, list[int]] = {}
    for number, region in enumerate(wrong):
        sizes.setdefault(tuple(end - start for start, end in region), []).append(number)
    found: list[Any] = [None] * len(wrong)
    for numbers in sizes.values():
        windows = [window_of(x, w, setting, wrong[n]) for n in numbers]
        together = inside.stock(torch.cat(windows) if len(windows) > 1 else windows[0], w, bias)
        for n, part in zip(numbers, together.split(x.shape[0]), strict=True):
            found[n] = part
    return found


def wrong_regions(
    mutant: Callable[..., Any], x: Sequence[int], w: Sequence[int], setting: Setting
) -> tuple[Region, ...]:
    """Return where a mutant is wrong on an image at hand, by the box test."""
    return regions(judged(mutant, x, w, setting).differing)


def placed(found: Any, wrong: Sequence[Any], *parts: Any) -> Any:
    """Write the regions that a correction has computed into a result, and return it."""
    found = found.contiguous()
    for region, part in zip(wrong, parts, strict=True):
        found[(slice(None), slice(None), *(slice(*span) for span in region))] = part
    return found


def corrected(
    mutant: Sequence[Any], x: Any, w: Any, bias: Any, setting: Sequence[Any], wrong: Sequence[Any]
) -> Any:
    """Return a mutant's result with its wrong regions computed anew.

    Args:
        mutant: as tuples of numbers.
        x: images.
        w: the kernel.
        bias: of each channel of the output, or None.
        setting: stride, padding, dilation and groups.
        wrong: the regions.
    """
    stride, padding, dilation = map(tuple, setting[:3])
    own = Setting(stride, padding, dilation, setting[3])
    found = Mutant.of(mutant)(x, w, bias, own)
    plain = [tuple(map(tuple, region)) for region in wrong]
    return placed(found, plain, *computed_regions(x, w, bias, own, plain))
