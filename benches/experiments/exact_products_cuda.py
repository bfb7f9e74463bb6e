# SPDX-License-Identifier: Apache-2.0
"""Products and attention under repro against stock's on CUDA, in turns.

    python -m benches.experiments.exact_products_cuda [--store FILE]

Replays of CUDA graphs, timed by CUDA events, take turns in random order. ``NT`` is the layout of a
linear layer, ``NN`` that of the gradient of its input, ``TN`` that of its weight. Sizes are those
of square matrices, of layers of a language model of 1 B parameters, and of decoding, where a graph
goes through as many weights as the cache of a GPU does not hold. Attention is causal, of 32 heads
of 64 numbers, of which 8 have keys and values of their own, forward alone and with its gradients.
These have bfloat16; products of float32 are those of squares, and of layers of small models.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional as F

from benches import stored
from benches.experiments import command
from benches.experiments.cuda_digests import gpu
from benches.experiments.cuda_speed import events
from pytest_udftorch import patched

LIBRARIES: Final = ("std", "repro")
LAYOUTS: Final = ("NT", "NN", "TN")

#: Rows, terms and columns.
LARGE: Final = ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (2048, 2048, 8192),
                (2048, 8192, 2048))  # fmt: skip
DECODING: Final = ((1, 4096, 4096), (8, 4096, 4096), (16, 2048, 8192))

#: In float32.
PLAIN: Final = ((4096, 4096, 4096), (1024, 1024, 1024), (512, 512, 512), (256, 256, 256),
                (256, 768, 768), (256, 768, 3072), (256, 3072, 768))  # fmt: skip

#: Weights that a graph of decoding goes through.
WEIGHTS: Final = 10

#: Lengths of sequences, of so many samples each.
LENGTHS: Final = (512, 2048, 8192)
SAMPLES: Final = {512: 8, 2048: 4, 8192: 1}
HEADS, SHARED, SIZE = 32, 8, 64

Tensor = torch.Tensor


def made(rows: int, columns: int, dtype: torch.dtype, across: bool) -> Tensor:
    """Return a random matrix, whose columns are dense if ``across``."""
    shape = (columns, rows) if across else (rows, columns)
    x = torch.randn(shape, device="cuda", dtype=dtype)
    return x.t() if across else x


def captured(library: str, call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return a graph of a call under a library, which is called before."""
    with patched(library):
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        found = torch.cuda.CUDAGraph()
        with torch.cuda.graph(found):
            call()
    return found


def measured(
    shape: tuple[int, int, int], dtype: torch.dtype, layout: str, count: int, rounds: int
) -> dict[str, Any]:
    """Return how long one product takes under both libraries, and stock's time over repro's."""
    m, k, n = shape
    x = made(m, k, dtype, layout[0] == "T")
    weights = [made(k, n, dtype, layout[1] == "T") for _ in range(count)]
    graphs = {n: captured(n, lambda: [x @ weight for weight in weights]) for n in LIBRARIES}
    times = events({name: g.replay for name, g in graphs.items()}, rounds, flush=False)
    ratio = [a / b for a, b in zip(times["std"], times["repro"], strict=True)]
    return {
        "m": m, "k": k, "n": n, "dtype": str(dtype).removeprefix("torch."), "layout": layout,
        "std_over_repro": stored.summary(ratio),
        "ns": {name: stored.summary([t / count for t in of]) for name, of in times.items()},
    }  # fmt: skip


def attention(length: int, rounds: int) -> dict[str, Any]:
    """Return how long attention takes under both libraries, and stock's time over repro's."""
    q, k, v = (
        torch.randn(
            SAMPLES[length], length, heads, SIZE, device="cuda", dtype=torch.bfloat16
        ).transpose(1, 2).requires_grad_()
        for heads in (HEADS, SHARED, SHARED)
    )  # fmt: skip
    grad = torch.randn_like(q)

    def forward() -> None:
        with torch.no_grad():
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def both() -> None:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        torch.autograd.grad(y, (q, k, v), grad)

    found: dict[str, Any] = {"length": length, "samples": SAMPLES[length]}
    for what, call in (("forward", forward), ("with gradients", both)):
        graphs = {library: captured(library, call) for library in LIBRARIES}
        times = events({name: g.replay for name, g in graphs.items()}, rounds, flush=False)
        ratio = [a / b for a, b in zip(times["std"], times["repro"], strict=True)]
        found[what] = {
            "std_over_repro": stored.summary(ratio),
            "ns": {name: stored.summary(of) for name, of in times.items()},
        }
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("exact_products_cuda", __doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = False
    of_all = ((torch.bfloat16, LARGE), (torch.float32, PLAIN))
    cases = [(s, dtype, layout, 1) for dtype, of in of_all for s in of for layout in LAYOUTS]
    cases += [(shape, torch.bfloat16, "NT", WEIGHTS) for shape in DECODING]
    figures: dict[str, Any] = {"device": gpu(), "shapes": [], "attention": []}

    def add(to: str, row: dict[str, Any], said: str) -> None:
        figures[to].append(row)
        print(f"{said} of stock's speed", flush=True)
        torch.cuda.empty_cache()
        # After each row, so that an interrupted run keeps its results.
        command.store("exact_products_cuda", options, figures)

    for length in LENGTHS:
        row = attention(length, options.rounds)
        ways = ("forward", "with gradients")
        both = ", ".join(f"{w} {row[w]['std_over_repro']['median']:.2f}" for w in ways)
        add("attention", row, f"attention over {length}: {both}")
    for case in cases:
        row = measured(*case, options.rounds)
        add("shapes", row, f"{case} {row['std_over_repro']['median']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
