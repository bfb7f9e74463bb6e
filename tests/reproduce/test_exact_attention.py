# SPDX-License-Identifier: Apache-2.0
"""Attention in bfloat16 under ``repro``: exact products and weighted sums, in C++ and in Python."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.swap.contract import attention as composition
from pytest_udftorch.swap.contract.kernels import kernels
from pytest_udftorch.swap.contract.native import contract
from tests.reproduce.test_contract_exact import BUILDS, made, same

SIZE = 24


@pytest.fixture(scope="module", autouse=True)
def _session():
    with patched("repro"):
        F.softmax(torch.ones(3), 0)  # the first call of a session asks Python for the contract
        yield


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def tensors(queries, keys=None, *, samples=2, heads=3, of_keys=None, size=SIZE):
    """Queries, keys, values and a gradient of the result, in bfloat16."""
    of_keys, keys = of_keys or heads, keys or queries
    shapes = ((heads, queries), (of_keys, keys), (of_keys, keys), (heads, queries))
    return [torch.randn(samples, *shape, size).bfloat16() for shape in shapes]


def attended(q, k, v, grad, **how):
    """The result of attention, and its gradients."""
    inputs = [t.detach().requires_grad_() for t in (q, k, v)]
    out = F.scaled_dot_product_attention(*inputs, enable_gqa=q.shape[1] != k.shape[1], **how)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def equal(these, those):
    return [same(a, b) and a.stride() == b.stride() for a, b in zip(these, those, strict=True)]


def both(*given, taken=2, **how):
    """What C++ gives, after a comparison with what Python does."""
    before = kernels().taken()
    found = attended(*given, **how)
    assert kernels().taken() - before == taken
    with kernels().through_python():
        assert equal(attended(*given, **how), found) == [True] * 4
    return found


def by_places(x):
    """The same numbers, with heads beside each other at each place."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


CALLS = {
    "small": ((5,), {}),
    "chunks": ((530, 1100), {"samples": 1, "heads": 1}),
    "causal": ((600,), {"samples": 1, "heads": 2}),
    "more keys": ((70, 130), {}),
    "more queries": ((130, 70), {}),
    "shared heads": ((90,), {"heads": 6, "of_keys": 2}),
    "one query": ((1, 600), {"heads": 4, "of_keys": 1}),
    "one key": ((3, 1), {}),
    "large heads": ((40,), {"size": 600, "heads": 1}),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_kernels_have_the_bits_of_the_composition(name, threads):
    sizes, named = CALLS[name]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        given = tensors(*sizes, **named)
        found = both(*given, is_causal=name == "causal")
        spread = [by_places(x) for x in given]
        assert all(map(same, both(*spread, is_causal=name == "causal"), found))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("build", BUILDS)
def test_every_level_has_the_same_bits(build):
    given = tensors(150, 540, samples=1)
    wanted = attended(*given)
    try:
        kernels().use(made(build))
        assert equal(both(*given), wanted) == [True] * 4
    finally:
        kernels().use(contract())


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(70, 90), (2, 1, 70, 90), (1, 3, 1, 90), (1, 1, 70, 1)])
def test_masks(dtype, shape):
    mask = torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.rand(shape) < 0.7
    mask[..., 0] = True
    both(*tensors(70, 90), attn_mask=mask)


@pytest.mark.parametrize("heads", [1, 8])
def test_masks_of_one_query_whose_heads_share_keys(heads):
    mask = torch.rand(2, heads, 1, 90) < 0.7
    mask[..., 0] = True
    both(*tensors(1, 90, heads=8, of_keys=2), attn_mask=mask)


def test_numbers_beyond_the_usual():
    given = tensors(40)
    for x in given[1:]:
        x[0, 0] *= 2.0**100
        x[0, 1] *= 2.0**-120
        x[1, 0, 3] = 0.0
        x[..., 5] *= 1000
    found = both(*given)
    assert any(x.isfinite().all() for x in found)
    given[2][1, 1, 7, 3] = math.nan
    given[1][1, 2, 9, 1] = math.inf
    assert both(*given)[0].isnan().any()


