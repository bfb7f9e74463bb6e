# SPDX-License-Identifier: Apache-2.0
"""Exact products: the scalar loop that is the contract, and the kernels of every CPU level."""

from __future__ import annotations

import collections
import functools
import math

import numpy as np
import pytest
import torch

from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level
from tests.reproduce.spoiled import SPOILED

CHUNK, BROKEN = 512, 1 << 20
LEVELS = ["baseline", "avx2"] + ["avx512"] * (resolve_cpu_level(None) == "avx512")
#: A level, and macros; without VNNI a CPU of AVX-512 multiplies pairs of 16 bits.
BUILDS = {
    **{level: (level, ()) for level in LEVELS},
    **({"avx512 without VNNI": ("avx512", ("-DEXACT_PLAIN",))} if "avx512" in LEVELS else {}),
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@functools.cache
def made(build):
    return contract(*BUILDS[build])


# What the clause says, in NumPy ------------------------------------------------------------------


def digits(x):
    """Whole numbers of rows (rows, chunks, 512) and the exponents of their units, from bits."""
    rows, k = x.shape
    bits = np.zeros((rows, -(-k // CHUNK) * CHUNK), np.uint16)
    bits[:, :k] = x.contiguous().view(torch.int16).numpy().view(np.uint16)
    bits = bits.reshape(rows, -1, CHUNK)
    numbers = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    top = (bits & 0x7FFF).max(-1).astype(np.int64)
    unit = np.maximum((top + 1) >> 7, 1) - 141
    broken = top >= 0x7F80
    with np.errstate(invalid="ignore"):
        whole = np.rint(np.ldexp(numbers, -unit[..., None]))
    return np.where(broken[..., None], 0, whole), np.where(broken, BROKEN, unit)


def expected(a, b):
    """The product of two matrices in float32 by the clause, from exact sums in NumPy."""
    (x, v), (y, w) = digits(a), digits(b.t())
    parts = []
    for q in range(x.shape[1]):
        (xh, xl), (yh, yl) = (
            (np.floor((of + 128) / 256), of - 256 * np.floor((of + 128) / 256))
            for of in (x[:, q], y[:, q])
        )
        upper = xh @ y[:, q].T + xl @ yh.T
        low = (xl @ yl.T).astype(np.float32)
        total = upper.astype(np.float32) * np.float32(256) + low
        units = v[:, q, None] + w[None, :, q]
        with np.errstate(over="ignore", under="ignore"):
            found = np.ldexp(total.astype(np.float64), np.clip(units, -400, 400)).astype("f")
        parts.append(np.where(units >= BROKEN // 2, np.float32(np.nan), found))
    with np.errstate(all="ignore"):
        while len(parts) > 1:
            pairs = [one + other for one, other in zip(parts[::2], parts[1::2], strict=False)]
            parts = [*pairs, *parts[2 * len(pairs) :]]
    return torch.from_numpy(parts[0])


def same(x, y):
    """Whether bits are equal, but for those of NaNs."""
    wide = {2: torch.int16, 4: torch.int32}[x.element_size()]
    equal = x.contiguous().view(wide) == y.contiguous().view(wide)
    return (
        x.shape == y.shape and x.dtype == y.dtype and bool((equal | (x.isnan() & y.isnan())).all())
    )


#: What is done to some rows and columns of random factors.
def _subnormal(x):
    x[0] = (x[0].float() * 2.0**-130).bfloat16()


def _vast(x):
    x[0] = (x[0].float() * 2.0**124).bfloat16()


def _zeros(x):
    x[0] = 0.0
    x[-1, ::2] = -0.0


def _carry(x):
    x[0] = 255 / 256


def _largest(x):
    x[0] = torch.finfo(torch.bfloat16).max


def _nan(x):
    x[0, x.shape[1] // 2] = math.nan


def _infinity(x):
    x[-1, -1] = -math.inf


def _outlier(x):
    x[:, x.shape[1] // 3] *= 1000


def _spread(x):
    x[0] = (x[0].float() * torch.exp2(torch.randint(-40, 40, x[0].shape).float())).bfloat16()


SPOILS = (
    lambda x: None, _subnormal, _vast, _zeros, _carry, _largest, _nan, _infinity, _outlier, _spread,
)  # fmt: skip


def factors(case):
    """Random factors of a case: shapes, layouts, and what is special about them."""
    torch.manual_seed(case)
    m, n, k = (int(torch.randint(1, most, ())) for most in ((14, 40)[case % 2], 50, 1300))
    if case % 7 == 0:
        k = (1, 2, 3, 4, 5, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK)[case // 7 % 9]
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
    SPOILS[case % len(SPOILS)](a)
    SPOILS[case // len(SPOILS) % len(SPOILS)](b)
    # Rows of the one and of the other may lie across in memory.
    if case % 3 == 1:
        a = a.t().contiguous().t()
    b = b.t().contiguous() if case % 2 else b.t()
    return a, b


@pytest.mark.parametrize(
    "cases", [range(600), pytest.param(range(100_000), marks=pytest.mark.slow)]
)
def test_kernels_of_every_level_have_the_bits_of_the_clause(cases):
    wrong = collections.Counter()
    for case in cases:
        a, b = factors(case)
        want = expected(a, b)
        wrong.update(build for build in BUILDS if not same(made(build).mm(a, b), want))
        if case % 10 == 0:
            wrong["reference"] += not same(made(LEVELS[-1]).mm(a, b, reference=True), want)
    assert +wrong == {}


@pytest.mark.parametrize(
    "defines", [SPOILED, pytest.param(("-DEXACT_CHUNK=256",), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("reference", [False, True])
def test_one_unit_and_shorter_chunks_show(defines, reference):
    other = contract(defines=defines)
    a, b = torch.randn(20, 1300).bfloat16(), torch.randn(1300, 20).bfloat16()
    assert not same(other.mm(a, b, reference=reference), expected(a, b))


def test_another_rounding_shows():
    """The sums of a chunk, joined first and rounded once, are other numbers than the clause's."""
    a, b = torch.rand(64, CHUNK).bfloat16(), torch.rand(CHUNK, 64).bfloat16()
    (x, v), (y, w) = digits(a), digits(b.t())
    once = (x[:, 0] @ y[:, 0].T).astype("f").astype("d")
    once = torch.from_numpy(np.ldexp(once, v[:, :1] + w[:, 0][None]).astype("f"))
    found = made(LEVELS[-1]).mm(a, b)
    assert not same(found, once)
    assert torch.allclose(found, once, rtol=2**-22)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("threads", [1, 2])
def test_batches_and_threads(build, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for m, n in ((3, 200), (150, 70), (300, 5)):
            a, b = torch.randn(3, m, 700).bfloat16(), torch.randn(3, 700, n).bfloat16()
            found = made(build).products(a, b)
            assert all(same(one, expected(x, y)) for one, x, y in zip(found, a, b, strict=True))
    finally:
        torch.set_num_threads(before)


def test_no_terms_make_zeros():
    found = contract().mm(torch.empty(3, 0).bfloat16(), torch.empty(0, 4).bfloat16())
    assert same(found, torch.zeros(3, 4))


# What the clause promises -------------------------------------------------------------------------


def test_nothing_depends_on_other_rows_or_on_the_order_of_terms():
    a, b = torch.randn(70, 1024).bfloat16(), torch.randn(1024, 40).bfloat16()
    whole = contract().mm(a, b)
    a[3] *= 1e4
    assert same(contract().mm(a, b)[4:], whole[4:])
    assert same(contract().mm(a[60:61], b), whole[60:61])
    # Within a chunk no order of terms is another one.
    order = torch.cat([torch.randperm(512), 512 + torch.randperm(512)])
    assert same(contract().mm(a[4:, order], b[order]), whole[4:])
    assert not same(made(LEVELS[-1]).mm(a[4:].float(), b.float()),
                    made(LEVELS[-1]).mm(a[4:, order].float(), b[order].float()))  # fmt: skip


def test_the_transposed_product_has_the_same_bits():
    a, b = torch.randn(30, 900).bfloat16(), torch.randn(900, 7).bfloat16()
    assert same(contract().mm(b.t(), a.t()).t(), contract().mm(a, b))


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_parts_of_whole_nodes_add_up_to_the_sum(parts):
    """Gradients of weights: micro-batches of 512 tokens times a power of two are nodes."""
    grad, x = torch.randn(4096, 9).bfloat16(), torch.randn(4096, 11).bfloat16()
    whole, size = contract().mm(grad.t(), x), 4096 // parts
    sums = [contract().mm(g.t(), v) for g, v in zip(grad.split(size), x.split(size), strict=True)]
    while len(sums) > 1:
        sums = [one + other for one, other in zip(sums[::2], sums[1::2], strict=True)]
    assert same(sums[0], whole)


def test_one_of_few_terms_is_right():
    """Where integers hold all digits, the result is the exact one, rounded once."""
    a, b = torch.rand(50, 500).bfloat16() + 1, torch.rand(500, 50).bfloat16() + 1
    exact = a.double() @ b.double()
    assert torch.allclose(contract().mm(a, b).double(), exact, rtol=2**-23, atol=0)
