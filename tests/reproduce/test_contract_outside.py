# SPDX-License-Identifier: Apache-2.0
"""What is outside of the contract is listed or refused, and what is said to be tried is."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest
import torch
from levels import needs_avx512, said_at_both
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_udftorch import patched
from pytest_udftorch.base import compat
from pytest_udftorch.errors import OutsideContractError
from pytest_udftorch.reproduce import within_contract
from pytest_udftorch.swap.contract import outside
from pytest_udftorch.swap.contract.outside import COMPOSED, MOVES, ROUNDED, TRIED
from pytest_udftorch.swap.operators.rows import find

aten = torch.ops.aten


def random(*shape, seed=0):
    """Numbers that no session changes."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype("f"))


def images(x):
    """As many images of 8 × 10 as the numbers are enough for."""
    count = x.numel() // 80
    return x[: count * 80].view(1, count, 8, 10)


def pooled(x, g, pool, back):
    y = pool(images(x))
    y, *index = y if isinstance(y, tuple) else (y,)
    return y, back(g[: y.numel()].view(y.shape), images(x), *index)


def unpadded(kind, rank):
    """The gradient of a padding, whose places at the edges and corners are sums."""
    backward = getattr(aten, f"{kind}_pad{rank}d_backward")
    inner, pads = [4, 5, 6][:rank], [1, 3, 3, 2, 2, 1][: 2 * rank]
    # Pads are those of the last direction first.
    room = [n + sum(pads[2 * i :][:2]) for i, n in zip(range(rank)[::-1], inner, strict=True)]

    def call(x, g):
        each = math.prod(room)
        count = -(-len(g) // each)
        gradient = torch.cat([g] * (1 + each // len(g)))[: count * each]
        gradient = F.pad(gradient, (0, count * each - len(gradient))).view(1, count, *room)
        return backward(gradient, gradient.new_zeros(1, count, *inner), pads)

    return call


LOSS = torch.tensor(0.3)
#: name -> how an operator of TRIED, or one that was mended, is called with two vectors.
CALLS = {
    "_adaptive_avg_pool2d": lambda x, g: aten._adaptive_avg_pool2d(images(x), [3, 4]),
    "_adaptive_avg_pool2d_backward": lambda x, g: aten._adaptive_avg_pool2d_backward(
        images(g)[..., :3, :4], images(x)
    ),
    "_prelu_kernel": lambda x, g: aten._prelu_kernel(x, torch.tensor([0.3], dtype=x.dtype)),
    "adaptive_max_pool2d_backward": lambda x, g: pooled(
        x, g, lambda i: aten.adaptive_max_pool2d(i, [3, 4]), aten.adaptive_max_pool2d_backward
    ),
    "addcdiv": lambda x, g: torch.addcdiv(x, g, x, value=0.3),
    "addcmul": lambda x, g: torch.addcmul(x, g, x, value=0.3),
    "avg_pool2d": lambda x, g: F.avg_pool2d(images(x), 3, 2, 1),
    "avg_pool2d_backward": lambda x, g: pooled(
        x, g, lambda i: F.avg_pool2d(i, 3, 2, 1),
        lambda d, i: aten.avg_pool2d_backward(d, i, [3, 3], [2, 2], [1, 1], False, True, None),
    ),
    "celu": lambda x, g: F.celu(x, 0.7),
    "col2im": lambda x, g: aten.col2im(
        g[: len(g) // 72 * 72].view(1, -1, 8), [4, 6], [3, 3], [1, 1], [0, 0], [1, 1]
    ),
    "digamma": lambda x, g: torch.digamma(x),
    "elu": lambda x, g: F.elu(x),
    "elu_backward": lambda x, g: aten.elu_backward(g, 1.0, 1.0, 1.0, False, x),
    "erfinv": lambda x, g: torch.erfinv(torch.tanh(x)),
    "fmod": lambda x, g: torch.fmod(x, g),
    "gelu": lambda x, g: (F.gelu(x), F.gelu(x, approximate="tanh")),
    "gelu_backward": lambda x, g: (
        aten.gelu_backward(g, x), aten.gelu_backward(g, x, approximate="tanh")
    ),
    "glu": lambda x, g: aten.glu(torch.stack([x, g]), 0),
    "glu_backward": lambda x, g: aten.glu_backward(g[None], torch.stack([x, g]), 0),
    "hardsigmoid": lambda x, g: F.hardsigmoid(x),
    "hardsigmoid_backward": lambda x, g: aten.hardsigmoid_backward(g, x),
    "hardswish": lambda x, g: F.hardswish(x),
    "hardswish_backward": lambda x, g: aten.hardswish_backward(g, x),
    "histc": lambda x, g: (
        torch.histc(x, 100, -2.0, 2.0), torch.histc((x * 7).round() / 7, 21, -3.0, 3.0)
    ),
    "leaky_relu": lambda x, g: F.leaky_relu(x, 0.3),
    "leaky_relu_backward": lambda x, g: aten.leaky_relu_backward(g, x, 0.3, False),
    "lerp": lambda x, g: (torch.lerp(x, g, 0.3), torch.lerp(x, g, x.abs())),
    "lgamma": lambda x, g: torch.lgamma(x),
    "linspace": lambda x, g: torch.linspace(-0.3, 7.1, len(x)),
    "log_sigmoid_backward": lambda x, g: aten.log_sigmoid_backward(
        g, x, aten.log_sigmoid_forward(x)[1]
    ),
    "log_sigmoid_forward": lambda x, g: F.logsigmoid(x),
    "logaddexp": lambda x, g: torch.logaddexp(x, g),
    "logit": lambda x, g: torch.logit(torch.sigmoid(x)),
    "logit_backward": lambda x, g: aten.logit_backward(g, torch.sigmoid(x)),
    "max_pool2d_with_indices_backward": lambda x, g: pooled(
        x, g, lambda i: aten.max_pool2d_with_indices(i, [3, 3], [2, 2]),
        lambda d, i, n: aten.max_pool2d_with_indices_backward(
            d, i, [3, 3], [2, 2], [0, 0], [1, 1], False, n
        ),
    ),
    "mish": lambda x, g: F.mish(x),
    "mish_backward": lambda x, g: aten.mish_backward(g, x),
    "mse_loss_backward": lambda x, g: aten.mse_loss_backward(LOSS, x, g, 1),
    "nll_loss2d_backward": lambda x, g: aten.nll_loss2d_backward(
        LOSS, images(x), torch.zeros(1, 8, 10, dtype=torch.int64), None, 1, -100,
        torch.tensor(80.0, dtype=x.dtype),
    ),
    "nll_loss_backward": lambda x, g: aten.nll_loss_backward(
        LOSS, x[:, None], torch.zeros(len(x), dtype=torch.int64), None, 1, -100,
        torch.tensor(float(len(x)), dtype=x.dtype),
    ),
    "remainder": lambda x, g: torch.remainder(x, g),
    "rsqrt": lambda x, g: torch.rsqrt(x.abs()),
    "rsub": lambda x, g: torch.rsub(x, g, alpha=0.3),
    "sigmoid": lambda x, g: torch.sigmoid(x),
    "sigmoid_backward": lambda x, g: aten.sigmoid_backward(g, torch.sigmoid(x)),
    "silu": lambda x, g: F.silu(x),
    "silu_backward": lambda x, g: aten.silu_backward(g, x),
    "sinc": lambda x, g: torch.sinc(x),
    "smooth_l1_loss_backward": lambda x, g: aten.smooth_l1_loss_backward(LOSS, x, g, 1, 0.7),
    "soft_margin_loss": lambda x, g: aten.soft_margin_loss(x, g.sign(), 0),
    "softplus": lambda x, g: F.softplus(x),
    "softplus_backward": lambda x, g: aten.softplus_backward(g, x, 1.0, 20.0),
    "softshrink_backward": lambda x, g: aten.softshrink_backward(g, x, 0.5),
    **{
        f"{kind}_pad{rank}d_backward": unpadded(kind, rank)
        for kind in ("reflection", "replication") for rank in (1, 2, 3)
    },
    "tanh_backward": lambda x, g: aten.tanh_backward(g, torch.tanh(x)),
    "unfold_backward": lambda x, g: aten.unfold_backward(
        g[: len(g) // 30 * 30].view(-1, 5, 6), [len(g) // 30, 14], 1, 6, 2
    ),
    "xlogy": lambda x, g: torch.xlogy(x, g.abs()),
}  # fmt: skip


def digest(results):
    parts = results if isinstance(results, tuple) else (results,)
    return hashlib.sha1(b"".join(p.contiguous().numpy().tobytes() for p in parts)).hexdigest()


def tried(threads, calls=CALLS, sizes=(70_001,), shifts=(1,)):
    """The digest of each call, at each size and alignment; the size is shared out to threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found = {}
    try:
        with patched("repro"):
            for n in sizes:
                for shift in shifts:
                    x, g = (random(n + 1, seed=s)[shift : n + shift] for s in (4, 5))
                    for name, call in calls.items():
                        found[f"{name} {n} {shift}"] = digest(call(x, g))
    finally:
        torch.set_num_threads(before)
    return found


def test_the_operators_said_to_be_tried_are_those():
    # Remainders are the contract's on the CPU, and tried on GPUs.
    assert set(CALLS) == TRIED | {"smooth_l1_loss_backward", "fmod", "remainder"}
    for one, other in ((MOVES, TRIED), (MOVES, ROUNDED), (TRIED, COMPOSED), (ROUNDED, TRIED)):
        assert not one & other


def test_tried_operators_give_the_same_bits_with_another_number_of_threads():
    assert tried(1) == tried(2)


#: What adds places of a sample: operator -> what is called with samples of 5 × 8 × 9.
OF_SAMPLES = {
    "col2im": lambda x: F.fold(x.flatten(1).view(-1, 45, 8), (4, 6), 3),
    "unfold_backward": lambda x: x.unfold(2, 4, 1).unfold(3, 5, 2),
    "reflection_pad2d_backward": lambda x: F.pad(x, (3, 2, 1, 4), mode="reflect"),
    "replication_pad2d_backward": lambda x: F.pad(x, (3, 2, 1, 4), mode="replicate"),
}


@pytest.mark.parametrize("name", OF_SAMPLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_places_of_a_sample_are_added_alike_in_any_batch_and_layout(name, dtype):
    def run(x):
        x = x.detach().requires_grad_()
        y = OF_SAMPLES[name](x)
        return y.detach(), *torch.autograd.grad(y.sin().sum(), x)

    samples = random(6, 5, 8, 9).to(dtype)
    laid_out = samples.contiguous(memory_format=torch.channels_last)
    with patched("repro"), within_contract(strict=True):
        whole = run(samples)
        other = [torch.cat(each) for each in zip(*map(run, samples.split(1)), strict=True)]
        for found in (other, run(laid_out), run(samples.mT.contiguous().mT)):
            assert all(map(torch.equal, whole, found))
    wide = run(samples.double())
    for found, want in zip(whole, wide, strict=True):
        most = 30 * torch.finfo(dtype).eps * float(want.abs().max())
        torch.testing.assert_close(found.double(), want, rtol=0, atol=most)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_SAMPLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_code_adds_places_of_a_sample_as_eager_code_does(name, dtype):
    found = []
    with patched("repro"):
        for call in (OF_SAMPLES[name], torch.compile(OF_SAMPLES[name])):
            x = random(3, 5, 8, 9).to(dtype).requires_grad_()
            y = call(x)
            y.sin().sum().backward()
            found.append((y.detach(), x.grad))
    torch.compiler.reset()
    assert all(map(torch.equal, *found))


def test_the_comparison_sees_an_operator_that_does_not():
    calls = {"nansum": lambda x, g: torch.nansum(x)}
    assert tried(1, calls) != tried(2, calls)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_the_gradient_of_smooth_l1_loss_is_stocks_within_rounding(reduction, beta):
    found = []
    for library in ("repro", "std"):
        x, y = random(3, 5).requires_grad_(), random(3, 5, seed=1)
        with patched(library):
            F.smooth_l1_loss(x, y, reduction=reduction, beta=beta).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found, rtol=1e-6, atol=0)


@pytest.mark.slow
@needs_avx512
def test_tried_operators_give_the_same_bits_at_avx2_and_avx512():
    found = said_at_both(__file__)
    assert found[0] == found[1]
    assert found[0][0] == found[0][1]


# Lists and refusals -------------------------------------------------------------------------


def small():
    layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GELU(), nn.Flatten(), nn.LayerNorm(72)
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(72, 3))


def train(model=small, between=lambda x: x):
    made = model()
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.1)
    found = made(between(torch.randn(2, 1, 8, 8)))
    F.cross_entropy(found, torch.tensor([0, 1])).backward()
    nn.utils.clip_grad_norm_(made.parameters(), 1.0)
    optimizer.step()


def test_a_step_of_what_the_contract_has_is_not_refused():
    with patched("repro"), within_contract(strict=True) as found:
        train()
    assert not found.operators
    assert not found.text()


def apart(x):
    rows = x.flatten(0, 2)
    return x + torch.cdist(rows, rows + 1).sum()


def test_what_makes_and_moves_numbers_is_inside():
    x = torch.randn(2, 3)
    with patched("repro"), within_contract(strict=True):
        torch.eye(3, 4)
        torch.diag_embed(x)
        torch.block_diag(x, x)
        torch.diagonal_copy(x)
        for mode in ("reflect", "replicate"):
            F.pad(x.expand(2, 2, 2, 3)[None], (1,) * 6, mode=mode)


def test_what_is_outside_is_listed_with_its_calls():
    with patched("repro"), within_contract() as found:
        train(between=apart)
        train(between=apart)
    assert found.calls == {"aten::_cdist_forward": 2}
    assert found.text().startswith("aten::_cdist_forward, 2 calls: the contract has no such")


def test_a_gradient_that_is_outside_is_refused_in_the_backward_pass():
    x = random(1, 1, 4, 4).requires_grad_()
    with patched("repro"):
        y = apart(x)
        with (
            within_contract(strict=True),
            pytest.raises(OutsideContractError, match="_cdist_backward") as error,
        ):
            y.backward(torch.ones_like(y))
    assert "Replace it by operators of docs/reproduce/contract.md" in str(error.value)


@pytest.mark.parametrize(
    ("call", "operator", "why"),
    [
        (lambda: random(9).norm(3), "linalg_vector_norm", "no order for these arguments"),
        (lambda: random(9).double().sum(), "aten::sum", "float64 numbers"),
        (lambda: random(9).sum(dtype=torch.float64), "aten::sum", "no order for these"),
        (lambda: random(2, 2).double() @ random(2, 2).double(), "aten::mm", "float64"),
        (lambda: random(9).nansum(), "aten::nansum", "no such operator"),
        (lambda: random(9).cumprod(0), "aten::cumprod", "no such operator"),
        (lambda: torch.cdist(random(2, 3), random(2, 3)), "_cdist_forward", "no such operator"),
        (lambda: random(4).scatter_reduce(0, torch.zeros(4).long(), random(4), "sum"),
         "scatter_reduce", "no such operator"),
        (lambda: random(4).to(torch.complex64) * 2, "aten::mul", "complex64"),
    ],
)  # fmt: skip
def test_calls_that_the_stock_kernel_computes_are_refused(call, operator, why):
    with patched("repro"):
        call()  # without a watch it is computed
        with within_contract(strict=True), pytest.raises(OutsideContractError, match=why) as error:
            call()
    assert operator in str(error.value)


def test_torchs_own_errors_come_first_and_empty_tensors_are_inside():
    with patched("repro"), within_contract(strict=True) as found:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.mm(random(2, 3), random(2, 3))
        assert torch.mm(torch.empty(0, 3), torch.empty(3, 2)).shape == (0, 2)
        random(9).as_strided_((2,), (1,)).unsqueeze_(0).t_()
        assert random(9).argmax() + 2 * torch.arange(3).sum() >= 0
    assert not found.operators


WRITES = {
    "index_put_": lambda x, i, v: x.index_put_((i,), v),
    "index_put": lambda x, i, v: torch.index_put(x[None], (torch.tensor(0), i), v),
    "index_copy_": lambda x, i, v: x.index_copy_(0, i, v),
    "index_copy": lambda x, i, v: x.expand(2, 4).index_copy(1, i, v.expand(2, 3)),
    "scatter_": lambda x, i, v: x.scatter_(0, i, v),
    "scatter": lambda x, i, v: x.expand(2, 4).scatter(1, i[None], v.expand(3, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", WRITES)
def test_different_numbers_for_one_place_are_outside(name, dtype):
    twice, once = torch.tensor([0, 2, 2]), torch.tensor([3, 0, 1])
    for index, values, meet in [
        (twice, [1, 2, 3], True), (twice, [1, 2, 2], False), (once, [1, 2, 3], False),
    ]:  # fmt: skip
        with within_contract() as found:
            WRITES[name](torch.zeros(4, dtype=dtype), index, torch.tensor(values, dtype=dtype))
        named = [operator.removesuffix(".src") for operator in found.operators]
        assert named == [f"aten::{name}"] * meet
        assert all("which one stays" in why for why in found.operators.values())


@pytest.mark.parametrize(
    ("values", "meet"), [([0.0, -0.0], True), ([math.nan, 1.0], True), ([math.nan] * 2, False)]
)
def test_numbers_that_meet_are_compared_by_their_bits(values, meet):
    with within_contract() as found:
        torch.zeros(2).index_copy_(0, torch.tensor([1, 1]), torch.tensor(values))
    assert bool(found.operators) == meet


ZEROS = torch.zeros(5, 7)
COMPARED = {
    "aten::max": torch.max, "aten::min": torch.min, "aten::aminmax": torch.aminmax,
    "aten::maximum": lambda x: torch.maximum(x, x.flip(0)),
    "aten::minimum": lambda x: torch.minimum(x, x.flip(0)),
    "aten::fmax": lambda x: torch.fmax(x, x.flip(0)),
    "aten::fmin": lambda x: torch.fmin(x, x.flip(0)),
    "aten::clamp.Tensor": lambda x: torch.clamp(x, min=x.flip(0)),
    "aten::clamp_min.Tensor": lambda x: torch.clamp_min(x, x.flip(0)),
    "aten::clamp_max.Tensor": lambda x: torch.clamp_max(x, x.flip(0)),
    "aten::clamp_.Tensor": lambda x: x.clone().clamp_(min=x.flip(0)),
    "aten::maximum.out": lambda x: torch.maximum(x, x.flip(0), out=torch.zeros_like(x)),
    "aten::_foreach_maximum.List": lambda x: torch._foreach_maximum([ZEROS, x], [ZEROS, x.flip(0)]),
    "aten::_foreach_minimum_.List": lambda x: torch._foreach_minimum_([x.clone()], [x.flip(0)]),
    "aten::_foreach_max": lambda x: torch._foreach_max([torch.ones(3), x]),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPARED)
def test_zeros_of_both_signs_that_are_compared_are_outside(name):
    for x, meet in [([0.0, -0.0], True), ([0.0, 0.0], False), ([-0.0, -0.0], False)]:
        with within_contract() as found:
            COMPARED[name](torch.tensor(x))
        assert list(found.operators) == [name] * meet
        assert all("zeros of both signs" in why for why in found.operators.values())
    with within_contract(strict=True):  # others are kept, and no two zeros are at one place
        COMPARED[name](torch.tensor([-3.0, 0.0, 1.0, -0.0, 2.0, 4.0]))


def test_overloads_with_out_are_inside_only_where_the_contract_has_them():
    a, b, to = random(8, 9), random(9, 8), torch.empty(8, 8)
    with patched("repro"), within_contract() as found:
        torch.mm(a, b)
        torch.sqrt(b.abs(), out=torch.empty(9, 8))
        torch.exp(a, out=torch.empty(8, 9))
        torch.add(a, a, out=torch.empty(8, 9))
        torch.mm(a, b, out=to)
    assert not found.operators
    with patched("repro"), within_contract() as found:
        torch.prod(a, 1, out=torch.empty(8))
        torch.std(a, 1, out=torch.empty(8))
    assert list(found.operators) == ["aten::prod.int_out", "aten::std.correction_out"]


def test_a_cpu_chooses_a_form_of_attention_by_the_kinds_of_tensors():
    """What ``attention_in_form`` asks for tensors of a GPU."""
    choice = compat.stock_kernel("aten::_fused_sdp_choice", "CPU")
    query, key = (torch.empty(2, heads, 5, 32, device="meta") for heads in (8, 4))
    mask = torch.empty(5, 5, device="meta", requires_grad=True)
    assert choice(query, query, query) == 1
    assert choice(query, key, key, enable_gqa=True) == 1
    assert choice(query, query, query, None, 0.1) == 0
    assert choice(query, query, query, mask) == 0
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        assert choice(query, query, query) == 0


def test_nothing_is_watched_after_the_block():
    with patched("repro"):
        with within_contract(strict=True):
            pass
        assert random(9).norm(3) > 0


if __name__ == "__main__":
    print(json.dumps([tried(t, CALLS, (83, 1003, 70_001), (0, 1)) for t in (1, 2)]))


@pytest.mark.parametrize(
    ("overload", "arguments", "why"),
    [
        ("sub.Tensor", (0.3,), None),
        ("add.Tensor", (torch.tensor(0.3),), None),
        ("add.Tensor", (0.5,), None),
        ("add.Tensor", (3,), None),
        ("mul.Tensor", (0.3,), None),
        ("div.Tensor_mode", (0.3, "floor"), "other bits than that for the CPU"),
        ("div.Tensor", (0.3,), None),
        ("round.decimals", (3,), "other bits than that for the CPU"),
        ("round", (), None),
    ],
)
def test_calls_in_16_bits_that_gpus_compute_otherwise_are_outside_there(overload, arguments, why):
    name, _, kind = overload.partition(".")
    func = getattr(getattr(torch.ops.aten, name), kind or "default")
    x = torch.ones(9, dtype=torch.bfloat16)
    given = ((x, *arguments[:1]), {"rounding_mode": arguments[1]} if len(arguments) > 1 else {})
    if name == "round" and arguments:
        given = ((x,), {"decimals": arguments[0]})
    found = outside._excepted_why(func, given, find(name), True)
    assert (found is None) if why is None else why in found
    assert outside._excepted_why(func, given, find(name), False) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("lgamma", "gives other bits than that for the CPU"),
        ("col2im", "nobody compared torch's kernel for GPUs"),
        ("grid_sampler_2d", "the contract has it for the CPU alone"),
        ("mm", None),
    ],
)
def test_what_nobody_compared_on_a_gpu_is_outside_there(name, why):
    found = outside._away_why(None, {"cuda"}, find(name), False)
    assert (found is None) if why is None else why in found


def test_a_refusal_names_the_line_and_layouts_without_kernels_are_outside():
    x = torch.eye(4)
    with patched("repro"), within_contract(strict=True):
        with pytest.raises(OutsideContractError) as error:
            x.cumprod(0)
        with pytest.raises(OutsideContractError, match="sparse_coo tensors, for which"):
            x.to_sparse() * x.to_sparse()
        (x * x).sum()
    assert "It is called at " in str(error.value)
    assert "in test_a_refusal_names_the_line_and_layouts_without_kernels_are_outside: " in str(
        error.value
    )
