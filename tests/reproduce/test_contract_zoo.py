# SPDX-License-Identifier: Apache-2.0
"""The stored table of 24 models and what they call outside of the contract of ``repro``."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from benches import stored
from benches.experiments import contract_operators as bench
from pytest_udftorch.swap.contract import native
from pytest_udftorch.swap.contract.native import contract
from tests.reproduce.spoiled import SPOILED

STORED = stored.load(stored.RESULTS / "contract_operators.json")
MODELS = {(m["origin"], m["model"]): m for m in STORED["models"]}
CHEAP = [
    ("torchvision", "squeezenet1_1"), ("timm", "convnext_atto"), ("transformers", "Mixtral"),
    ("transformers", "wav2vec2"),
]  # fmt: skip

#: What a difference says where torch and the packages of the models are those of the table.
RENEW = (
    "The contract's order changed, or the table is older than the order: find the operator whose "
    "bits are others, and if they ought to be, run python -m benches.store contract_operators."
)

#: The extra ``models`` has them.
needs_models = pytest.mark.skipif(
    not all(map(find_spec, ("timm", "torchvision", "transformers"))), reason="needs the models"
)


def test_the_table_has_every_model_and_place():
    assert set(MODELS) == set(bench.zoo.ZOO)
    assert STORED["places"] == [f"{level}, {threads}" for level, threads in bench.PLACES]
    assert STORED["steps"] == bench.STEPS
    assert all(len(m["digests"]) == len(bench.PLACES) for m in MODELS.values())


def test_models_without_operators_outside_have_one_digest():
    inside = [m for m in MODELS.values() if not m["outside"]]
    assert len(inside) > len(MODELS) / 2
    assert all(len(set(m["digests"])) == 1 for m in inside)


@needs_models
@pytest.mark.parametrize("which", CHEAP, ids=lambda which: which[1])
def test_a_model_still_calls_what_is_stored_and_ends_with_the_stored_weights(which):
    if STORED["environment"]["versions"]["torch"] != torch.__version__:
        pytest.skip("models choose other operators with another torch")
    found, stored = bench.watched(*which), MODELS[which]
    then, now = STORED["packages"][which[0]], bench.packages()[which[0]]
    if found["digest"] not in stored["digests"] and then != now:
        pytest.skip(f"{which[1]} of {which[0]} {now} is not that of {then}, which is stored")
    assert found["outside"] == stored["outside"], RENEW
    assert {found["digest"]} == set(stored["digests"]), RENEW


@needs_models
def test_another_chunk_ends_with_other_weights(monkeypatch):
    other = contract(defines=SPOILED)
    monkeypatch.setattr(native, "_chosen", lambda *_: other)
    which = CHEAP[0]
    assert bench.watched(*which)["digest"] not in MODELS[which]["digests"]
