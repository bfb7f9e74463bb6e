# SPDX-License-Identifier: Apache-2.0
"""``udftorch libraries``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pytest_udftorch.cli.status import Subparsers, report_failures
from pytest_udftorch.errors import UdfError

if TYPE_CHECKING:
    from pytest_udftorch.swap.library.description import UdfLibrary


def add(commands: Subparsers) -> None:
    """Add ``udftorch libraries``."""
    parser = commands.add_parser(
        "libraries",
        help="list UDF libraries, their functions and operators",
        description="Lists what libraries have, as their udf.toml says; nothing is compiled.",
    )
    parser.add_argument(
        "libraries", nargs="*", metavar="library", help="names or paths; by default all known"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print each library's functions with their dtypes, and operators with dispatch keys."""
    from pytest_udftorch.swap.library.description import available_libraries, find_library

    if options.libraries:
        for which in options.libraries:
            _print_library(find_library(which))
        return 0
    broken = []
    for name, folder in sorted(available_libraries().items()):
        if folder is None:
            print(f"{name}: only code of its package knows where it is; udftorch libraries {name}")
            continue
        try:
            _print_library(find_library(folder))
        except UdfError as error:
            broken.append(f"{name}: {error}")
    return report_failures(broken)


def _print_library(library: UdfLibrary) -> None:
    claim = f" ({library.claim})" if library.claim else ""
    print(f"{library.name} {library.version}{claim}: {library.description}".rstrip(": "))
    if library.stock:
        print("  the stock functions and operators")
    for name in () if library.stock else library.function_names:
        dtypes = ", ".join(d for n, d in library.functions if n == name)
        print(f"  {name}: {dtypes}")
    for name, udfs in library.operators.items():
        for udf in udfs:
            keys = ", ".join(udf.dispatch_keys)
            only = f"; {', '.join(udf.dtypes)} only" if udf.dtypes else ""
            print(f"  {name}: {keys}{only}")
