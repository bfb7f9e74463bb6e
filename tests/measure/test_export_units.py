# SPDX-License-Identifier: Apache-2.0
"""Plans for models that FX cannot trace: their units are cut out of an exported graph."""

import copy
import dataclasses
import subprocess
import sys

import pytest
import torch
from torch import nn

from pytest_udftorch import errors, measure
from pytest_udftorch.errors import ExecutorError, UntraceableModelError
from pytest_udftorch.measure.planning.fusion import trace
from pytest_udftorch.measure.planning.segments import Units

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = {"runs": 6, "rounds": 1, "max_units": 4, "executors": ["eager", "eager+channels_last"]}


@dataclasses.dataclass
class Output:
    """A result of a class of its own, as Hugging Face's models return."""

    last: torch.Tensor
    first: torch.Tensor
    loss: torch.Tensor | None = None


torch.export.register_dataclass(Output, serialized_type_name="test_exported_units.Output")


class Block(nn.Module):
    """Attention and two linear layers, each with a residual sum; norms before or after it."""

    def __init__(self, norm_first):
        super().__init__()
        self.norm_first = norm_first
        self.attention = nn.Linear(8, 24)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)])

    def attend(self, x, mask):
        query, key, value = self.attention(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT / 2 + mask
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)

    def forward(self, x, mask):
        layers = (lambda x: self.attend(x, mask), lambda x: self.narrow(self.wide(x).relu()))
        for norm, layer in zip(self.norms, layers, strict=True):
            x = x + layer(norm(x)) if self.norm_first else norm(x + layer(x))
        return x


class Transformer(nn.Module):
    """Its Python depends on shapes, on flags and on what is given; FX cannot follow it."""

    def __init__(self, norm_first=True, seed=5):
        super().__init__()
        torch.manual_seed(seed)
        self.tokens, self.places = nn.Embedding(20, 8), nn.Embedding(16, 8)
        self.blocks = nn.ModuleList([Block(norm_first), Block(norm_first)])
        self.head = nn.Linear(8, 20)

    def forward(self, ids, given=None, *, labels=None):
        length = ids.shape[1]
        if length > 16:
            raise ValueError("too long")
        x = self.tokens(ids) + self.places(torch.arange(length, device=ids.device))
        mask = torch.ones(length, length, device=ids.device).triu(1).to(x.dtype) * -1e4
        if given is not None and "mask" in given:
            mask = mask + given["mask"][:, None, None].to(x.dtype).sub(1) * 1e4
        first = None
        for block in self.blocks:
            x = block(x, mask)
            first = x if first is None else first
        loss = None if labels is None else nn.functional.cross_entropy(x, labels)
        return Output(self.head(x), first, loss)


