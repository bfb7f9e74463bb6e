# SPDX-License-Identifier: Apache-2.0
"""A compiled side: its results are compared, and what makes them differ is searched for."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from benches.experiments import beside_others
from pytest_udftorch import cli
from pytest_udftorch.diagnose import Side, first_difference, record_run, save_reproducer
from pytest_udftorch.diagnose.diff.compiler_bisection import (
    UNKNOWN,
    Compiled,
    left_to_aten,
    smallest,
)
from pytest_udftorch.diagnose.runs import record_file
from pytest_udftorch.errors import DiagnosisError, RunError


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval()


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("guilty", [{"c"}, {"a", "h"}, {"b", "c", "g"}, set("abcdefgh")])
def test_the_smallest_set_is_found(guilty):
    tried = []

    def removes(some):
        tried.append(some)
        return guilty <= set(some)

    found, finished = smallest("abcdefgh", removes, 100)
    assert (set(found), finished) == (guilty, True)
    assert not any(removes([n for n in found if n != one]) for one in found)


@pytest.mark.parametrize("tries", [9, 12, 20, 30])
@pytest.mark.parametrize("guilty", [set("abcdefg"), set("bdfh"), {"h"}])
def test_few_trials_are_spent_on_one_item_after_the_other(guilty, tries):
    tried = []

    def removes(some):
        tried.append(some)
        return guilty <= set(some)

    found, finished = smallest("abcdefgh", removes, tries)
    assert len(tried) <= tries
    assert guilty <= set(found)
    if finished:
        assert set(found) == guilty
    if tries >= 30:
        assert finished


def test_a_search_that_ends_early_says_so():
    found, finished = smallest("abcdefgh", lambda some: {"a", "h"} <= set(some), 4)
    assert {"a", "h"} <= set(found)
    assert not finished
    assert smallest("abc", lambda some: False, 9) == ([], True)


def test_a_decomposition_is_named_and_proved(model, inputs):
    found = first_difference("eager", "backend=aot_eager_decomp_partition", model, inputs)
    assert found.first.kind == "compiled"
    assert found.compiled.stage == "the decompositions"
    assert found.compiled.operators == ("aten::native_layer_norm",)
    assert found.compiled.layers["aten::native_layer_norm"] == ("2",)
    error = found.compiled.errors["output"]
    assert 0.0 < error.a < 1e-6
    assert 0.0 < error.b < 1e-6
    assert "with this left to ATen's kernels, nothing differs any more" in found.text()
    json.dumps(found.document())


def test_what_differs_without_the_compiler_is_not_laid_to_it(model, inputs):
    found = first_difference("eager", "backend=aot_eager,dtype=float64", model, inputs)
    assert found.compiled.stage == "without the compiler"
    assert "Compare the sides without it first" in found.text()


def test_a_compiler_that_changes_nothing_is_equal(model, inputs):
    found = first_difference("eager", "backend=aot_eager", model, inputs, train=True, steps=2)
    assert found.equal
    assert "the same results, bit for bit" in found.text()


def test_tables_of_the_compiler_are_as_before_after_an_error():
    from torch._inductor import decomposition, lowering

    before = dict(decomposition.decompositions), dict(lowering.lowerings)

    def fail():
        assert torch.ops.aten.gelu.default not in decomposition.decompositions
        raise RuntimeError("inside")

    changed = left_to_aten(["aten::gelu", "aten::no_such_operator"])
    with pytest.raises(RuntimeError, match="inside"), changed:
        fail()
    assert (decomposition.decompositions, lowering.lowerings) == before


def test_what_cannot_be_compiled_or_compared_is_an_error(model, inputs):
    with pytest.raises(RunError, match="The run of 'backend=nowhere' failed"):
        first_difference("eager", "backend=nowhere", model, inputs)
    with pytest.raises(DiagnosisError, match="A row alone cannot be compared with compiled"):
        first_difference("compiled", "row=1", model, inputs)


DECOMPOSED = "backend=aot_eager_decomp_partition"


def test_a_search_whose_time_is_up_says_what_it_has(model, inputs):
    found = first_difference("eager", DECOMPOSED, model, inputs, seconds=0)
    assert found.compiled.stage == UNKNOWN
    assert not found.compiled.finished
    assert found.text().startswith("The compiler: it makes the difference, as far as the search")
    assert "The search ended before the first stage of the compiler was known." in found.text()
    assert "No setting removes it" not in found.text()


def test_a_search_tells_its_steps_and_ctrl_c_keeps_the_best(model, inputs):
    told = []
    whole = first_difference("eager", DECOMPOSED, model, inputs, tell=told.append)
    assert whole.compiled.finished
    assert [line.partition(",")[0] for line in told[:2]] == ["compiled run 1", "compiled run 1"]
    assert any("with AOTAutograd and no more" in line for line in told)
    assert told[-1].startswith(f"compiled run {whole.compiled.compiles}, ")
    best = next(i for i, line in enumerate(told) if "best so far: aten::" in line)

    def interrupt(line):
        if "best so far: aten::" in line:
            raise KeyboardInterrupt

    found = first_difference("eager", DECOMPOSED, model, inputs, tell=interrupt)
    assert found.compiled.interrupted
    assert not found.compiled.finished
    assert "aten::native_layer_norm" in found.compiled.operators
    assert found.compiled.layers["aten::native_layer_norm"]
    assert "More seconds= (--seconds) may find one" in found.text()
    assert 0 < best < len(told)


def test_ctrl_c_is_raised_where_nobody_is_told(model, inputs, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Compiled, "_stage", stopped)
    with pytest.raises(KeyboardInterrupt):
        first_difference("eager", DECOMPOSED, model, inputs)


def test_the_command_prints_what_ctrl_c_kept(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = "import torch\nfrom torch import nn\ndef make():\n"
    text += "    layers = nn.Linear(8, 8), nn.LayerNorm(8)\n"
    text += "    return nn.Sequential(*layers).eval(), torch.randn(4, 8)\n"
    (tmp_path / "model.py").write_text(text)
    arguments = ["diff", "--b", DECOMPOSED, "--seconds", "0", "model.py:make"]
    assert cli.main(arguments) == cli.FAILED
    assert "as far as the search came" in capsys.readouterr().out

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Compiled, "_stage", stopped)
    assert cli.main(arguments) == cli.INTERRUPTED
    assert "as far as the search came" in capsys.readouterr().out


def test_a_record_of_an_eager_run_is_beside_compiled_code(model, inputs, tmp_path):
    record_run(tmp_path, model, inputs)
    decomposed = "backend=aot_eager_decomp_partition"
    found = first_difference(f"rec:{tmp_path}", decomposed, model, inputs)
    assert found.compiled.stage == "the decompositions"
    assert found.compiled.operators == ("aten::native_layer_norm",)
    # Negative control: what computes the same is equal to the record.
    assert first_difference(f"rec:{tmp_path}", "backend=aot_eager", model, inputs).equal


def test_a_record_of_a_compiled_run_knows_its_kernels(model, inputs, tmp_path):
    made = record_run(tmp_path, model, inputs, on="compiled")
    calls = made.recording.calls
    assert calls[-1].operator == "inductor::graph"
    (kernel,) = (c for c in calls if "_fused_" in c.operator)
    assert kernel.place.layer == "1 + 2"
    assert kernel.arguments == "graph 0, forward: aten::relu, aten::native_layer_norm"
    # It gets what the first product gave, and the last product gets what it gives.
    products = [c for c in calls if c.operator.startswith("aten::")]
    assert [c.place.layer for c in products] == ["0", "3"]
    assert products[0].outputs[0].digest in {n.digest for n in kernel.inputs}
    assert {n.digest for n in kernel.outputs} & {n.digest for n in products[1].inputs}
    assert products[1].outputs[0].digest == made.recording.result["output"].digest

    other = copy.deepcopy(model)
    other[2].eps = 1e-3
    found = first_difference(f"rec:{tmp_path}", "compiled", other, inputs)
    assert found.first.kind == "operator"
    assert (found.first.operator, found.first.place.layer) == (kernel.operator, "1 + 2")
    assert "It is of graph 0, forward, and computes aten::relu, aten::native_layer_norm." in (
        found.text()
    )
    assert found.results["output"] > 1e-4
    json.dumps(found.document())


@pytest.mark.slow
def test_values_of_a_kernel_prove_that_it_makes_the_difference(model, inputs, tmp_path):
    made = record_run(tmp_path, model, inputs, on="compiled", full=(0, 9))
    at = next(i for i, c in enumerate(made.recording.calls) if "_fused_" in c.operator)
    assert set(made.recording.kept) == set(range(len(made.recording.calls) - 1))
    other = copy.deepcopy(model)
    other[2].eps = 1e-3
    found = first_difference(f"rec:{tmp_path}", "compiled", other, inputs)
    first = found.first
    assert first.calls == (at, at)
    assert not first.apart[0].sampled
    assert first.apart[0].elements == 16 * 16
    assert first.proof.removed == 0
    assert first.proof.same_end
    assert "nothing differs any more" in found.text()
    assert "Recorded again" not in found.text()
    # The other way round, what the record has makes the live run end as the record did.
    turned = first_difference("compiled", f"rec:{tmp_path}", other, inputs)
    assert turned.first.proof.makes_end
    with pytest.raises(DiagnosisError, match="is a kernel that Inductor generated"):
        save_reproducer(found, tmp_path / "script")


@pytest.mark.slow
def test_beside_a_record_of_compiled_code_equal_kernels_are_equal(model, inputs, tmp_path):
    record_run(tmp_path, model, inputs, on="compiled")
    assert first_difference(f"rec:{tmp_path}", "compiled", model, inputs).equal
    # Of an eager side only results are seen.
    beside = first_difference(f"rec:{tmp_path}", "eager", model, inputs)
    assert beside.first.kind == "compiled"
    assert "Compare with the compiled side itself" in beside.text()


@pytest.mark.slow
def test_kernels_of_a_training_step_have_layers(model, inputs, tmp_path):
    made = record_run(tmp_path, model, inputs, on="compiled", train=True, steps=2)
    places = {(c.place.phase, c.place.step) for c in made.recording.calls}
    assert places == {("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1)}
    assert all(c.place.layer for c in made.recording.calls if c.operator != "inductor::graph")
    side = f"rec:{tmp_path}"
    assert first_difference(side, "compiled", model, inputs, train=True, steps=2).equal


@pytest.mark.slow
def test_a_lowering_of_inductor_is_named(model, inputs):
    found = first_difference("eager", "compiled", model, inputs, train=True)
    assert found.compiled.operators
    assert found.compiled.finished
    assert "aten::native_layer_norm" in found.compiled.operators


class Gated(nn.Module):
    """The model of pytorch#168186: a product, whose halves are added."""

    def __init__(self):
        super().__init__()
        self.value, self.gate = (nn.Linear(128, 256, bias=False) for _ in range(2))

    def forward(self, x):
        one, other = torch.chunk(self.value(x) * self.gate(x), 2, dim=-1)
        return one + other


