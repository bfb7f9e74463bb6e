# SPDX-License-Identifier: Apache-2.0
"""When a model is compiled for which sizes, what is kept of it, and that wrong code is not used."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from pytest_udftorch import errors, measure
from pytest_udftorch.errors import JournalError
from pytest_udftorch.measure import by_size
from pytest_udftorch.measure.planning import pairs
from pytest_udftorch.measure.planning import sizes as policy
from pytest_udftorch.measure.planning.executors import REGISTRY
from pytest_udftorch.measure.planning.sizes import (
    ALL,
    ASIDE,
    EAGER,
    EXACT,
    EXPLORE,
    RANGE,
    SAMPLES,
    UNBOUNDED,
    Knowledge,
    Seen,
)

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


def test_code_for_all_sizes_is_open_in_what_varies():
    limits = policy.unbounded(size(9), policy.varying([size(4), size(9)]))
    assert limits == (((2, UNBOUNDED), (8, 8)),)
    assert [policy.within(size(n), limits) for n in (1, 2, 10**6)] == [False, True, True]
    assert not policy.within(size(9, 7), limits)
    assert policy.unbounded(size(9), frozenset()) is None
    assert policy.unbounded(size(1), {(0, 0)}) is None


def test_nothing_is_compiled_before_the_calls_have_taken_as_long_as_it_costs():
    for calls, wanted in ((49, None), (51, EXACT)):
        known = knowledge({4: (calls, 0, {EAGER: 0.1})})  # 5 s, as no compilation has been seen
        assert known.choose({EXACT: [size(4)]}, {EAGER}) == wanted
    # Calls in an earlier process are as good, but only many times as many.
    for before, wanted in ((51, None), (49 * EXPLORE, None), (51 * EXPLORE, EXACT)):
        known = knowledge({4: (1, before, {EAGER: 0.1})})
        assert known.choose({EXACT: [size(4)]}, {EAGER}) == wanted
    # What was spent on code that cannot be used has to come in again.
    known = knowledge({4: (51, 0, {EAGER: 0.1})})
    known.wasted_ns = 1.0 * SECOND
    assert known.choose({EXACT: [size(4)]}, {EAGER}) is None
    both = knowledge({4: (30, 0, {EAGER: 0.1}), 5: (30, 0, {EAGER: 0.1})})
    every = [size(4), size(5)]
    assert both.choose({ALL: every, RANGE: every, EXACT: [size(4)]}, {EAGER}) == ALL


def test_a_second_form_is_tried_where_the_calls_take_many_times_as_long_as_it_costs():
    for calls, wanted in ((999, None), (1001, EXACT)):
        known = knowledge({4: (calls, 0, {EAGER: 0.2, ALL: 0.1})}, {ALL: 10})
        assert known.choose({EXACT: [size(4)]}, {EAGER, ALL}) == wanted


def test_where_nothing_serves_the_gain_of_other_code_is_expected():
    other = {9: (9, 0, {EAGER: 0.2, EXACT: 0.1})}
    for calls, wanted in ((199, None), (201, ALL)):
        known = knowledge({4: (calls, 0, {EAGER: 0.1}), **other}, {EXACT: 10})
        assert known.choose({ALL: [size(4)]}, {EAGER}) == wanted


def test_a_form_of_known_gain_is_made_when_it_pays_within_the_expected_calls():
    other = {9: (9, 0, {EAGER: 0.2, EXACT: 0.1})}  # half of eager's time
    for calls, before, wanted in (
        (150, 0, None),
        (250, 0, EXACT),
        (1, 300, EXACT),
        (290, 300, EXACT),
    ):
        known = knowledge({4: (calls, before, {EAGER: 0.1}), **other}, {EXACT: 10})
        assert known.choose({EXACT: [size(4)]}, {EAGER}) == wanted
    # Expected are as many calls as are left of the earlier number, or as there were.
    assert Seen(290, 300).expected == 290
    assert Seen(10, 300).expected == 290
    # What is slower is never made.
    slower = {9: (9, 0, {EAGER: 0.1, EXACT: 0.2})}
    known = knowledge({4: (10**6, 0, {EAGER: 0.1}), **slower}, {EXACT: 10})
    assert known.choose({EXACT: [size(4)]}, {EAGER}) is None


def test_the_check_is_a_cost():
    other = {9: (9, 0, {EAGER: 0.2, ALL: 0.1})}  # half of eager's time
    for calls, wanted in ((19, False), (21, True)):
        known = knowledge({4: (calls, 0, {EAGER: 0.1}), **other}, {ALL: 1})
        assert known.pays_check(ALL, size(4))  # nothing is known of what it takes
        known.checks = [10.0]
        assert known.pays_check(ALL, size(4)) == wanted
        assert known.choose({EXACT: [size(4)]}, {EAGER}) is None
    slower = {9: (9, 0, {EAGER: 0.1, ALL: 0.2})}
    known = knowledge({4: (10**6, 0, {EAGER: 0.1}), **slower}, {ALL: 1})
    known.checks = [10.0]
    assert not known.pays_check(ALL, size(4))


def test_calls_go_to_the_form_that_was_measured_to_be_fastest():
    known = knowledge({4: (50, 0, {EAGER: 0.1, RANGE: 0.2, EXACT: 0.05})})
    assert known.run_by(size(4), {EAGER, RANGE, EXACT}) == EXACT
    assert known.run_by(size(4), {EAGER, RANGE}) == EAGER
    # A form that seems to be slower is timed now and then, until it is known.
    seen = known.sizes[size(4)]
    seen.ns[RANGE].pop()
    assert known.run_by(size(4), {EAGER, RANGE}) == RANGE
    seen.calls = ASIDE * SAMPLES - 1
    assert known.run_by(size(4), {EAGER, RANGE}) == EAGER
    # At a new size times are those of other sizes; without any, a form has to be timed.
    known.sizes[size(5)] = Seen(1, 0, {EAGER: [SECOND]})
    assert known.run_by(size(5), {EAGER, RANGE, EXACT}) == EXACT
    assert known.run_by(size(5), {EAGER, RANGE}) == EAGER
    assert known.run_by(size(5), {EAGER, ALL}) == ALL
    known.sizes[size(6)] = Seen()
    assert known.run_by(size(6), {EAGER, EXACT}) == EAGER


class Counted:
    """An executor that counts what it makes, and takes a part of the model's time."""

    def __init__(self, spoil=lambda y: y):
        self.made, self.spoil = [], spoil

    def __call__(self, model, inputs):
        self.made.append(tuple(inputs[0].shape))
        return lambda x: self.spoil(model(x))


