# SPDX-License-Identifier: Apache-2.0
"""What is kept of a tensor: shape, strides, a digest of its bits, and a few of its values."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from pytest_udftorch.base.optional import package
from pytest_udftorch.base.tensor_contents import contents, hides, is_plain, sizes

#: How many values of a tensor are kept, evenly spaced.
SAMPLES: Final = 16

#: The digest of a tensor whose bits cannot be read (without data, of a subclass that hides them).
UNREADABLE: Final = b""

#: The device of a tensor that has no numbers.
NO_MEMORY: Final = "meta"

_BYTES: Final = 16

#: Kinds of digests: XXH3, many times as fast, and SHA-1 for processes without the package xxhash.
XXH3, SHA1 = "xxh3-128", "sha1"
KINDS: Final = (XXH3, SHA1)


class RowNote(NamedTuple):
    """What is kept of the part of a tensor that belongs to one row of the batch.

    Attributes:
        digest: of it.
        taken: its values at evenly spaced places, as encodings.
    """

    digest: bytes
    taken: bytes = b""


#: No notes of rows.
NO_ROWS: Final[Mapping[int, RowNote]] = MappingProxyType({})

#: The longest array whose NaNs are looked for by its product with itself, which is quick to call.
#: BLAS would share longer ones out to threads.
_SHORT: Final = 8192


@cache
def fastest() -> str:
    """Return the fastest kind of digest of this process."""
    return XXH3 if importlib.util.find_spec("xxhash") is not None else SHA1


class TensorNote(NamedTuple):
    """What is kept of a tensor.

    Attributes:
        shape: its sizes.
        dtype: its type without ``torch.``.
        stride: its strides in elements.
        device: ``cpu`` or ``cuda``; ``meta`` if it has no numbers.
        digest: of dtype and encodings in the order of the indices. All NaNs count as one; +0 and -0
            differ. ``UNREADABLE`` if they cannot be read.
        rows: dimension -> what is kept of the part that belongs to one row of the batch, for the
            first two dimensions, if their size is a multiple of the batch's.
        taken: values at evenly spaced places, as encodings, or as numbers of an earlier record.
    """

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    device: str
    digest: bytes
    rows: Mapping[int, RowNote] = NO_ROWS
    taken: bytes | tuple[float, ...] = ()

    @property
    def unread(self) -> bool:
        """Whether it has numbers, at which nobody could look."""
        return self.digest == UNREADABLE and self.device != NO_MEMORY

    @property
    def samples(self) -> tuple[float, ...]:
        """The values at evenly spaced places, in double precision."""
        if not isinstance(self.taken, bytes):
            return self.taken
        return numbers_of(self.taken, self.dtype)


class _Type(NamedTuple):
    """What is to be known of a dtype of torch.

    Attributes:
        name: without ``torch.``.
        seen: the integers as which NumPy gets it, or None.
        numbers: whether its values are real numbers.
    """

    name: str
    seen: Any
    numbers: bool


@cache
def _type_of(dtype: Any) -> _Type:
    import torch

    name = str(dtype).removeprefix("torch.")
    known = dtype in (torch.float16, torch.float32, torch.float64)
    integers = {1: torch.uint8, 2: torch.int16}
    seen = integers.get(dtype.itemsize) if dtype.is_floating_point and not known else None
    return _Type(name, seen, not dtype.is_complex)


def array_of(tensor: Any) -> Any:
    """Return the encodings of a strided tensor as a NumPy array of its shape; may share memory.

    Types that NumPy lacks (bfloat16, float8) come as unsigned integers of their width, and
    complex32 as complex64.

    Raises:
        TypeError: NumPy and this module know no such type.
    """
    import torch

    seen = _type_of(tensor.dtype).seen
    own = tensor.detach()
    if seen is not None:
        own = own.view(seen)
    if own.is_conj() or own.is_neg():
        own = own.resolve_conj().resolve_neg()
    own = own.cpu().contiguous()
    if own.dtype is torch.complex32:
        own = own.to(torch.complex64)
    if not own.numel():
        return own.numpy()
    # Tensor.numpy() would forbid that the memory is resized ever after, as sharded training does.
    memory = (ctypes.c_char * (own.numel() * own.element_size())).from_address(own.data_ptr())
    memory.owner = own
    return np.frombuffer(memory, _numpy_type(own.dtype)).reshape(own.shape)


@cache
def _numpy_type(dtype: Any) -> Any:
    import torch

    return torch.empty(0, dtype=dtype).numpy().dtype


def _without_payloads(values: Any, kind: str) -> Any:
    """Return encodings, in one dimension, in which every NaN is the same one."""
    if kind == "bfloat16":
        hidden = values & np.int16(0x7FFF)
        if hidden.size and int(hidden.max()) > 0x7F80:
            return np.where(hidden > 0x7F80, np.int16(0x7FC0), values)
        return values
    real = values.dtype.kind in "fc" and values.size
    if real and _may_have_nan(values, kind) and (nan := np.isnan(values)).any():
        return np.where(nan, values.dtype.type(math.nan), values)
    return values


def _may_have_nan(values: Any, kind: str) -> bool:
    """Tell whether an array may have a NaN; a quick look before the slow one."""
    with np.errstate(all="ignore"):
        if kind not in ("float32", "float64"):
            return bool(np.isnan(values.sum()))
        # No square is negative, so no infinity meets one of the other sign.
        found = values.dot(values) if values.size <= _SHORT else np.maximum.reduce(values)
    return bool(found != found)


def digest_of(values: Any, kind: str, hashed: str = SHA1) -> bytes:
    """Return the digest of an array of :func:`array_of`.

    Args:
        values: the array.
        kind: the tensor's dtype.
        hashed: one of ``KINDS``.
    """
    flat: Any = np.ascontiguousarray(values).reshape(-1)
    return _digest(_without_payloads(flat, kind), kind, hashed)


def _digest(bits: Any, kind: str, hashed: str) -> bytes:
    if hashed == XXH3:
        found: bytes = xxh3()(bits, seed_of(kind))
        return found
    sha = hashlib.sha1(kind.encode(), usedforsecurity=False)
    sha.update(bits.view(np.uint8))
    return sha.digest()[:_BYTES]


@cache
def xxh3() -> Any:
    """Return the function that gives the XXH3 digest of a buffer and a seed."""
    return package("xxhash", "A record with XXH3 digests").xxh3_128_digest


@cache
def seed_of(kind: str) -> int:
    """Return what keeps digests of equal encodings of two dtypes apart."""
    return zlib.crc32(kind.encode())


def sample_places(shape: tuple[int, ...]) -> Any:
    """Return the positions of the samples among a tensor's elements, in the order of indices."""
    return _evenly(math.prod(shape))


