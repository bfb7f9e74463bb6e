# SPDX-License-Identifier: Apache-2.0
"""``udftorch bench``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pytest_udftorch.cli.progress_bar import progress_bar
from pytest_udftorch.cli.status import Subparsers


def add(commands: Subparsers) -> None:
    """Add ``udftorch bench``."""
    parser = commands.add_parser(
        "bench",
        help="time operators under a library, stock and corem",
        description="Times whole operators (torch.exp of a tensor) on this CPU under a library, "
        "the stock functions and corem, in turns, and prints medians and quartiles per element and "
        "as a ratio to stock.",
    )
    parser.add_argument("library", help="name or path of a UDF library")
    parser.add_argument(
        "functions", nargs="*", metavar="function", help="torch's names; by default all"
    )
    parser.add_argument(
        "--elements", type=int, default=16384, help="elements of a tensor; default 16384"
    )
    parser.add_argument("--runs", type=int, default=20, help="turns of each; default 20")
    parser.add_argument("--rounds", type=int, default=20, help="timed calls in a turn; default 20")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch's operators; default 1"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything as JSON, for udftorch compare"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run, needs=needs)


def needs(options: argparse.Namespace) -> list[str]:
    """Return the packages that a bench needs."""
    return ["torch", "numpy"]


def run(options: argparse.Namespace) -> int:
    """Time the operators, print the table, and write it."""
    import torch

    from pytest_udftorch.measure.timing import operators
    from pytest_udftorch.swap.library.description import find_library
    from pytest_udftorch.swap.native.machine import cpu_model
    from pytest_udftorch.swap.records.export import write_text

    library = find_library(options.library)
    functions = operators.functions_of(library, options.functions)
    timings = []
    with progress_bar(f"timing {library.name}", "run", quiet=options.quiet) as update:
        total, done = len(functions) * options.runs, 0

        def one_more() -> None:
            nonlocal done
            done += 1
            if update is not None:
                update(done, total)

        for function in functions:
            timings += operators.time_operator(
                library, function, elements=options.elements, runs=options.runs,
                rounds=options.rounds, threads=options.threads, progress=one_more,
            )  # fmt: skip
    machine = {
        "cpu": cpu_model(),
        "capability": str(torch.backends.cpu.get_cpu_capability()),
        "torch": str(torch.__version__),
    }
    found = operators.OperatorTimings(
        library.name, tuple(timings), machine, options.elements, options.runs, options.threads
    )
    print(found.text())
    if options.json:
        write_text(options.json, json.dumps(found.document(), indent=1) + "\n")
    return 0
