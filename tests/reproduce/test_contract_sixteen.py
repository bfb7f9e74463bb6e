# SPDX-License-Identifier: Apache-2.0
"""The contract in bfloat16 and half, dropout inside of attention, and forks within a session."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.errors import OutsideContractError
from pytest_udftorch.reproduce import within_contract
from pytest_udftorch.swap.contract import sixteen
from pytest_udftorch.swap.contract.kernels import kernels
from pytest_udftorch.swap.contract.native import contract, take
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level
from tests.reproduce.spoiled import SPOILED
from tests.reproduce.test_contract_operators import random, results
from tests.reproduce.test_contract_outside import CALLS, digest

LEVELS = ["avx2", "avx512"] if resolve_cpu_level(None) == "avx512" else ["avx2"]
NARROW = [torch.bfloat16, torch.float16]


def rounded(x, dtype):
    """Round float32 to 16 bits, to nearest and even, without torch's conversions."""
    if dtype is torch.float16:
        return torch.from_numpy(x.numpy().astype(np.float16).view(np.int16))
    bits = x.numpy().view(np.uint32).astype(np.uint64)
    return torch.from_numpy(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)).view(
        torch.int16
    )


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_products_and_sums_are_the_scalar_contracts_rounded_once(dtype, scale):
    a, b = (random(*s, seed=i).mul(scale).to(dtype) for i, s in enumerate(((9, 300), (300, 70))))
    made = contract()
    with patched("repro"):
        product, total = a @ b, a.sum(1)
    # Products in bfloat16 are exact: a clause of their own.
    factors = (a, b) if dtype is torch.bfloat16 else (a.float(), b.float())
    want = made.mm(*factors, reference=True)
    assert torch.equal(product.view(torch.int16), rounded(want, dtype))
    want = made.sums(a.float(), 1, reference=True)
    assert torch.equal(total.view(torch.int16), rounded(want, dtype))
    other = contract(defines=SPOILED).mm(a.float(), b.float())
    assert not torch.equal(other, made.mm(a.float(), b.float()))


@pytest.mark.parametrize("dtype", NARROW)
def test_the_scalar_rounding_is_numpys(dtype):
    # Every pattern of the bits that stay and of those around a tie, and random ones below.
    high = np.arange(2**16, dtype=np.uint32)[:, None] << 16
    low = np.random.default_rng(1).integers(0, 2**16, 8, dtype=np.uint32)
    ties = [bit * 2**12 + more for bit in range(16) for more in (0, 1, 0xFFF)]
    bits = (high | np.concatenate([np.array(ties, dtype=np.uint32), low])).ravel()
    x = torch.from_numpy(bits.view(np.float32))
    x = x[~x.isnan()]
    narrow = contract().narrows(x, half=dtype is torch.float16)
    with np.errstate(over="ignore"):
        assert torch.equal(narrow.to(dtype).view(torch.int16), rounded(x, dtype))
    assert torch.equal(narrow.to(dtype).float().view(torch.int32), narrow.view(torch.int32))
    assert contract().narrows(torch.tensor([torch.nan]), half=False).isnan().all()


@pytest.mark.parametrize("dtype", NARROW)
def test_results_have_stocks_dtypes_and_are_as_near_to_the_truth(dtype):
    truth, stock = results(torch.float64), results(dtype)
    with patched("repro"):
        ours = results(dtype)
    for name, want in stock.items():
        got = ours[name]
        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride()), name
        scale = truth[name].abs().max().clamp(min=1)
        far, near = ((v.double() - truth[name]).abs().max() / scale for v in (got, want))
        assert far <= 1.2 * near + 1e-3, name


def test_sums_in_float32_of_16_bits_are_not_rounded():
    x = random(100).bfloat16()
    with patched("repro"):
        found = x.sum(dtype=torch.float32)
        assert found.dtype is torch.float32
        assert found == x.float().sum()
        assert x.sum().dtype is torch.bfloat16


def test_random_numbers_of_16_bits_are_below_1_and_those_of_the_same_words():
    with patched("repro"):
        for dtype, bits in ((torch.bfloat16, 8), (torch.float16, 11)):
            torch.manual_seed(3)
            wide = torch.rand(5000)
            torch.manual_seed(3)
            narrow = torch.rand(5000, dtype=dtype)
            assert torch.equal(narrow.float(), (wide * 2**bits).floor() / 2**bits)
            assert torch.empty(5000, dtype=dtype).exponential_().min() > 0


