# SPDX-License-Identifier: Apache-2.0
"""What a plan is made for: a model's graph, the inputs' shapes and layouts, a device."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pytest_udftorch.base import compat
from pytest_udftorch.base.trees import tensors_in
from pytest_udftorch.errors import UntraceableModelError
from pytest_udftorch.measure.planning.segments import Units
from pytest_udftorch.swap.native.machine import cpu_model

pytree: Any = compat.pytree()


class _Text(str):
    """A string that is its own repr."""

    __slots__ = ()
    __repr__ = str.__str__


def describe_input(value: Any) -> str:
    """Return dtype, shape and memory format of a tensor, or of all tensors in a structure."""
    if not isinstance(value, torch.Tensor):
        # Tensors in a list or dict are also named by their description, not by their values.
        return repr(pytree.tree_map_only(torch.Tensor, lambda t: _Text(describe_input(t)), value))
    layout = ""
    if value.dim() == 4 and not value.is_contiguous():
        layout = " channels_last"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{layout}"


def device_name(device: torch.device) -> str:
    """Return the name of the GPU or the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()


def home(inputs: Sequence[Any]) -> torch.device:
    """Return the device of the first tensor, or the CPU."""
    tensors = tensors_in(inputs)
    return tensors[0].device if tensors else torch.device("cpu")


def fingerprint(model: nn.Module, units: Units | None) -> str:
    """Return the fingerprint of the units, or of a model that is not cut into units."""
    if units is not None:
        return units.fingerprint
    shapes = sorted((k, tuple(v.shape), str(v.dtype)) for k, v in model.state_dict().items())
    return f"{type(model).__name__} of {len(shapes)} tensors, {_digest(repr(shapes))}"


def graph_digest(model: nn.Module, inputs: Sequence[Any]) -> str:
    """Return a digest of what is cut into units: the model's graph and its parameters' shapes."""
    try:
        traced = Units(copy.deepcopy(model), inputs, bounds=()).fingerprint
    except UntraceableModelError:
        return fingerprint(model, None)
    return _digest(traced)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
