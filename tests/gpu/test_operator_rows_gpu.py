# SPDX-License-Identifier: Apache-2.0
"""What a row says is inside of the contract on GPUs has the bits of the CPU there."""

from __future__ import annotations

import collections

import pytest
import torch

from pytest_udftorch import patched
from pytest_udftorch.swap.contract.outside import reason
from pytest_udftorch.swap.operators.overload import name_of
from pytest_udftorch.swap.operators.row import Held, Kind
from pytest_udftorch.swap.operators.rows import ROWS, find
from tests.operator_samples import QUICK, tensors, tree, walk, watching

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

#: Calls of single operators on a GPU, whose numbers lie on the CPU.
ON_THE_CPU = frozenset({"_local_scalar_dense", "item"})


def moved(values, device, dtype=None):
    def move(value):
        if isinstance(value, torch.device):
            return torch.device(device)
        if not isinstance(value, torch.Tensor):
            return dtype if dtype is not None and value is torch.float32 else value
        narrow = dtype is not None and value.dtype is torch.float32
        # Strides are kept: tensors of one layout stay alike.
        return value.detach().to(device, dtype if narrow else value.dtype, copy=True)

    return tree.tree_map(move, values)


def encodings(values):
    return [
        t.detach().cpu().contiguous().view({2: torch.int16, 4: torch.int32}[t.element_size()])
        .masked_fill(t.detach().cpu().isnan(), -1)
        for t in tensors(values)
        if t.is_floating_point() and t.element_size() < 8
    ]  # fmt: skip


class OnBoth:
    """Repeats each call on the CPU and on a GPU, and compares what both give.

    The walk is one of the CPU, so both get the same numbers. Calls that draw are compared by
    ``test_contract_cuda``: the state of the generator says what they draw.
    """

    def __init__(self, dtype, only=None):
        self.dtype, self.only = dtype, only
        self.count = collections.Counter()
        self.compared = set()
        self.lies = {}

    def __call__(self, func, args, kwargs, call):
        row, name = find(name_of(func)), str(func.name())
        contract = None if row is None else row.contract
        if row is None or row.name in ON_THE_CPU or (self.only and row.name != self.only):
            return call()
        held = contract.cuda if self.dtype is torch.float32 else contract.cuda16
        wrote = any(a.alias_info and a.alias_info.is_write for a in func._schema.arguments)
        drawn = row.kind in (Kind.DRAWS, Kind.ASKS) or not row.values
        if held is Held.NO or wrote or drawn or self.count[name] >= QUICK:
            return call()
        result = call()
        if not any(t.is_floating_point() and t.numel() for t in tensors(result)):
            return result
        given = (args, kwargs)
        if any(t.layout is not torch.strided for t in tensors((given, result))):
            return result
        try:
            here, there = (
                moved(given, device, None if self.dtype is torch.float32 else self.dtype)
                for device in ("cpu", "cuda")
            )
            one = func(*here[0], **here[1])
            other = func(*there[0], **there[1])
        except (RuntimeError, NotImplementedError):
            return result  # torch has no such kernel
        if reason(func, here, one) is not None or reason(func, there, other) is not None:
            return result
        self.count[name] += 1
        self.compared.add(row.name)
        # What a kernel for one device alone keeps for its gradient is empty on the other.
        pairs = [
            (a, b)
            for a, b in zip(encodings(one), encodings(other), strict=True)
            if a.numel() and b.numel()
        ]
        if not all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs):
            self.lies.setdefault(row.name, f"{name}{said((args, kwargs))}")
        return result


def said(values):
    """Return arguments as text, tensors by dtype and shape."""

    def text(value):
        if not isinstance(value, torch.Tensor):
            return value
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"

    return tree.tree_map(text, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_inside_has_the_bits_of_the_cpu(dtype):
    found = OnBoth(dtype)
    with patched("repro"):
        torch.zeros(1, device="cuda")
        walk(found)
    assert not found.lies
    assert {"mm", "sum", "exp", "add", "_softmax"} <= found.compared
    inside = [r for r in ROWS if (r.contract.cuda if dtype is torch.float32 else r.contract.cuda16)]
    assert len(found.compared) > len(inside) // 3


def test_a_row_that_says_inside_of_what_differs_is_found():
    found = OnBoth(torch.float32, only="sum")
    x = torch.randn(40, 30_001)
    with watching(found):  # stock
        torch.sum(x, 1)
    assert set(found.lies) == {"sum"}
