# SPDX-License-Identifier: Apache-2.0
"""Target speeds of the operators of a CUDA session, as shares of the stock kernels' bandwidth."""

from __future__ import annotations

ASKED = {
    "exp": 0.98, "log": 0.98, "tanh": 0.98, "elu": 0.98, "softmax": 0.98, "sin": 0.9, "cos": 0.9
}  # fmt: skip
