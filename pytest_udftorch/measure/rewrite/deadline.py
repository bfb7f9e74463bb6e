# SPDX-License-Identifier: Apache-2.0
"""When the search on one graph has to end, and what was left undone for that."""

from __future__ import annotations

import math
import time

from pytest_udftorch.base.plain_data import shown
from pytest_udftorch.errors import RewriteError


class OutOfTime(Exception):
    """A deadline has passed; its text says what was not begun."""


class Deadline:
    """A point in time after which no step of a search is begun.

    A step that runs is not interrupted: a call of the graph, a proof, or a compiler.

    Args:
        seconds: from now.
        missed: where what was left undone is written; parts of a deadline share it.

    Raises:
        RewriteError: ``seconds`` is no number above 0.
    """

    def __init__(self, seconds: float, missed: list[str] | None = None) -> None:
        wrong = isinstance(seconds, bool) or not isinstance(seconds, int | float)
        if wrong or not seconds > 0:
            raise RewriteError(
                f"seconds={shown(seconds)}: give the seconds after which the search on a graph "
                "ends, for instance 600."
            )
        self.seconds = float(seconds)
        self.end = time.monotonic() + self.seconds
        #: What was left undone, in words.
        self.missed: list[str] = [] if missed is None else missed

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.end - time.monotonic())

    def share(self, part: float) -> Deadline:
        """Return a deadline when this part of the time that is left has gone by.

        What follows a step, such as the check of what it found, so has time too.
        """
        return Deadline(max(part * self.left(), math.ulp(0)), self.missed)

    def within(self, seconds: float) -> Deadline:
        """Return a deadline after so many seconds, and not after this one."""
        return Deadline(max(min(seconds, self.left()), math.ulp(0)), self.missed)

    def passed(self, undone: str) -> bool:
        """Whether it has passed; if so, note what is left undone."""
        if time.monotonic() < self.end:
            return False
        if undone not in self.missed:
            self.missed.append(undone)
        return True

    def check(self, undone: str) -> None:
        """Note what is left undone if it has passed.

        Raises:
            OutOfTime: it has.
        """
        if self.passed(undone):
            raise OutOfTime(undone)


#: A deadline that never comes.
NEVER = Deadline(math.inf)
