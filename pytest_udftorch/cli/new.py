# SPDX-License-Identifier: Apache-2.0
"""``udftorch new``."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_udftorch.cli.status import Subparsers


def add(commands: Subparsers) -> None:
    """Add ``udftorch new``."""
    parser = commands.add_parser(
        "new",
        help="make a UDF library of your own to start from",
        description="Makes a folder with a UDF library: udf.toml, a function in C, its tests and a "
        "README. It builds, and its tests pass, without a change.",
    )
    parser.add_argument(
        "folder", type=Path, metavar="MYLIB", help="the new folder; its name is the library's"
    )
    parser.add_argument(
        "--fpcore", type=Path, metavar="FILE",
        help="translate the functions in FPCore, as Herbie writes them, to C",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the folder, and say what to do next."""
    from pytest_udftorch.cli import scaffold
    from pytest_udftorch.errors import SourceError

    texts, first = None, "pytest; then "
    if options.fpcore is not None:
        try:
            texts, first = scaffold.of_fpcore(options.fpcore.read_text(encoding="utf-8")), ""
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"Cannot read {options.fpcore}: {error}. Name a text file."
            ) from error
    for path in scaffold.make(options.folder, texts):
        print(path)
    print(f"Next: cd {options.folder} && {first}udftorch verify ./ --quick")
    return 0
