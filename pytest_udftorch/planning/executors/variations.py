# SPDX-License-Identifier: Apache-2.0
"""Variations of an executor: what is appended to its name with ``+``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.planning import fusion
from pytest_udftorch.planning.cuda_graph import capture
from pytest_udftorch.planning.executor import Executor, Run, to_channels_last

VARIATIONS: Final = ("channels_last", "fused", "streams", "cudagraph")
_CUDA_ONLY: Final = frozenset({"fused", "streams", "cudagraph"})


def vary(base: Executor, name: str, variations: Sequence[str]) -> Executor:
    """Return the executor called ``name``: the base with these variations, in any order."""

    def make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
        prepared: nn.Module = model
        arguments = inputs
        if "channels_last" in variations:
            prepared = prepared.to(memory_format=torch.channels_last)
            arguments = to_channels_last(arguments)
        if "fused" in variations:
            prepared = fusion.fuse(prepared, arguments)
        if "streams" in variations:
            prepared = fusion.on_streams(prepared)
        inner = base.make_callable(prepared, arguments)
        run = inner
        if "channels_last" in variations:

            def run(*given: Any) -> Any:
                return inner(*to_channels_last(given))

        return capture(run, inputs) if "cudagraph" in variations else run

    devices = base.devices & {"cuda"} if _CUDA_ONLY & set(variations) else base.devices
    return Executor(name, make, frozenset(devices), base.dtypes)
