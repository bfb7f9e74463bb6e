# SPDX-License-Identifier: Apache-2.0
"""A model in bfloat16 ends with the same weights with one thread and with two."""

from __future__ import annotations

import pytest
import torch

from benches.experiments import contract_digests_sixteen as bench
from pytest_udftorch import patched


@pytest.mark.parametrize("form", bench.FORMS)
def test_threads_change_no_weight_under_repro(form):
    before, ends = torch.get_num_threads(), set()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with patched("repro"):
                ends.add(bench.trained("lenet", form, "cpu", 4))
    finally:
        torch.set_num_threads(before)
    assert len(ends) == 1


def test_one_other_digest_is_told():
    """The control of the comparison."""
    row = {"library": "repro", "place": "avx2", "model": "lenet", "form": "autocast"}
    rows = [{**row, "digest": "a"}, {**row, "place": "cuda", "digest": "a"}]
    assert bench.same(rows, "repro")
    assert not bench.same([*rows, {**row, "place": "avx512", "digest": "b"}], "repro")
    assert not bench.same(rows, "std")
