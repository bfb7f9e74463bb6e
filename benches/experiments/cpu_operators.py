# SPDX-License-Identifier: Apache-2.0
"""What the CPU operators that a session overrides cost against stock.

    python -m benches.experiments.cpu_operators [--level avx2] [--store FILE]

Stock and session take turns in one process and one thread. A turn takes as many calls as take
about two milliseconds under stock. What counts is the CPU time of the thread: on a shared machine a
longer turn is interrupted more often, and the clock on the wall would charge it for that. Some
calls before each turn are not timed: the first in a session goes through Python, and what opening
one did has to leave the caches.

With ``--level avx2`` torch, oneDNN, MKL and the library use AVX2, as on a CPU without AVX-512.

The C library keeps freed memory (``mallopt``). Otherwise results of a megabyte and more are given
back to the kernel after some calls and not after others, and a new page costs more than its values.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from benches import stored
from benches.experiments import command
from pytest_udftorch import patched

LIBRARY = "corem"
SIZES = (1_000, 1 << 15, 1 << 19)
TURNS = 21
TURN_NS = 2_000_000
#: Calls before a turn that are not timed.
UNTIMED = 5
#: Level -> what the environment says for it before torch starts.
LEVELS = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2", "UDFTORCH_CPU_LEVEL": "avx2",
    },
}  # fmt: skip

Call = Callable[[], object]

# <malloc.h>
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let the C library of this process keep what is freed, and map no block on its own.

    It starts with pages that were written, more than any call needs.
    """
    libc = ctypes.CDLL(None)
    for parameter in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        libc.mallopt(parameter, 1 << 30)
    torch.ones(1 << 28, dtype=torch.uint8)


def gelus() -> dict[str, Call]:
    """Return gelu and its gradient in both approximations, and erf, at each size."""
    calls: dict[str, Call] = {}
    for size in SIZES:
        x = torch.randn(size, generator=torch.Generator().manual_seed(size))
        gradient = torch.ones_like(x)
        for how in ("none", "tanh"):
            name = "erf" if how == "none" else how
            calls[f"gelu ({name}), {size:,}"] = lambda x=x, how=how: F.gelu(x, approximate=how)
            calls[f"gelu ({name}), gradient, {size:,}"] = lambda x=x, g=gradient, how=how: (
                torch.ops.aten.gelu_backward(g, x, approximate=how)
            )
        calls[f"erf, {size:,}"] = lambda x=x: torch.erf(x)
    return calls


def attentions() -> dict[str, Call]:
    """Return attention, forward, and forward with backward."""
    calls: dict[str, Call] = {}
    for batch, heads, length, size in ((1, 12, 128, 64), (4, 8, 512, 64)):
        generator = torch.Generator().manual_seed(length)
        q, k, v = (torch.randn(batch, heads, length, size, generator=generator) for _ in range(3))
        trained = [t.clone().requires_grad_() for t in (q, k, v)]

        def both(trained: list[torch.Tensor] = trained) -> None:
            F.scaled_dot_product_attention(*trained, is_causal=True).sum().backward()

        shape = f"{batch}×{heads}×{length}×{size}"
        calls[f"attention, causal, {shape}"] = lambda q=q, k=k, v=v: F.scaled_dot_product_attention(
            q, k, v, is_causal=True
        )
        calls[f"attention with its gradient, {shape}"] = both
    return calls


def others() -> dict[str, Call]:
    """Return LSTM layers, forward, and forward with backward; and normal variates."""
    calls: dict[str, Call] = {}
    for steps, lines, inputs, size in ((50, 1, 32, 64), (50, 32, 64, 128), (100, 8, 128, 256)):
        layer, x = torch.nn.LSTM(inputs, size), torch.randn(steps, lines, inputs)

        def both(layer: torch.nn.LSTM = layer, x: torch.Tensor = x) -> None:
            layer(x)[0].sum().backward()

        def forward(layer: torch.nn.LSTM = layer, x: torch.Tensor = x) -> None:
            with torch.no_grad():
                layer(x)

        shape = f"{steps}×{lines}×{inputs} to {size}"
        calls[f"LSTM, {shape}"] = forward
        calls[f"LSTM with its gradient, {shape}"] = both
    for size in SIZES:
        calls[f"normal_, {size:,}"] = torch.empty(size).normal_
    return calls


def _time_ns(call: Call, count: int) -> float:
    begin = time.thread_time_ns()
    for _ in range(count):
        call()
    return (time.thread_time_ns() - begin) / count


def _turn(call: Call, count: int) -> float:
    _time_ns(call, UNTIMED)
    return _time_ns(call, count)


def compared(call: Call) -> dict[str, Any]:
    """Return the times of a call, and the ratios of neighbouring turns."""
    count = max(1, int(TURN_NS / max(1, _time_ns(call, 2))))
    stock, ours = [], []
    for _ in range(TURNS):
        stock.append(_turn(call, count))
        with patched(LIBRARY):
            ours.append(_turn(call, count))
    ratios = [mine / theirs for mine, theirs in zip(ours, stock, strict=True)]
    return {
        "stock_us": statistics.median(stock) / 1e3,
        "session_us": statistics.median(ours) / 1e3,
        "ratio": stored.summary(ratios),
    }


def every() -> dict[str, Call]:
    """Return all that is measured."""
    return gelus() | attentions() | others()


def measure() -> dict[str, Any]:
    """Return operator -> times and ratios."""
    keep_freed_memory()
    torch.set_num_threads(1)
    with patched(LIBRARY):  # compiled before anything is timed
        for call in every().values():
            call()
    rows = {name: compared(call) for name, call in every().items()}
    return {"library": LIBRARY, "threads": 1, "operators": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("cpu_operators", __doc__)
    parser.add_argument("--level", choices=LEVELS, help="by default what the CPU has")

    def show(figures: dict[str, Any]) -> bool:
        for name, row in figures["operators"].items():
            print(f"{name:45} {row['stock_us']:10.1f} us  ratio {row['ratio']['median']:.2f}")
        return True

    options = parser.parse_args(arguments)
    if options.level:
        options.changed = ["--level", options.level]
        if any(os.environ.get(name) != value for name, value in LEVELS[options.level].items()):
            given = sys.argv[1:] if arguments is None else arguments
            again = [sys.executable, "-m", "benches.experiments.cpu_operators", *given]
            return subprocess.call(again, env=os.environ | LEVELS[options.level])
    return command.run("cpu_operators", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
