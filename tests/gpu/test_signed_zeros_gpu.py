# SPDX-License-Identifier: Apache-2.0
"""Which of two zeros stays is the same on a GPU as on a CPU, or it is said."""

from __future__ import annotations

import pytest
import torch

from pytest_udftorch import patched
from tests.reproduce.signed_zeros import CALLS, DTYPES, found

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_signs_are_those_of_the_cpu_or_the_operator_is_outside(name, dtype):
    with patched("repro"):
        (here, outside), (there, away) = (found(name, dtype, device) for device in ("cpu", "cuda"))
    assert here == there or outside | away
