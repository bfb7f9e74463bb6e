# SPDX-License-Identifier: Apache-2.0
"""Layers that open sessions lay over something of the process, each on top of the earlier ones."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Generic, TypeVar

Layer = TypeVar("Layer")

# A timer may interrupt again and again; a step that fails by itself does so at the first try.
_TRIES: Final = 100


def insist(step: Callable[[], None]) -> None:
    """Repeat a step until it ends without an error, then raise the first error, if any.

    An interrupt in the middle of restoring (a signal handler that raises) is raised only when
    everything is restored.

    Args:
        step: does what is left to do, or nothing.
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

    def reset(self) -> None:
        """Take out every layer, whoever owns it."""
        with self.lock:
            self._layers = []
            self._apply()
