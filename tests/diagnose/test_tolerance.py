# SPDX-License-Identifier: Apache-2.0
"""The cheapest libraries that keep a metric, per function and layer."""

from __future__ import annotations

import functools
import itertools
import json
import re
from pathlib import Path

import pytest
import torch

from pytest_udftorch import patched
from pytest_udftorch.cli import FAILED, MISUSE, main
from pytest_udftorch.diagnose import assigned, cheapest_libraries
from pytest_udftorch.diagnose.runs.switch import Site
from pytest_udftorch.diagnose.tolerance.search import Search
from pytest_udftorch.errors import DiagnosisError, JournalError, UnknownFunctionError

SHORT = ("corem", "ladder-16", "ladder-8")


class Net(torch.nn.Module):
    """One tanh whose result is multiplied by 1000, and one that hardly counts."""

    def __init__(self):
        super().__init__()
        self.loud, self.quiet, self.gelu = torch.nn.Tanh(), torch.nn.Tanh(), torch.nn.GELU()

    def forward(self, x):
        return self.loud(x) * 1000 + self.quiet(x + 1) + self.gelu(x)


@functools.cache
def made():
    return Net().eval(), torch.linspace(-2, 2, 512)


def metric():
    model, x = made()
    with torch.no_grad():
        return model(x).square().mean().sqrt().item()


def shifted():
    model, x = made()
    with torch.no_grad():
        return model(x + 0.01).square().mean().sqrt().item()


# The search --------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("limit", [0, 3, 7, 11, 100])
def test_no_site_of_the_answer_can_go_down_and_brute_force_is_seldom_cheaper(limit, at_once):
    sites = [Site("exp", str(i)) for i in range(4)]
    ladder = ("a", "b", "c")
    error = {"a": 0, "b": 1, "c": 4}
    weight = dict(zip(sites, (1, 2, 3, 1), strict=True))
    prices = {"a": 3.0, "b": 2.0, "c": 1.0}

    def keeps(assignment):
        return sum(weight[s] * error[library] for s, library in assignment.items()) <= limit

    calls = []

    def holds(assignments):
        calls.append(len(assignments))
        return [keeps(a) for a in assignments]

    search = Search(sites, ladder, lambda s, library: prices[library], holds, at_once)
    found = search.cheapest()
    assert keeps(found)
    for site in sites:
        for library in ladder[ladder.index(found[site]) + 1 :]:
            assert not keeps({**found, site: library})
    every = (dict(zip(sites, c, strict=True)) for c in itertools.product(ladder, repeat=4))
    best = min(search.cost(a) for a in every if keeps(a))
    assert search.cost(found) <= best + 1
    assert sum(calls) < 81  # what brute force takes
    assert max(calls) <= max(1, at_once)


# Runs --------------------------------------------------------------------------------


def test_each_layer_has_its_own_library():
    model, x = made()
    with patched("corem"):
        exact = model.loud(x), model.quiet(x), model.gelu(x)
    with patched("ladder-8"):
        coarse = model.loud(x), model.quiet(x), model.gelu(x)
    assert not torch.equal(exact[0], coarse[0])
    assert not torch.equal(exact[2], coarse[2])
    before = model.loud(x)
    sites = {Site("tanh", "loud"): "ladder-8", Site("tanh", "quiet"): "corem"}
    with assigned({**sites, Site("erf", "gelu"): "ladder-8"}):
        for _ in range(2):
            assert torch.equal(model(x), coarse[0] * 1000 + _quiet(model, x) + coarse[2])
    assert torch.equal(model.loud(x), before)


def _quiet(model, x):
    with patched("corem"):
        return torch.tanh(x + 1)


def test_what_counts_keeps_its_bits_and_what_does_not_goes_down():
    # By rank: measured times would make the answer depend on the machine's load.
    found = cheapest_libraries(metric, within=2e-4, held_out=shifted, cost="rank")
    libraries = {(n.function, n.layer): n.library for n in found.needs}
    assert libraries["tanh", "quiet"] == "ladder-8"
    assert libraries["tanh", "loud"] in ("corem", "ladder-20", "ladder-16", "ladder-12")
    assert {n.evaluations for n in found.needs} == {512}
    assert all(n.ns > 0 and n.exact_ns > 0 for n in found.needs)
    assert abs(found.value - found.reference) <= 2e-4
    # What is reported is what the assignment gives.
    with assigned(found.assignment()):
        assert metric() == found.value
        assert shifted() == found.held_out[1]
    # Negative control: everything at 8 bits does not keep the metric.
    with patched("ladder-8"):
        assert abs(metric() - found.reference) > 2e-4
    assert "the functions' time" in found.text()
    json.dumps(found.document())
    whole = {"by_layer": False, "cost": "rank"}
    assert cheapest_libraries(metric, within=1e9, ladder=SHORT, **whole).assignment() == {
        Site("tanh", "every layer"): "ladder-8", Site("erf", "every layer"): "ladder-8",
    }  # fmt: skip


