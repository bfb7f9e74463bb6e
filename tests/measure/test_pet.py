# SPDX-License-Identifier: Apache-2.0
"""PET's mutants: where the box test finds them wrong, their corrections, and when they are kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_udftorch.measure import equivalence, recording
from pytest_udftorch.measure.rewrite import batches, mutants
from pytest_udftorch.measure.rewrite.boxes import Box
from pytest_udftorch.measure.rewrite.mutants import Move, Mutant, Setting

PLAIN = Setting((1, 1), (1, 1), (1, 1))
DILATED = Setting((1, 1), (2, 2), (2, 2))
X, W = (3, 2, 7, 6), (2, 2, 3, 3)


def found(x, w, setting):
    """Return name -> mutant; of several of one name the one that is right in most places."""
    return {m.name: m for m in reversed(mutants.generated(x, w, setting))}


def whole(setting):
    return setting.stride, setting.padding, setting.dilation, setting.groups


def test_a_batch_becomes_one_image_and_is_wrong_at_the_seams_alone():
    for setting, margin in ((PLAIN, 1), (DILATED, 2)):
        known = found(X, W, setting)
        assert {"side by side", "one below the other"} <= known.keys()
        beside = mutants.wrong_regions(known["side by side"], X, W, setting)
        assert beside == (((0, 7), (0, margin)), ((0, 7), (6 - margin, 6)))
        below = mutants.wrong_regions(known["one below the other"], X, W, setting)
        assert below == (((0, margin), (0, 6)), ((7 - margin, 7), (0, 6)))


@pytest.mark.parametrize("x", [X, (1, 2, 8, 8)])
def test_a_dilated_convolution_by_parts_is_right_everywhere(x):
    mutant = found(x, W, DILATED)["by parts"]
    assert mutant.dilation == (1, 1)
    assert mutants.wrong_regions(mutant, x, W, DILATED) == ()


@pytest.mark.parametrize(
    ("x", "w", "stride", "padding"),
    [
        ((2, 3, 24, 24), (5, 3, 7, 7), 2, (3, 3)),  # as at the start of a ResNet
        ((2, 3, 11, 13), (4, 3, 3, 3), 2, (1, 1)),
        ((1, 2, 10, 10), (3, 2, 3, 3), 3, (0, 0)),
        ((2, 2, 9, 8), (2, 2, 3, 5), 2, (1, 2)),
        ((1, 1, 20, 20), (1, 1, 2, 2), 4, (0, 0)),  # windows that leave rows out
        ((2, 4, 20), (4, 4, 3), 2, (1,)),
        ((1, 2, 6, 6, 6), (2, 2, 3, 3, 3), 2, (1, 1, 1)),
    ],
)
def test_a_strided_convolution_by_phases_is_right_everywhere(x, w, stride, padding):
    rank = len(padding)
    setting = Setting((stride,) * rank, padding, (1,) * rank)
    mutant = found(x, w, setting)["by phases"]
    assert mutant.stride == (1,) * rank
    assert mutants.wrong_regions(mutant, x, w, setting) == ()
    # Kernels that are taken apart otherwise are found to be wrong.
    turned = equivalence(
        setting.stock, lambda a, b: mutant(a, b.flip(len(x) - 1), None, setting), [x, w]
    )
    assert not turned.equal


@pytest.mark.parametrize(
    ("x", "w", "setting"),
    [
        (X, W, PLAIN),
        (X, W, DILATED),
        ((2, 2, 9, 8), (2, 2, 3, 5), Setting((2, 2), (1, 2), (1, 1))),
        ((4, 8, 9, 9), (8, 2, 3, 3), Setting((1, 1), (2, 2), (2, 2), 4)),
        ((2, 4, 20), (4, 4, 3), Setting((1,), (1,), (1,))),
        ((2, 2, 5, 5, 5), (2, 2, 3, 3, 3), Setting((1,) * 3, (1,) * 3, (1,) * 3)),
    ],
)
def test_every_mutant_with_its_correction_is_the_convolution(x, w, setting):
    """Dilated, strided, grouped, in one to three dimensions, as programs of the box test too."""
    known = mutants.generated(x, w, setting)
    assert known
    image, kernel, bias = torch.randn(x), torch.randn(w), torch.randn(w[0])
    wanted = setting.stock(image, kernel, bias)
    for mutant in known:
        wrong = mutants.wrong_regions(mutant, x, w, setting)
        given = (mutant.plain(), image, kernel, bias, whole(setting))
        torch.testing.assert_close(mutants.corrected(*given, wrong), wanted, rtol=1e-4, atol=1e-4)
        assert Mutant.of(mutant.plain()) == mutant
        if wrong:  # without its correction it is wrong
            assert not torch.allclose(mutants.corrected(*given, ()), wanted)


def test_planted_wrong_mutants_are_refused(monkeypatch):
    """Moved back to the wrong end, another padding, a kernel that does not move alike."""
    right = Move(0, 3, 0, slow=False, outer=True)
    wrong = [
        Mutant((Move(0, 3, 0, slow=False, outer=False),), False, (1, 1), (1, 1), (1, 1)),
        Mutant((right,), False, (1, 1), (0, 0), (1, 1)),
        Mutant((right,), False, (1, 1), (1, 1), (2, 2)),
        Mutant((Move(2, 1, 2, slow=True, outer=True),), True, (1, 1), (0, 0), (1, 1)),
    ]
    good = Mutant((right,), False, (1, 1), (1, 1), (1, 1))
    monkeypatch.setattr(mutants, "_tried", lambda *_: [*wrong, good])
    mutants.generated.cache_clear()
    assert mutants.generated(X, W, PLAIN) == (good,)
    mutants.generated.cache_clear()
    assert [mutants.right_share(m, X, W, PLAIN) < mutants.SHARE for m in wrong] == [True] * 4
    assert mutants.right_share(good, X, W, PLAIN) > mutants.SHARE


def test_a_share_that_numbers_only_seem_to_have_is_refused(monkeypatch):
    """The box test has the last word: here every number is said to agree."""
    wrong = Mutant((Move(0, 3, 0, slow=False, outer=False),), False, (1, 1), (1, 1), (1, 1))
    monkeypatch.setattr(mutants, "_tried", lambda *_: [wrong])
    monkeypatch.setattr(mutants, "right_share", lambda *_: 1.0)
    mutants.generated.cache_clear()
    assert mutants.generated(X, W, PLAIN) == ()
    mutants.generated.cache_clear()


def test_a_correction_too_small_is_found():
    mutant = found(X, W, PLAIN)["side by side"]
    right = mutants.wrong_regions(mutant, X, W, PLAIN)
    x, w = torch.randn(X), torch.randn(W)
    part = mutants.corrected(mutant.plain(), x, w, None, whole(PLAIN), right[:1])
    assert not torch.allclose(part, PLAIN.stock(x, w))


def test_boxes_become_few_regions():
    boxes = [
        Box(0, ((n, n + 1), (0, 4), rows, (0, 1)), 1)
        for n in range(3)
        for rows in [(0, 1), (1, 6), (8, 9)]
    ]
    assert mutants.regions(boxes) == (((0, 6), (0, 1)), ((8, 9), (0, 1)))
    assert mutants.regions([]) == ()


@pytest.mark.parametrize(
    ("x", "setting", "names"),
    [
        (X, PLAIN, {"side by side", "one below the other"}),
        (X, DILATED, {"side by side", "one below the other", "by parts"}),
        ((1, *X[1:]), PLAIN, set()),
        ((1, *X[1:]), Setting((1, 1), (0, 0), (1, 1)), set()),
    ],
)
def test_mutants_are_found_where_there_is_something_to_move(x, setting, names):
    assert set(found(x, W, setting)) == names


class OneKernel(nn.Module):
    """Two images, and rows of two matrices, that meet one weight."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(6, 5)

    def forward(self, a, b, c):
        return self.conv(a).relu() + self.conv(b), self.linear(c).tanh() * self.linear(c + 1)