def own(name, spoil=lambda y: y):
    counted = Counted(spoil)
    measure.register_executor(measure.Executor(name, counted))
    return counted


MODEL = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()


def sized(executor="compile", statistics=None, model=MODEL):
    """Return a model that is compiled as soon as it may be: in the second call."""
    return by_size(model, executor=executor, statistics=statistics, compile_seconds=0)


def test_results_are_the_models_at_every_size(tmp_path):
    counted = own("counted")
    run = sized("counted", tmp_path / "sizes.json")
    with torch.no_grad():
        for n in (3, 3, 3, 1, 1, 0, 3):
            x = torch.randn(n, 8)
            assert torch.equal(run(x), MODEL(x))
    assert (3, 8) in counted.made
    first = run.compilations[0]
    assert (first.form, first.problem) == (EXACT, "")
    report = run.document()
    assert {row["size"][0][0]: row["calls"] for row in report["sizes"]} == {3: 4, 1: 2, 0: 1}
    other = torch.randn(2, 2, 8)  # of another rank: nothing is known of it
    assert torch.equal(run(other), MODEL(other).detach())
    # A later process starts from what is known.
    run.save()
    later = sized("counted", tmp_path / "sizes.json")
    later(torch.randn(3, 8))
    assert later.knowledge.sizes[size(3)].before == 4
    assert later.knowledge.cost(EXACT) is not None
    later.save()
    third = sized("counted", tmp_path / "sizes.json")
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
    run = sized("slightly-wrong")
    x = torch.randn(5, 8)
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(run(x), MODEL(x))
    (only,) = run.compilations
    assert "distance to the float64 result" in only.problem

    def refuse(model, inputs):
        raise ValueError("no code for this")

    measure.register_executor(measure.Executor("refuses", refuse))
    run = sized("refuses")
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
    with pytest.raises(errors.ExecutorError, match="No executor 'compil'"):
        by_size(MODEL, executor="compil")


