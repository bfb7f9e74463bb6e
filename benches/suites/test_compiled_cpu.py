# SPDX-License-Identifier: Apache-2.0
"""The small form of ``compiled_cpu``: one case, few rounds."""

from __future__ import annotations

import torch

from benches.experiments import compiled_cpu
from pytest_udftorch import patched


def test_softmax_times_exp(benchmark):
    function, inputs = next(iter(compiled_cpu.cases().values()))
    figures = compiled_cpu.compare(function, inputs, rounds=20)
    benchmark.extra_info.update(figures)
    with patched("corem"), torch.no_grad():
        benchmark.pedantic(compiled_cpu.compiled(function, inputs), inputs, rounds=10)
