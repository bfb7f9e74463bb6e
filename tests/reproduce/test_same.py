# SPDX-License-Identifier: Apache-2.0
"""``same`` and ``udftorch same``: what agrees, what is named, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benches.data.models import small_language_model
from benches.data.models.small_language_model import Layer, Model, made
from benches.experiments import on_policy, resumed_trainers
from pytest_udftorch import cli
from pytest_udftorch.errors import OutsideContractError, PackageMissingError, RunError
from pytest_udftorch.reproduce import Sameness, same
from pytest_udftorch.reproduce.agreement.result import Outcome, Part
from pytest_udftorch.reproduce.agreement.ways import WAYS
from pytest_udftorch.swap.toolchain import progress

HERE = Path(__file__).parent
MODELS = Path(small_language_model.__file__)
SUBJECT = f"{MODELS}:make"


class Twice(Model):
    """Gives other logits in training, by an operator that is not in evaluation."""

    def forward(self, *args, **more):
        found = super().forward(*args, **more)
        if self.training:
            found["logits"] = found["logits"].mul(1.0000001)
        return found


def test_the_ways_of_a_language_model_are_found_and_agree_under_repro():
    found = same(*made(), libraries=["repro"])
    assert found.ways == (
        "training forward", "batch 1", "batch 2", "batch 3", "permuted batch", "prefix",
        "right padding", "left padding", "packed by a mask", "prefill in chunks", "decoding",
        "micro-batches", "threads",
    )  # fmt: skip
    assert found.differing("repro") == []
    assert found.equal
    assert found.text().splitlines()[-1] == "under repro all 13 ways give the same bits."


def test_strict_takes_the_model_whose_ways_agree():
    found = same(*made(), libraries=["repro"], ways=["batch 1"], strict=True)
    assert found.equal


class Sorted(Model):
    """Calls an operator that is outside of the contract."""

    def score(self, x):
        return super().score(x + x.nansum() * 0)


class Composed(Layer):
    """Attends by a softmax and products, which have what a mask hides in their sums."""

    def attend(self, q, k, v, mask):
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) @ v


class Eager(Model):
    layer = Composed


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Sorted, r"aten::nansum is outside of the contract"),
        (Eager, r"aten::_softmax in layers\.0 has weights of zero in front of others"),
    ],
)
def test_strict_refuses_at_the_start_by_the_name_of_the_operator(model, words):
    told = []
    with pytest.raises(OutsideContractError, match=words):
        same(*made(model), libraries=["repro"], strict=True, progress=lambda *n: told.append(n))
    assert not told
    assert same(*made(model), libraries=["repro"], ways=["batch 1"]).equal


class Tied(Model):
    """Uses one weight twice, and a layer three times."""

    def __init__(self):
        super().__init__()
        self.head.weight = self.words.weight
        self.layers = nn.ModuleList([self.layers[0]] * 3)


def test_uses_of_a_weight_are_added_as_the_whole_batch_adds_them():
    assert same(*made(Tied), libraries=["repro"], ways=["micro-batches"], strict=True).equal


class Derived(Model):
    """Uses twice what is computed of a weight alone, so that autograd adds within the graph."""

    def score(self, x):
        factor = self.layers[0].norm.weight * 2
        return super().score(x.sin() * factor + x.cos() * factor)


def test_strict_refuses_micro_batches_that_share_what_weights_alone_give():
    more = {"libraries": ["repro"], "ways": ["micro-batches"]}
    assert not same(*made(Derived), **more).equal
    with pytest.raises(OutsideContractError, match="gradients of micro-batches other bits"):
        same(*made(Derived), **more, strict=True)


class Routed(Model):
    """Chooses rows by numbers."""

    def score(self, x):
        flat = x.flatten(0, 1)
        chosen = (flat[:, 0] > 0).nonzero()[:, 0]
        more = torch.zeros_like(flat).index_add(0, chosen, self.layers[0].out(flat[chosen]))
        return super().score(x + more.view(x.shape))


def test_what_cuts_micro_batches_apart_is_named_and_refused():
    found = same(*made(Routed), libraries=["repro"], ways=["micro-batches", "batch 1"])
    assert found.differing("repro") == ["micro-batches"]
    assert found.outcomes["repro"]["micro-batches"].first == ("aten::nonzero", "Routed")
    with pytest.raises(OutsideContractError, match=r"aten::nonzero.*: its gradients of micro"):
        same(*made(Routed), libraries=["repro"], ways=["micro-batches"], strict=True)
    assert same(*made(Routed), libraries=["repro"], ways=["batch 1"], strict=True).equal


class ByLength(Model):
    """Computes another formula for one token, of operators of the contract alone."""

    def score(self, x):
        return super().score(x * 1.21 if x.shape[1] == 1 else x * 1.1 * 1.1)


def test_strict_refuses_a_way_that_differs_by_operators_of_the_contract():
    told = []
    with pytest.raises(OutsideContractError, match=r"aten::mul.*other bits in the way 'decoding'"):
        same(*made(ByLength), strict=True, progress=lambda *n: told.append(n))
    assert max(told)[0] < 13  # of the ways under the first library none ran
    found = same(*made(ByLength), libraries=["std", "repro"], ways=["batch 1"], strict=True)
    assert found.equal
    assert found.outcomes["std"]


class Sharp(nn.Module):
    """Weighs pixels by a softmax in which some vanish, always the same."""

    def forward(self, x):
        x = x.flatten(1)
        return x * (x * torch.linspace(0.0, 900.0, x.shape[1])).softmax(-1)


def test_strict_takes_weights_of_zero_where_nothing_moves():
    found = same(Sharp(), torch.rand(4, 3, 8, 8), libraries=["repro"], strict=True)
    assert found.equal


def test_strict_is_about_repro():
    with pytest.raises(RunError, match="Name repro last"):
        same(*made(), libraries=["repro", "std"], strict=True)


class Forgetful(Model):
    """Keeps a number that ``state_dict()`` does not have, and that training changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("drift", torch.ones(1), persistent=False)

    def score(self, x):
        if self.training:
            self.drift = self.drift * 1.001
        return super().score(x) * self.drift


