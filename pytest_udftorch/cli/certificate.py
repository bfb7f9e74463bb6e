# SPDX-License-Identifier: Apache-2.0
"""``udftorch certificate``."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_udftorch.cli.status import Subparsers, report_failures


def add(commands: Subparsers) -> None:
    """Add ``udftorch certificate``."""
    what = "check, merge or tabulate certificates"
    parser = commands.add_parser("certificate", help=what, description=f"{what.capitalize()}.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    needed = {"check": ["numpy"], "merge": ["numpy"], "table": ["numpy", "tabulate"]}
    for name, run, text in (
        ("check", check_files, "check certificates against their digests and claims"),
        ("merge", merge_files, "make one certificate of several"),
        ("table", print_table, "print functions x libraries as Markdown"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("files", nargs="+", type=Path)
        action.set_defaults(run=run, needs=lambda _, name=name: needed[name])
        if name == "merge":
            action.add_argument("--out", required=True, type=Path, metavar="FILE")


def check_files(options: argparse.Namespace) -> int:
    """Check that files are whole, unedited, complete, and keep their claims."""
    from pytest_udftorch.verify.certificate_file import load

    failures = []
    for path in options.files:
        certificate = load(path)
        failures += certificate.failures() + certificate.unfinished()
        print(f"{path}: {certificate.name}, {len(certificate.runs)} runs, intact")
    return report_failures(failures)


def merge_files(options: argparse.Namespace) -> int:
    """Merge certificates into one file."""
    from pytest_udftorch.verify.certificate_file import load, save
    from pytest_udftorch.verify.merging import merge

    merged = merge([load(path) for path in options.files])
    save(merged, options.out)
    print(f"{options.out}: {merged.name}, {len(merged.runs)} runs")
    return 0


def print_table(options: argparse.Namespace) -> int:
    """Print the comparison of libraries."""
    from pytest_udftorch.verify.certificate_file import load
    from pytest_udftorch.verify.merging import comparison_table

    print(comparison_table([load(path) for path in options.files]))
    return 0
