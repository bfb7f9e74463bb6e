# SPDX-License-Identifier: Apache-2.0
"""Lines on standard error while somebody waits for a build, or for other ranks.

Nothing is written about what takes less than two seconds, unless it is known to take longer. On a
terminal, one line is written over and over, with a bar. ``UDFTORCH_PROGRESS=0`` turns all of it
off.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from types import TracebackType
from typing import ClassVar, Final

#: Seconds before the first line. From one line to the next it is half as long again, up to LONGEST.
PAUSE: Final = 2.0
LONGEST: Final = 30.0
#: Seconds from one look of a bar to the next, and its characters.
REDRAWN: Final = 0.5
WIDTH: Final = 20

VARIABLE: Final = "UDFTORCH_PROGRESS"


#: Those whose blocks run, the innermost last.
_open: Final[list[Progress]] = []


def tell(step: str) -> None:
    """Say which step a long search is at, if somebody waits for it: ``run 3 of 20``."""
    if _open:
        _open[-1].text = f"{_open[-1].named}, {step}"


class Progress:
    """Says, while its block runs, what is being done and how far it is.

    Args:
        text: what is being done: ``compiling corem for avx512``. It may be set anew.
        total: how many steps it has; 0 if nobody knows.
        seconds: that it is expected to take; 0 if nobody knows.
        heading: a line to write before the first one.
        unit: what the steps are, behind their number: `` chunks``.
    """

    #: How long the line is that a terminal shows now.
    _drawn: ClassVar[int] = 0

    def __init__(
        self,
        text: str,
        total: int,
        *,
        seconds: float = 0.0,
        heading: str = "",
        unit: str = "",
    ) -> None:
        self.text = self.named = text
        self._total, self._done, self._first = total, 0, 0
        self._unit = unit
        self._seconds, self._heading = seconds, heading
        self._ended = threading.Event()
        self._said = False
        self._start = time.monotonic()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        _open.append(self)
        if os.environ.get(VARIABLE) != "0":
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._ended.set()
        _open.remove(self)
        if self._thread is not None:
            self._thread.join()
        if self._said and kind is None:
            spent = time.monotonic() - self._start
            self._say(f"done, {spent:.0f} s" if self._done >= self._total else self._far())
        elif Progress._drawn:
            self._write("\n")
            Progress._drawn = 0

    def tell(self, text: str) -> None:
        """Say from now on what is being done: one step of a search, say."""
        self.text = text

    def step(self) -> None:
        """Count one step as done."""
        self._done += 1

    def count(self, done: int, total: int) -> None:
        """Say how many steps are done, of how many; the first number was done before."""
        if not self._total:
            self._first = done
        self._done, self._total = done, total

    def _run(self) -> None:
        bar = sys.stderr is not None and sys.stderr.isatty()
        # What is known to take longer is named at once.
        pause = 0.0 if self._heading or self._seconds > PAUSE else PAUSE
        while not self._ended.wait(pause):
            if bar and _open[-1:] != [self]:
                # Something within it has the line.
                pause = REDRAWN
                continue
            if not self._said and self._heading:
                self._write(f"udftorch: {self._heading}\n")
            self._said = True
            self._say(self._far(), bar)
            pause = REDRAWN if bar else min(1.5 * max(pause, PAUSE / 1.5), max(PAUSE, LONGEST))

    def _far(self) -> str:
        spent = time.monotonic() - self._start
        if self._total > 1:
            return f"{self._done} of {self._total}{self._unit}, {spent:.0f} s{self._left(spent)}"
        if not self._seconds:
            return f"still running, {spent:.0f} s"
        about = f"about {self._seconds:.0f} s"
        if spent < 1:
            return about
        late = spent > self._seconds
        return f"{spent:.0f} s, expected {about}" if late else f"{spent:.0f} s of {about}"

    def _left(self, spent: float) -> str:
        """Return about how long the rest takes, once a tenth or ten steps are done."""
        made = self._done - self._first
        if not self._unit or made < min(10, self._total / 10) or made < 1:
            return ""
        return f", about {spent / made * (self._total - self._done):.0f} s left"

    def _share(self) -> float:
        """Return how much is done, from 0 to 1, or -1 if nobody knows."""
        if self._total > 1:
            return self._done / self._total
        spent = time.monotonic() - self._start
        return min(spent / self._seconds, 0.95) if self._seconds else -1.0

    def _say(self, how: str, bar: bool = False) -> None:
        if not bar:
            # A line that was drawn is written over, and stays.
            line = f"udftorch: {self.text}: {how}"
            over = "\r" if Progress._drawn else ""
            self._write(f"{over}{line.ljust(Progress._drawn)}\n")
            Progress._drawn = 0
            return
        share = self._share()
        full = round(share * WIDTH)
        drawn = f" [{'#' * full}{'.' * (WIDTH - full)}]" if share >= 0 else ""
        line = f"udftorch: {self.text}{drawn} {how}"[: shutil.get_terminal_size().columns - 1]
        self._write(f"\r{line.ljust(Progress._drawn)}")
        Progress._drawn = len(line)

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):  # none, closed, or a pipe that nobody reads
            self._ended.set()
