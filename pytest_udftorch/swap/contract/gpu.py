# SPDX-License-Identifier: Apache-2.0
"""Sums and products of docs/reproduce/contract.md on a GPU: the kernels of ``triton_kernels``."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pytest_udftorch.swap.contract import cuda_exact, launches
from pytest_udftorch.swap.contract.cuda_sums import ROW, log2, sums
from pytest_udftorch.swap.contract.launches import Launch, gluon, launch
from pytest_udftorch.swap.operators.tensors import alike

#: Products of one chunk are accumulated one after the other.
CHUNK: Final = 64

#: Factors of a product that a program holds at once along k, and how many steps ahead it loads.
_STEP: Final = 32
_STAGES: Final = 2

#: Programs that fill a GPU; a product with fewer tiles is split along k.
_PROGRAMS: Final = 256

#: Parts of k have at least so many levels of chunks, and of so many the kernel in Gluon makes no
#: parts: these take another launch.
_PART: Final = 3
_UNSPLIT: Final = 4

#: Programs of products that a multiprocessor has registers for.
_OF_PROCESSOR: Final = 3


class Tile(NamedTuple):
    """How a program of the kernel in Gluon is laid out.

    Attributes:
        side: rows and columns of results.
        warps: of the program.
        resident: how many programs a multiprocessor holds.
    """

    side: int
    warps: int
    resident: int


#: Tiles for many results and for few; registers of a thread, how many steps a program holds, and
#: sums of chunks that wait in shared memory.
_TILES: Final = (Tile(64, 4, 3), Tile(32, 2, 6))
_REGISTERS: Final = 168
_HELD: Final = 3
_SLOTS: Final = 1

#: GPUs of this generation copy to shared memory while they compute.
_AMPERE: Final = 8

#: Fewer rows or columns than this leave most of a tile empty.
_LEAST: Final = 17

#: The longest row whose norm a program holds.
LONGEST: Final = 1 << ROW

#: Counters of Philox that a program of random numbers takes; each gives four.
_QUADS: Final = 512

#: Numbers of a channel that a program holds, as a power of two.
_CHANNEL: Final = 14

#: Elements of a program that maps them, and the most programs that share a tensor of a list.
_BLOCK: Final = 1024
_OF_TENSOR: Final = 64

#: A negative control changes the length of chunks here.
_chunk = CHUNK


@functools.cache
def _resident(device: Any) -> int:
    """Return how many programs of products a GPU runs at once."""
    import torch

    processors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * _OF_PROCESSOR


def _held(n: int) -> tuple[int, int]:
    """Return the logarithm of the length of rows, and how many of them a program holds."""
    log = log2(n)
    return log, 1 << max(0, ROW - log)


def _channel_held(samples: int, n: int) -> tuple[dict[str, int], int] | None:
    """Return how a program holds all numbers of a channel: the kernel's constants and its warps.

    None if there are more than ``_CHANNEL`` of them.
    """
    constants = {"SAMPLES": log2(samples), "LOG": log2(n)}
    size = sum(constants.values())
    return None if size > _CHANNEL else (constants, 1 << max(0, min(4, size - 9)))


class Plan(NamedTuple):
    """How programs share a product.

    Attributes:
        splits: in how many parts of 2^LEVELS chunks it is cut along k.
        programs: how many.
        constants: of the kernel.
        stages: how many steps ahead a program loads.
        room: of the sums that wait, in elements.
    """

    splits: int
    programs: int
    constants: dict[str, Any]
    stages: int
    room: int


def _split(tiles: int, k: int, unsplit: int) -> tuple[int, int]:
    """Return of how many levels of chunks the parts of k are, and how many parts there are.

    Args:
        tiles: of results.
        k: how many terms.
        unsplit: so many levels are not split.
    """
    levels = log2(-(-k // _chunk))
    if levels > unsplit:
        while levels > _PART and tiles * -(-k // (_chunk << levels)) < _PROGRAMS:
            levels -= 1
    return levels, -(-k // (_chunk << levels))


def planned(m: int, n: int, k: int, batches: int, device: Any) -> Plan:
    """Return how to compute so many products of m times n results over k."""
    enough = _resident(device) // _OF_PROCESSOR
    for side in (64, 32):
        rows, columns = (min(side, max(16, 1 << log2(size))) for size in (m, n))
        tiles = batches * -(-m // rows) * -(-n // columns)
        if _fill(tiles, k, enough):
            break
    levels, splits = _split(tiles, k, _PART)
    constants = {
        "LEVELS": levels, "CHUNK": _chunk, "ROWS": rows, "COLUMNS": columns, "STEP": _STEP,
        "WHOLE": k % _STEP == 0,
    }  # fmt: skip
    programs = min(tiles * splits, _resident(device))
    return Plan(splits, programs, constants, _STAGES, programs * levels * rows * columns)


def _fill(tiles: int, k: int, enough: int) -> bool:
    """Tell whether so many tiles are enough programs, in as many parts of k as are worth it.

    More parts cost another launch, for little.
    """
    return tiles * max(1, -(-k // (_chunk << _PART))) >= enough


@functools.cache
def _copies(device: Any) -> bool:
    """Tell whether a GPU copies asynchronously, and Triton has the words of ``gluon_products``."""
    import torch

    capable = torch.cuda.get_device_capability(device)[0] >= _AMPERE
    return capable and gluon("gluon_products") is not None


class Factor(NamedTuple):
    """How a factor of a product lies in memory.

    Attributes:
        batch: how far apart matrices are.
        across: how far apart rows are, or columns of the right factor.
        along: how far apart neighbours in k are.
        is_aligned: whether it begins at a multiple of 16 bytes.
    """

    batch: int
    across: int
    along: int
    is_aligned: bool

    def words(self, side: str, count: int) -> dict[str, bool]:
        """Return what the kernel in Gluon is told of a factor of so many rows."""
        near, far = (self.along, self.across) if self.along == 1 else (self.across, self.along)
        wide = self.is_aligned and near == 1 and far % 4 == self.batch % 4 == 0
        # Of rows that lie beside each other, those beyond the last begin anew.
        wide &= self.along == 1 or count % 4 == 0
        return {f"{side}_ALONG": self.along == 1, f"{side}_WIDE": wide}


@functools.lru_cache(maxsize=8192)
def _product_launch(
    shape: tuple[int, ...], k: int, batches: int, factors: tuple[Factor, ...], biased: bool,
    device: Any, chunk: int,
) -> tuple[Launch, int, int]:  # fmt: skip
    """Return the launch of a product, in how many parts of k, and the room of sums that wait.

    A launch is of tensors that are there or not, and of one chunk: hence the last arguments.
    """
    m, n = shape[-2:]
    a, b = factors
    strides = (a.batch, a.across, a.along, b.batch, b.along, b.across)
    if min(m, n) < _LEAST or not _copies(device):
        plan = planned(m, n, k, batches, device)
        tiled = m % plan.constants["ROWS"] == 0 and n % plan.constants["COLUMNS"] == 0
        numbers = (m, n, k, batches, plan.splits, *strides)
        constants = {**plan.constants, "TILED": tiled}
        made = Launch("products", plan.programs, device, numbers, constants, 4, plan.stages)
        return made, plan.splits, plan.room
    for tile in _TILES:
        tiles = batches * -(-m // tile.side) * -(-n // tile.side)
        if _fill(tiles, k, _PROGRAMS):
            break
    levels, splits = _split(tiles, k, _UNSPLIT)
    programs = min(tiles * splits, cuda_exact.processors(device) * tile.resident)
    constants = {
        "LEVELS": levels, "CHUNK": chunk, "ROWS": tile.side, "COLUMNS": tile.side, "STEP": _STEP,
        "STAGES": _HELD, "SLOTS": min(levels, _SLOTS), "WARPS": tile.warps,
        **a.words("A", m), **b.words("B", n), "WHOLE": k % _STEP == 0,
        "TILED": m % tile.side == n % tile.side == 0,
    }  # fmt: skip
    made = Launch("copied_products", programs, device, (m, n, k, batches, splits, *strides),
                  constants, tile.warps, registers=_REGISTERS)  # fmt: skip
    return made, splits, programs * levels * tile.side**2


@functools.lru_cache(maxsize=256)
def _table(
    rows: tuple[tuple[int, ...], ...], bits: tuple[int, ...] | None, device: Any, stream: int
) -> Any:
    """Return a table of the kernel ``lists``, which was copied to the GPU on a stream."""
    import torch

    numbers = (0,) * len(rows) if bits is None else bits
    whole = [(*row, number) for row, number in zip(rows, numbers, strict=True)]
    made = torch.tensor(whole, dtype=torch.int64, pin_memory=device.type == "cuda")
    return made.to(device, non_blocking=True)


def _aligned(x: Any) -> Any:
    """Return a part of a tensor in memory of its own if it begins where no tensor of torch does."""
    return x.clone() if x.storage_offset() * x.element_size() % 16 else x


def _named(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


class GpuContract:
    """Sums and products of float32 tensors on GPUs, and products of those in bfloat16."""

    def mm(self, a: Any, b: Any, bias: Any = None) -> Any:
        """Return the product in float32 of two matrices with any strides.

        Args:
            a: float32 or bfloat16.
            b: like ``a``.
            bias: a dense number in float32 for each column, which is added to it, or None.
        """
        if cuda_exact.takes(a):
            return cuda_exact.mm(a, b, bias, wide=True)
        return self._product(a, b, (a.shape[0], b.shape[1]), bias)

    def products(self, a: Any, b: Any) -> Any:
        """Return the products of each two matrices of two batches, as ``mm`` does."""
        if cuda_exact.takes(a):
            return cuda_exact.product(a, b, wide=True)
        return self._product(a, b, (len(a), a.shape[1], b.shape[2]))

    def weighted(self, w: Any, v: Any) -> Any:
        """Return sums of rows of values in bfloat16 by weights, as the CPU's contract does.

        Args:
            w: (batches, m, k) in float32, with any strides.
            v: (batches, k, n) in bfloat16, with any strides.
        """
        return cuda_exact.weighted(w, v)

    def _product(self, a: Any, b: Any, shape: tuple[int, ...], bias: Any = None) -> Any:
        batches, k = shape[:-2], a.shape[-1]
        if not k or not a.numel() * b.numel():
            c = a.new_zeros(shape)
            return c if bias is None else c.add_(bias)
        factors = tuple(
            Factor(
                x.stride(0) if batches else 0, x.stride(-2), x.stride(-1), x.data_ptr() % 16 == 0
            )
            for x in (a, b.mT)
        )
        made, splits, room = _product_launch(
            shape, k, math.prod(batches), factors, bias is not None, a.device, _chunk
        )
        c = a.new_empty(shape if splits == 1 else (splits, *shape))
        made(a, b, c, a.new_empty(room) if room else c, bias if splits == 1 else None)
        if splits == 1:
            return c
        found = self.sums(c, 0)
        return found if bias is None else found.add_(bias)

    def sums(self, x: Any, dim: int) -> Any:
        """Return the sums over one dimension, which the result lacks."""
        return sums(x, dim)

    def prefixes(self, x: Any, dim: int) -> Any:
        """Return for each place along a dimension the sum of what stands up to there.

        A place adds up the whole blocks below it, of which each is a power of two, from the
        smallest on.
        """
        import torch

        sums = x.movedim(dim, 0).contiguous()
        n = len(sums)
        count = torch.arange(1, n + 1, device=x.device).view(-1, *(1,) * (x.dim() - 1))
        found = torch.full_like(sums, -0.0)
        for level in range(n.bit_length()):
            has = (count >> level) & 1 == 1
            at = ((count >> level) - 1).clamp_(min=0).view(-1)
            found = torch.where(has, sums[at.clamp_(max=len(sums) - 1)] + found, found)
            pairs = len(sums) // 2
            if not pairs:
                break
            sums = sums[0 : 2 * pairs : 2] + sums[1 : 2 * pairs : 2]
        return found.movedim(0, dim).contiguous()

    def scatter(self, y: Any, rows: Any, x: Any, *, each: int = 1) -> Any:
        """Add to each row of ``y`` the sum of the rows of ``x`` that belong to it.

        Args:
            y: a dense matrix, which is changed.
            rows: for each row of ``x`` the row of ``y`` that it is added to.
            x: a matrix.
            each: so many rows of ``x`` in succession belong to different rows of ``y``, and
                stand at one place in the order.

        Returns:
            ``y``.
        """
        import torch

        if not x.numel():
            return y
        named, terms = torch.sort(rows, stable=True)
        x = x[terms]
        place = terms // each if each > 1 else terms
        n, inner = x.shape
        # At which bit a term joins the one before it; 63 if that belongs to another row.
        apart = place[1:] ^ place[:-1]
        bits = torch.full((n,), 63, dtype=torch.int32, device=x.device)
        levels = log2(-(-len(rows) // each))
        # A power of two has an exponent that is its number of digits.
        join = torch.frexp(apart.double()).exponent.sub_(1).clamp_(min=0)
        bits[1:] = torch.where(named[1:] == named[:-1], join, 63)
        columns = 1 << min(log2(inner), 7)
        for level in range(levels):
            launch(
                "joins", n * -(-inner // columns), (x, bits, named, place), (n, inner, level),
                {"COLUMNS": columns}, 1,
            )  # fmt: skip
        # The sum of a row stands in its first term. It is read by an index: torch writes by an
        # index with index_put_, whose kernel calls this.
        here = torch.arange(len(y), device=x.device)
        first = torch.searchsorted(named, here).clamp_(max=n - 1)
        has = named.index_select(0, first) == here
        return y.copy_(torch.where(has[:, None], y + x.index_select(0, first), y))

    def chains(self, x: Any, dim: int, counts: Any, places: Any, weights: Any) -> Any:
        """Return chains of fused multiply-adds over places of one dimension.

        Args:
            x: a tensor.
            dim: the dimension, in which the result has as many places as ``counts``.
            counts: how many terms each place of the result has.
            places: the places of the first terms, in the next row those of the second ones, ...
            weights: their factors.
        """
        import torch

        shape = (-1, *(1,) * (x.dim() - dim - 1))
        found = x.new_zeros(*x.shape[:dim], len(counts), *x.shape[dim + 1 :])
        for number, (at, weight) in enumerate(zip(places, weights, strict=True)):
            value, factor = x.index_select(dim, at), weight.view(shape)
            if number:
                value = self.elements("addcmul", (found, value, factor), 1.0)
            else:
                value = value * factor
            found = torch.where((counts > number).view(shape), value, found)
        return found

    def roots(self, x: Any, *, out: Any = None) -> Any:
        """Return the correctly rounded square roots of a tensor."""
        return self.elements("root", (x,), 0.0, out=out)

    def elements(self, kind: str, given: Sequence[Any], number: float, *, out: Any = None) -> Any:
        """Map the elements of tensors, which are broadcast, as the kernel of this name does.

        Args:
            kind: what ``triton_kernels.elements`` does.
            given: one to three tensors of one dtype: float32, or one of 16 bits, each of whose
                results is rounded once.
            number: a scalar.
            out: where the result goes to; it may be one of the tensors. None makes a tensor.
        """
        import torch

        if not alike(given):
            untyped: Any = torch
            shape = untyped.broadcast_shapes(*(t.shape for t in given))
            given = [t.expand(shape).contiguous() for t in given]
        y = torch.empty_like(given[0]) if out is None or not alike([given[0], out]) else out
        if y.numel():
            x = (*given, None, None)[:3]
            launch(
                "elements", -(-y.numel() // _BLOCK), (*x, y), (y.numel(), float(number)),
                {"KIND": kind, "DTYPE": _named(y), "BLOCK": _BLOCK}, 4,
            )  # fmt: skip
        return y if out is None or y is out else out.copy_(y)

    def lists(self, kind: str, given: Sequence[Sequence[Any]], numbers: Sequence[float],
              into: Sequence[Any]) -> None:  # fmt: skip
        """Map the elements of lists of tensors, as the kernel of ``elements`` does, in one launch.

        Args:
            kind: what ``triton_kernels.elements`` does.
            given: for each result one to three dense tensors that are alike, all of a dtype.
            numbers: for each result a scalar.
            into: the results, alike; they may be the first tensors, but share no memory.
        """
        import torch

        rows = []
        for tensors, y in zip(given, into, strict=True):
            places = [t.data_ptr() for t in tensors]
            rows.append((*places, *(0,) * (3 - len(places)), y.data_ptr(), y.numel()))
        # Zeros are told apart by their bits.
        same = numbers[0] != 0 and all(number == numbers[0] for number in numbers)
        bits = None
        if not same:
            bits = tuple(torch.tensor(numbers, dtype=torch.float32).view(torch.int32).tolist())
        most = max(row[-1] for row in rows)
        programs = min(_OF_TENSOR, max(1, -(-most // _BLOCK)))
        stream = launches.stream(into[0].device.index)
        table = _table(tuple(rows), bits, into[0].device, stream)
        launch(
            "lists", len(rows) * programs, (table,), (len(rows), programs, float(numbers[0])),
            {"SAME": same, "KIND": kind, "DTYPE": _named(into[0]), "BLOCK": _BLOCK}, 4,
        )  # fmt: skip

    def row_parts(self, kind: str, x: Any, g: Any = None, *, out: Any = None) -> Any:
        """Return what the kernel of this name does with the rows of dense tensors.

        Args:
            kind: what it does.
            x: of which the last dimension has at most ``LONGEST`` elements.
            g: like ``x``, or None.
            out: where the result goes to, like ``x``; None makes a tensor.
        """
        import torch

        n = x.shape[-1]
        rows, (log, lanes) = x.numel() // n, _held(n)
        y = torch.empty_like(x) if out is None else out
        launch(
            "row_parts", -(-rows // lanes), (x, g, y), (rows, n),
            {"KIND": kind, "LANES": lanes, "LOG": log}, 4,
        )  # fmt: skip
        return y

    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
        """Return normalized rows, their means and reciprocal deviations.

        Args:
            x: a dense matrix with rows of at most ``LONGEST`` elements.
            weight: dense, of a row's length, or None.
            bias: as the weight.
            eps: is added to variances.
        """
        import torch

        rows, n = x.shape
        y, mean, rstd = torch.empty_like(x), x.new_empty(rows), x.new_empty(rows)
        log, lanes = _held(n)
        launch(
            "layer_norm", -(-rows // lanes), (x, weight, bias, y, mean, rstd),
            (rows, n, float(n), float(eps)), {"LANES": lanes, "LOG": log}, 4,
        )  # fmt: skip
        return y, mean, rstd

    def layer_norm_backward(
        self, x: Any, grad: Any, weight: Any, mean: Any, rstd: Any, y: Any, products: Any
    ) -> None:
        """Put the gradient of rows into ``y``, and that of the weight's products.

        Args:
            x: a dense matrix with rows of at most ``LONGEST`` elements.
            grad: the gradient of the result, like ``x``.
            weight: dense, of a row's length, or None.
            mean: of each row.
            rstd: of each row.
            y: like ``x``, or None.
            products: like ``x``, or None.
        """
        rows, n = x.shape
        log, lanes = _held(n)
        launch(
            "layer_norm_backward", -(-rows // lanes), (x, grad, weight, mean, rstd, y, products),
            (rows, n, float(n)), {"LANES": lanes, "LOG": log}, 4,
        )  # fmt: skip

    def _channels(self, kind: int, x: Any, given: Sequence[Any], count: float) -> Any:
        """Return sums for each channel, one part or two, as ``channel_rows`` has them."""
        samples, channels = x.shape[:2]
        rows, n = samples * channels, x.shape[2:].numel()
        log = min(log2(n), ROW)
        lanes, blocks, parts = 1 << min(log2(rows), ROW - log), -(-n >> log), 1 + (kind == 2)
        sums = x.new_empty(parts, rows, blocks)
        launch(
            "channel_rows", -(-rows // lanes) * blocks, (x, *given, sums),
            (n, rows, channels, blocks, count), {"KIND": kind, "LANES": lanes, "LOG": log}, 4,
        )  # fmt: skip
        if blocks > 1:
            sums = self.sums(sums, 2)
        return self.sums(sums.view(parts, samples, channels), 1)

    def batch_norm(
        self, x: Any, weight: Any, bias: Any, running: Sequence[Any], momentum: float, eps: float
    ) -> tuple[Any, Any, Any]:
        """Return normalized channels of a dense tensor, their means and reciprocal deviations.

        Args:
            x: dense, with samples and channels as the first dimensions.
            weight: dense, a number for each channel, or None.
            bias: as the weight.
            running: a running mean and variance, dense, which are updated; each may be None.
            momentum: of the update.
            eps: is added to variances.
        """
        import torch

        samples, channels, n = x.shape[0], x.shape[1], x.shape[2:].numel()
        count, factors = float(samples * n), (float(eps), float(1 - momentum), float(momentum))
        if fit := _channel_held(samples, n):
            y, mean, rstd = torch.empty_like(x), x.new_empty(channels), x.new_empty(channels)
            launch(
                "channel_norm", channels, (x, weight, bias, *running, y, mean, rstd),
                (samples, n, channels, count, *factors), fit[0], fit[1],
            )  # fmt: skip
            return y, mean, rstd
        total = self._channels(0, x, (None, None, None), count)
        squares = self._channels(1, x, (None, total, None), count)
        mean, rstd = x.new_empty(channels), x.new_empty(channels)
        launch(
            "channel_statistics", -(-channels // 128), (total, squares, mean, rstd, *running),
            (channels, count, *factors), {"BLOCK": 128}, 4,
        )  # fmt: skip
        y = torch.empty_like(x)
        launch(
            "channels_mapped", -(-x.numel() // _BLOCK),
            (x, None, mean, rstd, weight, bias, None, y), (x.numel(), n, channels, count),
            {"BLOCK": _BLOCK}, 4,
        )  # fmt: skip
        return y, mean, rstd

    def batch_norm_backward(
        self, x: Any, grad: Any, weight: Any, mean: Any, rstd: Any, *, wanted: bool
    ) -> tuple[Any, Any, Any]:
        """Return the gradients of input, weight and bias in training; the first if it is wanted.

        Args:
            x: dense, with samples and channels as the first dimensions.
            grad: the gradient of the result, like ``x``.
            weight: dense, a number for each channel, or None.
            mean: of each channel.
            rstd: of each channel.
            wanted: whether the gradient of the input is.
        """
        import torch

        samples, channels, n = x.shape[0], x.shape[1], x.shape[2:].numel()
        count = float(samples * n)
        if fit := _channel_held(samples, n):
            y, sums = torch.empty_like(x) if wanted else None, x.new_empty(2, channels)
            launch(
                "channel_norm_backward", channels, (x, grad, weight, mean, rstd, y, sums),
                (samples, n, channels, count), fit[0], fit[1],
            )  # fmt: skip
            return y, _aligned(sums[1]), sums[0]
        sums = self._channels(2, x, (grad, mean, rstd), count)
        if not wanted:
            return None, _aligned(sums[1]), sums[0]
        y = torch.empty_like(x)
        launch(
            "channels_mapped", -(-x.numel() // _BLOCK),
            (x, grad, mean, rstd, weight, None, sums, y), (x.numel(), n, channels, count),
            {"BLOCK": _BLOCK}, 4,
        )  # fmt: skip
        return y, _aligned(sums[1]), sums[0]

    def words(self, count: int, key: int, device: Any) -> Any:
        """Return words of Philox as int32; word e is a function of ``key`` and e alone."""
        import torch

        y = torch.empty(count, dtype=torch.int32, device=device)
        return self._drawn(y, key, {"KIND": "words", "BITS": 0})

    def fractions(
        self, y: Any, key: int, bits: int, distance: float = 1.0, lower: float = 0.0
    ) -> Any:
        """Fill a dense float32 tensor with so many upper bits of words as numbers in [0, 1).

        Args:
            y: the tensor, which is returned.
            key: of Philox.
            bits: how many.
            distance: each is multiplied by it.
            lower: is added to each, unless the distance is 1 and this 0.
        """
        kind = "fractions" if (distance, lower) == (1.0, 0.0) else "uniform"
        return self._drawn(y, key, {"KIND": kind, "BITS": bits}, distance, lower)

    def below(self, y: Any, key: int, p: float) -> Any:
        """Fill a dense float32 tensor with ones where a fraction is below ``p``, and zeros."""
        return self._drawn(y, key, {"KIND": "below", "BITS": 24}, p)

    def dropped(self, x: Any, key: int, keep: float) -> tuple[Any, Any]:
        """Return what is kept of a dense tensor, over the probability to keep it, and what is.

        Args:
            x: float32, or of 16 bits.
            key: of Philox.
            keep: the probability, above 0.
        """
        import torch

        y, mask = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
        n = x.numel()
        launch(
            "dropped", -(-n // (4 * _QUADS)), (x, y, mask), (float(keep), n, signed(key)),
            {"DTYPE": _named(x), "WHOLE": n % 4 == 0, "BLOCK": _QUADS}, 4, free=1,
        )  # fmt: skip
        return y, mask

    def kept(self, grad: Any, mask: Any, keep: float) -> Any:
        """Return the gradient of what ``dropped`` keeps; the tensors are dense and alike."""
        import torch

        y, n = torch.empty_like(grad), grad.numel()
        launch(
            "kept", -(-n // _BLOCK), (grad, y, mask), (float(keep), n),
            {"DTYPE": _named(grad), "BLOCK": _BLOCK}, 4,
        )  # fmt: skip
        return y

    def _drawn(self, y: Any, key: int, form: dict[str, Any], a: float = 0.0, b: float = 0.0) -> Any:
        if n := y.numel():
            launch(
                "words", -(-n // (4 * _QUADS)), (y,), (float(a), float(b), n, signed(key)),
                {**form, "WHOLE": n % 4 == 0, "BLOCK": _QUADS}, 4, free=1,
            )  # fmt: skip
        return y


def signed(key: int) -> int:
    """Return a key of 64 bits as the number of int64 that has them."""
    return key - (1 << 64) if key >> 63 else key


#: The one instance: it has no state.
GPU: Final = GpuContract()
