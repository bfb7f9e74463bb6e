# SPDX-License-Identifier: Apache-2.0
"""Which operators of 24 models are outside of the contract of ``repro``.

    python -m benches.experiments.contract_coverage [--model NAME ...] [--store FILE]

One row for each model of ``benches/data/models/zoo.py`` in float32: a forward pass, a loss, a
backward pass and a step of AdamW. The models need the extra ``models``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import torch

from benches.data.models import zoo
from benches.experiments import command
from pytest_udftorch import patched
from pytest_udftorch.reproducible import within_contract


def outside(make: Any) -> dict[str, Any]:
    """Return the operators of a training step that are outside, with their calls and reasons."""
    torch.manual_seed(0)
    with patched("repro"):
        step = zoo.training_step(make(), "float32")
        step()  # what the optimizer keeps is made
        with within_contract() as found:
            step()
    return {name: {"calls": found.calls[name], "why": why} for name, why in found.operators.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("contract_coverage", __doc__)
    names = {name: (origin, name) for origin, name in zoo.ZOO}
    parser.add_argument("--model", action="append", choices=names, help="these models only")
    options = parser.parse_args(arguments)

    def measure() -> dict[str, Any]:
        models = {}
        for name in options.model or names:
            found = outside(zoo.ZOO[names[name]])
            models[name] = {"origin": names[name][0], "outside": found}
            print(f"{name}: {', '.join(found) or 'nothing'}", flush=True)
        origins = sorted({origin for origin, _ in zoo.ZOO})
        versions = {p: importlib.import_module(p).__version__ for p in origins}
        return {"packages": versions, "models": models}

    return command.run("contract_coverage", options, measure)


if __name__ == "__main__":
    sys.exit(main())
