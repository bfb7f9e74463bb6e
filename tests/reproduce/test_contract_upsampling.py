# SPDX-License-Identifier: Apache-2.0
"""Upsampling of ``repro``: the fast loops give the bits of the scalar contract, and its order."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.errors import OutsideContractError
from pytest_udftorch.reproduce import within_contract
from pytest_udftorch.swap.contract import upsampling
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.upsampling import Direction, Kind, terms, upsample
from tests.reproduce.test_contract_windows import LEVELS, SPECIAL, random, same

#: mode -> how many directions it is for.
MODES = {
    "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "linear": (1,), "bilinear": (2,),
    "bicubic": (2,), "trilinear": (3,),
}  # fmt: skip
SIZES = {"size": (11, 3, 9)}, {"scale_factor": 2.0}, {"scale_factor": 1.7}, {"scale_factor": 0.6}


@st.composite
def directions(draw):
    kind = draw(st.sampled_from(Kind))
    sizes, factors = st.sampled_from([1, 2, 5, 8, 19]), st.sampled_from([0.0, 0.0, 0.7, 1.0, 2.0])
    corners = kind not in (Kind.NEAREST, Kind.NEAREST_EXACT) and draw(st.booleans())
    return [
        Direction(draw(sizes), draw(sizes), kind, corners, draw(factors))
        for _ in range(draw(st.integers(1, 3)))
    ]


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=40, deadline=None)
@given(directions(), st.booleans(), st.booleans(), st.sampled_from(SPECIAL))
def test_upsampling_has_the_bits_of_the_reference(level, how, gradient, last, special):
    made, sizes = contract(level), [d.out if gradient else d.size for d in how]
    x = random(2, *sizes, 3).movedim(-1, 1) if last else random(2, 3, *sizes)
    x[0, 1] = special
    found = upsample(made, x, how, gradient=gradient)
    want = upsample(made, x, how, gradient=gradient, reference=True)
    assert same(found.contiguous(), want.contiguous())


def test_the_reference_takes_the_last_direction_first_and_fuses():
    how = [Direction(4, 6, Kind.LINEAR), Direction(5, 7, Kind.LINEAR)]
    x, made = random(1, 1, 4, 5), contract()

    def along(x, direction):
        """One direction, the last, in float64, which holds a product of float32 exactly."""
        found = terms(made, direction, False)
        at, weights = (t.view(-1, 2).T for t in (found.places.long(), found.weights.double()))
        first = (x[..., at[0]].double() * weights[0]).float()
        return (x[..., at[1]].double() * weights[1] + first.double()).float()

    want = along(along(x, how[1]).mT, how[0]).mT
    assert torch.equal(upsample(made, x, how, reference=True).view(want.shape), want)
    other = along(along(x.mT, how[0]).mT, how[1])
    assert not torch.equal(other, want)


def test_a_gradient_takes_the_terms_of_a_place_one_after_the_other():
    made, how = contract(), Direction(3, 40, Kind.CUBIC)
    grad, want = random(1, 1, 40), torch.zeros(3)
    begun = set()
    found = terms(made, how, False)
    for e, (at, weight) in enumerate(zip(found.places.tolist(), found.weights, strict=True)):
        product = weight.double() * grad[0, 0, e // 4].double()
        want[at] = (want[at].double() + product).float() if at in begun else product.float()
        begun.add(at)
    got = upsample(made, grad, [how], gradient=True, reference=True).view(3)
    assert torch.equal(got, want)
    assert not torch.equal(upsample(made, grad.flip(2), [how], gradient=True).view(3), want)


@pytest.mark.parametrize("kind", [Kind.WIDE_LINEAR, Kind.WIDE_CUBIC])
@pytest.mark.parametrize(("size", "out"), [(14, 5), (5, 14), (9, 9), (40, 1)])
def test_antialiased_weights_are_those_of_a_wider_kernel_over_their_sum(kind, size, out):
    """Another program of the same formulas, in NumPy's float32."""
    one, half = numpy.float32(1), numpy.float32(0.5)
    step = numpy.float32(size) / numpy.float32(out)
    reach = numpy.float32(2 if kind is Kind.WIDE_CUBIC else 1) * max(step, one)

    def kernel(x):
        x = abs(x)
        if kind is Kind.WIDE_LINEAR:
            return max(one - x, numpy.float32(0))
        if x < 1:
            return (numpy.float32(1.5) * x - numpy.float32(2.5)) * x * x + one
        return (((x - 5) * x + 8) * x - 4) * -half if x < 2 else numpy.float32(0)

    made = contract()
    found = terms(made, Direction(size, out, kind), False)
    for place in range(out):
        centre = step * (numpy.float32(place) + half)
        span = range(max(int(centre - reach + half), 0), min(int(centre + reach + half), size))
        weights = [kernel((numpy.float32(i) - centre + half) * min(one / step, one)) for i in span]
        total = functools.reduce(lambda x, y: x + y, weights)
        begin, end = found.start[place : place + 2].tolist()
        assert found.places[begin:end].tolist() == list(span)
        assert found.weights[begin:end].tolist() == [float(w / total) for w in weights]
    x = random(1, 1, size)
    narrow = Direction(size, out, Kind(kind - 2))
    if size > out:  # an ordinary kernel skips places
        wide = upsample(made, x, [Direction(size, out, kind)])
        assert not torch.allclose(upsample(made, x, [narrow]), wide, atol=1e-2)


