# SPDX-License-Identifier: Apache-2.0
"""Kernels in C++ of ``repro`` on the CPU: they have the bits and layouts of those in Python."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading
import zlib

import pytest
import torch
from torch import nn

from pytest_udftorch import patched
from pytest_udftorch.swap.contract.kernels import KERNELS, kernels
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.cpu import direct
from pytest_udftorch.swap.cpu.loops import called
from pytest_udftorch.swap.overrides.switchboard import switchboard
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level
from tests.reproduce.spoiled import SPOILED

aten = torch.ops.aten
LEVELS = ["avx2", "avx512"] if resolve_cpu_level(None) == "avx512" else ["avx2"]
WIDE = torch.float32


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def labels(count, *shape, seed=0, dtype=torch.int64):
    found = torch.randint(count, shape, generator=torch.Generator().manual_seed(seed))
    return found.to(dtype)


@pytest.fixture(scope="module", autouse=True)
def session():
    with patched("repro"):
        contract()  # the first call of a session asks Python for it
        yield


@pytest.fixture(
    params=[0, pytest.param(1, marks=pytest.mark.slow)], ids=["usual", "other"], autouse=True
)
def threads(request):
    """One thread for one half of the tests and two for the other; in the slow run both for all."""
    before = torch.get_num_threads()
    name = re.sub(r"\[(usual|other)", "[", request.node.name)
    half = zlib.crc32(name.encode()) % 2
    torch.set_num_threads(1 + (half ^ request.param))
    yield
    torch.set_num_threads(before)


def flat(found):
    return list(found) if isinstance(found, tuple | list) else [found]


def alike(x, y):
    """Whether two results are equal but for the bits of NaNs: layout, dtype and bits."""
    if x is None or y is None or not isinstance(x, torch.Tensor):
        return x is y or x == y
    if (x.shape, x.stride(), x.dtype) != (y.shape, y.stride(), y.dtype):
        return False
    whole = {torch.float32: torch.int32, torch.float64: torch.int64}.get(x.dtype, torch.int16)
    if not x.dtype.is_floating_point:
        return torch.equal(x, y)
    same = x.contiguous().view(whole) == y.contiguous().view(whole)
    return bool((same | (x.isnan() & y.isnan())).all())


def copied(value):
    """Return a value whose tensors are copies with their strides; one that repeats is not."""
    if isinstance(value, torch.Tensor):
        if 0 in value.stride():
            return value
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        return made.copy_(value)
    return type(value)(map(copied, value)) if isinstance(value, list) else value


def both(call, *given, **named):
    """Return what the kernel gives and what Python gives, and how many calls C++ took.

    Arguments count as results: some are written to.
    """
    found = []
    before = kernels().taken()
    for way in (None, kernels().through_python()):
        torch.manual_seed(7)
        args = [copied(v) for v in given]
        if way is None:
            found.append([*flat(call(*args, **named)), *args])
            taken = kernels().taken() - before
        else:
            with way:
                found.append([*flat(call(*args, **named)), *args])
    return *found, taken


def check(call, *given, taken=1, **named):
    mine, theirs, count = both(call, *given, **named)
    assert len(mine) == len(theirs)
    assert all(map(alike, mine, theirs))
    assert count == taken


def turned(x):
    return x.transpose(-1, -2)


def spread(x):
    """The same numbers with gaps between them."""
    return torch.stack([x, -x], -1)[..., 0]


# Products ---------------------------------------------------------------------------------

SIZES = [(1, 1, 1), (3, 5, 70), (33, 17, 129), (2, 40, 64), (64, 64, 0), (0, 3, 4)]
LAYOUTS = {
    "dense": lambda x: x, "spread": spread,
    "turned": lambda x: turned(turned(x).contiguous()) if x.dim() > 1 else x,
    "repeated": lambda x: x[..., :1].expand(x.shape) if x.numel() else x,
}  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products(size, layout):
    m, n, k = size
    lay = LAYOUTS[layout]
    a, b = lay(random(m, k)), lay(random(k, n, seed=1))
    check(aten.mm, a, b)
    check(aten.mv, a, lay(random(k)[None])[0])
    check(aten.dot, lay(random(k)[None])[0], lay(random(k, seed=1)[None])[0])
    for beta, alpha in ((1, 1), (0, 1), (0.3, 1), (1, -2.5), (True, 3)):
        for bias in (random(n), random(m, n), random(m, 1), random(1), lay(random(m, n))):
            check(aten.addmm, bias, a, b, beta=beta, alpha=alpha)
        check(aten.addmv, random(m), a, random(k), beta=beta, alpha=alpha)
    for count in (1, 3):
        a, b = lay(random(count, m, k)), lay(random(count, k, n, seed=1))
        check(aten.bmm, a, b)
        for bias in (random(n), random(count, m, n), random(m, 1)):
            check(aten.baddbmm, bias, a, b, beta=0.5, alpha=2)
            check(aten.baddbmm, bias, a, b)


def test_many_sums_of_a_product_and_a_bias():
    a, b, bias = random(300, 20), random(20, 200), random(200)
    check(aten.addmm, bias, a, b)


# Sums -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7,), (3, 1), (5, 40), (3, 4, 5), (2, 3, 4, 70), (2, 0, 3)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums(shape, layout):
    x = LAYOUTS[layout](random(*shape))
    check(aten.sum, x)
    check(aten.mean, x)
    rank = x.dim()
    named = [None, [], [0], [-1], [rank - 1, 0], list(range(0, rank, 2)), list(range(rank))]
    for dims in named:
        if dims is None or len({d % rank for d in dims}) == len(dims):
            for keep in (False, True):
                check(aten.sum.dim_IntList, x, dims, keep)
                check(aten.mean.dim, x, dims, keep)
                check(aten.sum.dim_IntList, x, dims, keep, dtype=WIDE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_roots_and_powers(layout):
    x = LAYOUTS[layout](random(5, 9).abs())
    x = torch.cat([x, torch.tensor([[0.0, -0.0, -1.0, math.inf, math.nan, 1e-42, 1, 2, 3]])])
    check(aten.sqrt, x)
    check(aten.sqrt_, x)
    check(aten.sqrt.out, x, out=torch.empty_like(x))
    for exponent in (2, -2, 3.0, 1, 0, -1, True, 0.5, -0.5):
        check(aten.pow.Tensor_Scalar, x, exponent)
    check(aten.pow_.Scalar, x, 2)
    check(aten.pow_.Scalar, x, 0.5, taken=0)
    check(aten.pow.Tensor_Scalar, x, 1.7, taken=0)


# Convolutions -----------------------------------------------------------------------------

CONVOLUTIONS = [
    # input, weight, stride, padding, dilation, groups
    ((2, 4, 9, 8), (6, 4, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 4, 9, 8), (6, 4, 3, 3), (2, 1), (0, 2), (1, 2), 1),
    ((3, 6, 10, 7), (6, 1, 3, 3), (1, 1), (1, 1), (1, 1), 6),
    ((3, 6, 10, 7), (6, 1, 5, 3), (2, 2), (2, 1), (1, 1), 6),
    ((2, 6, 20, 37), (12, 1, 3, 3), (1, 1), (1, 1), (1, 1), 6),
    ((2, 3, 40, 50), (3, 1, 9, 9), (1, 1), (4, 4), (1, 1), 3),
    ((2, 6, 8, 8), (4, 3, 1, 1), (1, 1), (0, 0), (1, 1), 2),
    ((2, 3, 15), (5, 3, 4), (3,), (2,), (1,), 1),
    ((1, 2, 5, 6, 7), (4, 2, 2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 1, 2), 1),
]  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("layout", ["dense", "spread", "turned"])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions(case, layout, transposed):
    shape, of_weight, stride, padding, dilation, groups = case
    lay = LAYOUTS[layout]
    x, w = lay(random(*shape)), lay(random(*of_weight, seed=1))
    if transposed:
        x = lay(random(shape[0], of_weight[0], *shape[2:]))
    rows = of_weight[1] * groups if transposed else of_weight[0]
    more = [0] * len(stride)
    rest = (stride, padding, dilation, transposed, more, groups)
    for bias in (None, random(rows)):
        check(aten.convolution, x, w, bias, *rest)
    y = aten.convolution(x, w, None, *rest)
    grad = lay(random(*y.shape, seed=2))
    for mask in ([True] * 3, [False, True, False], [True, False, False], [False, False, True]):
        check(aten.convolution_backward, grad, x, w, [rows], *rest, mask)
    check(aten.convolution_backward, y[:1, :1].expand_as(y), x, w, [rows], *rest, [True] * 3)


def test_convolutions_with_channels_last_are_computed_in_python():
    x = random(2, 4, 8, 8).to(memory_format=torch.channels_last)
    w = random(3, 4, 3, 3)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    check(aten.convolution, x, w, None, *rest, taken=0)


# Norms and softmax --------------------------------------------------------------------------

ROWS = [(1, 1), (5, 7), (64, 33), (3, 4, 300), (2, 5000)]


@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_softmax(shape, layout):
    x, grad = (LAYOUTS[layout](random(*shape, seed=s)) for s in (0, 1))
    x = torch.where(x > 2, math.inf, x) if layout == "spread" else x
    for dim in (-1, x.dim() - 1):
        for name in ("_softmax", "_log_softmax"):
            check(getattr(aten, name), x, dim, False)
            check(getattr(aten, f"{name}_backward_data"), grad, x, dim, WIDE)


@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weighted", [0, 1, 2])
def test_layer_norm(shape, layout, weighted):
    x, grad = (LAYOUTS[layout](random(*shape, seed=s)) for s in (0, 1))
    for n in (list(x.shape[-1:]), list(x.shape)):
        weight = random(*n, seed=2) if weighted else None
        bias = random(*n, seed=3) if weighted == 2 else None
        check(aten.native_layer_norm, x, n, weight, bias, 1e-5)
        _, mean, rstd = aten.native_layer_norm(x, n, weight, bias, 1e-5)
        for mask in ([True] * 3, [True, False, False], [False, True, True], [False, False, True]):
            check(aten.native_layer_norm_backward, grad, x, n, mean, rstd, weight, bias, mask)


@pytest.mark.parametrize("shape", [(4, 3, 17), (2, 5, 6, 7), (3, 1, 2, 3, 4), (2, 4, 2, 2), (5, 3)])
@pytest.mark.parametrize("weighted", [0, 1, 2])
def test_batch_norm(shape, weighted):
    channels = shape[1]
    x, grad = random(*shape), random(*shape, seed=1)
    weight = random(channels, seed=2) if weighted else None
    bias = random(channels, seed=3) if weighted == 2 else None
    mean, var = random(channels, seed=4), random(channels, seed=5).abs()
    for training in (True, False):
        check(aten.native_batch_norm, x, weight, bias, mean, var, training, 0.1, 1e-5)
        check(aten._native_batch_norm_legit, x, weight, bias, mean, var, training, 0.3, 1e-3)
    check(aten._native_batch_norm_legit_no_training, x, weight, bias, mean, var, 0.1, 1e-5)
    check(aten.native_batch_norm, x, weight, bias, None, None, True, 0.1, 1e-5)
    check(aten._native_batch_norm_legit.no_stats, x, weight, bias, True, 0.1, 1e-5)
    _, *saved = aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    for mask in ([True] * 3, [True, False, False], [False, True, False], [False, False, True]):
        for g in (grad, grad[:, :1].expand_as(grad)):
            given = (g, x, weight, mean, var, *saved)
            check(aten.native_batch_norm_backward, *given, True, 1e-5, mask)


def test_batch_norm_in_layouts_that_only_python_knows():
    x = random(2, 4, 5, 6).to(memory_format=torch.channels_last)
    check(aten.native_batch_norm, x, None, None, None, None, True, 0.1, 1e-5, taken=0)


@pytest.mark.parametrize("shape", [(2, 6, 5), (3, 4, 3, 7), (2, 6, 1), (1, 12, 40, 9)], ids=str)
@pytest.mark.parametrize("weighted", [0, 1, 2])
def test_group_norm(shape, weighted):
    n, channels = shape[:2]
    size = math.prod(shape[2:])
    x, grad = random(*shape), random(*shape, seed=1)
    weight = random(channels, seed=2) if weighted else None
    bias = random(channels, seed=3) if weighted == 2 else None
    for groups in (1, 2, channels):
        given = (n, channels, size, groups)
        check(aten.native_group_norm, x, weight, bias, *given, 1e-5)
        _, mean, rstd = aten.native_group_norm(x, weight, bias, *given, 1e-5)
        for mask in ([True] * 3, [True, False, False], [False, True, False], [False, False, True]):
            for g in (grad, grad[:, :1].expand_as(grad)):
                check(aten.native_group_norm_backward, g, x, mean, rstd, weight, *given, mask)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_variances_norms_and_running_sums(layout):
    for shape in ((7, 9), (3, 40, 5), (2, 300)):
        x = LAYOUTS[layout](random(*shape))
        for dims in (None, [0], [-1], [x.dim() - 1, 0]):
            for keep in (False, True):
                for name in ("var", "std", "var_mean", "std_mean"):
                    call = getattr(aten, name).correction
                    check(call, x, dims, correction=None, keepdim=keep)
                    check(call, x, dims, correction=0, keepdim=keep)
                for order in (2, 1, 2.0):
                    check(aten.linalg_vector_norm, x, order, dims, keep)
        check(aten.linalg_vector_norm, x, 3, None, False, taken=0)
        for dim in range(-x.dim(), x.dim()):
            check(aten.cumsum, x, dim)
        for reduction in (0, 1, 2):
            check(aten.mse_loss, x, LAYOUTS[layout](random(*shape, seed=1)), reduction)
    check(aten.mse_loss, random(3, 4), random(1), 1, taken=0)


# 16 bits ------------------------------------------------------------------------------------

NARROW = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", NARROW)
def test_products_and_sums_in_16_bits(dtype):
    x, y, v = (random(*s).to(dtype) for s in ((9, 70), (70, 5), (70,)))
    check(aten.mm, x, y)
    check(aten.mv, x, v)
    check(aten.dot, v, v)
    check(aten.addmm, random(5).to(dtype), x, y, beta=0.5, alpha=2)
    check(aten.addmv, random(9).to(dtype), x, v)
    check(aten.bmm, x[None], y[None])
    check(aten.baddbmm, random(5).to(dtype), x[None], y[None])
    for asked in (None, dtype, WIDE):
        check(aten.sum, x, dtype=asked)
        check(aten.mean.dim, turned(x), [0], True, dtype=asked)
        check(aten.sum.dim_IntList, x, [1], dtype=asked)
    check(aten.sum, x, dtype=torch.float64, taken=0)
    check(aten.mm, x, turned(turned(y).contiguous()))
    check(aten.linalg_vector_norm, x, 2, None, False)
    check(aten.var_mean.correction, x, [1], correction=1)
    check(aten.mse_loss, x, x + 1, 1)
    check(aten.cumsum, x, 1)
    check(aten.sqrt, x.abs())
    for exponent in (2, 3, -1, 0.5, -0.5):
        check(aten.pow.Tensor_Scalar, x.abs() + 1, exponent)


@pytest.mark.parametrize("dtype", NARROW)
def test_layers_in_16_bits(dtype):
    x, w = random(2, 4, 9, 8).to(dtype), random(6, 4, 3, 3, seed=1).to(dtype)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    check(aten.convolution, x, w, random(6).to(dtype), *rest)
    grad = aten.convolution(x, w, None, *rest)
    for mask in ([True] * 3, [False, True, False]):
        check(aten.convolution_backward, grad, x, w, [6], *rest, mask)
    m, target = random(5, 7).to(dtype), labels(7, 5)
    soft = aten._softmax(m, 1, False)
    for name in ("_softmax", "_log_softmax"):
        check(getattr(aten, name), m, 1, False)
        check(getattr(aten, f"{name}_backward_data"), m, soft, 1, dtype)
    check(aten.nll_loss_forward, m, target, None, 1, -100)
    check(aten.nll_loss_forward, m, target, random(7).to(dtype), 2, -100)
    check(aten.embedding_dense_backward, m, labels(9, 5), 9, -1, False)
    q, k = random(2, 4, 6, 8).to(dtype), random(2, 2, 5, 8).to(dtype)
    for named in ({}, {"attn_mask": masks(6, 5)[0]}, {"attn_mask": masks(6, 5)[1].to(dtype)}):
        check(getattr(aten, FLASH), q, k, k, **named)
        out, logs = getattr(aten, FLASH)(q, k, k, **named)
        back = getattr(aten, f"{FLASH}_backward")
        check(back, q, q, k, k, out, logs, 0.0, False, **named)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("of_weight", [None, *NARROW, WIDE])
def test_norms_in_16_bits(dtype, of_weight):
    if of_weight not in (None, dtype, WIDE):
        return
    x, grad = random(3, 4, 5).to(dtype), random(3, 4, 5, seed=1).to(dtype)
    made = (lambda n: None) if of_weight is None else (lambda n: random(n).to(of_weight))
    w, b = made(5), made(5)
    check(aten.native_layer_norm, x, [5], w, b, 1e-5)
    _, mean, rstd = aten.native_layer_norm(x, [5], w, b, 1e-5)
    check(aten.native_layer_norm_backward, grad, x, [5], mean, rstd, w, b, [True] * 3)
    w, b = made(4), made(4)
    check(aten.native_group_norm, x, w, b, 3, 4, 5, 2, 1e-5)
    _, mean, rstd = aten.native_group_norm(x, w, b, 3, 4, 5, 2, 1e-5)
    check(aten.native_group_norm_backward, grad, x, mean, rstd, w, 3, 4, 5, 2, [True] * 3)
    check(aten._native_batch_norm_legit.no_stats, x, w, b, True, 0.1, 1e-5)
    for stats in (None, WIDE, dtype):
        mean, var = (None, None) if stats is None else random(2, 4).abs().to(stats)
        if stats:
            check(aten._native_batch_norm_legit_no_training, x, w, b, mean, var, 0.1, 1e-5)
        for training in (True, False) if stats else (True,):
            taken = int(stats is not dtype)
            given = (x, w, b, mean, var, training, 0.1, 1e-5)
            check(aten.native_batch_norm, *given, taken=taken)
        _, *saved = aten.native_batch_norm(x, w, b, mean, var, True, 0.1, 1e-5)
        taken = int(of_weight is not None)
        given = (grad, x, w, mean, var, *saved, True, 1e-5, [True] * 3)
        check(aten.native_batch_norm_backward, *given, taken=taken)


# Losses, rows and random numbers ------------------------------------------------------------


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_likelihoods(reduction, weighted):
    for shape in ((7, 5), (1, 3), (300, 9)):
        x, target = random(*shape), labels(shape[1], shape[0])
        target[0] = -100
        weight = random(shape[1], seed=1) if weighted else None
        check(aten.nll_loss_forward, x, target, weight, reduction, -100)
        target[0] = 1
        check(aten.nll_loss_forward, turned(turned(x).contiguous()), target, weight, reduction, 1)
    x, target = random(5), labels(5)
    check(aten.nll_loss_forward, x, target, random(5) if weighted else None, reduction, -100)
    x, target = random(2, 3, 4, 5), labels(3, 2, 4, 5)
    weight = random(3) if weighted else None
    check(aten.nll_loss2d_forward, x, target, weight, reduction, 1)
    check(aten.nll_loss2d_forward, spread(x), target, weight, reduction, -100)


def test_labels_out_of_range_are_refused_in_the_words_of_stock():
    x, target = random(3, 4), torch.tensor([0, 4, 1])
    with pytest.raises(IndexError, match="Target 4 is out of bounds"):
        aten.nll_loss_forward(x, target, None, 1, -100)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_gradients_of_embeddings(dtype):
    for count, shape in ((10, (30,)), (500, (4, 9)), (3, (1,)), (2, (2, 3, 4))):
        rows = labels(count, *shape, dtype=dtype)
        for width in (1, 5, 130):
            grad = random(*shape, width)
            for padding in (-1, 1):
                check(aten.embedding_dense_backward, grad, rows, count, padding, False)
        check(aten.embedding_dense_backward, spread(grad), rows, count, -1, False)
    check(aten.embedding_dense_backward, grad, rows, count, -1, True, taken=0)


def test_bernoulli():
    for p in (0.0, 0.1, 0.5, 0.9, 1.0):
        check(aten.bernoulli_.float, random(5, 7), p)
        check(aten.bernoulli_.float, random(100_003), p)
    check(aten.bernoulli_.float, turned(random(5, 7)), 0.3, taken=0)
    with pytest.raises(RuntimeError, match="p"):
        aten.bernoulli_.float(random(3), 1.5)


# Attention ----------------------------------------------------------------------------------

FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def masks(*shape):
    mask = random(*shape, seed=9) > 0
    mask[..., 0] = True
    return mask, torch.where(mask, random(*shape, seed=8), -math.inf)


def test_masks_that_hide_the_first_key_are_for_python():
    """Sums over keys begin at the first key that a row sees, which loops of C++ do not."""
    q, k, v = (random(2, 4, 6, 8, seed=s) for s in range(3))
    seen, added = masks(6, 6)
    check(getattr(aten, FLASH), q, k, v, 0.0, False, attn_mask=seen)
    for mask in (seen, added):
        hidden = mask.clone()
        hidden[2, 0] = False if hidden.dtype is torch.bool else -math.inf
        check(getattr(aten, FLASH), q, k, v, 0.0, False, attn_mask=hidden, taken=0)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (4, 2), (6, 1)], ids=str)
@pytest.mark.parametrize("layout", ["dense", "between", "spread"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 9, 7), (24, 24, 16), (70, 33, 8)], ids=str)
def test_attention(heads, layout, sizes):
    (h, of_key), (n, m, e) = heads, sizes
    lay = {
        "dense": lambda x: x, "spread": spread,
        "between": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    }[layout]  # fmt: skip
    q = lay(random(2, h, n, e))
    k, v = (lay(random(2, of_key, m, e, seed=s)) for s in (1, 2))
    given = [{"is_causal": True}, {"is_causal": False}, {"scale": 0.3}]
    given += [{"attn_mask": x} for x in (*masks(n, m), *masks(2, 1, n, m), *masks(2, h, n, m))]
    for named in given:
        causal = named.pop("is_causal", False)
        check(getattr(aten, FLASH), q, k, v, 0.0, causal, **named)
        out, logs = getattr(aten, FLASH)(q, k, v, 0.0, causal, **named)
        grad = lay(random(*out.shape, seed=5))
        back = getattr(aten, f"{FLASH}_backward")
        check(back, grad, q, k, v, out, logs, 0.0, causal, **named)


# What goes elsewhere ------------------------------------------------------------------------


def test_other_dtypes_go_to_the_stock_kernel_or_to_python():
    x = random(4, 4)
    before = kernels().taken()
    wanted = x.double().numpy() @ x.double().numpy()
    assert torch.allclose(torch.mm(x.double(), x.double()), torch.from_numpy(wanted))
    assert x.long().sum().item() == sum(x.long().flatten().tolist())
    assert kernels().taken() == before


def test_zeros_without_memory_are_taken_as_stock_takes_them():
    x, none = random(5), torch._efficientzerotensor(5)
    before = kernels().taken()
    assert torch.dot(x, none) == torch.dot(none, x) == 0
    assert kernels().taken() == before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: torch.mm(x, x[:2]), "mat1 and mat2 shapes cannot be multiplied"),
        (lambda x: torch.sum(x, [0, 0]), "dim 0 appears multiple times"),
        (lambda x: torch.sum(x, [5]), "Dimension out of range"),
        (lambda x: torch.conv2d(x[None, None], x.repeat(2, 2)[None, None]), "Kernel size"),
    ],
)
def test_what_stock_refuses_is_refused_in_its_words(call, words):
    with pytest.raises((RuntimeError, IndexError), match=words):
        call(random(4, 5))


@pytest.mark.parametrize("level", LEVELS)
def test_the_levels_have_the_same_bits(level):
    x, w = random(2, 3, 20, 20), random(8, 3, 3, 3)
    wanted = torch.conv2d(x, w), torch.mm(x[0, 0], x[0, 1]), x.sum([0, 2]), x.softmax(-1)
    try:
        kernels().use(contract(level))
        found = torch.conv2d(x, w), torch.mm(x[0, 0], x[0, 1]), x.sum([0, 2]), x.softmax(-1)
    finally:
        kernels().use(contract())
    assert all(map(torch.equal, found, wanted))


def test_another_order_is_noticed():
    """Negative control: the comparison sees a product whose chunks have another length."""
    x = random(100, 100)
    try:
        kernels().use(contract(defines=SPOILED))
        mine, theirs, taken = both(aten.mm, x, x)
    finally:
        kernels().use(contract())
    assert taken == 1
    assert not alike(mine[0], theirs[0])


def test_functions_that_ran_are_known():
    called()
    random(3, 3).softmax(1)
    assert {"exp", "log"} <= called()
    random(3, 3).sum(1)
    assert not {"exp", "log"} & called()


def test_softmax_calls_the_functions_of_the_latest_session():
    x = random(50, 50)
    right = x.softmax(1)
    with patched("canary", functions=("exp",)):
        wrong = x.softmax(1)
        again = x.softmax(1)
        with kernels().through_python():
            assert torch.equal(wrong, x.softmax(1))
    assert torch.equal(wrong, again)
    assert not torch.equal(wrong, right)
    assert torch.equal(x.softmax(1), right)


def test_a_profile_sees_the_calls_in_python():
    x = random(30, 30)
    before = kernels().taken()
    with patched("repro", profile=True) as session:
        x @ x
        x.softmax(1)
    assert kernels().taken() == before
    rows = session.profile.rows("function")
    assert {"aten::mm", "aten::_softmax"} <= {row.key["function"] for row in rows}


def test_the_first_call_of_a_session_makes_way_for_the_next():
    x = random(3, 3)
    for call in (lambda: x**2, lambda: x @ x, lambda: x.sum(), lambda: x.softmax(1)):
        with patched("repro"):
            call()
            before = kernels().taken()
            call()
            assert kernels().taken() == before + 1


def test_every_call_can_go_through_python():
    code = """
