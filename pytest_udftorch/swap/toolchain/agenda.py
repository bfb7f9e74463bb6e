# SPDX-License-Identifier: Apache-2.0
"""What a process still has to compile, named and counted when the first of it begins.

A session says what it is going to need (:meth:`Agenda.expect`). That costs nothing: nobody looks
for a build before one is missing. Then those that are missing are counted, named and timed.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from pytest_udftorch.errors import UdfError
from pytest_udftorch.swap.toolchain.progress import PAUSE

#: How the name of a build's folder begins -> seconds that it takes on the machine that
#: ``benches/results/one_time_builds.json`` names; libraries, which have no such name, take a few.
SECONDS: Final = {
    "switchboard-": 24.0,
    "contract_kernels-": 10.0,
    "observer-": 7.0,
    "recorder-": 8.0,
    "gate-": 4.0,
    "contract-": 3.0,
    "cpu-": 1.0,
}


@dataclass(frozen=True)
class Candidate:
    """A build that is going to be needed.

    Attributes:
        what: as in ``Job.what``.
        kind: as in ``Job.kind``.
        available: returns where it would come from; see ``job.available``.
        obtain: returns it, compiled if it is missing.
    """

    what: str
    kind: str
    available: Callable[[], str]
    obtain: Callable[[], object]

    @property
    def missing(self) -> bool:
        """Whether it has to be compiled."""
        try:
            return self.available() == "compiler"
        except UdfError:  # whoever needs it says so
            return False


@dataclass(frozen=True)
class Turn:
    """The place of one build among those of the process.

    Attributes:
        text: ``compiling 2 of 3: the observer for torch 2.15.0``.
        heading: names all of them, once; or empty.
        seconds: that it is expected to take; 0 if nobody knows.
    """

    text: str
    heading: str
    seconds: float


class Agenda:
    """The builds of a process; the one instance is :data:`agenda`.

    Attributes:
        aside: enters what lets lines about progress through: pytest captures what tests write.
    """

    def __init__(self) -> None:
        self.aside: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
        self._lock = threading.Lock()
        self._expected: weakref.WeakKeyDictionary[object, Callable[[], Iterable[Candidate]]]
        self._expected = weakref.WeakKeyDictionary()
        self._rest: list[Candidate] = []
        self._done = 0
        self._speed: list[float] = []

    def expect(self, owner: object, candidates: Callable[[], Iterable[Candidate]]) -> None:
        """Note what is going to be needed, in its order, for as long as ``owner`` lives."""
        self._expected[owner] = candidates

    @contextlib.contextmanager
    def turn(self, what: str, kind: str) -> Iterator[Turn]:
        """Count one build, which is compiled within."""
        with self._lock:
            heading = "" if self._follows(what) else self._look(what, kind)
            self._rest = [one for one in self._rest if one.what != what]
            number, total = self._done + 1, self._done + 1 + len(self._rest)
            text = f"compiling {what}" if total == 1 else f"compiling {number} of {total}: {what}"
            seconds = self._expected_s(kind)
        start = time.monotonic()
        with self._aside():
            yield Turn(text, heading, seconds)
        with self._lock:
            self._done = self._done + 1 if self._rest else 0
            if kind in SECONDS:
                self._speed.append((time.monotonic() - start) / SECONDS[kind])

    def _aside(self) -> AbstractContextManager[Any]:
        here = threading.current_thread() is threading.main_thread()
        return self.aside() if here else contextlib.nullcontext()

    def _follows(self, what: str) -> bool:
        return any(one.what == what for one in self._rest)

    def _look(self, what: str, kind: str) -> str:
        """Count what is missing beside a build that nobody has counted; return the heading."""
        self._done = 0
        found: dict[str, Candidate] = {}
        for candidates in list(self._expected.values()):
            # What could not even be listed is missed, with its reason, where it is needed.
            with contextlib.suppress(UdfError):
                found |= {one.what: one for one in candidates()}
        self._rest = [one for name, one in found.items() if name != what and one.missing]
        seconds = sum(map(self._expected_s, [kind, *(one.kind for one in self._rest)]))
        if not self._rest or seconds < PAUSE:
            return ""
        names = ", ".join([what, *(one.what for one in self._rest)])
        return (
            f"{len(self._rest) + 1} parts are compiled once on this machine, in about "
            f"{seconds:.0f} s: {names}. `udftorch setup prebuild` does so beforehand."
        )

    def _expected_s(self, kind: str) -> float:
        """Return the seconds of a build, by those that others took here."""
        speed = sorted(self._speed)[len(self._speed) // 2] if self._speed else 1.0
        return SECONDS.get(kind, 0.0) * speed


def obtain_all(candidates: Iterable[Candidate]) -> None:
    """Compile what is missing, each counted.

    Raises:
        UdfError: a part cannot be compiled.
    """
    wanted = [one for one in candidates if one.missing]
    owner = _Owner()
    agenda.expect(owner, lambda: wanted)
    for one in wanted:
        one.obtain()


class _Owner:
    """Lives as long as a list of builds is worked on."""


agenda: Final = Agenda()
