# SPDX-License-Identifier: Apache-2.0
"""Do pipelines run faster tile by tile, and beyond the memory?

    python -m benches.experiments.tiled_pipelines [--scale F] [--runs N] [--store FILE]

Pipelines of pointwise steps and reductions over inputs that are larger than the caches of a core:
eager mode, TorchInductor, ``tiled`` with each schedule, ``tiled`` on dask arrays, and dask arrays
alone with NumPy's functions. All use as many threads as torch, take turns, and are compared with
eager mode. The last case has more data than the machine has memory: its blocks are made when they
are asked for, and only dask can compute it. ``tiled`` on dask and dask alone are given the same
blocks.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dask
import dask.array as da
import numpy as np
import torch
from torch import Tensor

from benches.experiments import command
from pytest_udftorch import UdfError
from pytest_udftorch.measure import recording, sync_timer, tiled

TOLERANCE: Final = 1e-3
SCHEDULES: Final = ("static", "guided", "stealing")
#: Rows of a chunk of dask's, as a share of all rows.
CHUNKS: Final = 16
#: Elements of a block of the case that is larger than memory.
BLOCK: Final = 1 << 25


def polynomial(x: Any) -> Any:
    """Return two sums of polynomials: cheap steps."""
    y = (x - 0.5) * 2
    y = abs(y * y + x) + 1
    return (y * 0.3 - x).sum(), y.sum()


def activations(x: Tensor) -> Tensor:
    """Return a sum of activations: steps that compute."""
    y = torch.tanh(x) * 0.5 + torch.sigmoid(x)
    return ((y * y + 1).rsqrt() * torch.relu(x) - y).sum()


def activations_numpy(x: Any) -> Any:
    """Return the same of NumPy's functions."""
    y = np.tanh(x) * 0.5 + 1 / (1 + np.exp(-x))
    return (np.maximum(x, 0) / np.sqrt(y * y + 1) - y).sum()


