# SPDX-License-Identifier: Apache-2.0
"""Coverage: what definitions evaluate, and whether an evaluation that is not swapped is seen."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import cli, patched
from pytest_udftorch.diagnose.runs.files import load_step
from pytest_udftorch.errors import CoverageError
from pytest_udftorch.swap import coverage
from pytest_udftorch.swap.cpu import operators
from pytest_udftorch.swap.operators import decompositions as formulas
from pytest_udftorch.swap.operators import definitions, rows
from pytest_udftorch.swap.reach import coverage as counted
from pytest_udftorch.swap.reach.coverage import percent, training_step
from pytest_udftorch.swap.session.binder import binder

PAGE = Path(__file__).parents[2] / "docs" / "swap" / "coverage.md"
ATEN = torch.ops.aten
X = torch.linspace(-2.0, 2.0, 96).reshape(4, 24)
QUERY = X.reshape(1, 2, 6, 8)


@pytest.mark.parametrize(
    ("operator", "args", "kwargs", "expected"),
    [
        (ATEN.gelu.default, (X,), {}, {"erf": 96}),
        (ATEN.gelu.default, (X,), {"approximate": "tanh"}, {"tanh": 96}),
        (ATEN.gelu_backward.default, (X, X), {}, {"erf": 96, "exp": 96}),
        (ATEN._softmax.default, (X, 1, False), {}, {"exp": 96}),
        (ATEN._log_softmax.default, (X, 1, False), {}, {"exp": 96, "log": 4}),
        (
            ATEN._scaled_dot_product_flash_attention_for_cpu.default,
            (QUERY, QUERY, QUERY),
            {},
            {"exp": 2 * 6 * 6},
        ),
        (ATEN._foreach_exp.default, ([X, X],), {}, {"exp": 192}),
        (ATEN.exp_.default, (X,), {}, {"exp": 96}),
        (ATEN.pow.Tensor_Scalar, (X, 2), {}, {}),
        (ATEN.pow.Tensor_Scalar, (X, 2.5), {}, {"pow": 96}),
        (ATEN._cdist_forward.default, (X, X, 2.0, None), {}, {}),
        (ATEN.normal_.default, (X,), {}, {"log": 96, "cos": 96}),
        (ATEN.polygamma.default, (0, X), {}, {"log": 96}),
        (ATEN.polygamma.default, (2, X), {}, {"exp": 96, "pow": 96}),
        (ATEN.linalg_vector_norm.default, (X, 2.0), {}, {}),
        (ATEN.linalg_vector_norm.default, (X, 2.5, [1]), {}, {"pow": 96 + 4}),
        (ATEN._foreach_norm.Scalar, ([X, X], 2.5), {}, {"pow": 2 * 97}),
        (ATEN._foreach_norm.Scalar, ([X, X], 2), {}, {}),
        (ATEN._foreach_pow.Scalar, ([X, X], 2.5), {}, {"pow": 192}),
        (ATEN._foreach_pow.Scalar, ([X, X], 2), {}, {}),
        (ATEN._foreach_pow.ScalarList, ([X, X], [2, 2.5]), {}, {"pow": 96}),
        (ATEN._foreach_pow.ScalarAndTensor, (2.5, [X, X]), {}, {"pow": 192}),
        (ATEN.special_zeta.default, (X, X), {}, {"pow": 96}),
        (ATEN.igamma.default, (X, X), {}, {"exp": 96}),
        (ATEN.special_bessel_j0.default, (X,), {}, {"sin": 96, "cos": 96}),
        (ATEN.special_modified_bessel_k1.default, (X,), {}, {"exp": 96, "log": 96}),
        (ATEN.special_log_ndtr.default, (X,), {}, {"erfc": 96, "log": 96, "log1p": 96}),
        (ATEN._masked_softmax.default, (X, X > 1, 1, 2), {}, {"exp": 96}),
        (ATEN.mm.default, (X, X.t()), {}, {}),
        (ATEN.native_layer_norm.default, (X, [24], None, None, 1e-5), {}, {}),
        (ATEN.view.default, (X, [96]), {}, {}),
        (ATEN.exp.default, (torch.arange(3),), {}, {"exp": 3}),
        (ATEN.sum.default, (X,), {}, {}),
    ],
)
def test_definitions_count_what_a_call_evaluates(operator, args, kwargs, expected):
    counts, unknown = definitions.evaluations(operator, args, kwargs)
    assert (counts, unknown) == (expected, [])


#: Fused attention on CUDA: what comes after queries, keys and values, and the number of results.
FUSED = {"flash": ((0.0, True), 3), "efficient": ((None, True, 0.0, True), 2),
         "cudnn": ((None, True, 0.0, True), 2)}  # fmt: skip


@pytest.mark.parametrize("form", FUSED)
def test_fused_attention_of_gpus_is_defined_without_one(form):
    more, count = FUSED[form]
    operator = getattr(ATEN, f"_scaled_dot_product_{form}_attention").default
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 2, 6, 8, generator=generator).requires_grad_() for _ in range(3)]
    counts, unknown = definitions.evaluations(operator, (*tensors, *more), {})
    assert (counts, unknown) == ({"exp": 2 * 6 * 6, "log": 2 * 6}, [])
    out, sums, *rest = definitions.defined_result(operator, (*tensors, *more), {})
    assert len(rest) == count - 2
    want = F.scaled_dot_product_attention(*tensors, is_causal=True)
    torch.testing.assert_close(out, want)

    gradient = getattr(ATEN, f"_scaled_dot_product_{form}_attention_backward").default
    grad = torch.linspace(-1, 1, 96).reshape(out.shape)
    mine = [t.detach() for t in (grad, *tensors)]
    made = {
        "flash": (*mine, out, sums, None, None, 6, 6, 0.0, True, None, None),
        "efficient": (*mine, None, out, sums, None, None, 0.0, [True] * 3 + [False], True),
        "cudnn": (*mine, out, sums, None, None, None, None, None, 6, 6, 0.0, True),
    }
    with torch.no_grad():
        found = definitions.defined_result(gradient, made[form], {})
    for one, other in zip(found, torch.autograd.grad(want, tensors, grad), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_run_of_swapped_operators_is_complete():
    def step():
        x = X.clone().requires_grad_()
        F.cross_entropy(F.silu(x), torch.zeros(4, dtype=torch.long)).backward()

    found = coverage(step)
    assert found.complete
    assert found.share == 1.0
    rows = {row.operator: row for row in found.rows}
    assert rows["aten::silu"].evaluations == {"exp": 96}
    assert rows["aten::_log_softmax"].evaluations == {"exp": 96, "log": 4}
    assert {"aten::silu_backward", "aten::_log_softmax_backward_data"} <= rows.keys()
    assert "aten::add.Tensor" not in rows
    assert "100 % of " in found.text()


def test_what_no_session_swaps_is_counted_with_its_reason():
    found = coverage(lambda: (torch.special.ndtri(X / 5 + 0.5), X.exp(), X.double().log()))
    rows = {(row.operator, row.dtype): row for row in found.rows}
    assert rows["aten::special_ndtri", "float32"].share == 0.0
    assert "double precision" in rows["aten::special_ndtri", "float32"].reasons[0]
    assert rows["aten::log", "float64"].share == 0.0
    assert "float64" in rows["aten::log", "float64"].reasons[0]
    assert rows["aten::exp", "float32"].share == 1.0
    assert found.share == pytest.approx(1 / 3)
    assert not found.complete


def test_an_operator_that_is_not_overridden_is_seen_to_call_no_symbol(monkeypatch):
    call = functools.partial(torch.lgamma, X / 3)
    (row,) = coverage(call).rows
    assert row.share == 1.0
    shown = tuple(op for op in operators._POINTWISE if op.name != "lgamma")
    monkeypatch.setattr(operators, "_POINTWISE", shown)
    operators.cpu_operators.forget()  # sessions keep what they made
    (row,) = coverage(call).rows
    operators.cpu_operators.forget()
    assert row.share == 0.0
    assert "calls no symbol" in row.reasons[0]


def test_what_nan_hides_is_not_said_to_be_inlined():
    hidden = torch.full((4,), torch.nan)
    (row,) = coverage(lambda: torch.exp(hidden)).rows
    assert row.share == 0.0
    assert row.reasons == (f"exp: {counted._UNSEEN}",)


def test_the_gradient_of_ctc_loss_is_defined_as_cpus_and_as_gpus_compute_it():
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(9, 2, 5, generator=generator).log_softmax(-1)
    # 1 1 has a blank between, so that there are few ways.
    targets, steps, lengths = torch.tensor([[1, 1, 2], [3, 4, 3]]), (9, 9), (3, 3)
    leaf = given.clone().requires_grad_()
    loss, alphas = ATEN._ctc_loss(leaf, targets, steps, lengths)
    grad = torch.tensor([0.5, 2.0])
    (want,) = torch.autograd.grad(loss, leaf, grad)
    made = (grad, given, targets, steps, lengths, loss.detach(), alphas.detach(), 0)
    torch.testing.assert_close(formulas.alignments_gradient(*made), want, rtol=1e-4, atol=1e-5)
    # The second and third label of a line are no way to begin, whatever the logarithm.
    with patched(counted._library(neutral=False), ("log",)):
        wrong = formulas.alignments_gradient(*made)
    assert torch.equal(wrong[0, 0, 2], grad[0] * given[0, 0, 2].exp())
    assert torch.equal(wrong[0, 1, 4], grad[1] * given[0, 1, 4].exp())
    assert not torch.allclose(wrong[0, 0, 1], want[0, 0, 1])
    through = torch.randn(9, 7, 5, generator=generator)
    through[through < -0.5] = -torch.inf
    less = torch.randn(9, 5, generator=generator)
    torch.testing.assert_close(
        formulas._shares_of_classes(through, less), formulas._summed_ways(through, less)
    )


def test_what_writes_into_its_argument_is_judged_from_the_same_numbers():
    assert coverage(lambda: (X / 3).double().exp_()).share == 0.0
    assert coverage(lambda: (X / 3).exp_()).share == 1.0


def test_calls_are_counted_and_joined():
    found = coverage(lambda: [torch.exp(X), torch.exp(X), torch.exp(X[:, ::2])])
    (row,) = found.rows
    assert (row.calls, row.evaluations) == (3, {"exp": 2 * 96 + 48})


def test_an_element_without_an_evaluation_is_not_asked_for():
    """elu evaluates expm1 below 0 only: the other elements must not change, and need not."""
    assert coverage(lambda: F.elu(X)).share == 1.0


def test_a_layer_of_an_encoder_that_runs_as_one_operator_is_counted():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu").eval()
    x = X.reshape(2, 6, 8)

    def step():
        with torch.no_grad():
            layer(x)

    (row,) = coverage(step).rows
    assert row.operator == "aten::_transformer_encoder_layer_fwd"
    assert row.evaluations == {"exp": 2 * 2 * 6 * 6, "erf": 2 * 6 * 16}
    assert row.share == 1.0


def test_elements_beside_a_functions_branch_are_not_asked_for():
    """trigamma reflects below a half; Bessel's functions oscillate beyond 5."""
    special = torch.special
    wide = 5 * X
    calls = {
        "polygamma": lambda: torch.polygamma(1, X + 0.01),
        "j0": lambda: special.bessel_j0(wide),
        "y1": lambda: special.bessel_y1(wide.abs() + 0.1),
        "k1": lambda: special.modified_bessel_k1(X.abs() + 0.1),
        "masked": lambda: torch._masked_softmax(X, X > 1, 1, 2),
    }
    for name, call in calls.items():
        found = coverage(call)
        assert found.complete, f"{name}: {found.text()}"
        assert found.rows, name


