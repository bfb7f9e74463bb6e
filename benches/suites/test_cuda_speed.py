# SPDX-License-Identifier: Apache-2.0
"""Eager CUDA operators of a session beside the stock kernels; see ``cuda_speed``."""

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device; torch sees none", allow_module_level=True)

from benches.experiments import cuda_speed
from pytest_udftorch import patched


@pytest.mark.parametrize("name", ["exp", "log", "sin", "tanh", "elu", "softmax"])
def test_operator(benchmark, name):
    call, _ = cuda_speed.operators()[name]
    x = cuda_speed.numbers(cuda_speed.LARGE)
    benchmark.extra_info |= cuda_speed.measure([name], rounds=13)["operators"][name]
    with patched("corem"):
        benchmark.pedantic(
            lambda: (call(x), torch.cuda.synchronize()), rounds=5, warmup_rounds=1
        )  # fmt: skip
