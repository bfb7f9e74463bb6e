# SPDX-License-Identifier: Apache-2.0
"""Fusion plans on a GPU: Inductor writes each kernel as Triton, with the session's functions."""

import pytest
import torch

import pytest_udftorch
from pytest_udftorch.measure import recording

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    # The products are of float32 on purpose.
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
]


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def fused(function, *inputs, **options):
    compiled = torch.compile(
        function, backend="udf_fusion", dynamic=False, options={"gain": 0, **options}
    )
    with recording() as reports:
        found = compiled(*inputs)
    (report,) = reports
    assert report.left_alone == ""
    return compiled, found, report


def line_search(out, y, d):
    kept = (1 - y * out).relu()
    return (kept * y * d).sum(), (d * d * (kept > 0)).sum(), kept.exp()


def logistic(x, b, y):
    p = torch.softmax(x @ b, 1)
    return x.T @ (p - y), -(y * torch.log(p + 1e-9)).sum()


def launched(call):
    """Return the names of the kernels of one call that Triton compiled."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    names = [e.name for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return [name for name in names if name.startswith("triton_")]


@pytest.mark.parametrize(
    ("function", "shapes", "rule"),
    [
        (line_search, [(5000,), (5000,), (5000,)], "MultiAggregate"),
        (logistic, [(310, 6), (6, 5), (310, 5)], "Row"),
    ],
)
def test_kernels_of_a_plan_run_as_triton(function, shapes, rule):
    given = [torch.randn(s, device="cuda") for s in shapes]
    compiled, found, report = fused(function, *given)
    for mine, wanted in zip(found, function(*given), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)
    assert rule in [f.rule for f in report.fired]
    assert report.after.kernels < report.before.kernels
    assert launched(lambda: compiled(*given))
    assert launched(lambda: function(*given)) == []


def test_the_functions_inside_are_the_sessions():
    x = torch.rand(3, 5000, device="cuda") * 4 + 0.5

    def scaled(x):
        return x.exp() * 1.5

    stock = scaled(x)
    with pytest_udftorch.patched("corem"):
        _, found, report = fused(scaled, x)
        wanted = torch.exp(x) * 1.5
    assert [f.rule for f in report.fired] == ["Cell"] or report.fired == []
    assert torch.equal(found, wanted)
    assert not torch.equal(wanted, stock)


def test_tensors_on_two_devices_stay_in_kernels_of_their_own():
    x, y = torch.randn(50, device="cuda"), torch.randn(50)

    def apart(x, y):
        return x.exp() * 2 + 1, y.exp() * 2 + 1

    _, found, _ = fused(apart, x, y)
    for mine, wanted in zip(found, apart(x, y), strict=True):
        torch.testing.assert_close(mine, wanted)
        assert mine.device == wanted.device
