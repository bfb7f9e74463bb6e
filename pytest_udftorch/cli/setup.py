# SPDX-License-Identifier: Apache-2.0
"""``udftorch setup``: what a machine is given once, beside the work of the other verbs."""

from __future__ import annotations

from typing import Final

from pytest_udftorch.cli import cache, completion, cuda_form
from pytest_udftorch.cli.status import Subparsers

#: In the order of the help.
PARTS: Final = (cache.add, cuda_form.add, completion.add)


def add(commands: Subparsers) -> None:
    """Add ``udftorch setup``."""
    parser = commands.add_parser(
        "setup",
        help="look after the builds, the forms for GPUs and the shell of this machine",
        description="Looks after the cache of builds, the forms for GPUs and the completion of "
        "shells on this machine. What works here is said by udftorch doctor.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    for add_part in PARTS:
        add_part(actions)
    for name, action in actions.choices.items():
        # Messages begin with the words that were typed.
        action.set_defaults(command=f"setup {name}")
