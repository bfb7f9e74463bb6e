# SPDX-License-Identifier: Apache-2.0
"""The bench of four models: one digest under ``repro``, and the operator that makes two."""

from __future__ import annotations

import pytest
import torch

from benches.experiments import contract_models as bench


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def runs(threads, library, optimizer="AdamW"):
    for count in (1, 2):
        threads(count)
        found = bench.trained(library, "gpt", optimizer, 1)
        yield {"capability": "one", "threads": count, **found}


@pytest.mark.parametrize("optimizer", bench.OPTIMIZERS)
def test_a_decoder_has_the_same_weights_with_one_and_two_threads(threads, optimizer):
    one, two = runs(threads, "repro", optimizer)
    assert one["digests"] == two["digests"]
    assert one["digests"][0] != one["digests"][1]


def test_stock_does_not_and_the_bench_says_from_which_step_on(threads):
    one, two = runs(threads, "std")
    other = {**one, "capability": "other"}
    (found,) = bench.parted([one, two, other])
    assert (found["other"], found["step"]) == ("threads", 1)
    assert found["sides"] == [{"capability": "one", "threads": n} for n in (1, 2)]


def test_a_first_step_is_that_of_the_first_other_digest():
    assert bench.first_step(["a", "b", "c"], ["a", "x", "c"]) == 1
    assert bench.first_step(["a", "b"], ["b", "b"]) == 0
    assert bench.first_step(["a", "b"], ["a", "b"]) is None


def test_weights_that_are_not_finite_are_refused(monkeypatch):
    case = bench.replace(bench.CASES["gpt"], rate=float("inf"))
    monkeypatch.setitem(bench.CASES, "gpt", case)
    with pytest.raises(ValueError, match="gpt diverges with SGD"):
        bench.trained("std", "gpt", "SGD", 1)


@pytest.mark.slow
def test_records_of_two_places_name_the_operator():
    places = [{"capability": "avx2", "threads": n} for n in (1, 2)]
    entry = {"other": "threads", "step": 1, "sides": places}
    row = {"model": "gpt", "optimizer": "SGD", "differs": [entry]}
    bench.name_operators("std", [row])
    assert entry["operator"] == "aten::native_layer_norm_backward"
    assert entry["layer"] == "head.0"
