# SPDX-License-Identifier: Apache-2.0
"""Changes to objects of others that an interrupt cannot leave behind."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, MutableMapping
from typing import Any, Final

_MISSING: Final = object()


def _run(steps: list[Callable[[], object]]) -> None:
    """Run steps, the last first. A signal handler may run or record some at any moment of it."""
    while last := steps[-1:]:
        last[0]()
        _forget(steps, last[0])


def _forget(steps: list[Callable[[], object]], step: Callable[[], object]) -> None:
    with contextlib.suppress(ValueError):
        steps.remove(step)


class Undo:
    """Takes changes back, the latest first.

    Each change is recorded before it is made, and stays recorded until it has been taken back: a
    signal handler that raises in between loses none.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []
        self._left: list[Callable[[], object]] = []

    def run(self) -> None:
        """Take everything back. After an error or an interrupt, run it again for the rest.

        What was recorded by :meth:`at_last` is left to :meth:`finish`.
        """
        _run(self._steps)

    def later(self, step: Callable[[], object]) -> None:
        """Record a step; it may run more than once, and before the change it takes back."""
        self._steps.append(step)

    def at_last(self, step: Callable[[], object]) -> None:
        """Record a step that need not run if it is recorded again before :meth:`finish`.

        For a change that the next one replaces at once: other threads see no state in between.
        """
        self.later(functools.partial(self._leave, step))
        _forget(self._left, step)

    def _leave(self, step: Callable[[], object]) -> None:
        if step not in self._left:
            self._left.append(step)

    def finish(self) -> None:
        """Run the steps that were left, and that no new change has recorded."""
        _run(self._left)

    def set(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute."""
        before = getattr(owner, name)
        self.later(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def set_own(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute in the object's or class's own dictionary."""
        self.keep_own(owner, name)
        setattr(owner, name, value)

    def keep_own(self, owner: Any, name: str) -> None:
        """Record an attribute that ``set_own`` would set, and that may be set later."""
        before = vars(owner).get(name, _MISSING)

        def restore() -> None:
            if before is not _MISSING:
                setattr(owner, name, before)
            elif name in vars(owner):
                delattr(owner, name)

        self.later(restore)

    def set_item(self, table: MutableMapping[Any, Any], key: object, value: object) -> None:
        """Set an entry of a table."""
        self.keep_item(table, key)
        table[key] = value

    def drop_item(self, table: MutableMapping[Any, Any], key: object) -> None:
        """Remove an entry of a table, if it is there."""
        self.keep_item(table, key)
        table.pop(key, None)

    def keep_item(self, table: MutableMapping[Any, Any], key: object) -> None:
        """Record an entry of a table that may be set or removed later."""
        before = table.get(key, _MISSING)

        def restore() -> None:
            if before is not _MISSING:
                table[key] = before
            else:
                table.pop(key, None)

        self.later(restore)
