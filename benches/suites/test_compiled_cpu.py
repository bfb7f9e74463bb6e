# SPDX-License-Identifier: Apache-2.0
"""The small form of ``compiled_cpu``: one case, few rounds."""

from __future__ import annotations

from benches import rows
from benches.experiments import compiled_cpu


def test_softmax_times_exp(benchmark):
    function, inputs = next(iter(compiled_cpu.cases().values()))
    times = compiled_cpu.times(function, inputs, rounds=20)
    rows.add(benchmark, times, **compiled_cpu.summary(times))
