# SPDX-License-Identifier: Apache-2.0
"""Whether a training run on a GPU ends with the weights of the CPU, and what that costs.

    python -m benches.experiments.contract_digests_cuda [--store FILE]

LeNet learns real digits under each library, on the GPU and on the CPU of its machine. Steps and
products of repro are timed in turns with stock's, which has no TF32.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from benches import stored
from benches.experiments import command
from benches.experiments.contract_digests import STEPS
from benches.experiments.cuda_digests import gpu
from benches.experiments.cuda_training import on_gpu, turn_ns
from benches.experiments.training import Training, lenet
from pytest_udftorch import patched

LIBRARIES: Final = ("std", "corem", "repro")
DEVICES: Final = ("cuda", "cpu")
TURN: Final = 20
TURNS: Final = 15
SIZES: Final = (512, 1024, 2048, 4096)
ROUNDS: Final = 15


def trained_on(device: str, library: str, steps: int) -> str:
    """Train on a device; return the digest of the weights."""
    with patched(library):
        task = on_gpu(lenet()) if device == "cuda" else lenet()
        training = Training(task, 0)
        batches = task.batches(0)
        for _ in range(steps):
            training.step(next(batches).to(device))
        weights = training.weights().cpu().numpy().tobytes()
    return hashlib.sha256(weights).hexdigest()


def steps_ns() -> dict[str, Any]:
    """Return the times of a step of stock and of repro, which take turns."""
    task = on_gpu(lenet())
    runs = {library: Training(task, 0) for library in ("std", "repro")}
    batches = task.batches(0)
    times: dict[str, list[float]] = {library: [] for library in runs}
    for turn in range(TURNS):
        chosen = [next(batches).cuda() for _ in range(TURN)]
        for library in runs if turn % 2 else reversed(runs):
            with patched(library):
                times[library].append(turn_ns(runs[library], chosen))
    return {library: stored.summary(found[1:]) for library, found in times.items()}


def _event_ns(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e6


def products_ns(size: int) -> dict[str, Any]:
    """Return the times of a product of square matrices in stock and in repro."""
    a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
    times: dict[str, list[float]] = {"std": [], "repro": []}
    for turn in range(ROUNDS):
        for library in times if turn % 2 else reversed(times):
            with patched(library):
                torch.mm(a, b)
                times[library].append(_event_ns(lambda: torch.mm(a, b)))
    return {library: stored.summary(found[1:]) for library, found in times.items()}


def measure() -> dict[str, Any]:
    """Return the digests of every library on both devices, and times."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    runs = []
    for library in LIBRARIES:
        for device in DEVICES:
            digest = trained_on(device, library, STEPS)
            runs.append({"library": library, "device": device, "digest": digest})
            print(library, device, digest[:12], flush=True)
    figures = {"device": gpu(), "model": lenet().label, "steps": STEPS, "runs": runs}
    figures["step_ns"] = steps_ns()
    print({n: t["median"] / 1e6 for n, t in figures["step_ns"].items()}, flush=True)
    figures["mm_ns"] = {}
    for size in SIZES:
        found = figures["mm_ns"][str(size)] = products_ns(size)
        print(size, found["std"]["median"] / found["repro"]["median"], flush=True)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    options = command.parser("contract_digests_cuda", __doc__).parse_args(arguments)

    def show(figures: dict[str, Any]) -> bool:
        return len({r["digest"] for r in figures["runs"] if r["library"] == "repro"}) == 1

    return command.run("contract_digests_cuda", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
