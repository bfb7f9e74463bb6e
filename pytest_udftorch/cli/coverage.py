# SPDX-License-Identifier: Apache-2.0
"""``udftorch coverage``."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_udftorch.cli.status import FAILED, Subparsers
from pytest_udftorch.cli.subject import SUBJECTS
from pytest_udftorch.diagnose.runs.source import check_function


def add(commands: Subparsers) -> None:
    """Add ``udftorch coverage``."""
    parser = commands.add_parser(
        "coverage",
        help="count which evaluations in a model a session swaps",
        description="Records the operators of a run, counts the evaluations of "
        "transcendental functions that their definitions ask for, and tries with wrong functions "
        "which of these evaluations a session swaps.",
    )
    parser.add_argument(
        "model",
        metavar="FILE:FUNCTION",
        help="a function that returns a callable, which is the run, or a model and its inputs; or "
        f"{SUBJECTS}",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="compile the model with torch.compile, and judge the generated code; a callable "
        "has to run compiled code itself",
    )
    parser.add_argument("--store", type=Path, metavar="FILE", help="also write everything as JSON")
    parser.set_defaults(
        run=run,
        needs=lambda _: ["torch", "numpy"],
        waits="counting evaluations of functions",
    )


def run(options: argparse.Namespace) -> int:
    """Judge one run, store it and print it; fail unless everything is swapped."""
    check_function(options.model)
    from pytest_udftorch.diagnose.runs.files import load_step
    from pytest_udftorch.swap.reach.coverage import coverage, save_coverage

    step = load_step(options.model, compiled=options.compiled)
    found = coverage(step, compiled=options.compiled)
    if options.store:
        command = f"udftorch coverage{' --compiled' * options.compiled} {options.model}"
        save_coverage({options.model: found}, options.store, command)
    print(found.text())
    return 0 if found.complete else FAILED