class Counting(Model):
    calls = 0

    def score(self, x):
        if self.training:
            self.calls += 1
        return super().score(x) * (1 + self.calls * 1e-6)


@pytest.mark.parametrize("library", ["std", "repro"])
def test_training_goes_on_from_a_checkpoint(library):
    model, given = made()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    found = same(model, given, libraries=[library], ways=["resumed from a checkpoint"])
    assert found.equal
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize(("model", "state"), [(Forgetful, "drift"), (Counting, "calls")])
def test_the_state_that_a_checkpoint_lacks_is_named(model, state):
    found = same(*made(model), libraries=["repro"], ways=["resumed from a checkpoint"])
    assert found.outcomes["repro"]["resumed from a checkpoint"].first == (f"state {state}", "")
    assert f"repro parts first by state {state}: resumed from a checkpoint" in found.text()


def test_a_difference_is_counted_and_its_operator_named():
    found = same(*made(Twice), libraries=["repro"], ways=["training forward", "batch 1"])
    assert found.differing("repro") == ["training forward"]
    assert not found.equal
    outcome = found.outcomes["repro"]["training forward"]
    assert outcome.first == ("aten::mul.Tensor", "Twice")
    logits, chances = outcome.parts
    model, inputs = made(Twice)
    with torch.no_grad():
        plain = model(**inputs)["logits"]
        other = plain.mul(1.0000001)
    assert (logits.differ, logits.total) == (int((plain != other).sum()), plain.numel())
    assert logits.largest == (plain.double() - other.double()).abs().max()
    assert 0 < chances.differ <= chances.total == 4 * 64
    assert "repro parts first by aten::mul.Tensor in Twice: training forward" in found.text()
    assert (
        found.text()
        .splitlines()[-1]
        .startswith("under repro 1 of 2 ways differ (training forward): in up to")
    )


def test_gradients_of_micro_batches_are_compared_and_added_in_the_tree():
    found = same(*made(), libraries=["std", "repro"], ways=["micro-batches"])
    (gradients,) = [
        p for p in found.outcomes["std"]["micro-batches"].parts if p.name == "gradients"
    ]
    parameters = sum(p.numel() for p in made()[0].parameters())
    assert 0 < gradients.differ < gradients.total <= parameters
    assert found.outcomes["std"]["micro-batches"].first is None
    assert "of the gradients, by up to" in found.verdict()
    assert found.equal


