# SPDX-License-Identifier: Apache-2.0
"""Weighted sums of rows in bfloat16: the scalar loop that is the contract, and every CPU level."""

from __future__ import annotations

import collections
import math

import numpy as np
import pytest
import torch

from pytest_udftorch.swap.contract.native import contract
from tests.reproduce.spoiled import SPOILED
from tests.reproduce.test_contract_exact import BUILDS, CHUNK, LEVELS, made, same

#: The largest integer of two digits, and the least exponent of a unit.
LARGEST, LEAST = 32_639, -140


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# What the clause says, in NumPy ------------------------------------------------------------------


def unit_of(largest):
    """The exponents of the least powers of two in which numbers round to two digits."""
    exponent = np.frexp(largest)[1] - 15
    exponent += np.rint(np.ldexp(largest, -exponent)) > LARGEST
    return np.where(largest == 0, LEAST, np.maximum(exponent, LEAST)).astype(np.int64)


def split(x):
    high = np.floor((x + 128) / 256)
    return high, x - 256 * high


def chunk(w, v):
    """The sums of a chunk in float32, of weights (m, k) and values (k, n) in float64."""
    w = np.where(np.abs(w) < 2.0**-126, 0.0, w)
    bad = ~np.isfinite(v).all(1)
    v = np.where(bad[:, None], 0.0, v)
    of_rows = unit_of(np.abs(v).max(1))
    broken = (~np.isfinite(w) | ((w != 0) & bad)).any(1)
    w = np.where(broken[:, None], 0.0, w)
    unit = unit_of(np.abs(np.ldexp(w, of_rows)).max(1))
    broken |= unit > 127
    x, y = np.rint(np.ldexp(w, of_rows - unit[:, None])), np.rint(np.ldexp(v, -of_rows[:, None]))
    (xh, xl), (_, yl) = split(x), split(y)
    upper, lower = xh @ y + xl @ (y - yl) / 256, xl @ yl
    total = upper.astype("f") * np.float32(256) + lower.astype("f")
    with np.errstate(over="ignore", under="ignore"):
        found = np.ldexp(total.astype("d"), unit[:, None]).astype("f")
    return np.where(broken[:, None], np.float32(np.nan), found)


def expected(w, v):
    """Weighted sums by the clause, from exact sums in NumPy."""
    w, v = w.double().numpy(), v.double().numpy()
    starts = range(0, w.shape[1], CHUNK)
    parts = [chunk(w[:, at : at + CHUNK], v[at : at + CHUNK]) for at in starts]
    with np.errstate(all="ignore"):
        while len(parts) > 1:
            pairs = [one + other for one, other in zip(parts[::2], parts[1::2], strict=False)]
            parts = [*pairs, *parts[2 * len(pairs) :]]
    return torch.from_numpy(parts[0])


# What is done to some weights, and to some rows of values.


def _scaled(exponent):
    def spoil(x):
        x[0] = (x[0].double() * 2.0**exponent).to(x.dtype)

    return spoil


