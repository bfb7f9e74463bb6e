# SPDX-License-Identifier: Apache-2.0
"""Lines on standard error while somebody waits for a build, or for other ranks.

Nothing is written about what takes less than two seconds. ``UDFTORCH_PROGRESS=0`` turns the
lines off.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import Final

#: Seconds before the first line. From one line to the next it is half as long again, up to LONGEST.
PAUSE: Final = 2.0
LONGEST: Final = 30.0

VARIABLE: Final = "UDFTORCH_PROGRESS"


class Progress:
    """Says, while its block runs, what is being done and how far it is.

    Args:
        text: what is being done: ``compiling corem for avx512``. It may be set anew.
        total: how many steps it has; 0 if nobody knows.
    """

    def __init__(self, text: str, total: int) -> None:
        self.text, self._total, self._done = text, total, 0
        self._ended = threading.Event()
        self._said = False
        self._start = time.monotonic()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        if os.environ.get(VARIABLE) != "0":
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._said and kind is None:
            self._say("done" if self._done >= self._total else self._far())

    def tell(self, text: str) -> None:
        """Say from now on what is being done: one step of a search, say."""
        self.text = text

    def step(self) -> None:
        """Count one step as done."""
        self._done += 1

    def _run(self) -> None:
        pause = PAUSE
        while not self._ended.wait(pause):
            self._said = True
            self._say(self._far())
            pause = min(1.5 * pause, max(PAUSE, LONGEST))

    def _far(self) -> str:
        return f"{self._done} of {self._total}" if self._total else "still running"

    def _say(self, how: str) -> None:
        seconds = time.monotonic() - self._start
        try:
            print(f"udftorch: {self.text}: {how}, {seconds:.0f} s", file=sys.stderr, flush=True)
        except (OSError, ValueError):  # closed, or a pipe that nobody reads
            self._ended.set()
