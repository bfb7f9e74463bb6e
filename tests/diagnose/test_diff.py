# SPDX-License-Identifier: Apache-2.0
"""The first operator that makes two runs differ: named, judged and proved."""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from faulty_kernels import next_number, planted
from torch import nn

from pytest_udftorch import cli
from pytest_udftorch.diagnose import Side, first_difference, save_reproducer
from pytest_udftorch.diagnose.diff.result import Difference, Finding, LayerDistance
from pytest_udftorch.diagnose.runs.sides import side
from pytest_udftorch.errors import DiagnosisError, RunError
from pytest_udftorch.prove.judge import truth
from pytest_udftorch.prove.judge.truth import judged
from pytest_udftorch.swap.observe.layers import Place
from pytest_udftorch.swap.observe.recorder import Kept

PAGES = [
    Path(__file__).parents[2] / "docs" / "diagnose" / name
    for name in ("diff.md", "diff_compiled.md")
]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    layers = [nn.Linear(12, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(16, 4))


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(6, 12, generator=torch.Generator().manual_seed(2))


def test_equal_sides_are_said_to_be_equal(model, inputs):
    before = [p.clone() for p in model.parameters()]
    harmless = planted("aten::gelu", lambda value: value.clone())
    found = first_difference("eager", harmless, model, inputs)
    assert found.equal
    assert found.first is None
    assert "give the same bits" in found.text()
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("operator", "at", "layer", "phase"),
    [
        ("aten::gelu", 1, "4", "forward"),
        ("aten::addmm", 1, "3", "forward"),
        ("aten::gelu_backward", 1, "1", "backward"),
        ("aten::mm", 2, "3", "backward"),
    ],
)
def test_one_ulp_is_named_with_operator_layer_and_proof(model, inputs, operator, at, layer, phase):
    wrong = planted(operator, next_number, at)
    found = first_difference("eager", wrong, model, inputs)
    first = found.first
    assert (first.kind, first.operator) == ("operator", operator)
    assert (first.place.layer, first.place.phase) == (layer, phase)
    assert (first.apart[0].differ, first.apart[0].ulp) == (1, 1)
    assert len(found.findings) == 1
    assert not found.more
    assert first.proof.removed == 0
    assert first.proof.same_end
    assert first.proof.makes_end
    assert first.proof.made == first.proof.before == found.differ
    assert "nothing differs any more; with wrong's put into eager's run, that run ends" in str(
        found.text()
    )


def test_two_causes_are_both_named(model, inputs):
    one = planted("aten::addmm", lambda t: t * (1 + 2.0**-18))
    two = planted("aten::gelu", lambda t: t * (1 + 2.0**-18), 1)
    both = Side(name="both", around=_nested(one.around, two.around))
    found = first_difference("eager", both, model, inputs, train=False)
    named = [(f.operator, f.place.layer) for f in found.findings]
    assert named == [("aten::addmm", "0"), ("aten::gelu", "4")]
    assert not found.findings[0].proof.same_end
    assert found.findings[1].proof.same_end
    only = first_difference("eager", both, model, inputs, train=False, causes=1)
    assert only.more
    assert not only.explained


def _nested(*makers):
    import contextlib

    def around():
        stack = contextlib.ExitStack()
        for make in makers:
            stack.enter_context(make())
        return stack

    return around


class Adds(nn.Module):
    def forward(self, x):
        return (x + 1.0).exp().sum()


def test_truth_and_bound_tell_error_from_rounding():
    x = torch.linspace(-3.3, 3.0, 64)
    by_add = first_difference("eager", planted("aten::add.Tensor", next_number), Adds(), x)
    truth = by_add.first.truth[0]
    assert truth.a.ulp <= 0.5 < truth.b.ulp  # IEEE 754 rounds a sum once
    assert truth.nearer == "a"
    assert by_add.first.explained is False
    assert "rounding does not explain wrong" in by_add.text()

    by_exp = first_difference("eager", planted("aten::exp", next_number), Adds(), x)
    truth = by_exp.first.truth[0]
    assert truth.method == "MPFR"
    assert truth.a.ulp < 1.0 < truth.b.ulp + 0.5
    assert by_exp.first.explained is True  # within what kernels of exp may differ by

    far = planted("aten::exp", lambda value: value * (1 + 2.0**-18))
    assert first_difference("eager", far, Adds(), x).first.explained is False


