# SPDX-License-Identifier: Apache-2.0
"""Target speeds of the operators of a CUDA session, as shares of the stock kernels' bandwidth."""

from __future__ import annotations

#: The functions of one argument, and elu.
_FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh",
    "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "elu",
)  # fmt: skip

ASKED = {**dict.fromkeys(_FUNCTIONS, 0.99), "softmax": 0.98}
