# SPDX-License-Identifier: Apache-2.0
"""Upsampling and its gradients in the order of docs/reproduce/contract.md, direction by direction.

A place of a result is a chain of products over places of the input, which a table names with their
weights. The gradient's table is the same, sorted by the places of the input.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from pytest_udftorch.swap.contract.gpu import GPU
from pytest_udftorch.swap.contract.native import Contract, contract
from pytest_udftorch.swap.contract.outside import declined
from pytest_udftorch.swap.overrides.tape import constant


class Kind(IntEnum):
    """How a place is computed from those of the input; the numbers are those of the C source."""

    NEAREST = 0
    NEAREST_EXACT = 1
    LINEAR = 2
    CUBIC = 3
    #: Antialiased: a kernel as wide as the places of the input that become one.
    WIDE_LINEAR = 4
    WIDE_CUBIC = 5


#: Kinds whose places have different numbers of terms.
_WIDE = frozenset({Kind.WIDE_LINEAR, Kind.WIDE_CUBIC})


class Direction(NamedTuple):
    """One direction of an upsampling.

    Attributes:
        size: places of the input.
        out: places of the result.
        kind: how they are computed.
        corners: the outermost places of both coincide.
        factor: how many places a place becomes; 0 for out / size.
    """

    size: int
    out: int
    kind: Kind
    corners: bool = False
    factor: float = 0.0


class _Direction(ctypes.Structure):
    """``struct direction`` of ``contract_upsampling.h``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("size", "out", "kind", "corners")),
        ("factor", ctypes.c_double),
    )


class _Pass(ctypes.Structure):
    """``struct pass`` of ``contract_upsampling.h``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("outer", "size", "out", "inner", "terms")),
        *((name, ctypes.c_void_p) for name in ("start", "from_", "weight")),
    )


class _Upsampling(ctypes.Structure):
    """``struct upsampling`` of ``contract_upsampling.h``."""

    _fields_ = (
        ("planes", ctypes.c_int64), ("passes", ctypes.c_int64), ("pass_", _Pass * 3),
        ("x", ctypes.c_void_p), ("y", ctypes.c_void_p),
        ("next", ctypes.c_int64), ("failed", ctypes.c_int64),
    )  # fmt: skip


class Terms(NamedTuple):
    """The terms of each place of a result, in their order.

    Attributes:
        each: how many every place has, or 0 if they differ.
        start: where those of each place begin, and the end.
        places: the places of the input.
        weights: their factors.
    """

    each: int
    start: Any
    places: Any
    weights: Any


@functools.lru_cache(maxsize=256)
def terms(made: Contract, direction: Direction, gradient: bool) -> Terms:
    """Return the terms of one direction, or of its gradient."""
    import torch

    described = ctypes.byref(_Direction(*direction))
    each = int(made.library.upsampling_width(described))
    count = direction.out * each
    places, weights = torch.empty(count, dtype=torch.int32), torch.empty(count, dtype=torch.float32)
    made.library.upsampling_terms(
        described, ctypes.c_void_p(places.data_ptr()), ctypes.c_void_p(weights.data_ptr())
    )
    if not gradient and direction.kind not in _WIDE:
        return Terms(each, torch.arange(direction.out + 1) * each, places, weights)
    there = (places >= 0).nonzero().view(-1)
    places, weights, results = places[there], weights[there], (there // each).int()
    if not gradient:
        return Terms(0, _starts(results, direction.out), places, weights)
    order = torch.argsort(places, stable=True)
    return Terms(0, _starts(places, direction.size), results[order], weights[order])


def _starts(places: Any, count: int) -> Any:
    """Return where the terms of each place begin, and the end."""
    import torch

    start = torch.zeros(count + 1, dtype=torch.int64)
    start[1:] = places.bincount(minlength=count).cumsum(0)
    return start


def _lines(directions: Sequence[Direction], gradient: bool) -> list[tuple[int, int, int]]:
    """Return each direction's place in the order of passes, and the lines before and behind it."""
    sizes = [d.out if gradient else d.size for d in directions]
    found = []
    for at in range(len(directions)) if gradient else reversed(range(len(directions))):
        outer = inner = 1
        for size in sizes[:at]:
            outer *= size
        for size in sizes[at + 1 :]:
            inner *= size
        found.append((at, outer, inner))
        sizes[at] = directions[at].size if gradient else directions[at].out
    return found


