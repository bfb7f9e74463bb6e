# SPDX-License-Identifier: Apache-2.0
"""Benches of rewriting: opponents compute the same, and rows of several machines are joined."""

from __future__ import annotations

import json

import pytest
import torch

from benches.data.nas_rnn import NasRnn
from benches.experiments import (
    fusion_jax,
    fusion_plans,
    pet_convolutions,
    rewriting_gains,
    taso_examples,
    taso_funnel,
)
from benches.experiments import systemds as opponent
from benches.render import docs
from pytest_udftorch import UdfError
from pytest_udftorch.measure import GraphReport
from pytest_udftorch.measure.rewrite.taso.generator import FAMILIES
from pytest_udftorch.measure.rewrite.templates import Firing

needs_systemds = pytest.mark.skipif(bool(opponent.missing()), reason=opponent.missing() or "there")
needs_jax = pytest.mark.skipif(bool(fusion_jax.missing()), reason=fusion_jax.missing() or "there")


def inputs_of(name, rows=40):
    torch.manual_seed(0)
    return fusion_plans.CASES[name].inputs(rows)


@needs_jax
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("name", fusion_plans.CASES)
def test_jax_computes_what_torch_does(name):
    given, case = inputs_of(name), fusion_plans.CASES[name]
    found, wanted = fusion_jax.call_of(name, given)(), case.function(*case.eager(given))
    assert fusion_plans._distance(found, wanted) < 1e-4
    far = tuple(t * 1.01 for t in fusion_plans._leaves(wanted))
    assert fusion_plans._distance(found, far) > 1e-3


def test_each_opponent_has_each_case():
    assert set(opponent.SCRIPTS) == set(fusion_jax.CASES) == set(fusion_plans.CASES)


def test_systemds_is_told_the_sizes_of_its_inputs(tmp_path):
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]])
    matrix = opponent._written(x, str(tmp_path / "x.csv"))
    assert matrix.read("A").endswith('format="csv", rows=2, cols=3, nnz=3);')
    assert (tmp_path / "x.csv").read_text().splitlines() == ["1,0,2", "0,0,3"]
    script = opponent._script("l2svm", [matrix])
    assert script.index("d = as.scalar(D)") < script.index("for (i in")


def test_the_operators_of_systemds_are_those_of_each_call():
    calls = opponent.CALLS
    printed = ["RESULT 1 2", "  #  Instruction  Time(s)  Count", f"  1  spoofRATMP16  4.0  {calls}",
               f"  2  spoofRATMP9  1.6  {calls}", f"  3  tak+*  0.8  {calls}", "  4  ^2  0.04  1",
               f"  5  createvar  0.1  {calls}"]  # fmt: skip
    assert opponent._operators(printed) == {"spoofRATMP": 2 * calls, "tak+*": calls}


def test_what_systemds_lacks_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert opponent.missing() in ("the package systemds is missing", "Java is missing")
    assert opponent.times_ns("l2svm", (), None, 1e-3) is None


@needs_systemds
@pytest.mark.slow
def test_systemds_computes_what_torch_does_and_wrong_results_are_found():
    given = inputs_of("multinomial logistic", 200)
    wanted = fusion_plans.logistic(*given)
    times = opponent.times_ns("multinomial logistic", given, wanted, 1e-3)
    assert 0 < times["warm"] < times["first"]
    assert any(name.startswith("spoof") for name in times["operators"])
    with pytest.raises(UdfError, match=r"SystemDS computes .* eager mode"):
        opponent.times_ns("multinomial logistic", given, tuple(t * 1.01 for t in wanted), 1e-3)


def test_rows_of_several_machines_are_joined(tmp_path, capsys):
    def row(device, batch, **more):
        case = {"device": device, "batch": batch, "model": "BERT", "backend": "udf_pet"}
        return {**case, "machine": {"cpu": f"{device} {batch}"}, **more}

    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    old = [row("cpu", 1, speedup=1), row("cpu", 32, failed="OutOfMemoryError: so it was")]
    new = [row("cuda", 1, speedup=2), row("cpu", 1, speedup=3)]
    for path, rows in ((first, old), (second, new)):
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    stored = tmp_path / "out.json"
    given = ["--merge", str(first), str(second), "--store", str(stored)]
    assert rewriting_gains.main(given) == 1  # a row failed
    found = json.loads(stored.read_text())
    assert [(r["device"], r["speedup"]) for r in found["rows"]] == [("cpu", 3), ("cuda", 2)]
    assert [r["failed"] for r in found["failed"]] == ["OutOfMemoryError: so it was"]
    left = [(case, name) for case, names in found["left_out"].items() for name in names]
    assert len(left) == len(rewriting_gains.KEYS) - 3
    assert ("BERT at batch 1 on cpu", "udf_pet") not in left
    assert ("BERT at batch 1 on cpu", "udf_taso") in left
    assert found["command"].endswith("--merge JOURNAL ...")


