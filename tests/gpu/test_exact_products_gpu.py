# SPDX-License-Identifier: Apache-2.0
"""Exact products in bfloat16 have the CPU's bits on a GPU, whatever multiplies digits there."""

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.swap.contract import cuda_exact, launches
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.overrides.tape import tapes
from tests.reproduce.test_contract_exact import factors, same
from tests.reproduce.test_exact_operators import calls

pytestmark = [
    pytest.mark.gpu,
    # What torch imports with its compiler.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
pytest.importorskip("triton")

#: Shapes of every kernel: few rows and columns, small and large tiles, splits of k, edges.
SHAPES = (
    (1, 4096, 4096), (2, 100, 700), (8, 4096, 1024), (16, 70, 5000), (1000, 3, 600),
    (40, 50, 20_000), (200, 300, 1700), (640, 512, 2048), (1500, 1400, 513), (2048, 2048, 128),
)  # fmt: skip


def product(a, b):
    return cuda_exact.mm(a.cuda(), b.cuda(), wide=True).cpu()


@pytest.fixture(params=cuda_exact.UNITS)
def unit(request, monkeypatch):
    monkeypatch.setenv(cuda_exact.UNIT, request.param)
    return request.param


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_kernel_has_the_bits_of_the_cpu(unit, shape):
    m, n, k = shape
    torch.manual_seed(0)
    a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    want = contract().mm(a, b)
    bias = torch.randn(n).bfloat16()
    for x in (a, a.t().contiguous().t()):
        for y in (b, b.t().contiguous().t()):
            # A launch that was compiled before goes another way.
            assert all(same(product(x, y), want) for _ in range(2))
            rounded = cuda_exact.mm(x.cuda(), y.cuda(), bias.cuda()).cpu()
            assert same(rounded, (want + bias.float()).bfloat16())


@pytest.mark.parametrize("cases", [range(500), pytest.param(range(20_000), marks=pytest.mark.slow)])
def test_random_shapes_and_special_values(unit, cases):
    wrong = [
        case for case in cases if not same(product(*factors(case)), contract().mm(*factors(case)))
    ]
    assert wrong == []


def test_special_values_in_large_tiles():
    torch.manual_seed(0)
    a, b = torch.randn(600, 2600).bfloat16(), torch.randn(2600, 700).bfloat16()
    a[3] *= 2.0**-130
    a[5, 2000] = float("nan")
    b[:, 7] *= 2.0**120
    b[0, 9] = float("inf")
    assert same(product(a, b), contract().mm(a, b))


def test_hopper_has_its_own_kernel():
    device = torch.device("cuda", torch.cuda.current_device())
    plan = cuda_exact.planned(4096, 4096, 4096, 1, device, "int8", 512, (torch.bfloat16, None))
    hopper = (
        torch.cuda.get_device_capability()[0] == 9 and launches.gluon("gluon_exact") is not None
    )
    assert plan.launch.name == ("tiled_products" if hopper else "exact_products")


def test_large_products_are_played():
    """A tape makes the maps of the digits' memory anew, which lies elsewhere at each call."""
    torch.manual_seed(0)
    given = [(torch.randn(640, 700).bfloat16(), torch.randn(700, 512).bfloat16()) for _ in range(5)]
    with patched("repro"):
        for n, (a, b) in enumerate(given):
            before = tapes().played()
            assert same((a.cuda() @ b.cuda()).cpu(), a @ b)
            assert tapes().played() - before == (n > 1), tapes().refusals()


def test_shorter_chunks_show(monkeypatch):
    torch.manual_seed(0)
    a, b = torch.randn(200, 1300).bfloat16(), torch.randn(1300, 300).bfloat16()
    monkeypatch.setattr(cuda_exact, "_chunk", 256)
    assert not same(product(a, b), contract().mm(a, b))


def test_batches():
    torch.manual_seed(0)
    a, b = torch.randn(5, 70, 900).bfloat16(), torch.randn(5, 900, 130).bfloat16()
    found = cuda_exact.product(a.cuda(), b.cuda(), wide=True).cpu()
    assert same(found, contract().products(a, b))


def test_operators_and_their_gradients():
    torch.manual_seed(0)
    a, b, bias = (torch.randn(s).bfloat16() for s in ((9, 696), (696, 32), (32,)))
    x, weight, grad = (torch.randn(s).bfloat16() for s in ((400, 256), (300, 256), (400, 300)))

    def found(device):
        made = calls(*(t.to(device) for t in (a, b, bias)))
        made.pop("grouped_mm")  # outside of the contract on GPUs
        given, of = (t.to(device).clone().requires_grad_() for t in (x, weight))
        F.linear(given, of).backward(grad.to(device))
        return [t.cpu() for t in (*made.values(), given.grad, of.grad)]

    with patched("repro"):
        pairs = list(zip(found("cpu"), found("cuda"), strict=True))
    assert all(same(one, other) for one, other in pairs)
    assert not all(same(one, other) for one, other in zip(found("cpu"), found("cuda"), strict=True))
