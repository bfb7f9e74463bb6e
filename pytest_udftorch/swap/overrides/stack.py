# SPDX-License-Identifier: Apache-2.0
"""Layers that open sessions put over a part of the process, each on top of the earlier ones.

A session can open or close at any moment of another's switch on the same thread: in a signal
handler, or when the garbage collector ends a generator. It then completes its own switch, and the
one that it interrupted starts over.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

Layer = TypeVar("Layer")


class Same:
    """An object as a key: equal to itself alone, and kept alive."""

    __slots__ = ("of",)

    def __init__(self, of: object) -> None:
        self.of = of

    def __hash__(self) -> int:
        return id(self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.of is other.of


class Stacked(ABC, Generic[Layer]):
    """A part of the process to which sessions add layers, and remove them in any order."""

    def __init__(self) -> None:
        self._layers: list[tuple[object, Layer]] = []
        self._changes = 0
        self._unlock()
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        # In a forked child the thread that holds the lock may not exist.
        self.lock = threading.RLock()

    @abstractmethod
    def _apply(self) -> None:
        """Change the process to what the layers ask for. The caller holds the lock."""

    @property
    def changes(self) -> int:
        """How often the layers were to be applied so far."""
        return self._changes

    def settle(self) -> None:
        """Apply the layers until none has come or gone meanwhile. The caller holds the lock."""
        self._changes += 1
        while True:
            before = self._changes
            self._apply()
            if before == self._changes:
                return

    def push(self, owner: object, layer: Layer) -> None:
        """Add a layer on top. After an error everything is as before."""
        with self.lock:
            self._layers.append((owner, layer))
            try:
                self.settle()
            except BaseException:
                self.remove(owner)
                raise

    def remove(self, owner: object) -> None:
        """Remove the layer of ``owner``, wherever it lies."""
        with self.lock:
            mine = [entry for entry in self._layers if entry[0] is owner]
            for entry in mine:
                if entry in self._layers:
                    self._layers.remove(entry)  # in place: a layer may have come meanwhile
            self.settle()

    def reset(self) -> None:
        """Remove every layer, whoever owns it."""
        with self.lock:
            self._layers.clear()
            self.settle()
