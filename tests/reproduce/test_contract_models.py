# SPDX-License-Identifier: Apache-2.0
"""The bench of four models: one digest under ``repro``, and the operator that makes two."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benches.experiments import contract_models as bench
from benches.experiments import contract_opponents
from pytest_udftorch import patched
from pytest_udftorch.diagnose import first_difference, record_run
from pytest_udftorch.swap.contract import native
from pytest_udftorch.swap.contract.native import contract
from tests.reproduce.spoiled import SPOILED


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


# Negative controls: what is changed is named ------------------------------------------------


def steps():
    """Two steps of a small network, recorded as a whole."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(100, 12), nn.Tanh(), nn.Linear(12, 10), nn.LogSoftmax(1))
    x, y = torch.rand(8, 100), torch.arange(8)
    for _ in range(2):
        model.zero_grad()
        F.nll_loss(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def ended(folder, defines=(), wrong=()):
    """Record the steps under ``repro``, or a changed one; return the weights that they end with."""
    found = []
    with pytest.MonkeyPatch.context() as patch, patched("repro"):
        made = contract(defines=defines)
        # Each session chooses a contract anew.
        patch.setattr(native, "_chosen", lambda *_: made)
        with patched("canary", functions=wrong) if wrong else patched("repro"):
            record_run(folder, make=lambda: lambda: found.append(steps()), seed=bench.SEED)
    return found[-1]


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records") / "unchanged"
    return folder, ended(folder)


@pytest.mark.parametrize(
    ("changed", "operator"),
    [
        ({"defines": SPOILED}, "aten::addmm"),
        pytest.param(
            {"defines": ("-DONE_AFTER_THE_OTHER",)}, "aten::_log_softmax", marks=pytest.mark.slow
        ),
        ({"wrong": ("tanh",)}, "aten::tanh"),
        ({}, None),
    ],
    ids=["product", "tree", "function", "nothing"],
)
def test_what_is_changed_gives_other_weights_and_is_named(unchanged, tmp_path, changed, operator):
    folder, weights = unchanged
    other = ended(tmp_path / "changed", **changed)
    assert torch.equal(weights, other) == (operator is None)
    found = first_difference(f"rec:{folder}", f"rec:{tmp_path / 'changed'}", seed=bench.SEED).first
    assert (None if found is None else found.operator) == operator


def test_opponents_are_timed_against_stock(monkeypatch):
    monkeypatch.setattr(contract_opponents, "TURNS", 2)
    x = torch.rand(100, 100)
    row = contract_opponents.compared({"stock": lambda: x.sum(), "mine": lambda: x.sum(0)}, "cpu")
    assert row["stock_us"] > 0
    assert set(row["speeds"]) == {"deterministic mode", "repro", "mine"}
    assert not torch.are_deterministic_algorithms_enabled()
