# SPDX-License-Identifier: Apache-2.0
"""Attention of the contract: a sequence has the same bits wherever in a row it lies."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import pytest_udftorch
from pytest_udftorch.swap.contract import attention as contract

HEADS, SIZE, LENGTH = 3, 24, 77


def tensors(rows=2, length=LENGTH, keys=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = (length, keys or length, keys or length)
    return [torch.randn(rows, HEADS, n, SIZE, generator=generator) for n in sizes]


def attended(q, k, v, mask, dtype=torch.float32):
    """Return what rows attend to, and the gradients of a loss that weighs places."""
    inputs = [t.detach().clone().to(dtype).requires_grad_() for t in (q, k, v)]
    with pytest_udftorch.patched("repro"):
        out = F.scaled_dot_product_attention(*inputs, mask)
        weights = torch.linspace(0.5, 1.5, v.shape[-1])
        visible = mask.any(-1, keepdim=True) if mask.dtype is torch.bool else 1.0
        (out.float() * visible * weights).sum().backward()
    return [out.detach(), *(t.grad for t in inputs)]


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).tril()[None, None]


def hidden(mask, how):
    """Return a mask as truth values, or as what is added to scores."""
    if how == "truth":
        return mask
    least = -math.inf if how == "infinite" else torch.finfo(torch.float32).min
    return torch.zeros(mask.shape).masked_fill_(~mask, least)


def padded(parts, pad):
    return [F.pad(t, (0, 0, pad, 0), value=0.25) for t in parts]


@pytest.mark.parametrize("pad", [1, 13, 64, 100])
@pytest.mark.parametrize("how", ["truth", "infinite", "least"])
def test_padding_in_front_changes_no_bit(pad, how):
    parts = tensors()
    alone = attended(*parts, hidden(causal(LENGTH), how))
    mask = F.pad(causal(LENGTH), (pad, 0, pad, 0))
    if how != "truth":  # a row in which every key is hidden would give what numbers give
        mask[..., :pad, :pad] = causal(pad)
    found = attended(*padded(parts, pad), hidden(mask, how))
    assert torch.equal(found[0][:, :, pad:], alone[0])
    if how == "truth":
        for a, b in zip(found[1:], alone[1:], strict=True):
            assert torch.equal(a[:, :, pad:], b)


def unlike(how, seed=0):
    """Queries, keys and values whose heads are of two sizes."""
    q, k, v = tensors(seed=seed)
    return [q, k, v[..., :17]] if how == "short values" else [q[..., :17], k[..., :17], v]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("how", ["short values", "long values"])
def test_heads_that_no_kernel_fuses_begin_at_the_first_key_too(how, inference):
    parts, pad = unlike(how), 13
    with torch.inference_mode(inference):
        alone = attended(*parts, causal(LENGTH)) if not inference else None
        with pytest_udftorch.patched("repro"):
            short = F.scaled_dot_product_attention(*parts, causal(LENGTH))
            behind = F.scaled_dot_product_attention(
                *padded(parts, pad), F.pad(causal(LENGTH), (pad, 0, pad, 0))
            )
    assert torch.equal(behind[:, :, pad:], short)
    if alone is not None:
        assert torch.equal(alone[0], short)
        true = attended(*(x.double() for x in parts), causal(LENGTH), torch.float64)
        for a, b in zip(alone, true, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["short values", "long values"])
def test_the_weights_of_heads_that_no_kernel_fuses_are_stocks(how):
    call = torch.ops.aten._scaled_dot_product_attention_math
    parts = unlike(how)
    with pytest_udftorch.patched("repro"):
        out, weights = call(*parts, hidden(causal(LENGTH), "infinite"))
        plain = parts[0] @ parts[1].mT / math.sqrt(parts[0].shape[-1])
    plain = plain.masked_fill(~causal(LENGTH), -math.inf).softmax(-1)
    torch.testing.assert_close(weights, plain)
    torch.testing.assert_close(out, plain @ parts[2])


@pytest.mark.parametrize("rows", [(1, HEADS, LENGTH), (3, 1, LENGTH), (HEADS, 1), (LENGTH,)])
def test_a_mask_that_learns_changes_no_bit_and_gets_its_gradient(rows):
    """Torch fuses it where nobody asks for gradients, and composes it in training."""
    parts = [*tensors(3), torch.randn(*rows, LENGTH, generator=torch.Generator().manual_seed(4))]
    found = {}
    for dtype in (torch.float32, torch.float64):
        *inputs, mask = (t.clone().to(dtype).requires_grad_() for t in parts)
        with pytest_udftorch.patched("repro"):
            out = F.scaled_dot_product_attention(*inputs, mask * 1)
            (out * torch.linspace(0.5, 1.5, SIZE, dtype=dtype)).sum().backward()
        found[dtype] = [out.detach(), *(t.grad for t in (*inputs, mask))]
    with pytest_udftorch.patched("repro"):
        assert torch.equal(F.scaled_dot_product_attention(*parts), found[torch.float32][0])
    for a, b in zip(*found.values(), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


def test_how_a_batch_lies_in_memory_changes_no_bit():
    q, k, v = tensors()
    with pytest_udftorch.patched("repro"):
        usual = F.scaled_dot_product_attention(q, k, v)
        turned = F.scaled_dot_product_attention(*(t.mT.contiguous().mT for t in (q, k, v)))
        shared = F.scaled_dot_product_attention(q, k[:1], v[:1])
        alone = F.scaled_dot_product_attention(q[:1], k[:1], v[:1])
    assert torch.equal(turned, usual)
    assert torch.equal(shared[:1], alone)


@pytest.mark.parametrize("case", ["mask", "turned", "narrow"])
def test_gradients_of_what_torch_composes_lie_as_torchs_do(case):
    q, k, v = tensors()
    mask = torch.zeros(LENGTH, LENGTH, requires_grad=case == "mask")
    if case == "turned":
        q, k, v = (t.mT.contiguous().mT for t in (q, k, v))
    parts = [t.requires_grad_() for t in (q, k, v[..., :-1] if case == "narrow" else v)]

    def steps():
        out = F.scaled_dot_product_attention(*parts, mask * 1)
        return [t.stride() for t in (out, *torch.autograd.grad(out.sum(), parts))]

    with pytest_udftorch.patched("repro"):
        found = steps()
    assert found == steps()


def test_who_chooses_the_composition_gets_its_second_derivatives():
    parts = [t.requires_grad_() for t in tensors(length=5)]
    mask = torch.zeros(5, 5).requires_grad_()
    only = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with pytest_udftorch.patched("repro"), only:
        out = F.scaled_dot_product_attention(*parts, mask * 1)
        (first,) = torch.autograd.grad(out.square().sum(), mask, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), mask)
    assert second.any()


def test_padding_in_front_changes_bits_without_the_rule(monkeypatch):
    monkeypatch.setattr(contract, "_first", lambda seen: None)
    parts, pad = tensors(), 13
    alone = attended(*parts, causal(LENGTH))
    found = attended(*padded(parts, pad), F.pad(causal(LENGTH), (pad, 0, pad, 0)))
    assert not torch.equal(found[0][:, :, pad:], alone[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_sequences_are_as_if_alone(dtype):
    lengths = [77, 50, 101]
    sequences = [tensors(1, n, seed=n) for n in lengths]
    packed = [torch.cat(parts, 2) for parts in zip(*sequences, strict=True)]
    mask = torch.block_diag(*(causal(n)[0, 0].float() for n in lengths)).bool()[None, None]
    found = attended(*packed, mask, dtype)
    start = 0
    for length, parts in zip(lengths, sequences, strict=True):
        alone = attended(*parts, causal(length), dtype)
        for a, b in zip(found, alone, strict=True):
            assert torch.equal(a[:, :, start : start + length], b)
        start += length


def test_a_window_that_slides_is_the_same_with_all_keys_and_with_its_own():
    window = 20
    q, k, v = tensors()
    places = torch.arange(LENGTH)
    mask = causal(LENGTH) & (places[:, None] - places[None, :] < window)
    whole = attended(q, k, v, mask)[0]
    for place in (5, 20, 70):
        near = slice(max(place - window + 1, 0), place + 1)
        seen = torch.ones(1, 1, 1, near.stop - near.start, dtype=torch.bool)
        one = attended(q[:, :, place : place + 1], k[:, :, near], v[:, :, near], seen)[0]
        assert torch.equal(one, whole[:, :, place : place + 1])


def test_rows_together_and_rows_one_by_one_have_the_same_bits():
    generator = torch.Generator().manual_seed(5)
    a, b = torch.randn(2, HEADS, 30, 90, generator=generator), tensors(keys=90)[1]
    first = torch.randint(0, 80, (2, 1, 30), generator=generator).expand(2, HEADS, 30)
    hides = torch.arange(90) < first.unsqueeze(-1)
    a = a.masked_fill(hides, 0.0)
    together = contract._product_from(a, b, first)
    assert torch.equal(together, contract._products_of_rows(a, b, first))
    for row in (0, 7, 29):
        start = int(first[1, 0, row])
        alone = contract._product(a[1:, :, row : row + 1, start:], b[1:, :, start:])
        assert torch.equal(together[1:, :, row : row + 1], alone)


def test_a_key_that_an_earlier_query_sees_keeps_the_gradient_of_that_query():
    """Of a mask that is no sequence's: the third row begins behind a key that the first sees."""
    parts = [t.double() for t in tensors(length=9)]
    mask = torch.rand(1, 1, 9, 9, generator=torch.Generator().manual_seed(2)) < 0.5
    mask[..., 0] = torch.arange(9) % 2 == 0
    found = attended(*(t.float() for t in parts), mask)
    inputs = [t.clone().requires_grad_() for t in parts]
    out = F.scaled_dot_product_attention(*inputs, mask)
    visible = mask.any(-1, keepdim=True)
    (out * visible * torch.linspace(0.5, 1.5, SIZE)).sum().backward()
    for a, b in zip(found, [out.detach(), *(t.grad for t in inputs)], strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_a_row_that_sees_nothing_stays_zero():
    q, k, v = tensors()
    mask = causal(LENGTH).clone()
    mask[..., 3, :] = False
    assert not attended(q, k, v, mask)[0][:, :, 3].any()


def test_a_key_whose_weight_is_no_zero_is_never_left_out():
    """A bias below what hides a key, in a row that has no other: the key counts."""
    q, k, v = tensors(length=5)
    mask = torch.full((1, 1, 5, 5), -70000.0)
    found = attended(q, k, v, mask)[0]
    plain = torch.softmax(q @ k.mT / math.sqrt(SIZE) - 70000.0, -1) @ v
    torch.testing.assert_close(found, plain, rtol=0.05, atol=0.05)
    assert found.abs().min() > 0
