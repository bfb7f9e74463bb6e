# SPDX-License-Identifier: Apache-2.0
"""The progress bar of verbs that take long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(
    what: str, unit: str, *, quiet: bool
) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar from the first report on; give the function that reports."""
    bar: Any = None

    def update(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            from tqdm import tqdm

            bar = tqdm(total=total, initial=done, desc=what, unit=unit)
        bar.update(done - bar.n)

    try:
        yield None if quiet else update
    finally:
        if bar is not None:
            bar.close()
