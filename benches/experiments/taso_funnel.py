# SPDX-License-Identifier: Apache-2.0
"""How many substitutions do the steps of generating them leave?

    python -m benches.experiments.taso_funnel [--operators N] [--enumerated N] [--journal FILE]
                                              [--store FILE]

Terms of up to N operators are enumerated, paired by fingerprints, pruned, and proved on all cores;
those of up to ``--enumerated`` are only enumerated, paired and freed of what differs in names.
A run that is interrupted goes on from the proofs of its journal; the seconds are then those of the
last run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benches.experiments import command
from pytest_udftorch.measure import generate_rules, judge_rules
from pytest_udftorch.measure.rewrite.taso.generator import enumerate_pairs

OPERATORS = 3
#: Pruning compares pairs with each other, which takes too long for those of so many operators.
ENUMERATED = 4
#: The figures of Jia et al., TASO, SOSP 2019.
PUBLISHED = {
    "operators": 4,
    "enumerated": 66_000_000,
    "after_fingerprints": 28_744,
    "after_pruning": 743,
}


def measure(
    operators: int = OPERATORS, enumerated: int = ENUMERATED, journal: Path | None = None
) -> dict[str, Any]:
    """Return the funnel for each number of operators, from 1."""
    funnels = []
    for most in range(1, operators + 1):
        began = time.monotonic()
        candidates, funnel = generate_rules(most)
        print(funnel, flush=True)
        verified = sum(proof.holds for proof in judge_rules(candidates, journal=journal))
        row = replace(funnel, verified=verified).document()
        funnels.append({**row, "seconds": time.monotonic() - began})
    for most in range(operators + 1, enumerated + 1):
        began = time.monotonic()
        row = enumerate_pairs(most).document()
        funnels.append({**row, "seconds": time.monotonic() - began})
    return {"published": PUBLISHED, "funnels": funnels}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser: argparse.ArgumentParser = command.parser("taso_funnel", __doc__)
    parser.add_argument("--operators", type=int, default=OPERATORS, help="the most of a term")
    parser.add_argument(
        "--enumerated", type=int, default=ENUMERATED, help="the most of a term that is only paired"
    )
    parser.add_argument("--journal", type=Path, metavar="FILE", help="proofs, as they are found")
    options = parser.parse_args(arguments)

    def show(figures: dict[str, Any]) -> bool:
        for funnel in figures["funnels"]:
            known = {name: value for name, value in funnel.items() if value is not None}
            print(*(f"{name} {value:,}" for name, value in known.items()), sep=", ")
        return True

    return command.run(
        "taso_funnel",
        options,
        lambda: measure(options.operators, options.enumerated, options.journal),
        show,
    )


if __name__ == "__main__":
    sys.exit(main())