@cache
def _evenly(count: int) -> Any:
    return np.linspace(0, count - 1, min(SAMPLES, count)).astype(np.int64)


def numbers_of(taken: bytes, kind: str) -> tuple[float, ...]:
    """Return encodings of a dtype as double precision.

    Raises:
        ValueError: they are no whole number of encodings, or torch has no such dtype.
    """
    import torch

    if not taken:
        return ()
    dtype = getattr(torch, kind, None)
    if not isinstance(dtype, torch.dtype) or dtype.is_complex:
        raise ValueError(f"there are no samples of {kind}")
    with np.errstate(all="ignore"):
        values = torch.frombuffer(bytearray(taken), dtype=dtype).double()
    found: list[float] = values.tolist()
    return tuple(found)


def note_of(
    tensor: Any,
    batch: tuple[int, int] | None = None,
    hashed: str | None = None,
    by_value: bool = False,
) -> TensorNote:
    """Describe a tensor.

    Args:
        tensor: of any device and layout.
        batch: the size of the batch, and the row whose digests are also wanted.
        hashed: one of ``KINDS``; by default the fastest of this process.
        by_value: whether the digest is that of the real numbers in float64, so that equal numbers
            of two types have one.
    """
    if by_value and is_plain(tensor) and tensor.is_floating_point():
        wide = note_of(tensor.detach().double(), batch, hashed)
        name = _type_of(tensor.dtype).name
        return TensorNote(
            wide.shape, name, wide.stride, wide.device, wide.digest, wide.rows, wide.samples
        )
    parts = contents(tensor)
    hashed = hashed or fastest()
    if parts is None or parts[0] is not tensor:
        return _note_of_parts(tensor, parts, hashed)
    kind, _, numbers = _type_of(tensor.dtype)
    shape = tuple(tensor.shape)
    device = "cpu" if tensor.is_cpu else tensor.device.type
    stride = tensor.stride()
    try:
        # torch puts elements in order faster than NumPy.
        values = array_of(tensor if tensor.is_contiguous() else tensor.contiguous())
    except (RuntimeError, TypeError, NotImplementedError):  # a subclass without data of its own
        return TensorNote(shape, kind, stride, device, UNREADABLE)
    rows: Mapping[int, RowNote] = NO_ROWS
    if batch is not None:
        parts_of_row = {
            axis: np.ascontiguousarray(values[row_slice(axis, length, batch)])
            for axis, length in enumerate(shape[:2])
            if length and length % batch[0] == 0
        }
        rows = {
            axis: RowNote(digest_of(part, kind, hashed), _taken(part.reshape(-1), numbers))
            for axis, part in parts_of_row.items()
        }
    flat = values.reshape(-1)
    taken = _taken(flat, numbers)
    digest = _digest(_without_payloads(flat, kind), kind, hashed)
    return TensorNote(shape, kind, stride, device, digest, rows, taken)