def regression(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradient and loss of multinomial logistic regression."""
    p = torch.softmax(x @ w, 1)
    return x.T @ (p - y), -(y * torch.log(p + 1e-9)).sum()


def regression_numpy(x: Any, w: Any, y: Any) -> Any:
    """Return the same of NumPy's functions."""
    z = x @ w
    e = np.exp(z - z.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    return x.T @ (p - y), -(y * np.log(p + 1e-9)).sum()


@dataclass(frozen=True)
class Case:
    """A pipeline.

    Attributes:
        function: of tensors.
        alone: the same of dask arrays.
        inputs: makes them, from the number of rows.
        rows: the number of rows at full scale.
    """

    function: Callable[..., Any]
    alone: Callable[..., Any]
    inputs: Callable[[int], tuple[Tensor, ...]]
    rows: int


def _labelled(rows: int) -> tuple[Tensor, ...]:
    y = torch.eye(10)[torch.randint(10, (rows,))]
    return torch.randn(rows, 50), torch.randn(50, 10) / 7, y


CASES: Final = {
    "polynomials": Case(polynomial, polynomial, lambda n: (torch.randn(n),), 40_000_000),
    "activations": Case(activations, activations_numpy, lambda n: (torch.randn(n),), 40_000_000),
    "logistic regression": Case(regression, regression_numpy, _labelled, 1_000_000),
}


def _leaves(found: Any) -> list[Any]:
    return [np.asarray(t) for t in (found if isinstance(found, tuple | list) else [found])]


def _distance(found: Any, wanted: Any) -> float:
    """Return the largest difference of two results, in parts of the largest element."""
    pairs = zip(_leaves(found), _leaves(wanted), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def case(name: str, scale: float, runs: int) -> dict[str, Any]:
    """Return the figures of one case."""
    it = CASES[name]
    torch.manual_seed(0)
    torch.compiler.reset()
    rows = max(CHUNKS, int(it.rows * scale))
    inputs = it.inputs(rows)
    arrays = [
        da.from_array(t.numpy(), chunks=(rows // CHUNKS, *t.shape[1:]))
        if t.shape[0] == rows
        else t.numpy()
        for t in inputs
    ]
    on_dask = tiled(it.function, strict=True)
    compiled = torch.compile(it.function, dynamic=False)
    by_schedule = {s: tiled(it.function, schedule=s, strict=True) for s in SCHEDULES}
    calls: dict[str, Callable[[], Any]] = {
        "eager": lambda: it.function(*inputs),
        "inductor": lambda: compiled(*inputs),
        **{f"tiled, {s}": lambda f=f: f(*inputs) for s, f in by_schedule.items()},
        "tiled on dask": lambda: dask.compute(on_dask(*arrays))[0],
        "dask alone": lambda: dask.compute(it.alone(*arrays))[0],
    }
    wanted = it.function(*inputs)
    with recording() as reports:
        distances = {n: _distance(f(), wanted) for n, f in calls.items()}
    if max(distances.values()) > TOLERANCE:
        raise UdfError(f"{name}: results differ: {distances}")
    timed = sync_timer("cpu", runs=runs, rounds=1, warmup=1).compare(calls)
    return {
        "input_bytes": sum(t.numel() * t.element_size() for t in inputs),
        "median_ns": {n: timed[n].median_ns for n in calls},
        "speedup": {
            n: [s.low, s.value, s.high]
            for n in calls
            if n != "eager" and (s := timed.speedup(n, over="eager"))
        },
        "distance": distances,
        "left_alone": [r.left_alone for r in reports if r.left_alone],
    }


def _block(block_info: Any = None) -> Any:
    """Return a block of numbers from -1 to 1, from its place."""
    first, last = block_info[None]["array-location"][0]
    start = (first // BLOCK) % 7
    return np.linspace(-1 + start / 100, 1, last - first, dtype=np.float32)


def beyond(factor: float) -> dict[str, Any]:
    """Return the figures of the polynomial over more data than the machine has memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    blocks = max(2, int(memory * factor / 4 / BLOCK))
    x = da.map_blocks(_block, chunks=((BLOCK,) * blocks,), dtype=np.float32)
    run = tiled(polynomial, strict=True)
    seconds, results = {}, {}
    threads = torch.get_num_threads()
    with dask.config.set(scheduler="threads", num_workers=threads):
        for name, call in {
            "tiled on dask": lambda: dask.compute(run(x))[0],
            "dask alone": lambda: dask.compute(polynomial(x))[0],
        }.items():
            before = time.perf_counter()
            results[name] = call()
            seconds[name] = time.perf_counter() - before
    distance = _distance(results["tiled on dask"], results["dask alone"])
    if distance > TOLERANCE:
        raise UdfError(f"Beyond the memory the results differ by {distance:.2g}.")
    return {
        "memory_bytes": memory,
        "data_bytes": blocks * BLOCK * 4,
        "seconds": seconds,
        "distance": distance,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def measure(scale: float, runs: int) -> dict[str, Any]:
    """Return the figures of all cases."""
    threads = torch.get_num_threads()
    with torch.no_grad(), dask.config.set(scheduler="threads", num_workers=threads):
        larger = beyond(1.05 * scale)
        cases = {name: case(name, scale, runs) for name in CASES}
    return {
        "threads": threads,
        "scale": scale,
        "dask": dask.__version__,
        "l2_bytes": os.sysconf(191),  # glibc: _SC_LEVEL2_CACHE_SIZE
        "beyond": larger,
        "cases": cases,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser: argparse.ArgumentParser = command.parser("tiled_pipelines", __doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    parser.add_argument("--runs", type=int, default=7, help="turns of each contender")
    options = parser.parse_args(arguments)
    given = {"--scale": (options.scale, 1.0), "--runs": (options.runs, 7)}
    options.changed = [f"{n} {v}" for n, (v, usual) in given.items() if v != usual]

    def show(figures: dict[str, Any]) -> bool:
        for name, row in figures["cases"].items():
            print(name, row["median_ns"], row["left_alone"])
        print(figures["beyond"])
        return True

    return command.run(
        "tiled_pipelines", options, lambda: measure(options.scale, options.runs), show
    )


if __name__ == "__main__":
    sys.exit(main())