def calls(last=False):
    """Upsampled tensors and gradients, by mode and size; ``last`` puts channels last."""
    for mode, ranks in MODES.items():
        corners = (None,) if mode.startswith("nearest") else (False, True)
        for rank, corner, size in ((r, c, s) for r in ranks for c in corners for s in SIZES):
            x = random(2, 3, *(5, 7, 4)[:rank])
            if last:
                x = x.movedim(1, -1).contiguous().movedim(-1, 1)
            sizes = {"size": size["size"][:rank]} if "size" in size else size
            y = F.interpolate(x.requires_grad_(), mode=mode, align_corners=corner, **sizes)
            (g,) = torch.autograd.grad(y, x, random(*y.shape, seed=1))
            yield f"{mode} {rank} {corner} {size}", (y.detach(), g)
    yield from antialiased(last)


def antialiased(last):
    """Upsampled and downsampled tensors and gradients, with kernels that are wide enough."""
    sizes = {"size": (11, 3)}, {"scale_factor": (0.3, 1.7)}, {"size": (1, 40)}
    for mode, corner, size in itertools.product(("bilinear", "bicubic"), (False, True), sizes):
        x = random(2, 3, 9, 14)
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        y = F.interpolate(
            x.requires_grad_(), mode=mode, align_corners=corner, antialias=True, **size
        )
        (g,) = torch.autograd.grad(y, x, random(*y.shape, seed=1))
        yield f"antialiased {mode} {corner} {size}", (y.detach(), g)


@pytest.mark.parametrize("last", [False, True])
def test_results_have_stocks_layout_and_are_near(last):
    stock = dict(calls(last))
    with patched("repro"), within_contract(strict=True):
        ours = dict(calls(last))
    for name, results in stock.items():
        for got, want in zip(ours[name], results, strict=True):
            assert got.stride() == want.stride(), name
            assert torch.allclose(got, want, rtol=0, atol=1e-5), name
    for name in (n for n in stock if n.startswith("nearest")):
        assert torch.equal(ours[name][0], stock[name][0]), name
    assert any(not torch.equal(ours[name][0], stock[name][0]) for name in stock)


def digest():
    with patched("repro"):
        found = [*calls(False), *calls(True)]
        x = random(3, 5, 40, 30).requires_grad_()  # enough for two threads
        y = F.interpolate(x, scale_factor=2.5, mode="bicubic")
        found.append(("threads", (y.detach(), *torch.autograd.grad(y, x, y.detach()))))
        parts = [p.contiguous().numpy().tobytes() for _, pair in found for p in pair]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_results_depend_on_neither_level_nor_threads(monkeypatch):
    before, found = torch.get_num_threads(), set()
    try:
        for level in LEVELS:
            monkeypatch.setattr(upsampling, "contract", lambda level=level: contract(level))
            for count in (1, 2):
                torch.set_num_threads(count)
                found.add(digest())
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_a_position_has_the_bits_that_it_has_alone():
    x = random(5, 4, 6, 7)
    with patched("repro"):
        whole = F.interpolate(x, size=(13, 9), mode="bilinear")
        for n, c in ((0, 0), (2, 3), (4, 1)):
            one = F.interpolate(x[n : n + 1, c : c + 1], size=(13, 9), mode="bilinear")
            assert torch.equal(one[0, 0], whole[n, c])


def test_a_place_takes_special_numbers_of_its_own_terms_alone():
    x = torch.zeros(1, 1, 6)
    x[0, 0, 2] = math.inf
    with patched("repro"):
        y = F.interpolate(x, size=12, mode="linear")[0, 0]
        same_size = torch.ops.aten.upsample_linear1d(-x, [6], False)
        nearest = F.interpolate(-x, size=12, mode="nearest")
    assert y.isfinite().tolist() == [True] * 3 + [False] * 4 + [True] * 5
    assert same_size[0, 0, 1] == 0
    assert nearest.signbit().all()


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x: F.interpolate(x.double(), scale_factor=2, mode="bilinear"), "float64"),
        (
            lambda x: F.interpolate(x.double(), scale_factor=2, mode="bicubic", antialias=True),
            "float64",
        ),
    ],
)
def test_what_is_outside_is_refused(call, why):
    with (
        patched("repro"),
        within_contract(strict=True),
        pytest.raises(OutsideContractError, match=why),
    ):
        call(random(1, 2, 4, 4))


def test_errors_of_arguments_are_torchs():
    with patched("repro"):
        with pytest.raises(RuntimeError, match="greater than 0"):
            torch.ops.aten.upsample_bilinear2d(random(1, 2, 4, 4), [0, 3], False)
        with pytest.raises(RuntimeError, match="grad_output"):
            torch.ops.aten.upsample_bilinear2d_backward(
                random(1, 2, 4, 4), [8, 8], [1, 2, 3, 3], False
            )


@pytest.mark.slow
def test_compiled_code_calls_the_operators():
    def loss(x, w):
        y = F.interpolate(F.conv2d(x, w), scale_factor=2, mode="nearest")
        y = F.interpolate(F.interpolate(y, size=(9, 7), mode="bilinear"), (5, 8), mode="bicubic")
        y = F.interpolate(y, (3, 6), mode="bilinear", antialias=True)
        y = F.interpolate(y, (7, 2), mode="bicubic", antialias=True)
        return y.square().sum()

    def trained(run):
        x, w = random(2, 3, 8, 8), random(4, 3, 3, 3, seed=1).requires_grad_()
        run(x, w).backward()
        return w.grad

    with patched("repro"):
        assert torch.equal(trained(torch.compile(loss)), trained(loss))
    rules = torch.ops.aten.upsample_bilinear2d.vec.py_kernels
    assert any("Autograd" in str(key) for key in rules)  # given back
