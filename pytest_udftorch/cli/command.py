# SPDX-License-Identifier: Apache-2.0
"""The parser of the command ``udftorch``, and how a verb ends."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from pytest_udftorch import __version__
from pytest_udftorch.base.optional import require
from pytest_udftorch.cli import (
    bench,
    blame,
    cache,
    certificate,
    compare,
    completion,
    coverage,
    cuda_form,
    diff,
    doctor,
    libraries,
    new,
    patch,
    reach,
    record,
    report,
    run,
    sensitivity,
    tolerance,
    verify,
)
from pytest_udftorch.cli.status import CUT_SHORT, INTERRUPTED, MISUSE, Subparsers
from pytest_udftorch.errors import UdfError
from pytest_udftorch.swap.toolchain.progress import Progress

#: In the order of the help.
VERBS: Final[tuple[Callable[[Subparsers], None], ...]] = (
    run.add,
    new.add,
    verify.add,
    certificate.add,
    libraries.add,
    reach.add,
    coverage.add,
    diff.add,
    blame.add,
    record.add,
    sensitivity.add,
    tolerance.add,
    report.add,
    bench.add,
    compare.add,
    patch.add,
    cuda_form.add,
    doctor.add,
    cache.add,
    completion.add,
)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser with all verbs."""
    parser = argparse.ArgumentParser(
        prog="udftorch", description="Math libraries inside PyTorch: verify and compare them."
    )
    parser.add_argument("--version", action="version", version=f"pytest_udftorch {__version__}")
    parser.set_defaults(needs=lambda _: [], waits="")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for add in VERBS:
        add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``udftorch`` and return its exit status."""
    try:
        try:
            return _run(arguments)
        finally:
            # Here rather than when Python ends, which would print a traceback.
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CUT_SHORT
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:
        from pytest_udftorch.cli.completion import complete

        complete(parser)
    options = parser.parse_args(arguments)
    try:
        require(options.needs(options), f"udftorch {options.command}")
        with Progress(options.waits, 0) if options.waits else contextlib.nullcontext():
            return int(options.run(options))
    except UdfError as error:
        print(f"udftorch {options.command}: {error}", file=sys.stderr)
        return MISUSE
    except KeyboardInterrupt:
        # A sample has no chunks.
        kept = {"verify": ("chunks", "quick", False), "blame": ("trials", "journal", True)}
        parts, option, needed = kept.get(options.command, ("", "command", False))
        recorded = parts and bool(getattr(options, option)) == needed
        more = f" Finished {parts} are recorded; continue with --resume." if recorded else ""
        print(f"\nudftorch {options.command}: interrupted.{more}", file=sys.stderr)
        return INTERRUPTED
