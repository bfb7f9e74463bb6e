# SPDX-License-Identifier: Apache-2.0
"""Arguments of operators in files that ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

from typing import Any, Final

from pytest_udftorch.base import compat

#: How the text begins that stands for a memory format, which torch cannot save.
FORMAT_OF_MEMORY: Final = "torch memory format: "


def packed(values: Any) -> Any:
    """Return arguments without what cannot be saved; generators become None."""
    import torch

    def pack(value: Any) -> Any:
        if isinstance(value, torch.memory_format):
            return FORMAT_OF_MEMORY + str(value).removeprefix("torch.")
        return None if isinstance(value, torch.Generator) else value

    return compat.pytree().tree_map(pack, values)


def unpacked(values: Any) -> Any:
    """Return what :func:`packed` got."""
    import torch

    def unpack(value: Any) -> Any:
        if isinstance(value, str) and value.startswith(FORMAT_OF_MEMORY):
            return getattr(torch, value.removeprefix(FORMAT_OF_MEMORY))
        return value

    return compat.pytree().tree_map(unpack, values)