def test_another_scale_and_another_rounding_show(monkeypatch):
    given = tensors(90)
    assert not any(equal(both(*given, scale=0.3), both(*given, scale=0.3 + 2**-9)))
    found = both(*given)
    zeroed = composition._zeroed
    monkeypatch.setattr(composition, "_zeroed", lambda x, unseen: zeroed(x, unseen) * (1 + 2**-20))
    with kernels().through_python():
        assert equal(attended(*given), found) == [True, False, False, True]


# What the clause promises -------------------------------------------------------------------------


def test_a_hidden_key_changes_nothing_even_if_it_is_infinite():
    q, k, v, grad = tensors(150)
    whole = both(q, k, v, grad, is_causal=True)
    for x in (k, v):
        x[:, :, 100:] = math.nan
    out, of_query, *_ = both(q, k, v, grad, is_causal=True)
    assert same(out[:, :, :100], whole[0][:, :, :100])
    assert same(of_query[:, :, :100], whole[1][:, :, :100])
    assert out[:, :, 100:].isnan().all()


@pytest.mark.parametrize("keys", [150, 600])
def test_a_query_that_is_no_number_changes_no_gradient_of_keys_behind_it(keys):
    q, k, v, grad = tensors(150, keys)
    whole = both(q, k, v, grad, is_causal=True)
    q[:, :, 10] = math.nan
    found = both(q, k, v, grad, is_causal=True)
    for a, b in zip(found[2:], whole[2:], strict=True):
        assert same(a[:, :, 11:], b[:, :, 11:])
        assert a[:, :, :11].isnan().all()


def test_a_sample_is_the_same_alone_and_in_a_batch():
    given = tensors(130, samples=8)
    together = attended(*given, is_causal=True)
    alone = attended(*(x[5:6] for x in given), is_causal=True)
    assert all(same(a, b[5:6]) for a, b in zip(alone, together, strict=True))


def test_a_sequence_begins_as_its_beginning_does():
    given = tensors(700, samples=1)
    whole = attended(*given, is_causal=True)
    start = attended(*(x[:, :, :600] for x in given), is_causal=True)
    for a, b in zip(start[:2], whole, strict=False):
        assert same(a, b[:, :, :600])


def test_decoding_with_a_cache_has_the_bits_of_the_whole_sequence():
    q, k, v, _ = tensors(540, samples=1, heads=4, of_keys=2)
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    for place in (0, 1, 63, 64, 500, 511, 512, 539):
        seen = slice(place + 1)
        one = F.scaled_dot_product_attention(
            q[:, :, place : place + 1], k[:, :, seen], v[:, :, seen], enable_gqa=True
        )
        assert same(one, whole[:, :, place : place + 1])


@pytest.mark.parametrize("pad", [1, 64, 500])
def test_padding_in_front_changes_no_bit(pad):
    given = tensors(77)
    mask = torch.ones(77, 77, dtype=torch.bool).tril()
    alone = attended(*given, attn_mask=mask[None, None])
    padded = [F.pad(x, (0, 0, pad, 0), value=0.25) for x in given]
    padded[3][:, :, :pad] = 0.0
    found = attended(*padded, attn_mask=F.pad(mask, (pad, 0, pad, 0))[None, None])
    assert all(same(a[:, :, pad:], b) for a, b in zip(found, alone, strict=True))


def test_half_keeps_the_clause_of_float32():
    q, k, v, _ = (x.half() for x in tensors(70))
    wide = F.scaled_dot_product_attention(q.float(), k.float(), v.float())
    assert same(F.scaled_dot_product_attention(q, k, v), wide.half())


def test_mixed_dtypes_are_refused_as_stock_does():
    q, k, v, _ = tensors(7)
    with pytest.raises(RuntimeError, match="dtype"):
        F.scaled_dot_product_attention(q, k.float(), v)


@pytest.mark.parametrize("outlier", [1, 1000])
def test_results_are_near_those_of_float64(outlier):
    given = tensors(600, samples=1, size=64)
    given[2][..., 3] *= outlier
    exact = attended(*(x.double() for x in given), is_causal=True)
    for a, b in zip(both(*given, is_causal=True), exact, strict=True):
        assert (a - b).norm() < 2**-8 * b.norm()
