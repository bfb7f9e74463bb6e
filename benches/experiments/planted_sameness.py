# SPDX-License-Identifier: Apache-2.0
"""Does ``udftorch same`` name planted faults by way and operator, and accuse no clean model?

    python -m benches.experiments.planted_sameness [--store FILE]

Each fault of ``benches/data/planted_sameness.py`` is a small language model that is not invariant:
a kernel chosen by a shape, a cache in another dtype, a mask off by one, dropout left on, and so on.
It is named if exactly its ways differ under repro, and each parts first by its operator. As a
control, no way may differ of the model without faults, with several weights.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import torch

from benches.data.models.small_language_model import Model, inputs, made
from benches.data.planted_sameness import FAULTS
from benches.experiments import command
from pytest_udftorch.reproduce import same

#: Weights of the model without faults.
SEEDS: Final = 10


def judged(name: str) -> dict[str, Any]:
    """Return what ``same`` says of a fault, and whether it names the fault."""
    fault = FAULTS[name]
    found = same(*made(fault.model), libraries=["repro"])
    differ = found.differing("repro")
    firsts = {way: found.outcomes["repro"][way].first for way in differ}
    operators = {way: "" if one is None else one.operator for way, one in firsts.items()}
    named = set(differ) == fault.ways and set(operators.values()) <= fault.operators
    return {"fault": name, "differ": differ, "operators": operators, "named": named}


def clean(seed: int) -> dict[str, Any]:
    """Return which ways of the model without faults differ."""
    torch.manual_seed(seed)
    found = same(Model().eval(), inputs(), libraries=["repro"])
    return {"seed": seed, "ways": len(found.ways), "differ": found.differing("repro")}


def measure() -> dict[str, Any]:
    """Try every fault, and the model without."""
    began = time.monotonic()
    faults = []
    for name in FAULTS:
        faults.append(judged(name))
        print(f"{name}: {faults[-1]}", file=sys.stderr, flush=True)
    models = [clean(seed) for seed in range(SEEDS)]
    return {"faults": faults, "clean": models, "seconds": round(time.monotonic() - began)}


def judge(found: dict[str, Any]) -> bool:
    """Say how many faults were named, and how many clean models accused."""
    named = sum(row["named"] for row in found["faults"])
    accused = sum(bool(row["differ"]) for row in found["clean"])
    print(f"{named} of {len(found['faults'])} faults named, {accused} clean models accused")
    return named == len(found["faults"]) and not accused


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    options = command.parser("planted_sameness", __doc__).parse_args(arguments)
    return command.run("planted_sameness", options, measure, judge)


if __name__ == "__main__":
    raise SystemExit(main())
