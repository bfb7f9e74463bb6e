# SPDX-License-Identifier: Apache-2.0
"""The parser of the command ``udftorch``, and how a verb ends."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from pytest_udftorch import __version__
from pytest_udftorch.cli import (
    cache,
    certificate,
    compare,
    coverage,
    cuda_form,
    doctor,
    libraries,
    patch,
    reach,
    report,
    run,
    verify,
)
from pytest_udftorch.cli.status import INTERRUPTED, MISUSE, Subparsers
from pytest_udftorch.errors import UdfError

#: In the order of the help.
VERBS: Final[tuple[Callable[[Subparsers], None], ...]] = (
    run.add,
    verify.add,
    certificate.add,
    libraries.add,
    reach.add,
    coverage.add,
    report.add,
    compare.add,
    patch.add,
    cuda_form.add,
    doctor.add,
    cache.add,
)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser with all verbs."""
    parser = argparse.ArgumentParser(
        prog="udftorch", description="Math libraries inside PyTorch: verify and compare them."
    )
    parser.add_argument("--version", action="version", version=f"pytest_udftorch {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for add in VERBS:
        add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``udftorch`` and return its exit status."""
    options = make_parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except UdfError as error:
        print(f"udftorch {options.command}: {error}", file=sys.stderr)
        return MISUSE
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        resume = " Finished chunks are recorded; continue with --resume."
        more = resume if options.command == "verify" else ""
        print(f"\nudftorch {options.command}: interrupted.{more}", file=sys.stderr)
        return INTERRUPTED