@pytest.mark.parametrize(
    ("operator", "change", "explained"),
    [
        ("aten::addmm", next_number, True),
        ("aten::addmm", lambda t: t.half().float(), False),
        ("aten::native_layer_norm", lambda t: (next_number(t[0]), *t[1:]), True),
        ("aten::native_layer_norm", lambda t: (t[0] * (1 + 5e-6), *t[1:]), False),
        ("aten::gelu", next_number, True),
        ("aten::gelu", lambda t: t.bfloat16().float(), False),
        ("aten::gelu_backward", lambda t: t.roll(1, 0), False),
        ("aten::native_layer_norm_backward", lambda t: (t[0].half().float(), *t[1:]), False),
    ],
)
def test_only_what_rounding_does_not_explain_is_accused(model, inputs, operator, change, explained):
    found = first_difference("eager", planted(operator, change), model, inputs, causes=1)
    assert found.first.operator == operator
    assert found.first.explained is explained


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_outputs_are_judged_alike_in_parts_and_as_a_whole(dtype, monkeypatch):
    a = torch.linspace(-3, 3, 60).view(3, 20).to(dtype)
    b = a.clone()
    b[2, 7] *= 1.5
    b[1, 0], b[1, 1] = -a[1, 0], a[1, 1] * (1 + torch.finfo(dtype).eps)
    exact, bound = a.double().clone(), a.double().abs() * 0.1
    whole = truth.apart(a, b, 0), truth._error(b, exact, bound, None)
    assert (whole[0].differ, whole[0].worst[0], whole[1].beyond) == (3, (1, 0), 2)
    a[0, 3] = b[0, 3] = exact[0, 3] = math.nan
    a[0, 4] = math.inf
    broken = truth.apart(a, b, 0), truth._error(a, exact, bound, None)
    assert (broken[0].differ, broken[0].relative, broken[1].ulp) == (4, math.inf, math.inf)
    monkeypatch.setattr(truth, "_PART", 7)
    assert truth.apart(a, b, 0) == broken[0]
    assert truth._error(a, exact, bound, None).beyond == broken[1].beyond
    a[0, 3:5] = b[0, 3:5] = exact[0, 3:5] = 1.0
    parts = truth._error(b, exact, bound, None)
    assert (parts.ulp, parts.beyond, parts.excess) == (whole[1].ulp, 2, whole[1].excess)
    assert math.isclose(parts.relative, whole[1].relative, rel_tol=0.2)


def test_other_arguments_are_told_from_another_operator(inputs):
    def run(eps):
        return lambda: torch.nn.functional.layer_norm(inputs, (12,), eps=eps)

    found = first_difference(run(1e-5), Side(name="b", run=run(1e-6)))
    assert found.first.kind == "arguments"
    assert found.first.arguments == (("eps", "1e-05", "1e-06"),)
    assert "equal tensors, other arguments: eps=1e-05 for <lambda>, 1e-06 for b." in found.text()
    assert found.verdict().startswith("Other arguments of aten::native_layer_norm in no module (")
    assert "who is nearer" not in found.text(), "each is right about what it was given"


def test_random_numbers_are_aligned_or_are_the_finding(inputs):
    model = nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5))
    assert first_difference("eager", Side(name="b"), model, inputs).equal

    def draws_once_more():
        import contextlib

        torch.rand(1)
        return contextlib.nullcontext()

    found = first_difference("eager", Side(name="b", around=draws_once_more), model, inputs)
    assert found.equal  # seeds are set inside of the side's context

    def run(extra):
        def call():
            if extra:
                torch.default_generator.manual_seed(7)
            return nn.functional.dropout(inputs, 0.5)

        return call

    found = first_difference(Side(name="a", run=run(False)), Side(name="b", run=run(True)))
    assert found.first.kind == "random"
    assert found.first.operator == "aten::bernoulli_.float"


def test_a_model_that_is_not_deterministic_is_said_to_be_so_first(inputs):
    state = [0]

    class Counts(nn.Module):
        def forward(self, x):
            state[0] += 1
            return x.mul(state[0]).tanh()

    found = first_difference("eager", "library=corem", Counts(), inputs)
    assert found.repeatable == {"eager": False}
    assert found.first.operator == "aten::mul.Tensor"
    assert "differs from itself" in found.text()


def test_other_sequences_are_aligned_and_shown(inputs):
    def plain():
        return inputs.mul(2.0).sin().sum()

    def longer():
        return inputs.mul(2.0).add(0.25).sub(0.25).sin().sum()

    found = first_difference(plain, longer)
    assert found.first.kind == "sequence"
    assert found.first.operator == "aten::sin"
    (gap,) = found.unaligned
    assert [name.partition(" ")[0] for name in gap[1]] == ["aten::add.Tensor", "aten::sub.Tensor"]
    assert "Only longer calls aten::add.Tensor" in found.text()


def test_what_is_written_in_place_is_seen(inputs):
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(12))
            self.norm = nn.BatchNorm1d(12)

        def forward(self, x):
            x = x.clone()
            x[:, 0].exp_()
            self.seen += x.detach().sum(0)
            return self.norm(x).relu_()

    wrong = planted("aten::exp_", lambda t: t.mul_(1 + 2.0**-20))
    found = first_difference("eager", wrong, Writes(), inputs)
    assert found.first.operator == "aten::exp_"
    assert found.first.proof.same_end
    assert "buffer seen" in found.results
    assert "buffer norm.running_mean" in found.results


