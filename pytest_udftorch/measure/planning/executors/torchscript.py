# SPDX-License-Identifier: Apache-2.0
"""TorchScript, traced or scripted, and frozen."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.errors import ExecutorError
from pytest_udftorch.measure.planning.executor import Executor, Run, quiet
from pytest_udftorch.measure.timing.timers import untyped


def _trace(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    with warnings.catch_warnings(record=True, action="always") as said, torch.no_grad():
        traced: Run = torch.jit.freeze(untyped(torch.jit.trace)(model.eval(), inputs, strict=False))
    torch_itself = str(Path(torch.__file__).parent)
    for warning in said:
        branch = warning.category.__name__ == "TracerWarning" and "boolean" in str(warning.message)
        # In torch's own code such a branch checks shapes.
        if branch and not warning.filename.startswith(torch_itself):
            raise ExecutorError(
                f"{warning.filename}, line {warning.lineno}: the branch taken depends on a tensor, "
                "and a trace keeps only the branch of these inputs. Leave torchscript-trace out; "
                "torchscript-script keeps both branches."
            )
    return traced


def _script(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    # TorchScript is deprecated and says so at each call.
    with quiet(), torch.no_grad():
        scripted: Run = torch.jit.freeze(torch.jit.script(model.eval()))
    return scripted


EXECUTORS: Final = (
    Executor("torchscript-trace", _trace),
    Executor("torchscript-script", _script),
)
