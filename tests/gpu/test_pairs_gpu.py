# SPDX-License-Identifier: Apache-2.0
"""Pairs, rewrites and plans on a CUDA device; skipped, with the reason, without one."""

import pytest
import torch
from torch import nn

from pytest_udftorch import (
    errors,
    measure,
)
from pytest_udftorch.measure.planning import cuda_graph, executors, roofline
from pytest_udftorch.measure.planning import segment_times as in_place
from pytest_udftorch.measure.planning.fusion import fuse, on_streams, trace
from pytest_udftorch.measure.planning.segments import Units
from pytest_udftorch.measure.timing.timers import SyncTimer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    # The products are of float32 on purpose.
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
    # Inductor captures an empty graph first, to have a pool of memory.
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
    # Inductor's own, where max-autotune tries its templates.
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning"),
]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.stem, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.left, self.right = nn.Conv2d(32, 32, 1), nn.Conv2d(32, 32, 3, padding=1)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.norm(self.stem(x)).relu()
        both = torch.cat([self.left(x).relu(), (self.right(x) + x).relu()], 1)
        return self.head(both.mean((2, 3)))


@pytest.fixture
def model():
    return Block().eval().cuda()


@pytest.fixture
def x():
    return torch.randn(4, 3, 32, 32, device="cuda")


def test_executors_and_variations_agree(model, x):
    names = [
        "compile",
        "compile-reduce-overhead",
        "eager+cudagraph",
        "eager+fused+cudagraph",
        "eager+fused+channels_last+streams+cudagraph",
        "compile+fused+channels_last+cudagraph",
    ]
    pair = measure.model_pair(model, x, names)
    assert pair.failures == {}
    pair.check()
    timed = pair.measure(runs=6, rounds=2, warmup=2)
    assert all(not t.under_reports for t in timed.timings.values())


def test_replay_follows_its_inputs(model, x):
    run = executors.make(executors.resolve("eager+cudagraph"), model, (x,))
    with torch.no_grad():
        for _ in range(3):
            fresh = torch.randn_like(x)
            torch.testing.assert_close(run(fresh), model(fresh))


def test_replay_refuses_other_shapes_and_dtypes(model, x):
    run = executors.make(executors.resolve("eager+cudagraph"), model, (x,))
    for other in (x[:1], torch.cat([x, x]), x.double()):
        with pytest.raises(errors.ExecutorError, match=r"captured for torch.float32\[4, 3"):
            run(other)


def test_branches_on_streams_are_ordered(model):
    """Many replays on fresh inputs: a missing wait would show as a changing result."""
    big = torch.randn(64, 3, 64, 64, device="cuda")
    streamed = on_streams(fuse(model, (big,)))
    plain = fuse(model, (big,))
    run = cuda_graph.capture(streamed, (big,))
    with torch.no_grad():
        for _ in range(20):
            fresh = torch.randn_like(big)
            torch.testing.assert_close(run(fresh), plain(fresh), rtol=2e-3, atol=2e-3)


def test_work_that_cannot_be_captured_is_recorded(x):
    class Waits(nn.Module):
        def forward(self, x):
            return x * float(x.sum().item() > 0)

    stream = torch.cuda.current_stream()
    pair = measure.model_pair(Waits().eval(), x, ["eager+cudagraph", "eager+channels_last"])
    assert "eager+cudagraph" in pair.failures
    assert "eager+channels_last" in pair.working
    assert torch.cuda.current_stream() == stream
    assert torch.randn(3, device="cuda").isfinite().all()
    run = executors.make(executors.resolve("eager+cudagraph"), nn.Tanh(), (x,))
    assert torch.equal(run(x), x.tanh())


def test_inputs_on_the_cpu_cannot_be_captured():
    with pytest.raises(errors.ExecutorUnavailableError, match="CUDA device"):
        cuda_graph.capture(lambda t: t, (torch.zeros(1),))


def test_plan_is_found_and_applied(model, x, tmp_path):
    plan = measure.oracle(
        model, x, executors=["eager", "eager+fused"], runs=6, rounds=2, max_units=2
    )
    plan.save(tmp_path / "plan.json")
    run = measure.Plan.load(tmp_path / "plan.json").apply(model, (x,))
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=2e-3, atol=2e-3)
    assert trace(model) is not None


def test_profiler_attributes_kernels_to_their_unit():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4096), nn.Linear(4096, 4096)).cuda()
    x = torch.randn(4096, 64, device="cuda")
    bench = in_place.SegmentBench(Units(model.eval(), (x,), 3), (x,))
    small, wide, big = bench.profile_in_place([(u, u + 1, "eager") for u in range(3)])
    assert 0 < small < wide < big
    timed = bench.time_in_place([(u, u + 1, "eager") for u in range(3)], 10)
    assert big == pytest.approx(timed[2], rel=0.3)


def test_nothing_is_faster_than_the_roofline(model, x):
    rates = roofline.ceilings("cuda")
    a = torch.randn(4096, 4096, device="cuda")
    product = nn.Linear(4096, 4096, bias=False).cuda().eval()
    for layer, given in ((product, a), (model, x)):
        least = roofline.bound_ns(roofline.work(layer, (given,)), rates)
        with torch.no_grad():
            timing = SyncTimer("cuda", runs=6, rounds=3).time(lambda f=layer, g=given: f(g))
        assert 0 < least < timing.median_ns


def test_executors_of_other_packages_agree_or_say_what_is_missing(model, x):
    pair = measure.model_pair(model, x, ["thunder-profile", "jax"])
    pair.check()
    for name, reason in pair.failures.items():
        print(name, reason)
        assert "is not installed" in reason or "does not load" in reason or "has no gpu" in reason
    # torchax would make jax the machine's accelerator.
    with torch.cuda.Stream():
        assert torch.ones(2, device="cuda").sum() == 2
    assert torch.backends.mha.get_fastpath_enabled()