def trained(dtype=torch.bfloat16):
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.LayerNorm(64), nn.Dropout(0.2), nn.Unflatten(1, (8, 8)),
        nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(model(random(20, 1, 12, 12, seed=step)), torch.arange(20) % 10)
        loss.backward()
        optimizer.step()
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert weights.isfinite().all()
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def more(dtype):
    """Call operators that neither ``results`` nor ``trained`` calls."""
    x, y = (random(12, 10, seed=s).to(dtype).abs() for s in (1, 2))
    square = y[:10]
    results = [
        torch.addmv(y[:, 0], x, y[0]), torch.dot(x[0], y[0]), x @ y[0], x.sqrt(), x**1.7,
        torch.baddbmm(square[None], square[None], square[None]), torch.bmm(x[None], square[None]),
        x.clone().pow_(3), x.clone().index_add_(0, torch.arange(12), y),
        x.clone().scatter_add_(0, torch.zeros(12, 10, dtype=torch.int64), y),
        torch.ops.aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)[0],
        torch.ops.aten._native_batch_norm_legit_no_training(x, None, None, *y[:2], 0.1, 1e-5)[0],
    ]  # fmt: skip
    z, ones = x.clone().requires_grad_(), torch.ones(12, dtype=torch.int64)
    F.mse_loss(z.softmax(1), y).backward()
    F.nll_loss(z.log_softmax(1), ones).backward()
    F.nll_loss(z.log_softmax(1)[None].movedim(2, 1), ones[None]).backward()
    volume = z.view(1, 2, 3, 4, 5)
    for rank, line in enumerate((volume[0, 0], volume[0], volume), 1):
        for mode in ("nearest", "nearest-exact", ("linear", "bilinear", "trilinear")[rank - 1]):
            F.interpolate(line, scale_factor=1.7, mode=mode).sum().backward()
    F.interpolate(volume[0], scale_factor=1.7, mode="bicubic").sum().backward()
    places = y[:8, :8].reshape(1, 8, 4, 2)
    F.grid_sample(volume[:, 0], places, align_corners=False).sum().backward()
    bags = torch.arange(12) % 5, z, torch.tensor([0, 7])
    F.embedding_bag(*bags, mode="sum", per_sample_weights=z[:, 0]).sum().backward()
    torch._weight_norm_interface(z, y[:, :1], 0)[0].sum().backward()
    for mode in ("bilinear", "bicubic"):
        F.interpolate(volume[0], size=(3, 7), mode=mode, antialias=True).sum().backward()
    return [*results, z.grad]


#: They compute in float32 and write whatever they are given.
WRITE_ANY = {"bernoulli_float_", "bernoulli_tensor_", "exponential_", "normal_", "uniform_"}