def test_a_fault_of_the_backward_pass_is_named_there():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient.mul(1.0000001)

    class Checkpoints(Model):
        supports_gradient_checkpointing = True
        checkpoints = False

        def gradient_checkpointing_enable(self):
            self.checkpoints = True

        def gradient_checkpointing_disable(self):
            self.checkpoints = False

        def score(self, x):
            return super().score(Doubled.apply(x) if self.checkpoints else x)

    found = same(*made(Checkpoints), libraries=["repro"], ways=["gradient checkpointing"])
    outcome = found.outcomes["repro"]["gradient checkpointing"]
    assert [p.name for p in outcome.parts if p.differ] == ["gradients"]
    assert outcome.first is not None
    assert outcome.first.operator == "aten::mul.Tensor"


WINDOW = 20


class Windowed(Model):
    """Every layer sees the last positions alone, unless a ready mask says otherwise."""

    kinds: tuple[str, ...] = ()

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(sliding_window=WINDOW, layer_types=list(self.kinds))

    def mask(self, rows, before, length, attention_mask):
        if attention_mask is not None and attention_mask.dim() == 4:
            return attention_mask == 0
        allowed = super().mask(rows, before, length, attention_mask)
        return allowed & allowed.new_ones(allowed.shape).triu(before - WINDOW + 1)


class SeesByKind(Layer):
    kind = ""

    def attend(self, q, k, v, mask):
        return super().attend(q, k, v, mask[self.kind])


class WindowedByKind(Windowed):
    """Its second layer has a window, and its first one does not; each has a mask."""

    layer = SeesByKind
    kinds = ("full_attention", "sliding_attention")

    def __init__(self):
        super().__init__()
        self.layers[0].kind, self.layers[1].kind = self.kinds

    def mask(self, rows, before, length, attention_mask):
        if isinstance(attention_mask, dict):
            return {kind: given == 0 for kind, given in attention_mask.items()}
        full = Model.mask(self, rows, before, length, attention_mask)
        if attention_mask is not None and attention_mask.dim() == 4:
            return dict.fromkeys(self.kinds, full)
        return {
            "full_attention": full,
            "sliding_attention": super().mask(rows, before, length, attention_mask),
        }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", [Windowed, WindowedByKind])
def test_rows_packed_by_a_mask_keep_the_windows_of_layers(model, dtype):
    """A mask without them computes something else, which 16 bits take for rounding."""
    found = same(*made(model), libraries=["repro"], ways=["packed by a mask"], dtype=dtype)
    assert found.equal, found.text()


def test_what_is_no_rounding_is_said():
    class Shifted(Model):
        def forward(self, input_ids, **more):
            found = super().forward(input_ids, **more)
            if len(input_ids) == 1:
                found["logits"] = found["logits"] + 1
            return found

    found = same(*made(Shifted), libraries=["std"], ways=["batch 1"])
    assert found.outcomes["std"]["batch 1"].far
    assert "(!) differs by more than rounding explains" in found.text()


def test_a_way_that_fails_is_reported_with_its_error():
    class Narrow(Model):
        def forward(self, input_ids, **more):
            if len(input_ids) == 3:
                raise ValueError("no batches of three")
            return super().forward(input_ids, **more)

    found = same(*made(Narrow), libraries=["std"], ways=["batch 3"])
    assert found.outcomes["std"]["batch 3"].failed == "ValueError: no batches of three"
    assert not found.equal
    assert "batch 3 fails under std: ValueError: no batches of three" in found.text()


def test_the_limit_leaves_ways_out_and_says_so():
    found = same(*made(), libraries=["std"], ways=["batch 1"], limit=0)
    assert found.outcomes["std"] == {}
    assert not found.equal
    assert "The limit left out, under std: batch 1." in found.text()
    assert found.verdict() == "under std no way was run."


def test_the_verdict_says_of_how_many_ways_it_is_and_of_how_much():
    part = Part("gradients", differ=1, total=900, largest=2e-9)
    outcomes = {"std": {"batch 1": Outcome(()), "prefix": Outcome((part,))}}
    found = Sameness("model", "float32", ("std",), ("batch 1", "prefix"), outcomes, 4)
    assert found.verdict() == (
        "under std 1 of 2 ways differ (prefix): in less than 1% of the gradients, by up to 2e-09."
    )
    left = replace(found, outcomes={"std": {"batch 1": Outcome(())}})
    assert left.verdict() == "under std all 1 ways that were run give the same bits."
    assert not left.equal


