# SPDX-License-Identifier: Apache-2.0
"""OpenVINO: the exported program, read by its front end and compiled for the CPU in float32."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.measure.planning.executor import Executor, Run, importing, quiet
from pytest_udftorch.measure.planning.export import export

_TELEMETRY: Final = "openvino_telemetry"


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Import OpenVINO without its telemetry, and without what it logs of newer versions of torch.

    Its telemetry writes files into the user's home folder when OpenVINO 2026.4 is imported, and
    sends what models are converted. Where it cannot be imported, OpenVINO goes on without it.
    """
    hidden = _TELEMETRY not in sys.modules
    if hidden:
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
        if hidden:
            del sys.modules[_TELEMETRY]


def _make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    exported = None
    with silent(), quiet():
        with importing("openvino"):
            import openvino
            from openvino.frontend import FrontEndManager
            from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
        exported = export(model, inputs)
        decoder = TorchFXPythonDecoder.from_exported_program(exported.program, dynamic_shapes=False)
        front = FrontEndManager().load_by_framework("pytorch")
        settings = {
            # By default it computes in bfloat16 where the processor can.
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = openvino.Core().compile_model(
            front.convert(front.load(decoder)), "CPU", settings
        )

    def flat(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        # The outputs are copied: the next call overwrites OpenVINO's.
        found = compiled([t.numpy() for t in tensors], share_inputs=True, share_outputs=False)
        return [torch.from_numpy(found[place]) for place in range(len(compiled.outputs))]

    return exported.callable(flat)


# It computes float64 in float32.
EXECUTORS: Final = (Executor("openvino", _make, frozenset({"cpu"}), frozenset({torch.float32})),)
