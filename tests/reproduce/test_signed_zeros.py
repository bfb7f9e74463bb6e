# SPDX-License-Identifier: Apache-2.0
"""Which of two zeros stays is the same with any number of threads, or it is said."""

from __future__ import annotations

import pytest
import torch

from pytest_udftorch import patched
from tests.reproduce.signed_zeros import CALLS, DTYPES, found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_signs_do_not_depend_on_threads_or_the_operator_is_outside(name, dtype):
    threads, results = torch.get_num_threads(), []
    try:
        with patched("repro"):
            for count in (1, 2):
                torch.set_num_threads(count)
                results.append(found(name, dtype))
    finally:
        torch.set_num_threads(threads)
    (one, outside), (two, _) = results
    assert one == two or outside
    # The control: with these, they do.
    assert outside or name not in ("max", "maximum", "minimum", "clamp", "aminmax")