def test_calls_of_symbols_contradict_a_definition_without_functions(monkeypatch):
    """The binaries have a say: what evaluates nothing calls no symbol."""

    def step():
        F.mish(X)
        X.exp()
        X + 1

    assert coverage(step).complete
    lie = dataclasses.replace(rows.BY_NAME["mish"], functions=())
    monkeypatch.setitem(rows.BY_NAME, "mish", lie)
    found = coverage(step)
    assert [row.operator for row in found.rows] == ["aten::exp"]
    assert found.share == 1.0
    assert not found.complete
    ((name, symbols),) = found.unknown.items()
    assert name == "aten::mish"
    assert any("exp" in symbol for symbol in symbols)
    assert "aten::mish: the definition is not known" in found.text()


def test_reading_marks_leaves_them_to_the_reader_outside():
    bound = binder()
    with bound.marking():
        bound.marked()
        X.sin()
        coverage(lambda: X + 1)
        with bound.marking(apart=True):
            X.exp()
            assert {s.function for s in bound.marked()} == {"sin", "exp"}
            assert not bound.marked()
        assert {s.function for s in bound.marked()} == {"sin", "exp"}
        X.log()  # still marked
        assert {s.function for s in bound.marked()} == {"log"}
    bound.marked()
    X.sin()
    assert not bound.marked()


