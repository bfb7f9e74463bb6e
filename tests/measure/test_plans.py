# SPDX-License-Identifier: Apache-2.0
import itertools
import json
import math
import random

import pytest

from pytest_udftorch import errors
from pytest_udftorch.measure.planning import plans


def costly(price):
    return lambda unit, before, after: 0.0 if before == after else price


COSTS = {"a": [10.0, 1.0, 10.0], "b": [1.0, 10.0, 1.0]}


def total(choices, costs, switch):
    """The predicted time of a choice of executors, one per unit."""
    spent = sum(costs[name][unit] for unit, name in enumerate(choices))
    changes = enumerate(itertools.pairwise(choices), 1)
    return spent + sum(switch(unit, before, after) for unit, (before, after) in changes)


def test_bound_and_best_of_two_ignore_switching():
    assert plans.layer_bound(COSTS) == 3.0
    assert plans.fastest(COSTS) == ["b", "a", "b"]
    assert plans.fastest({"a": [1.0], "b": [1.0]}) == ["a"]


def test_programme_stays_where_switching_costs_more_than_it_gains():
    assert plans.unit_programme(COSTS, costly(1.0)) == ["b", "a", "b"]
    assert plans.unit_programme(COSTS, costly(9.0)) == ["b", "b", "b"]


def test_greedy_is_caught_by_a_later_cost_where_the_programme_is_not():
    costs = {"a": [1.0, 9.0], "b": [2.0, 1.0]}
    switch = costly(5.0)
    assert total(plans.greedy(costs, switch), costs, switch) == 7.0
    assert total(plans.unit_programme(costs, switch), costs, switch) == 3.0


def test_programme_equals_enumeration():
    rng = random.Random(5)
    for _ in range(30):
        costs = {e: [rng.uniform(1, 9) for _ in range(5)] for e in "abc"}
        prices = {(u, d, e): rng.uniform(0, 4) for u in range(5) for d in "abc" for e in "abc"}
        switch = lambda u, d, e, prices=prices: prices[u, d, e]  # noqa: E731
        found = total(plans.unit_programme(costs, switch), costs, switch)
        every = [total(choice, costs, switch) for choice in itertools.product("abc", repeat=5)]
        assert found == pytest.approx(min(every))


def test_merge_joins_neighbours():
    assert plans.joined_segments(["a", "a", "b", "a"]) == [(0, 2, "a"), (2, 3, "b"), (3, 4, "a")]


def enumerate_segments(n, names, cost, switch):
    best = math.inf
    for cuts in itertools.product([0, 1], repeat=n - 1):
        bounds = [0, *(k + 1 for k, cut in enumerate(cuts) if cut), n]
        pieces = list(itertools.pairwise(bounds))
        for chosen in itertools.product(names, repeat=len(pieces)):
            spent = sum(cost(i, j, e) for (i, j), e in zip(pieces, chosen, strict=True))
            spent += sum(
                switch(pieces[k][0], chosen[k - 1], chosen[k]) for k in range(1, len(pieces))
            )
            best = min(best, spent)
    return best


def test_segment_search_equals_enumeration_and_measures_less():
    """Segments cost their units less a gain for each boundary inside them."""
    rng = random.Random(7)
    saved = 0
    for _ in range(20):
        n, names = 5, ["a", "b"]
        costs = {e: [rng.uniform(2, 9) for _ in range(n)] for e in names}
        gains = {e: [rng.uniform(0, 1) for _ in range(n)] for e in names}

        def cost(i, j, e, costs=costs, gains=gains):
            return sum(costs[e][i:j]) - sum(gains[e][i + 1 : j])

        whole = {e: cost(0, n, e) for e in names}
        measured = []

        def measure(i, j, e, measured=measured, cost=cost):
            measured.append((i, j, e))
            return cost(i, j, e)

        switch = costly(0.7)
        found = plans.segment_search(costs, whole, switch, measure)
        assert found.predicted_ns == pytest.approx(enumerate_segments(n, names, cost, switch))
        assert found.measured == len(measured) == len(set(measured))
        saved += found.pruned
    assert saved > 0


def test_segment_that_cannot_win_is_not_measured():
    costs = {"fast": [1.0] * 4, "slow": [50.0] * 4}
    measured = []

    def measure(i, j, e):
        measured.append(e)
        return float(j - i)

    plans.segment_search(costs, {"fast": 3.0, "slow": 199.0}, costly(0.1), measure)
    assert "slow" not in measured


def test_search_ends_when_the_bound_does_not_beat_the_limit():
    def never(i, j, e):
        raise AssertionError("measured although nothing can win")

    found = plans.segment_search(COSTS, {}, costly(1.0), never, limit=2.0)
    assert found.segments is None


def test_failing_segment_is_left_out():
    costs = {"a": [5.0, 5.0, 5.0]}
    found = plans.segment_search(costs, {"a": 9.0}, costly(0), lambda i, j, e: math.inf)
    assert found.predicted_ns == 9.0
    assert found.segments == [(0, 3, "a")]


@pytest.fixture
def plan():
    return plans.StoredPlan(
        segments=((0, 2, "eager"), (2, 3, "compile")),
        bounds=(0, 3, 5, 9),
        model="f00",
        inputs=("float32[1, 3, 8, 8]",),
        device="cpu",
        torch="2.15.0",
        cuda_graph=False,
        report={"ratio": 1.5},
    )


def test_plan_survives_its_file(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    assert plans.StoredPlan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    "other",
    [
        {"device": "another"},
        {"torch": "2.14.0"},
        {"inputs": ["float32[2, 3, 8, 8]"]},
        {"model": "bad"},
    ],
)
def test_plan_for_something_else_is_refused(plan, other):
    same = {"model": "f00", "inputs": list(plan.inputs), "device": "cpu", "torch": "2.15.0"}
    plan.check(**same)
    with pytest.raises(errors.PlanError, match=next(iter(other))):
        plan.check(**{**same, **other})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no plan"),
        ("[]", "holds no plan"),
        ("{}", "holds no plan"),
        (json.dumps({"udftorch_plan": 99}), "format 99"),
        (json.dumps({"udftorch_plan": 1, "segments": [[0]]}), "damaged"),
    ],
)
def test_damaged_file_is_refused(tmp_path, text, says):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(errors.PlanError, match=says):
        plans.StoredPlan.load(path)


@pytest.mark.parametrize(
    "segments", [[], [[0, 2, "eager"]], [[0, 2, "eager"], [1, 3, "fx"]], [[1, 3, "eager"]]]
)
def test_segments_that_do_not_cover_the_model_are_refused(plan, tmp_path, segments):
    path = tmp_path / "plan.json"
    plan.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "segments": segments}))
    with pytest.raises(errors.PlanError, match="do not cover"):
        plans.StoredPlan.load(path)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(errors.PlanError, match="holds no plan"):
        plans.StoredPlan.load(tmp_path / "none.json")


def test_a_plan_that_cannot_be_written_says_so(plan, tmp_path):
    with pytest.raises(errors.PlanError, match="a folder that exists"):
        plan.save(tmp_path / "none" / "plan.json")


def test_a_plan_of_an_earlier_version_has_no_digest_and_a_wrong_one_is_found(plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.save(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "device": "gpu"}))
    with pytest.raises(errors.PlanError, match="does not have the SHA-256"):
        plans.StoredPlan.load(path)
    del content["sha256"]
    path.write_text(json.dumps({**content, "device": "gpu"}))
    assert plans.StoredPlan.load(path).device == "gpu"
