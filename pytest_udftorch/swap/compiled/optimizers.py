# SPDX-License-Identifier: Apache-2.0
"""Compiled optimizers under the contract of ``repro``: the roundings of eager ones.

When torch.compile traces an optimizer, factors such as 1 - beta^step become tensors of float32,
where eager code has Python's float64. While a session holds the contract, the arithmetic of an
optimizer is not traced, as torch itself does with its fused optimizers. Nor does Dynamo write
``addcdiv_`` and its like out in other operations.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.swap.contract.outside import holds
from pytest_udftorch.swap.overrides.active import Active, Change
from pytest_udftorch.swap.overrides.undo import Undo


def _keep_whole(dynamo: Any, active: Active, undo: Undo) -> None:
    if not holds(active.operators):
        return
    # Not in torch 2.11, whose Dynamo always writes them out.
    if hasattr(dynamo.config, compat.DYNAMO_REWRITES):
        undo.set(dynamo.config, compat.DYNAMO_REWRITES, False)
    undo.drop_item(compat.dynamo_handlers(), importlib.import_module("torch").addcdiv)
    for path, names in compat.OPTIMIZERS.items():
        module = importlib.import_module(path)
        compat.check_changed(module)
        for name in names:
            step = getattr(module, name)
            undo.set(module, name, dynamo.disable(step, reason="it rounds as the contract says"))


CHANGES: Final[dict[str, Change]] = {compat.DYNAMO: _keep_whole}