def test_a_row_alone_is_compared_with_its_row_in_the_batch(model, inputs):
    found = first_difference("eager", "row=4", model, inputs, causes=8)
    assert all(f.kind == "operator" for f in found.findings)
    wrong = planted("aten::native_layer_norm", lambda t: (t[0] * 1.5, *t[1:]))
    alone = Side(name="alone", row=4, around=wrong.around)
    found = first_difference("eager", alone, model, inputs, causes=8)
    (guilty,) = [f for f in found.findings if f.explained is False]
    assert guilty.operator == "aten::native_layer_norm"
    assert guilty.apart[0].elements == 16


def test_a_row_is_found_in_the_second_dimension_and_workspaces_do_not_count():
    torch.manual_seed(0)
    model = nn.LSTM(6, 8, num_layers=2, batch_first=True)
    x = torch.randn(4, 5, 6)
    assert all(f.kind == "operator" for f in first_difference("eager", "row=2", model, x).findings)
    # Part of what the operator keeps for its backward pass is memory that nobody wrote.
    wrong = planted("aten::mul.Tensor", next_number)
    loss = lambda result: (result[0] * 3.0).sum()  # noqa: E731
    found = first_difference("eager", wrong, model, x, loss=loss)
    assert found.repeatable == {"eager": True}
    assert found.first.operator == "aten::mul.Tensor"


def test_a_sum_that_cancels_is_not_accused():
    half, other = torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(5))
    upstream = torch.cat([half, 1e-3 * other - half])

    def run():
        weight, bias = (torch.ones(32, requires_grad=True) for _ in range(2))
        x = torch.linspace(-1.0, 2.0, 2048).reshape(64, 32)
        torch.nn.functional.layer_norm(x, (32,), weight, bias).backward(upstream)
        return bias.grad

    changed = planted(
        "aten::native_layer_norm_backward",
        lambda t: (*t[:2], t[2] + 2.0**-20),  # of a sum of magnitudes of about 50
    )
    found = first_difference(run, Side(name="b", run=run, around=changed.around))
    assert found.first.operator == "aten::native_layer_norm_backward"
    assert found.first.explained is True


def _normed(x, training, eps=1e-5):
    """Return what a batch norm gives and what it makes of the running statistics."""
    weight, bias = torch.linspace(0.5, 2.0, 4), torch.linspace(-1.0, 1.0, 4)
    stats = torch.zeros(4), torch.ones(4)
    out = torch.ops.aten.native_batch_norm(x, weight, bias, *stats, training, 0.1, eps)
    return (*out, *stats)


def _in_turn(x, eps=1e-5):
    """Return the same with sums in the type of x, in turn, and the channel folded into a line."""
    rows = x.movedim(1, -1).reshape(-1, 4)
    weight, bias = torch.linspace(0.5, 2.0, 4), torch.linspace(-1.0, 1.0, 4)
    mean = _sum_in_turn(rows) / len(rows)
    squares = _sum_in_turn((rows - mean).square())
    scale = (squares / len(rows) + eps).rsqrt()
    folded = scale * weight
    result = x * folded.view(1, 4, 1, 1) + (bias - mean * folded).view(1, 4, 1, 1)
    return result, mean, scale, 0.1 * mean, 0.9 + 0.1 * squares / (len(rows) - 1)


def _sum_in_turn(rows):
    total = torch.zeros_like(rows[0])
    for row in rows:
        total = total + row
    return total


def _outside(x, outputs, training=True):
    """Return how many elements of each output rounding does not explain."""
    arguments = (
        x, torch.linspace(0.5, 2.0, 4), torch.linspace(-1.0, 1.0, 4), torch.zeros(4),
        torch.ones(4), training, 0.1, 1e-5,
    )  # fmt: skip
    kept = Kept(torch.ops.aten.native_batch_norm.default, arguments, {}, [])
    found = []
    for index, value in enumerate(outputs):
        if value.numel():
            found.append(judged(kept, value, value, index).b.beyond)
    return found


def _channels(kind):
    x = torch.randn(4, 4, 12, 12, generator=torch.Generator().manual_seed(3))
    x = x - x.double().mean((0, 2, 3), keepdim=True).float()
    return {"mean that cancels": x, "mean of 300 deviations": x + 300, "small": 1e-4 * x}[kind]


