# SPDX-License-Identifier: Apache-2.0
"""How fast are fusion plans beside eager mode, TorchInductor, JAX and SystemDS?

    python -m benches.experiments.fusion_plans [--scale F] [--runs N] [--store FILE]

The cases are those of SystemDS' paper: the line search of an L2SVM, multinomial logistic
regression, the Hessian of a generalised linear model, Poisson non-negative factorisation, k-means,
an autoencoder, and with sparse matrices a cross entropy, ALS and a sum with a sparse part. All
contenders compute the same from the same inputs on one core, since kernels of udf_fusion use one
thread; each result is compared with eager mode. Where eager mode has no operator for sparse
matrices, it and TorchInductor are given dense ones. The kernels of udf_fusion run whatever their
time (``gain`` 0). JAX is given a sparse matrix in its dense form. The times of SystemDS are those
of its own script in one process of Java, without reading the inputs, after calls that are not
timed. JAX and SystemDS are left out where their packages, or Java, are missing. Cases are written
to the journal, from which a run that is interrupted goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

import pytest_udftorch
from benches.experiments import command, fusion_jax, systemds
from pytest_udftorch.measure import fused, recording, sync_timer

#: What decides between floating-point results that are added in another order.
TOLERANCE: Final = 1e-3
LIBRARY: Final = "corem"


def l2svm(out: Tensor, d: Tensor, y: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradient and curvature of the line search of an L2SVM, given x @ w and x @ s."""
    kept = 1 - y * (out + step * d)
    inside = kept > 0
    return (kept * inside * y * d).sum(), (d * d * inside).sum()


