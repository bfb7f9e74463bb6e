# SPDX-License-Identifier: Apache-2.0
"""Training that goes on from a checkpoint, and the state that a checkpoint lacks.

A checkpoint is what ``state_dict()`` gives of the model and of its optimizer, AdamW.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

from pytest_udftorch.reproduce.agreement.parting import First
from pytest_udftorch.reproduce.agreement.subject import Subject

#: Steps before the checkpoint and behind it.
_STEPS: Final = 2

_RATE: Final = 1e-3

#: Attributes of a module that are no state of the model, or that a checkpoint has.
_ELSEWHERE: Final = frozenset({"_parameters", "_buffers", "_modules", "training"})


def loss_of(logits: Any, targets: Any) -> Any:
    """Return the mean cross-entropy of classes, or of the tokens that follow."""
    from torch.nn import functional

    return functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def both(one: Subject) -> tuple[Subject, Subject]:
    """Return the model trained without a break, and from a checkpoint on, as at the start."""
    through, resumed = _copied(one), _copied(one)
    optimizer = _trained(through, None)
    checkpoint = copy.deepcopy((through.model.state_dict(), optimizer.state_dict()))
    _trained(through, optimizer)
    resumed.model.load_state_dict(checkpoint[0])
    again = _optimizer(resumed)
    again.load_state_dict(checkpoint[1])
    _trained(resumed, again)
    return through, resumed


def _copied(one: Subject) -> Subject:
    found = copy.copy(one)
    found.model = copy.deepcopy(one.model)
    return found


def _optimizer(one: Subject) -> Any:
    import torch

    return torch.optim.AdamW((p for p in one.model.parameters() if p.requires_grad), lr=_RATE)


def _trained(one: Subject, optimizer: Any) -> Any:
    """Train for some steps, and return the optimizer."""
    optimizer = optimizer or _optimizer(one)
    for _ in range(_STEPS):
        with one.training():
            loss_of(one.call(), one.targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def lacking(through: Subject, resumed: Subject) -> First | None:
    """Return the first state that differs and that a checkpoint does not have."""
    others = dict(resumed.model.named_modules())
    for path, module in through.model.named_modules():
        other = dict(_state(others[path]))
        for name, value in _state(module):
            if name not in other or not _equal(value, other[name]):
                return First(f"state {name}", path)
    return None


def _state(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of a module that its ``state_dict()`` leaves out."""
    import torch

    kept = module.state_dict()
    for name, value in module.named_buffers(recurse=False):
        if name not in kept:
            yield name, value
    for name, value in vars(module).items():
        if name not in _ELSEWHERE and isinstance(value, int | float | str | torch.Tensor):
            yield name, value


def _equal(a: Any, b: Any) -> bool:
    import torch

    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype is b.dtype and torch.equal(a, b)
    return bool(a == b)
