# SPDX-License-Identifier: Apache-2.0
"""How long operators and training steps of ``repro`` take on the CPU, beside stock.

    python -m benches.experiments.contract_speed [--store FILE]

Each round times stock and ``repro`` one after the other, in one process with one thread, so that
what else the machine does meets both. The figure is processor time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch.nn import functional as F

from benches import stored
from benches.experiments import command
from benches.experiments.training import Task, Training, lenet, resnet, transformer
from pytest_udftorch import patched

ROUNDS: Final = 7
#: Seconds that a sample takes at least, but for the longest calls.
SAMPLE_S: Final = 0.02

Call = Callable[[], Any]


def operators() -> Iterator[tuple[str, str, float, Call]]:
    """Yield name, kind, the speed that is asked for as a share of stock's, and the call."""
    for n in (512, 1024):
        a, b = torch.rand(n, n), torch.rand(n, n)
        yield f"mm of {n} × {n}", "product", 0.7, lambda a=a, b=b: a @ b
    for channels, size, kernel in ((64, 32, 3), (128, 16, 3), (256, 8, 1)):
        x, w = torch.rand(8, channels, size, size), torch.rand(channels, channels, kernel, kernel)
        yield (
            f"conv2d, {channels} channels, {kernel} × {kernel}, batch 8 of {size} × {size}",
            "convolution", 0.5, lambda x=x, w=w: F.conv2d(x, w, padding=w.shape[2] // 2),
        )  # fmt: skip
    x = torch.rand(1024, 1024)
    yield "sum of 2^20", "reduction", 0.9, lambda: x.sum()
    yield "sum of 1024 rows", "reduction", 0.9, lambda: x.sum(1)
    yield "sum of 1024 columns", "reduction", 0.9, lambda: x.sum(0)
    yield "mean of 1024 rows", "reduction", 0.9, lambda: x.mean(1)
    yield "softmax of 1024 rows", "reduction", 0.9, lambda: torch.softmax(x, 1)
    yield "layer_norm of 1024 rows", "reduction", 0.9, lambda: F.layer_norm(x, (1024,))


def steps() -> Iterator[tuple[str, Call]]:
    """Yield models, and a training step of each."""
    tasks: tuple[Task, ...] = (lenet(), resnet(batch=8), transformer())
    for task in tasks:
        training = Training(replace(task), 0)
        batch = next(task.batches(0))
        yield task.label, lambda t=training, b=batch: t.step(b)


def _sample(call: Call, count: int) -> float:
    begin = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - begin) / count


def compared(call: Call) -> dict[str, Any]:
    """Time a call under both, in turn."""
    libraries = ("std", "repro")
    seconds: dict[str, list[float]] = {name: [] for name in libraries}
    counts = {}
    for name in libraries:
        with patched(name):
            call()
            counts[name] = max(1, int(SAMPLE_S / max(_sample(call, 1), 1e-6)))
    for _ in range(ROUNDS):
        for name in libraries:
            with patched(name):
                seconds[name].append(_sample(call, counts[name]))
    pairs = zip(seconds["std"], seconds["repro"], strict=True)
    return {
        "median_s": {name: statistics.median(each) for name, each in seconds.items()},
        "speed": stored.summary([stock / ours for stock, ours in pairs]),
    }


def measure() -> dict[str, Any]:
    """Return the times of operators and steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = []
    for name, kind, asked, call in operators():
        found.append({"name": name, "kind": kind, "asked": asked, **compared(call)})
    for name, call in steps():
        found.append({"name": f"step of {name}", "kind": "step", "asked": 0.5, **compared(call)})
    return {"threads": 1, "rounds": ROUNDS, "cases": found}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    options = command.parser("contract_speed", __doc__).parse_args(arguments)

    def show(figures: dict[str, Any]) -> bool:
        for case in figures["cases"]:
            print(f"{case['speed']['median']:6.2f} of {case['asked']:.1f}  {case['name']}")
        return True

    return command.run("contract_speed", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