def _taken(flat: Any, numbers: bool) -> bytes:
    """Return the values of an array at evenly spaced places, if they are real numbers."""
    if not numbers or not flat.size:
        return b""
    return bytes((flat if flat.size <= SAMPLES else flat[_evenly(flat.size)]).tobytes())


def _note_of_parts(tensor: Any, parts: Sequence[Any] | None, hashed: str) -> TensorNote:
    """Describe a tensor by the digests of the plain tensors that it consists of."""
    kind, shape, device = _type_of(tensor.dtype).name, sizes(tensor), tensor.device.type
    digests = [note_of(part, None, hashed).digest for part in parts or ()]
    if parts is None and not hides(tensor):
        device = NO_MEMORY
    if parts is None or UNREADABLE in digests:
        return TensorNote(shape, kind, (), device, UNREADABLE)
    bits = np.frombuffer(b"".join(digests), np.uint8)
    return TensorNote(shape, kind, (), device, _digest(bits, kind, hashed))


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
    """Tell whether two tensors hold the same encodings, or the row of one is the other.

    Of two that cannot be read nothing else is known; see :attr:`TensorNote.unread`.
    """
    if a.digest == UNREADABLE or b.digest == UNREADABLE:
        return a.digest == b.digest and (a.shape, a.dtype) == (b.shape, b.dtype)
    if a.shape == b.shape:
        return a.digest == b.digest
    axis = row_axis(a.shape, b.shape)
    if axis is None:
        return False
    return any(
        axis in whole.rows and whole.rows[axis].digest == row.digest
        for whole, row in ((a, b), (b, a))
    )


def comparable(a: TensorNote, b: TensorNote) -> bool:
    """Tell whether two tensors have one shape, or one is a row of the other."""
    axis = row_axis(a.shape, b.shape)
    return a.shape == b.shape or (axis is not None and axis in {*a.rows, *b.rows})


def distance(a: TensorNote, b: TensorNote) -> float | None:
    """Estimate from samples how far two tensors lie apart, relative to the larger one's norm.

    Of a batch and a row of it, those of the row are compared. None if the samples do not belong to
    the same places.
    """
    if a.shape != b.shape and a.dtype == b.dtype:
        axis = row_axis(a.shape, b.shape)
        for whole, row in ((a, b), (b, a)):
            part = whole.rows.get(axis) if axis is not None else None
            if part is not None and part.taken and isinstance(row.taken, bytes):
                first, second = numbers_of(part.taken, a.dtype), row.samples
                return relative(first, second) if len(first) == len(second) else None
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
