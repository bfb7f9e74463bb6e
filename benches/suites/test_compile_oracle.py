# SPDX-License-Identifier: Apache-2.0
"""Plans against the uniform executors; one small model by default, full-sized at full scale."""

import pytest
import torch

from benches import rows
from benches.experiments import compile_oracle

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


SMALL = {
    "runs": 6,
    "rounds": 1,
    "max_units": 3,
    "size": 64,
    "executors": ["eager", "eager+channels_last"],
}


@pytest.mark.slow  # a search over executors
def test_plan_of_squeezenet(benchmark, bench_scale):
    row = compile_oracle.cell(
        "squeezenet1_1", 1, DEVICE, **(SMALL if bench_scale == "small" else {})
    )
    # Where no plan came through its check, nothing was measured afresh.
    timings = row.get("fresh_measurement", row["uniform_measurement"])["timings"]
    rows.add(benchmark, {plan: t["runs_ns"] for plan, t in timings.items()}, oracle=row)
    assert row["plan_over"]["best_uniform"]["low"] >= 1 or row["replaced_by"]
    assert {"best of two runs", "greedy", "thesis programme"} <= set(row["plans"])
