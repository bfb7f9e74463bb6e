# SPDX-License-Identifier: Apache-2.0
"""The progress of verbs that count what they do: chunks, runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_udftorch.swap.toolchain.progress import Progress


@contextmanager
def progress_bar(
    what: str, unit: str, *, quiet: bool
) -> Iterator[Callable[[int, int], None] | None]:
    """Show how far it is, on a terminal as a bar; give the function that reports."""
    if quiet:
        yield None
        return
    with Progress(what, 0, unit=f" {unit}s") as shown:
        yield shown.count
