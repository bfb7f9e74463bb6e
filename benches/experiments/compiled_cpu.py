# SPDX-License-Identifier: Apache-2.0
"""What the UDFs cost inside code that TorchInductor compiles for the CPU.

    python -m benches.experiments.compiled_cpu [--rounds N] [--store]

Each case is compiled twice, outside any session and under corem. One process calls the two in
turns, on one thread. The ratio is the median over the pairs of calls.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from benches import stored
from pytest_udftorch import patched


def softmax_times_exp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(2 * x + 1, -1) * torch.exp(y)


def cases() -> dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]]:
    """Return name -> function and inputs; float32, about a million elements each."""
    torch.manual_seed(0)
    mlp = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
    ).eval()
    return {
        "softmax(2x+1) exp(y), 1024 x 1024": (
            softmax_times_exp,
            (torch.randn(1024, 1024), torch.randn(1024, 1024)),
        ),
        "GELU MLP 256-1024-256, batch 512": (mlp, (torch.randn(512, 256),)),
        "gelu, 2^20": (torch.nn.functional.gelu, (torch.randn(1 << 20),)),
        "gelu tanh, 2^20": (
            lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
            (torch.randn(1 << 20),),
        ),
    }


def compiled(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """Return Inductor's code for ``function``; later sessions do not change it."""
    made: Callable[..., Any] = torch._inductor.compile(make_fx(function)(*inputs), list(inputs))
    return made


def times(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], rounds: int
) -> dict[str, list[int]]:
    """Return ``stock`` and ``corem`` -> nanoseconds of each call, in turns."""
    with torch.no_grad():
        stock = compiled(function, inputs)
        with patched("corem"):
            udf = compiled(function, inputs)
        if torch.equal(stock(*inputs), udf(*inputs)):
            raise RuntimeError(
                "Both give the same bits: the compiled code does not contain corem's functions."
            )
        found: dict[str, list[int]] = {"stock": [], "corem": []}
        for _ in range(3 + rounds):
            for name, call in (("stock", stock), ("corem", udf)):
                start = time.perf_counter_ns()
                call(*inputs)
                found[name].append(time.perf_counter_ns() - start)
    return {name: values[3:] for name, values in found.items()}


def compare(function: Callable[..., Any], inputs: Sequence[torch.Tensor], rounds: int) -> Any:
    """Return times in ns of stock and corem, and the median of their ratios."""
    return summary(times(function, inputs, rounds))


def summary(warm: dict[str, list[int]]) -> dict[str, dict[str, float]]:
    """Return quartiles of what :func:`times` returned, and of the ratios of its pairs."""
    ratios = [u / s for s, u in zip(warm["stock"], warm["corem"], strict=True)]
    return {
        **{f"{name}_ns": stored.summary(values) for name, values in warm.items()},
        "corem_over_stock": stored.summary(ratios),
    }


def measure(rounds: int) -> dict[str, Any]:
    """Return the comparison of every case; restores torch's number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: compare(f, inputs, rounds) for name, (f, inputs) in cases().items()}
    finally:
        torch.set_num_threads(threads)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.experiments.compiled_cpu", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args(arguments)
    found = measure(options.rounds)
    for name, figures in found.items():
        ratio = figures["corem_over_stock"]
        print(
            f"{name}: {ratio['median']:.2f} "
            f"({ratio['lower_quartile']:.2f} to {ratio['upper_quartile']:.2f})"
        )
    if options.store:
        command = f"python -m benches.experiments.compiled_cpu --rounds {options.rounds} --store"
        stored.save(stored.RESULTS / "compiled_cpu.json", command, {"cases": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