def _last(x: Any) -> Any:
    """Return the format of memory of a result: stock takes that of its input."""
    import torch

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = formats.get(x.dim())
    if last is not None and not x.is_contiguous() and x.is_contiguous(memory_format=last):
        return last
    return torch.contiguous_format


def upsample(
    made: Contract, x: Any, directions: Sequence[Direction], *, gradient: bool = False,
    reference: bool = False,
) -> Any:  # fmt: skip
    """Return an upsampled tensor, or the gradient of the input of an upsampling.

    Args:
        made: the compiled contract.
        x: float32 of shape (N, C, places of each direction), dense, and contiguous or with
            channels last.
        directions: one to three.
        gradient: x is the gradient of the result.
        reference: take the scalar loop, which is the contract.

    Returns:
        a tensor in the layout of ``x``.

    Raises:
        MemoryError: there is no room for the planes between two directions.
    """
    import torch

    layout, order = _last(x), _lines(directions, gradient)
    planes, channels = x.shape[0] * x.shape[1], 1
    if layout is not torch.contiguous_format and not x.is_cuda and not reference:
        # Channels beside each other have the same terms.
        planes, channels = x.shape[:2]
    else:
        x = x.contiguous()
    wanted = (*x.shape[:2], *(d.size if gradient else d.out for d in directions))
    if reference:
        for at, outer, inner in order:
            d = directions[at]
            y = torch.empty(
                planes * outer, d.size if gradient else d.out, inner, dtype=torch.float32
            )
            made.library.ref_upsample(
                ctypes.byref(_Direction(*d)), ctypes.c_int64(gradient),
                ctypes.c_int64(planes * outer), ctypes.c_int64(inner),
                ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()),
            )  # fmt: skip
            x = y
        return y.view(wanted).contiguous(memory_format=layout)
    if x.is_cuda:
        for at, _, _ in order:
            x = GPU.chains(x, at + 2, *_padded(made, directions[at], gradient, x.device))
        return x.contiguous(memory_format=layout)
    y = torch.empty(wanted, dtype=torch.float32, memory_format=layout)
    given = _Upsampling(planes=planes, passes=len(order), x=x.data_ptr(), y=y.data_ptr())
    kept = []
    for number, (at, outer, inner) in enumerate(order):
        d = directions[at]
        kept.append(t := terms(made, d, gradient))
        sizes = (d.out, d.size) if gradient else (d.size, d.out)
        addresses = (t.start.data_ptr(), t.places.data_ptr(), t.weights.data_ptr())
        given.pass_[number] = _Pass(outer, *sizes, inner * channels, t.each, *addresses)
    threads = ctypes.byref(made.threads(b"aten::upsample"))
    if made.library.fast_upsampling(ctypes.byref(given), threads):
        raise MemoryError(f"There is no memory for planes of an upsampling of {tuple(x.shape)}.")
    return y


@constant
def _padded(
    made: Contract, direction: Direction, gradient: bool, device: Any
) -> tuple[Any, Any, Any]:
    """Return how many terms places have, and as rows the first terms, the second ones, ..."""
    import torch

    found = terms(made, direction, gradient)
    counts = found.start.diff()
    most = int(counts.max())
    at = found.start[:-1] + torch.arange(most)[:, None]
    at = at.clamp_(max=len(found.places) - 1)
    padded = found.places[at].long(), found.weights[at]
    return counts.to(device), *(t.to(device) for t in padded)


# The operators ----------------------------------------------------------------------------


def _directions(
    kind: Kind, sizes: Sequence[int], out: Sequence[int], rest: Sequence[Any]
) -> tuple[Direction, ...]:
    corners, factors = (False, rest) if len(rest) == len(out) else (bool(rest[0]), rest[1:])
    return tuple(
        Direction(size, o, kind, corners, float(f or 0.0))
        for size, o, f in zip(sizes, out, factors, strict=True)
    )


