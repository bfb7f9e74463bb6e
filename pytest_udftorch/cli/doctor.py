# SPDX-License-Identifier: Apache-2.0
"""``udftorch doctor``."""

from __future__ import annotations

import argparse
import json

from pytest_udftorch.cli.status import FAILED, Subparsers


def add(commands: Subparsers) -> None:
    """Add ``udftorch doctor``, also called ``info``."""
    parser = commands.add_parser(
        "doctor",
        aliases=["info"],
        help="say what works here, what does not, and why",
        description="Shows versions, the CPU, compilers, the cache, and what works here, to put "
        "into a bug report. Nothing is compiled.",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run, waits="looking at this machine")


def run(options: argparse.Namespace) -> int:
    """Print what was found; the status is 1 if functions cannot be swapped."""
    from pytest_udftorch import doctor

    found = doctor.facts()
    print(json.dumps(found, indent=1) if options.json else doctor.text(found))
    return 0 if found["works"][0]["works"] else FAILED
