# SPDX-License-Identifier: Apache-2.0
"""The model as it is."""

from __future__ import annotations

from typing import Any, Final

from torch import nn

from pytest_udftorch.planning.executor import Executor, Run


def _make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    return model


EXECUTORS: Final = (Executor("eager", _make),)