@pytest.mark.parametrize("kind", ["mean that cancels", "mean of 300 deviations", "small"])
def test_orders_of_a_batch_norm_are_explained_and_faults_are_not(kind):
    x = _channels(kind)
    for form in (x, x.contiguous(memory_format=torch.channels_last)):
        assert not any(_outside(x, _normed(form, True)))
    assert not any(_outside(x, _in_turn(x)))
    assert not any(_outside(x, _normed(x, False), training=False))

    # A tenfold epsilon changes the result and the root, unless the variance itself is lost in the
    # rounding of numbers 300 times as large.
    wrong = _outside(x, _in_turn(x, eps=1e-4))
    found = kind != "mean of 300 deviations"
    assert [count > 0 for count in wrong[:3]] == [found, False, found]
    half = _in_turn(x.half())
    assert _outside(x, [value.float() for value in half])[0]
    # Statistics of three images of four.
    shortened = _normed(x[:3], True)
    assert all(_outside(x, [_normed(x, True)[0], *shortened[1:3]])[1:])


def test_the_mean_of_a_layer_norm_may_cancel():
    x = torch.randn(8, 256, generator=torch.Generator().manual_seed(4))
    x = x - x.double().mean(1, keepdim=True).float()
    operator = torch.ops.aten.native_layer_norm.default
    kept = Kept(operator, (x, [256], None, None, 1e-5), {}, [])
    mean = _sum_in_turn(x.T)[:, None] / 256
    assert judged(kept, mean, mean, 1).b.beyond == 0
    # Negative control: a number of 256 is missing.
    short = _sum_in_turn(x[:, 1:].T)[:, None] / 256
    assert judged(kept, short, short, 1).b.beyond


def test_attention_without_dropout_has_a_truth():
    def attend():
        q = torch.linspace(-1.0, 1.0, 128).reshape(1, 2, 8, 8)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    name = "aten::_scaled_dot_product_flash_attention_for_cpu"
    wrong = planted(name, lambda t: (next_number(t[0].contiguous()), *t[1:]))
    found = first_difference(attend, Side(name="b", run=attend, around=wrong.around))
    assert found.first.operator == name
    assert found.first.explained is True


def test_autocast_is_shown_by_the_casts_that_only_one_side_has(model, inputs):
    found = first_difference("eager", "autocast=bfloat16", model, inputs)
    assert found.first.kind == "sequence"
    assert any("aten::_to_copy in 0" in name for _, names in found.unaligned for name in names)


def test_a_library_is_judged_by_mpfr_and_reproduced(tmp_path):
    x = torch.linspace(-20.0, 20.0, 4096)
    found = first_difference("eager", "library=corem", Adds(), x)
    assert found.first.operator == "aten::exp"
    truth = found.first.truth[0]
    assert truth.method == "MPFR"
    assert truth.nearer == "b"
    assert truth.b.ulp <= 0.5
    json.dumps(found.document())

    script = save_reproducer(found, tmp_path / "case")
    shown = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert shown.stdout.count("gives the saved output again") == 2
    assert f"output 0: {found.first.apart[0].differ} of 4096 elements differ" in shown.stdout


def test_a_difference_that_no_script_shows_is_refused(model, inputs, tmp_path):
    found = first_difference("eager", planted("aten::gelu", next_number), model, inputs)
    with pytest.raises(DiagnosisError, match="cannot be written as a script"):
        save_reproducer(found, tmp_path)
    equal = first_difference("eager", "threads=1,eager", Adds(), torch.ones(2))
    with pytest.raises(DiagnosisError, match="the runs are equal"):
        save_reproducer(equal, tmp_path)
    library = first_difference("eager", "library=corem", Adds(), torch.linspace(-9.0, 9.0, 999))
    (tmp_path / "file").write_text("")
    with pytest.raises(DiagnosisError, match="Name a folder"):
        save_reproducer(library, tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("egaer", "Did you mean 'eager'"),
        ("libary=corem", "Did you mean 'library'"),
        ("threads=none", "has to be a number"),
        ("dtype=int8", "no type of numbers"),
        ("precision=hihg", "Did you mean 'high'"),
        ("library=", "cannot have 'library'=''"),
    ],
)
def test_a_side_that_means_nothing_is_an_error(text, message):
    with pytest.raises(DiagnosisError, match=message):
        side(text)


def test_a_side_may_name_the_precision_of_products():
    before = torch.get_float32_matmul_precision()
    seen = []

    def run():
        seen.append(torch.get_float32_matmul_precision())
        return torch.ones(2) + 1

    found = first_difference("precision=medium", "eager", run)
    assert {"medium", before} == set(seen)
    assert found.equal
    assert torch.get_float32_matmul_precision() == before
    assert side("precision=medium").name == "precision=medium"


