# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: the exported program, translated to ONNX, with all of its optimisations; CPU."""

from __future__ import annotations

import contextlib
import io
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.measure.planning.executor import Executor, Run, importing, quiet
from pytest_udftorch.measure.planning.export import export


def _make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    with importing("onnxruntime"):
        import onnxruntime
    with importing("onnxscript"):
        import onnxscript  # noqa: F401 - the translation, which torch imports
    exported = export(model, inputs)
    # The translation tells its progress on the standard output.
    with quiet(), contextlib.redirect_stdout(io.StringIO()):
        translated: Any = torch.onnx.export(exported.program, (), dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Only errors: it warns of weights that it folds.
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        translated.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [one.name for one in session.get_inputs()]

    def flat(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        given = dict(zip(names, (t.numpy() for t in tensors), strict=True))
        # A result of shape () is a NumPy scalar in some versions.
        return [torch.as_tensor(array) for array in session.run(None, given)]

    return exported.callable(flat)


EXECUTORS: Final = (
    Executor("onnxruntime", _make, frozenset({"cpu"}), frozenset({torch.float32, torch.float64})),
)
