# SPDX-License-Identifier: Apache-2.0
"""Exact products of docs/reproduce/contract_exact.md on a GPU: what launches which kernel.

A few rows are multiplied by one kernel, which finds the digits of the matrix on the way. Otherwise
both matrices are written as digits first. The kernel of ``gluon_exact`` multiplies these on GPUs
that have its instructions, that of ``triton_exact`` on others. All give the same bits.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pytest_udftorch.errors import CudaFormError
from pytest_udftorch.swap.contract.cuda_sums import log2, sums
from pytest_udftorch.swap.contract.launches import Launch, gluon

#: Terms of a chunk (contract_exact.h).
CHUNK: Final = 512

#: Digits lie in rows of a multiple of so many bytes; behind the units of a chunk is so much room.
PAD: Final = 128

#: Numbers of a program that writes digits, and its warps.
_HELD: Final = (16 * CHUNK, 4)

#: Numbers of a program that writes the digits of values.
_VALUES: Final = 8192

#: Columns, terms and warps of a program for few rows, on tensor cores and without, and how many
#: programs for each multiprocessor are enough, in quarters.
_ON_TENSOR_CORES: Final = (64, 128, 4, 16)
_WITHOUT: Final = (4, CHUNK, 1, 3)

#: Rows that the kernel for few rows takes, and those that it takes without tensor cores of 8 bits:
#: it is compiled for each of these, which takes minutes for 16.
FEW: Final = 16
_PLAIN: Final = 2

#: What multiplies digits: tensor cores of 8 bits, of 16 bits, or none.
UNITS: Final = ("int8", "half", "plain")
UNIT: Final = "UDFTORCH_EXACT_UNIT"

#: A negative control changes the length of chunks here.
_chunk = CHUNK


def chunk() -> int:
    """Return how many terms a chunk has."""
    return _chunk


class Tile(NamedTuple):
    """What a program computes at once.

    Attributes:
        rows: of the result.
        columns: of the result.
        step: terms that it holds at once.
        warps: of a program.
        stages: how many steps ahead it loads.
        resident: programs that a multiprocessor runs at once.
        slots: sums of chunks that wait in shared memory.
    """

    rows: int
    columns: int
    step: int
    warps: int
    stages: int
    resident: int
    slots: int = 0


#: The tile of the kernel for Hopper: of two programs on a multiprocessor one joins sums while the
#: other one multiplies. Larger ones have no registers for this.
_HOPPER: Final = Tile(64, 64, 64, 4, 4, 2, 3)


def unit() -> str:
    """Return what multiplies digits on a GPU: the environment's choice, or int8.

    Raises:
        CudaFormError: the environment names none of ``UNITS``.
    """
    chosen = os.environ.get(UNIT, "int8")
    if chosen not in UNITS:
        raise CudaFormError(
            f"{UNIT} is {chosen!r}, but digits of exact products are multiplied by int8 (tensor "
            "cores of 8 bits), half (those of 16 bits) or plain (none). Set it to one of these, or "
            "unset it."
        )
    return chosen


@functools.cache
def processors(device: Any) -> int:
    import torch

    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@functools.cache
def _is_hopper(device: Any) -> bool:
    """Tell whether a GPU has the instructions of ``gluon_exact``, and Triton has its language."""
    import torch

    return torch.cuda.get_device_capability(device)[0] == 9 and gluon("gluon_exact") is not None


class Digits(NamedTuple):
    """A batch of matrices as digits.

    Attributes:
        parts: the upper digits of all rows, dense, one row behind the other; then the lower ones.
        units: for each chunk and row the unit.
    """

    parts: Any
    units: Any


def empty_digits(rows: int, k: int, device: Any) -> Digits:
    """Return memory for the digits of so many rows of k numbers."""
    import torch

    parts = torch.empty(2, rows, -(-k // PAD) * PAD, dtype=torch.int8, device=device)
    return Digits(parts, torch.empty(-(-k // _chunk), rows + PAD, device=device))


def _digits_held(count: int, k: int, rows: Sequence[int]) -> tuple[int, dict[str, Any]]:
    """Return how many programs write so many rows of k numbers as digits, and their constants."""
    # A short row is one chunk of fewer terms.
    chunk = min(_chunk, max(PAD, 1 << log2(k)))
    held = _HELD[0] // chunk
    programs = sum(count * -(-n // held) * -(-k // chunk) for n in rows)
    return programs, {"SLACK": PAD, "CHUNK": chunk, "ROWS": held}


@functools.lru_cache(maxsize=8192)
def _digits_launch(
    shape: tuple[int, int, int], strides: tuple[int, ...], device: Any, chunk: int, dtype: Any
) -> Launch:
    """Return the launch, which is compiled for the dtype of the matrices, and of one chunk."""
    count, rows, k = shape
    programs, held = _digits_held(count, k, (rows,))
    numbers = (rows, k, -(-k // PAD) * PAD, count, *strides)
    constants = {"EVEN": k % 16 == 0, "ALIGNED": rows % 16 == 0, **held}
    return Launch("digits", programs, device, numbers, constants, _HELD[1])


@functools.lru_cache(maxsize=8192)
def _both_launch(
    sizes: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...], device: Any, chunk: int
) -> Launch:
    """Return the launch for factors with these strides; the last argument is that of the units."""
    count, m, n, k = sizes
    programs, held = _digits_held(count, k, (m, n))
    constants = {
        "EVEN": k % 16 == 0, "X_ALIGNED": m % 16 == 0, "Y_ALIGNED": n % 16 == 0, **held
    }  # fmt: skip
    numbers = (m, n, k, -(-k // PAD) * PAD, count, *a, *b)
    return Launch("both_digits", programs, device, numbers, constants, _HELD[1])


def digits(x: Any, exponents: Any = None) -> Digits:
    """Return a batch of matrices, with any strides, as digits of their rows.

    Args:
        x: (batches, rows, k) in bfloat16; or weights in float32.
        exponents: of the units of the values that have these weights, which are multiplied by
            them; None of bfloat16.
    """
    count, rows, k = x.shape
    found = empty_digits(count * rows, k, x.device)
    made = _digits_launch(x.shape, x.stride(), x.device, _chunk, x.dtype)
    made(x, exponents, *found.parts, found.units)
    return found


def _of_both(a: Any, b: Any) -> tuple[Digits, Digits]:
    """Return what ``digits`` gives for two batches of rows in bfloat16, in one launch."""
    (count, m, k), n = a.shape, b.shape[1]
    left, right = (empty_digits(count * rows, k, a.device) for rows in (m, n))
    made = _both_launch((count, m, n, k), a.stride(), b.stride(), a.device, _chunk)
    made(a, *left.parts, left.units, b, *right.parts, right.units)
    return left, right


class Plan(NamedTuple):
    """How programs share products of digits.

    Attributes:
        launch: of the kernel.
        splits: in how many parts of 2^levels chunks k is cut.
        room: of the sums that wait, in elements.
        tile: whose descriptors the kernel takes; None if it takes tensors.
    """

    launch: Launch
    splits: int
    room: int
    tile: Tile | None


def split(tasks: int, chunks: int, enough: int, least: int = 1) -> int:
    """Return how many levels of chunks, at least so many, a task adds up, to fill a GPU."""
    levels = log2(chunks)
    while levels > least and tasks * -(-chunks >> levels) < enough:
        levels -= 1
    return levels


def _tiles(m: int, n: int, batches: int, tile: Tile) -> int:
    return batches * -(-m // tile.rows) * -(-n // tile.columns)


def _small_tile(m: int, n: int, kind: str) -> Tile:
    """Return the tile of the kernel for all GPUs."""
    side = 64 if kind == "int8" else 32
    rows, columns = (min(side, max(16, 1 << log2(size))) for size in (m, n))
    return Tile(rows, columns, 64, 4, 3, 2)


@functools.lru_cache(maxsize=8192)
def planned(
    m: int, n: int, k: int, batches: int, device: Any, kind: str, chunk: int,
    dtypes: tuple[Any, ...],
) -> Plan:  # fmt: skip
    """Return how to compute so many products of m times n results over k.

    A launch is compiled for ``dtypes``: those of the results and of what is added.
    """
    chunks, padded = -(-k // chunk), -(-k // PAD) * PAD
    enough = processors(device)
    large = kind == "int8" and min(m, n) > 32 and _is_hopper(device)
    tile = _HOPPER if large else _small_tile(m, n, kind)
    tasks = _tiles(m, n, batches, tile)
    levels = split(tasks, chunks, enough)
    splits = -(-chunks >> levels)
    programs = min(tasks * splits, enough * tile.resident)
    numbers = (m, n, padded, chunks, batches, splits)
    constants: dict[str, Any] = {"LEVELS": levels, "CHUNK": chunk}
    if large:
        constants |= {
            "STAGES": tile.stages, "SLOTS": min(levels, tile.slots),
            "SLACK": PAD, "WARPS": tile.warps,
        }  # fmt: skip
        made = Launch("tiled_products", programs, device, numbers, constants, tile.warps)
    else:
        constants |= {
            "ROWS": tile.rows, "COLUMNS": tile.columns, "STEP": tile.step,
            "TILED": m % tile.rows == 0 and n % tile.columns == 0, "KIND": kind, "SLACK": PAD,
        }  # fmt: skip
        made = Launch(
            "exact_products", programs, device, numbers, constants, tile.warps, tile.stages
        )
    room = programs * levels * tile.rows * tile.columns
    return Plan(made, splits, room, tile if large else None)


@functools.lru_cache(maxsize=8192)
def _rows_launch(
    m: int, n: int, k: int, strides: tuple[int, ...], device: Any, chunk: int,
    dtypes: tuple[Any, ...],
) -> tuple[Launch, int, int]:  # fmt: skip
    """Return the launch for few rows, its splits, and the room of sums that wait.

    It is compiled for ``dtypes``: those of the results and of what is added.
    """
    chunks = -(-k // chunk)
    tensor = m > _PLAIN
    columns, step, warps, quarters = _ON_TENSOR_CORES if tensor else _WITHOUT
    rows = FEW if tensor else 1 << log2(m)
    across = -(-n // columns)
    levels = split(across, chunks, processors(device) * quarters // 4, 0)
    splits = -(-chunks >> levels)
    constants = {
        "EVEN": k % 16 == 0, "LEVELS": levels, "CHUNK": chunk, "ROWS": rows,
        "COLUMNS": columns, "STEP": min(chunk, step), "TENSOR": tensor,
    }  # fmt: skip
    numbers = (m, n, k, chunks, splits, *strides)
    made = Launch("exact_rows", across * splits, device, numbers, constants, warps, 1)
    return made, splits, across * splits * levels * rows * columns


def _dtypes(dtype: Any, bias: Any) -> tuple[Any, ...]:
    return dtype, None if bias is None else bias.dtype


def takes(x: Any) -> bool:
    """Tell whether a tensor is a factor of exact products on a GPU."""
    return bool(x.is_cuda and str(x.dtype) == "torch.bfloat16")


def product(a: Any, b: Any, bias: Any = None, *, wide: bool = False) -> Any:
    """Return the products of each two matrices of two batches in bfloat16.

    Args:
        a: (batches, m, k), with any strides.
        b: (batches, k, n), with any strides.
        bias: of each column, dense, in bfloat16 or float32, or None; it is added in float32.
        wide: leave the results in float32 instead of rounding them once.

    Returns:
        (batches, m, n) in bfloat16 or float32.
    """
    import torch

    (batches, m, k), n = a.shape, b.shape[2]
    dtype = torch.float32 if wide else torch.bfloat16
    if not k or not batches * m * n:
        found = torch.zeros(batches, m, n, dtype=torch.float32, device=a.device)
        return (found if bias is None else found + bias).to(dtype)
    return multiplied(*_of_both(a, b.transpose(1, 2)), (batches, m, n, k), bias, dtype)


def multiplied(
    left: Digits, right: Digits, sizes: tuple[int, int, int, int], bias: Any, dtype: Any
) -> Any:
    """Return the products of batches of rows, and of columns, that are digits.

    Args:
        left: of the rows.
        right: of the columns.
        sizes: how many matrices, rows, columns and terms.
        bias: of each column, or None.
        dtype: of the result.
    """
    import torch

    batches, m, n, k = sizes
    device = left.parts.device
    plan = planned(m, n, k, batches, device, unit(), _chunk, _dtypes(dtype, bias))
    c = torch.empty(
        (plan.splits, batches, m, n), dtype=torch.float32 if plan.splits > 1 else dtype,
        device=device,
    )  # fmt: skip
    room = torch.empty(plan.room, dtype=torch.float32, device=device) if plan.room else c
    fused = bias if plan.splits == 1 else None
    if plan.tile is None:
        plan.launch(*left.parts, left.units, *right.parts, right.units, c, room, fused)
    else:
        made, tile = gluon("gluon_exact"), plan.tile
        described = [
            made.descriptor(of.parts.flatten(0, 1), side, tile.step)
            for of, side in ((left, tile.rows), (right, tile.columns))
        ]
        plan.launch.run(
            (left.units, right.units, c, room, fused), (*described, *plan.launch.numbers)
        )
    return _ended(c, plan.splits, bias, dtype)


class Values(NamedTuple):
    """Rows of values as digits, of which each row has a unit of its own.

    Attributes:
        digits: of the columns, with units of 1.
        exponents: of the units of the rows, (batches, ``padded``).
    """

    digits: Digits
    exponents: Any


@functools.lru_cache(maxsize=8192)
def _values_launch(
    shape: tuple[int, int, int], strides: tuple[int, ...], device: Any
) -> tuple[Launch, int]:
    count, k, n = shape
    padded = -(-k // PAD) * PAD
    wide = 1 << log2(n)
    held = min(PAD, max(1, _VALUES // wide))
    programs = count * (padded // held)
    constants = {"SHORT": n % 16 == 0, "COLUMNS": wide, "ROWS": held}
    return Launch("value_digits", programs, device, (k, n, padded, *strides), constants, 4), padded


def values(v: Any) -> Values:
    """Return batches of rows of values in bfloat16, (batches, k, n), with any strides."""
    import torch

    count, k, n = v.shape
    made, padded = _values_launch(v.shape, v.stride(), v.device)
    parts = torch.empty(2, count * n, padded, dtype=torch.int8, device=v.device)
    exponents = torch.empty(count, padded, dtype=torch.int32, device=v.device)
    made(v, parts[0], parts[1], exponents)
    units = torch.ones(-(-k // _chunk), count * n + PAD, device=v.device)
    return Values(Digits(parts, units), exponents)


def weighted(w: Any, v: Any) -> Any:
    """Return weighted sums of rows of values, of which no order matters.

    Args:
        w: weights in float32, (batches, m, k), with any strides.
        v: values in bfloat16, (batches, k, n), with any strides.

    Returns:
        (batches, m, n) in float32.
    """
    import torch

    (batches, m, k), n = w.shape, v.shape[2]
    if not k or not batches * m * n:
        return torch.zeros(batches, m, n, dtype=torch.float32, device=w.device)
    right = values(v)
    left = digits(w, right.exponents)
    return multiplied(left, right.digits, (batches, m, n, k), None, torch.float32)


def mm(a: Any, b: Any, bias: Any = None, *, wide: bool = False) -> Any:
    """Return the product of two matrices in bfloat16, as ``product`` does of those of batches."""
    import torch

    (m, k), n = a.shape, b.shape[1]
    few = FEW if unit() == "int8" else _PLAIN
    if k and 0 < m <= few and n:
        return _of_rows(a, b, bias, torch.float32 if wide else torch.bfloat16)
    if k and 0 < n <= few and m and bias is None:
        return _of_rows(b.t(), a.t(), None, torch.float32 if wide else torch.bfloat16).t()
    return product(a[None], b[None], bias, wide=wide)[0]


def _of_rows(a: Any, b: Any, bias: Any, dtype: Any) -> Any:
    """Return the product of a few rows and a matrix."""
    import torch

    (m, k), n = a.shape, b.shape[1]
    strides = (*a.stride(), *b.stride())
    made, splits, size = _rows_launch(m, n, k, strides, a.device, _chunk, _dtypes(dtype, bias))
    c = torch.empty((splits, m, n), dtype=torch.float32 if splits > 1 else dtype, device=a.device)
    room = torch.empty(size, dtype=torch.float32, device=a.device) if size else c
    made(a, b, c, room, bias if splits == 1 else None)
    return _ended(c, splits, bias, dtype)


def _ended(c: Any, splits: int, bias: Any, dtype: Any) -> Any:
    """Add the parts of products, and what is added to these, and round the results."""
    if splits == 1:
        return c[0]
    return sums(c, 0, dtype=dtype) if bias is None else (sums(c, 0) + bias).to(dtype)
