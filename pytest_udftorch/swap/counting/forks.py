# SPDX-License-Identifier: Apache-2.0
"""The collector that counts in this process, and what happens to it in a fork.

A forked child goes on counting from zero. It writes what it counted to a file when it ends, and
the parent reads the file.
"""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import threading
from pathlib import Path
from typing import Final, Protocol

from pytest_udftorch.base.whole_file import TemporaryFolder
from pytest_udftorch.errors import SessionBusyError, UdfError
from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records.profile import Profile


class Collector(Protocol):
    """What a fork does to :class:`.collection.Collector`."""

    def stop(self) -> object:
        """Stop counting."""

    def before_fork(self) -> None:
        """Get ready, in the parent."""

    def in_child(self) -> None:
        """Begin anew, in the child."""

    def arm_child(self) -> None:
        """Have the child write what it counts when it ends."""


#: How the names of folders begin that last as long as a session, or a run of pytest.
SPOOL_PREFIX: Final = "udftorch-profile-"


class Active:
    """Holds the one collector that is active in this process."""

    def __init__(self) -> None:
        self.collector: Collector | None = None
        self._lock = threading.Lock()
        self._registered = False

    def check_free(self) -> None:
        """Raise if a collector is active.

        Raises:
            SessionBusyError: one is active.
        """
        if self.collector is not None:
            raise SessionBusyError(
                "A profiled session is open in this process, and there is one set of counters. "
                "Close it first, or open the inner session without profile=: what its functions "
                "do is then not counted."
            )

    def claim(self, collector: Collector) -> None:
        """Make a collector the active one, which forks notify.

        Raises:
            SessionBusyError: another one is active.
        """
        with self._lock:
            self.check_free()
            self.collector = collector
        if not self._registered:
            self._registered = True
            os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)
            multiprocessing.util.register_after_fork(self, Active._arm)

    def release(self) -> None:
        """Let go of the active collector, if there is one."""
        self.collector = None

    def reset(self) -> None:
        """Stop the collector, if one is active."""
        if self.collector is not None:
            self.collector.stop()

    def _before_fork(self) -> None:
        if self.collector is not None:
            self.collector.before_fork()

    def _after_fork(self) -> None:
        # Another thread of the parent may have held the lock; it does not exist in the child.
        self._lock = threading.Lock()
        if self.collector is not None:
            self.collector.in_child()

    def _arm(self) -> None:
        """Called by multiprocessing in a child before the child's own code."""
        if self.collector is not None:
            self.collector.arm_child()


#: The one of this process.
active: Final = Active()


class Spool:
    """The folder that forked children write their profiles to.

    Args:
        out: the folder of the profile, or None for one that lasts as long as the session.
    """

    def __init__(self, out: Path | None) -> None:
        self.folder: Path | None = None
        self._own: TemporaryFolder | None = None
        self._out = out
        self._pid = os.getpid()

    def make(self) -> None:
        """Make the folder, in the parent, before the first fork."""
        if self.folder is None and self._pid == os.getpid():
            if self._out is None:
                self._own = TemporaryFolder(SPOOL_PREFIX)
            self.folder = self._out if self._own is None else self._own.path

    def remove(self) -> None:
        """Remove the folder, in the parent, if it was made for the session."""
        if self._own is not None and self._pid == os.getpid():
            self._own.remove()
            self._own = None
        self.folder = None

    def profiles(self, session: str, own: Path | None) -> list[Profile]:
        """Return what children of a session wrote before they ended, however they ended.

        Args:
            session: the session's id in the header of a file.
            own: the parent's file, which is left out.
        """
        found: list[Profile] = []
        if self.folder is None:
            return found
        for path in sorted(self.folder.glob("profiled-*.bin")):
            if path == own:
                continue
            # The next call reads a file that is being written now.
            with contextlib.suppress(UdfError, OSError):
                file = record.read(path)
                over = file.ended or not record.is_written(path)
                if file.meta.get("session") == session and over:
                    found.append(Profile.load(path))
        return found
