# SPDX-License-Identifier: Apache-2.0
"""What is kept of a tensor: shape, strides, a digest of its bits, and a few of its values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import numpy as np

#: How many values of a tensor are kept, evenly spaced.
SAMPLES: Final = 16

#: The digest of a tensor whose bits cannot be read (sparse, quantised, without data).
UNREADABLE: Final = b""

_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class TensorNote:
    """What is kept of a tensor.

    Attributes:
        shape: its sizes.
        dtype: its type without ``torch.``.
        stride: its strides in elements.
        device: ``cpu`` or ``cuda``.
        digest: of dtype and encodings in the order of the indices. All NaNs count as one; +0 and -0
            differ. ``UNREADABLE`` if they cannot be read.
        rows: dimension -> the digest of the part that belongs to one row of the batch, for the
            first two dimensions, if their size is a multiple of the batch's.
        samples: values at evenly spaced places, as double precision.
    """

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    device: str
    digest: bytes
    rows: Mapping[int, bytes] = field(default_factory=dict)
    samples: tuple[float, ...] = ()


def array_of(tensor: Any) -> Any:
    """Return the encodings of a strided tensor as a NumPy array of its shape; may share memory.

    Types that NumPy lacks (bfloat16, float8) come as unsigned integers of their width.
    """
    import torch

    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.is_floating_point() and tensor.dtype not in _NUMPY_FLOATS():
        tensor = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8)
    return tensor.numpy()


def _NUMPY_FLOATS() -> tuple[Any, ...]:
    import torch

    return (torch.float16, torch.float32, torch.float64)


def _without_payloads(values: Any, kind: str) -> Any:
    """Return encodings in which every NaN is the same one."""
    if kind == "bfloat16":
        hidden = values & np.int16(0x7FFF)
        if hidden.size and int(hidden.max()) > 0x7F80:
            return np.where(hidden > 0x7F80, np.int16(0x7FC0), values)
    elif values.dtype.kind in "fc" and values.size:
        # The sum of numbers with a NaN is one; a quick look before the slow one.
        with np.errstate(all="ignore"):
            suspicious = np.isnan(values.sum())
        if suspicious and (nan := np.isnan(values)).any():
            return np.where(nan, values.dtype.type(math.nan), values)
    return values


def digest_of(values: Any, kind: str) -> bytes:
    """Return the digest of an array of :func:`array_of`."""
    bits: Any = np.ascontiguousarray(_without_payloads(values, kind)).reshape(-1)
    found = hashlib.sha1(kind.encode(), usedforsecurity=False)
    found.update(bits.view(np.uint8))
    return found.digest()[:_BYTES]


def sample_places(shape: tuple[int, ...]) -> Any:
    """Return the positions of the samples among a tensor's elements, in the order of indices."""
    return _evenly(math.prod(shape))


@cache
def _evenly(count: int) -> Any:
    return np.linspace(0, count - 1, min(SAMPLES, count)).astype(np.int64)


def _samples(tensor: Any, values: Any, kind: str) -> tuple[float, ...]:
    count = values.size
    if not count or values.dtype.kind not in "fiub":
        return ()
    if values.flags.c_contiguous:
        taken = values.reshape(-1)[_evenly(count)]
    elif values.ndim:
        taken = values[np.unravel_index(sample_places(values.shape), values.shape)]
    else:
        taken = values.reshape(1)
    if tensor.is_floating_point() and values.dtype.kind != "f":
        import torch

        taken = torch.from_numpy(np.ascontiguousarray(taken)).view(tensor.dtype).double().numpy()
    found: list[float] = taken.astype(np.float64).tolist()
    return tuple(found)


def note_of(tensor: Any, batch: tuple[int, int] | None = None) -> TensorNote:
    """Describe a tensor.

    Args:
        tensor: of any device and layout.
        batch: the size of the batch, and the row whose digests are also wanted.
    """
    import torch

    kind = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(int(n) for n in tensor.shape)
    device = tensor.device.type
    readable = tensor.layout is torch.strided and device != "meta" and not tensor.is_quantized
    if not readable:
        return TensorNote(shape, kind, (), device, UNREADABLE)
    try:
        values = array_of(tensor)
    except (RuntimeError, TypeError, NotImplementedError):  # a subclass without data of its own
        return TensorNote(shape, kind, tuple(tensor.stride()), device, UNREADABLE)
    rows = {}
    for axis, length in enumerate(shape[:2] if batch is not None else ()):
        if batch is not None and length and length % batch[0] == 0:
            part = row_slice(axis, length, batch)
            rows[axis] = digest_of(values[part], kind)
    samples = _samples(tensor, values, kind)
    stride = tuple(tensor.stride())
    return TensorNote(shape, kind, stride, device, digest_of(values, kind), rows, samples)


def row_slice(axis: int, length: int, batch: tuple[int, int]) -> tuple[slice, ...]:
    """Return the index of what belongs to one row of a batch, along a dimension of that length."""
    size, row = batch
    each = length // size
    return (*[slice(None)] * axis, slice(row * each, (row + 1) * each))


def row_axis(a: tuple[int, ...], b: tuple[int, ...]) -> int | None:
    """Return the dimension in which a batch's shape differs from that of a row, if it is one."""
    if len(a) != len(b):
        return None
    apart = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    return apart[0] if len(apart) == 1 else None


def same_bits(a: TensorNote, b: TensorNote) -> bool:
    """Tell whether two tensors hold the same encodings, or the row of one is the other."""
    if a.digest == UNREADABLE or b.digest == UNREADABLE:
        return a.digest == b.digest and (a.shape, a.dtype) == (b.shape, b.dtype)
    if a.shape == b.shape:
        return a.digest == b.digest
    axis = row_axis(a.shape, b.shape)
    return axis is not None and (a.rows.get(axis) == b.digest or b.rows.get(axis) == a.digest)


def comparable(a: TensorNote, b: TensorNote) -> bool:
    """Tell whether two tensors have one shape, or one is a row of the other."""
    axis = row_axis(a.shape, b.shape)
    return a.shape == b.shape or (axis is not None and axis in {*a.rows, *b.rows})


def distance(a: TensorNote, b: TensorNote) -> float | None:
    """Estimate from samples how far two tensors lie apart, relative to the larger one's norm.

    None if the samples do not belong to the same places.
    """
    if a.shape != b.shape or len(a.samples) != len(b.samples) or not a.samples:
        return None
    return relative(a.samples, b.samples)


def relative(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the norm of the difference over the larger norm; infinite where one is not finite."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    if same.all():
        return 0.0
    if not (np.isfinite(first[~same]).all() and np.isfinite(second[~same]).all()):
        return math.inf
    apart = float(np.linalg.norm(first[~same] - second[~same]))
    finite = np.isfinite(first) & np.isfinite(second)
    return float(apart / max(np.linalg.norm(first[finite]), np.linalg.norm(second[finite])))
