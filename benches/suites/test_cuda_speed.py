# SPDX-License-Identifier: Apache-2.0
"""Eager CUDA operators of a session beside the stock kernels; see ``cuda_speed``."""

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device; torch sees none", allow_module_level=True)

from benches import rows
from benches.experiments import cuda_speed


@pytest.mark.parametrize("name", ["exp", "log", "sin", "tanh", "elu", "softmax"])
def test_operator(benchmark, name):
    runs = {}
    figures = cuda_speed.measure([name], rounds=13, runs=runs)["operators"][name]
    rows.add(benchmark, runs, **figures)
