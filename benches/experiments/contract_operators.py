# SPDX-License-Identifier: Apache-2.0
"""Which operators of 24 models are outside the contract of repro.

    python -m benches.experiments.contract_operators [--store FILE]

Each model of ``benches/data/models/zoo.py`` does two steps of AdamW, once with torch's AVX-512
kernels in one thread and once with its AVX2 kernels in two, in processes of their own. What it
calls outside the contract is listed, beside whether the weights are the same. The models need the
extra ``models``.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

from benches.data.models import zoo
from benches.experiments import command
from pytest_udftorch import patched
from pytest_udftorch.reproduce import within_contract

#: torch's kernels and the number of threads.
PLACES: Final = (("avx512", 1), ("avx2", 2))
STEPS: Final = 2
SEED: Final = 0


def watched(origin: str, name: str) -> dict[str, Any]:
    """Train a model in this process.

    Returns:
        the digest of its weights, and operator -> calls outside.
    """
    with patched("repro"):
        torch.manual_seed(SEED)
        made = zoo.ZOO[origin, name]()
        step = zoo.training_step(made, "float32", "cpu", False)
        with within_contract() as found:
            for _ in range(STEPS):
                step()
    weights = nn.utils.parameters_to_vector(made[0].parameters()).detach()
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    return {"digest": digest, "outside": dict(sorted(found.calls.items()))}


def run(capability: str, threads: int) -> list[dict[str, Any]]:
    """Train every model in a process of its own."""
    # Waiting threads that spin would slow a shared machine down.
    passive = {"ATEN_CPU_CAPABILITY": capability, "OMP_WAIT_POLICY": "passive"}
    made = subprocess.run(
        [sys.executable, "-m", "benches.experiments.contract_operators", "--here", str(threads)],
        env={**os.environ, **passive}, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(made.stdout.splitlines()[-1])
    return found


def measure() -> dict[str, Any]:
    """Return for each model what is outside, and its digest at each place."""
    models = []
    for (origin, name), *found in zip(zoo.ZOO, *(run(*p) for p in PLACES), strict=True):
        first = found[0]
        models.append(
            {
                "origin": origin,
                "model": name,
                "outside": first["outside"],
                "digests": [f["digest"] for f in found],
            }
        )
    places = [f"{capability}, {threads}" for capability, threads in PLACES]
    return {"steps": STEPS, "places": places, "models": models, "packages": packages()}


def packages() -> dict[str, str]:
    """Return the versions of the packages whose models are trained."""
    origins = dict.fromkeys(origin for origin, _ in zoo.ZOO)
    return {origin: importlib.metadata.version(origin) for origin in origins}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("contract_operators", __doc__)
    parser.add_argument("--here", type=int, metavar="THREADS", help="train once, and print JSON")
    options = parser.parse_args(arguments)
    if options.here:
        torch.set_num_threads(options.here)
        print(json.dumps([watched(*which) for which in zoo.ZOO]))
        return 0

    def show(figures: dict[str, Any]) -> bool:
        for row in figures["models"]:
            same = "same" if len(set(row["digests"])) == 1 else "differs"
            print(f"{row['model']:20} {same:8} {', '.join(row['outside']) or 'nothing outside'}")
        # A model that differs without an operator outside is a defect of the contract.
        return all(r["outside"] or len(set(r["digests"])) == 1 for r in figures["models"])

    return command.run("contract_operators", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
