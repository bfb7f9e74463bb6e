# SPDX-License-Identifier: Apache-2.0
"""Attention on CUDA under a session against the stock operators, in one interleaved run.

    python -m benches.experiments.cuda_attention [--store FILE]

bfloat16, batch 4, 16 heads. Replays of CUDA graphs, timed by CUDA events, take turns in random
order: stock's operator, corem's kernel in its place, and the math form under corem.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benches import stored
from benches.experiments import command
from benches.experiments.cuda_digests import gpu
from benches.experiments.cuda_speed import events
from pytest_udftorch import patched

BATCH, HEADS = 4, 16

#: Size of a head, length, causal.
SHAPES = tuple(
    (size, length, causal)
    for length in (4096, 1024)
    for size in (64, 128)
    for causal in (False, True)
)  # fmt: skip
OPERATORS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def _graph(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def _graphs(size: int, length: int, causal: bool, gradient: bool) -> dict[str, Any]:
    """Return a graph for each contender."""
    shape = (BATCH, HEADS, length, size)
    leaves = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    for leaf in leaves:
        leaf.requires_grad_(gradient)
    grad = torch.randn_like(leaves[0])

    def call() -> Any:
        out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
        return torch.autograd.grad(out, leaves, grad) if gradient else out

    found = {}
    for name, backend in OPERATORS.items():
        with sdpa_kernel(backend), patched("std"):
            found[name] = _graph(call)
    with patched("corem"):
        for name, backend in (("corem", OPERATORS["flash"]), ("math", SDPBackend.MATH)):
            with sdpa_kernel(backend):
                found[name] = _graph(call)
    return found


def measure(rounds: int, kept: Callable[[list[dict[str, Any]]], None]) -> None:
    """Give ``kept`` the times of every shape so far, forward and with the gradient."""
    rows: list[dict[str, Any]] = []
    for size, length, causal in SHAPES:
        for gradient in (False, True):
            graphs = _graphs(size, length, causal, gradient)
            times = events({n: g.replay for n, g in graphs.items()}, rounds, flush=False)
            by = {
                f"{n}_over_corem": stored.summary(
                    [a / b for a, b in zip(times[n], times["corem"], strict=True)]
                )
                for n in times
                if n != "corem"
            }
            row = {"size": size, "length": length, "causal": causal, "gradient": gradient}
            rows.append({**row, "ns": {n: stored.summary(t) for n, t in times.items()}, **by})
            ratios = ", ".join(f"{n} {v['median']:.2f}" for n, v in by.items())
            print(row, ratios, flush=True)
            del graphs
            torch.cuda.empty_cache()
            kept(rows)


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("cuda_attention", __doc__)
    parser.add_argument("--rounds", type=int, default=23)
    options = parser.parse_args(arguments)

    def kept(rows: list[dict[str, Any]]) -> None:
        # After each shape, so that an interrupted run keeps its results.
        figures = {"device": gpu(), "batch": BATCH, "heads": HEADS, "shapes": rows}
        command.store("cuda_attention", options, figures)

    measure(options.rounds, kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
