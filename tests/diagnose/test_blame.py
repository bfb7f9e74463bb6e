# SPDX-License-Identifier: Apache-2.0
"""Which function, in which layer and operator, makes a test or a metric differ."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from pytest_udftorch import cli, patched
from pytest_udftorch.diagnose import smallest_cause
from pytest_udftorch.diagnose.runs.switch import Unit
from pytest_udftorch.errors import DiagnosisError, JournalError, UnknownLibraryError
from pytest_udftorch.swap.toolchain.progress import Progress

#: exp and tanh in two layers each, one of them in the backward pass as well.
LAYERS = (nn.Softmax(-1), nn.Tanh(), nn.Softmax(-1), nn.Tanh())
X = torch.linspace(-2, 2, 64).view(8, 8)


def metric(layer=slice(None)):
    """The output of some layers, and of no other one."""
    model = nn.Sequential(*LAYERS)
    kept = []
    for one in model:
        one.register_forward_hook(lambda module, args, out: kept.append(out))
    model(X)
    return kept[layer]


def test_one_layer_of_several_that_call_the_function_is_named():
    # The input of layer 0 is the same under both libraries; those behind it get other numbers.
    found = smallest_cause("std", "udfs/canary", lambda: metric(0))
    assert found.blamed == (Unit("exp", "0", "aten::_softmax"),)
    assert found.proved
    (cause,) = found.causes
    assert cause.minimal
    assert cause.alone.digest == found.b.digest != found.a.digest == found.without.digest
    assert "exp in 0, aten::_softmax\n" in found.text()
    line = metric.__code__.co_firstlineno + 6
    assert f"test_blame.py:{line}, in metric: model(X)" in found.blamed[0].source
    assert f"    at {found.blamed[0].source}\n" in found.text()
    assert "Proof: With all from canary but this" in found.text()
    assert json.loads(json.dumps(found.document()))["causes"][0]["units"][0]["layer"] == "0"


def test_a_set_that_has_to_be_swapped_together_is_found():
    # Neither alone brings the sum of steps over 2.
    def steps():
        x = torch.tensor([0.3])
        return (float(x.exp()) != 0.3**0 * STOCK[0]) + (float(x.tanh()) != STOCK[1]) + 0.0

    STOCK = [float(torch.tensor([0.3]).exp()), float(torch.tensor([0.3]).tanh())]
    with patched("udfs/canary"):
        assert steps() == 2
    found = smallest_cause("std", "udfs/canary", steps, by=1.5)
    assert {u.function for u in found.blamed} == {"exp", "tanh"}
    assert len(found.causes) == 1
    assert found.proved
    assert "with any fewer, the difference is gone" in found.text()


def test_a_search_counts_its_runs():
    texts = []

    def counted():
        texts.append(shown.text)
        return X.exp(), X.tanh()

    with Progress("blaming", 0) as shown:
        found = smallest_cause("std", "udfs/canary", counted)
    said = list(dict.fromkeys(texts))  # one run may call it several times
    assert said[:5] == [f"blaming, run {n} of 5 before the trials" for n in range(1, 6)]
    trials = [re.fullmatch(r"blaming, trial (\d+), (\d) of 2 units from b", s) for s in said[5:]]
    assert [int(trial[1]) for trial in trials] == list(range(1, found.trials + 1))
    assert {int(trial[2]) for trial in trials} == {0, 1, 2}


def test_independent_causes_are_named_one_after_the_other():
    def both():
        return X.exp(), X.tanh()

    found = smallest_cause("std", "udfs/canary", both)
    assert [[u.function for u in c.units] for c in found.causes] == [["exp"], ["tanh"]]
    assert found.proved
    first = smallest_cause("std", "udfs/canary", both, causes=1)
    assert not first.proved
    assert "There are more causes" in first.text()


def test_libraries_may_stand_the_other_way_round_and_gradients_count():
    def gradient():
        x = X.clone().requires_grad_()
        x.exp().sum().backward()
        return x.grad

    found = smallest_cause("udfs/canary", "std", gradient)
    assert found.blamed == (Unit("exp", "no module", "aten::exp"),)
    assert found.proved


def test_the_innocent_are_not_blamed_and_nothing_stays_patched():
    before = X.exp()
    # tanh differs, too, and the metric does not look at it.
    found = smallest_cause("std", "udfs/canary", lambda: (X.tanh(), X.exp())[1])
    assert {u.function for u in found.blamed} == {"exp"}
    assert torch.equal(X.exp(), before)
    with pytest.raises(DiagnosisError, match=r"does not differ between std .* and canary"):
        smallest_cause("std", "udfs/canary", lambda: X.relu())
    with pytest.raises(DiagnosisError, match="does not differ by more than 1 between"):
        smallest_cause("std", "udfs/canary", lambda: X.exp().sum(), by=1)
    assert torch.equal(X.exp(), before)


def test_what_cannot_be_blamed_is_said():
    count = itertools.count()
    for a, b, target, options, message in (
        ("std", "std", metric, {}, "Both libraries are the stock one"),
        ("std", "udfs/canary", lambda: next(count), {}, "is not deterministic: two runs under std"),
        ("std", "udfs/canary", lambda: 1 / 0, {}, "raised ZeroDivisionError.*under std already"),
        ("std", "udfs/canary", lambda: None, {}, "returned nothing|NoneType"),
        ("std", "udfs/canary", metric, {"by": -1}, "no distance"),
        ("std", "udfs/canary", metric, {"causes": 0}, "at least one cause"),
        ("std", "udfs/canary", metric, {"workers": 2}, "cannot run in other ones"),
        ("std", "udfs/canary", metric, {"journal": "x"}, "journal is for a target that is named"),
        ("std", "udfs/canary", 3, {}, "neither a function nor the name"),
        ("std", "udfs/canary", "model", {}, "names neither a metric nor a test"),
        ("std", "udfs/canary", "no.py:metric", {}, "There is no file no.py"),
    ):
        with pytest.raises(DiagnosisError, match=message):
            smallest_cause(a, b, target, **options)
    with pytest.raises(UnknownLibraryError):
        smallest_cause("std", "nobody", metric)


def test_what_calls_no_operator_is_not_taken_apart():
    library = []

    def outside():
        from pytest_udftorch.swap.session.binder import binder

        # Asks the slots, which no operator does.
        library.append(len(binder().owners()))
        return bool(binder().held(binder().owners()[-1]))

    with pytest.raises(DiagnosisError, match="watched operator by operator"):
        smallest_cause("std", "udfs/canary", outside)


MODEL = """
    import torch

    def metric():
        x = torch.linspace(-2, 2, 64)
        return x.exp().sum() * 0 + x.tanh()

    def test_tanh():
        assert float(torch.tensor(0.75).tanh()).hex() == {expected!r}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("blame")
    expected = float(torch.tensor(0.75).tanh()).hex()
    (path / "test_it.py").write_text(textwrap.dedent(MODEL).format(expected=expected))
    return path


