# SPDX-License-Identifier: Apache-2.0
"""Models end to end over the executors, and the validation of the timers; small by default."""

import pytest
import torch

from benches.experiments import compile_models

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = ["eager", "eager+channels_last", "torchscript-trace"]


@pytest.mark.parametrize("name", compile_models.MODELS)
def test_end_to_end(benchmark, name, bench_scale):
    if bench_scale == "full":
        row = compile_models.end_to_end(name, 1, DEVICE)
    else:
        row = compile_models.end_to_end(name, 1, DEVICE, SMALL, runs=6, rounds=1, warmup=1)
    benchmark.extra_info["pair"] = row
    working = [member for member in row["members"].values() if "error" not in member]
    # At full scale some executors need packages that are perhaps not there; the row says why.
    assert bench_scale == "full" or len(working) == len(SMALL)
    assert all(member["agrees"] for member in working)
    model, x = compile_models.build(name).to(DEVICE), compile_models.images(1, DEVICE)
    with torch.no_grad():
        benchmark.pedantic(model, args=(x,), rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("name", compile_models.MODELS)
def test_timer_validation(benchmark, name, bench_scale):
    small = {"runs": 7, "rounds": 1, "prefix_rounds": 1}
    if bench_scale == "small" and name not in ("alexnet", "squeezenet1_1"):
        pytest.skip("the deeper models take minutes: --bench-scale=full")
    row = benchmark.pedantic(
        compile_models.validation,
        args=(name, 1, DEVICE),
        kwargs=small if bench_scale == "small" else {},
        rounds=1,
    )
    benchmark.extra_info["validation"] = row
    assert row["instruments"]["pure"]["over_pure"] == 1
    assert row["layers"] > 10