@pytest.mark.slow
def test_code_for_all_sizes_serves_them_and_is_compiled_once():
    run = sized()
    with torch.no_grad():
        for n in (8, 9, 9, 9, 12, 15, 8, 16, 17, 7, 1, 300):
            x = torch.randn(n, 8)
            torch.testing.assert_close(run(x), MODEL(x))
    first = run.compilations[0]
    assert (first.form, first.limits, first.problem) == (ALL, (((2, UNBOUNDED), (8, 8)),), "")
    assert first.checked
    assert not first.checked & {size(1)}


@pytest.mark.slow
def test_code_for_a_range_serves_its_sizes_and_no_others():
    run = sized()
    with torch.no_grad():
        run(torch.randn(8, 8))
        run(torch.randn(9, 8))
        limits = (((8, 15), (8, 8)),)
        run._compile(RANGE, limits, (torch.randn(9, 8),))
        made = run.compilations[0]
        assert made.problem == ""
        run.knowledge.sizes |= {size(n): Seen() for n in (12, 17)}
        for n, served in ((12, True), (8, True), (17, False)):
            x = torch.randn(n, 8)
            with torch.compiler.set_stance("fail_on_recompile"):
                if served:
                    torch.testing.assert_close(made.call(x), MODEL(x))
                else:  # negative control: torch's guards hold the code to its range
                    with pytest.raises(RuntimeError):
                        made.call(x)
        assert run._holds(made, size(12), (torch.randn(12, 8),))
        assert not run._holds(made, size(17), (torch.randn(17, 8),))


@pytest.mark.slow
def test_dimensions_that_a_model_fixes_give_no_code_for_all_sizes():
    class Fixed(nn.Module):
        def forward(self, x):
            return x * (2.0 if x.shape[0] == 9 else 3.0)

    model = Fixed().eval()
    run = sized(model=model)
    with torch.no_grad():
        for n in (8, 9, 9, 9, 8, 8):
            x = torch.randn(n, 8)
            torch.testing.assert_close(run(x), model(x))
    assert run.compilations[0].problem


def test_a_process_that_ends_early_has_compiled_nothing():
    counted = own("counted")
    run = by_size(MODEL, executor="counted")
    with torch.no_grad():
        for n in (3, 3, 3, 5, 5, 5) * 20:
            x = torch.randn(n, 8)
            assert torch.equal(run(x), MODEL(x))
    assert run.compilations == []
    assert counted.made == []
    assert run.knowledge.sizes[size(3)].calls == 60
    # Sizes that are settled are called without looking at what is known.
    assert run._settled[size(3)].call is MODEL


def test_the_same_bits_need_no_float64_result(monkeypatch):
    def refused(*_):
        raise AssertionError("the float64 result is asked for")

    monkeypatch.setattr(pairs, "reference", refused)
    x = torch.randn(5, 8)
    assert pairs.judge_call(MODEL, (x,), MODEL) == ""

    def last_bit(given):
        y = MODEL(given).clone()
        y.view(torch.int32)[0, 0] ^= 1
        return y

    for other in (last_bit, lambda given: MODEL(given).double(), lambda given: [MODEL(given)]):
        with pytest.raises(AssertionError, match="is asked for"):
            pairs.judge_call(MODEL, (x,), other)
