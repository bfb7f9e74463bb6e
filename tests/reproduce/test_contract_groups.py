# SPDX-License-Identifier: Apache-2.0
"""Products of groups, as routed layers call them: each group as if it were alone."""

from __future__ import annotations

import pytest
import torch

import pytest_udftorch

grouped = torch.ops.aten._grouped_mm


def example(dtype, rows=90, terms=96, columns=40, groups=4):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, terms, generator=generator).to(dtype)
    w = torch.randn(groups, terms, columns, generator=generator).to(dtype)
    return x, w, torch.tensor([30, 30, 71, 90], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_group_of_rows_is_a_product_of_its_own(dtype):
    x, w, ends = example(dtype)
    with pytest_udftorch.patched("repro"):
        found = grouped(x, w, ends)
        starts = [0, *ends.tolist()]
        for group, (start, end) in enumerate(zip(starts, ends.tolist(), strict=False)):
            assert torch.equal(found[start:end], x[start:end] @ w[group])
    stock = grouped(x, w, ends)
    assert (found.shape, found.stride(), found.dtype) == (stock.shape, stock.stride(), stock.dtype)
    torch.testing.assert_close(found, stock)


def test_a_row_does_not_depend_on_the_others_of_its_group():
    x, w, ends = example(torch.float32)
    with pytest_udftorch.patched("repro"):
        whole = grouped(x, w, ends)
        alone = grouped(x[40:41], w[2:3], torch.tensor([1], dtype=torch.int32))
    assert torch.equal(alone, whole[40:41])


def test_groups_of_columns_and_of_terms():
    x, w, ends = example(torch.float32)
    rows, columns = w.mT.contiguous(), x.T  # 4 × 40 × 96 by 96 × 90
    terms = torch.randn(90, 24, generator=torch.Generator().manual_seed(1))
    with pytest_udftorch.patched("repro"):
        by_columns, by_terms = grouped(rows, columns, ends), grouped(x.T, terms, ends)
        assert torch.equal(by_columns[:, 30:71], rows[2] @ columns[:, 30:71])
        assert torch.equal(by_terms[2], x.T[:, 30:71] @ terms[30:71])
    assert not by_terms[1].any()  # a group of no term
    torch.testing.assert_close(by_columns, grouped(rows, columns, ends))
    torch.testing.assert_close(by_terms[2], grouped(x.T, terms, ends)[2])


def test_rows_of_no_group_are_zeros():
    x, w, ends = example(torch.float32)
    with pytest_udftorch.patched("repro"):
        assert not grouped(x, w, ends - torch.tensor([0, 0, 0, 10]).int())[80:].any()


def test_gradients_are_those_of_stock_but_for_rounding():
    x, w, ends = example(torch.float32)
    found = []
    for library in ("repro", "std"):
        inputs = [t.detach().clone().requires_grad_() for t in (x, w)]
        with pytest_udftorch.patched(library):
            grouped(*inputs, ends).square().sum().backward()
        found.append([t.grad for t in inputs])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-3)


def test_what_stock_refuses_is_refused_with_its_words():
    x, w, ends = example(torch.float32)
    said = []
    for library in ("std", "repro"):
        with pytest_udftorch.patched(library), pytest.raises(RuntimeError) as raised:
            grouped(x, w, ends[:3])
        said.append(str(raised.value).splitlines()[0])
    assert said[0] == said[1]
