# SPDX-License-Identifier: Apache-2.0
"""float64 functions on a GPU: the bits of MPFR, eager and compiled, in any layout."""

import numpy as np
import pytest
import torch

from pytest_udftorch import find_library, patched
from pytest_udftorch.prove import correctly_rounded
from pytest_udftorch.swap.cuda.doubles import NAMES

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def arguments(function):
    """Hard cases, all sizes and random encodings."""
    path = find_library("corem-d").folder / function / "hard.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    hard = np.array([int(n, 16) for n in lines if n[0] != "#"], dtype=np.uint64).view(np.float64)
    draw = np.random.default_rng(23)
    encodings = draw.integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
    return np.concatenate([hard, draw.uniform(-20, 20, 50_000), 1 + draw.normal(0, 1e-3, 20_000),
                           np.abs(encodings), encodings])  # fmt: skip


def wrong(got, wanted):
    """How many results have other bits; any NaN is a NaN."""
    got = np.ascontiguousarray(got.cpu().numpy())
    nan = np.isnan(got) & np.isnan(wanted.view(np.float64))
    return int(np.sum((got.view(np.uint64) != wanted) & ~nan))


@pytest.fixture(scope="module", params=NAMES)
def case(request):
    """A function, its arguments on the GPU, and what MPFR gives."""
    x = arguments(request.param)
    return request.param, torch.from_numpy(x).cuda(), correctly_rounded(x, function=request.param)


def test_eager_operators_have_the_bits_of_mpfr(case):
    function, x, wanted = case
    call = getattr(torch, function)
    square, bits = x[:10_000].view(100, 100), wanted[:10_000].reshape(100, 100)
    with patched("corem-d"):
        assert wrong(call(x), wanted) == 0
        assert wrong(call(x[3:]), wanted[3:]) == 0
        assert wrong(call(x[::3]), wanted[::3]) == 0
        assert wrong(call(square.t()), np.ascontiguousarray(bits.T)) == 0
        assert call(square.t()).stride() == square.t().stride()
        assert wrong(call(x, out=torch.empty(0, dtype=x.dtype, device="cuda")), wanted) == 0
        spaced = torch.empty(2 * x.numel(), dtype=x.dtype, device="cuda")[::2]
        assert wrong(call(x, out=spaced), wanted) == 0
        own = x.clone()
        assert wrong(call(own, out=own), wanted) == 0
        assert wrong(getattr(x.clone(), f"{function}_")(), wanted) == 0
        spaced.copy_(x)
        assert wrong(getattr(spaced, f"{function}_")(), wanted) == 0
        assert call(x[:0]).shape == (0,)
        several = getattr(torch, f"_foreach_{function}", None)
        if several is not None:
            for part in several([x, x[::3]]), several([x.float().double()])[:0]:
                for got, want in zip(part, (wanted, wanted[::3]), strict=False):
                    assert wrong(got, want) == 0
    # Negative control: stock is wrong somewhere.
    assert wrong(call(x), wanted) > 0


def test_compiled_code_has_the_bits_of_mpfr(case):
    function, x, wanted = case
    call = getattr(torch, function)
    with patched("corem-d"):
        compiled = torch.compile(lambda v: call(v) * 2.0)
        got = compiled(x)
        assert torch.equal(torch.nan_to_num(got), torch.nan_to_num(call(x) * 2.0))
        alone = torch.compile(call)
        assert wrong(alone(x), wanted) == 0


def test_gradients_and_graphs_of_a_session_take_its_functions(case):
    function, x, wanted = case
    call = getattr(torch, function)
    small = x[torch.isfinite(x)][:4096].clone().requires_grad_()
    with patched("corem-d"):
        y = call(small)
        y.sum().backward()
        if function == "exp":
            assert torch.equal(small.grad, y.detach())
        static = x.clone()
        call(static)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = call(static)
        graph.replay()
        torch.cuda.synchronize()
        assert wrong(found, wanted) == 0


def test_a_nested_session_has_both_dtypes(case):
    function, x, wanted = case
    call = getattr(torch, function)
    single = x[x.abs() < 80].float()
    with patched("corem"):
        expected = call(single)
        with patched("corem-d"):
            assert wrong(call(x), wanted) == 0
            nan = torch.isnan(expected)
            assert torch.equal(call(single)[~nan], expected[~nan])
        # Negative control: corem alone leaves float64 to stock.
        assert wrong(call(x), wanted) > 0
