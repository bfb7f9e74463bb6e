# SPDX-License-Identifier: Apache-2.0
"""``udftorch patch``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_udftorch.cli.status import FAILED, Subparsers


def add(commands: Subparsers) -> None:
    """Add ``udftorch patch``."""
    parser = commands.add_parser(
        "patch",
        help="make a libtorch on disk that has a library's functions",
        description="Makes a folder that stands in for the installed torch, for C++ programs and "
        "for Python processes that never load this package. The installed torch stays untouched.",
    )
    parser.add_argument("--udf-lib", metavar="LIBRARY", help="name or path of a UDF library")
    parser.add_argument(
        "--functions", type=lambda text: text.split(","), metavar="NAME,...",
        help="torch's names; by default all that the library has",
    )  # fmt: skip
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, metavar="DIR", help="make the patch here")
    action.add_argument(
        "--verify", type=Path, metavar="DIR", help="compare a patch with its manifest, and run it"
    )
    action.add_argument("--undo", type=Path, metavar="DIR", help="remove a patch")
    parser.set_defaults(run=run, needs=lambda _: ["torch"], waits="preparing the copy of libtorch")


def run(options: argparse.Namespace) -> int:
    """Make, verify or undo a patch."""
    from pytest_udftorch.errors import UnknownLibraryError
    from pytest_udftorch.swap.patch import folder

    if options.verify:
        failures = folder.verify(options.verify)
        for sentence in failures:
            print(f"FAILED: {sentence}", file=sys.stderr)
        if not failures:
            print(f"{options.verify}: intact, and a fresh process computes with it")
        return FAILED if failures else 0
    if options.undo:
        for path in folder.undo(options.undo):
            print(f"kept, because the patch does not list it: {path}")
        return 0
    if not options.udf_lib:
        raise UnknownLibraryError("udftorch patch --out needs a library: add --udf-lib=corem.")
    made = folder.make(options.udf_lib, options.functions, options.out)
    print(folder.description(made))
    return 0
