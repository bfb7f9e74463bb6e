# SPDX-License-Identifier: Apache-2.0
"""What is inside of the contract has the bits of the CPU on a GPU: PyTorch's database of operators.

Each operator is called on both, forwards and backwards, in three dtypes. A call that lists nothing
as outside of the contract must give the same encodings.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.errors import UdfError
from pytest_udftorch.reproduce import within_contract

pytest.importorskip("triton")
if not torch.cuda.is_available():  # the samples take long to import
    pytest.skip("torch sees no CUDA device", allow_module_level=True)

from tests.operator_samples import EVERY, chosen, encodings, moved, tensors
from tests.reproduce.test_orders import CALLS as ORDERS
from tests.reproduce.test_orders import numbers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # the samples call what warns
]

SIXTEEN = [torch.bfloat16, torch.float16]

#: What torch says of a dtype, a layout or a call that it has not.
NONE = (RuntimeError, NotImplementedError, TypeError, ValueError)


def gradients(found, given):
    """Return the gradients by what the results were made of, which goes elsewhere, too.

    So an operator that is composed on one device alone shows: autograd adds the gradients of all
    uses one by one.
    """
    results = [t for t in tensors(found) if t.requires_grad and t.layout == torch.strided]
    wanted = [t for t in tensors(given) if t.requires_grad]
    if not results or not wanted:
        return []
    results += [t * 1 for t in wanted if t.layout == torch.strided]
    seed = torch.Generator().manual_seed(1)
    slopes = [torch.rand(t.shape, generator=seed).to(t.dtype).to(t.device) for t in results]
    return torch.autograd.grad(results, wanted, slopes, allow_unused=True)


def wide(values):
    """Return numbers in float64: torch gives statistics other dtypes on GPUs."""
    return [t.double() if t.is_floating_point() else t for t in tensors(values)]


def outcome(call, sample, device):
    """Return the results and gradients of a call on a device, and what is outside of it."""

    def once():
        x, args, kwargs = given = moved(sample, device)
        torch.manual_seed(0)
        found = call(x, *args, **kwargs)
        return encodings(wide(found)), encodings(wide(gradients(found, given)))

    with patched("repro"):
        with within_contract() as outside:
            first = once()
        if device == "cuda" and not outside.operators:
            # A watcher has all calls made in Python. Else two of a kind are recorded, then played.
            try:
                later = [once() for _ in range(4)]
            except NONE as error:
                raise AssertionError("a later call fails") from error
            assert all(found == first for found in later)
    return *first, list(outside.operators)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.formatted_name)
def test_what_is_inside_has_the_bits_of_the_cpu(op, dtype):
    if "as_strided" in op.name:
        pytest.skip("reads memory beside the tensor, which a copy on a GPU lacks")
    if dtype not in op.dtypes:
        pytest.skip("torch has no such kernel")  # so there are no bits to compare
    graded = op.supports_autograd and dtype in op.backward_dtypes
    different, outside, compared = [], set(), 0
    for i, sample in enumerate(chosen(op, dtype, limit=3, graded=graded)):
        try:
            one = outcome(op.op, sample, "cpu")
            other = outcome(op.op, sample, "cuda")
        except UdfError:
            raise
        except NONE:
            continue
        outside |= {*one[2], *other[2]}
        if one[2] or other[2]:
            continue
        compared += 1
        different += [
            (i, what)
            for what, a, b in zip(("result", "gradient"), one[:2], other[:2], strict=True)
            if a != b
        ]
    assert not different
    if not compared:
        pytest.skip(f"outside of the contract: {', '.join(sorted(outside)) or 'no such kernel'}")


# Equal numbers, and what meets in one place -------------------------------------------------

PLACES = torch.randint(0, 50, (3, 4_000), generator=torch.Generator().manual_seed(3))

#: What chooses among equal numbers, of rows.
CHOOSE = {
    **{
        name: (lambda x, call=call: call(x, -1))
        for name, call in ORDERS.items()
        if "into" not in name
    },
    "argmax": lambda x: x.argmax(-1),
    "cummax": lambda x: x.cummax(-1),
    "cummin": lambda x: x.cummin(-1),
    "first dimension": lambda x: (x.sort(0), x.topk(2, 0), x.argmin(0)),
    "max": lambda x: x.max(-1),
    "min": lambda x: x.min(-1),
    "searching": lambda x: torch.searchsorted(x.sort(-1).values, x[:, :100].contiguous()),
    "unique": lambda x: torch.unique(
        x.detach().nan_to_num(7.0), return_inverse=True, return_counts=True
    ),
}

#: What adds, multiplies or compares numbers that meet in one place; x has rows of 4,000 numbers.
MEET = {
    "embedding": lambda x, at: F.embedding(at, x.mT[:50]),
    "gather": lambda x, at: x.gather(-1, at),
    "index add": lambda x, at: x[:, :50].index_add(1, at[0], x),
    "index put": lambda x, at: x[0, :50].index_put((at,), x, accumulate=True),
    "index select": lambda x, at: x.index_select(1, at[0]),
    "indexing": lambda x, at: x[:, at],
    "put": lambda x, at: x[:, :50].put(at, x, accumulate=True),
    "scatter add": lambda x, at: x[:, :50].scatter_add(1, at, x),
    **{
        f"scatter {how}": lambda x, at, how=how: x[:, :50].scatter_reduce(1, at, x, how)
        for how in ("sum", "mean", "prod", "amax", "amin")
    },
    "take": lambda x, at: x.take(at),
}


def held(call, given):
    """Compare a call on both devices; skip what is said to be outside of the contract."""
    one, other = (outcome(call, given, device) for device in ("cpu", "cuda"))
    if one[2] or other[2]:
        pytest.skip(f"outside of the contract: {', '.join({*one[2], *other[2]})}")
    assert one[:2] == other[:2]


@pytest.mark.parametrize("length", [33, 1_000, 5_000])
@pytest.mark.parametrize("dtype", [*SIXTEEN, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("name", CHOOSE)
def test_the_same_of_equal_numbers_is_chosen(name, dtype, length):
    x = numbers(3, length, dtype=dtype)
    held(CHOOSE[name], (x.requires_grad_(x.is_floating_point()), (), {}))


@pytest.mark.parametrize("dtype", [*SIXTEEN, torch.float32], ids=str)
@pytest.mark.parametrize("name", MEET)
def test_what_meets_in_one_place(name, dtype):
    x = torch.randn(3, 4_000, generator=torch.Generator().manual_seed(1)).to(dtype)
    held(MEET[name], (x.requires_grad_(), (PLACES,), {}))
