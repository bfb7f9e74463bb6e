# SPDX-License-Identifier: Apache-2.0
"""Recorded sides, and sides in processes of their own."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import textwrap

import pytest
import torch
from faulty_kernels import next_number, planted
from torch import nn

from pytest_udftorch import cli
from pytest_udftorch.base.plain_data import sealed
from pytest_udftorch.diagnose import first_difference, record_run
from pytest_udftorch.diagnose.diff import record as recorded
from pytest_udftorch.diagnose.runs import other_process as elsewhere
from pytest_udftorch.diagnose.runs import record_file
from pytest_udftorch.diagnose.runs.sides import side
from pytest_udftorch.diagnose.runs.work import Work
from pytest_udftorch.errors import DiagnosisError, RunError
from pytest_udftorch.swap.observe import digests, recorder
from pytest_udftorch.swap.observe.layers import Whereabouts
from pytest_udftorch.swap.observe.recorder import Wanted

MODEL = """
    import torch

    def make():
        layers = torch.nn.Linear(12, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)
        return torch.nn.Sequential(*layers), torch.randn(6, 12)
"""


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    layers = [nn.Linear(12, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(16, 4))


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(6, 12, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def folder(model, inputs, tmp_path_factory):
    """A record with the values of the first two operators."""
    path = tmp_path_factory.mktemp("record")
    record_run(path, model, inputs, full=(0, 2))
    return path


def test_a_record_is_read_as_it_was_written(model, inputs, tmp_path):
    written = record_run(tmp_path / "new" / "folder", model, inputs, full=(2, 4), seed=3)
    read = record_file.load(tmp_path / "new" / "folder")
    assert read.recording.calls == written.recording.calls
    assert read.recording.result == written.recording.result
    assert (read.seed, read.machine["torch"]) == (3, torch.__version__)
    assert sorted(read.recording.kept) == [2, 3]
    for at, one in read.recording.kept.items():
        again = one.operator(*one.args, **one.kwargs)
        again = again if isinstance(again, tuple) else (again,)
        assert all(torch.equal(x, y) for x, y in zip(again, one.outputs, strict=True)), at


def test_a_record_equals_the_run_that_made_it(model, inputs, folder):
    found = first_difference(f"rec:{folder}", "eager", model, inputs)
    assert found.equal
    assert found.repeatable == {"eager": True}
    assert first_difference(f"rec:{folder}", f"rec:{folder}").equal


@pytest.mark.parametrize("live_first", [True, False])
def test_an_operator_is_named_and_proved_beside_a_record(model, inputs, folder, live_first):
    wrong = planted("aten::gelu", lambda t: t * (1 + 2.0**-12))
    sides = (wrong, f"rec:{folder}") if live_first else (f"rec:{folder}", wrong)
    found = first_difference(*sides, model, inputs)
    first = found.first
    assert (first.operator, first.place.layer, first.kind) == ("aten::gelu", "1", "operator")
    truth, own = first.truth[0], "b" if live_first else "a"
    assert not first.apart[0].sampled
    assert truth.nearer == own
    assert first.explained is False
    assert first.alone
    assert not found.more
    words = ("end" if live_first else "nothing differs any more", "rounding does not explain wrong")
    assert all(w in found.text() for w in words)


def test_samples_judge_where_a_record_has_no_values(model, inputs, folder):
    wrong = planted("aten::gelu", lambda t: t * (1 + 2.0**-12), 1)
    found = first_difference(f"rec:{folder}", wrong, model, inputs)
    first = found.first
    assert (first.operator, first.place.layer) == ("aten::gelu", "4")
    assert first.apart[0].sampled
    assert first.truth[0].nearer == "a"
    assert first.explained is False
    at = first.calls[0]
    assert f"--full {at}:{at + 1}" in first.note
    assert found.more
    assert "further causes" in found.text()
    # What no sample shows is known to differ by its digest.
    little = first_difference(f"rec:{folder}", planted("aten::addmm", _second_up, 1), model, inputs)
    assert little.first.operator == "aten::addmm"
    assert little.first.apart[0].differ == 0


def _second_up(value):
    changed = value.clone()
    changed.view(-1)[1] *= 1 + 2.0**-20
    return changed


def test_two_records_are_compared_without_a_model(model, inputs, folder, tmp_path):
    record_run(tmp_path, model, inputs, on=planted("aten::gelu", next_number, 1))
    found = first_difference(f"rec:{folder}", f"rec:{tmp_path}")
    assert (found.first.operator, found.first.place.layer) == ("aten::gelu", "4")
    assert found.repeatable == {}
    assert json.loads(json.dumps(found.document()))["findings"][0]["kind"] == "operator"


def test_what_does_not_fit_is_refused(model, inputs, folder, tmp_path):
    with pytest.raises(DiagnosisError, match="recorded with seed=0, and this comparison has seed"):
        first_difference(f"rec:{folder}", "eager", model, inputs, seed=1)
    with pytest.raises(DiagnosisError, match=r"There is no recorded run in .*udftorch record"):
        first_difference(f"rec:{tmp_path}", "eager", model, inputs)
    with pytest.raises(DiagnosisError, match="no row of a batch"):
        first_difference(f"rec:{folder}", "row=0", model.eval(), inputs)
    model.train()
    with pytest.raises(DiagnosisError, match="the window 9000:9001"):
        record_run(tmp_path, model, inputs, full=(9000, 9001))
    with pytest.raises(DiagnosisError, match="is empty"):
        record_run(tmp_path, model, inputs, full=(3, 3))
    with pytest.raises(DiagnosisError, match="aot_eager, whose kernels are not seen"):
        record_run(tmp_path, model, inputs, on="backend=aot_eager")
    with pytest.raises(DiagnosisError, match="a record already"):
        record_run(tmp_path, model, inputs, on=f"rec:{folder}")
    with pytest.raises(DiagnosisError, match="needs a folder"):
        first_difference("rec:", "eager", model, inputs)
    with pytest.raises(DiagnosisError, match="cannot be written"):
        record_run("/dev/null/x", model, inputs)
    with pytest.raises(DiagnosisError, match="cannot get objects of this one"):
        first_difference("eager", "capability=avx2", model, inputs)
    with pytest.raises(DiagnosisError, match="There is no Python at"):
        first_difference("eager", f"python:{tmp_path}", model, inputs)


def test_values_of_another_run_are_refused(model, inputs, folder, tmp_path):
    record_run(tmp_path, model, inputs + 1, full=(0, 2))
    for name in ("record.json", "values.pt"):
        (tmp_path / name).write_bytes(
            (folder / name if name == "record.json" else tmp_path / name).read_bytes()
        )
    with pytest.raises(DiagnosisError, match="do not have its digests"):
        record_file.load(tmp_path)
    (tmp_path / "values.pt").write_bytes(b"no archive")
    with pytest.raises(DiagnosisError, match="does not hold the values"):
        record_file.load(tmp_path)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    (tmp_path / "broken.py").write_text("def make():\n    raise ValueError('no weights')\n")


@pytest.mark.usefixtures("files")
def test_an_order_from_another_process_is_done(tmp_path):
    work, wanted = Work(elsewhere.Subject("model.py:make"), 5), Wanted(frozenset({1}), {}, True)
    for name, status in (("model.py:make", 0), ("broken.py:make", 1)):
        order = elsewhere._order(work, side("capability=default,threads=1"), wanted)
        assert order["side"] == "threads=1"
        (tmp_path / "order.json").write_text(json.dumps({**order, "where": name}))
        assert elsewhere.main(tmp_path) == status
    found = record_file.load(tmp_path)
    assert (sorted(found.recording.kept), len(found.recording.calls), found.seed) == ([1], 2, 5)
    assert "no weights" in (tmp_path / "error.txt").read_text()


@pytest.mark.slow  # eight processes that import torch
@pytest.mark.usefixtures("files")
def test_another_process_takes_outputs_and_tells_its_errors():
    there = f"python:{sys.executable}"
    default = record_run("there", on="capability=default", make="model.py:make", full=(0, 3))
    assert default.machine["capability"] == "DEFAULT"
    assert default.side == "capability=default"
    found = first_difference("library=corem", there, make="model.py:make", train=False)
    assert found.first.operator == "aten::gelu"
    assert found.first.proof.same_end
    assert found.first.proof.makes_end
    assert first_difference("eager", there, make="model.py:make").equal
    with pytest.raises(RunError, match=r"capability=avx2: .*no weights"):
        first_difference("capability=avx2", "eager", make="broken.py:make")


def test_the_command_records_a_script_with_its_arguments(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import sys, torch\nprint('shown')\ntorch.ones(4).mul_(float(sys.argv[1]))\n"
    )
    assert cli.main(["record", "train.py", "--out", "one", "--full", "0:1", "--", "2.5"]) == 0
    assert "all values of 1" in capsys.readouterr().out
    assert cli.main(["record", "--out", "two", "train.py", "--", "3.5"]) == 0
    assert cli.main(["diff", "--a", "rec:one", "--b", "eager", "train.py", "--", "2.5"]) == 0
    assert cli.main(["diff", "--a", "rec:one", "--b", "rec:two"]) == 1
    assert "aten::mul_.Tensor" in capsys.readouterr().out
    for arguments, message in [
        (["diff", "--a", "rec:one", "--b", "eager"], "There is nothing to run"),
        (["record", "--out", "x", "train.py"], "IndexError"),
        (["record", "--out", "x", "--steps", "0", "train.py", "--", "1"], "--steps 0 runs nothing"),
    ]:
        assert cli.main(arguments) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["record", "train.py"])
    with pytest.raises(SystemExit):
        cli.main(["record", "--out", "x", "--full", "7", "train.py"])


def _in_earlier_format(folder, target):
    """Write a record as earlier versions did: samples as numbers, no kind of digests."""
    data = json.loads((folder / "record.json").read_text())
    assert data.pop("digests") == "sha1"
    del data["sha256"]
    for tensor in data["tensors"]:
        raw = base64.b64decode(tensor[5])
        tensor[5] = list(digests.numbers_of(raw, tensor[1]))
    data["format"] = record_file.EARLIER
    target.mkdir()
    (target / "record.json").write_text(json.dumps(sealed(data)))


def test_a_record_of_the_earlier_format_is_still_compared(model, inputs, tmp_path, monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(recorded, "fastest", lambda: digests.SHA1)
        record_run(tmp_path / "sha1", model, inputs)
    _in_earlier_format(tmp_path / "sha1", tmp_path / "earlier")
    earlier, now = (record_file.load(tmp_path / n).recording for n in ("earlier", "sha1"))
    assert earlier.hashed == now.hashed == "sha1"
    assert [n.samples for n in earlier.result.values()] == [n.samples for n in now.result.values()]
    assert first_difference(f"rec:{tmp_path / 'earlier'}", "eager", model, inputs).equal
    found = first_difference(
        f"rec:{tmp_path / 'earlier'}", planted("aten::gelu", next_number), model, inputs
    )
    assert found.first.operator == "aten::gelu"


def test_digests_of_two_kinds_are_not_compared(model, inputs, folder, tmp_path, monkeypatch):
    assert record_file.load(folder).recording.hashed == digests.fastest()
    other = digests.SHA1 if digests.fastest() == digests.XXH3 else digests.XXH3
    data = json.loads((folder / "record.json").read_text())
    del data["sha256"]
    (tmp_path / "record.json").write_text(json.dumps(sealed({**data, "digests": other})))
    with pytest.raises(DiagnosisError, match="digests of another kind"):
        first_difference(f"rec:{folder}", f"rec:{tmp_path}")
    (tmp_path / "record.json").write_text(json.dumps(sealed({**data, "digests": digests.XXH3})))
    monkeypatch.setattr(recorded, "fastest", lambda: digests.SHA1)
    with pytest.raises(DiagnosisError, match="pip install xxhash"):
        first_difference(f"rec:{tmp_path}", "eager", model, inputs)


@pytest.mark.parametrize("kind", digests.KINDS)
def test_a_digest_is_of_the_bits_in_the_order_of_the_indices(kind):
    if kind == digests.XXH3:
        pytest.importorskip("xxhash")

    def of(tensor):
        return digests.note_of(tensor, hashed=kind).digest

    x = torch.arange(12.0).view(3, 4)
    assert of(x) == of(x.t().contiguous().t()) != of(x.view(4, 3).t())
    assert of(x) != of(x.view(torch.int32))
    assert of(torch.zeros(2)) != of(-torch.zeros(2))
    for size in (3, 20000):  # long tensors are looked through in another way
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            nan, last, huge = (torch.ones(size, dtype=dtype) for _ in range(3))
            nan[-1] = last[-1] = float("nan")
            last.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])[-1] ^= 1
            huge[0], huge[-1] = torch.finfo(dtype).max, -float("inf")
            assert of(nan) == of(last)
            assert len({of(nan), of(huge), of(torch.ones(size, dtype=dtype))}) == 3


def test_what_was_written_in_place_is_read_once(monkeypatch):
    read = []
    monkeypatch.setattr(recorder, "note_of", lambda t, *_: read.append(t) or digests.note_of(t))
    x, y = torch.ones(3), torch.full((3,), 2.0)

    def step():
        x.add_(y)
        x.mul_(y)
        x.detach().add_(y)
        return x + y

    run = recorder.recorder(Whereabouts(), Wanted(), None, native=False)
    with run:
        step()
    # Two arguments, four results, and x again, which another tensor of its memory wrote to.
    assert len(read) == 8
    notes = [(c.inputs[0].samples[0], c.outputs[0].samples[0]) for c in run.recording.calls]
    assert notes == [(1, 3), (3, 6), (6, 8), (8, 10)]


class Failing(nn.Module):
    """Its third operator gets a shape that it cannot take."""

    def __init__(self, rows=3):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.wrong = nn.Linear(4, 4), nn.Parameter(torch.ones(rows, 2))

    def forward(self, x):
        with contextlib.suppress(RuntimeError):
            x @ torch.ones(5, 5)  # fails, too, and the run goes on
        return self.first(x).relu() @ self.wrong


@pytest.mark.parametrize("native", [True, False], ids=["C++", "Python"])
def test_a_run_that_fails_leaves_the_part_that_was_done(tmp_path, monkeypatch, native):
    if not native:
        monkeypatch.setattr(recorder, "load_recorder", lambda: None)
    with pytest.raises(RunError, match=r"failed in aten::mm of Failing after") as caught:
        record_run(tmp_path, Failing().eval(), torch.ones(2, 4), full=(1, 9))
    assert "before are recorded in" in str(caught.value)
    part = record_file.load(tmp_path).recording
    assert part.calls == caught.value.recording.calls
    assert part.calls[-1].operator == "aten::relu"
    assert part.calls[-1].outputs[0].samples
    assert len(part.calls) - 1 in part.kept
    assert "in aten::mm of Failing" in part.failed
    # The rest of a run that ends is nothing against it, and says nothing for it.
    found = first_difference(f"rec:{tmp_path}", "eager", Failing(4).eval(), torch.ones(2, 4))
    assert [f.kind for f in found.findings] == ["sequence"]
    assert found.calls == (len(part.calls), len(part.calls))
    assert "failed in aten::mm of Failing" in found.text()
    wrong = planted("aten::relu", next_number)
    found = first_difference(f"rec:{tmp_path}", wrong, Failing(4).eval(), torch.ones(2, 4))
    assert [f.operator for f in found.findings] == ["aten::relu", ""]


def test_a_run_that_fails_in_another_process_leaves_its_part(tmp_path):
    source = "import torch\ndef make():\n    x = torch.ones(2)\n"
    source += "    return lambda: x.exp() + torch.ones(3)\n"
    (tmp_path / "model.py").write_text(source)
    with pytest.raises(RunError, match=r"failed in aten::add\.Tensor of no module after"):
        record_run(tmp_path / "out", on="capability=default", make=f"{tmp_path}/model.py:make")
    part = record_file.load(tmp_path / "out").recording
    assert [c.operator for c in part.calls if "exp" in c.operator] == ["aten::exp"]
    with pytest.raises(DiagnosisError, match="a run that failed, so it has no results"):
        first_difference(f"rec:{tmp_path / 'out'}", "compiled", torch.exp, torch.ones(2))
