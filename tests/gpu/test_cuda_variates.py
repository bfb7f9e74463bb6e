# SPDX-License-Identifier: Apache-2.0
"""Random distributions on a GPU: stock's uniform numbers, the session's functions."""

import math

import pytest
import torch

from pytest_udftorch import patched
from pytest_udftorch.swap.cuda.launcher import launched
from pytest_udftorch.swap.cuda.variates import _Draws

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

CALLS = {
    "normal": lambda x: x.normal_(0.5, 2.0),
    "log_normal": lambda x: x.log_normal_(0.25, 0.5),
    "exponential": lambda x: x.exponential_(1.5),
    "geometric": lambda x: x.geometric_(0.3),
    "cauchy": lambda x: x.cauchy_(1.0, 0.5),
}
SIZES = (1, 5, 255, 1000, 270336, 1_500_007, 5_000_000)


def drawn(call, shape, dtype=torch.float32, seed=11):
    """Return variates, the generator's state after them, and its next number."""
    torch.manual_seed(seed)
    torch.rand(3, device="cuda")  # an offset
    y = call(torch.empty(shape, dtype=dtype, device="cuda"))
    return y, torch.cuda.get_rng_state(), torch.rand(1, device="cuda")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CALLS)
def test_variates_are_stocks_up_to_the_functions(name, size):
    theirs = drawn(CALLS[name], size)
    with patched("corem"):
        launched()
        ours = drawn(CALLS[name], size)
        assert f"{name}_variates" in launched()
    assert torch.equal(ours[1], theirs[1])
    assert torch.equal(ours[2], theirs[2])
    far = ((ours[0] - theirs[0]).abs() / theirs[0].abs().clamp_min(1.0)).double()
    # Stock's functions are the GPU's own: its tangent has few digits near the poles, and a quotient
    # near an integer can round up in one and not in the other.
    if name in ("cauchy", "geometric"):
        assert (far > 1e-3).double().mean() < 1e-3
    else:
        assert far.max() <= 2e-5


def test_normal_variates_come_from_the_words_of_the_uniform_numbers():
    """A thread has four words: uniform numbers show them, as far as float32 does."""
    threads = 4096
    found = []
    for call in (torch.rand, torch.randn):
        torch.manual_seed(3)
        found.append(call(4 * threads, device="cuda")[:threads].double())
    with patched("corem"):
        torch.manual_seed(3)
        ours = torch.randn(4 * threads, device="cuda")[:threads]
    # Both draw with 16,384 threads, one word or pair each: the first word is the radius'.
    u, theirs = found
    bound = torch.sqrt(-2 * torch.log(u))
    assert (ours.double().abs() <= bound * (1 + 1e-6)).all()
    assert not torch.equal(ours.double(), theirs)
    assert (ours.double() - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_short_dtypes(name, dtype):
    theirs = drawn(CALLS[name], 10_001, dtype)
    with patched("corem"):
        ours = drawn(CALLS[name], 10_001, dtype)
    assert ours[0].dtype is dtype
    assert torch.equal(ours[1], theirs[1])
    far = (ours[0].double() - theirs[0].double()).abs() / theirs[0].double().abs().clamp_min(1.0)
    assert far.max() <= {"cauchy": 0.1, "geometric": 1.0}.get(name, torch.finfo(dtype).eps)
    assert (far > 0).double().mean() < 0.01


@pytest.mark.parametrize("layout", ["transposed", "every other", "channels last", "no elements"])
def test_layouts(layout):
    def make():
        whole = torch.empty(4, 6, 8, 10, device="cuda")
        return {
            "transposed": whole.mT,
            "every other": whole[..., ::2],
            "channels last": whole.contiguous(memory_format=torch.channels_last),
            "no elements": whole[:0],
        }[layout]

    found = []
    for library in (None, "corem"):
        torch.manual_seed(5)
        if library is None:
            found.append(make().normal_())
        else:
            with patched(library):
                found.append(make().normal_())
    assert found[0].stride() == found[1].stride()
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_means_and_deviations_in_tensors():
    mean, std = torch.randn(1000, device="cuda"), torch.rand(1000, device="cuda")
    calls = (
        lambda g: torch.normal(mean, std, generator=g),
        lambda g: torch.normal(mean, 2.0, generator=g),
        lambda g: torch.normal(1.0, std, generator=g),
        lambda g: torch.normal(mean[:, None], std[:10], generator=g),
        lambda g: torch.normal(mean, std, generator=g, out=torch.empty(0, device="cuda")),
    )
    for call in calls:
        found = []
        for library in (None, "corem"):
            generator = torch.Generator(device="cuda").manual_seed(9)
            if library is None:
                y = call(generator)
            else:
                with patched(library):
                    launched()
                    y = call(generator)
                    assert "normal_variates" in launched()
            found.append((y, generator.get_state()))
        torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=2e-5)
        assert torch.equal(found[0][1], found[1][1])


def test_seeds_of_64_bits_and_generators():
    for seed in (0, 2**31, 2**63 + 5, 2**64 - 1):
        found = []
        for library in (None, "corem"):
            generator = torch.Generator(device="cuda").manual_seed(seed)
            if library is None:
                found.append(torch.randn(3000, device="cuda", generator=generator))
            else:
                with patched(library):
                    found.append(torch.randn(3000, device="cuda", generator=generator))
        assert (found[0] - found[1]).abs().max() < 1e-5


def test_what_stock_refuses():
    with patched("corem"):
        x = torch.empty(10, device="cuda")
        with pytest.raises(RuntimeError, match="std >= 0"):
            x.normal_(0, -1)
        with pytest.raises(RuntimeError, match="lambda"):
            x.exponential_(-1)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[:1].expand(5).normal_()


def test_graphs_draw_anew_at_each_replay():
    with patched("corem"):
        x = torch.empty(100_000, device="cuda")
        x.normal_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.normal_(1.0, 2.0)
        found = []
        for _ in range(2):
            graph.replay()
            found.append(x.clone())
    assert not torch.equal(*found)
    for x in found:
        assert abs(x.mean().item() - 1.0) < 0.05
        assert abs(x.std().item() - 2.0) < 0.05


@pytest.mark.parametrize("name", CALLS)
def test_where_torch_draws_otherwise_variates_are_composed(name, monkeypatch):
    monkeypatch.setattr(_Draws, "as_here", lambda self, device: False)
    theirs = drawn(CALLS[name], 500_000)[0].double()
    with patched("corem"):
        ours = drawn(CALLS[name], 500_000)[0].double()
    for share in (0.1, 0.5, 0.9):
        a, b = theirs.quantile(share).item(), ours.quantile(share).item()
        assert math.isclose(a, b, rel_tol=0.03, abs_tol=0.02)
    assert ours.isfinite().all()


def test_distributions_of_torch_reach_them():
    with patched("corem"):
        launched()
        torch.distributions.Normal(torch.zeros(9, device="cuda"), 1.0).sample()
        torch.nn.init.normal_(torch.empty(9, device="cuda"))
        torch.randn_like(torch.empty(9, device="cuda"))
        torch.multinomial(torch.rand(4, 9, device="cuda"), 1)
        assert {"normal_variates", "exponential_variates"} <= launched()


def test_variates_are_counted_in_pairs():
    with patched("corem", profile=True, profile_stride=1) as session:
        torch.empty(10_000, device="cuda").normal_()
    rows = session.profile.rows("function", "operator", "device")
    counted = {r.key["function"]: r.elements for r in rows if r.key["operator"] == "aten::normal_"}
    assert counted["log"] == counted["cos"] == counted["sin"]
    assert 5_000 <= counted["log"] <= 10_240