def test_elements_that_do_not_change_are_not_swapped():
    mask = torch.ones(96, dtype=torch.bool)
    kept = mask.clone()
    kept[:24] = False
    assert counted._share([kept], [mask]) == 0.75
    assert counted._share([kept], [~kept]) == 0.0
    assert counted._share([kept], None) == 0.75


@pytest.fixture
def custom_operator():
    library = torch.library.Library("udftorch_test", "FRAGMENT")
    library.define("strange(Tensor x) -> Tensor")
    library.impl("strange", lambda x: torch.from_numpy(x.numpy() * 2), "CPU")
    yield torch.ops.udftorch_test.strange
    library._destroy()


def test_an_operator_without_a_known_definition_is_named(custom_operator):
    found = coverage(lambda: custom_operator(X))
    assert found.unknown == {"udftorch_test::strange": ()}
    assert found.share == 1.0
    assert not found.complete
    assert "udftorch_test::strange: the definition is not known" in found.text()


def test_no_operator_is_an_error():
    with pytest.raises(CoverageError, match="called no operator"):
        coverage(lambda: None)


def test_a_training_step_has_forward_loss_backward_and_optimizer():
    model = torch.nn.Sequential(torch.nn.Linear(24, 4), torch.nn.Sigmoid())
    before = model[0].weight.detach().clone()
    for inputs in (X, (X,), {"input": X}):
        training_step(model, inputs)()
    assert not torch.equal(before, model[0].weight)
    assert model[0].weight.grad is None