def test_runs_that_cannot_be_compared_are_errors(model, inputs):
    with pytest.raises(DiagnosisError, match="nothing to run"):
        first_difference("eager", "cpu")
    with pytest.raises(DiagnosisError, match="no row 9 in a batch of 6"):
        first_difference("eager", "row=9", model, inputs)
    with pytest.raises(DiagnosisError, match="cannot be trained alone"):
        first_difference("eager", "row=1", model, inputs, train=True)
    with pytest.raises(DiagnosisError, match="Both sides run a row alone"):
        first_difference("row=2", "row=1", model, inputs)
    with pytest.raises(
        RunError, match="The run of 'eager' failed in aten::addmm of 0: RuntimeError"
    ):
        first_difference("eager", "cpu", model, inputs[:, :5].exp())
    with pytest.raises(RunError, match="calls no operator"):
        first_difference(lambda: None, lambda: None)
    with pytest.raises(RunError, match="returned int"):
        first_difference("eager", "cpu", make=lambda: 3)
    with pytest.raises(DiagnosisError, match="3 is not a side"):
        first_difference(3, "eager", model, inputs)
    locked = nn.Linear(12, 3)
    locked.handle = sys.modules[__name__]
    with pytest.raises(RunError, match="cannot be copied"):
        first_difference("eager", "cpu", locked, inputs)


MODEL = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1)), torch.randn(64, 8)

def bare():
    return torch.nn.Linear(8, 8)

nothing = 3
"""

SCRIPT = """
import sys
import torch

