# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from torch import nn

from pytest_udftorch.errors import DeviceMissingError
from pytest_udftorch.measure.planning import roofline


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head, self.unused = nn.Linear(8, 5), nn.Linear(1000, 1000)
        self.table = nn.Embedding(100_000, 8)

    def forward(self, x):
        y = self.norm(self.conv(x)).relu().mean((2, 3))
        return {"y": self.head(y + self.table(torch.tensor(7)))}


@pytest.fixture(scope="module")
def here():
    return roofline.ceilings("cpu")


def test_work_is_that_of_the_definition():
    x = torch.randn(2, 3, 16, 16)
    found = roofline.work(Counted().eval(), (x,))
    assert found.convolution_flops == 2 * 2 * 16 * 16 * 8 * 3 * 9
    assert found.product_flops == 2 * 2 * 8 * 5
    # Weights of convolution and head, input, output: no vector, no unused layer, no table.
    assert found.bytes == 4 * (8 * 3 * 9 + 8 * 5 + 2 * 3 * 16 * 16 + 2 * 5)


def test_shared_weights_count_once():
    layer = nn.Linear(64, 64, bias=False)
    x = torch.randn(1, 64)
    once, twice = (roofline.work(nn.Sequential(*[layer] * k), (x,)) for k in (1, 2))
    assert twice.bytes == once.bytes
    assert twice.product_flops == 2 * once.product_flops


def test_bound_is_the_longer_of_computing_and_fetching():
    rates = roofline.Ceilings(4e9, 2e9, 1e9, 1000.0)
    assert roofline.bound_ns(roofline.Work(40, 20, 1000), rates) == pytest.approx(20)
    assert roofline.bound_ns(roofline.Work(40, 20, 1100), rates) == pytest.approx(100)
    unknown = roofline.Ceilings(4e9, 2e9, 1e9, math.inf)
    assert roofline.bound_ns(roofline.Work(40, 20, 10**9), unknown) == pytest.approx(20)


def test_the_ceilings_of_this_machine_are_rates(here):
    assert here.convolution_flops_per_s >= here.product_flops_per_s > 0
    assert here.document()["bytes_per_s"] > 0


@pytest.mark.slow
def test_no_model_here_is_faster_than_its_bound(here):
    """Other load between the two measurements can make either several times as long."""
    from pytest_udftorch.measure.timing.timers import SyncTimer

    model = nn.Sequential(nn.Conv2d(16, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)).eval()
    x = torch.randn(4, 16, 32, 32)
    least = roofline.bound_ns(roofline.work(model, (x,)), here)
    with torch.no_grad():
        timing = SyncTimer("cpu", runs=6, rounds=2, warmup=2).time(lambda: model(x))
    assert 0 < least < 10 * timing.median_ns


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_asked_for_and_absent_says_so():
    with pytest.raises(DeviceMissingError, match="CUDA was asked for"):
        roofline.ceilings("cuda")