@pytest.mark.slow
def test_a_rounding_that_fusion_drops_is_named():
    torch.manual_seed(0)
    sides = "autocast=bfloat16", "compiled,autocast=bfloat16"
    found = first_difference(*sides, Gated().eval(), torch.randn(4, 16, 128))
    assert found.compiled.stage == "Inductor's code"
    assert found.compiled.operators == ("aten::mul.Tensor",)
    if torch.__version__ >= (2, 15):  # torch 2.11 drops the rounding all the same
        assert "emulate_precision_casts" in found.compiled.settings
    error = found.compiled.errors["output"]
    assert error.b < error.a


class Summed(nn.Module):
    """Inductor's patterns make one operator of product and sum, and its code normalizes itself."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.factor, self.summand = nn.Parameter(torch.randn(2048, 16)), torch.randn(16)

    def forward(self, x):
        return self.norm(x @ self.factor + self.summand)


@pytest.mark.slow
def test_causes_that_act_together_are_named():
    torch.manual_seed(0)
    found = first_difference("eager", "compiled", Summed().eval(), torch.randn(8, 2048))
    assert found.compiled.settings == ()
    assert found.compiled.operators == ("aten::native_layer_norm",)
    assert found.compiled.together == ("no patterns",)
    text = found.text()
    assert "no patterns (a setting)" in text
    assert "left to ATen's kernels and so set, nothing differs any more" in text
    assert found.document()["compiled"]["together"] == ("no patterns",)


def _scale_what_relu_gives(graph):
    """Change a graph as a user's pass of Inductor may."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
        with graph.inserting_after(node):
            scaled = graph.call_function(torch.ops.aten.mul.Tensor, (node, 1 + 2.0**-20))
        scaled.meta = dict(node.meta)
        node.replace_all_uses_with(scaled, lambda user, own=scaled: user is not own)


