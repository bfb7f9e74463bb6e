# SPDX-License-Identifier: Apache-2.0
"""English text for a model of characters: Python's own reference, as every CPython ships it.

``pydoc_data.topics`` is the part of the language reference that ``help()`` shows, some
half a million characters. The text depends on the version of Python.
"""

from __future__ import annotations

import platform
from pydoc_data.topics import topics

import torch

from benches.data.samples import Samples

#: The last part of the text is for testing.
TRAIN_SHARE = 0.9


def text() -> str:
    """Return the topics, one after the other in the order of their names."""
    return "\n\n".join(topics[name] for name in sorted(topics))


def symbols() -> str:
    """Return the characters that occur, in order; a target is an index of it."""
    return "".join(sorted(set(text())))


def load(length: int) -> Samples:
    """Return windows of the text (n, length) and, as targets, the same one character later."""
    index = {character: i for i, character in enumerate(symbols())}
    encoded = torch.tensor([index[c] for c in text()])
    cut = int(TRAIN_SHARE * len(encoded))

    def windows(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = (len(part) - 1) // length
        inputs = part[: count * length].view(count, length)
        return inputs, part[1 : count * length + 1].view(count, length)

    return Samples(
        f"topics of pydoc in Python {platform.python_version()}",
        *windows(encoded[:cut]),
        *windows(encoded[cut:]),
    )
