# SPDX-License-Identifier: Apache-2.0
"""``torch.compile``, in each of its modes."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.measure.planning.executor import Executor, MakeCallable, Run

#: Name of the executor -> mode of ``torch.compile``.
MODES: Final = {
    "compile": "default",
    "compile-reduce-overhead": "reduce-overhead",
    "compile-max-autotune": "max-autotune",
    "compile-max-autotune-no-cudagraphs": "max-autotune-no-cudagraphs",
}


def _in_mode(mode: str) -> MakeCallable:
    def make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
        compiled: Run = torch.compile(model, mode=mode, dynamic=False)
        return compiled

    return make


EXECUTORS: Final = tuple(Executor(name, _in_mode(mode)) for name, mode in MODES.items())