class Crops(nn.Module):
    """As many layers as the input is wide."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.layers = nn.ModuleList([nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers[: x.shape[-1] // 4]:
            x = layer(x).relu()
            if x.shape[-1] > 4:
                x = x[..., :-2]
        return x


@pytest.fixture
def inputs():
    ids = torch.arange(12).reshape(2, 6)
    return ids, {"mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])}


@torch.no_grad
def in_a_row(units, inputs):
    value = inputs
    for unit in range(len(units)):
        step = units.step(units.segment(unit, unit + 1), unit, unit + 1)
        value = step(*value) if unit == 0 else step(value)
    return value


@torch.no_grad
def same(mine, theirs):
    return type(mine) is Output and all(
        a is b is None or torch.equal(a, b)
        for a, b in zip(vars(mine).values(), vars(theirs).values(), strict=True)
    )


@pytest.mark.parametrize("norm_first", [True, False])
def test_units_of_a_transformer_are_its_blocks_and_together_the_model(inputs, norm_first):
    model = Transformer(norm_first).eval()
    with pytest.raises(UntraceableModelError, match="cannot trace Transformer"):
        trace(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    units = Units(copy.deepcopy(model), inputs, 100)
    assert same(in_a_row(units, inputs), model(*inputs))
    assert same(units.step(units.segment(0, len(units)), 0, len(units))(*inputs), model(*inputs))
    # Embeddings, two halves of each block, and the head.
    assert len(units) == 6
    # The mask crosses until the last attention, and the first block's result from there on.
    assert [len(arguments) for arguments in units.activations(inputs)] == [2, 2, 2, 2, 2, 2]
    shapes = [sorted(len(t.shape) for t in row) for row in units.activations(inputs)[1:]]
    assert shapes == [[3, 4], [3, 4], [3, 4], [3, 3], [3, 3]]
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


def test_control_flow_on_shapes_and_convolutions_are_cut():
    model, x = Crops().eval(), torch.randn(2, 3, 8, 8)
    units = Units(copy.deepcopy(model), (x,), 100)
    assert units.exported is not None
    assert [name.split("..")[0] for name in units.names] == ["conv2d", "conv2d_1"]
    with torch.no_grad():
        assert torch.equal(in_a_row(units, (x,)), model(x))


@pytest.mark.slow
def test_a_plan_of_exported_units_is_kept_and_applied_to_other_weights(inputs, tmp_path):
    model = Transformer().eval()
    plan = measure.oracle(model, inputs, **QUICK)
    report = plan.report
    assert report["exported"]
    assert "not_cut" not in report
    assert report["plan_problems"] == {}
    assert all(len(row) == len(report["units"]) for row in report["unit_ns"].values())
    # Which plan wins, and where few units are cut, is noise; that a plan is right is not.
    units = Units(copy.deepcopy(model), inputs, 100)
    segments = ((0, 2, "eager"), (2, 3, "compile"), (3, 6, "eager+channels_last"))
    stored = dataclasses.replace(
        plan.stored, segments=segments, bounds=tuple(units.bounds), model=units.fingerprint
    )
    measure.Plan(stored).save(tmp_path / "plan.json")
    loaded = measure.Plan.load(tmp_path / "plan.json")
    other = Transformer(seed=7).eval()
    run = loaded.apply(other, inputs)
    found, wanted = run(*inputs), other(*inputs)
    assert type(found) is Output
    assert found.loss is None
    torch.testing.assert_close(found.last, wanted.last)
    torch.testing.assert_close(found.first, wanted.first)
    ids, given = inputs
    for wrong in [(ids[:1], given), (ids, {"bias": given["mask"]}), (ids,), (ids.float(), given)]:
        with pytest.raises(ExecutorError, match=r"exported for int64\[2, 6\], int64\[2, 6\]"):
            run(*wrong)
    with pytest.raises(errors.PlanError, match="made for model"):
        loaded.apply(Transformer(norm_first=False).eval(), inputs)


def test_a_mask_that_is_lost_at_a_boundary_is_noticed(inputs):
    """Negative control: the plan is judged by what it returns."""
    real = Units.step

    def wrong(self, call, first, stop):
        step = real(self, call, first, stop)
        if first == 0:
            return step
        return lambda value: step(tuple(torch.zeros_like(t) for t in value))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Units, "step", wrong)
        plan = measure.oracle(Transformer().eval(), inputs, **QUICK)
    assert plan.uniform is not None
    assert set(plan.report["plan_problems"]) == set(plan.report["plans"])


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_another_process(inputs):
    code = (
        "import runpy; here = runpy.run_path(%r); torch = here['torch']\n"
        "ids = torch.zeros(2, 6, dtype=torch.long)\n"
        "given = {'mask': torch.ones(2, 6, dtype=torch.long)}\n"
        "print(here['Units'](here['Transformer'](seed=8).eval(), (ids, given), 3,\n"
        "                    bounds=(0, 9, 11)).fingerprint)"
    )
    other = subprocess.run(
        [sys.executable, "-c", code % __file__], capture_output=True, text=True, check=True
    )
    mine = Units(Transformer().eval(), inputs, bounds=(0, 9, 11)).fingerprint
    assert other.stdout.split() == [mine]


def test_a_branch_that_the_inputs_do_not_take_is_left_out():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x, mask=None):
            x = self.first(x)
            return self.second(x if mask is None else x * mask)

    model, x = Masked().eval(), torch.randn(3, 8)
    trace(model)  # FX takes the other branch, which does not run on these inputs
    units = Units(model, (x,), 4)
    assert len(units) == 2
    with torch.no_grad():
        assert torch.equal(in_a_row(units, (x,)), model(x))


def test_a_model_that_is_one_unit_says_so():
    class Whole(nn.Module):
        def forward(self, x):
            return x.sin() if len(x.shape) > 1 else x

    plan = measure.oracle(Whole().eval(), torch.randn(2, 3), **QUICK)
    assert "one activation alone" in plan.report["not_cut"]