@pytest.mark.slow
def test_what_nothing_removes_begins_with_a_kernel(model, inputs):
    other = Side(
        name="passed", backend="inductor",
        options={"post_grad_custom_post_pass": _scale_what_relu_gives},
    )  # fmt: skip
    found = first_difference("eager", other, model[:2], inputs)
    assert not found.compiled.operators
    assert not found.compiled.together
    assert found.compiled.kernel.startswith("inductor::cpp_fused_")
    assert found.compiled.kernel.endswith(" (1)")
    assert "Nothing can be put in its place, so there is no proof." in found.text()


@pytest.mark.slow  # ten compilations each
@pytest.mark.parametrize(
    ("issue", "operator"),
    [("168126", "aten::native_layer_norm"), ("145466", "aten::cos"), ("158699", "aten::_to_copy")],
)
def test_what_was_reported_to_pytorch_is_named(issue, operator):
    def make():
        torch.manual_seed(0)
        return beside_others.CASES[issue]()

    found = first_difference("eager", "compiled", make=make)
    assert found.compiled.operators == (operator,)


@pytest.mark.slow
def test_roundings_inside_log_softmax_are_named():
    """pytorch#140222: of bfloat16 numbers, the CPU's kernel rounds more often than CUDA's.

    torch's decomposition computes in float32, too, so it shows that without a GPU.
    """
    numbers = [
        -1.6641, -0.9219, 2.5156, -0.4648, 1.0469, 1.4531, 0.0908, 0.1514, -1.2422, 1.2656,
        -1.0859, -0.0801, 2.3750, -0.4238, -0.9023, -0.4570, -1.3125, 0.1099, -0.2129, -0.6641,
        -0.3867, -0.2617, 1.1641, 0.4043, -0.5352, -0.4785, 0.2061, 0.2734, -1.3672, 0.0544,
        -1.3203, -1.5469,
    ]  # fmt: skip
    x = torch.tensor(numbers, dtype=torch.bfloat16).reshape(2, 2, 2, 2, 2)
    other = "backend=aot_eager_decomp_partition"
    found = first_difference("eager", other, nn.LogSoftmax(-1), x, train=False)
    assert found.compiled.operators == ("aten::_log_softmax",)
    error = found.compiled.errors["output"]
    assert error.b < error.a
    # Negative control: float32 numbers have room for the roundings of both.
    wide = first_difference("eager", other, nn.LogSoftmax(-1), x.float(), train=False)
    assert wide.equal or wide.compiled.errors["output"].a < 1e-6


