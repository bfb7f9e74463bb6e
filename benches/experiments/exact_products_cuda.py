# SPDX-License-Identifier: Apache-2.0
"""Exact products in bfloat16 under repro against stock's on CUDA, in one interleaved run.

    python -m benches.experiments.exact_products_cuda [--store FILE]

Replays of CUDA graphs, timed by CUDA events, take turns in random order. ``NT`` is the layout of a
linear layer, ``NN`` that of the gradient of its input, ``TN`` that of its weight. Sizes are those
of square matrices, of layers of a language model of 1 B parameters, and of decoding, where a graph
goes through as many weights as the cache of a GPU does not hold.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import torch

from benches import stored
from benches.experiments import command
from benches.experiments.cuda_digests import gpu
from benches.experiments.cuda_speed import events
from pytest_udftorch import patched

LAYOUTS: Final = ("NT", "NN", "TN")

#: Rows, terms and columns.
LARGE: Final = ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (2048, 2048, 8192),
                (2048, 8192, 2048))  # fmt: skip
DECODING: Final = ((1, 4096, 4096), (8, 4096, 4096), (16, 2048, 8192))

#: Weights that a graph of decoding goes through.
WEIGHTS: Final = 10

Tensor = torch.Tensor


def made(rows: int, columns: int, across: bool) -> Tensor:
    """Return a random matrix, whose columns are dense if ``across``."""
    shape = (columns, rows) if across else (rows, columns)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    return x.t() if across else x


def graph(library: str, x: Tensor, weights: list[Tensor]) -> torch.cuda.CUDAGraph:
    """Return a graph of products under a library."""
    with patched(library):
        for _ in range(2):
            x @ weights[0]
        torch.cuda.synchronize()
        found = torch.cuda.CUDAGraph()
        with torch.cuda.graph(found):
            for weight in weights:
                x @ weight
    return found


def measured(m: int, k: int, n: int, layout: str, count: int, rounds: int) -> dict[str, Any]:
    """Return how long one product takes under both libraries, and stock's time over repro's."""
    x = made(m, k, layout[0] == "T")
    weights = [made(k, n, layout[1] == "T") for _ in range(count)]
    graphs = {library: graph(library, x, weights) for library in ("std", "repro")}
    times = events({name: g.replay for name, g in graphs.items()}, rounds, flush=False)
    ratio = [a / b for a, b in zip(times["std"], times["repro"], strict=True)]
    return {
        "m": m, "k": k, "n": n, "layout": layout, "std_over_repro": stored.summary(ratio),
        "ns": {name: stored.summary([t / count for t in of]) for name, of in times.items()},
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("exact_products_cuda", __doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    cases = [(*shape, layout, 1) for shape in LARGE for layout in LAYOUTS]
    cases += [(*shape, "NT", WEIGHTS) for shape in DECODING]
    rows = []
    for case in cases:
        rows.append(measured(*case, options.rounds))
        print(case, f"{rows[-1]['std_over_repro']['median']:.2f} of stock's speed", flush=True)
        torch.cuda.empty_cache()
        # After each shape, so that an interrupted run keeps its results.
        command.store("exact_products_cuda", options, {"device": gpu(), "shapes": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