x = torch.linspace(-40.0, 4.0, 2000)
print(x.exp().sum(), sys.argv[1])
"""


def test_the_command_compares_models_and_scripts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(SCRIPT)
    assert cli.main(["diff", "--b", "cpu", "model.py:make"]) == 0
    assert "eager and cpu give the same bits" in capsys.readouterr().out
    store = ["--store", "found.json", "--no-train"]
    assert cli.main(["diff", "--b", "library=corem", *store, "model.py:make"]) == cli.FAILED
    document = json.loads((tmp_path / "found.json").read_text())
    assert document["findings"][0]["operator"] == "aten::_softmax"
    assert document["findings"][0]["place"]["layer"] == "1"
    assert cli.main(["diff", "--b", "library=corem", "--rounding", "train.py", "--", "now"]) == 0
    out = capsys.readouterr().out
    assert "aten::exp in no module" in out
    assert "nothing differs any more; with library=corem's put into eager's run, that run" in out
    for words, message in (
        (["train.py"], "IndexError"),
        (["other.py"], "no script other.py"),
        (["model.py:nothing"], "has no function 'nothing'"),
        (["model.py:make", "--", "now"], "takes no arguments (now)"),
        (["model.py:bare"], "returned Linear without inputs, and it needs input. Return it too"),
        (["--b", "dtype=float64", "train.py", "--", "now"], "needs a model and its inputs"),
        (["--store", "no/file.json", "model.py:make"], "Name a file in a folder"),
    ):
        assert cli.main(["diff", "--b", "cpu", *words]) == cli.MISUSE
        assert message in capsys.readouterr().err


@pytest.fixture
def two_models(tmp_path, monkeypatch):
    """The folder becomes one with two models and two scripts that differ in an argument."""
    monkeypatch.chdir(tmp_path)
    text = "import torch\ndef make(): return torch.nn.GELU({}).eval(), torch.linspace(-3, 3, 64)\n"
    for name, argument in (("a", ""), ("b", "approximate='tanh'")):
        (tmp_path / f"{name}.py").write_text(text.format(argument))
        (tmp_path / f"{name}_script.py").write_text(
            f"{text.format(argument)}import sys\nmodel, x = make()\nmodel(x * float(sys.argv[1]))\n"
        )


@pytest.mark.slow
@pytest.mark.usefixtures("two_models")
def test_a_side_in_a_process_of_its_own_gets_what_that_side_runs(capsys):
    sides = ["a.py:make", "b.py:make", "--b", "capability=avx2"]
    assert cli.main(["diff", *sides]) == cli.FAILED
    assert "Other arguments of aten::gelu in GELU" in capsys.readouterr().out


@pytest.mark.usefixtures("two_models")
def test_two_models_and_two_scripts_are_compared_by_one_command(tmp_path, capsys):
    assert cli.main(["diff", "a.py:make", "b.py:make", "--store", "found.json"]) == cli.FAILED
    out = capsys.readouterr().out
    named = "Other arguments of aten::gelu in GELU (approximate='none' for a.py:make, 'tanh' for"
    assert out.startswith(named)
    document = json.loads((tmp_path / "found.json").read_text())
    assert document["findings"][0]["arguments"] == [["approximate", "'none'", "'tanh'"]]
    assert document["verdict"] == out.partition("\n")[0]
    assert cli.main(["diff", "a.py:make", "a.py:make", "--b", "threads=1"]) == 0, "the control"
    assert cli.main(["diff", "a_script.py", "b_script.py", "--", "0.5"]) == cli.FAILED
    assert "Other arguments of aten::gelu in GELU" in capsys.readouterr().out


PLACE = Place("net", "forward", 0)


def found_with(*kinds, more=False, results=None, **fields):
    """Return a Difference whose findings are of these kinds, each explained or not."""
    error = truth.Error(1.0, 1e-7, 0, 0.5)
    beyond = truth.Error(9.0, 1e-3, 7, 90.0)
    apart = truth.Apart(0, 9, 3, 2, 1e-7, ((0,), 1.0, 2.0))
    findings = []
    for kind, explained in kinds:
        judged = () if explained is None else (truth.Truth("MPFR", "x", error, error),)
        if explained is False:
            judged = (truth.Truth("MPFR", "x", error, beyond),)
        findings.append(
            Finding(kind, "aten::exp", PLACE, (0, 0), (apart,) * len(judged), judged)
            if kind not in ("result", "compiled") else Finding(kind)
        )  # fmt: skip
    return Difference("a", "b", tuple(findings), {"a": True}, (9, 9), 3, more=more,
                      results=results or {}, **fields)  # fmt: skip


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (found_with(), "Equal: a and b give the same bits."),
        (
            found_with(unread=("a tensor of [3], float32, the result y",)),
            "Not known to be equal: one tensor could not be read, and what was read has the same",
        ),
        (
            found_with(("operator", True), unread=("x", "y")),
            "Ordinary rounding: one cause, aten::exp in net; 2 tensors could not be read.",
        ),
        (
            found_with(("operator", True), results={"output": 3e-7}),
            "Ordinary rounding: one cause, aten::exp in net; the results differ by 3e-07 of their "
            "norm.",
        ),
        (
            found_with(("operator", True), ("operator", True), more=True),
            "Ordinary rounding: 2 causes or more, first aten::exp in net.",
        ),
        (
            found_with(("operator", True), ("operator", False)),
            "More than rounding: 2 causes, first aten::exp",
        ),
        (found_with(("operator", None)), "Rounding, or more: unknown: one cause, aten::"),
        (
            found_with(("operator", True), results={"output": 0.0}),
            "Ordinary rounding: one cause, aten::exp in net; some bits of the result differ.",
        ),
        (found_with(("arguments", None)), "Other arguments of aten::exp in net."),
        (found_with(("random", None)), "Other random numbers: aten::exp in net begins from"),
        (found_with(("inputs", None), more=True), "Other inputs: the sides begin from other"),
        (
            found_with(("sequence", None), unaligned=((("aten::mul in net",), ()),)),
            "Other operators: only a calls aten::mul in net.",
        ),
        (
            found_with(("sequence", None), unaligned=((("x", "x", "y", "z", "u", "u"), ("v",)),)),
            "Other operators: only a calls x (2 times), y, z and 2 more; only b calls v.",
        ),
        (found_with(("result", None)), "Other results, though every operator gives the same."),
    ],
)
def test_the_verdict_comes_first_and_the_rest_agrees(found, says):
    assert found.verdict().startswith(says)
    if not found.equal:
        assert found.text().startswith(found.verdict())
    assert ("further causes" in found.text()) == (found.more and "inputs" not in found.first.kind)
    assert all(f"Not read: {one}." in found.text() for one in found.unread)


def test_who_is_nearer_says_by_what_where_the_worst_element_says_otherwise():
    near, far = truth.Error(9.0, 1e-7, 0, 0.5), truth.Error(2.0, 3e-7, 0, 0.5)
    apart = truth.Apart(0, 9, 3, 2, 1e-7, ((0,), 1.0, 2.0))

    def said(a, b):
        return Finding(
            "operator", "aten::exp", PLACE, (0, 0), (apart,), (truth.Truth("MPFR", "x", a, b),)
        ).text()

    worse = "b is nearer the truth by the norm of its error, though its worst element is farther"
    assert worse in said(far, near)
    assert "a is nearer the truth by the norm of its error (" in said(near, truth.Error(9, 1, 0, 0))
    assert "b is nearer the truth by its worst element" in said(near, truth.Error(2, 1e-7, 0, 0))
    assert "both are alike near the truth" in said(near, near)


def test_a_layer_whose_samples_agree_has_no_distance_of_0():
    layers = (LayerDistance("net", (3, 4), 0.0), LayerDistance("head", (1, 1), 2e-7))
    text = found_with(("operator", True), layers=layers).text()
    assert re.search(r"net +3 of 4 +not in the samples", text)
    assert re.search(r"head +1 of 1 +2e-07", text)


def test_the_page_shows_what_happens(tmp_path, monkeypatch, capsys):
    text = "\n".join(page.read_text() for page in PAGES)
    monkeypatch.chdir(tmp_path)
    for name, body in re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)^```$", text, re.M | re.S):
        (tmp_path / name).write_text(body)
    blocks = re.findall(r"```console\n(.*?)^```$", text, re.M | re.S)
    shown = [one for block in blocks for one in re.split(r"^\$ ", block, flags=re.M) if one]
    assert len(shown) >= 5
    for command, *lines in map(str.splitlines, shown):
        _, *arguments = shlex.split(command)
        assert cli.main(arguments) == (0 if arguments[0] == "record" else cli.FAILED)
        out = capsys.readouterr().out
        for line in lines:
            for part in filter(None, line.split("...")):
                assert part.strip() in out
    (script,) = re.findall(r"[^>]\n```python\n(.*?)^```$", text, re.M | re.S)
    exec(compile(script, str(PAGES[0]), "exec"), {})
    assert "aten::_softmax" in capsys.readouterr().out


def test_a_row_alone_differs_by_a_product_that_rounding_explains():
    """pytorch#136338: a linear layer gives other bits for one row than for two of the same."""
    torch.manual_seed(0)
    x = torch.rand(1, 1000).repeat(2, 1)
    found = first_difference("eager", "row=0", nn.Linear(1000, 1000).eval(), x)
    if found.equal:
        pytest.skip("this CPU's product of matrices does not depend on the batch")
    assert found.first.operator == "aten::addmm"
    assert found.first.explained
    assert found.first.proof.same_end