def test_percentages_round_to_the_whole_only_if_it_is_whole():
    assert [percent(s) for s in (1.0, 0.99999, 0.5, 0.0)] == [
        "100 %",
        "99.99 %",
        "50.00 %",
        "0.00 %",
    ]


MODEL = "import torch\nx = torch.ones(64)\ndef make():\n    return lambda: {}\nnothing = 3\n"


def test_the_command_prints_and_stores(tmp_path, capsys):
    (tmp_path / "model.py").write_text(MODEL.format("x.exp()"))
    store = tmp_path / "found.json"
    assert cli.main(["coverage", f"{tmp_path}/model.py:make", "--store", str(store)]) == 0
    assert "100 % of 64 evaluations are swapped" in capsys.readouterr().out
    (run,) = json.loads(store.read_text())["runs"].values()
    assert run["rows"][0]["operator"] == "aten::exp"
    (tmp_path / "model.py").write_text(MODEL.format("torch.special.ndtri(x)"))
    assert cli.main(["coverage", f"{tmp_path}/model.py:make"]) == cli.FAILED


@pytest.mark.parametrize(
    ("where", "text", "says"),
    [
        ("model.py", MODEL, "names no model. Write model.py:make"),
        ("model.py:nothing", MODEL, "has no function 'nothing'"),
        ("other.py:make", MODEL, "no Python file"),
        ("model.py:make", "make = 1 / 0", "cannot be imported: ZeroDivisionError"),
        ("model.py:make", "make = lambda: 3", "returned int"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, monkeypatch, where, text, says):
    (tmp_path / "model.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CoverageError, match=re.escape(says)):
        load_step(where)


def test_a_file_that_cannot_be_written_is_refused(tmp_path, capsys):
    (tmp_path / "model.py").write_text(MODEL.format("x.exp()"))
    nowhere = str(tmp_path / "no" / "file.json")
    assert cli.main(["coverage", f"{tmp_path}/model.py:make", "--store", nowhere]) == cli.MISUSE
    assert "Name a file in a folder" in capsys.readouterr().err


def test_the_page_shows_what_happens(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```(\w+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (model, shown, script, profiled) = (body for _, body in blocks)
    (tmp_path / "model.py").write_text(model)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["coverage", "model.py:make"]) == 0
    out = re.sub(r" +", " ", capsys.readouterr().out)
    for line in shown.splitlines()[1:]:
        for part in filter(None, re.sub(r" +", " ", line).split("...")):
            assert part.strip() in out
    exec(compile(script, str(PAGE), "exec"), {})
    assert "aten::special_ndtri" in capsys.readouterr().out
    exec(compile(profiled, str(PAGE), "exec"), {})
    assert "evaluations are swapped; not: 1,000 of aten::special_ndtri" in capsys.readouterr().out
