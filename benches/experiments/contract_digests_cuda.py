# SPDX-License-Identifier: Apache-2.0
"""Whether a training run on a GPU ends with the weights of the CPU.

    python -m benches.experiments.contract_digests_cuda [--store FILE]

LeNet learns real digits under each library, on the GPU and on the CPU of its machine. Each run is a
process; they run side by side, so their seconds say little.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final

from benches.experiments import command
from benches.experiments.contract_digests import STEPS
from benches.experiments.cuda_training import on_gpu
from benches.experiments.training import Training, lenet
from pytest_udftorch import patched

LIBRARIES: Final = ("std", "corem", "repro")
DEVICES: Final = ("cuda", "cpu")


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


def _run(library: str, device: str) -> dict[str, Any]:
    start = time.perf_counter()
    digest = trained_on(device, library, STEPS)
    seconds = round(time.perf_counter() - start, 1)
    return {"library": library, "device": device, "digest": digest, "seconds": seconds}


def measure() -> dict[str, Any]:
    """Return the digests of every library on both devices."""
    pairs = list(itertools.product(LIBRARIES, DEVICES))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(pairs), context) as pool:
        runs = list(pool.map(_run, *zip(*pairs, strict=True)))
    for run in runs:
        print(run, flush=True)
    return {"model": lenet().label, "steps": STEPS, "runs": runs}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    options = command.parser("contract_digests_cuda", __doc__).parse_args(arguments)

    def show(figures: dict[str, Any]) -> bool:
        return len({r["digest"] for r in figures["runs"] if r["library"] == "repro"}) == 1

    return command.run("contract_digests_cuda", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
