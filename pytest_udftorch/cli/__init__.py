# SPDX-License-Identifier: Apache-2.0
"""What does the command ``udftorch`` do?

Each verb has a module: ``add`` adds its parser and sets ``run``, the function to call. ``VERBS``
in ``command.py`` lists them by the six words; ``setup.py`` lists what is done once to a machine. A
verb imports what it works with when it runs, so that ``udftorch --help`` is quick.
"""

from pytest_udftorch.cli.command import main
from pytest_udftorch.cli.status import FAILED, INTERRUPTED, MISUSE

__all__ = ["FAILED", "INTERRUPTED", "MISUSE", "main"]
