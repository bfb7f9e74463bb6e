# SPDX-License-Identifier: Apache-2.0
"""Whether a training run ends with the same weights at every CPU level and number of threads.

    python -m benches.experiments.contract_digests [--store FILE]

LeNet learns real digits under each library. Each run is a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, Final

import torch

from benches.experiments import command
from benches.experiments.training import Training, lenet
from pytest_udftorch import patched

LIBRARIES: Final = ("std", "corem", "repro")
CAPABILITIES: Final = ("avx512", "avx2")
THREADS: Final = (1, 2)
STEPS: Final = 300


def trained(library: str, threads: int, steps: int) -> dict[str, Any]:
    """Train in this process; return the digest of the weights."""
    torch.set_num_threads(threads)
    with patched(library):
        training = Training(lenet(), 0)
        batches = training.task.batches(0)
        for _ in range(steps):
            training.step(next(batches))
        weights = training.weights().numpy().tobytes()
    return {
        "library": library,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "digest": hashlib.sha256(weights).hexdigest(),
    }


def run(library: str, capability: str, threads: int) -> dict[str, Any]:
    """Train in a process of its own."""
    (found,) = command.ask(
        "contract_digests", library, str(threads), ATEN_CPU_CAPABILITY=capability
    )
    return found


def measure() -> dict[str, Any]:
    """Return the runs of every library, CPU level and number of threads."""
    with ThreadPoolExecutor(4) as side_by_side:
        runs = list(
            side_by_side.map(run, *zip(*product(LIBRARIES, CAPABILITIES, THREADS), strict=True))
        )
    return {"model": lenet().label, "steps": STEPS, "runs": runs}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("contract_digests", __doc__)
    parser.add_argument(
        "--here", nargs=2, metavar=("LIBRARY", "THREADS"), help="train once, and print JSON"
    )
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(trained(options.here[0], int(options.here[1]), STEPS)))
        return 0

    def show(figures: dict[str, Any]) -> bool:
        for run in figures["runs"]:
            print(f"{run['library']:6} {run['capability']:7} {run['threads']} {run['digest']}")
        return len({r["digest"] for r in figures["runs"] if r["library"] == "repro"}) == 1

    return command.run("contract_digests", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