@pytest.mark.slow
def test_number_formats_are_a_ladder_by_rank():
    ladder = ("corem", "format-half", "format-bfloat16", "format-e5m2")
    found = cheapest_libraries(metric, within=0.5, ladder=ladder, cost="rank", functions=("tanh",))
    libraries = {n.layer: n.library for n in found.needs}
    assert libraries["quiet"] == "format-e5m2"
    assert libraries["loud"] in ladder[:3]
    assert found.holds


def test_a_journal_is_taken_up_again(tmp_path):
    journal = tmp_path / "journal.jsonl"
    options = {"within": 2e-4, "ladder": SHORT, "functions": ("tanh",), "journal": journal}
    options["cost"] = "rank"
    first = cheapest_libraries(metric, **options)
    with pytest.raises(JournalError, match=r"There is a journal .* already"):
        cheapest_libraries(metric, **options)
    lines = journal.read_text().splitlines(keepends=True)
    # A crash cut the last line short.
    journal.write_text("".join(lines[:-1]) + lines[-1][:10])
    again = cheapest_libraries(metric, **options, resume=True)
    assert again.needs == first.needs or again.assignment() == first.assignment()
    assert again.runs < first.runs
    with pytest.raises(JournalError, match="belongs to another search"):
        cheapest_libraries(metric, **{**options, "seed": 1}, resume=True)
    with pytest.raises(JournalError, match="cannot be written"):
        cheapest_libraries(metric, **{**options, "journal": tmp_path / "no" / "file"})


def test_metrics_that_are_of_no_use_are_refused():
    counter = itertools.count()

    def restless():
        return metric() + next(counter)

    def broken():
        metric()
        return float("nan")

    def nothing():
        return float(torch.arange(4.0).sum())

    with pytest.raises(DiagnosisError, match="not repeatable"):
        cheapest_libraries(restless, within=1, ladder=SHORT)
    with pytest.raises(DiagnosisError, match="NaN under the most exact"):
        cheapest_libraries(broken, within=1, ladder=SHORT)
    with pytest.raises(DiagnosisError, match="evaluates none of"):
        cheapest_libraries(nothing, within=1, ladder=SHORT)
    with pytest.raises(DiagnosisError, match=r"The metric failed: TypeError"):
        cheapest_libraries(lambda: None, within=1, ladder=SHORT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"within": -1}, "within=-1 is not a bound"),
        ({"ladder": ("corem",)}, "is not a ladder"),
        ({"ladder": ("std", "corem")}, "'std' has no functions of its own"),
        ({"cost": "bits"}, "neither 'time' nor 'rank'"),
        ({"workers": 2}, "need the metric by name"),
        ({"workers": -1}, "is not a number of processes"),
        ({"ladder": ("repro", "canary"), "functions": ("nothing",)}, "has no function 'nothing'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises((DiagnosisError, UnknownFunctionError), match=message):
        cheapest_libraries(metric, **{"within": 1.0, **options})


SOURCE = """
import torch
tanh = torch.nn.Tanh().eval()

def on(x):
    return lambda: tanh(x).sum().item()

metric, held_out = on(torch.linspace(0.1, 2, 300)), on(torch.linspace(0.2, 3, 300))
def wrong():
    return metric() * 1e6
"""


def test_the_command_searches_stores_and_fails_if_held_out_data_do(tmp_path, capsys, monkeypatch):
    (tmp_path / "model.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    common = ["--within", "0.05", "--ladder", ",".join(SHORT), "--functions", "tanh"]
    common += ["--cost", "rank"]  # a busy machine can time a coarse function as the slower one
    arguments = ["tolerance", "model.py:metric", "--held-out", "model.py:held_out", *common]
    assert main([*arguments, "--store", "found.json"]) == 0
    out = capsys.readouterr().out
    assert "tanh in Tanh" in out
    stored = json.loads((tmp_path / "found.json").read_text())
    assert stored["format"] == "udftorch-tolerance-1"
    assert stored["holds"]
    assert main(["tolerance", "model.py:metric", "--held-out", "model.py:wrong", *common]) == FAILED
    assert "out of the bound" in capsys.readouterr().out
    assert main(["tolerance", "model.py:nothing", *common]) == MISUSE


@pytest.mark.slow
def test_processes_find_what_this_one_finds(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(SOURCE)
    where = f"{tmp_path}/model.py:metric"
    options = {"within": 0.05, "ladder": SHORT, "functions": ("tanh",), "cost": "rank"}
    alone = cheapest_libraries(where, **options)
    assert cheapest_libraries(where, **options, workers=2).assignment() == alone.assignment()


def test_the_page_runs_as_shown(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs" / "diagnose" / "tolerance.md"
    text = page.read_text()
    monkeypatch.chdir(tmp_path)
    (source,) = re.findall(r"<!-- file: model.py -->\n```python\n(.*?)^```$", text, re.M | re.S)
    (tmp_path / "model.py").write_text(source)
    (shown,) = re.findall(r"```console\n\$ udftorch (.*?)^```$", text, re.M | re.S)
    command, *lines = shown.splitlines()
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    for line in lines:
        for part in filter(None, line.split("...")):
            assert part.strip() in out
    scripts = re.findall(r"[^>]\n```python\n(.*?)^```$", text, re.M | re.S)
    assert len(scripts) == 2
    exec(compile("\n".join(scripts), str(page), "exec"), {})
