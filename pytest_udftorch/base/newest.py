# SPDX-License-Identifier: Apache-2.0
"""A dictionary that forgets its oldest entries."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Newest(dict[Key, Value]):
    """Keeps so many of the entries that were set last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        """Set an entry, and forget the oldest one if there are too many."""
        super().__setitem__(key, value)
        while len(self) > self._most:
            self.pop(next(iter(self)), None)
