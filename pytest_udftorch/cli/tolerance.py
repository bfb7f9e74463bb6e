# SPDX-License-Identifier: Apache-2.0
"""``udftorch tolerance``."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_udftorch.cli.status import FAILED, Subparsers
from pytest_udftorch.diagnose.runs.source import check_function
from pytest_udftorch.swap.library.description import find_library


def add(commands: Subparsers) -> None:
    """Add ``udftorch tolerance``."""
    parser = commands.add_parser(
        "tolerance",
        help="find the cheapest functions that keep a metric",
        description="Finds, for each function of each layer, the cheapest library that keeps a "
        "metric within a bound, by delta debugging and a greedy search. Ends with status 1 if the "
        "answer does not hold on held-out data.",
    )
    parser.add_argument(
        "metric",
        metavar="FILE:FUNCTION",
        help="a function without parameters that returns a number",
    )
    parser.add_argument(
        "--within", type=float, required=True, metavar="BOUND", help="how far the metric may move"
    )
    parser.add_argument(
        "--held-out",
        metavar="FILE:FUNCTION",
        help="the metric on data that the search does not see",
    )
    parser.add_argument(
        "--ladder",
        metavar="LIBRARY,...",
        help="libraries, the most exact first; by default corem and ladder-20 to ladder-8",
    )
    parser.add_argument("--functions", metavar="exp,erf", help="lower only these; by default all")
    parser.add_argument(
        "--whole", action="store_true", help="use one library for a function in all layers"
    )
    parser.add_argument(
        "--cost",
        choices=("time", "rank"),
        default="time",
        help="what to minimise: the functions' time, or (for number formats) the rank in the "
        "ladder; by default time",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers")
    parser.add_argument(
        "--workers", type=int, default=0, help="processes; by default this one alone"
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="run on the workers of this dask scheduler"
    )
    parser.add_argument(
        "--journal", type=Path, metavar="FILE", help="keep every run's value in this file"
    )
    parser.add_argument("--resume", action="store_true", help="continue from the journal")
    parser.add_argument("--store", type=Path, metavar="FILE", help="also write everything as JSON")
    parser.set_defaults(run=run, waits="running the metric")


def run(options: argparse.Namespace) -> int:
    """Search, store and print; fail if the answer does not hold."""
    for where in filter(None, (options.metric, options.held_out)):
        check_function(where)
    for name in () if options.ladder is None else _names(options.ladder):
        find_library(name)
    from pytest_udftorch.base.store import store
    from pytest_udftorch.diagnose.tolerance.ladder import LADDER, cheapest_libraries
    from pytest_udftorch.errors import DiagnosisError

    found = cheapest_libraries(
        options.metric,
        within=options.within,
        held_out=options.held_out,
        ladder=LADDER if options.ladder is None else _names(options.ladder),
        functions=None if options.functions is None else _names(options.functions),
        by_layer=not options.whole,
        cost=options.cost,
        seed=options.seed,
        workers=options.workers,
        scheduler=options.scheduler,
        journal=options.journal,
        resume=options.resume,
    )
    print(found.text())
    if options.store is not None:
        store(options.store, found.document(), DiagnosisError)
    return 0 if found.holds else FAILED


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))
