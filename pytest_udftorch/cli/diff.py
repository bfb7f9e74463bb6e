# SPDX-License-Identifier: Apache-2.0
"""``udftorch diff``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pytest_udftorch.cli.status import FAILED, Subparsers


def add(commands: Subparsers) -> None:
    """Add ``udftorch diff``."""
    parser = commands.add_parser(
        "diff",
        help="find the first operator that makes two runs differ",
        description="Runs a model or a script on two sides, finds the first operator that gets "
        "the same bits on both and gives others, says which side is nearer the truth, and proves "
        "it by exchanging its output. A side is eager, compiled, cpu, cuda, channels_last, "
        "library=corem, threads=1, row=0, dtype=bfloat16, autocast=bfloat16, or several of them "
        "with commas between.",
    )
    parser.add_argument("--a", default="eager", metavar="SIDE", help="by default eager")
    parser.add_argument("--b", metavar="SIDE", help="required, but for --origin")
    parser.add_argument(
        "--origin",
        choices=("nan", "inf", "subnormal"),
        help="instead: find the first operator that makes one from clean inputs, on side b (by "
        "default eager)",
    )
    parser.add_argument(
        "run_of",
        metavar="FILE:FUNCTION or FILE",
        help="a function that returns a callable, which is the run, or a model and its inputs; or "
        "a script",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="of the script")
    parser.add_argument(
        "--train",
        action=argparse.BooleanOptionalAction,
        help="whether loss, backward pass and optimizer follow a model's forward pass; by default "
        "if it is in training mode",
    )
    parser.add_argument("--steps", type=int, default=1, help="of a model; by default 1")
    parser.add_argument("--seed", type=int, default=0, help="of random numbers")
    parser.add_argument("--causes", type=int, default=3, help="to look for, at most")
    parser.add_argument(
        "--rounding", action="store_true", help="end with status 0 if rounding explains all"
    )
    parser.add_argument("--store", type=Path, metavar="FILE", help="also write everything as JSON")
    parser.add_argument(
        "--reproducer",
        type=Path,
        metavar="DIR",
        help="write a script that shows the first difference, with the values that it needs",
    )
    parser.set_defaults(run=run, waits="running both sides")


def run(options: argparse.Namespace) -> int:
    """Compare, store and print; fail if the sides differ."""
    from pytest_udftorch.diff.files import load
    from pytest_udftorch.diff.find import first_difference
    from pytest_udftorch.diff.reproducer import save_reproducer
    from pytest_udftorch.errors import DiffSideError

    if options.origin:
        return _origin(options)
    if options.b is None:
        raise DiffSideError("Name the second side, for instance --b library=corem.")
    found = first_difference(
        options.a,
        options.b,
        make=load(options.run_of, options.arguments),
        train=options.train,
        steps=options.steps,
        seed=options.seed,
        causes=options.causes,
    )
    print(found.text())
    _store(options.store, found.document())
    if options.reproducer and not found.equal:
        print(f"python {save_reproducer(found, options.reproducer)}")
    return 0 if found.equal or (options.rounding and found.explained) else FAILED


def _origin(options: argparse.Namespace) -> int:
    """Look for the first special number instead."""
    from pytest_udftorch.diff.files import load
    from pytest_udftorch.diff.origin import first_origin

    found = first_origin(
        options.origin,
        on=options.b or options.a,
        make=load(options.run_of, options.arguments),
        train=options.train,
        steps=options.steps,
        seed=options.seed,
    )
    print(found.text())
    _store(options.store, found.document())
    return FAILED if found.found else 0


def _store(path: Path | None, document: dict[str, Any]) -> None:
    """Write a document as JSON if a file is named."""
    from pytest_udftorch import whole_file
    from pytest_udftorch.errors import DiffReproducerError

    if path is None:
        return
    try:
        whole_file.write(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise DiffReproducerError(
            f"What was found cannot be written to {path}: {error.strerror}. Name a file in a "
            "folder that exists and can be written."
        ) from error
