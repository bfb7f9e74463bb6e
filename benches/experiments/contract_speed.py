# SPDX-License-Identifier: Apache-2.0
"""What the operators of the contract, and training steps, cost against stock on the CPU.

    python -m benches.experiments.contract_speed [--store FILE]

Stock and the session take turns in one process and one thread, at AVX-512 if the CPU has it, and in
another process at AVX2, where MKL and oneDNN are held to AVX2, too. What counts is the CPU time of
the thread, as in ``cpu_operators``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.nn import functional as F

from benches import stored
from benches.experiments import command
from benches.experiments.cpu_operators import keep_freed_memory
from benches.experiments.training import Task, Training, lenet, resnet, transformer
from pytest_udftorch import patched

LIBRARY: Final = "repro"
TURNS: Final = 9
#: A turn times as many calls as take so long under stock, after as many that are not timed.
TURN_NS: Final = 10_000_000

#: What holds the kernels of torch, MKL and oneDNN to a CPU level.
LEVELS: Final = {
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512"},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
}  # fmt: skip

#: Kind -> the share of stock's speed that was asked for.
ASKED: Final = {"products": 0.7, "convolutions": 0.5, "reductions": 0.9, "steps": 0.5}

Call = Callable[[], object]


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def products() -> dict[str, Call]:
    """Return products of square matrices, and one of many short rows."""
    calls: dict[str, Call] = {}
    for n in (512, 1024, 1536):
        a, b = _random(n, n), _random(n, n)
        calls[f"mm, {n}"] = lambda a=a, b=b: torch.mm(a, b)
    x, w, bias = _random(256, 784), _random(512, 784), _random(512)
    calls["linear, 256×784 to 512"] = lambda: F.linear(x, w, bias)
    return calls


def convolutions() -> dict[str, Call]:
    """Return convolutions of a ResNet, forward, and one with its gradients."""
    calls: dict[str, Call] = {}
    for channels, pixels, kernel in ((64, 32, 3), (256, 8, 3), (128, 16, 1)):
        x, w = _random(8, channels, pixels, pixels), _random(channels, channels, kernel, kernel)
        shape = f"8×{channels}×{pixels}×{pixels}, kernel {kernel}"
        calls[f"conv2d, {shape}"] = lambda x=x, w=w, pad=kernel // 2: F.conv2d(x, w, padding=pad)
    x, w = (t.requires_grad_() for t in (_random(8, 64, 32, 32), _random(64, 64, 3, 3)))
    calls["conv2d with its gradients, 8×64×32×32, kernel 3"] = lambda: (
        F.conv2d(x, w, padding=1).sum().backward()
    )
    return calls


def reductions() -> dict[str, Call]:
    """Return sums over everything, rows, columns, and of softmax and layer norm."""
    vector, matrix = _random(1 << 20), _random(1024, 1024)
    weight, bias = _random(1024), _random(1024)
    return {
        "sum, 2^20": lambda: vector.sum(),
        "sum of rows, 1024×1024": lambda: matrix.sum(1),
        "sum of columns, 1024×1024": lambda: matrix.sum(0),
        "softmax, 1024×1024": lambda: matrix.softmax(1),
        "layer_norm, 1024×1024": lambda: F.layer_norm(matrix, (1024,), weight, bias),
    }


def steps() -> dict[str, Call]:
    """Return training steps."""
    calls: dict[str, Call] = {}
    tasks: tuple[Callable[[], Task], ...] = (
        lenet, lambda: resnet(width=32, batch=8), lambda: transformer(batch=8),
    )  # fmt: skip
    for make in tasks:
        training = Training(make(), 0)
        batch = next(training.task.batches(0))
        calls[training.task.label] = lambda t=training, b=batch: t.step(b)
    return calls


KINDS: Final = {
    "products": products, "convolutions": convolutions, "reductions": reductions, "steps": steps,
}  # fmt: skip


def _time_ns(call: Call, count: int) -> float:
    begin = time.thread_time_ns()
    for _ in range(count):
        call()
    return (time.thread_time_ns() - begin) / count


def compared(call: Call, library: str = LIBRARY) -> dict[str, Any]:
    """Return the times of a call, and the speeds as shares of stock's of neighbouring turns."""
    with patched(library):
        call()
    call()
    count = max(1, int(TURN_NS / max(1, _time_ns(call, 1))))
    stock, ours = [], []
    for _ in range(TURNS):
        _time_ns(call, count)
        stock.append(_time_ns(call, count))
        with patched(library):
            # A session leaves small blocks of memory behind that move the results of the first
            # calls to cold pages.
            _time_ns(call, count)
            ours.append(_time_ns(call, count))
    shares = [theirs / mine for mine, theirs in zip(ours, stock, strict=True)]
    return {
        "stock_us": statistics.median(stock) / 1e3,
        "session_us": statistics.median(ours) / 1e3,
        "speed": stored.summary(shares),
    }


def measure_here() -> dict[str, Any]:
    """Return kind -> call -> times, at the CPU level of this process."""
    keep_freed_memory()
    torch.set_num_threads(1)
    return {kind: {n: compared(c) for n, c in make().items()} for kind, make in KINDS.items()}


def at_levels(experiment: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the figures of an experiment at each CPU level, from processes of their own."""
    levels = {}
    best = list(LEVELS).index(torch.backends.cpu.get_cpu_capability().lower())
    for level, held in list(LEVELS.items())[best:]:
        made = subprocess.run(
            [sys.executable, "-m", f"benches.experiments.{experiment}", "--here", *names],
            env={**os.environ, **held}, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        levels[level] = json.loads(made.stdout.splitlines()[-1])
    return levels


def measure() -> dict[str, Any]:
    """Return the figures of each CPU level."""
    levels = at_levels("contract_speed")
    return {"library": LIBRARY, "turns": TURNS, "asked": ASKED, "levels": levels}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("contract_speed", __doc__)
    parser.add_argument("--here", action="store_true", help="measure this process, and print JSON")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(measure_here()))
        return 0

    def show(figures: dict[str, Any]) -> bool:
        for level, kinds in figures["levels"].items():
            for kind, rows in kinds.items():
                for name, row in rows.items():
                    print(f"{level:7} {kind:12} {name:50} {row['speed']['median']:.2f}")
        return True

    return command.run("contract_speed", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