def test_a_backend_is_credited_with_its_own_rules_alone():
    folded = {"fired": {"convolution and batch norm": 5}, "tried": {}}
    row = {"model": "net", "batch": 1, "backend": "udf_taso", "graphs": [folded],
           "over_traced": [2.0, 2.1, 2.2]}  # fmt: skip
    assert docs._over_templates(row) == "the same graph"
    assert docs._decided([row])[0].endswith("on none of those measured.")
    # The same rules are those of udf_templates itself.
    templates = {**row, "backend": "udf_templates"}
    assert docs._over_templates(templates) == "the base line"
    assert docs._decided([templates])[0].endswith("net at batch 1, 2.10 (2.00 to 2.20).")
    merged = {"fired": {**folded["fired"], "add_of_conv": 1}, "tried": {}}
    mine = {**row, "graphs": [merged], "over_udf_templates": [1.1, 1.2, 1.3]}
    assert docs._over_templates(mine) == "1.20 (1.10 to 1.30)"
    assert docs._decided([mine])[0].endswith("net at batch 1, 1.20 (1.10 to 1.30).")


def test_what_matched_and_lost_is_named_with_its_cost():
    report = GraphReport("udf_taso", fired=[Firing("merged", "at mm")], not_kept="measured slower")
    report.details += [
        {"rule": "merged", "before_ns": 9.0, "after_ns": 3.0, "used": True},
        {"rule": "enlarged", "before_ns": 5.0, "after_ns": 9.0, "used": False},
        {"rule": "turned", "before_ns": 5.0, "after_ns": 6.0, "used": False},
    ]
    assert [(c["rule"], c["why"]) for c in rewriting_gains._lost(report)] == [
        ("turned", ""), ("enlarged", ""),
    ]  # fmt: skip
    report.drop()  # the whole call was not faster
    assert [(c["rule"], c["why"]) for c in rewriting_gains._lost(report)] == [
        ("merged", "measured slower"), ("turned", ""), ("enlarged", ""),
    ]  # fmt: skip
    rule = "convolution by parts"
    mutant = {"rule": rule, "stock_ns": 4.0, "corrected_ns": 8.0, "kept": False}
    pet = GraphReport("udf_pet", details=[mutant, {**mutant, "corrected_ns": 5.0}])
    assert [(c["rule"], c["after_ns"]) for c in rewriting_gains._lost(pet)] == [(rule, 5.0)]
    assert docs._cost(rewriting_gains._lost(pet)[0]).startswith(f"`{rule}` matched, 0 us before")
    # A chain that is kept, under the name under which it fired, has not lost.
    kept = {"rule": "chain merged", "stock_ns": 4.0, "corrected_ns": 2.0, "kept": True}
    won = GraphReport("udf_pet", fired=[Firing("chain merged", "at conv")], details=[kept])
    assert rewriting_gains._lost(won) == []


def test_the_state_of_nas_rnn_depends_on_each_step():
    model, x = NasRnn(8), torch.randn(2, 3, 8)
    found = model(x)
    assert found.shape == (2, 8)
    for step in range(3):
        other = x.clone()
        other[:, step] += 1
        assert not torch.equal(model(other), found)


def test_an_example_of_a_paper_is_found_and_shown(tmp_path):
    path = tmp_path / "examples.json"
    given = ["--only", "products added", "--threads", "1", "--runs", "7", "--store", str(path)]
    threads = torch.get_num_threads()
    try:
        assert taso_examples.main(given) == 0
    finally:
        torch.set_num_threads(threads)
    document = json.loads(path.read_text())
    (row,) = document["rows"]
    assert sum(row["own"].values()) >= 1
    assert row["kernels"]["udf_taso"] < row["kernels"]["udf_templates"] == 3
    table = docs.taso_examples({"taso_examples": document})
    assert "| products added | x w + x v as x (w + v) | `add-mm-mm" in table
    lost = {**row, "own": {}, "matched": [{"rule": "r", "before_ns": 2e3, "after_ns": 5e3}]}
    table = docs.taso_examples({"taso_examples": {**document, "rows": [lost]}})
    assert "not chosen: `r` matched, 2 us before and 5 with it" in table
    assert "the same graph" in table


@pytest.mark.slow
def test_the_funnel_is_counted_for_each_family(tmp_path, monkeypatch):
    monkeypatch.setattr(taso_funnel, "FAMILIES", FAMILIES[-1:])
    path, rules = tmp_path / "funnel.json", tmp_path / "rules.txt"
    given = ["--most", "1", "--store", str(path)]
    assert taso_funnel.main(given) == 0
    (row,) = json.loads(path.read_text())["funnels"]
    assert row["family"] == "groups"
    assert row["enumerated"] > row["verified"] > 0
    assert "| groups | 1 | " in docs.taso_funnel({"taso_funnel": json.loads(path.read_text())})
    assert not rules.exists()


def test_the_convolutions_of_resnet_are_dilated_strided_and_plain():
    found = pet_convolutions.convolutions()
    kinds = [(key[5][0], key[7][0]) for key in found]
    assert kinds == sorted(kinds, key=lambda k: (-k[1], -k[0]))
    assert {(1, 4), (1, 2), (2, 1), (1, 1)} == set(kinds)
    assert all(key[4] != (1, 1) for key in found)
    stem = (3, 224, 224, 64, (7, 7), (2, 2), (3, 3), (1, 1))
    assert found[stem] == list(pet_convolutions.MODELS)
