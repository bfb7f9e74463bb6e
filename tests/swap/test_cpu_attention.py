# SPDX-License-Identifier: Apache-2.0
"""Attention on the CPU under a session: blocked, with the session's functions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_udftorch import patched
from pytest_udftorch.swap import coverage
from pytest_udftorch.swap.cpu import attention, operators
from pytest_udftorch.swap.cpu.operators import cpu_operators
from pytest_udftorch.swap.overrides.switchboard import switchboard

ATEN = torch.ops.aten
FORWARD = getattr(ATEN, attention.FORWARD)
BACKWARD = getattr(ATEN, attention.BACKWARD)


def inputs(*shape, dtype=torch.float32, transposed=False):
    batch, heads, key_heads, queries, keys, size = shape
    make = torch.Generator().manual_seed(0)
    found = [
        torch.randn(batch, h, n, size, generator=make).to(dtype)
        for h, n in ((heads, queries), (key_heads, keys), (key_heads, keys), (heads, queries))
    ]
    if transposed:
        found = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in found]
    return found


def run(query, key, value, grad, **options):
    causal = options.pop("causal", False)
    out, logs = FORWARD(query, key, value, 0.0, causal, **options)
    return (out, logs, *BACKWARD(grad, query, key, value, out, logs, 0.0, causal, **options))


def wide(value):
    return value.double() if isinstance(value, torch.Tensor) else value


def check(given, **options):
    """Our results are like stock's, and about as close to those of float64."""
    theirs = run(*given, **options)
    exact = run(*map(wide, given), **{n: wide(v) for n, v in options.items()})
    with patched("corem"):
        ours = run(*given, **options)
    for one, other, best in zip(ours, theirs, exact, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        error, stocks = ((t.double() - best).abs().max().item() for t in (one, other))
        # The order of the sums differs, and half of a unit decides how a result is rounded.
        eps = torch.finfo(one.dtype).eps
        room = 8 * eps if one.dtype == torch.float32 else eps / 2
        assert error <= 1.1 * stocks + room * best.abs().max().item()
    return ours


SHAPES = {
    "one row": (1, 1, 1, 1, 5, 8),
    "odd": (2, 3, 3, 33, 47, 20),
    "grouped": (2, 6, 2, 40, 50, 16),
    "several blocks": (1, 2, 2, 800, 1100, 24),
    "more queries": (1, 2, 2, 300, 7, 16),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_forward_and_backward(shape, causal, dtype):
    check(inputs(*shape, dtype=dtype), causal=causal)


def test_transposed_inputs_and_a_scale():
    check(inputs(2, 3, 3, 33, 47, 20, transposed=True), scale=0.7)


@pytest.mark.parametrize(
    "shape", [(33, 600), (2, 1, 33, 600), (1, 3, 1, 600), (2, 3, 33, 1), (1, 1, 1, 600)], ids=str
)
def test_masks(shape):
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    check(inputs(2, 3, 3, 33, 600, 20), attn_mask=mask)


def test_a_row_without_keys_is_zero():
    mask = torch.zeros(33, 600)
    mask[3] = -math.inf
    mask[4, :550] = -math.inf
    out, _, grad, *_ = check(inputs(2, 3, 3, 33, 600, 20), attn_mask=mask)
    assert not out[:, :, 3].any()
    assert not grad[:, :, 3].any()


def test_nan_and_infinite_scores_stay_visible():
    query, key, value, _ = inputs(1, 1, 1, 4, 40, 8)
    query[0, 0, 1, 0], query[0, 0, 2] = math.nan, math.inf
    with patched("corem"):
        out, _ = FORWARD(query, key, value)
    assert out[0, 0, 1].isnan().all()
    assert out[0, 0, 2].isnan().all()
    assert out[0, 0, 0].isfinite().all()


def test_without_a_product_of_libtorch_it_is_composed(monkeypatch):
    monkeypatch.setattr(attention, "blas", lambda: 0)
    check(inputs(2, 6, 2, 40, 50, 16), causal=True)
    check(inputs(2, 3, 3, 33, 47, 20), attn_mask=torch.randn(33, 47))
    query, key, value, _ = inputs(2, 3, 3, 33, 47, 20)
    assert coverage(lambda: FORWARD(query, key, value)).complete


@pytest.mark.parametrize("threads", [1, 2])
def test_the_results_do_not_depend_on_the_number_of_threads(threads):
    given = inputs(2, 6, 2, 100, 150, 16)
    with patched("corem"):
        expected = run(*given, causal=True)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            for one, other in zip(run(*given, causal=True), expected, strict=True):
                assert torch.equal(one, other)
        finally:
            torch.set_num_threads(before)


def test_what_stock_refuses_has_stocks_words():
    query, key, value, _ = inputs(1, 2, 2, 8, 9, 16)
    with patched("corem"):
        with pytest.raises(RuntimeError, match="should have the same head size"):
            FORWARD(query, key[..., :8], value)
        with pytest.raises(RuntimeError, match="do not support dropout"):
            FORWARD(query, key, value, 0.1)
        with pytest.raises(RuntimeError, match="Attention mask is the same data type"):
            FORWARD(query, key, value, attn_mask=torch.ones(8, 9, dtype=torch.bool))


def test_float64_stays_stock():
    given = list(map(wide, inputs(1, 2, 2, 8, 9, 16)))
    before = run(*given)
    with patched("corem"):
        assert all(map(torch.equal, run(*given), before))


def test_gradients_agree_with_differences():
    query, key, value, grad = inputs(1, 2, 1, 6, 7, 8)
    with patched("corem"):
        out, logs = FORWARD(query, key, value, 0.0, True)
        found = BACKWARD(grad, query, key, value, out, logs, 0.0, True)
    for i, given in enumerate((query, key, value)):
        flat = given.double()
        for at in (0, 17, 33):
            sides = []
            for step in (1e-5, -1e-5):
                moved = flat.clone()
                moved.view(-1)[at] += step
                three = [wide(t) for t in (query, key, value)]
                three[i] = moved
                sides.append((FORWARD(*three, 0.0, True)[0] * grad.double()).sum())
            slope = (sides[0] - sides[1]) / 2e-5
            assert found[i].reshape(-1)[at].item() == pytest.approx(slope.item(), abs=1e-4)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_public_function_is_wholly_swapped(dropout):
    query, key, value, _ = inputs(1, 4, 4, 20, 30, 16)
    query.requires_grad_()

    def step():
        mask = torch.ones(20, 30, dtype=torch.bool).tril(5)
        for options in ({}, {"is_causal": True}, {"attn_mask": mask}):
            F.scaled_dot_product_attention(
                query, key, value, dropout_p=dropout, **options
            ).sum().backward()

    found = coverage(step)
    assert found.complete, found.text()
    flash = attention.FORWARD in {r.operator.partition("::")[2] for r in found.rows}
    assert flash == (dropout == 0.0)


def test_coverage_sees_attention_that_is_hidden(monkeypatch):
    query, key, value, _ = inputs(1, 4, 4, 20, 30, 16)
    monkeypatch.setattr(attention, "attention_kernels", lambda loops: {})
    cpu_operators.forget()  # sessions keep what they made
    found = coverage(lambda: F.scaled_dot_product_attention(query, key, value))
    cpu_operators.forget()
    assert found.share == 0.0
    with sdpa_kernel(SDPBackend.MATH):
        assert coverage(lambda: F.scaled_dot_product_attention(query, key, value)).share == 1.0


def test_a_profile_counts_in_the_operator():
    query, key, value, _ = inputs(1, 4, 4, 64, 64, 16)
    with patched("corem", profile="timed") as session:
        FORWARD(query, key, value)
    rows = session.profile.rows("operator", "function")
    found = {(r.key["operator"], r.key["function"]): r.elements for r in rows}
    name = f"aten::{attention.FORWARD}"
    assert found == {(name, "exp"): 4 * 64 * 64, (name, "log"): 4 * 64}


def test_it_is_overridden_and_given_back():
    names = (attention.FORWARD, attention.BACKWARD)
    before = [switchboard.called(f"aten::{n}", "CPU") for n in names]
    assert set(names) <= set(operators.overloads(frozenset(("exp",))))
    given = inputs(1, 2, 2, 20, 30, 16)
    results = run(*given)
    with patched("corem", functions=("exp",)):
        assert not torch.equal(run(*given)[0], results[0])
        assert before != [switchboard.called(f"aten::{n}", "CPU") for n in names]
    assert before == [switchboard.called(f"aten::{n}", "CPU") for n in names]
    assert all(map(torch.equal, run(*given), results))
