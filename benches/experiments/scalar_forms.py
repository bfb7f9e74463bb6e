# SPDX-License-Identifier: Apache-2.0
"""What corem's scalar forms cost beside glibc's, and what their short paths gain.

Every scalar form of corem runs as it is and beside glibc's and LLVM-libc's, interleaved in one
process; those with a short path also without it (the same sources under a description that leaves
``short`` out). ``--store`` keeps the figures of this machine beside those of others in
``benches/results/scalar_forms.json``, with how busy the machine was when it began.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any, Final

import pytest_udftorch
from benches import stored
from benches.experiments import speed
from benches.experiments.quick_paths import described_without
from pytest_udftorch.swap.toolchain.environment import caption, describe

FILE: Final = stored.RESULTS / "scalar_forms.json"
COMMAND: Final = "python -m benches.experiments.scalar_forms --store"
ROUNDS: Final = 201
#: What is timed beside corem's forms.
PEERS: Final = ("glibc", "llvm-libc")


def measure(functions: Sequence[str], rounds: int) -> dict[str, Any]:
    """Return function -> contender -> what ``speed.measure`` does."""
    harness = speed.Harness()
    library = pytest_udftorch.find_library("corem")
    found: dict[str, Any] = {}
    with described_without("short", "short_source") as copy:
        plain = pytest_udftorch.build_library(str(copy))
        for function in functions:
            field = speed.contenders(function, "scalar")
            field = [c for c in field if c.name == "corem" or c.name in PEERS]
            if library.functions[function, "float32"].short is not None:
                address = plain.forms(function, "float32")["scalar"]
                field.append(speed.Contender("without short path", "scalar", address))
            inputs = speed.sample(function, speed.L1_ELEMENTS)
            found[function] = speed.measure(harness, field, inputs, rounds)
            ratios = {k: round(v["corem_over"], 2) for k, v in found[function].items()}
            print(function, f"{found[function]['corem']['ns']:.2f} ns", ratios, flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("functions", nargs="*", help="default: all of corem's")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--store", action="store_true", help=f"add this machine to {FILE.name}")
    options = parser.parse_args(arguments)
    before = os.getloadavg()[0]
    every = pytest_udftorch.find_library("corem").function_names
    figures = {
        "environment": describe(),
        "load": {"processors": os.cpu_count(), "waiting": round(before, 2)},
        "rounds": options.rounds,
        "forms": measure(options.functions or every, options.rounds),
    }
    print(caption(describe()))
    if options.store:
        stored.add_machine(FILE, COMMAND, figures)


if __name__ == "__main__":
    main()
