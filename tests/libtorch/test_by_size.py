# SPDX-License-Identifier: Apache-2.0
"""When a model is compiled for which sizes, what is kept of it, and that wrong code is not used."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from pytest_udftorch import executors
from pytest_udftorch.executors import by_size
from pytest_udftorch.oracle import JournalError
from pytest_udftorch.planning import by_size as policy
from pytest_udftorch.planning.by_size import EAGER, EXACT, RANGE, SAMPLES, Knowledge, Seen
from pytest_udftorch.planning.executors import REGISTRY

SECOND = 10**9


@pytest.fixture(autouse=True)
def registry():
    torch.compiler.reset()
    yield
    REGISTRY.reset()


def size(n, wide=8):
    return ((n, wide),)


def knowledge(sizes, compile_s=None):
    """Make what is known from {n: (calls, before, {form: seconds})}."""
    seen = {
        size(n): Seen(calls, before, {f: [int(s * SECOND)] * SAMPLES for f, s in ns.items()})
        for n, (calls, before, ns) in sizes.items()
    }
    costs = {f: [int(s * SECOND)] for f, s in (compile_s or {}).items()}
    return Knowledge(seen, costs)


def test_ranges_are_powers_of_two_of_what_varies():
    assert policy.varying([size(4), size(9)]) == {(0, 0)}
    assert policy.ranges(size(9), policy.varying([size(4), size(9)])) == (((8, 15), (8, 8)),)
    assert policy.ranges(size(9), frozenset()) is None
    assert policy.ranges(size(1), {(0, 0)}) is None
    limits = (((8, 15), (8, 8)),)
    assert [policy.within(size(n), limits) for n in (7, 8, 15, 16)] == [False, True, True, False]
    assert not policy.within(((8,),), limits)


def test_the_first_compilation_is_tried_at_the_second_call():
    one = knowledge({4: (1, 0, {EAGER: 0.001})})
    assert one.choose(size(4), {EXACT: [size(4)]}, {EAGER}) is None
    two = knowledge({4: (2, 0, {EAGER: 0.001})})
    assert two.choose(size(4), {EXACT: [size(4)]}, {EAGER}) == EXACT
    both = knowledge({4: (2, 0, {EAGER: 0.001}), 5: (1, 0, {EAGER: 0.001})})
    covered = {EXACT: [size(4)], RANGE: [size(4), size(5)]}
    assert both.choose(size(4), covered, {EAGER}) == RANGE


def test_a_form_of_unknown_gain_is_made_when_the_calls_have_taken_as_long_as_it_costs():
    for calls, wanted in ((99, None), (101, EXACT)):
        known = knowledge({4: (calls, 0, {EAGER: 0.1, RANGE: 0.2})}, {RANGE: 10})
        assert known.choose(size(4), {EXACT: [size(4)]}, {EAGER, RANGE}) == wanted


def test_a_form_of_known_gain_is_made_when_it_pays_within_the_expected_calls():
    other = {9: (9, 0, {EAGER: 0.2, EXACT: 0.1})}  # half of eager's time
    for calls, before, wanted in (
        (150, 0, None),
        (250, 0, EXACT),
        (1, 300, EXACT),
        (290, 300, EXACT),
    ):
        known = knowledge({4: (calls, before, {EAGER: 0.1}), **other}, {EXACT: 10})
        assert known.choose(size(4), {EXACT: [size(4)]}, {EAGER}) == wanted
    # Expected are as many calls as are left of the earlier number, or as there were.
    assert Seen(290, 300).expected == 290
    assert Seen(10, 300).expected == 290
    # What is slower is never made.
    slower = {9: (9, 0, {EAGER: 0.1, EXACT: 0.2})}
    known = knowledge({4: (10**6, 0, {EAGER: 0.1}), **slower}, {EXACT: 10})
    assert known.choose(size(4), {EXACT: [size(4)]}, {EAGER}) is None


def test_calls_go_to_the_form_that_was_measured_to_be_fastest():
    known = knowledge({4: (50, 0, {EAGER: 0.1, RANGE: 0.2, EXACT: 0.05})})
    assert known.run_by(size(4), {EAGER, RANGE, EXACT}) == EXACT
    assert known.run_by(size(4), {EAGER, RANGE}) == EAGER
    known.sizes[size(4)].ns[RANGE].pop()
    assert known.run_by(size(4), {EAGER, RANGE}) == RANGE


class Counted:
    """An executor that counts what it makes, and takes a part of the model's time."""

    def __init__(self, spoil=lambda y: y):
        self.made, self.spoil = [], spoil

    def __call__(self, model, inputs):
        self.made.append(tuple(inputs[0].shape))
        return lambda x: self.spoil(model(x))


