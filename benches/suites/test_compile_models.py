# SPDX-License-Identifier: Apache-2.0
"""Models end to end over the executors, and the validation of the timers; small by default."""

import pytest
import torch

from benches import rows
from benches.experiments import compile_models

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = ["eager", "eager+channels_last", "torchscript-trace"]


@pytest.mark.parametrize("name", compile_models.MODELS)
def test_end_to_end(benchmark, name, bench_scale):
    if bench_scale == "full":
        row = compile_models.end_to_end(name, 1, DEVICE)
    else:
        row = compile_models.end_to_end(name, 1, DEVICE, SMALL, runs=6, rounds=1, warmup=1)
    timings = row["measurement"]["timings"]
    rows.add(benchmark, {member: t["runs_ns"] for member, t in timings.items()}, pair=row)
    working = [member for member in row["members"].values() if "error" not in member]
    # At full scale some executors need packages that are perhaps not there; the row says why.
    assert bench_scale == "full" or len(working) == len(SMALL)
    assert all(member["agrees"] for member in working)


@pytest.mark.parametrize("name", compile_models.MODELS)
def test_timer_validation(benchmark, name, bench_scale):
    small = {"runs": 7, "rounds": 1, "prefix_rounds": 1}
    if bench_scale == "small" and name not in ("alexnet", "squeezenet1_1"):
        pytest.skip("the deeper models take minutes: --bench-scale=full")
    times = {}
    row = compile_models.validation(
        name, 1, DEVICE, times=times, **(small if bench_scale == "small" else {})
    )
    rows.add(benchmark, times, validation=row)
    assert row["instruments"]["pure"]["over_pure"] == 1
    assert row["layers"] > 10
