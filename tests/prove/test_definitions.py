# SPDX-License-Identifier: Apache-2.0
"""The truth of attention, whose kernels for CUDA have no float64."""

import math

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch.prove.judge.double_precision import DoublePrecision
from pytest_udftorch.prove.judge.truth import judged
from pytest_udftorch.swap.observe.recorder import Kept

ATEN = torch.ops.aten
FLASH = ATEN._scaled_dot_product_flash_attention.default
EFFICIENT = ATEN._scaled_dot_product_efficient_attention.default
CUDNN = ATEN._scaled_dot_product_cudnn_attention.default

MASK = torch.ones(9, 9, dtype=torch.bool).tril()
# A query that sees nothing.
MASK[3] = False
BIAS = torch.zeros(2, 4, 9, 9).masked_fill(~MASK, -math.inf)

CALLS = {
    "flash": (FLASH, (), {"scale": 0.2}, {"scale": 0.2}),
    "flash, causal": (FLASH, (0.0, True), {}, {"is_causal": True}),
    "flash, by name": (FLASH, (), {"is_causal": True}, {"is_causal": True}),
    "efficient": (EFFICIENT, (None, False), {}, {}),
    "efficient, causal": (EFFICIENT, (None, True, 0.0, True), {}, {"is_causal": True}),
    "efficient, hidden": (EFFICIENT, (BIAS, True), {}, {"attn_mask": BIAS.double()}),
    "cudnn": (CUDNN, (None, True, 0.0, False, False), {}, {}),
}


def given(dtype=torch.bfloat16):
    """Return queries, keys and values as a layer has them: heads lie beside each other."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 9, 4, 16, generator=generator).to(dtype).transpose(1, 2) for _ in "qkv"]


@pytest.mark.parametrize("name", list(CALLS))
def test_attention_of_gpus_has_a_truth(name):
    operator, args, kwargs, options = CALLS[name]
    tensors = given()
    # On a CPU the kernels do not run at all.
    with pytest.raises(NotImplementedError):
        operator(*tensors, *args, **kwargs)
    want = F.scaled_dot_product_attention(*(t.double() for t in tensors), **options)
    mode = DoublePrecision()
    with mode:
        out, sums, *_ = operator(*tensors, *args, **kwargs)
    assert mode.left == ""
    assert out.dtype == torch.float64
    torch.testing.assert_close(out, want, rtol=1e-13, atol=1e-13)
    out.transpose(1, 2).view(2, 9, 64)
    assert sums.numel() == 0 or sums.shape[:2] == (2, 4)

    kept = Kept(operator, (*tensors, *args), kwargs, [])
    near = want.bfloat16()
    truth = judged(kept, near, near * 1.5, 0)
    assert truth.nearer == "a"


def test_attention_that_drops_has_none():
    with DoublePrecision(), pytest.raises(NotImplementedError):
        FLASH(*given(), 0.5)
