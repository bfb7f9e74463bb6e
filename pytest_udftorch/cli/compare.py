# SPDX-License-Identifier: Apache-2.0
"""``udftorch compare``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from pytest_udftorch.cli.status import Subparsers, report_failures


def add(commands: Subparsers) -> None:
    """Add ``udftorch compare``."""
    parser = commands.add_parser(
        "compare",
        help="say what changed between profiles, benches, certificates",
        description="Sets profiles, baselines of pytest --udf-save, results of udftorch bench or "
        "pytest-benchmark, or certificates beside the first one, and says what changed. Nothing is "
        "added up. With --fail the exit status is 1 if a change is beyond a limit.",
    )
    parser.add_argument("first", type=Path, metavar="A", help="what the others are compared with")
    parser.add_argument(
        "others", nargs="+", type=Path, metavar="B", help="one or more of the same kind"
    )
    parser.add_argument(
        "--by",
        default="function",
        choices=["function", "operator", "layer"],
        help="rows of profiles; by default function",
    )
    parser.add_argument(
        "--fail",
        action="append",
        default=[],
        metavar="LIMITS",
        help="such as time:10%%,ulp:1,range:0.5,count:0; range is in binades",
    )
    parser.add_argument("--all", action="store_true", help="show what has not changed, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write an HTML page")
    parser.add_argument("--title", default="What changed", help="title of the page")
    parser.set_defaults(run=run, needs=lambda _: ["numpy"], waits="comparing")


def run(options: argparse.Namespace) -> int:
    """Compare, print the table, and write what was asked for."""
    from pytest_udftorch.swap.records.export import write_text
    from pytest_udftorch.watch.compare import change, sources
    from pytest_udftorch.watch.compare import views as show

    limits = change.limits_of(options.fail)
    paths = [options.first, *options.others]
    figures = sources.distinct([sources.read(path, options.by) for path in paths], paths)
    comparison = change.compare(figures, limits)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(show.text(comparison, everything=options.all, colour=colour))
    if options.json:
        write_text(options.json, json.dumps(comparison.document(), indent=1) + "\n")
    if options.out:
        write_text(options.out, show.html(comparison, title=options.title))
    return report_failures(comparison.failures)