class Expanded(nn.Module):
    """Matrices of a batch by one matrix, which is expanded."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 5))

    def forward(self, x):
        return torch.bmm(x, self.w.expand(x.shape[0], 6, 5))


def test_calls_of_one_weight_become_one_batch():
    x = (torch.randn(1, 2, 6, 6), torch.randn(1, 2, 6, 6), torch.randn(9, 6))
    for model, given, rules in (
        (OneKernel(), x, {"one batch": 2}),
        (Expanded(), (torch.randn(4, 3, 6),), {"one product": 1}),
    ):
        torch.compiler.reset()
        options = {"runs": 3, "gain": 0}
        compiled = torch.compile(model.eval(), backend="udf_pet", dynamic=False, options=options)
        with torch.no_grad(), recording() as reports:
            mine, wanted = compiled(*given), model(*given)
        for one, other in zip(mine, wanted, strict=True):
            torch.testing.assert_close(one, other)
        counted = {rule: n for rule, n in reports[0].own.items() if rule in rules}
        assert (counted, reports[0].left_alone) == (rules, "")


def test_a_batch_that_is_wrong_is_refused(monkeypatch):
    """One whose results are those of another call."""
    programs = batches.Batch.programs

    def swapped(self):
        before, after, shapes = programs(self)
        return before, lambda *given: tuple(reversed(after(*given))), shapes

    monkeypatch.setattr(batches.Batch, "programs", swapped)
    torch.compiler.reset()
    model = OneKernel().eval()
    x = (torch.randn(1, 2, 6, 6), torch.randn(1, 2, 6, 6), torch.randn(3, 6))
    compiled = torch.compile(
        model, backend="udf_pet", dynamic=False, options={"runs": 3, "gain": 0}
    )
    with torch.no_grad(), recording() as reports:
        compiled(*x)
    assert "one batch" not in reports[0].own


@pytest.mark.parametrize(("gain", "kept"), [(0, True), (1e9, False)])
def test_a_mutant_is_kept_where_it_gains_enough(gain, kept):
    torch.compiler.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=2, dilation=2), nn.ReLU()).eval()
    x = torch.randn(3, 4, 6, 6)
    options = {"runs": 3, "gain": gain}
    compiled = torch.compile(model, backend="udf_pet", dynamic=False, options=options)
    with torch.no_grad(), recording() as reports:
        torch.testing.assert_close(compiled(x), model(x))
    (report,) = reports
    assert report.left_alone == ""
    assert any(f.rule.startswith("convolution ") for f in report.fired) == kept
    assert ("; kept, the fastest of" if kept else "; not kept, the fastest of") in report.notes[0]
    assert "with its correction of " in report.notes[0]
    (detail,) = report.document()["details"]
    assert (detail["kept"], detail["dilation"], detail["image"]) == (kept, (2, 2), [3, 4, 6, 6])


def test_equal_convolutions_are_measured_once():
    torch.compiler.reset()
    model = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))).eval()
    compiled = torch.compile(
        model, backend="udf_pet", dynamic=False, options={"runs": 3, "gain": 0}
    )
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad(), recording() as reports:
        torch.testing.assert_close(compiled(x), model(x))
    first, second = reports[0].details
    assert first["node"] != second["node"]
    assert first["corrected_ns"] == second["corrected_ns"]
