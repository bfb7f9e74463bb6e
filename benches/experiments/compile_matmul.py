# SPDX-License-Identifier: Apache-2.0
"""Square matrix products: interpreted, by NumPy, in C++, CUDA and Triton, and compiled.

    python -m benches.experiments.compile_matmul OUT.json [--scale full] [--device cuda]

``interpreted`` is ``a @ b`` in Python, which calls MKL or cuBLAS. ``C++``, ``CUDA`` and
``Triton`` are kernels of this project: a loop over blocks on all threads of the host, and
tiled kernels on the GPU. NumPy calls the BLAS that it brings, on the host. All compute in float32
without TF32. The compiled forms, in four modes, are made with empty caches, and a row holds the
time of their first calls.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benches.experiments import experiment, native
from benches.experiments.experiment import Case, Experiment, Prepared
from pytest_udftorch.measure.planning import executors
from pytest_udftorch.prove.judge.accuracy import accuracy

MODES = (
    "compile",
    "compile-reduce-overhead",
    "compile-max-autotune",
    "compile-max-autotune-no-cudagraphs",
)

#: Rows of the result that are compared with float64. All of them would take longer than the bench.
CHECKED_ROWS = 64

#: The published curve goes up to 17,500. The last sizes refine it where the budget allows.
SIZES = {
    ("cpu", "small"): (128, 512),
    ("cpu", "full"): (250, 500, 1000, 2000, 4000),
    ("cuda", "small"): (256, 1024),
    ("cuda", "full"): (250, 500, 1000, 2500, 5000, 10000, 17500, 7500, 12500, 15000),
}
COMPILED = {
    ("cpu", "small"): (128,),
    ("cpu", "full"): SIZES["cpu", "full"],
    ("cuda", "small"): (256,),
    ("cuda", "full"): (250, 1000, 5000, 17500),
}


class Product(nn.Module):
    """``a @ b``."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the product of two matrices."""
        return a @ b


@functools.cache
def _library() -> ctypes.CDLL:
    return native.load(
        "matmul.cpp", "-std=c++17", "-O3", "-march=native", "-pthread",
        "-mprefer-vector-width=512", "-ffp-contract=fast", "-lstdc++",
    )  # fmt: skip


def by_cpp(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    """Return a call of the C++ loop on two n x n float32 matrices, on torch's threads."""
    function = _library().bench_matmul
    function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t] * 2
    function.restype = None
    n, threads = a.shape[0], torch.get_num_threads()

    def call() -> Tensor:
        c = torch.empty_like(a)
        function(a.data_ptr(), b.data_ptr(), c.data_ptr(), n, threads)
        return c

    return call


def by_numpy(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    """Return a call of NumPy's product of two matrices on the CPU."""
    x, y = a.numpy(), b.numpy()
    return lambda: torch.from_numpy(x @ y)


def _own(device: str) -> dict[str, Callable[[Tensor, Tensor], Callable[[], Tensor]]]:
    if device == "cpu":
        return {"NumPy": by_numpy, "C++": by_cpp}
    from benches.experiments.matmul_cuda import by_cuda, by_triton

    return {"CUDA": by_cuda, "Triton": by_triton}


def allowed(n: int, interpreted: float) -> float:
    """Return the distance to float64 up to which a float32 product of n x n matrices is right.

    The rounding errors of a plain loop grow with the root of its length (Higham, Accuracy and
    Stability of Numerical Algorithms, 2002, section 2.8). A product in TF32 is far above that.
    """
    return max(4 * interpreted, math.sqrt(n) * 2**-24)


def cases(device: str, scale: str) -> list[Case]:
    """Return the sizes, and whether the compiled forms are made too."""
    return [{"n": n, "compiled": n in COMPILED[device, scale]} for n in SIZES[device, scale]]


def prepare(case: Case, device: str) -> Prepared:
    """Return the contenders on two normally distributed matrices."""
    generator = torch.Generator().manual_seed(case["n"])
    a, b = (torch.randn(case["n"], case["n"], generator=generator).to(device) for _ in range(2))
    wanted = a[:CHECKED_ROWS].double() @ b.double()
    calls: dict[str, Callable[[], Any]] = {"interpreted": lambda: a @ b}
    first_call_ns: dict[str, int] = {}
    failures: dict[str, str] = {}

    def add(name: str, make: Callable[[], Callable[[], Any]]) -> None:
        start = time.perf_counter_ns()
        try:
            call = make()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            return
        first_call_ns[name] = time.perf_counter_ns() - start
        calls[name] = call

    for name, own in _own(device).items():
        add(name, lambda own=own: own(a, b))
    for mode in MODES if case["compiled"] else ():
        # The compiled forms of one size would otherwise find each other's code.
        torch._dynamo.reset()
        with experiment.cold():
            run = executors.make(executors.resolve(mode), Product().eval(), (a, b))
            add(mode, lambda run=run: lambda: run(a, b))
    distances = {
        name: accuracy(call()[:CHECKED_ROWS], wanted).distance for name, call in calls.items()
    }
    limit = allowed(case["n"], distances["interpreted"])
    for name in [name for name, distance in distances.items() if distance > limit]:
        failures[name] = f"wrong: {distances[name]:.3g} from float64"
        del calls[name]
    return Prepared(
        calls,
        {"first_call_ns": first_call_ns, "failures": failures, "distance_to_float64": distances},
    )


EXPERIMENT = Experiment("compile_matmul", cases, prepare, budget_s={"small": 120.0, "full": 90.0})

if __name__ == "__main__":
    sys.exit(experiment.main(EXPERIMENT, __doc__))
