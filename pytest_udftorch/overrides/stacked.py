# SPDX-License-Identifier: Apache-2.0
"""Layers that open sessions put over a part of the process, each on top of the earlier ones."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Generic, TypeVar

Layer = TypeVar("Layer")

# A timer may interrupt again and again. A step that fails by itself does so at the first try.
_TRIES: Final = 100


def insist(step: Callable[[], None]) -> None:
    """Repeat a step until it ends without an error, then raise the first error, if any.

    If a signal handler raises in the middle of restoring, its error comes once everything is
    restored. ``step`` does what is left to do, or nothing.
    """
    first: BaseException | None = None
    for _ in range(_TRIES):
        try:
            step()
            break
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first


class Stacked(ABC, Generic[Layer]):
    """A part of the process to which sessions add layers, and remove them in any order."""

    def __init__(self) -> None:
        self._layers: list[tuple[object, Layer]] = []
        self._unlock()
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        # In a forked child the thread that holds the lock may not exist.
        self.lock = threading.RLock()

    @abstractmethod
    def _apply(self) -> None:
        """Change the process to what the layers ask for. The caller holds the lock."""

    def push(self, owner: object, layer: Layer) -> None:
        """Add a layer on top. After an error everything is as before."""
        with self.lock:
            self._layers.append((owner, layer))
            try:
                self._apply()
            except BaseException:
                self.remove(owner)
                raise

    def remove(self, owner: object) -> None:
        """Remove the layer of ``owner``, wherever it lies."""
        with self.lock:
            self._layers = [(o, layer) for o, layer in self._layers if o is not owner]
            self._apply()

    def reset(self) -> None:
        """Remove every layer, whoever owns it."""
        with self.lock:
            self._layers = []
            self._apply()
