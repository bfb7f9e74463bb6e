# SPDX-License-Identifier: Apache-2.0
"""Layers that open sessions put over a part of the process, each on top of the earlier ones."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

Layer = TypeVar("Layer")


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
