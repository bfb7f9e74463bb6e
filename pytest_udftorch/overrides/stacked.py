# SPDX-License-Identifier: Apache-2.0
"""Layers that open sessions lay over something of the process, each on top of the earlier ones."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

Layer = TypeVar("Layer")


class Stacked(ABC, Generic[Layer]):
    """What sessions share: each adds a layer and takes it out again, in any order."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._layers: list[tuple[object, Layer]] = []

    @abstractmethod
    def _apply(self) -> None:
        """Make the process what the layers ask for; the lock is held."""

    def push(self, owner: object, layer: Layer) -> None:
        """Add a layer on top; after an error everything is as before."""
        with self.lock:
            self._layers.append((owner, layer))
            try:
                self._apply()
            except BaseException:
                self.remove(owner)
                raise

    def remove(self, owner: object) -> None:
        """Take the layer of ``owner`` out, wherever it lies."""
        with self.lock:
            self._layers = [(o, layer) for o, layer in self._layers if o is not owner]
            self._apply()