class Uncaptured(nn.Module):
    @torch.compiler.disable
    def forward(self, x):
        return x.exp()


def test_a_run_of_which_nothing_is_captured_has_no_kernels(inputs, tmp_path):
    with pytest.raises(RunError, match=r"compiled no graph in the run of 'compiled'.*eager"):
        record_run(tmp_path, Uncaptured().eval(), inputs, on="compiled")
    assert first_difference("eager", "backend=aot_eager", Uncaptured().eval(), inputs).equal


class FailingLater(nn.Module):
    """What it fails in is not captured."""

    def forward(self, x):
        return self.fail(nn.functional.layer_norm(x, x.shape[-1:]))

    @torch.compiler.disable
    def fail(self, x):
        raise ValueError(f"no {tuple(x.shape)}")


def test_a_compiled_run_that_fails_leaves_its_kernels(inputs, tmp_path):
    with pytest.raises(RunError, match=r"ValueError: no \(16, 8\)\nThe 2 operators before"):
        record_run(tmp_path, FailingLater().eval(), inputs, on="compiled")
    part = record_file.load(tmp_path).recording
    assert [c.operator for c in part.calls] == [
        "inductor::cpp_fused_native_layer_norm_0",
        "inductor::graph",
    ]
    found = first_difference(
        f"rec:{tmp_path}", "compiled", nn.LayerNorm(8, elementwise_affine=False).eval(), inputs
    )
    assert "ValueError: no (16, 8)" in found.text()
    assert not found.equal


