# SPDX-License-Identifier: Apache-2.0
"""PET's mutants of two and three linear operators: found, corrected, and refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_udftorch.measure import recording
from pytest_udftorch.measure.rewrite import stages
from pytest_udftorch.measure.rewrite.mutants import Setting
from pytest_udftorch.measure.rewrite.stages import Problem, Stage


def setting(rank, stride=1, padding=0, dilation=1, groups=1):
    return Setting((stride,) * rank, (padding,) * rank, (dilation,) * rank, groups)


def conv(rank, size, kernel, offset=None, **kind):
    return Stage("convolution", setting(rank, **kind), (size,) * rank, kernel, offset)


def average(rank, size, **kind):
    return Stage("average", setting(rank, **kind), (size,) * rank)


def transposed(rank, size, more=0, **kind):
    edges = ((0, more),) * rank
    return Stage("transposed", setting(rank, **kind), (size,) * rank, 0, 1, edges)


def edges(*pairs):
    return Stage("edges", setting(len(pairs)), edges=pairs)


#: Name -> chain, images, kernels and offsets; moves that lead to mutants, and to wrong chains.
CASES = {
    "pooled 1 x 1": (
        (conv(2, 1, 0, 1), average(2, 2, stride=2)), (2, 3, 6, 6), [(2, 3, 1, 1), (2,)],
        {"merged", "swapped"}, set(),
    ),
    "pooled 3 x 3": (
        (conv(2, 3, 0, padding=1), average(2, 2, stride=2)), (1, 2, 8, 8), [(2, 2, 3, 3)],
        {"merged"}, {"swapped"},
    ),
    "3 x 3 twice": (
        (conv(2, 3, 0, padding=1), conv(2, 3, 1, padding=1)), (1, 2, 9, 9),
        [(4, 2, 3, 3), (2, 4, 3, 3)],
        {"merged"}, set(),
    ),
    "1 x 1 of averages, with zeros around": (
        (average(2, 3, padding=1), conv(2, 1, 0, 1)), (1, 4, 9, 9), [(2, 4, 1, 1), (2,)],
        {"merged", "swapped"}, set(),
    ),
    "three in space": (
        (conv(3, 1, 0), average(3, 2, stride=2), conv(3, 1, 1)), (1, 2, 4, 4, 4),
        [(2, 2, 1, 1, 1), (2, 2, 1, 1, 1)], {"merged", "swapped"}, set(),
    ),
    "transposed": (
        (transposed(2, 3, 1, stride=2, padding=1),), (2, 2, 4, 5), [(2, 3, 3, 3), (3,)],
        {"by phases"}, set(),
    ),
    "transposed lines": (
        (transposed(1, 4, stride=3, padding=1),), (1, 2, 7), [(2, 3, 4), (3,)],
        {"by phases"}, set(),
    ),
    "edges": (
        (edges((1, 1), (1, 1)), conv(2, 3, 0, stride=2), edges((-1, 0), (0, -1))), (1, 2, 11, 9),
        [(2, 2, 3, 3)], {"edges moved"}, {"swapped"},
    ),
    "separable": (
        (conv(2, 3, 0, padding=1, groups=4), conv(2, 1, 1), average(2, 2, stride=2)), (1, 4, 6, 6),
        [(4, 1, 3, 3), (2, 4, 1, 1)], {"merged", "swapped"}, {"swapped"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_chains_with_corrections_are_the_chain(name):
    chain, image, tensors, right, wrong = CASES[name]
    problem = Problem(chain, image, tuple(tensors))
    found = stages.generated(problem)
    assert {names[0] for o in found for names in [o.names] if len(names) == 1} == right
    every = stages.reached(chain)
    assert wrong <= {n[0] for c, n in every.items() if c not in {o.chain for o in found}}
    x, *given = (torch.randn(shape) for shape in (image, *tensors))
    wanted = stages.run(chain, x, given)
    for other in found:
        ready, kernels = stages.prepared(other.chain, given)
        mine = stages.corrected(
            stages.Other(other.names, ready, other.wrong, other.needed), chain, x, kernels, given
        )
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)
        # m + 1 positions of each box, and more where several sums meet.
        assert other.needed > sum(size > 1 for size in wanted.shape)
        if other.wrong:
            assert not torch.allclose(stages.run(ready, x, kernels), wanted, atol=1e-4)


def planted(monkeypatch, **operands):
    """Have chains made with wrong operands or settings."""
    chain, image, tensors, *_ = CASES["transposed"]

    def phased(stage):
        kernel = ("phases", stage.kernel, stage.setting.stride)
        yield stages.replace(stage, **{"kind": "phases", "kernel": kernel, **operands})

    monkeypatch.setattr(stages, "_phased", phased)
    stages.generated.cache_clear()
    return Problem(chain, image, tuple(tensors))


@pytest.mark.parametrize(
    "operands",
    [
        {"kernel": ("phases", 0, (1, 1))},
        {"setting": setting(2, stride=2)},
        {"offset": None},
        {"edges": ((0, 0), (0, 0))},
    ],
)
def test_planted_wrong_chains_are_refused(monkeypatch, operands):
    """Phases of another stride, rows of another place, no offset, another shape."""
    problem = planted(monkeypatch, **operands)
    assert stages.reached(problem.chain)
    assert stages.generated(problem) == ()
    stages.generated.cache_clear()


def test_the_box_test_has_the_last_word(monkeypatch):
    problem = planted(monkeypatch, offset=None)
    monkeypatch.setattr(stages, "right_share", lambda *_: 1.0)
    assert stages.generated(problem) == ()
    stages.generated.cache_clear()


def test_a_correction_too_small_is_found():
    chain, image, tensors, *_ = CASES["3 x 3 twice"]
    (other,) = stages.generated(Problem(chain, image, tuple(tensors)))
    x, *given = (torch.randn(shape) for shape in (image, *tensors))
    ready, kernels = stages.prepared(other.chain, given)
    short = stages.Other(other.names, ready, other.wrong[1:], other.needed)
    found = stages.corrected(short, chain, x, kernels, given)
    assert not torch.allclose(found, stages.run(chain, x, given), atol=1e-4)


class Chains(nn.Module):
    """Two, three and one linear operators, with others between."""

    def __init__(self):
        super().__init__()
        self.narrow, self.up = nn.Conv2d(6, 4, 1), nn.ConvTranspose2d(4, 3, 3, 2, 1, 1)
        self.wide, self.last = nn.Conv2d(3, 6, 1, bias=False), nn.Conv2d(6, 2, 3)
        self.lines = nn.Conv1d(12, 3, 1)

    def forward(self, x):
        y = F.avg_pool2d(self.narrow(x), 2).relu()
        y = F.pad(self.wide(self.up(y).relu()), (1, 1, 1, 1))
        y = self.last(y)[:, :, 1:-1].sigmoid()
        return y, F.avg_pool1d(self.lines(x[:, 0]), 2)


def test_chains_of_a_model_are_replaced():
    torch.manual_seed(0)
    torch.compiler.reset()
    model, x = Chains().eval(), torch.randn(1, 6, 12, 12)
    compiled = torch.compile(
        model, backend="udf_pet", dynamic=False, options={"gain": 0, "runs": 3}
    )
    with torch.no_grad(), recording() as reports:
        for mine, wanted in zip(compiled(x), model(x), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)
    (report,) = reports
    assert report.left_alone == ""
    sizes = [int(f.where.split()[0]) for f in report.fired if f.rule.startswith("chain ")]
    assert sorted(sizes) == [1, 2, 2, 3]
    assert all(d["kept"] and d["needed"] for d in report.details)


def test_a_chain_beside_what_is_computed_once_is_counted():
    """A pooled branch of Inception v3: its norm is folded, so the offset is a constant."""
    torch.manual_seed(0)
    torch.compiler.reset()
    layers = nn.AvgPool2d(3, 1, 1), nn.Conv2d(6, 2, 1, bias=False), nn.BatchNorm2d(2), nn.ReLU()
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 6, 9, 9)
    compiled = torch.compile(
        model, backend="udf_pet", dynamic=False, options={"gain": 0, "runs": 3}
    )
    with torch.no_grad(), recording() as reports:
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    (report,) = reports
    assert (report.left_alone, report.after is None) == ("", False)
    assert any(rule.startswith("chain ") for rule in report.own)


def test_chains_keep_channels_last():
    torch.manual_seed(0)
    torch.compiler.reset()
    model = nn.Sequential(nn.ZeroPad2d((1, 2, 0, 1)), nn.Conv2d(4, 4, 3, padding=1)).eval()
    x = torch.randn(2, 4, 7, 7).to(memory_format=torch.channels_last)
    options = {"gain": 0, "runs": 3}
    compiled = torch.compile(model, backend="udf_pet", dynamic=False, options=options)
    with torch.no_grad(), recording() as reports:
        found, wanted = compiled(x), model(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert found.stride() == wanted.stride()
    (report,) = reports
    assert (report.left_alone, [*report.own]) == ("", ["chain swapped"])
