"""Models end to end over the executors, and the validation of the timers; small by default."""

import pytest
import torch

from benches import compile_models

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = ["eager", "eager+channels_last", "torchscript-trace"]


@pytest.mark.parametrize("name", compile_models.MODELS)
def test_end_to_end(benchmark, name):
    row = compile_models.end_to_end(name, 1, DEVICE, SMALL, runs=6, rounds=1, warmup=1)
    benchmark.extra_info["pair"] = row
    assert not any("error" in member for member in row["members"].values())
    assert all(member["agrees"] for member in row["members"].values())
    model, x = compile_models.build(name).to(DEVICE), compile_models.images(1, DEVICE)
    with torch.no_grad():
        benchmark.pedantic(model, args=(x,), rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("name", ["alexnet", "squeezenet1_1"])
def test_timer_validation(benchmark, name):
    row = benchmark.pedantic(
        compile_models.validation,
        args=(name, 1, DEVICE),
        kwargs={"runs": 7, "rounds": 1, "prefix_rounds": 1},
        rounds=1,
    )
    benchmark.extra_info["validation"] = row
    assert row["instruments"]["pure"]["over_pure"] == 1
    assert row["layers"] > 10
