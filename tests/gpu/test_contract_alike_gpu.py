# SPDX-License-Identifier: Apache-2.0
"""Attention in every form, lists of tensors, optimizers and numbers: the bits of the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.reproduce import within_contract
from tests.reproduce.test_contract_outside import random
from tests.reproduce.test_sampling import generated, small_llama

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NARROW = [torch.bfloat16, torch.float16]


def bits(x):
    x = x.detach().cpu().contiguous()
    if not x.is_floating_point():
        return x
    return x.view(torch.int32 if x.element_size() == 4 else torch.int16).masked_fill(x.isnan(), -1)


def different(call, *tensors):
    """Return which results of a call differ between the CPU and the GPU, under repro."""
    found = []
    for device in ("cpu", "cuda"):
        with patched("repro"), within_contract(strict=True):
            torch.manual_seed(7)
            results = call(*(t.detach().clone().to(device) for t in tensors))
        found.append([bits(r) for r in results])
    one, other = found
    assert len(one) == len(other) > 0
    return [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if not torch.equal(a, b)]


# Attention --------------------------------------------------------------------------------

#: A call of attention: heads of queries and of keys, queries, keys, size; its arguments; its mask.
FORMS = {
    "plain": ((4, 4, 33, 33, 32), {}, None),
    "shared": ((8, 2, 33, 33, 32), {"enable_gqa": True}, None),
    "shared, causal": ((8, 2, 40, 40, 64), {"enable_gqa": True, "is_causal": True}, None),
    "shared, one query": ((8, 4, 1, 70, 64), {"enable_gqa": True}, None),
    "shared, masked": ((8, 2, 20, 20, 32), {"enable_gqa": True}, "truth"),
    "shared, added": ((8, 2, 20, 20, 32), {"enable_gqa": True}, "numbers"),
    "dropout": ((4, 4, 33, 33, 32), {"dropout_p": 0.25}, None),
    "dropout, causal": ((4, 4, 32, 32, 32), {"dropout_p": 0.25, "is_causal": True}, None),
    "odd size": ((2, 2, 17, 17, 30), {}, None),
    "other values": ((4, 4, 33, 33, 32), {}, "narrow"),
    "other values, masked": ((4, 4, 33, 33, 32), {}, "narrow, truth"),
    "gradient of the mask": ((2, 2, 16, 16, 32), {}, "learned"),
}


def attended(dtype, name, compiled=False):
    (heads, kept, queries, keys, size), given, kind = FORMS[name]
    shapes = ((heads, queries), (kept, keys), (kept, keys))
    q, k, v = (random(2, *s, size, seed=i).to(dtype) for i, s in enumerate(shapes))
    mask = random(2, 1, queries, keys, seed=9).to(dtype)
    grad = random(2, heads, queries, size, seed=8).to(dtype)
    if "narrow" in str(kind):
        v, grad = v[..., :20].contiguous(), grad[..., :20].contiguous()
    call = F.scaled_dot_product_attention
    if compiled:
        call = torch.compile(call, fullgraph=True)

    def run(q, k, v, mask, grad):
        wanted = [x.requires_grad_() for x in (q, k, v)]
        if "truth" in str(kind):
            mask = mask > -1
            mask[..., 0] = True
        elif kind == "learned":
            wanted.append(mask.requires_grad_())
        y = call(q, k, v, None if kind in (None, "narrow") else mask, **given)
        return y, *torch.autograd.grad(y, wanted, grad)

    return different(run, q, k, v, mask, grad)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_attention_takes_the_form_that_a_cpu_takes(name, dtype):
    assert attended(dtype, name) == []


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("name", ["shared, causal", "shared, masked", "gradient of the mask"])
def test_compiled_attention_does_so_too(name, dtype):
    torch._dynamo.reset()
    assert attended(dtype, name, compiled=True) == []


def test_stock_takes_another_form():
    """The control: without the session the form of a GPU has other bits."""
    q, k = random(2, 8, 33, 32).cuda(), random(2, 2, 33, 32, seed=1).cuda()
    stock = F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    with patched("repro"):
        assert not torch.equal(bits(F.scaled_dot_product_attention(q, k, k, enable_gqa=True)),
                               bits(stock))  # fmt: skip


def test_inference_mode_and_errors_are_torchs():
    q, k = random(2, 8, 33, 32), random(2, 2, 33, 32, seed=1)

    def run(q, k):
        with torch.inference_mode():
            return [F.scaled_dot_product_attention(q.clone(), k.clone(), k, enable_gqa=True)]

    assert different(run, q, k) == []
    q, k = q.cuda(), k.cuda()
    for given in ({}, {"enable_gqa": True, "is_causal": True, "attn_mask": q.new_zeros(33, 33)}):
        said = []
        for library in ("std", "repro"):
            with patched(library), pytest.raises(RuntimeError) as error:
                F.scaled_dot_product_attention(q, k, k, **given)
            said.append(str(error.value).splitlines()[0])
        assert said[0] == said[1]


# Numbers of 16 bits -----------------------------------------------------------------------

ELEMENTS = {
    "x + number": lambda x, y: [x + 0.1, 0.1 + x, x + 257, x.add(-math.pi), x.clone().add_(0.3)],
    "x - number": lambda x, y: [x - 0.1, 0.1 - x, 1 - x, x.clone().sub_(0.3)],
    "x * number": lambda x, y: [x * 0.1, x / 0.3, x / 3, 0.7 / x],
    "tensors": lambda x, y: [x + y, x - y, x * y, x / y, torch.addcmul(x, y, y, value=0.3)],
    "functions": lambda x, y: [
        F.hardswish(x * 3), F.hardsigmoid(x * 3), x.abs().rsqrt(), torch.xlogy(y, x.abs()),
        torch.logit(x.sigmoid()), torch.logit(x.sigmoid(), 0.1), F.logsigmoid(x),
    ],
    "dropout": lambda x, y: [F.dropout(x, 0.3), F.dropout(y, 0.5)],
    "norms": lambda x, y: torch._foreach_norm([x, y]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_have_the_bits_of_the_cpu(name, dtype):
    x, y = (random(5, 4099, seed=s).to(dtype) for s in (1, 2))
    assert different(ELEMENTS[name], x, y) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["glu", "logsigmoid", "hardswish", "hardsigmoid"])
def test_gradients_have_the_bits_of_the_cpu(name, dtype):
    x, g = random(6, 4098, seed=1).to(dtype), random(6, 4098, seed=2).to(dtype)

    def run(x, g):
        y = getattr(F, name)(x.requires_grad_())
        return [y, *torch.autograd.grad(y, x, g[:, : y.shape[1]])]

    assert different(run, x, g) == []


LISTS = {
    "add": lambda a, b: torch._foreach_add(a, b),
    "add, number": lambda a, b: torch._foreach_add(a, 1e-3),
    "add, numbers": lambda a, b: torch._foreach_add(a, [0.1, 0.7, 1e-8]),
    "sub": lambda a, b: torch._foreach_sub(a, b),
    "sub, number": lambda a, b: torch._foreach_sub(a, 0.3),
    "mul": lambda a, b: torch._foreach_mul(a, b),
    "mul, number": lambda a, b: torch._foreach_mul(a, 0.999),
    "mul, numbers": lambda a, b: torch._foreach_mul(a, [0.1, 0.7, 1e-3]),
    "mul_, number": lambda a, b: torch._foreach_mul_(a, 0.99) or a,
    "mul_, numbers": lambda a, b: torch._foreach_mul_(a, [0.1, 0.7, 0.999]) or a,
    "add_, number": lambda a, b: torch._foreach_add_(a, 1e-3) or a,
    "div_, number": lambda a, b: torch._foreach_div_(a, 0.3) or a,
    "mul, tensor": lambda a, b: torch._foreach_mul(a, b[2].flatten()[0].clone()),
    "div": lambda a, b: torch._foreach_div(a, b),
    "div, number": lambda a, b: torch._foreach_div(a, 0.3),
    "div, numbers": lambda a, b: torch._foreach_div(a, [0.1, 0.7, 3.0]),
    "lerp": lambda a, b: torch._foreach_lerp(a, b, 0.1),
    "lerp, lists": lambda a, b: torch._foreach_lerp(a, b, a),
    "addcmul": lambda a, b: torch._foreach_addcmul(a, b, b, 0.1),
    "addcdiv": lambda a, b: torch._foreach_addcdiv(a, a, b, -0.01),
    "addcdiv, numbers": lambda a, b: torch._foreach_addcdiv(a, a, b, [0.1, -0.2, 1.5]),
    "sqrt": lambda a, b: torch._foreach_sqrt(torch._foreach_abs(a)),
    "neg": lambda a, b: torch._foreach_neg(a),
    "maximum": lambda a, b: torch._foreach_maximum(a, b),
    "clamp": lambda a, b: torch._foreach_clamp_max(a, 0.1),
    "reciprocal": lambda a, b: torch._foreach_reciprocal(a),
    "norm": lambda a, b: torch._foreach_norm(a),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LISTS)
def test_lists_have_the_bits_of_the_cpu(name, dtype):
    shapes = ((33, 65), (5000,), (7,))
    a, b = ([random(*s, seed=n + i).to(dtype) for i, s in enumerate(shapes)] for n in (1, 10))

    def run(*tensors):
        return LISTS[name](list(tensors[:3]), list(tensors[3:]))

    assert different(run, *a, *b) == []


OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2}),
    "AdamW, amsgrad": (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True}),
    "Adam": (torch.optim.Adam, {"lr": 1e-2}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-2}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
}


def learned(made, options, how):
    def run(*tensors):
        parameters = [t.requires_grad_() for t in tensors]
        optimizer = made(parameters, **options, **how)
        for step in range(3):
            for n, p in enumerate(parameters):
                draw = random(*p.shape, seed=100 * step + n)
                p.grad = draw.to(p.device, p.dtype)
            optimizer.step()
        return parameters

    return run


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("how", [{"foreach": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_in_16_bits_have_the_bits_of_the_cpu(name, how, dtype):
    parameters = [random(*s, seed=3).to(dtype) for s in ((64, 33), (65,))]
    assert different(learned(*OPTIMIZERS[name], how), *parameters) == []


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", ["AdamW", "AdamW, amsgrad", "Adam", "SGD", "Adam, decay"])
def test_fused_optimizers_in_16_bits_have_the_bits_of_the_cpu(name, dtype):
    more = {
        "SGD": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.1}),
        "Adam, decay": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1}),
    }
    parameters = [random(*s, seed=3).to(dtype) for s in ((64, 33), (65,))]
    assert different(learned(*(OPTIMIZERS | more)[name], {"fused": True}), *parameters) == []


def test_transformers_draw_the_tokens_of_the_cpu():
    model, everyone = small_llama(heads=2), list(range(64))
    with patched("repro"):
        whole = generated(model, everyone, top_k=20)
        model.cuda()
        assert torch.equal(generated(model, everyone, top_k=20).cpu(), whole)
        for rows in ([5], [63, 8, 3, 1, 0, 50, 9, 20]):
            for cached in (True, False):
                some = generated(model, rows, top_k=20, use_cache=cached).cpu()
                assert torch.equal(some, whole[rows])
