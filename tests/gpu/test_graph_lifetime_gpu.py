# SPDX-License-Identifier: Apache-2.0
"""What a captured graph uses lives as long as the graph, whatever else the process runs.

An illegal access ends the CUDA context of its process, so each case runs in a process of its own.
"""

import subprocess
import sys

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

COMMON = """
import gc, sys, warnings
import torch
from torch import nn
from pytest_udftorch.measure.planning import executors
from pytest_udftorch.measure.planning.plan_search import oracle

warnings.simplefilter("ignore")
torch.manual_seed(3)
# The first Linear divides its long sums over blocks, which meet in cuBLAS' workspace.
layers = [nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 32, 3, padding=1), nn.SiLU(),
          nn.Flatten(), nn.Linear(32768, 64), nn.Tanh(), nn.Linear(64, 10)]
model = nn.Sequential(*layers).eval().cuda()
x = torch.randn(4, 3, 32, 32, device="cuda")
want = model(x).detach()

def plan_for(names=("eager", "compile")):
    return oracle(model, x, executors=names, opponents=("eager",), runs=6, rounds=2, max_units=3)

def forced():
    # Three segments, whatever is faster here.
    from pytest_udftorch.measure.planning.segment_times import SegmentBench
    from pytest_udftorch.measure.planning.segments import Units
    units = Units(model, (x,), limit=3)
    marks = [(k, k + 1, ("eager", "compile")[k % 2]) for k in range(len(units))]
    return SegmentBench(units, (x,)).whole(marks)

def member(name):
    return executors.make(executors.resolve(name), model, (x,))

def fill():
    # Takes freed memory and writes NaN to it: a graph that still used it would show them.
    held = [torch.full((n,), float("nan"), device="cuda") for n in (2 ** k for k in range(8, 27))]
    torch.cuda.synchronize()
    return held

def check(*runs):
    # First with freed memory unmapped, where a use of it is an illegal access; then with it in
    # use by others, where it shows in their values.
    gc.collect(); torch.cuda.empty_cache()
    agree(*runs)
    held = fill()
    agree(*runs)
    assert all(bool(block.isnan().all()) for block in held), "the graph wrote to freed memory"

def agree(*runs):
    for run in runs:
        for _ in range(3):
            torch.testing.assert_close(run(x), want, rtol=2e-3, atol=2e-3)
    torch.cuda.synchronize()

def reduce_overhead(mode="reduce-overhead"):
    other = torch.compile(model, mode=mode)
    with torch.no_grad():
        for _ in range(5):
            other(x)
    return other
"""

CASES = {
    "plan, then reduce-overhead": """
run = plan_for().apply(model); run(x)
reduce_overhead()
check(run)
""",
    "segments, then reduce-overhead": """
run = forced(); run(x)
reduce_overhead()
check(run)
""",
    "plan, then max-autotune": """
run = forced(); run(x)
reduce_overhead("max-autotune")
torch.cuda.empty_cache()
check(run)
""",
    "two captured members, the first one dropped": """
first = member("eager+cudagraph"); first(x)
run = member("eager+cudagraph"); run(x)
del first; gc.collect()
reduce_overhead()
gc.collect(); torch.cuda.empty_cache()
check(run)
""",
    "streams": """
run = member("eager+fused+streams+cudagraph"); run(x)
reduce_overhead()
torch.cuda.empty_cache()
check(run)
""",
    "beside a graph of the user": """
run = member("compile+cudagraph"); run(x)
mine, static = torch.cuda.CUDAGraph(), x.clone()
with torch.no_grad():
    model(static)
    with torch.cuda.graph(mine):
        out = model(static)
run2 = forced(); run2(x)
reduce_overhead()
torch.cuda.empty_cache()
check(run, run2)
mine.replay()
torch.testing.assert_close(out, want, rtol=2e-3, atol=2e-3)
del run, run2; gc.collect(); torch.cuda.empty_cache()
held = fill()
mine.replay()
torch.testing.assert_close(out, want, rtol=2e-3, atol=2e-3)
""",
    "a second plan, and the first one dropped": """
first = forced(); first(x)
run = forced(); run(x)
del first; gc.collect(); torch.cuda.empty_cache()
reduce_overhead()
torch._dynamo.reset(); gc.collect(); torch.cuda.empty_cache()
check(run)
""",
    "compiled constants outlive the caches": """
class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, x):
        return self.inner(x) + torch.tensor([float(k) for k in range(10)], device=x.device)
whole = Constant().eval()
want = whole(x).detach()
run = executors.make(executors.resolve("compile+cudagraph"), whole, (x,)); run(x)
from torch._inductor.codecache import PyCodeCache
PyCodeCache.cache_clear(); torch._dynamo.reset(); gc.collect(); torch.cuda.empty_cache()
check(run)
""",
    "captured under autocast": """
with torch.autocast("cuda", dtype=torch.bfloat16):
    want = model(x).detach()
    run = member("eager+cudagraph"); run(x)
want = want.to(run(x).dtype)
gc.collect(); torch.cuda.empty_cache()
check(run)
""",
}


@pytest.mark.parametrize("case", CASES)
def test_a_graph_owns_what_it_uses(case):
    done = subprocess.run(
        [sys.executable, "-c", COMMON + CASES[case]], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
