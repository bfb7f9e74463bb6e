# SPDX-License-Identifier: Apache-2.0
"""How many substitutions do the steps of generating them leave?

    python -m benches.experiments.taso_funnel [--most N] [--journal FILE] [--rules FILE]
                                              [--store FILE]

For each family of operators, terms of up to N operators (each family's own number, unless a
smaller one is given) are enumerated, paired by fingerprints, pruned, and proved on all cores. The
rules that ``udf_taso`` searches with are made of what is left; ``--rules`` writes them to a file. A
run that is interrupted goes on from the proofs of its journal; the seconds are then those of the
last run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benches.experiments import command
from pytest_udftorch.measure import judge_rules
from pytest_udftorch.measure.rewrite.taso.emitted import emit, write_rules
from pytest_udftorch.measure.rewrite.taso.generator import FAMILIES

#: The figures of Jia et al., TASO, SOSP 2019.
PUBLISHED = {
    "operators": 4,
    "enumerated": 66_000_000,
    "after_fingerprints": 28_744,
    "after_pruning": 743,
}


def measure(
    most: int | None = None, journal: Path | None = None, rules: Path | None = None
) -> dict[str, Any]:
    """Return the funnel for each family and number of operators, from 1."""
    judge = partial(judge_rules, journal=journal)
    funnels = []
    for family in FAMILIES:
        for operators in range(1, min(family.most, most or family.most) + 1):
            began = time.monotonic()
            _, (emission,) = emit(judge, [replace(family, most=operators)])
            print(emission, flush=True)
            funnels.append({**emission.document(), "seconds": time.monotonic() - began})
    if rules is not None:
        write_rules(emit(judge)[0], rules)
    return {"published": PUBLISHED, "funnels": funnels}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser: argparse.ArgumentParser = command.parser("taso_funnel", __doc__)
    parser.add_argument("--most", type=int, help="the most operators of a term")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="proofs, as they are found")
    parser.add_argument("--rules", type=Path, metavar="FILE", help="write the rules that are kept")
    options = parser.parse_args(arguments)

    def show(figures: dict[str, Any]) -> bool:
        for funnel in figures["funnels"]:
            print(*(f"{name} {value}" for name, value in funnel.items()), sep=", ")
        return True

    return command.run(
        "taso_funnel",
        options,
        lambda: measure(options.most, options.journal, options.rules),
        show,
    )


if __name__ == "__main__":
    sys.exit(main())