def logistic(x: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradient and loss of multinomial logistic regression."""
    p = torch.softmax(x @ b, 1)
    return x.T @ (p - y), -(y * torch.log(p + 1e-9)).sum()


def poisson(x: Tensor, w: Tensor, h: Tensor) -> Tensor:
    """Return the loss of Poisson non-negative factorisation."""
    product = w @ h
    return (product - x * torch.log(product + 1e-9)).sum()


def kmeans(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return the assignment to centres, and the sum of the distances."""
    d = (c * c).sum(1) - 2 * (x @ c.T)
    least = d.amin(1, keepdim=True)
    near = (d <= least) * 1.0
    return near / near.sum(1, keepdim=True), least.sum()


def autoencoder(x: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of an autoencoder of two layers, and the derivative at its output."""
    seen = torch.sigmoid(torch.sigmoid(x @ u) @ v)
    far = seen - x
    return (far * far).sum(), far * seen * (1 - seen)


def sparse(x: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return the part of the loss of a factorisation that a sparse x decides."""
    return (x * torch.log(u @ v.T + 1e-9)).sum()


def glm(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Return the product of a generalised linear model's Hessian and a direction."""
    return x.T @ (w * (x @ v))


def als(x: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Return the loss of a factorisation where x has elements, and both gradients."""
    e = (x != 0) * (u @ v.T - x)
    return (e * e).sum(), e @ v, e.T @ u


def part(x: Tensor, u: Tensor, v: Tensor, y: Tensor) -> Tensor:
    """Return a matrix to which the elements of a product are added where another is not zero."""
    return y + x * (u @ v.T)


@dataclass(frozen=True)
class Case:
    """A function and its inputs.

    Attributes:
        function: of tensors.
        inputs: makes them, from the number of rows.
        rows: the number of rows at full scale.
        dense: whether eager mode needs dense matrices.
    """

    function: Callable[..., Any]
    inputs: Callable[[int], tuple[Tensor, ...]]
    rows: int
    dense: bool = False

    def eager(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return what eager mode is given of inputs."""
        return [t.to_dense() if self.dense else t for t in inputs]


def _sparse(rows: int) -> tuple[Tensor, ...]:
    x = torch.rand(rows, 2000) * (torch.rand(rows, 2000) < 0.01)
    return x.to_sparse_csr(), torch.rand(rows, 32), torch.rand(2000, 32)


def _svm(rows: int) -> tuple[Tensor, ...]:
    return torch.randn(rows), torch.randn(rows), torch.randn(rows).sign(), torch.tensor(0.3)


def _labelled(rows: int) -> tuple[Tensor, ...]:
    y = torch.eye(10)[torch.randint(10, (rows,))]
    return torch.randn(rows, 50), torch.randn(50, 10) / 7, y


CASES: Final = {
    "l2svm": Case(l2svm, _svm, 4_000_000),
    "multinomial logistic": Case(logistic, _labelled, 200_000),
    "Poisson factorisation": Case(
        poisson,
        lambda n: (torch.rand(n, 1000), torch.rand(n, 10), torch.rand(10, 1000)),
        2000,
    ),
    "k-means": Case(kmeans, lambda n: (torch.randn(n, 20), torch.randn(10, 20)), 400_000),
    "autoencoder": Case(
        autoencoder,
        lambda n: (torch.rand(n, 500), torch.randn(500, 64) / 22, torch.randn(64, 500) / 8),
        4000,
    ),
    "sparse loss": Case(sparse, _sparse, 2000),
    "generalised linear model": Case(
        glm, lambda n: (torch.randn(n, 50), torch.randn(50), torch.rand(n)), 400_000
    ),
    "ALS": Case(als, _sparse, 2000, dense=True),
    "sum with a sparse part": Case(
        part, lambda n: (*_sparse(n), torch.rand(n, 2000)), 2000, dense=True
    ),
}


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Have this process, and those that it starts, run on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _leaves(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def _distance(found: Any, wanted: Any) -> float:
    """Return the largest difference of two results, in parts of the largest element."""
    pairs = zip(_leaves(found), _leaves(wanted), strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def case(name: str, scale: float, runs: int) -> dict[str, Any]:
    """Return the figures of one case."""
    it = CASES[name]
    torch.manual_seed(0)
    torch.compiler.reset()
    inputs = it.inputs(max(2, int(it.rows * scale)))
    is_sparse = inputs[0].layout is torch.sparse_csr
    plain = it.function
    given = it.eager(inputs)
    own = fused(plain)
    if not is_sparse:
        own = torch.compile(plain, backend="udf_fusion", dynamic=False, options={"gain": 0})
    contenders: dict[str, Callable[[], Any]] = {
        "eager": lambda: plain(*given),
        "inductor": functools.partial(torch.compile(plain, dynamic=False), *given),
        "udf_fusion": lambda: own(*inputs),
    }
    if not fusion_jax.missing():
        contenders["jax"] = fusion_jax.call_of(name, inputs)
    wanted = plain(*given)
    with recording() as reports:
        distances = {n: _distance(f(), wanted) for n, f in contenders.items()}
    if max(distances.values()) > TOLERANCE:
        raise pytest_udftorch.UdfError(f"{name}: results differ: {distances}")
    timer = sync_timer("cpu", runs=runs, rounds=3, warmup=2)
    timed = timer.compare(contenders)
    report = reports[-1]
    beside, failed = None, ""
    try:
        beside = systemds.times_ns(name, inputs, wanted, TOLERANCE)
    except pytest_udftorch.UdfError as error:
        failed = " ".join(str(error).split())
    return {
        "shapes": [list(t.shape) for t in inputs],
        "median_ns": {n: timed[n].median_ns for n in contenders},
        "speedup": {
            n: [s.low, s.value, s.high]
            for n in contenders
            if n != "eager" and (s := timed.speedup(n, over="eager"))
        },
        "distance": distances,
        "report": {k: v for k, v in report.document().items() if k != "pictures"},
        "systemds_ns": beside,
        "systemds_failed": failed,
        "load": os.getloadavg()[0],
    }


def _all(scale: float, runs: int, journal: Path | None) -> dict[str, Any]:
    """Return the figures of all cases: those of the journal, and the others."""
    done: dict[str, Any] = {}
    if journal is not None and journal.is_file():
        for line in journal.read_text(encoding="utf-8").splitlines():
            done.update(json.loads(line))
    for name in CASES:
        if name not in done:
            done[name] = case(name, scale, runs)
            if journal is not None:
                with journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({name: done[name]}) + "\n")
    return {name: done[name] for name in CASES}


def measure(scale: float, runs: int, journal: Path | None) -> dict[str, Any]:
    """Return the figures of all cases, with the functions of a library."""
    warnings.filterwarnings("ignore", "Sparse CSR tensor support")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad(), pytest_udftorch.patched(LIBRARY), one_core():
            cases = _all(scale, runs, journal)
    finally:
        torch.set_num_threads(threads)
    return {
        "library": LIBRARY,
        "threads": 1,
        "scale": scale,
        "systemds_calls": [systemds.WARM, systemds.TIMED],
        "systemds": systemds.missing() or systemds.version(),
        "jax": fusion_jax.missing() or fusion_jax.version(),
        "cases": cases,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser: argparse.ArgumentParser = command.parser("fusion_plans", __doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    parser.add_argument("--runs", type=int, default=7, help="turns of each contender")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="cases, as they are measured")
    options = parser.parse_args(arguments)
    given = {"--scale": (options.scale, 1.0), "--runs": (options.runs, 7)}
    options.changed = [f"{n} {v}" for n, (v, usual) in given.items() if v != usual]

    def show(figures: dict[str, Any]) -> bool:
        for name, row in figures["cases"].items():
            rules = [f["rule"] for f in row["report"]["fired"]]
            print(name, row["median_ns"], row["systemds_ns"], rules, row["report"]["left_alone"])
        return True

    return command.run(
        "fusion_plans", options, lambda: measure(options.scale, options.runs, options.journal), show
    )


if __name__ == "__main__":
    sys.exit(main())
