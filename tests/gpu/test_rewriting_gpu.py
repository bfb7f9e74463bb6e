# SPDX-License-Identifier: Apache-2.0
"""Templates, substitutions and mutants on a GPU: the same results, and only what was faster."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from pytest_udftorch import measure
from pytest_udftorch.measure import recording, sync_timer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(0)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    with torch.no_grad():
        yield
    torch.backends.cudnn.allow_tf32 = before


def run(function, backend, *inputs, **options):
    compiled = torch.compile(
        function, backend=backend, dynamic=False, options={"gain": 0, **options}
    )
    with recording() as reports:
        found = compiled(*inputs)
    (report,) = reports
    assert report.left_alone == ""
    return compiled, found, report


def folded():
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)]
    return nn.Sequential(*layers).eval().cuda()


def test_templates_fold_norms_and_follow_weights():
    model, x = folded(), torch.randn(2, 3, 16, 16, device="cuda")
    compiled, found, report = run(model, "udf_templates", x)
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-4)
    folded_rules = ["convolution and batch norm", "computed once", "computed once"]
    assert [f.rule for f in report.fired] == folded_rules
    assert report.after.kernels < report.before.kernels
    model[1].weight.mul_(3)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


class Branches(nn.Module):
    """Two convolutions of one image."""

    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))

    def forward(self, x):
        return self.left(x) + self.right(x)


@pytest.mark.parametrize("search", ["backtracking", "egraph"])
def test_substitutions_merge_branches(search):
    pytest.importorskip("z3", reason="z3-solver is not installed")
    if search == "egraph":
        pytest.importorskip("egglog", reason="egglog is not installed")
    model, x = Branches().eval().cuda(), torch.randn(2, 8, 64, 64, device="cuda")
    compiled, found, report = run(model, "udf_taso", x, search=search)
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-4)
    assert report.after.flops < report.before.flops
    assert report.notes[0].startswith(f"{search}: ")
    model.left.weight.mul_(3)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


class Attention(nn.Module):
    """Attention with a projection for each of query, key and value."""

    def __init__(self):
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(256, 256) for _ in range(3))

    def forward(self, x):
        q, k, v = (p(x).view(*x.shape[:2], 4, 64).transpose(1, 2) for p in self.projections)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).reshape(x.shape)


def test_a_graph_with_attention_is_judged():
    # Its kernel has no float64, in which results are judged.
    model = Attention().cuda().eval()
    x = torch.randn(2, 32, 256, device="cuda")
    _, found, _ = run(model, "udf_taso", x)
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_a_rewritten_model_is_captured_in_a_cuda_graph():
    """The graph that substitutions made is replayed, with inputs that are written anew."""
    pytest.importorskip("z3", reason="z3-solver is not installed")
    model, x = Branches().eval().cuda(), torch.randn(2, 8, 64, 64, device="cuda")
    compiled, _, report = run(model, "udf_taso", x)
    assert report.fired
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        compiled(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(x)
    for _ in range(2):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-4)


def test_mutants_are_corrected_and_measured():
    model = nn.Conv2d(16, 16, 3, padding=2, dilation=2).eval().cuda()
    x = torch.randn(4, 16, 28, 28, device="cuda")
    compiled, found, report = run(model, "udf_pet", x)
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    (detail,) = report.details
    assert detail["name"] in ("side by side", "by parts")
    assert (detail["dilation"], detail["kept"]) == ((2, 2), True)
    assert min(detail[f"{which}_ns"] for which in ("mutant", "corrected", "stock")) > 0


@pytest.mark.parametrize("backend", ["udf_templates", "udf_taso", "udf_pet", "udf_fusion"])
def test_what_is_kept_was_measured_to_be_faster(backend):
    if backend == "udf_taso":
        pytest.importorskip("z3", reason="z3-solver is not installed")
    model, x = folded(), torch.randn(8, 3, 64, 64, device="cuda")
    _, found, report = run(model, backend, x, gain=1.02)
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-4)
    if report.after is not None:
        runs = "rewritten" if not report.not_kept else "simplified"
        assert report.times_ns["original"] > 1.02 * report.times_ns[runs] > 0
        return
    assert report.not_kept
    assert report.fired == []


def test_plans_take_rewriting_backends_on_a_gpu():
    """They are captured in CUDA graphs, as all executors of plans are there."""
    model, x = folded(), torch.randn(8, 3, 64, 64, device="cuda")
    names = ["eager", "udf_templates", "udf_pet"]
    plan = measure.oracle(model, x, executors=names, opponents=[], runs=6, rounds=2, max_units=2)
    assert set(plan.report["uniform"]) == set(names)
    fresh = plan.report.get("fresh_measurement")
    if plan.uniform is None:
        assert plan.report["fresh_verdict"] == "faster"
    elif fresh is not None:
        times = {n: t["median_ns"] for n, t in fresh["timings"].items() if n != "plan"}
        assert times[f"{plan.uniform}+cudagraph"] == min(times.values())
    torch.testing.assert_close(plan.apply(model)(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_warning_of_the_compiler_is_a_note():
    """TorchInductor warns where TF32 is off and where softmax is not computed in one pass."""
    x = torch.randn(4, 70_000, device="cuda")
    w = torch.randn(4, 4, device="cuda")

    def function(x, w):
        return torch.softmax(w @ x, 1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled, found, _ = run(function, "udf_templates", x, w, templates=["fusion"])
    torch.testing.assert_close(found, function(x, w), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled(x, w), found)


def test_the_turns_of_a_measurement_are_the_gpus():
    x = torch.randn(4096, 4096, device="cuda")
    timing = sync_timer("cuda", runs=3, rounds=2, warmup=1, seconds=60.0).time(lambda: x @ x)
    assert timing.median_ns > 0
