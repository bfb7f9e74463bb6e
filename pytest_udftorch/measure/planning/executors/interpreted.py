# SPDX-License-Identifier: Apache-2.0
"""The model as it is, and as ``torch.fx`` traces it."""

from __future__ import annotations

from typing import Any, Final

from torch import nn

from pytest_udftorch.measure.planning.executor import Executor, Run
from pytest_udftorch.measure.planning.fusion import trace


def _trace(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    # The module's own call prints a traceback before it raises.
    run: Run = trace(model).forward
    return run


EXECUTORS: Final = (Executor("eager", lambda model, inputs: model), Executor("fx", _trace))