def test_a_classifier_of_images_has_the_ways_of_a_batch():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5),
        nn.LazyLinear(10),
    )  # fmt: skip
    found = same(model, torch.randn(4, 3, 8, 8), libraries=["repro"])
    assert found.ways == (
        "training forward", "batch 1", "batch 2", "batch 3", "permuted batch", "threads",
    )  # fmt: skip
    assert found.equal
    assert not model.training
    assert model[4].p == 0.5


@pytest.mark.parametrize(
    ("subject", "inputs", "message"),
    [
        (lambda x: x, torch.ones(2), "function is not a module of torch"),
        (nn.Linear(2, 2), (torch.ones(2, 2), torch.ones(3, 2)), "The inputs have [2, 3] rows"),
        (nn.Linear(2, 2), torch.ones(1, 2), "A batch of one row agrees with itself"),
        (nn.Flatten(0), torch.ones(2, 2), "Its first dimension has to be the batch"),
        (nn.ReLU(), torch.ones(2, 0), "and no other one empty"),
        (nn.Linear(3, 2), torch.ones(2, 2), "Linear cannot be run with its inputs (0): RuntimeErr"),
        (nn.ReLU(), torch.ones(2, 2, dtype=torch.int64), "no tensor of floating-point numbers"),
    ],
)
def test_what_has_no_ways_is_refused(subject, inputs, message):
    with pytest.raises(RunError) as raised:
        same(subject, inputs)
    assert message in str(raised.value)


class Hidden(Model):
    """Gives fewer numbers for each position than there are words, and no cache."""

    def forward(self, *args, **more):
        return {"logits": super().forward(*args, **more)["logits"][..., :5]}


def test_a_result_that_is_of_no_words_and_no_cache_are_no_failure():
    found = same(*made(Hidden), libraries=["repro"], strict=True)
    assert found.equal
    assert "decoding" not in found.ways


class Asks(Model):
    """Asks its configuration what to drop in training."""

    def __init__(self):
        super().__init__()
        more = {"layerdrop": 0.5, "apply_spec_augment": True}
        self.config = SimpleNamespace(**more, to_dict=lambda: more)

    def score(self, x):
        if self.training and (self.config.layerdrop or self.config.apply_spec_augment):
            return super().score(x + torch.rand(()))
        return super().score(x)


def test_what_a_configuration_drops_in_training_is_off():
    model, given = made(Asks)
    assert same(model, given, libraries=["repro"], ways=["training forward"]).equal
    assert (model.config.layerdrop, model.config.apply_spec_augment) == (0.5, True)


def test_a_number_for_each_row_is_compared():
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1), nn.Flatten(0))
    assert same(model, torch.randn(4, 8), libraries=["repro"], strict=True).equal


def test_a_model_that_is_not_deterministic_is_refused():
    class Random(Model):
        def forward(self, *args, **more):
            found = super().forward(*args, **more)
            found["logits"] = found["logits"] + torch.rand(())
            return found

    with pytest.raises(RunError, match="different bits when it is run again in the same way"):
        same(*made(Random), libraries=["std"])


def test_the_verb_prints_stores_and_judges(tmp_path, capsys):
    file = tmp_path / "same.json"
    ways = ["--ways", "prefix,batch 1", "--quiet", "--store", str(file)]
    assert cli.main(["same", SUBJECT, "--libraries", "std,repro", *ways]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1].endswith("under repro all 2 ways give the same bits.")
    stored = json.loads(file.read_text())
    assert stored["format"] == "udftorch-same-1"
    assert stored["equal"] is True
    assert list(stored["outcomes"]["repro"]) == ["batch 1", "prefix"]
    assert stored["outcomes"]["repro"]["prefix"]["parts"][0]["total"] == 4 * 37 * 70