import torch
from pytest_udftorch import patched
from pytest_udftorch.swap.contract.kernels import kernels
from pytest_udftorch.swap.overrides.switchboard import switchboard
with patched("repro"):
    torch.ones(2, 2) @ torch.ones(2, 2)
    print(switchboard.called("aten::mm", "CPU"), kernels.cache_info().currsize)
"""
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, direct.VARIABLE: "python"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.split() == ["Python", "0"]
    assert switchboard.called("aten::mm", "CPU") == "C++"


def test_a_build_that_fails_says_what_is_needed():
    said = str(KERNELS.failed("2.99.0", "no such header"))
    assert "2.99.0" in said
    assert "no such header" in said
    assert "headers" in said


def test_threads_call_while_sessions_open_and_close():
    x = random(40, 40)
    wanted = [x @ x, x.sum(0), x.softmax(1)]
    ended, wrong = threading.Event(), []

    def run():
        while not ended.is_set():
            found = [x @ x, x.sum(0), x.softmax(1)]
            if not all(map(torch.equal, found, wanted)):
                wrong.append(found)

    others = [threading.Thread(target=run) for _ in range(3)]
    for each in others:
        each.start()
    for _ in range(100):
        with patched("repro"):
            pass
    ended.set()
    for each in others:
        each.join()
    assert not wrong


def test_a_network_learns_the_same_with_and_without_python():
    def ended():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3),
            nn.Flatten(), nn.Linear(8 * 64, 32), nn.LayerNorm(32), nn.Linear(32, 5),
        )  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters())
        x, y = torch.randn(4, 3, 8, 8), torch.arange(4)
        for _ in range(3):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return nn.utils.parameters_to_vector(model.parameters())

    with kernels().through_python():
        wanted = ended()
    before = kernels().taken()
    assert torch.equal(ended(), wanted)
    assert kernels().taken() > before
