# SPDX-License-Identifier: Apache-2.0
"""The kernels of attention read a mask at the place of its own batch and head."""

import pytest
import torch

from pytest_udftorch.swap.cuda import attention

QUERY = torch.zeros(2, 4, 6, 8)


def bias_of(mask):
    form = attention._CUDNN
    return attention._problem(form, QUERY, QUERY, QUERY, mask, False, None, 0.0, None).bias


@pytest.mark.parametrize("shape", [(2, 1, 6, 6), (1, 1, 6, 6), (1, 6, 6), (6, 6), (2, 4, 6, 6)])
def test_a_mask_that_others_share_has_no_stride_there(shape):
    mask = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    bias = bias_of(mask)
    assert torch.equal(bias, mask.broadcast_to(2, 4, 6, 6))
    assert bias.untyped_storage().data_ptr() == mask.untyped_storage().data_ptr()
    # The kernel multiplies heads and batches by these; the largest place has to be in the mask.
    places = sum((n - 1) * s for n, s in zip(bias.shape, bias.stride(), strict=True))
    assert places < mask.numel()


def test_a_call_without_a_mask_has_none():
    assert bias_of(None) is None
