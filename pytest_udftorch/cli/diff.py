# SPDX-License-Identifier: Apache-2.0
"""``udftorch diff``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_udftorch.base.result import Result
from pytest_udftorch.cli.status import FAILED, INTERRUPTED, Subparsers
from pytest_udftorch.cli.subject import add_run, add_subject, check_side, own_options, subject
from pytest_udftorch.diagnose.runs.sides import RECORDED, Side, side
from pytest_udftorch.errors import DiagnosisError, RunError

if TYPE_CHECKING:
    from pytest_udftorch.diagnose.runs.other_process import Subject


def add(commands: Subparsers) -> None:
    """Add ``udftorch diff``."""
    parser = commands.add_parser(
        "diff",
        help="find the first operator that makes two runs differ",
        description="Runs a model or a script on two sides, finds the first operator whose "
        "inputs agree and whose outputs differ, says which side is nearer the truth, and proves "
        "it by exchanging the outputs. A side is eager, compiled, cpu, cuda, channels_last, "
        "library=corem, threads=1, row=0, dtype=bfloat16, autocast=bfloat16, capability=avx2, "
        "python:PATH (the interpreter of another environment), or several of them with commas "
        "between; or rec:FOLDER, which `udftorch record` made. Of two models or scripts, side a "
        "runs the first and side b the second.",
    )
    parser.add_argument("--a", default="eager", metavar="SIDE", help="by default eager")
    parser.add_argument("--b", metavar="SIDE", help="required, except with --origin")
    parser.add_argument(
        "--origin",
        choices=("nan", "inf", "subnormal"),
        help="instead: find the first operator that makes one from clean inputs, on side b (by "
        "default eager)",
    )
    add_run(parser)
    add_subject(parser, optional=True)
    parser.add_argument(
        "--causes", type=int, default=3, help="find at most this many causes; by default 3"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=120.0,
        help="limit for the search of a compiled side; by default 120. Then, and at Ctrl-C, the "
        "best answer so far is printed",
    )
    parser.add_argument(
        "--rounding",
        action="store_true",
        help="end with status 0 if rounding explains every difference",
    )
    parser.add_argument("--store", type=Path, metavar="FILE", help="also write everything as JSON")
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="write a page with the graph of operators coloured by distance",
    )
    parser.add_argument(
        "--reproducer",
        type=Path,
        metavar="DIR",
        help="write a script that shows the first difference, with the values that it needs",
    )
    parser.set_defaults(run=partial(run, parser), waits="running both sides")


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Compare, store and print; fail if the sides differ."""
    options = own_options(options, parser, most=2)
    if options.b is None and not options.origin and len(options.runs_of) < 2:
        raise DiagnosisError(
            "Name the second side, for instance --b library=corem, or a second model or script."
        )
    texts = [options.a, options.b or "eager"]
    if options.origin:
        texts = [options.b or options.a]
    for text in texts:
        check_side(text)
    if not options.runs_of and not all(text.startswith(RECORDED) for text in texts):
        raise RunError("There is nothing to run. Name model.py:make or a script.")
    return _origin(options, *texts) if options.origin else _difference(options, *texts)


def _difference(options: argparse.Namespace, a: str, b: str) -> int:
    """Compare two sides."""
    sides: list[Side | str] = [a, b]
    make: Subject | None = None
    if len(options.runs_of) == 2:
        makes = subject(options), subject(options, 1)
        sides = [_running(text, one) for text, one in zip((a, b), makes, strict=True)]
    elif options.runs_of:
        make = subject(options)
    from pytest_udftorch.diagnose.diff.comparison import first_difference
    from pytest_udftorch.diagnose.diff.reproducer import save_reproducer

    found = first_difference(
        *sides,
        make=make,
        train=options.train,
        steps=options.steps,
        seed=options.seed,
        causes=options.causes,
        seconds=options.seconds,
        tell=options.tell,
    )
    print(found.text())
    _store(options, found)
    if found.compiled is not None and found.compiled.interrupted:
        return INTERRUPTED
    if options.page:
        from pytest_udftorch.diagnose.diff.drawing import save_difference_page

        save_difference_page(found, options.page)
    if options.reproducer and found.findings:
        print(f"python {save_reproducer(found, options.reproducer)}")
    return 0 if found.equal or (options.rounding and found.explained) else FAILED


def _running(text: str, make: Subject) -> Side:
    """Return a side with what it alone runs, named by that."""
    one = side(text)
    name = make.where if one.name == "eager" else f"{make.where} ({one.name})"
    return replace(one, name=name, make=make)


def _origin(options: argparse.Namespace, on: str) -> int:
    """Look for the first special number instead."""
    if len(options.runs_of) > 1:
        raise RunError(f"--origin looks at one run. Leave out {options.runs_of[1]}.")
    make = subject(options) if options.runs_of else None
    from pytest_udftorch.diagnose.diff.origin import first_origin

    found = first_origin(
        options.origin,
        on=on,
        make=make,
        train=options.train,
        steps=options.steps,
        seed=options.seed,
    )
    print(found.text())
    _store(options, found)
    return FAILED if found.found else 0


def _store(options: argparse.Namespace, found: Result) -> None:
    from pytest_udftorch.base.store import store

    if options.store is not None:
        store(options.store, found.document(), DiagnosisError)
