# SPDX-License-Identifier: Apache-2.0
"""Calls that choose among zeros of both signs, for tests on CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from operator_samples import encodings
from torch.nn import functional as F

from pytest_udftorch.reproduce import within_contract

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

#: Each takes two tensors of zeros, of 3 x 100 x 1000.
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "max": lambda x, _: x.max(),
    "max of rows": lambda x, _: x.max(-1),
    "min of columns": lambda x, _: x.min(1),
    "amax": lambda x, _: (x.amax(), x.amax(1), x.amax(-1)),
    "amin": lambda x, _: (x.amin(), x.amin(1), x.amin(-1)),
    "aminmax": lambda x, _: torch.aminmax(x),
    "aminmax of rows": lambda x, _: torch.aminmax(x, dim=-1),
    "argmax": lambda x, _: (x.argmax(), x.argmin(-1)),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "clamp": lambda x, y: torch.clamp(x, min=y),
    "clamp to numbers": lambda x, _: (x.clamp(min=0.0), x.clamp(max=-0.0)),
    "relu": lambda x, _: (x.relu(), F.relu6(x), F.hardtanh(x, 0.0, 1.0)),
    "activations": lambda x, _: (F.elu(x), F.gelu(x), F.silu(x), F.leaky_relu(x), F.hardswish(x)),
    "cummax": lambda x, _: (x.cummax(-1), x.cummin(1)),
    "max_pool": lambda x, _: (F.max_pool2d(x, 3, 2), F.adaptive_max_pool2d(x, (7, 9))),
    "order": lambda x, _: (x[0].sort(-1), x[0].topk(5), x[0].median(-1), x[0].kthvalue(9)),
    "signs": lambda x, y: (x.abs(), x.neg(), x.sign(), torch.copysign(y, x), x.round()),
    "arithmetic": lambda x, y: (x + y, x - y, x * y, x.fmod(2.0), x.remainder(2.0)),
    "sums": lambda x, y: (x.sum(-1), x.mean(1), x.cumsum(-1), x.norm(dim=-1), x[0] @ y[0].t()),
}


def found(name: str, dtype: torch.dtype, device: str = "cpu") -> tuple[list[Any], set[str]]:
    """Return the encodings of a call's results, and the operators that are outside."""
    x, y = (
        torch.where(torch.rand(3, 100, 1000, generator=torch.Generator().manual_seed(seed)) < 0.5,
                    0.0, -0.0).to(device, dtype)
        for seed in (0, 1)
    )  # fmt: skip
    with within_contract() as outside:
        results = CALLS[name](x, y)
    return encodings(results), set(outside.operators)
