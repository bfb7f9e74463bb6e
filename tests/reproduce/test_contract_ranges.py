# SPDX-License-Identifier: Apache-2.0
"""``arange`` of fractions: each number from its place alone, with any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pytest_udftorch


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("start", "end", "step"), [(0.1, 30000.4, 0.3), (7.5, -400.25, -0.01)])
def test_a_number_is_that_of_its_place(start, end, step, threads):
    found = []
    with pytest_udftorch.patched("repro"):
        for count in (1, 2):
            threads(count)
            found.append(torch.arange(start, end, step))
        into = torch.empty(0)
        torch.arange(start, end, step, out=into)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], into)
    places = np.arange(found[0].numel(), dtype=np.float64)
    assert np.array_equal(found[0].numpy(), (places * step + start).astype(np.float32))
    assert found[0].numel() == torch.arange(start, end, step, dtype=torch.float64).numel()


def test_stocks_numbers_depend_on_threads(threads):
    found = []
    for count in (1, 2):
        threads(count)
        found.append(torch.arange(0.1, 30000.4, 0.3))
    assert not torch.equal(*found)


@pytest.mark.parametrize("numbers", [(0, 9, 0.5), (3,), (1.0, 9.0), (2, 2, 0.5), (0.0, 1.0, 0.1)])
def test_what_is_made_has_stocks_shape_and_dtype(numbers):
    stock = torch.arange(*numbers)
    with pytest_udftorch.patched("repro"):
        found = torch.arange(*numbers)
        wide = torch.arange(*numbers, dtype=torch.float64)
    assert (found.shape, found.dtype) == (stock.shape, stock.dtype)
    torch.testing.assert_close(found, stock)
    assert torch.equal(wide, torch.arange(*numbers, dtype=torch.float64))


@pytest.mark.parametrize("numbers", [(0.5, 1.0, -0.25), (0.0, 1.0, 0.0), (0.0, float("nan"), 0.5)])
def test_what_stock_refuses_is_refused_with_its_words(numbers):
    said = []
    for library in ("std", "repro"):
        with pytest_udftorch.patched(library), pytest.raises(RuntimeError) as raised:
            torch.arange(*numbers)
        said.append(str(raised.value).splitlines()[0])
    assert said[0] == said[1]
