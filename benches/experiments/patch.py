# SPDX-License-Identifier: Apache-2.0
"""What ``udftorch patch`` costs: to make, on disk, and when torch is imported.

    python -m benches.experiments.patch [--runs N] [--store FILE]

The builds of the library are in the cache before the first run. ``import torch`` is timed in fresh
processes, the original and the patch in turns; each process times itself, by the wall clock and by
its processor time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benches import stored
from benches.experiments import command
from pytest_udftorch import UdfError

#: Prints wall and processor time of ``import torch`` in ns.
_IMPORT = (
    "import time; w, c = time.perf_counter_ns(), time.process_time_ns(); import torch; "
    "print(time.perf_counter_ns() - w, time.process_time_ns() - c)"
)


def _run(arguments: list[str], **environment: str) -> tuple[int, str]:
    """Return how long a process took in ns, and what it printed."""
    start = time.perf_counter_ns()
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise UdfError(f"{' '.join(arguments)} failed: {done.stderr}")
    return time.perf_counter_ns() - start, done.stdout


def _patch(*arguments: str) -> int:
    return _run(["-m", "pytest_udftorch.cli", "patch", *arguments])[0]


def measure(runs: int) -> dict[str, Any]:
    """Return times in ns, and bytes."""
    steps: dict[str, list[int]] = {"make": [], "verify": [], "undo": []}
    imports: dict[str, list[int]] = {}
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "patch"
        _patch("--udf-lib=corem", f"--out={out}")
        _patch(f"--undo={out}")
        for run in range(runs):
            steps["make"].append(_patch("--udf-lib=corem", f"--out={out}"))
            steps["verify"].append(_patch(f"--verify={out}"))
            for name, path in (("original", ""), ("patch", str(out))):
                _, printed = _run(["-c", _IMPORT], PYTHONPATH=path)
                for clock, ns in zip(("wall", "cpu"), printed.split(), strict=True):
                    imports.setdefault(f"{name} {clock}", []).append(int(ns))
            if not facts:
                facts = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
            steps["undo"].append(_patch(f"--undo={out}"))
            print(f"run {run + 1} of {runs}: made in {steps['make'][-1] / 1e9:.1f} s")
    return {
        "library": f"{facts['library']['name']} {facts['library']['version']}",
        "functions": len(facts["library"]["functions"]),
        "bytes": {name: entry["size"] for name, entry in facts["files"].items()},
        "original_bytes": {Path(n).name: entry["size"] for n, entry in facts["made_from"].items()},
        "steps_ns": {name: stored.summary(times) for name, times in steps.items()},
        "import_ns": {name: stored.summary(times) for name, times in imports.items()},
    }


def main() -> int:
    """Measure, and store the figures if asked to."""
    parser = command.parser("patch", __doc__)
    parser.add_argument("--runs", type=int, default=7, help="of each step")
    options = parser.parse_args()
    return command.run("patch", options, lambda: measure(options.runs))


if __name__ == "__main__":
    sys.exit(main())
