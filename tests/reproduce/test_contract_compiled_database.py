# SPDX-License-Identifier: Apache-2.0
"""Compiled code has the bits of eager code under the contract: PyTorch's database of operators."""

from __future__ import annotations

import warnings

import pytest
import torch

from pytest_udftorch import patched
from pytest_udftorch.reproduce import within_contract
from tests.operator_samples import EVERY, chosen, encodings, moved

pytestmark = pytest.mark.slow


def compare(op, dtype, device="cpu"):
    """Hold compiled code to the bits of eager code on a device."""
    if dtype not in op.dtypes:
        pytest.skip("torch has no such kernel")  # so there are no bits to compare

    def call(given):
        return [op.op(x, *args, **kwargs) for x, args, kwargs in given]

    def seeded(call, given):
        torch.manual_seed(0)
        return call(given)

    torch._dynamo.reset()
    if device != "cpu":
        try:
            seeded(call, moved(chosen(op, dtype), device))
        except (RuntimeError, NotImplementedError) as error:
            pytest.skip(f"torch has no such kernel: {str(error)[:60]}")
    with warnings.catch_warnings(), torch.no_grad(), patched("repro"):
        warnings.simplefilter("ignore")
        given = moved(chosen(op, dtype), device)
        with within_contract() as found:
            want = seeded(call, given)
        if found.operators:  # eager code has no fixed bits either
            pytest.skip(f"outside of the contract: {', '.join(found.operators)}")
        assert encodings(seeded(torch.compile(call), given)) == encodings(want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.formatted_name)
def test_compiled_operators_have_the_bits_of_eager_ones(op, dtype):
    compare(op, dtype)
