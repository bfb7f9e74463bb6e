# SPDX-License-Identifier: Apache-2.0
"""``udftorch record``."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from pytest_udftorch.cli.status import Subparsers
from pytest_udftorch.cli.subject import add_run, add_subject, check_side, own_options, subject


def add(commands: Subparsers) -> None:
    """Add ``udftorch record``."""
    parser = commands.add_parser(
        "record",
        help="keep digests of a run, to compare it later or elsewhere",
        description="Runs a model or a script once and keeps digests, shapes and 16 samples of "
        "every operator's inputs and outputs. `udftorch diff --a rec:FOLDER` compares "
        "another run with it.",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="make this folder for the record; required"
    )
    parser.add_argument(
        "--side",
        default="eager",
        metavar="SIDE",
        help="how to run it, as in udftorch diff; by default eager",
    )
    parser.add_argument(
        "--full",
        type=_window,
        metavar="FROM:TO",
        help="also keep all values of these operators, counted from 0",
    )
    add_run(parser)
    add_subject(parser)
    parser.set_defaults(run=partial(run, parser), needs=lambda _: ["torch", "numpy"])


def _window(text: str) -> tuple[int, int]:
    start, colon, end = text.partition(":")
    if not (colon and start.isdecimal() and end.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO; 100:120 are twenty operators")
    return int(start), int(end)


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Record and say what was recorded."""
    options = own_options(options, parser)
    if options.out is None:
        parser.error("name the folder of the record: --out FOLDER")
    check_side(options.side)
    make = subject(options)
    from pytest_udftorch.diagnose.diff.kernels import of_compiled
    from pytest_udftorch.diagnose.diff.record import record_run
    from pytest_udftorch.swap.observe.native_recorder import why_not

    found = record_run(
        options.out,
        on=options.side,
        make=make,
        full=options.full,
        train=options.train,
        steps=options.steps,
        seed=options.seed,
    )
    if why := why_not():
        print(why, file=sys.stderr)
    size = sum(file.stat().st_size for file in options.out.iterdir()) / 1e6
    kept = len(found.recording.kept)
    what = "kernels and graphs" if of_compiled(found.recording) else "operators"
    print(
        f"{len(found.recording.calls):,} {what} of {found.side} in {options.out}, {size:.1f} MB"
        + (f"; all values of {kept:,}." if kept else ".")
    )
    return 0
