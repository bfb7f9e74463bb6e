# SPDX-License-Identifier: Apache-2.0
"""The operators of the contract: docs/contract.md."""

from pytest_udftorch.contract.products import (
    addmm,
    addmv,
    baddbmm,
    bmm,
    convolution,
    convolution_backward,
    dot,
    mm,
    mv,
)
from pytest_udftorch.contract.sums import (
    layer_norm,
    layer_norm_backward,
    log_softmax,
    log_softmax_backward,
    mean_all,
    mean_dims,
    mse_loss,
    nll_loss,
    softmax,
    softmax_backward,
    sum_all,
    sum_dims,
)

__all__ = [
    "addmm",
    "addmv",
    "baddbmm",
    "bmm",
    "convolution",
    "convolution_backward",
    "dot",
    "layer_norm",
    "layer_norm_backward",
    "log_softmax",
    "log_softmax_backward",
    "mean_all",
    "mean_dims",
    "mm",
    "mse_loss",
    "mv",
    "nll_loss",
    "softmax",
    "softmax_backward",
    "sum_all",
    "sum_dims",
]
