# SPDX-License-Identifier: Apache-2.0
"""Tiles of dask arrays: a chunk of rows is a task of dask's, and its tiles fit into the cache."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pytest_udftorch.base import compat, optional
from pytest_udftorch.measure.rewrite.tiled.parts import JOINS
from pytest_udftorch.measure.rewrite.tiled.run import Tiled, gathered

pytree: Any = compat.pytree()


def is_dask(value: Any) -> bool:
    """Whether a value is a dask array; dask is not imported for that."""
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(value, module.Array)


def aligned(inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs, those with as many rows as the largest dask array in the same chunks."""
    largest = max((a for a in inputs if is_dask(a)), key=lambda a: a.size)
    found = []
    for value in inputs:
        if is_dask(value) and value.ndim and value.shape[0] == largest.shape[0]:
            found.append(
                value.rechunk({0: largest.chunks[0], **dict.fromkeys(range(1, value.ndim), -1)})
            )
        else:
            found.append(value.compute() if is_dask(value) else value)
    return found


def first(array: Any) -> torch.Tensor:
    """Return the first chunk of rows of an array, computed."""
    return torch.from_numpy(np.ascontiguousarray(array[: array.chunks[0][0]].compute()))


def _chunk(run: Tiled, blocks: Sequence[Any], held: Sequence[Any]) -> list[Any]:
    rows = [torch.from_numpy(np.ascontiguousarray(block)) for block in blocks]
    found = gathered(run.parts, rows, held, run.settings)
    return [value.numpy() for value in found]


def _last(run: Tiled, found: Sequence[Sequence[Any]], held: Sequence[Any], count: int) -> list[Any]:
    """Join the parts of all chunks, in their order; return the outputs that follow from them."""
    joined = [
        functools.reduce(JOINS[join], map(torch.from_numpy, map(np.asarray, values)))
        if join
        else None
        for join, *values in zip(run.parts.joins, *found, strict=True)
    ]
    with torch.no_grad():
        outputs = run.parts.after(*joined, *held, count)
    return [None if t is None else t.numpy() for t in outputs]


def lazily(run: Tiled, inputs: Sequence[Any]) -> Any:
    """Return dask arrays of the outputs.

    Args:
        run: tiles for the first chunk; other chunks may have other numbers of rows.
        inputs: aligned.
    """
    array = optional.package("dask.array", "tiled() of dask arrays")
    delayed = optional.package("dask.delayed", "tiled() of dask arrays").delayed
    rows = [inputs[number] for number in run.cut]
    # No row decides what is held, so the first chunk may stand for the rows.
    given = [first(v) if n in run.cut else torch.as_tensor(v) for n, v in enumerate(inputs)]
    with torch.no_grad():
        held = run.parts.before(*given)
    heights = rows[0].chunks[0]
    blocks = [a.to_delayed().ravel() for a in rows]
    task = delayed(_chunk)
    found = [task(run, list(row), held) for row in zip(*blocks, strict=True)]
    parts = [
        [chunk[p] if join else None for p, join in enumerate(run.parts.joins)] for chunk in found
    ]
    last = delayed(_last)(run, parts, held, sum(heights))
    outputs = [_like(t) for t in _hollow(run, given)]
    results = []
    for place, passed in enumerate(run.parts.passed):
        shape, dtype = outputs[place]
        if passed is None:
            results.append(array.from_delayed(last[place], shape, dtype))
            continue
        results.append(
            array.concatenate(
                [
                    array.from_delayed(chunk[passed], (height, *shape[1:]), dtype)
                    for chunk, height in zip(found, heights, strict=True)
                ]
            )
        )
    return pytree.tree_unflatten(results, run.parts.structure)


def _hollow(run: Tiled, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return outputs of the right kinds, from one row."""
    one = [t[:1] if n in run.cut else t for n, t in enumerate(given)]
    with torch.no_grad():
        return list(pytree.tree_leaves(run(*one)))


def _like(tensor: torch.Tensor) -> tuple[tuple[int, ...], Any]:
    return tuple(tensor.shape), tensor.numpy().dtype
