# SPDX-License-Identifier: Apache-2.0
"""Backends that rewrite the graph: see docs/measure/rewriting.md."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.measure.planning.executor import Executor, MakeCallable, Run

#: The backends of this package, which torch finds by their entry points.
BACKENDS: Final = ("udf_templates", "udf_taso", "udf_pet", "udf_fusion", "udf_tiled")


def _by(backend: str) -> MakeCallable:
    def make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
        compiled: Run = torch.compile(model, backend=backend, dynamic=False)
        return compiled

    return make


EXECUTORS: Final = tuple(Executor(name, _by(name)) for name in BACKENDS)
