# SPDX-License-Identifier: Apache-2.0
"""Sums and products of docs/contract.md on a GPU: the kernels of ``triton_kernels``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pytest_udftorch import compat
from pytest_udftorch.cuda.launcher import alike, on_device
from pytest_udftorch.errors import LibdeviceError

#: Products of one chunk are accumulated one after the other.
CHUNK: Final = 64

#: Factors of a product that a program holds at once along k, and how many steps ahead it loads.
_STEP: Final = 32
_STAGES: Final = 2

#: Programs that fill a GPU; a product with fewer tiles is split along k.
_PROGRAMS: Final = 256

#: Programs of products that a multiprocessor has registers for.
_OF_PROCESSOR: Final = 3

#: Terms of a sum that a program adds up: 2^11 of a row, 2^6 of columns.
_ROW: Final = 11
_COLUMN: Final = 6

#: The longest row whose norm a program holds.
LONGEST: Final = 1 << _ROW

#: Elements of a program that maps them, and the most programs that share a tensor of a list.
_BLOCK: Final = 1024
_OF_TENSOR: Final = 64

#: A negative control changes the length of chunks here.
_chunk = CHUNK


@functools.cache
def _kernels() -> Any:
    try:
        from pytest_udftorch.contract import triton_kernels
    except ImportError as error:
        raise LibdeviceError(
            "The library repro adds and multiplies on GPUs with Triton kernels, but triton cannot "
            f"be imported: {error}. Install it (pip install triton), or keep tensors on the CPU."
        ) from error
    return triton_kernels


def _kind(argument: Any) -> Any:
    """Return what Triton may specialise a kernel on."""
    if type(argument) is int:
        if argument == 1:
            return 1
        return (2 if argument & 15 else 3) + (0 if -(1 << 31) <= argument < 1 << 31 else 2)
    if argument is None or type(argument) is float:
        return argument is None and "absent"
    return argument.data_ptr() & 15 == 0


@functools.cache
def _current() -> tuple[Any, Any]:
    """Return the functions that give the current GPU, and the current stream of one."""
    return compat.current_device(), compat.current_stream()


#: How each kernel is launched, by what it is specialised on.
_launchers: Final[dict[Any, Any]] = {}


def _launch(
    name: str, programs: int, device: Any, arguments: Sequence[Any], constants: Mapping[str, Any],
    warps: int, stages: int = 0,
) -> None:  # fmt: skip
    """Launch a kernel on the current stream of a GPU.

    Args:
        name: of the kernel.
        programs: how many.
        device: the GPU.
        arguments: the run-time arguments, in order.
        constants: the compile-time arguments by name, in order.
        warps: of a program.
        stages: how many steps ahead a loop loads; 0 leaves it to Triton.
    """
    current_device, current_stream = _current()
    if device.index != current_device():
        with on_device(device):
            _launch(name, programs, device, arguments, constants, warps, stages)
        return
    key = (name, device.index, *constants.values(), *map(_kind, arguments))
    found = _launchers.get(key)
    if found is None:
        kernels = _kernels()
        options = {"num_stages": stages} if stages else {}
        compiled = compat.uncompiled(getattr(kernels, name)[(programs,)])(
            *arguments, **constants, **options, num_warps=warps, enable_fp_fusion=False
        )
        _launchers[key] = compiled, tuple(constants.values()), kernels.triton.knobs.runtime
        return
    # This is how triton.runtime.jit launches a kernel that it finds in its cache.
    compiled, rest, hooks = found
    stream, enter = current_stream(device.index), hooks.launch_enter_hook
    # Newer versions of Triton have a list of hooks, which may be empty.
    quiet = enter is None or not getattr(enter, "calls", True)
    metadata = (
        None if quiet else compiled.launch_metadata((programs, 1, 1), stream, *arguments, *rest)
    )
    compiled.run(
        programs, 1, 1, stream, compiled.function, compiled.packed_metadata, metadata, enter,
        hooks.launch_exit_hook, *arguments, *rest,
    )  # fmt: skip


@functools.cache
def _resident(device: Any) -> int:
    """Return how many programs of products a GPU runs at once."""
    import torch

    processors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * _OF_PROCESSOR


def _log(n: int) -> int:
    """Return the logarithm of the least power of two that is not below n."""
    return max(n - 1, 0).bit_length()


def _held(n: int) -> tuple[int, int]:
    """Return the logarithm of the length of rows, and how many of them a program holds."""
    log = _log(n)
    return log, 1 << max(0, _ROW - log)


class GpuContract:
    """Sums and products of float32 tensors on GPUs."""

    def mm(self, a: Any, b: Any) -> Any:
        """Return the product of two matrices with any strides."""
        return self._product(a, b, (a.shape[0], b.shape[1]), 1, (0, *a.stride(), 0, *b.stride()))

    def products(self, a: Any, b: Any) -> Any:
        """Return the product of each two matrices of two batches, with any strides."""
        shape = (len(a), a.shape[1], b.shape[2])
        return self._product(a, b, shape, len(a), (*a.stride(), *b.stride()))

    def _product(
        self, a: Any, b: Any, shape: tuple[int, ...], batches: int, strides: tuple[int, ...]
    ) -> Any:
        m, n = shape[-2:]
        k = a.shape[-1]
        if not k or not batches * m * n:
            return a.new_zeros(shape)
        rows, columns = (64 if m > 16 else 16), (64 if n > 16 else 16)
        tiles = batches * -(-m // rows) * -(-n // columns)
        levels = _log(-(-k // _chunk))
        while levels > 2 and tiles * -(-k // (_chunk << levels)) < _PROGRAMS:
            levels -= 1
        splits = -(-k // (_chunk << levels))
        programs = min(tiles * splits, _resident(a.device))
        c = a.new_empty(shape if splits == 1 else (splits, *shape))
        waiting = a.new_empty(programs * levels * rows * columns) if levels else c
        _launch(
            "products", programs, a.device,
            (a, b, c, waiting, m, n, k, batches, splits, *strides),
            {"LEVELS": levels, "CHUNK": _chunk, "ROWS": rows, "COLUMNS": columns, "STEP": _STEP,
             "WHOLE": k % _STEP == 0, "TILED": m % rows == 0 and n % columns == 0}, 4, _STAGES,
        )  # fmt: skip
        return c if splits == 1 else self.sums(c, 0)

    def sums(self, x: Any, dim: int) -> Any:
        """Return the sums over one dimension, which the result lacks."""
        shape, x = x.shape, x.contiguous()
        outer, n, inner = shape[:dim].numel(), shape[dim], shape[dim + 1 :].numel()
        left = (*shape[:dim], *shape[dim + 1 :])
        if not n or not outer * inner:
            return x.new_zeros(left)
        if n == 1:
            return x.reshape(left).clone()
        while n > 1:
            along = inner == 1
            log = min(_log(n), _ROW if along else _COLUMN)
            blocks = -(-n >> log)
            y = x.new_empty(outer, blocks, inner)
            if along:
                lanes, groups, given = outer, 1, (0, n, 1, 0, 1, blocks)
            else:
                lanes, groups = inner, outer
                given = (n * inner, 1, inner, blocks * inner, inner, 1)
            width = max(1, 1 << min(_log(lanes), max(0, (11 if along else 12) - log)))
            programs = groups * -(-lanes // width) * blocks
            _launch(
                "sums", programs, x.device, (x, y, n, lanes, groups, blocks, *given),
                {"LANES": width, "LOG": log}, 4,
            )  # fmt: skip
            x, n = y, blocks
        return x.view(left)

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
        join = torch.zeros_like(apart, dtype=torch.int32)
        levels = _log(-(-len(rows) // each))
        for level in range(1, levels):
            join += apart >> level != 0
        bits[1:] = torch.where(named[1:] == named[:-1], join, 63)
        order = torch.arange(n, device=x.device)
        columns = 1 << min(_log(inner), 7)
        for level in range(levels):
            starts = torch.where(bits > level, order, 0).cummax(0).values
            _launch(
                "joins", n * -(-inner // columns), x.device,
                (x, bits, starts, n, inner, level), {"COLUMNS": columns}, 1,
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
            given: one to three float32 tensors.
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
            _launch(
                "elements", -(-y.numel() // _BLOCK), y.device,
                (*x, y, y.numel(), float(number)), {"KIND": kind, "BLOCK": _BLOCK}, 4,
            )  # fmt: skip
        return y if out is None or y is out else out.copy_(y)

    def lists(self, kind: str, given: Sequence[Sequence[Any]], numbers: Sequence[float],
              into: Sequence[Any]) -> None:  # fmt: skip
        """Map the elements of lists of tensors, as the kernel of ``elements`` does, in one launch.

        Args:
            kind: what ``triton_kernels.elements`` does.
            given: for each result one to three dense float32 tensors that are alike.
            numbers: for each result a scalar.
            into: the results, alike; they may be the first tensors, but share no memory.
        """
        import torch

        rows = []
        bits = torch.tensor(numbers, dtype=torch.float32).view(torch.int32).tolist()
        for tensors, number, y in zip(given, bits, into, strict=True):
            places = [t.data_ptr() for t in tensors] + [0, 0]
            rows.append((*places[:3], y.data_ptr(), y.numel(), number))
        device = into[0].device
        table = torch.tensor(rows, dtype=torch.int64, pin_memory=True)
        programs = min(_OF_TENSOR, max(1, -(-max(r[4] for r in rows) // _BLOCK)))
        _launch(
            "lists", len(rows) * programs, device,
            (table.to(device, non_blocking=True), len(rows), programs),
            {"KIND": kind, "BLOCK": _BLOCK}, 4,
        )  # fmt: skip

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
        y, (mean, rstd) = torch.empty_like(x), x.new_empty(2, rows)
        log, lanes = _held(n)
        _launch(
            "layer_norm", -(-rows // lanes), x.device,
            (x, weight, bias, y, mean, rstd, rows, n, float(n), float(eps)),
            {"LANES": lanes, "LOG": log}, 4,
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
        _launch(
            "layer_norm_backward", -(-rows // lanes), x.device,
            (x, grad, weight, mean, rstd, y, products, rows, n, float(n)),
            {"LANES": lanes, "LOG": log}, 4,
        )  # fmt: skip

    def _channels(self, kind: int, x: Any, given: Sequence[Any], count: float) -> Any:
        """Return sums for each channel, one part or two, as ``channel_rows`` has them."""
        samples, channels = x.shape[:2]
        rows, n = samples * channels, x.shape[2:].numel()
        log = min(_log(n), _ROW)
        lanes, blocks, parts = 1 << min(_log(rows), _ROW - log), -(-n >> log), 1 + (kind == 2)
        sums = x.new_empty(parts, rows, blocks)
        _launch(
            "channel_rows", -(-rows // lanes) * blocks, x.device,
            (x, *given, sums, n, rows, channels, blocks, count),
            {"KIND": kind, "LANES": lanes, "LOG": log}, 4,
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

        channels, n = x.shape[1], x.shape[2:].numel()
        count = float(x.numel() // channels)
        total = self._channels(0, x, (None, None, None), count)
        squares = self._channels(1, x, (None, total, None), count)
        mean, rstd = x.new_empty(2, channels)
        _launch(
            "channel_statistics", -(-channels // 128), x.device,
            (total, squares, mean, rstd, *running, channels, count, float(eps),
             float(1 - momentum), float(momentum)), {"BLOCK": 128}, 4,
        )  # fmt: skip
        y = torch.empty_like(x)
        _launch(
            "channels_mapped", -(-x.numel() // _BLOCK), x.device,
            (x, None, mean, rstd, weight, bias, None, y, x.numel(), n, channels, count),
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

        channels, n = x.shape[1], x.shape[2:].numel()
        count = float(x.numel() // channels)
        sums = self._channels(2, x, (grad, mean, rstd), count)
        if not wanted:
            return None, sums[1], sums[0]
        y = torch.empty_like(x)
        _launch(
            "channels_mapped", -(-x.numel() // _BLOCK), x.device,
            (x, grad, mean, rstd, weight, None, sums, y, x.numel(), n, channels, count),
            {"BLOCK": _BLOCK}, 4,
        )  # fmt: skip
        return y, sums[1], sums[0]

    def words(self, count: int, key: int, device: Any) -> Any:
        """Return words of Philox as int32; word e is a function of ``key`` and e alone."""
        import torch

        return self._drawn(torch.empty(count, dtype=torch.int32, device=device), key, 0)

    def fractions(self, count: int, key: int, device: Any, bits: int) -> Any:
        """Return so many upper bits of words as float32 numbers in [0, 1)."""
        import torch

        return self._drawn(torch.empty(count, dtype=torch.float32, device=device), key, bits)

    def _drawn(self, y: Any, key: int, bits: int) -> Any:
        if y.numel():
            _launch(
                "words", -(-y.numel() // 1024), y.device, (y, y.numel(), signed(key)),
                {"BITS": bits, "BLOCK": 256}, 4,
            )  # fmt: skip
        return y


def signed(key: int) -> int:
    """Return a key of 64 bits as the number of int64 that has them."""
    return key - (1 << 64) if key >> 63 else key


#: The one instance: it has no state.
GPU: Final = GpuContract()