def own(name, spoil=lambda y: y):
    counted = Counted(spoil)
    executors.register(executors.Executor(name, counted))
    return counted


MODEL = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()


def test_results_are_the_models_at_every_size(tmp_path):
    counted = own("counted")
    run = by_size(MODEL, executor="counted", statistics=tmp_path / "sizes.json")
    with torch.no_grad():
        for n in (3, 3, 3, 1, 1, 0, 3):
            x = torch.randn(n, 8)
            assert torch.equal(run(x), MODEL(x))
    assert (3, 8) in counted.made
    first = run.compilations[0]
    assert (first.form, first.problem) == (EXACT, "")
    report = run.report()
    assert {row["size"][0][0]: row["calls"] for row in report["sizes"]} == {3: 4, 1: 2, 0: 1}
    other = torch.randn(2, 2, 8)  # of another rank: nothing is known of it
    assert torch.equal(run(other), MODEL(other).detach())
    # A later process starts from what is known.
    run.save()
    later = by_size(MODEL, executor="counted", statistics=tmp_path / "sizes.json")
    later(torch.randn(3, 8))
    assert later.knowledge.sizes[size(3)].before == 4
    assert later.knowledge.cost(EXACT) is not None
    later.save()
    third = by_size(MODEL, executor="counted", statistics=tmp_path / "sizes.json")
    third(torch.randn(3, 8))
    assert third.knowledge.sizes[size(3)].before == 2.5
    # Statistics of another model, or of another way, are not used.
    other = by_size(nn.Linear(8, 8), executor="counted", statistics=tmp_path / "sizes.json")
    other(torch.randn(3, 8))
    assert other.knowledge.sizes[size(3)].before == 0


def test_wrong_code_is_not_used():
    """Negative control: one element is off by a thousandth, or the code fails."""

    def off(y):
        y = y.clone()
        y.view(-1)[y.abs().argmax()] *= 1.001
        return y

    own("slightly-wrong", off)
    run = by_size(MODEL, executor="slightly-wrong")
    x = torch.randn(5, 8)
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(run(x), MODEL(x))
    (only,) = run.compilations
    assert "distance to the float64 result" in only.problem

    def refuse(model, inputs):
        raise ValueError("no code for this")

    executors.register(executors.Executor("refuses", refuse))
    run = by_size(MODEL, executor="refuses")
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(run(x), MODEL(x))
    assert [c.problem for c in run.compilations] == ["ValueError: no code for this"]


def test_files_that_hold_something_else_are_left_alone(tmp_path):
    path = tmp_path / "sizes.json"
    run = by_size(MODEL, executor="eager", statistics=path)
    run(torch.ones(2, 8))
    run.save()
    found = json.loads(path.read_text())
    found["processes"] = 7
    for text in ("{}", "[", json.dumps(found)):
        path.write_text(text)
        with pytest.raises(JournalError, match="left alone"):
            by_size(MODEL, statistics=path)(torch.ones(2, 8))
        assert path.read_text() == text
    with pytest.raises(JournalError, match="does not exist"):
        by_size(MODEL, statistics=tmp_path / "none" / "sizes.json")
    with pytest.raises(executors.UnknownExecutorError):
        by_size(MODEL, executor="compil")


@pytest.mark.slow
def test_code_for_a_range_serves_its_sizes_and_no_others():
    run = by_size(MODEL)
    with torch.no_grad():
        for n in (8, 9, 9, 9, 12, 15, 8, 16, 17, 7):
            x = torch.randn(n, 8)
            torch.testing.assert_close(run(x), MODEL(x))
    first = run.compilations[0]
    assert (first.form, first.limits, first.problem) == (RANGE, (((8, 15), (8, 8)),), "")
    assert first.checked >= {size(9), size(12), size(15)}
    assert not first.checked & {size(16), size(17), size(7)}


@pytest.mark.slow
def test_a_dimension_that_a_model_fixes_gives_no_range():
    class Fixed(nn.Module):
        def forward(self, x):
            return x * (2.0 if x.shape[0] == 9 else 3.0)

    model = Fixed().eval()
    run = by_size(model)
    with torch.no_grad():
        for n in (8, 9, 9, 9, 8, 8):
            x = torch.randn(n, 8)
            torch.testing.assert_close(run(x), model(x))
    assert run.compilations[0].problem