class Broken(nn.Module):
    """Dynamo compiles it in two parts, as a number of a tensor decides between them."""

    def forward(self, x):
        x = nn.functional.layer_norm(x, x.shape[-1:])
        if float(x.abs().sum()) > 0:
            return x.exp()
        return x


def test_parts_of_a_graph_that_breaks_are_searched(inputs):
    other = "backend=aot_eager_decomp_partition"
    found = first_difference("eager", other, Broken().eval(), inputs)
    assert found.compiled.operators == ("aten::native_layer_norm",)


class Casts(nn.Module):
    """Makes float32 itself, as norms and rotary embeddings of transformers do."""

    def forward(self, x):
        return torch.cos(x.float() * 1.7)


class FromIntegers(nn.Module):
    def forward(self, x):
        return torch.cos(x.pow(5))


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.tensor([[1.7]])  # no buffer, so that a model in float64 keeps it

    def forward(self, x):
        return torch.cos(x[:, None] @ self.scale)


class Bits(nn.Module):
    def forward(self, x):
        return torch.cos(x.view(torch.int32).float())


class Noisy(nn.Module):
    def forward(self, x):
        return torch.cos(x * 1.7 + torch.rand_like(x))


RAMP = torch.linspace(0, 60, 64)


@pytest.mark.parametrize(
    ("made", "x", "errors"),
    [
        (Casts(), RAMP, (2.4e-6, 2.4e-6)),
        (Constant(), RAMP, (1.6e-6, 1.6e-6)),
        pytest.param(
            FromIntegers(),
            torch.arange(64, dtype=torch.uint8),
            (1.8e-8, 2.4e-8),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_truth_stays_in_float64(made, x, errors):
    """A truth that was rounded to float32 would make the eager side right: it rounds alike."""
    found = first_difference("eager", "compiled", made.eval(), x).compiled
    error = found.errors["output"]
    assert (error.a, error.b) == (pytest.approx(errors[0], 0.1), pytest.approx(errors[1], 0.1))
    assert found.no_truth == ""


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (Bits(), "aten::view.dtype leaves float64"),
        pytest.param(Noisy(), "draws random numbers", marks=pytest.mark.slow),
    ],
)
def test_what_leaves_float64_has_no_truth(made, why):
    found = first_difference("eager", "compiled", made.eval(), RAMP)
    assert found.compiled.errors == {}
    assert why in found.compiled.no_truth
    assert f"No truth: {found.compiled.no_truth}." in found.text()


def test_a_function_of_integers_is_judged_in_float64():
    def step():
        return torch.arange(9, dtype=torch.uint8).exp()

    found = first_difference("eager", "library=udfs/canary", make=lambda: step)
    (truth,) = found.first.truth
    assert truth.a.ulp < 1 < truth.b.ulp
