# SPDX-License-Identifier: Apache-2.0
"""The program that ``torch.export`` captures, run operator by operator."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.measure.planning.executor import Executor, Run, quiet


def _make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    with quiet(), torch.no_grad():
        program: Run = torch.export.export(model, inputs).module()
    return program


EXECUTORS: Final = (Executor("export", _make),)