def _hidden(w):
    w[:, w.shape[1] // 2 :] = 0.0
    w[-1] = -0.0


def _carry(x):
    x[0] = 255 / 256


def _tie(x):
    x.fill_(0.0)
    x[0, 0] = 2 - 2.0**-7 - 2.0**-15  # 32,639.5 units of its own, to the even 32,640
    x[-1, -1] = 2 - 2.0**-7 - 2.0**-14


def _nan(x):
    x[0, x.shape[1] // 2] = math.nan


def _infinity(x):
    x[-1, -1] = -math.inf


def _spread(x):
    x *= torch.exp2(torch.randint(-60, 60, x.shape).float()).to(x.dtype)


def _vast(x):
    x *= 2.0**126


OF_WEIGHTS = (
    lambda w: None, _hidden, _scaled(-126), _scaled(126), _scaled(-140), _carry, _tie, _nan,
    _infinity, _spread, _vast, lambda w: w.copy_((8 * w).softmax(1)),
)  # fmt: skip


def _outlier(v):
    v[:, v.shape[1] // 3] *= 1000


def _zeros(v):
    v[0] = 0.0
    v[-1, ::2] = -0.0


OF_VALUES = (
    lambda v: None, _zeros, _scaled(-130), _scaled(124), _carry, _nan, _infinity, _outlier, _spread,
    _vast,
)  # fmt: skip


def factors(case):
    """Random weights and values of a case: shapes, layouts, and what is special about them."""
    torch.manual_seed(case)
    m, n, k = (int(torch.randint(1, most, ())) for most in ((10, 40)[case % 2], 70, 1300))
    if case % 7 == 0:
        k = (1, 2, 3, 4, 5, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK)[case // 7 % 9]
    w, v = torch.randn(m, k), torch.randn(k, n).bfloat16()
    OF_WEIGHTS[case % len(OF_WEIGHTS)](w)
    OF_VALUES[case // len(OF_WEIGHTS) % len(OF_VALUES)](v)
    if case % 3 == 1:
        w = w.t().contiguous().t()
    if case % 5 == 1:
        v = v.t().contiguous().t()
    if case % 4 == 1:  # no key with an infinity or NaN has weight
        w = torch.where(v.isfinite().all(1), w, 0.0)
    return w, v


@pytest.mark.parametrize("cases", [range(480), pytest.param(range(50_000), marks=pytest.mark.slow)])
def test_kernels_of_every_level_have_the_bits_of_the_clause(cases):
    wrong = collections.Counter()
    for case in cases:
        w, v = factors(case)
        want = expected(w, v)
        given = w[None], v[None]
        wrong.update(b for b in BUILDS if not same(made(b).weighted(*given)[0], want))
        if case % 10 == 0:
            found = made(LEVELS[-1]).weighted(w[None, :3], v[None], reference=True)[0]
            wrong["reference"] += not same(found, want[:3])
    assert +wrong == {}


@pytest.mark.parametrize(
    "defines", [SPOILED, pytest.param(("-DEXACT_CHUNK=256",), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("reference", [False, True])
def test_one_unit_and_shorter_chunks_show(defines, reference):
    other = contract(defines=defines)
    w, v = torch.randn(3, 1300), torch.randn(1300, 20).bfloat16()
    assert not same(other.weighted(w[None], v[None], reference=reference)[0], expected(w, v))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("threads", [1, 2])
def test_batches_and_threads(build, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count, m, n in ((3, 1, 64), (5, 4, 200), (1, 300, 40), (2, 150, 5)):
            w, v = torch.randn(count, m, 700), torch.randn(count, 700, n).bfloat16()
            found = made(build).weighted(w, v)
            assert all(same(one, expected(x, y)) for one, x, y in zip(found, w, v, strict=True))
    finally:
        torch.set_num_threads(before)


def test_no_terms_make_zeros():
    found = contract().weighted(torch.empty(2, 3, 0), torch.empty(2, 0, 4).bfloat16())
    assert same(found, torch.zeros(2, 3, 4))


def test_a_row_without_weight_does_not_matter_and_one_with_weight_does():
    w, v = torch.rand(1, 5, 600), torch.randn(1, 600, 30).bfloat16()
    w[:, :, 77] = 0.0
    w[:, 4, 77] = 1e-30
    whole = contract().weighted(w, v)
    for number in (math.nan, math.inf, 3e38):
        v[0, 77, 3] = number
        found = contract().weighted(w, v)
        assert same(found[0, :4], whole[0, :4])
        assert not same(found[0, 4], whole[0, 4])


def test_a_row_of_zeros_changes_no_bit_of_the_others():
    w, v = torch.rand(1, 5, 600), torch.randn(1, 600, 30).bfloat16() * 2.0**-20
    v[0, 77] = 0.0
    without = w.clone()
    without[..., 77] = 0.0
    assert same(contract().weighted(w, v), contract().weighted(without, v))


def test_few_terms_are_right():
    """Where integers hold all digits, sums are exact and rounded once."""
    w = torch.randint(1, 256, (1, 40, 500)).float() / 256
    v = torch.rand(1, 500, 30).bfloat16() + 1
    exact = w.double() @ v.double()
    assert torch.allclose(contract().weighted(w, v).double(), exact, rtol=2**-23, atol=0)
