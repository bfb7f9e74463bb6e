# SPDX-License-Identifier: Apache-2.0
"""``udftorch blame``."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_udftorch.cli.status import FAILED, Subparsers
from pytest_udftorch.diagnose.runs.source import check_function
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.session.option_values import as_path_or_name


def add(commands: Subparsers) -> None:
    """Add ``udftorch blame``."""
    parser = commands.add_parser(
        "blame",
        help="find the function and layer that make libraries differ",
        description="Runs a test or a metric with the functions of one library, and with those of "
        "another in chosen operators of chosen layers. Finds the smallest set of function, layer "
        "and operator that makes the outcome differ, and proves it: with this set alone it "
        "differs, and with everything but this set it does not.",
    )
    parser.add_argument("--a", default="std", metavar="LIBRARY", help="by default std")
    parser.add_argument("--b", required=True, metavar="LIBRARY", help="a name or a folder")
    parser.add_argument(
        "--by",
        type=float,
        default=0.0,
        metavar="DISTANCE",
        help="a number differs if it is farther apart than this; by default if a bit differs",
    )
    parser.add_argument(
        "--causes", type=int, default=3, help="find at most this many causes; by default 3"
    )
    parser.add_argument("--tries", type=int, help="at most this many runs for one cause")
    parser.add_argument("--seed", type=int, default=0, help="seed of a metric's random numbers")
    parser.add_argument("--workers", type=int, help="processes; by default one per CPU")
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="run on the workers of this dask scheduler"
    )
    parser.add_argument(
        "--journal", type=Path, metavar="FILE", help="keep every outcome in this file"
    )
    parser.add_argument("--resume", action="store_true", help="continue from the journal")
    parser.add_argument("--store", type=Path, metavar="FILE", help="also write everything as JSON")
    parser.add_argument(
        "target",
        metavar="FILE:FUNCTION or TEST",
        help="a function without parameters that returns a number or tensors, or the id of a test",
    )
    parser.set_defaults(run=run, waits="running it under both libraries")


def run(options: argparse.Namespace) -> int:
    """Search, print and store; fail if a cause is left over."""
    here = Path.cwd()
    a, b = (as_path_or_name(text, here) for text in (options.a, options.b))
    for library in (a, b):
        find_library(library)
    if ":" in options.target and "::" not in options.target:
        check_function(options.target)
    from pytest_udftorch.base.store import store
    from pytest_udftorch.diagnose.blame.search import smallest_cause
    from pytest_udftorch.errors import DiagnosisError

    found = smallest_cause(
        a,
        b,
        options.target,
        by=options.by,
        causes=options.causes,
        tries=options.tries,
        seed=options.seed,
        workers=options.workers,
        scheduler=options.scheduler,
        journal=options.journal,
        resume=options.resume,
    )
    print(found.text())
    if options.store is not None:
        store(options.store, found.document(), DiagnosisError)
    return 0 if found.proved else FAILED
