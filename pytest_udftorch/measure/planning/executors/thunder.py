# SPDX-License-Identifier: Apache-2.0
"""lightning-thunder's choice: each graph by the fastest of thunder, Inductor and eager."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.measure.planning.executor import (
    Executor,
    Run,
    importing,
    quiet,
    without_effect,
)
from pytest_udftorch.measure.timing.timers import untyped


def _make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    with quiet():
        with importing("lightning-thunder"):
            from thunder.dynamo import thunder_optimize, thunder_profile
        # It first resets dynamo, which would discard what other executors have compiled.
        with without_effect(torch.compiler, "reset"):
            profiled = untyped(thunder_profile)(model)
        profiled(*inputs)
        chosen: Run = untyped(thunder_optimize)(profiled)
    return chosen


EXECUTORS: Final = (Executor("thunder-profile", _make),)
