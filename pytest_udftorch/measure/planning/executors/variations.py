# SPDX-License-Identifier: Apache-2.0
"""Variations of an executor, which are appended to its name with ``+``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.base.trees import to_channels_last
from pytest_udftorch.measure.planning import fusion
from pytest_udftorch.measure.planning.cuda_graph import capture
from pytest_udftorch.measure.planning.executor import Executor, Run

VARIATIONS: Final = ("channels_last", "fused", "streams", "cudagraph")
_CUDA_ONLY: Final = frozenset({"fused", "streams", "cudagraph"})


def vary(base: Executor, name: str, variations: Sequence[str]) -> Executor:
    """Return the executor called ``name``: the base with these variations, in any order."""

    def make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
        last = "channels_last" in variations
        arguments = to_channels_last(inputs) if last else inputs
        if last:
            model = model.to(memory_format=torch.channels_last)
        if "fused" in variations:
            model = fusion.fuse(model, arguments)
        if "streams" in variations:
            model = fusion.on_streams(model)
        inner = base.make_callable(model, arguments)

        def converting(*given: Any) -> Any:
            return inner(*to_channels_last(given))

        run = converting if last else inner
        return capture(run, inputs) if "cudagraph" in variations else run

    devices = base.devices & {"cuda"} if _CUDA_ONLY & set(variations) else base.devices
    return Executor(name, make, frozenset(devices), base.dtypes)