class Greedy(nn.Module):
    """Asks for more memory than any machine has, in its second layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x):
        return self.first(x).relu() + torch.empty(1 << 58)


def test_a_run_without_memory_says_how_far_it_came():
    with pytest.raises(RunError, match=r"after 2 operators, the last aten::relu in Greedy: Ru"):
        first_difference("eager", "threads=1", Greedy().eval(), torch.ones(2, 4))


def test_what_a_hook_computes_is_named():
    layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    layer[0].register_forward_hook(lambda module, args, output: output.exp())
    found = first_difference("eager", planted("aten::exp", next_number), layer, torch.ones(2, 4))
    # torch calls it when the layer has returned, so it belongs to what called the layer.
    assert (found.first.operator, found.first.place.layer) == ("aten::exp", "Sequential")
    assert found.first.alone


def test_what_only_a_first_run_computes_shifts_no_place():
    table = functools.cache(lambda: torch.cos(torch.arange(16.0)) + torch.sin(torch.arange(16.0)))

    def run():
        return (torch.linspace(-1, 1, 16).exp() * table()).tanh()

    wrong = planted("aten::tanh", next_number)
    found = first_difference("eager", wrong, make=lambda: run)
    assert table.cache_info().misses == 1
    assert (found.first.operator, found.differ, found.more) == ("aten::tanh", 1, False)
    assert (found.first.apart[0].ulp, found.first.alone) == (1, True)


def test_a_side_that_computes_less_at_each_run_is_not_repeatable():
    left = iter(range(9, 0, -1))

    def run():
        for _ in range(next(left)):
            torch.ones(4).sqrt()
        return torch.linspace(-1, 1, 16).exp()

    found = first_difference("eager", planted("aten::exp", next_number), make=lambda: run)
    assert found.repeatable == {"eager": False}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize("kind", ["strided", "jagged"])
def test_a_nested_tensor_is_as_far_apart_as_its_parts(kind):
    torch.manual_seed(0)
    parts = [torch.randn(3, 4), torch.randn(2, 4)]

    def run():
        nested = torch.nested.nested_tensor(parts, layout=getattr(torch, kind))
        return torch.tanh(nested)

    found = first_difference("eager", "library=canary", make=lambda: run)
    assert found.first.operator == "aten::tanh"
    assert (found.first.apart[0].ulp, found.first.apart[0].elements) == (1, 20)


def test_a_sparse_tensor_is_as_far_apart_as_its_values():
    def run():
        return torch.expm1(torch.linspace(-1, 1, 15).to_sparse())

    found = first_difference("eager", "library=canary", make=lambda: run)
    assert (found.first.operator, found.first.apart[0].ulp) == ("aten::expm1", 1)


def test_a_sparse_tensor_may_have_more_elements_than_the_other():
    few, many = (torch.tensor(x).to_sparse() for x in ([0.0, 0.0, 3.0], [0.0, 4.0, 3.0]))
    assert truth.apart(few, many, 0).relative == truth.apart(many, few, 0).relative > 0.5
    assert truth.apart(few, few, 0).differ == 0


def test_what_is_written_through_a_view_is_named():
    def written(x):
        y = x.clone()
        y.view(-1)[1:3].exp_()
        return y.t() * 2

    wrong = planted("aten::exp_", lambda t: t.mul_(1 + 2.0**-20))
    found = first_difference("eager", wrong, written, torch.ones(2, 4))
    assert found.first.operator == "aten::exp_"
    assert found.first.alone
    assert first_difference("eager", "threads=1", written, torch.ones(2, 4)).equal


def test_the_table_of_layers_has_distances_of_a_row_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).eval()

    def wrong(t):
        return t * 1.01

    alone = Side(name="alone", row=1, around=planted("aten::addmm", wrong).around)
    found = first_difference("eager", alone, model, torch.randn(6, 8))
    assert found.layers[0].distance == pytest.approx(0.01, rel=0.1)
    assert "not in the samples" not in found.text()


def test_an_exact_widening_begins_from_the_same_numbers(model, inputs):
    found = first_difference("eager", "dtype=float64", model, inputs)
    assert found.first.kind == "operator"
    assert found.first.truth[0].b.relative == 0.0
    assert found.first.explained
    # The control: a narrowing rounds, so its numbers are others.
    found = first_difference("eager", "dtype=bfloat16", model, inputs)
    assert found.first.kind == "inputs"


def test_a_function_may_differentiate(model):
    x = torch.linspace(-2, 2, 64).requires_grad_()

    def slope(x):
        return torch.autograd.grad(torch.tanh(x).sum(), x)[0]

    assert first_difference("eager", "threads=1", slope, x).equal
    found = first_difference("eager", planted("aten::tanh_backward", next_number), slope, x)
    assert found.first.operator == "aten::tanh_backward"


def test_a_gradient_names_its_forward_operator_and_line():
    def step():
        x = torch.linspace(-2, 2, 64).requires_grad_()
        y = torch.tanh(x)
        y.sum().backward()
        return x.grad

    found = first_difference(
        "eager", planted("aten::tanh_backward", next_number), make=lambda: step
    )
    line = step.__code__.co_firstlineno + 2
    assert re.search(
        rf"  in the gradient of aten::tanh at .*:{line}, in step: y = torch.tanh\(x\)\n",
        found.text(),
    )
    assert "aten::tanh at" in found.document()["findings"][0]["forward"]
    assert step.__code__.co_firstlineno + 3 == int(
        found.first.sources[0].split(":")[1].split(",")[0]
    )


def test_cancellation_inside_an_operator_is_said():
    torch.manual_seed(0)
    x = torch.rand(40, 39) * 2 + 99
    call = lambda x: torch.cdist(x, x.flip(0))  # noqa: E731
    found = first_difference("eager", planted("aten::_euclidean_dist", next_number), call, x)
    assert "but numbers cancel inside: about 7 of 24 bits of the norm are left" in found.text()
    found = first_difference("eager", planted("aten::exp", next_number), torch.exp, x / 99)
    assert "numbers cancel" not in found.text()


def test_a_tensor_that_is_read_and_overwritten_is_an_input():
    """Compiled code hands one buffer to a product twice, as its addend and as its result."""
    torch.manual_seed(0)
    a, b = torch.randn(4, 4), torch.randn(4, 4)

    def step(add):
        def run():
            x = torch.ones(4, 4).add(add)
            return torch.addmm(x, a, b, out=x)

        return run

    found = first_difference(step(0.0), step(1.0))
    assert found.first.operator == "aten::add.Tensor"
    assert found.first.proof.same_end


class Hidden(torch.Tensor):
    """Keeps its numbers to itself."""

    @staticmethod
    def __new__(cls, inside):
        return torch.Tensor._make_wrapper_subclass(cls, inside.shape, dtype=inside.dtype)

    def __init__(self, inside):
        self._inside = inside

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        own = [a._inside if isinstance(a, Hidden) else a for a in args]
        return Hidden(func(*own, **(kwargs or {})))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_what_could_not_be_read_is_not_called_equal(model, inputs, tmp_path, monkeypatch, capsys):
    found = first_difference(lambda: Hidden(torch.ones(3)) * 2, lambda: Hidden(torch.ones(3)) * 2)
    assert not found.equal
    assert not found.findings
    assert not found.explained
    assert found.unread == (
        "a tensor of [3], float32 that aten::mul.Tensor in no module gets",
        "a tensor of [3], float32 that aten::mul.Tensor in no module gives",
        "a tensor of [3], float32, the result output",
    )
    assert found.document()["unread"] == list(found.unread)
    monkeypatch.chdir(tmp_path)
    lines = [inspect.getsource(Hidden), "def make():", "    x = Hidden(torch.ones(3))"]
    text = "\n".join(["import torch", *lines, "    return lambda: x * 2", ""])
    Path("hidden.py").write_text(text)
    for status in ([], ["--rounding"]):
        arguments = ["diff", "--b", "threads=1", *status, "--reproducer", "r", "hidden.py:make"]
        assert cli.main(arguments) == 1
        said = capsys.readouterr().out
        assert said.startswith("Not known to be equal: 3 tensors could not be read")
        assert "Not read: a tensor of [3], float32, the result output." in said
    # Nobody misses numbers that are not there, and complex halves can be read.
    meta = lambda: torch.ones(3, device="meta") * 2  # noqa: E731
    assert first_difference(meta, meta.__call__).equal
    half = torch.complex(inputs, inputs).to(torch.complex32)
    assert first_difference(lambda: half + 1, lambda: half + 1.0).equal
    other = first_difference(lambda: half + 1, lambda: half + 1.001)
    assert not other.equal
    assert not other.unread
