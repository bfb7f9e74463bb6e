# SPDX-License-Identifier: Apache-2.0
"""The timers on a CUDA device; every test is skipped, with the reason, without one."""

import gc
import weakref

import pytest
import torch
from torch import nn

from pytest_udftorch.measure.timing import layers, timers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


@pytest.fixture
def product():
    a = torch.randn(4096, 4096, device="cuda")
    return lambda: a @ a


def test_timer_that_does_not_wait_is_caught_under_reporting(product):
    wrong = timers.SyncTimer("cuda", runs=8, rounds=3, synchronise=False).time(product)
    right = timers.SyncTimer("cuda", runs=8, rounds=3).time(product)
    assert wrong.under_reports
    assert any("before the device had finished" in caveat for caveat in wrong.caveats)
    assert not right.under_reports
    assert not right.caveats


def test_events_and_wall_clock_agree_on_long_work(product):
    timing = timers.SyncTimer("cuda", runs=8, rounds=3).time(product)
    assert timing.event_ns
    assert timing.launch_ns
    wall, event = sorted(timing.wall_ns)[4], sorted(timing.event_ns)[4]
    assert event <= wall


def test_state_of_the_gpu_is_recorded(product):
    timed = timers.SyncTimer("cuda", runs=2, rounds=1).compare({"product": product})
    assert len(timed.gpu) == 2
    assert timed.document()["gpu"][0]["sm_mhz"]


def test_flush_makes_a_read_of_resident_data_slower():
    data = torch.randn(1 << 21, device="cuda")
    resident = timers.SyncTimer("cuda", runs=8, rounds=10).time(data.sum)
    flushed = timers.SyncTimer("cuda", runs=8, rounds=10, flush_l2=True).time(data.sum)
    assert flushed.launch_ns
    # The flush hides the launch, so only the ranking of launch against event is stable.
    assert min(flushed.launch_ns) > 0
    assert resident.device == flushed.device == "cuda"


@pytest.mark.parametrize("short", [False, True])
def test_garbage_is_collected_where_it_may_take_the_memory_that_is_needed(short):
    class Holder:
        """Refers to itself, so that only a collection frees it."""

        def __init__(self, count):
            self.data = torch.empty(count, dtype=torch.uint8, device="cuda")
            self.own = self

    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    count = int(0.6 * total) if short else 1 << 20
    if count > free:
        pytest.skip(f"{free} of {total} bytes of the GPU are free")
    held = weakref.ref(Holder(count))
    gc.disable()
    try:
        assert held() is not None
        timers.SyncTimer("cuda", runs=1, rounds=1).time(torch.ones(1, device="cuda").sum)
        assert (held() is None) == short
    finally:
        gc.enable()
        gc.collect()
        torch.cuda.empty_cache()


def test_layers_on_the_gpu_sum_to_less_than_the_synchronised_whole():
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()
    inputs = (torch.randn(4096, 2048, device="cuda"),)
    report = layers.layer_subtraction(model, inputs, runs=8, rounds=5)
    assert 0.9 < report.share < 1.1
    rows = layers.layer_profile(model, inputs, passes=3)
    assert rows[0].cuda_total_ns > rows[1].cuda_total_ns > 0
    assert rows[0].cuda_self_ns > 0
