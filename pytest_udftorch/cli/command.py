# SPDX-License-Identifier: Apache-2.0
"""The parser of the command ``udftorch``, and how a verb ends."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pytest_udftorch import __version__
from pytest_udftorch.base.optional import require
from pytest_udftorch.cli import (
    bench,
    blame,
    certificate,
    compare,
    coverage,
    diff,
    doctor,
    libraries,
    new,
    order,
    patch,
    reach,
    record,
    report,
    run,
    same,
    sensitivity,
    setup,
    tolerance,
    verify,
)
from pytest_udftorch.cli.status import CUT_SHORT, INTERRUPTED, MISUSE, Subparsers
from pytest_udftorch.cli.subject import split
from pytest_udftorch.errors import UdfError, nearest
from pytest_udftorch.swap.toolchain.progress import Progress

#: The six words of the README -> the verbs of each, in the order of the help.
VERBS: Final[dict[str, tuple[Callable[[Subparsers], None], ...]]] = {
    "swap": (run.add, libraries.add, new.add, patch.add, coverage.add, reach.add),
    "watch": (report.add, compare.add),
    "prove": (verify.add, certificate.add),
    "measure": (bench.add,),
    "reproduce": (same.add, record.add, order.add),
    "diagnose": (diff.add, blame.add, sensitivity.add, tolerance.add),
}

#: What the last line of the help names: work on the installation, not with it.
HOUSEKEEPING: Final = (doctor.add, setup.add)

_END: Final = "More: udftorch VERB --help. Bug report: udftorch doctor. Builds: udftorch setup.\n"


class _Parser(argparse.ArgumentParser):
    """The parser of ``udftorch``; its help is a table of verbs, on one screen."""

    #: A word, a verb, and what it is for.
    rows: list[tuple[str, str, str]]
    #: Every verb.
    verbs: Mapping[str, argparse.ArgumentParser]

    def format_help(self) -> str:
        table = "\n".join(f"{word:9}  {verb:11}  {text}" for word, verb, text in self.rows)
        return f"{self.format_usage()}{self.description}\n\n{table}\n\n{_END}"


class _Group:
    """The verbs of a word: each is a row of the table, the first one behind the word."""

    def __init__(self, word: str, commands: Subparsers, rows: list[tuple[str, str, str]]) -> None:
        self.word = word
        self.commands = commands
        self.rows = rows

    def add_parser(self, name: str, *, help: str, **more: Any) -> argparse.ArgumentParser:
        """Add a verb's parser as argparse does."""
        self.rows.append((self.word, name, help))
        self.word = ""
        parser: argparse.ArgumentParser = self.commands.add_parser(name, help=help, **more)
        return parser


def make_parser() -> _Parser:
    """Return the parser with all verbs."""
    parser = _Parser(
        prog="udftorch", description="Other math functions inside an unmodified PyTorch."
    )
    parser.add_argument("--version", action="version", version=f"pytest_udftorch {__version__}")
    parser.set_defaults(needs=lambda _: [], waits="")
    commands: Subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="VERB", parser_class=argparse.ArgumentParser
    )
    parser.rows = []
    for word, verbs in VERBS.items():
        group = _Group(word, commands, parser.rows)
        for add in verbs:
            add(group)
    for add in HOUSEKEEPING:
        add(commands)
    parser.verbs = commands.choices
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
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and not words[0].startswith("-") and words[0] not in parser.verbs:
        print(
            f"udftorch: there is no verb {words[0]!r}. {nearest(words[0], parser.verbs)} "
            "udftorch --help lists them.",
            file=sys.stderr,
        )
        return MISUSE
    behind: list[str] = []
    if words and words[0] in parser.verbs:
        words, behind = split(words, parser.verbs[words[0]])
    options = parser.parse_args(words)
    options.behind = behind
    try:
        require(options.needs(options), f"udftorch {options.command}")
        with Progress(options.waits, 0) if options.waits else contextlib.nullcontext() as progress:
            options.tell = progress.tell if progress is not None else None
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
