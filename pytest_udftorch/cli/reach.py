# SPDX-License-Identifier: Apache-2.0
"""``udftorch reach``."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_udftorch.cli.status import Subparsers, report_failures


def add(commands: Subparsers) -> None:
    """Add ``udftorch reach``."""
    parser = commands.add_parser(
        "reach",
        help="try which operators and dtypes a session reaches",
        description="Runs operators in every dtype and layout, counts the math symbols they "
        "call, and finds out with swapped probes whether every element went through them.",
    )
    parser.add_argument(
        "operators", nargs="*", metavar="operator", help="such as torch.exp; by default all"
    )
    parser.add_argument("--store", type=Path, metavar="FILE", help="also write the rows as JSON")
    parser.set_defaults(
        run=run,
        needs=lambda _: ["torch", "numpy"],
        waits="running operators in every dtype and layout",
    )


def run(options: argparse.Namespace) -> int:
    """Run the table, store it and print it."""
    from pytest_udftorch.swap.reach import table as reach

    rows = reach.table(options.operators, options.store)
    print(reach.terminal(rows))
    unexplained = reach.unexplained(rows)
    return report_failures(
        [f"no reason is known for {', '.join(unexplained)}"] if unexplained else []
    )
