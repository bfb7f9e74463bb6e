# SPDX-License-Identifier: Apache-2.0
"""The box test: where two multi-linear programs agree, and which programs it refuses."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch.errors import EquivalenceError
from pytest_udftorch.measure import assert_equivalent, equivalence
from pytest_udftorch.measure.rewrite.finite_field import Field, prime_for
from pytest_udftorch.measure.rewrite.index_maps import positions_needed

PAGE = Path(__file__).parents[2] / "docs" / "measure" / "rewriting.md"
SIZES = PAGE.with_name("sizes.md")
IMAGE, KERNEL = (2, 2, 8, 8), (4, 2, 3, 3)


def conv(x, w):
    return F.conv2d(x, w, padding=1)


def dilated(x, w):
    return F.conv2d(x, w, padding=2, dilation=2)


def dilated_by_parts(x, w):
    """A dilated convolution as a plain one of the four images of every second pixel."""
    parts = x.reshape(2, 2, 4, 2, 4, 2).permute(3, 5, 0, 1, 2, 4).reshape(8, 2, 4, 4)
    found = F.conv2d(parts, w, padding=1)
    return found.reshape(2, 2, 2, 4, 4, 4).permute(2, 3, 4, 0, 5, 1).reshape(2, 4, 8, 8)


def in_groups(x, w):
    return torch.cat([F.conv2d(p, v) for p, v in zip(x.chunk(2, 1), w.chunk(2), strict=True)], 1)


EQUAL = {
    "padding": (conv, lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1)), w), [IMAGE, KERNEL]),
    "dilation": (dilated, dilated_by_parts, [IMAGE, KERNEL]),
    "groups": (lambda x, w: F.conv2d(x, w, groups=2), in_groups, [(1, 4, 5, 5), KERNEL]),
    "association": (
        lambda a, b, c: (a @ b) @ c,
        lambda a, b, c: a @ (b @ c),
        [(2, 3), (3, 4), (4, 5)],
    ),
    "bias": (F.linear, lambda x, w, b: (w @ x.T).T + b, [(5, 4), (3, 4), (3,)]),
    "pooling": (
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.conv2d(x, x.new_full((1, 1, 3, 3), 1 / 9), stride=2, padding=1),
        [(1, 1, 7, 6)],
    ),
    "pooling of what is there": (
        lambda x: F.avg_pool2d(x, 2, 2, 1, count_include_pad=False),
        lambda x: (
            F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), 2, 2, divisor_override=1)
            / F.avg_pool2d(torch.ones(1, 1, 4, 4), 2, 2, 1, divisor_override=1)
        ),
        [(1, 1, 4, 4)],
    ),
    "strided slice": (
        lambda x, w: F.conv2d(x, w, stride=2),
        lambda x, w: F.conv2d(x, w)[..., ::2, ::2],
        [IMAGE, KERNEL],
    ),
    "flip": (
        lambda x, w: F.conv2d(x, w).flip(3),
        lambda x, w: F.conv2d(x.flip(3), w.flip(3)),
        [IMAGE, KERNEL],
    ),
    "mean": (lambda x: x.mean(1), lambda x: x.unbind(1)[0] / 2 + x[:, 1] * 0.5, [(3, 2)]),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, padding=1),
        lambda x, w: F.conv2d(x, w.flip(2, 3).transpose(0, 1), padding=1),
        [(1, 2, 5, 5), (2, 3, 3, 3)],
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_programs_pass_and_float64_agrees(name):
    f, g, shapes = EQUAL[name]
    held = assert_equivalent(f, g, shapes)
    assert held.bound < 2**-64
    assert held.needed <= held.compared
    inputs = [torch.randn(s, dtype=torch.float64) for s in shapes]
    torch.testing.assert_close(f(*inputs), g(*inputs))


def wide(x, w):
    found = F.conv2d(torch.cat([x[:1], x[1:]], 3), w, padding=1)
    return torch.cat(found.chunk(2, 3), 0)


def spoiled(x, w):
    found = conv(x, w).clone()
    corner = F.pad(found[..., :1, :1], (0, 7, 0, 7))
    return found - corner * 2.0**-40


DIFFERENT = {
    "off by one at the seam": (wide, {((0, 1), (0, 4), (a, b), (7, 8)) for a, b in
                                      ((0, 1), (1, 7), (7, 8))} | {
        ((1, 2), (0, 4), (a, b), (0, 1)) for a, b in ((0, 1), (1, 7), (7, 8))}),
    "one corner, by a trifle": (spoiled, {((0, 2), (0, 4), (0, 1), (0, 1))}),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_boxes_that_differ_are_named_and_no_others(name):
    g, ranges = DIFFERENT[name]
    found = equivalence(conv, g, [IMAGE, KERNEL])
    assert {box.ranges for box in found.differing} == ranges
    with pytest.raises(AssertionError, match=r"^The programs are different in output 0\[0:"):
        assert_equivalent(conv, g, [IMAGE, KERNEL])


def test_a_wrong_stride_is_found_in_every_box_but_the_first():
    found = equivalence(
        lambda x: x[:, ::2][:, :3] * 1, lambda x: torch.cat([x[:, :1], x[:, 1:3]], 1), [(2, 6)]
    )
    assert [box.ranges for box in found.differing] == [((0, 2), (1, 3))]


def test_the_paper_needs_m_plus_one_positions_of_a_box():
    held = assert_equivalent(conv, EQUAL["padding"][1], [(4, 3, 9, 9), (5, 3, 3, 3)])
    # 3 x 3 boxes, in batch and channels 3 positions; inside the image one more each way.
    assert (held.boxes, held.needed) == (9, 4 * 3 + 4 * 4 + 5)
    assert held.compared == 4 * 5 * 9 * 9


def test_sums_that_move_differently_need_more_than_m_plus_one_positions():
    """These two agree at the first two positions of one box and nowhere else."""

    def f(x):
        return x[:5] + x[1:6]

    def g(x):
        return x[:10:2] + x[1:2].expand(5)

    found = equivalence(f, g, [(12,)])
    (box,) = found.differing
    assert (box.ranges, box.positions) == (((0, 5),), 3)
    assert found.boxes == 1
    assert found.needed == 3


def test_positions_needed_separate_exponentials():
    """Any sum of so many exponentials that vanishes on the positions vanishes everywhere."""
    generator = torch.Generator().manual_seed(1)
    for sizes, terms in [((4, 4), 2), ((4, 5), 3), ((2, 6), 4), ((3, 3, 3), 3)]:
        whole = [range(s) if s < terms else None for s in sizes]
        points = [
            v
            for v in itertools.product(*map(range, sizes))
            if sum(c for c, w in zip(v, whole, strict=True) if w is None) < terms
        ]
        assert len(points) == positions_needed(sizes, terms)
        bases = torch.rand(terms, len(sizes), dtype=torch.float64, generator=generator) + 0.5
        values = torch.stack([(bases ** torch.tensor(v)).prod(1) for v in points])
        assert torch.linalg.matrix_rank(values) == terms


REFUSED = {
    "relu": (torch.relu, r"first program calls aten\.relu\.default, .* Known operators: .*conv"),
    "square": (lambda x: x * x, "it multiplies input 0 by itself"),
    "quotient": (lambda x: 1 / (x + 1), r"calls aten\.reciprocal\.default"),
    "division": (lambda x: x / (x.sum() + 1), "divides by what depends on an input"),
    "in place": (lambda x: x.clone().mul_(2), r"calls aten\.mul_\.Tensor"),
    "branch": (lambda x: x if x.sum() > 0 else -x, "control flow does not depend on their values"),
    "no tensor": (lambda x: (x, 3), "must return tensors alone"),
    "other shape": (lambda x: x[:2], r"have the shapes \[\(2,\)\] and \[\(3,\)\]"),
    "ceiling": (
        lambda x: F.avg_pool2d(x.expand(1, 3, 3), 2, ceil_mode=True),
        "avg_pool2d with ceil_mode",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_decide_is_refused(name):
    program, message = REFUSED[name]
    with pytest.raises(EquivalenceError, match=message):
        equivalence(program, lambda x: x * 1, [(3,)])


def test_arguments_with_defaults_keep_them():
    def scaled(x, by=2.0):
        return x * by

    assert_equivalent(scaled, lambda x: x + x, [(3,)])


@pytest.mark.parametrize("shapes", [3, [], [(2, 0)], [("a",)], [3, 4]])
def test_shapes_that_are_none_are_refused(shapes):
    with pytest.raises(EquivalenceError, match="give the shape of each input"):
        equivalence(conv, conv, shapes)


def test_weights_count_with_their_exact_values():
    layer = torch.nn.Linear(3, 2).double().requires_grad_(False)
    assert_equivalent(layer, lambda x: x @ layer.weight.T + layer.bias, [(4, 3)])
    rounded = layer.weight.half().double()
    assert not equivalence(layer, lambda x: F.linear(x, rounded, layer.bias), [(4, 3)]).equal


def test_the_field_computes_as_whole_numbers_do():
    field = Field(prime_for(72))
    assert 72 * (field.prime - 1) ** 2 < 2**53 < 80 * field.prime**2
    x, w = (field.random(s, torch.Generator().manual_seed(3)) for s in [(1, 8, 5, 5), (3, 8, 3, 3)])
    args = (None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    operator = torch.ops.aten.convolution.default
    exact = operator(x.long(), w.long(), *args) % field.prime
    assert torch.equal(field.call("convolution", operator, (x, w, *args), {}).long(), exact)
    assert field.number(1 / 3) * 3 % field.prime == 1
    values = torch.tensor([0.75, -3.0, 2.0**-30, 0.1], dtype=torch.float64)
    back = [int(e) * 2**60 % field.prime for e in field.constants(values)]
    assert back == [int(v * 2**60) % field.prime for v in values.tolist()]


def test_the_examples_of_the_page_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # by_size writes its statistics
    scripts = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    space: dict[str, object] = {}
    for script in scripts:
        exec(compile(script, str(PAGE), "exec"), space)
    report, *_, equal, seam = capsys.readouterr().out.splitlines()
    assert report == "udf_templates"
    assert equal.startswith("equal (9 boxes, 33 positions needed, 648 compared, ")
    assert "different in output 0[0:1, 0:4, 0:1, 8:9]" in seam


def test_the_examples_of_the_page_on_sizes_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # by_size writes its statistics
    scripts = re.findall(r"^```python\n(.*?)^```$", SIZES.read_text(), re.M | re.S)
    assert len(scripts) == 4
    space: dict[str, object] = {}
    for script in scripts:
        exec(compile(script, str(SIZES), "exec"), space)
    assert capsys.readouterr().out
    assert (tmp_path / "sizes.json").exists()