def _fits(x: Any, rank: int, *sizes: Sequence[int]) -> bool:
    known = str(x.dtype) == "torch.float32" and x.dim() == rank + 2 and x.numel()
    return bool(known and all(n > 0 for size in sizes for n in size))


def _upsampling(name: str, kind: Kind, rank: int) -> Callable[..., Any]:
    def run(self: Any, output_size: Sequence[int], *rest: Any) -> Any:
        if len(output_size) != rank or not _fits(self, rank, output_size):
            return declined(self, output_size, *rest)
        directions = _directions(kind, self.shape[2:], output_size, rest)
        return upsample(contract(), self, directions)

    run.__name__ = run.__qualname__ = name
    return run


def _gradient(name: str, kind: Kind, rank: int) -> Callable[..., Any]:
    def run(
        grad_output: Any, output_size: Sequence[int], input_size: Sequence[int], *rest: Any
    ) -> Any:
        fits = len(input_size) == rank + 2 and _fits(grad_output, rank, input_size)
        if not fits or list(grad_output.shape) != [*input_size[:2], *output_size]:
            return declined(grad_output, output_size, input_size, *rest)
        directions = _directions(kind, input_size[2:], output_size, rest)
        return upsample(contract(), grad_output, directions, gradient=True)

    run.__name__ = run.__qualname__ = name
    return run


upsample_nearest1d = _upsampling("upsample_nearest1d", Kind.NEAREST, 1)
upsample_nearest2d = _upsampling("upsample_nearest2d", Kind.NEAREST, 2)
upsample_nearest3d = _upsampling("upsample_nearest3d", Kind.NEAREST, 3)
upsample_nearest_exact1d = _upsampling("upsample_nearest_exact1d", Kind.NEAREST_EXACT, 1)
upsample_nearest_exact2d = _upsampling("upsample_nearest_exact2d", Kind.NEAREST_EXACT, 2)
upsample_nearest_exact3d = _upsampling("upsample_nearest_exact3d", Kind.NEAREST_EXACT, 3)
upsample_linear1d = _upsampling("upsample_linear1d", Kind.LINEAR, 1)
upsample_bilinear2d = _upsampling("upsample_bilinear2d", Kind.LINEAR, 2)
upsample_trilinear3d = _upsampling("upsample_trilinear3d", Kind.LINEAR, 3)
upsample_bicubic2d = _upsampling("upsample_bicubic2d", Kind.CUBIC, 2)
upsample_bilinear2d_aa = _upsampling("upsample_bilinear2d_aa", Kind.WIDE_LINEAR, 2)
upsample_bicubic2d_aa = _upsampling("upsample_bicubic2d_aa", Kind.WIDE_CUBIC, 2)
upsample_nearest1d_backward = _gradient("upsample_nearest1d_backward", Kind.NEAREST, 1)
upsample_nearest2d_backward = _gradient("upsample_nearest2d_backward", Kind.NEAREST, 2)
upsample_nearest3d_backward = _gradient("upsample_nearest3d_backward", Kind.NEAREST, 3)
upsample_nearest_exact1d_backward = _gradient(
    "upsample_nearest_exact1d_backward", Kind.NEAREST_EXACT, 1
)
upsample_nearest_exact2d_backward = _gradient(
    "upsample_nearest_exact2d_backward", Kind.NEAREST_EXACT, 2
)
upsample_nearest_exact3d_backward = _gradient(
    "upsample_nearest_exact3d_backward", Kind.NEAREST_EXACT, 3
)
upsample_linear1d_backward = _gradient("upsample_linear1d_backward", Kind.LINEAR, 1)
upsample_bilinear2d_backward = _gradient("upsample_bilinear2d_backward", Kind.LINEAR, 2)
upsample_trilinear3d_backward = _gradient("upsample_trilinear3d_backward", Kind.LINEAR, 3)
upsample_bicubic2d_backward = _gradient("upsample_bicubic2d_backward", Kind.CUBIC, 2)
upsample_bilinear2d_aa_backward = _gradient("upsample_bilinear2d_aa_backward", Kind.WIDE_LINEAR, 2)
upsample_bicubic2d_aa_backward = _gradient("upsample_bicubic2d_aa_backward", Kind.WIDE_CUBIC, 2)