def exact(value):
    """Copy a value; numbers of 16 bits become those of float32 without torch's conversions."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype is torch.bfloat16:
        return (value.view(torch.int16).int() << 16).view(torch.float32)
    if value.dtype is torch.float16:
        return torch.from_numpy(np.asarray(value.numpy(force=True).astype(np.float32)))
    return value.clone()


def narrow(found, like):
    """Round by the scalar loop what an operator gives in 16 bits."""
    if found is None or like.dtype not in NARROW:
        return found
    return contract().narrows(found, half=like.dtype is torch.float16)


def same(got, want):
    return (got is want is None) or torch.equal(
        *(torch.where(v.isnan(), torch.nan, v.float()).view(torch.int32) for v in (got, want))
    )


@pytest.mark.parametrize("dtype", NARROW)
def test_every_operator_is_that_of_float32_rounded_by_the_scalar_loop(monkeypatch, dtype):
    between, verdicts = sixteen._between, {}

    def checked(function, args, kwargs, of):
        wide, named = [*map(exact, args)], {k: exact(v) for k, v in kwargs.items()}
        if of is torch.bfloat16:  # test_exact_operators.py has these products
            for at in sixteen._FACTORS.get(function.__name__, ()):
                wide[at] = args[at]
        if "dtype" in named:
            named["dtype"] = torch.float32
        name, got, want = (
            function.__name__, between(function, args, kwargs, of), function(*wide, **named)
        )  # fmt: skip
        at = sixteen._WRITTEN.get(name, ())
        pairs = [(got, want)] if isinstance(got, torch.Tensor) else [*zip(got, want, strict=True)]
        pairs += [(args[i], wide[i]) for i in at if args[i] is not None]
        equal = all(same(g, narrow(w, g)) for g, w in pairs)
        verdicts[name] = verdicts.get(name, True) and equal
        return got

    def judged():
        verdicts.clear()
        with patched("repro"), kernels().through_python():
            for calls in (results, more, trained):
                calls(dtype)
        return {name for name, equal in verdicts.items() if not equal}

    monkeypatch.setattr(sixteen, "_between", checked)
    assert judged() == set()
    source = find_library("repro").folder / "operators.py"
    every = set(re.findall(r"= sixteen\((\w+)\)", source.read_text(encoding="utf-8")))
    assert every - set(verdicts) == WRITE_ANY
    # The control: results that are cut off instead of rounded.
    if dtype is torch.bfloat16:
        monkeypatch.setattr(sixteen, "_rounded", toward_zero)
        assert len(judged()) > 30


def toward_zero(found, dtypes, narrow, rounded=sixteen._rounded):
    """Round a result to bfloat16 by leaving bits out, which is the negative control."""
    if isinstance(found, tuple):
        return rounded(found, dtypes, narrow)
    if found is None:
        return None
    return (found.view(torch.int32) & -65536).view(torch.float32).to(narrow)


@pytest.mark.parametrize("dtype", NARROW)
def test_autocast_is_within_the_contract_and_has_one_digest(monkeypatch, dtype):
    threads, found = torch.get_num_threads(), set()
    with patched("repro"):
        with within_contract(strict=True):
            found.add(trained(dtype))
        try:
            for level in LEVELS:
                take(contract(level))
                for count in (1, 2):
                    torch.set_num_threads(count)
                    found.add(trained(dtype))
        finally:
            torch.set_num_threads(threads)
        assert len(found) == 1
        if dtype is torch.float16:  # 8 bits hide most other orders of so few terms
            take(contract(defines=SPOILED))
            assert trained(dtype) not in found
        else:
            monkeypatch.setattr(sixteen, "_rounded", toward_zero)
            with kernels().through_python():
                assert trained(dtype) not in found


def narrowed(threads, calls, dtype):
    """Digests of calls in 16 bits, with results shared out to threads."""
    before, n = torch.get_num_threads(), 70_001
    torch.set_num_threads(threads)
    x, g = (random(n, seed=s).to(dtype) for s in (4, 5))
    try:
        with patched("repro"):
            return {name: digest(float32(call(x, g))) for name, call in calls.items()}
    finally:
        torch.set_num_threads(before)


def float32(found):
    """Widen results; the sign and payload of a NaN are not specified."""
    parts = found if isinstance(found, tuple) else (found,)
    return tuple(torch.where(f.isnan(), torch.nan, f.float()) for f in parts)


#: Their calls have parameters of float32, or they are outside in 16 bits.
LEFT_OUT = {
    "_prelu_kernel", "histc", "nll_loss2d_backward", "nll_loss_backward", "rsqrt", "rsub",
}  # fmt: skip


@pytest.mark.parametrize("dtype", NARROW)
def test_tried_operators_in_16_bits_do_not_depend_on_threads_but_those_with_alpha(dtype):
    calls = {name: call for name, call in CALLS.items() if name not in LEFT_OUT}
    assert narrowed(1, calls, dtype) == narrowed(2, calls, dtype)
    control = {"add": lambda x, g: torch.add(x, g, alpha=0.3)}
    assert narrowed(1, control, dtype) != narrowed(2, control, dtype)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x: torch.add(x, x, alpha=0.3), "rounds alpha"),
        (lambda x: x.sub_(x.clone(), alpha=0.3), "rounds alpha"),
        (lambda x: torch.mm(x[None], x[:, None].float()), None),
    ],
)
def test_calls_in_16_bits_that_are_outside_are_refused(call, why):
    x = random(9).bfloat16()
    with patched("repro"), within_contract(strict=True):
        x + x - x * 0.3  # inside
        with pytest.raises(OutsideContractError if why else RuntimeError, match=why or "dtype"):
            call(x)


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
def test_dropout_in_attention_takes_the_contracts_random_numbers(dtype):
    q, k, v = (random(2, 3, 9, 8, seed=i).to(dtype).requires_grad_() for i in range(3))
    with patched("repro"), within_contract(strict=True):
        torch.manual_seed(5)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
        y.float().sum().backward()
        torch.manual_seed(5)
        kept = torch.rand(2, 3, 9, 9) < 0.75
        factor = 8**-0.25
        wide = [x.detach().float() for x in (q, k, v)]  # 16 bits are widened first
        weights = ((wide[0] * factor) @ (wide[1] * factor).mT).softmax(-1)
        want = (weights * kept.float().div_(0.75)) @ wide[2]
    assert torch.equal(y, want.to(dtype))
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("dtype", NARROW)
def test_roots_below_one_are_rounded_once_wherever_they_stand(dtype):
    x = random(70_003, seed=3).abs().to(dtype)
    with patched("repro"), within_contract(strict=True):
        found = [x.rsqrt(), x.clone().rsqrt_(), torch.rsqrt(x, out=torch.empty_like(x))]
        want = x.float().rsqrt().to(dtype)
    assert all(torch.equal(y, want) for y in found)
    assert not torch.equal(1 / x.sqrt(), want)  # the control rounds the root, too


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad"])
def test_a_fused_optimizer_in_16_bits_rounds_each_step_once(name, dtype):
    options = {"SGD": {"momentum": 0.9, "weight_decay": 0.1}}.get(name, {})
    for number in (9, 70_003):  # behind whole vectors, and in them
        with patched("repro"), within_contract(strict=True):
            p = random(number, seed=1)[:9].to(dtype).repeat(number // 9).requires_grad_()
            optimizer = getattr(torch.optim, name)([p], lr=0.01, fused=True, **options)
            for step in range(3):
                p.grad = random(9, seed=step).to(dtype).repeat(number // 9)
                optimizer.step()
        assert torch.equal(p[:9].repeat(number // 9), p)
        assert not torch.equal(p[:9], random(number, seed=1)[:9].to(dtype))


FORKED = """
import hashlib, os, torch, pytest_udftorch
from torch.utils.data import DataLoader

