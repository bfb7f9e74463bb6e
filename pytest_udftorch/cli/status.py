# SPDX-License-Identifier: Apache-2.0
"""Exit statuses, and what every verb needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

Subparsers = Any  # argparse has no public name for it

#: Exit status of a run that finished and found the claim false.
FAILED: Final = 1
#: Exit status of a mistake in the call or the installation.
MISUSE: Final = 2
#: Exit status of an interrupted run, as shells report SIGINT.
INTERRUPTED: Final = 130
#: Exit status of a run whose reader has seen enough, as shells report SIGPIPE.
CUT_SHORT: Final = 141


def report_failures(failures: Sequence[str]) -> int:
    """Print what failed and return the exit status."""
    for sentence in failures:
        print(f"FAILED: {sentence}", file=sys.stderr)
    return FAILED if failures else 0
