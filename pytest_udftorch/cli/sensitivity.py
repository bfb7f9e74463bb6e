# SPDX-License-Identifier: Apache-2.0
"""``udftorch sensitivity``."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from pytest_udftorch.cli.status import FAILED, Subparsers
from pytest_udftorch.cli.subject import add_run, add_subject, check_side, own_options, subject


def add(commands: Subparsers) -> None:
    """Add ``udftorch sensitivity``."""
    parser = commands.add_parser(
        "sensitivity",
        help="count the bits of every layer that rounding leaves",
        description="Runs a model or a script several times under random rounding errors (Monte "
        "Carlo arithmetic), counts the significant bits of every operator's and layer's output, "
        "with confidence intervals, and names the operators that lose bits.",
    )
    parser.add_argument(
        "--perturb",
        choices=("functions", "operators", "both"),
        default="both",
        help="functions: each inexact result of a function (exp, tanh) goes up or down, inside "
        "any operator; operators: each inexact result of an operator changes by one ULP; by "
        "default both",
    )
    parser.add_argument("--functions", metavar="exp,log", help="perturb only these; by default all")
    parser.add_argument("--operators", metavar="mm,add", help="perturb only these; by default all")
    parser.add_argument("--samples", type=int, default=16, help="how many runs; by default 16")
    parser.add_argument("--on", default="eager", metavar="SIDE", help="a side of udftorch diff")
    parser.add_argument(
        "--least",
        type=float,
        metavar="BITS",
        help="fail if an output may have fewer significant bits",
    )
    add_run(parser)
    add_subject(parser)
    parser.add_argument("--store", type=Path, metavar="FILE", help="also write everything as JSON")
    parser.set_defaults(run=partial(run, parser), waits="running under rounding errors")


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Count, store and print; fail if an output has too few bits."""
    options = own_options(options, parser)
    check_side(options.on)
    make = subject(options)
    from pytest_udftorch.base.store import store
    from pytest_udftorch.diagnose.sensitivity.experiment import significant_bits
    from pytest_udftorch.errors import DiagnosisError

    found = significant_bits(
        make=make,
        perturb=options.perturb,
        functions=_names(options.functions),
        operators=_names(options.operators),
        samples=options.samples,
        on=options.on,
        train=options.train,
        steps=options.steps,
        seed=options.seed,
    )
    print(found.text())
    if options.store is not None:
        store(options.store, found.document(), DiagnosisError)
    return FAILED if options.least is not None and found.least < options.least else 0


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(filter(None, text.split(",")))