@pytest.mark.slow
def test_the_page_shows_what_happens(tmp_path, monkeypatch, capsys, request):
    root = request.config.rootpath
    text = (root / "docs" / "diagnose" / "blame.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "udfs").symlink_to(root / "udfs")
    for name, body in re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)^```$", text, re.M | re.S):
        (tmp_path / name).write_text(body)
    (block,) = re.findall(r"```console\n(.*?)^```$", text, re.M | re.S)
    for command, *lines in (s.splitlines() for s in block.split("$ ")[1:]):
        assert cli.main(shlex.split(command)[1:]) in (0, cli.FAILED)
        out = capsys.readouterr().out
        for part in filter(None, " ".join(lines).split("...")):
            assert part.split() == [] or " ".join(part.split()) in " ".join(out.split())


@pytest.mark.slow
def test_a_test_is_blamed_in_processes_of_its_own(folder, monkeypatch, capsys, request):
    canary = request.config.rootpath / "udfs" / "canary"
    monkeypatch.chdir(folder)
    command = ["blame", "--b", str(canary), "--store", "found.json", "--journal", "journal"]
    assert cli.main([*command, "test_it.py::test_tanh"]) == 0
    out = capsys.readouterr().out
    assert "test_it.py::test_tanh: passed under std, failed (" in out
    assert "tanh in no module, aten::tanh" in out
    assert "Proof: " in out
    assert json.loads((folder / "found.json").read_text())["proved"]
    # Everything is known now.
    assert cli.main([*command, "--resume", "test_it.py::test_tanh"]) == 0
    assert "; 0 runs, " in capsys.readouterr().out
    with pytest.raises(JournalError, match=r"trials are done.*--resume"):
        smallest_cause("std", canary, "test_it.py::test_tanh", journal="journal")
    with pytest.raises(JournalError, match="target"):
        smallest_cause("std", canary, "test_it.py:metric", journal="journal", resume=True)
    with pytest.raises(DiagnosisError, match="ran no test for"):
        smallest_cause("std", canary, "test_it.py::test_nothing", workers=1)
    with pytest.raises(DiagnosisError, match="0 processes run nothing"):
        smallest_cause("std", canary, "test_it.py:metric", workers=0)


def test_a_scheduler_that_does_not_answer_is_an_error(folder, request):
    pytest.importorskip("distributed")
    # In a process of its own: what earlier tests leave behind once kept dask's threads waiting.
    code = """
import sys
from pytest_udftorch import cli
from pytest_udftorch.prove.verify import workers

workers.CONNECT_SECONDS = 1
sys.exit(cli.main(sys.argv[1:]))
"""
    canary = request.config.rootpath / "udfs" / "canary"
    command = ["blame", "--b", canary, "--scheduler", "tcp://127.0.0.1:9", "test_it.py:metric"]
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "No dask scheduler answers" in done.stderr


@pytest.mark.slow
def test_workers_of_a_scheduler_do_the_same(folder, monkeypatch, request):
    distributed = pytest.importorskip("distributed")
    monkeypatch.chdir(folder)
    canary = request.config.rootpath / "udfs" / "canary"
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        ) as cluster,
    ):
        address = cluster.scheduler_address
        found = smallest_cause("std", canary, "test_it.py:metric", scheduler=address)
    here = smallest_cause("std", canary, "test_it.py:metric", workers=1)
    assert found.causes == here.causes
    assert found.proved