def test_the_verb_fails_where_a_way_differs(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("UDFTORCH_PROGRESS", "1")
    monkeypatch.setattr(progress, "PAUSE", 0.001)
    (tmp_path / "model.py").write_text(
        "from benches.data.models.small_language_model import made\n"
        "from reproduce.test_same import Twice\n"
        "def make():\n    return made(Twice)\n"
    )
    where = f"{tmp_path / 'model.py'}:make"
    arguments = ["--libraries", "repro", "--ways", "training forward"]
    assert cli.main(["same", where, *arguments]) == cli.FAILED
    got = capsys.readouterr()
    assert "aten::mul.Tensor in Twice" in got.out
    assert "udftorch: ways: done, " in got.err


#: What runs the ways of a model in a process of its own.
COMMANDS = {
    "verb": ["pytest_udftorch", "same", SUBJECT, "--libraries=std", "--ways=batch 1", "--quiet"],
    "pytest": ["pytest", "--udf-lib=std", f"--udf-model={SUBJECT}"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("wanted", "policy"), [(None, "PASSIVE"), ("active", "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_told_otherwise(command, wanted, policy, tmp_path):
    told = {} if wanted is None else {"OMP_WAIT_POLICY": wanted}
    clean = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    found = subprocess.run(
        [sys.executable, "-m", *COMMANDS[command]],
        env={**clean, **told, "OMP_DISPLAY_ENV": "true"},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = re.findall(r"OMP_WAIT_POLICY\s*=\s*'(\w+)'", found.stderr)
    assert said == [policy], found.stdout + found.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SUBJECT, "--ways", "batch 9"], "There is no way 'batch 9'. Did you mean"),
        ([SUBJECT, "--ways", "right padding,GPU"], "cannot be run in the way 'GPU'"),
        ([SUBJECT, "--dtype", "int8"], "int8 is not a dtype of a model"),
        ([SUBJECT, "--libraries", ","], "There is no library to run under"),
        ([SUBJECT, "--libraries", "corm"], "corm"),
        (["model"], "'model' names no model. Write model.py:make"),
        (["torchvision:resnet81"], "torchvision has no classifier 'resnet81'"),
        (["hf:/nowhere"], "is not the folder of a checkpoint"),
    ],
)
def test_mistakes_are_answered(arguments, message, capsys):
    if torch.cuda.is_available() and "GPU" in message:
        pytest.skip("this machine has the way")
    assert cli.main(["same", *arguments, "--quiet"]) == cli.MISUSE
    assert message in capsys.readouterr().err


def test_a_missing_package_is_named(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    assert cli.main(["same", "timm:resnet18", "--quiet"]) == cli.MISUSE
    said = capsys.readouterr().err
    assert "udftorch same needs the package timm" in said
    assert "pytest_udftorch[models]" in said


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("trl", on_policy.measure),
        ("lightning", lambda: resumed_trainers.with_lightning(HERE, ())),
        ("accelerate", lambda: resumed_trainers.with_accelerate(HERE, ())),
    ],
)
def test_a_missing_trainer_is_named_with_the_extra_that_brings_it(name, run, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PackageMissingError, match=rf"needs the package {name}.*\[trainers\]"):
        run()
    page = (HERE.parents[1] / "docs" / "reproduce" / "on_policy.md").read_text()
    assert "pip install 'pytest_udftorch[trainers]'" in page


@pytest.mark.parametrize("page", ["same.md", "on_policy.md"])
def test_what_the_page_shows_runs(page):
    text = (HERE.parents[1] / "docs" / "reproduce" / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert blocks
    for block in blocks:
        exec(block, {})


def test_the_page_names_every_way():
    text = (HERE.parents[1] / "docs" / "reproduce" / "same.md").read_text()
    listed = text.partition("## The ways")[2].partition("## In Python")[0]
    for way in WAYS:
        assert re.sub(r"^batch ([23])$", r"\1", way.name) in listed, way.name


def test_results_add_up_to_what_they_say():
    found = same(*made(), libraries=["std", "repro"], ways=["batch 1"])
    assert isinstance(found, Sameness)
    assert found.document()["verdict"] == found.verdict() == found.text().splitlines()[-1]
    assert "<table>" in found._repr_html_()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "left"),
    [("Llama", []), ("Qwen2", []), ("Mistral", []), ("Mixtral", ["micro-batches"])],
)
def test_language_models_of_transformers_agree_under_repro(name, left):
    """Mistral has a window that slides; Mixtral routes tokens, whose gradients are no tree."""
    pytest.importorskip("transformers")
    found = same(f"hf-tiny:{name}ForCausalLM", libraries=["repro"])
    assert {"left padding", "packed by positions", "decoding in a static cache"} <= {*found.ways}
    assert found.differing("repro") == left
    for way in left:
        parts = found.outcomes["repro"][way].parts
        assert [part.name for part in parts if part.differ] == ["gradients"]
