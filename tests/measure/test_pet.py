# SPDX-License-Identifier: Apache-2.0
"""PET's mutants: where the box test finds them wrong, their corrections, and when they are kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_udftorch.measure import equivalence, recording
from pytest_udftorch.measure.rewrite import pet
from pytest_udftorch.measure.rewrite.boxes import Box

PLAIN = pet.Setting((1, 1), (1, 1), (1, 1))
DILATED = pet.Setting((1, 1), (2, 2), (2, 2))
X, W = (3, 2, 7, 6), (2, 2, 3, 3)


def plain(setting):
    return setting.stride, setting.padding, setting.dilation


def test_images_side_by_side_are_wrong_at_the_seams_alone():
    assert pet.wrong_regions(pet.side_by_side, X, W, PLAIN) == ((0, 7, 0, 1), (0, 7, 5, 6))
    assert pet.wrong_regions(pet.side_by_side, X, W, DILATED) == ((0, 7, 0, 2), (0, 7, 4, 6))


@pytest.mark.parametrize("x", [X, (1, 2, 8, 8)])
def test_a_dilated_convolution_by_parts_is_right_everywhere(x):
    assert pet.wrong_regions(pet.by_parts, x, W, DILATED) == ()


@pytest.mark.parametrize(
    ("x", "w", "stride", "padding"),
    [
        ((2, 3, 24, 24), (5, 3, 7, 7), 2, (3, 3)),  # as at the start of a ResNet
        ((2, 3, 11, 13), (4, 3, 3, 3), 2, (1, 1)),
        ((1, 2, 10, 10), (3, 2, 3, 3), 3, (0, 0)),
        ((2, 2, 9, 8), (2, 2, 3, 5), 2, (1, 2)),
        ((1, 1, 20, 20), (1, 1, 2, 2), 4, (0, 0)),  # windows that leave rows out
    ],
)
def test_a_strided_convolution_by_phases_is_right_everywhere(x, w, stride, padding):
    setting = pet.Setting((stride, stride), padding, (1, 1))
    assert pet.mutants(x, w, setting) == ["by phases"]
    assert pet.wrong_regions(pet.by_phases, x, w, setting) == ()
    # Kernels that are taken apart otherwise are found to be wrong.
    turned = equivalence(
        lambda a, b: setting.stock(a, b),
        lambda a, b: pet.by_phases(a, b.flip(3), None, setting),
        [x, w],
    )
    assert not turned.equal


@pytest.mark.parametrize("setting", [PLAIN, DILATED])
def test_corrected_mutants_equal_the_convolution_in_the_field(setting):
    wrong = pet.wrong_regions(pet.side_by_side, X, W, setting)

    def whole(x, w):
        """The correction as a program without writes, which the box test takes."""
        (_, _, _, left), (_, _, right, _) = wrong
        middle = pet.side_by_side(x, w, None, setting)[..., left:right]
        sides = [pet.region_of(x, w, None, setting, region) for region in wrong]
        return torch.cat([sides[0], middle, sides[1]], 3)

    assert equivalence(setting.stock, whole, [X, W]).equal
    x, w, bias = torch.randn(X), torch.randn(W), torch.randn(2)
    found = pet.corrected("side by side", x, w, bias, plain(setting), wrong)
    torch.testing.assert_close(found, setting.stock(x, w, bias))
    # Without the correction it is wrong.
    assert not torch.allclose(pet.side_by_side(x, w, bias, setting), found)


def test_a_correction_too_small_is_found():
    right = pet.wrong_regions(pet.side_by_side, X, W, PLAIN)
    x, w = torch.randn(X), torch.randn(W)
    found = pet.corrected("side by side", x, w, None, plain(PLAIN), right[:1])
    assert not torch.allclose(found, PLAIN.stock(x, w))


def test_boxes_become_few_regions():
    boxes = [
        Box(0, ((n, n + 1), (0, 4), rows, (0, 1)), 1)
        for n in range(3)
        for rows in [(0, 1), (1, 6), (8, 9)]
    ]
    assert pet.regions(boxes) == ((0, 6, 0, 1), (8, 9, 0, 1))


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (PLAIN, {"side by side"}),
        (DILATED, {"side by side", "by parts"}),
        (pet.Setting((2, 2), (1, 1), (1, 1)), {"by phases"}),
        (pet.Setting((2, 1), (1, 1), (1, 1)), set()),
        (pet.Setting((1, 1), (0, 0), (1, 1)), set()),
    ],
)
def test_mutants_are_offered_where_their_shape_fits(setting, names):
    assert set(pet.mutants(X, W, setting)) == names


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
    assert report.notes[0].endswith("; kept" if kept else "; not kept")
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
