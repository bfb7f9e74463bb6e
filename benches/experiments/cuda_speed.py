# SPDX-License-Identifier: Apache-2.0
"""Eager CUDA operators of a session against the stock kernels, in one interleaved run.

    python -m benches.experiments.cuda_speed [--operators NAMES] [--store FILE]

A stored file has an entry for each kind of GPU. A measurement replaces that of the same kind.

Large: 2^26 float32 elements. The L2 is overwritten before each call, so that the GPU is busy while
the call is launched, and a pair of CUDA events gives the kernel's time alone. Small: 2^16 elements,
which stay in the L2. Replays of a CUDA graph of many calls give the kernel's time, and a loop in
Python gives the time of a call. Stock and corem take turns in random order.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from benches import stored
from benches.experiments import command
from benches.experiments.cuda_digests import gpu
from pytest_udftorch import patched
from pytest_udftorch.swap.operators.table import BARE
from pytest_udftorch.swap.toolchain.environment import describe

LARGE, SMALL = 1 << 26, 1 << 16
COLUMNS = 4096

Call = Callable[[torch.Tensor], Any]


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, COLUMNS)


def operators() -> dict[str, tuple[Call, int]]:
    """Return for each operator the call and the bytes that it moves per element."""
    aten = torch.ops.aten
    found: dict[str, tuple[Call, int]] = {name: (getattr(torch, name), 8) for name in BARE}
    one: dict[str, Call] = {
        "sigmoid": torch.sigmoid,
        "silu": F.silu,
        "elu": F.elu,
        "selu": F.selu,
        "gelu": F.gelu,
        "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
        "softplus": F.softplus,
        "mish": F.mish,
        "logsigmoid": F.logsigmoid,
        "softmax": lambda x: torch.softmax(_rows(x), -1),
        "log_softmax": lambda x: torch.log_softmax(_rows(x), -1),
        "softmax, 256 columns": lambda x: torch.softmax(x.view(-1, 256), -1),
        "softmax, first dimension": lambda x: torch.softmax(x.view(256, -1), 0),
        "softmax, 32768 columns": lambda x: torch.softmax(x.view(-1, 32768), -1),
    }
    two: dict[str, Call] = {
        "pow": lambda x: torch.pow(x, x),
        "atan2": lambda x: torch.atan2(x, x),
        "hypot": lambda x: torch.hypot(x, x),
        "silu backward": lambda x: aten.silu_backward(x, x),
        "elu backward": lambda x: aten.elu_backward(x, 1, 1, 1, False, x),
        "gelu backward": lambda x: aten.gelu_backward(x, x),
        "softplus backward": lambda x: aten.softplus_backward(x, x, 1, 20),
        "mish backward": lambda x: aten.mish_backward(x, x),
        "log_softmax backward": lambda x: aten._log_softmax_backward_data(
            _rows(x), _rows(x), 1, torch.float32
        ),
    }
    found |= {name: (call, 8) for name, call in one.items()}
    # One tensor stands for both arguments: read once from memory.
    found |= {name: (call, 8) for name, call in two.items()}
    return found


def numbers(count: int) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(0)
    return torch.randn(count, generator=generator, device="cuda") * 2


def graph_of(call: Call, x: torch.Tensor, times: int) -> torch.cuda.CUDAGraph:
    """Return a graph of ``times`` captured calls; it keeps its kernels after the session."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call(x)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call(x)
    return graph


def events(calls: dict[str, Callable[[], Any]], rounds: int, flush: bool) -> dict[str, list[float]]:
    """Return times in ns of calls that take turns, by CUDA events."""
    order = random.Random(0)
    buffer = torch.empty(128 << 20, dtype=torch.uint8, device="cuda") if flush else None
    pairs: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in calls}
    for _ in range(rounds):
        for name in order.sample(list(calls), len(calls)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if buffer is not None:
                buffer.zero_()
            start.record()
            calls[name]()
            end.record()
            pairs[name].append((start, end))
    torch.cuda.synchronize()
    return {n: [1e6 * a.elapsed_time(b) for a, b in pair[3:]] for n, pair in pairs.items()}


def measure(
    names: list[str] | None = None,
    rounds: int = 43,
    times: int = 50,
    runs: dict[str, list[float]] | None = None,
) -> dict[str, Any]:
    """Return the figures of every operator.

    Args:
        names: which of ``operators``; by default all.
        rounds: of every comparison.
        times: calls in a graph of small ones.
        runs: gets library and size -> nanoseconds of each call, of the last operator.
    """
    large, small = numbers(LARGE), numbers(SMALL)
    found: dict[str, Any] = {}
    chosen = {n: o for n, o in operators().items() if names is None or n in names}
    copy = torch.empty_like(large)
    copies = events({"copy": lambda: copy.copy_(large)}, rounds, flush=True)["copy"]
    for name, (call, moved) in chosen.items():
        graphs: dict[str, dict[str, torch.cuda.CUDAGraph]] = {}
        python: dict[str, list[float]] = {"stock": [], "corem": []}
        for library in ("stock", "corem"):
            with patched("std" if library == "stock" else "corem"):
                call(large)
                graphs[library] = {
                    "large": graph_of(call, large, 1),
                    "small": graph_of(call, small, times),
                }
                for _ in range(5):
                    torch.cuda.synchronize()
                    start = time.perf_counter_ns()
                    for _ in range(200):
                        call(small)
                    torch.cuda.synchronize()
                    python[library].append((time.perf_counter_ns() - start) / 200)
        big = events({n: g["large"].replay for n, g in graphs.items()}, rounds, flush=True)
        little = events({n: g["small"].replay for n, g in graphs.items()}, rounds, flush=False)
        if runs is not None:
            runs |= {f"{n}, large": t for n, t in big.items()}
            runs |= {f"{n}, small": [v / times for v in t] for n, t in little.items()}
            runs |= {f"{n}, small, from Python": t for n, t in python.items()}
        large_ns = {n: stored.summary(t) for n, t in big.items()}
        small_ns = {n: stored.summary([v / times for v in t]) for n, t in little.items()}
        ratios = [a / b for a, b in zip(big["stock"], big["corem"], strict=True)]
        found[name] = {
            "large_ns": large_ns,
            "bytes_per_element": moved,
            "stock_over_corem": stored.summary(ratios),
            "small_ns": small_ns,
            "call_ns": {n: stored.summary(t) for n, t in python.items()},
        }
        gbs = {n: moved * LARGE / v["median"] for n, v in large_ns.items()}
        print(
            f"{name:26} {found[name]['stock_over_corem']['median']:.3f} of stock, "
            f"{gbs['stock']:.0f} and {gbs['corem']:.0f} GB/s; small "
            f"{small_ns['stock']['median']:.0f} and {small_ns['corem']['median']:.0f} ns; call "
            f"{found[name]['call_ns']['stock']['median']:.0f} and "
            f"{found[name]['call_ns']['corem']['median']:.0f} ns",
            flush=True,
        )
    return {"copy_ns": stored.summary(copies), "operators": found}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("cuda_speed", __doc__)
    parser.add_argument("--operators", help="names, separated by commas")
    options = parser.parse_args(arguments)
    names = options.operators.split(",") if options.operators else None
    device = gpu()
    found = {
        "environment": describe(),
        "device": device,
        "large": LARGE,
        "small": SMALL,
        **measure(names),
    }
    if options.store is not None:
        gpus = stored.load(options.store)["gpus"] if options.store.exists() else {}
        gpus[device["machine"]["gpu"]] = found
        command.store("cuda_speed", options, {"gpus": gpus})
    return 0


if __name__ == "__main__":
    sys.exit(main())