class Data:
    def __len__(self):
        return 4
    def __getitem__(self, i):
        x = torch.linspace(-1, 1, 300 * 300).view(300, 300) * (i + 1)
        return torch.softmax(x @ x.mT, -1).sum(0)

def say(x):
    return hashlib.sha256(x.numpy().tobytes()).hexdigest()

torch.set_num_threads(2)
with pytest_udftorch.patched("repro"):
    want = torch.stack([Data()[i] for i in range(4)])
    for workers in (1, 2):
        loader = DataLoader(Data(), workers, num_workers=workers, multiprocessing_context="fork")
        assert torch.equal(torch.cat(list(loader)), want)
    ends, starts = os.pipe()
    if not (child := os.fork()):
        torch.set_num_threads(1)
        os.write(starts, say(torch.stack([Data()[i] for i in range(4)])).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(ends, 64).decode() == say(want)
    assert torch.equal(Data()[3], want[3])
if not (child := os.fork()):
    torch.set_num_threads(1)
    os._exit(bool(torch.equal(Data()[3], want[3])))
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
def test_forks_and_workers_have_the_bits_of_their_parent_and_do_not_hang():
    ran = subprocess.run(
        [sys.executable, "-c", FORKED], check=False, timeout=120, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def widened_cases():
    """Calls of operators whose kernels for 16 bits round elsewhere, and their tensors."""
    op = torch.ops.aten
    g, x = random(5, 301, seed=1), random(5, 301, seed=2)
    share, image = torch.sigmoid(x), random(2, 3, 9, 8, seed=3)
    labels, weight = torch.arange(5) * 7, torch.sigmoid(random(301, seed=4))

    def losses(grad, logs, of, reduction):
        at = labels.to(logs.device)
        total = of.index_select(0, at).float().sum().to(of.dtype)
        return op.nll_loss_backward(grad, logs, at, of, reduction, -100, total)

    return {
        "sigmoid_backward": (op.sigmoid_backward, g, share),
        "tanh_backward": (op.tanh_backward, g, share),
        "logit_backward": (lambda a, b: op.logit_backward(a, b, None), g, share),
        "_prelu_kernel": (op._prelu_kernel, x, weight.expand(5, 301)),
        "nll_loss_backward, mean": (lambda *t: losses(*t, 1), g[0, 0], x, weight),
        "nll_loss_backward, sum": (lambda *t: losses(*t, 2), g[0, 0], x, weight),
        "avg_pool2d_backward": (
            lambda a, b: op.avg_pool2d_backward(a, b, [3, 3], [2, 2], [1, 1], False, True, None),
            random(2, 3, 5, 4, seed=5), image,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", widened_cases())
@pytest.mark.parametrize("dtype", NARROW)
def test_widened_operators_compute_in_float32_and_round_once(name, dtype):
    call, *given = widened_cases()[name]
    narrow = [t.to(dtype) for t in given]
    with patched("repro"), within_contract(strict=True):
        found, want = call(*narrow), call(*(t.float() for t in narrow))
    if name != "nll_loss_backward, mean":  # whose total of weights is rounded in 16 bits
        assert torch.equal(found.view(torch.int16), rounded(want, dtype))


def test_stock_rounds_gradients_of_logit_elsewhere():
    call, *given = widened_cases()["logit_backward"]
    narrow = [t.bfloat16() for t in given]
    want = rounded(call(*(t.float() for t in narrow)), torch.bfloat16)
    assert not torch.equal(call(*narrow).view(torch.int16), want)
