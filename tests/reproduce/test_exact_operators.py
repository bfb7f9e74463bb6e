# SPDX-License-Identifier: Apache-2.0
"""Operators of ``repro`` that multiply bfloat16 take the clause of exact products."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.swap.contract.kernels import kernels
from pytest_udftorch.swap.contract.native import contract
from tests.reproduce.test_contract_exact import expected, same

PAGE = Path(__file__).parents[2] / "docs" / "reproduce" / "contract_exact.md"


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def calls(a, b, bias):
    """Every operator that multiplies; a (9, 696), b (696, 32) and a bias of 32."""
    ends = torch.tensor([4, 9], dtype=torch.int32, device=a.device)
    stacked = torch.stack([b, b])
    return {
        "mm": a @ b,
        "addmm": torch.addmm(bias, a, b),
        "addmm, factors": torch.addmm(bias, a, b, beta=0.5, alpha=2.0),
        "linear": F.linear(a[None], b.t().contiguous(), bias)[0],
        "bmm": torch.bmm(a[None], b[None])[0],
        "baddbmm": torch.baddbmm(bias, a[None], b[None])[0],
        "mv": torch.mv(b.t(), a[0]),
        "dot": torch.dot(b[:, 3], a[0]),
        "addmv": torch.addmv(bias, b.t(), a[0]),
        "grouped_mm": F.grouped_mm(a, stacked, offs=ends),
    }


def wanted(a, b, bias):
    product, addend = expected(a, b), bias.float()
    found = {
        "mm": product, "addmm": product + addend, "addmm, factors": product * 2 + addend * 0.5,
        "linear": product + addend, "bmm": product, "baddbmm": product + addend, "mv": product[0],
        "dot": product[0, 3], "addmv": product[0] + addend, "grouped_mm": product,
    }  # fmt: skip
    return {name: x.bfloat16() for name, x in found.items()}


@pytest.mark.parametrize("python", [False, True])
def test_operators_round_the_clause_once(python):
    a, b, bias = (torch.randn(s).bfloat16() for s in ((9, 696), (696, 32), (32,)))
    want = wanted(a, b, bias)
    with patched("repro"):
        if python:
            with kernels().through_python():
                found = calls(a, b, bias)
        else:
            before = kernels().taken()
            found = calls(a, b, bias)
            assert kernels().taken() > before
    assert {name for name, x in found.items() if not same(x, want[name])} == set()
    # Stock adds in an order of its own.
    assert any(not same(x, want[name]) for name, x in calls(a, b, bias).items())


def test_gradients_are_products_of_the_clause():
    x, weight, grad = (torch.randn(s).bfloat16() for s in ((40, 64), (48, 64), (40, 48)))
    with patched("repro"):
        given, of = x.clone().requires_grad_(), weight.clone().requires_grad_()
        F.linear(given, of).backward(grad)
    assert same(given.grad, expected(grad, weight).bfloat16())
    assert same(of.grad, expected(grad.t(), x).bfloat16())


def test_half_keeps_the_clause_of_float32():
    a, b = torch.randn(9, 700).half(), torch.randn(700, 5).half()
    with patched("repro"):
        assert same(a @ b, contract().mm(a.float(), b.float()).half())


def test_a_compiled_product_has_the_bits_of_the_eager_one():
    a, b, bias = (torch.randn(s).bfloat16() for s in ((9, 700), (700, 33), (33,)))

    def function(x, y, z):
        return torch.relu(torch.addmm(z, x, y)) @ y.t()

    with patched("repro"):
        assert same(torch.compile(function)(a, b, bias), function(a, b, bias))


def test_the_page_is_true():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    exec(code, {})
    with pytest.raises(AssertionError):  # the control: float32 has an order
        exec(code.replace(".bfloat16()", ""), {})
