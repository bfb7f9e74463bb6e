# SPDX-License-Identifier: Apache-2.0
"""Of equal numbers the first comes first, in what sorts and chooses by size."""

from __future__ import annotations

import pytest
import torch

from pytest_udftorch import patched

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8]

#: What chooses by size, of a tensor, in a direction.
CALLS = {
    "argsort": lambda x, dim: x.argsort(dim, descending=True),
    "kthvalue": lambda x, dim: x.kthvalue(2, dim),
    "median": lambda x, dim: x.median(dim),
    "mode": lambda x, dim: x.mode(dim, keepdim=True),
    "nanmedian": lambda x, dim: x.nanmedian(dim, keepdim=True),
    "sort": lambda x, dim: x.sort(dim),
    "sort into": lambda x, dim: torch.sort(x, dim, out=(x.new_empty(0), x.new_empty(0).long())),
    "topk": lambda x, dim: x.topk(2, dim),
    "topk, least": lambda x, dim: x.topk(2, dim, largest=False, sorted=False),
    "topk into": lambda x, dim: torch.topk(x, 2, dim, out=(x.new_empty(0), x.new_empty(0).long())),
}


def numbers(*shape, dtype=torch.float32):
    """Few numbers, so that many are equal; with NaN, infinities and zeros of both signs."""
    x = torch.randint(0, 6, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    if dtype.is_floating_point:
        odd = torch.tensor([0.0, -0.0, 1.5, torch.nan, torch.inf, -torch.inf], dtype=dtype)
        x = odd[x.long()]
    return x


def parts(found):
    return (found,) if isinstance(found, torch.Tensor) else found


def written(x, dim, descending=False):
    """Return where numbers stand in the order of Python's sort, which keeps that of equal ones."""
    rows = x.movedim(dim, -1).double()
    keys = rows.nan_to_num(nan=1e300, posinf=1e299, neginf=-1e299) + 0.0
    keys = -keys if descending else keys
    order = [
        sorted(range(len(r)), key=r.__getitem__) for r in keys.reshape(-1, rows.shape[-1]).tolist()
    ]
    return torch.tensor(order).view(rows.shape).movedim(-1, dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_the_first_of_equal_numbers_comes_first(dim, dtype):
    x = numbers(33, 40, dtype=dtype)
    up, down = written(x, dim), written(x, dim, descending=True)
    with patched("repro"):
        assert torch.equal(x.sort(dim).indices, up)
        assert torch.equal(x.argsort(dim, descending=True), down)
        assert torch.equal(x.topk(9, dim).indices, down.narrow(dim, 0, 9))
        assert torch.equal(x.topk(9, dim, largest=False).indices, up.narrow(dim, 0, 9))
        assert torch.equal(x.kthvalue(7, dim).indices, up.select(dim, 6))
    assert not torch.equal(x.topk(9, dim).indices, down.narrow(dim, 0, 9))  # torch's own


@pytest.mark.parametrize("dim", [0, 1])
def test_what_stands_in_the_middle(dim):
    x = torch.tensor([[3.0, torch.nan, 1.0], [2.0, torch.nan, 2.0], [2.0, 1.0, 2.0]])
    x = x if dim else x.T.contiguous()
    with patched("repro"):
        assert x.median(dim).indices.tolist() == [1, 1, 0]
        assert x.nanmedian(dim).indices.tolist() == [2, 0, 0]
        assert x[:, 2:].median(1).indices.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_there_most_often(dtype):
    x = torch.tensor([[2, 1, 2, 1, 0], [3, 3, 0, 0, 0], [4, 3, 2, 1, 0]], dtype=dtype)
    with patched("repro"):
        found = x.mode(-1)
        assert found.values.tolist() == [1, 0, 0]
        assert found.indices.tolist() == [1, 2, 4]
        assert x[:, :1].mode(0, keepdim=True).indices.tolist() == [[0]]


@pytest.mark.parametrize("name", CALLS)
def test_values_and_layouts_are_stocks(name):
    for x in (numbers(6, 8), numbers(8, 6).mT, numbers(6, 8, dtype=torch.int64), numbers(2, 2)):
        for dim in (0, 1):
            stock = CALLS[name](x, dim)
            with patched("repro"):
                found = CALLS[name](x, dim)
            for one, other in zip(parts(stock), parts(found), strict=True):
                assert (one.shape, one.stride(), one.dtype) == (
                    other.shape, other.stride(), other.dtype
                )  # fmt: skip
            if name not in ("argsort", "mode"):  # torch's own mode has no order for NaN
                (one, *_), (other, *_) = stock, found
                assert torch.equal(one.nan_to_num(9.0), other.nan_to_num(9.0))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: x.topk(9), RuntimeError),
        (lambda x: x.sort(5), IndexError),
        (lambda x: x.kthvalue(0), RuntimeError),
        (lambda x: x[:0].mode(0), IndexError),
    ],
)
def test_what_torch_refuses_is_refused_with_its_words(call, error):
    with pytest.raises(error) as stock:
        call(torch.ones(2, 3))
    with patched("repro"), pytest.raises(error) as found:
        call(torch.ones(2, 3))
    assert str(found.value) == str(stock.value)


def test_nothing_and_single_numbers_are_taken():
    with patched("repro"):
        assert torch.tensor(2.0).sort().indices.item() == 0
        assert torch.tensor(2.0).topk(1).values.item() == 2.0
        assert torch.ones(0, 3).topk(2).values.shape == (0, 2)
        assert torch.ones(2, 3).topk(0).values.shape == (2, 0)
        assert torch.tensor(2.0).median(0).values.item() == 2.0


@pytest.mark.parametrize("name", [name for name in CALLS if "into" not in name])
def test_compiled_code_chooses_the_same(name):
    x = numbers(6, 40)
    with patched("repro"):
        for one, other in zip(
            parts(torch.compile(CALLS[name])(x, -1)), parts(CALLS[name](x, -1)), strict=True
        ):
            assert torch.equal(one.nan_to_num(9.0), other.nan_to_num(9.0))


def test_gradients_go_where_the_numbers_came_from():
    x = torch.tensor([1.0, 2.0, 2.0, 2.0], requires_grad=True)
    with patched("repro"):
        (slope,) = torch.autograd.grad(x.topk(2).values.sum(), x)
    assert slope.tolist() == [0.0, 1.0, 1.0, 0.0]
