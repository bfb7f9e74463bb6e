# SPDX-License-Identifier: Apache-2.0
"""Compiled code has the bits of eager code under the contract: PyTorch's database of operators."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch

from pytest_udftorch import patched
from pytest_udftorch.reproduce import within_contract
from tests.operator_samples import op_db, tensors

pytestmark = pytest.mark.slow

#: What they return was written by nobody.
UNWRITTEN = (
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
)  # fmt: skip

#: Samples of an operator: the first, and one from the middle.
SAMPLES = 2

EVERY = [op for op in op_db if op.name not in UNWRITTEN and not op.name.startswith("jiterator")]


def chosen(op, dtype):
    made = [
        sample
        for sample in itertools.islice(op.sample_inputs("cpu", dtype), 40)
        if any(t.numel() > 1 for t in tensors([sample.input, sample.args]))
    ]
    return [(s.input, s.args, s.kwargs) for s in made[:: max(1, len(made) // 2)][:SAMPLES]]


def bits(values):
    found = []
    for value in tensors(values):
        dense = value.to_dense() if value.layout != torch.strided else value.resolve_conj()
        plain = torch.view_as_real(dense) if dense.is_complex() else dense
        found.append((value.shape, value.dtype, torch.nan_to_num(plain.double(), 9.0).tolist()))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.formatted_name)
def test_compiled_operators_have_the_bits_of_eager_ones(op, dtype):
    if dtype not in op.dtypes:
        pytest.skip("torch has no such kernel")  # so there are no bits to compare

    def call(given):
        return [op.op(x, *args, **kwargs) for x, args, kwargs in given]

    def seeded(call):
        torch.manual_seed(0)
        return call(given)

    torch._dynamo.reset()
    with warnings.catch_warnings(), torch.no_grad(), patched("repro"):
        warnings.simplefilter("ignore")
        given = chosen(op, dtype)
        with within_contract() as found:
            want = seeded(call)
        if found.operators:  # eager code has no fixed bits either
            pytest.skip(f"outside of the contract: {', '.join(found.operators)}")
        assert bits(seeded(torch.compile(call))) == bits(want)
