# SPDX-License-Identifier: Apache-2.0
"""``udftorch setup completion``: verbs, options and libraries on the Tab key, by argcomplete."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from pytest_udftorch.base.optional import package
from pytest_udftorch.cli.status import Subparsers

#: Names of the arguments that are UDF libraries.
_LIBRARIES = ("library", "libraries", "udf_lib", "against")


def add(actions: Subparsers) -> None:
    """Add ``udftorch setup completion``."""
    parser = actions.add_parser(
        "completion",
        help="print what makes a shell complete udftorch's arguments",
        description="Prints a script for a shell. For bash: "
        'eval "$(udftorch setup completion bash)" in ~/.bashrc. For zsh the same in ~/.zshrc, '
        "after compinit. For fish: udftorch setup completion fish > "
        "~/.config/fish/completions/udftorch.fish.",
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    parser.set_defaults(run=run, needs=lambda _: ["argcomplete"])


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    argcomplete = package("argcomplete", "udftorch setup completion")
    print(argcomplete.shellcode(["udftorch"], shell=options.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, which has set ``_ARGCOMPLETE``, and end the process."""
    for action in _actions(parser):
        if action.dest in _LIBRARIES:
            action.completer = _libraries
    package("argcomplete", "Completion").autocomplete(parser)


def _actions(parser: argparse.ArgumentParser) -> Iterator[Any]:
    for action in parser._actions:
        yield action
        # The choices of verbs are their parsers; an alias has that of its verb.
        if isinstance(action.choices, dict):
            for inner in dict.fromkeys(action.choices.values()):
                yield from _actions(inner)


def _libraries(**_: Any) -> list[str]:
    from pytest_udftorch.errors import UdfError
    from pytest_udftorch.swap.library.description import available_libraries

    try:
        return sorted(available_libraries())
    except UdfError:  # nobody reads errors on the Tab key
        return []
