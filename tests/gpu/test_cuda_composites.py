# SPDX-License-Identifier: Apache-2.0
"""Activations as one function on a GPU, and functions in 16 bits: the bits of the CPU."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.swap.cpu.composites import operator
from pytest_udftorch.swap.cuda.launcher import launched
from pytest_udftorch.swap.library.symbols import COMPOSITES
from pytest_udftorch.swap.operators.table import BARE

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

NAMES = tuple(COMPOSITES)


def numbers():
    rng = np.random.default_rng(7)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3e-45, 2**-24, -(2.0**-24), -104.0]
    signs = rng.choice([-1.0, 1.0], 100_000)
    parts = [rng.uniform(-110, 110, 200_000), signs * 2.0 ** rng.uniform(-149, 127, 100_000)]
    return torch.tensor(np.concatenate([*parts, special]), dtype=torch.float32)


def every(dtype):
    """All 65,536 numbers of a dtype."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)


def same(one, other):
    integer = torch.int32 if one.dtype is torch.float32 else torch.int16
    words = [
        y.cpu().view(integer).masked_fill(y.cpu().isnan(), -1) for y in (one, other)
    ]  # fmt: skip
    return int((words[0] != words[1]).sum()) == 0


@pytest.fixture
def session():
    torch.cuda.init()
    with patched("corem", composites=True) as found:
        launched()
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_float32_has_the_bits_of_the_cpu(session, name):
    x = numbers()
    y = operator(torch, name)(x.cuda())
    assert f"whole_{name}" in launched()
    assert same(y, operator(torch, name)(x))
    again = operator(torch, name)(x.cuda())  # this time launched from C++, where it can be
    assert same(again, y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_all_encodings_of_16_bits_have_the_bits_of_the_cpu(session, name, dtype):
    x = every(dtype)
    for _ in range(2):
        assert same(operator(torch, name)(x.cuda()), operator(torch, name)(x))


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_functions_in_16_bits_have_the_bits_of_the_cpu(session, name, dtype):
    x = every(dtype)
    for _ in range(2):
        assert same(getattr(torch, name)(x.cuda()), getattr(torch, name)(x))


def test_other_scalars_and_gradients_keep_their_formulas():
    x = numbers().cuda()
    calls = (
        lambda x: F.softplus(x, 2.0),
        lambda x: F.softplus(x, 1.0, 10.0),
        lambda x: F.elu(x, 0.5),
        lambda x: F.celu(x, 1.3),
    )
    with patched("corem"):
        before = [call(x) for call in calls]
    with patched("corem", composites=True):
        inside = [call(x) for call in calls]
        leaf = x.clone().requires_grad_()
        F.silu(leaf).sum().backward()
    assert all(same(a, b) for a, b in zip(before, inside, strict=True))
    assert leaf.grad is not None


def test_a_session_of_one_activation_leaves_the_rest_to_stock():
    x = numbers().cuda()
    calls = (torch.exp, F.mish, lambda x: F.elu(x, 0.5))
    before = [call(x) for call in calls]
    stock = torch.sigmoid(x)
    with patched("corem-composites", functions=("elu", "sigmoid")):
        inside = [call(x) for call in calls]
        assert not same(torch.sigmoid(x), stock)
    assert all(same(a, b) for a, b in zip(before, inside, strict=True))
    assert same(torch.sigmoid(x), stock)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_bits_are_the_librarys(name):
    """The canary's activations are off by one unit: a kernel that computes its own is found."""
    x = torch.linspace(0.3, 3.0, 1000)
    found = []
    for library in ("corem-composites", "canary-composites"):
        with patched(library, functions=(name,)):
            found.append((operator(torch, name)(x.cuda()).cpu(), operator(torch, name)(x)))
    assert all(same(*pair) for pair in found)
    assert (found[0][0] != found[1][0]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_overload_and_layout(session, dtype):
    x = torch.randn(6, 8, 10, device="cuda").to(dtype)
    want = torch.sigmoid(x)
    out = torch.empty_like(x)
    assert torch.sigmoid(x, out=out) is out
    gaps = torch.empty(6, 8, 20, dtype=dtype, device="cuda")[..., ::2]
    torch.sigmoid(x, out=gaps)
    written = x.clone().sigmoid_()
    turned = torch.sigmoid(x.mT).mT
    odd = torch.sigmoid(torch.cat((x.flatten()[:1], x.flatten()))[1:]).view_as(x)
    (listed,) = torch._foreach_sigmoid([x])
    for y in (out, gaps, written, turned, odd, listed):
        assert same(y, want)
    assert torch.sigmoid(x.double()).dtype is torch.float64


def test_a_graph_keeps_the_kernels(session):
    x = torch.randn(1000, device="cuda", dtype=torch.bfloat16)
    want = F.silu(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = F.silu(x)
    graph.replay()
    assert same(y, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_profiles_have_rows_of_activations(dtype):
    x = torch.randn(3000, device="cuda").to(dtype)
    with patched("corem", composites=True, profile=True, profile_stride=1) as s:
        F.silu(x)
    rows = {r.key["function"]: r for r in s.profile.rows("function", "device")
            if r.key["device"] == "cuda"}  # fmt: skip
    assert rows["silu"].elements == 3000
