# SPDX-License-Identifier: Apache-2.0
"""The smallest part of a set that shows something."""

from __future__ import annotations

import random

import pytest

from pytest_udftorch.base.delta_debugging import smallest


@pytest.mark.parametrize("guilty", [[5], [0, 19], [3, 4, 11], list(range(20))])
def test_exactly_the_guilty_are_found(guilty):
    tried = []

    def shows(some):
        tried.append(tuple(some))
        return set(guilty) <= set(some)

    assert smallest(range(20), shows) == (guilty, True)
    assert len(guilty) > 1 or len(tried) <= 2 * 5 + 1  # halves: log2(20) rounds


def test_any_subset_of_a_rule_without_order_is_minimal():
    draw = random.Random(1)
    for _ in range(20):
        causes = [set(draw.sample(range(16), draw.randint(1, 4))) for _ in range(3)]

        def shows(some, causes=causes):
            return any(c <= set(some) for c in causes)

        found, known = smallest(range(16), shows)
        assert known
        assert shows(found)
        assert not any(shows([i for i in found if i != one]) for one in found)


def test_nothing_is_found_where_the_whole_set_does_not_show_it():
    assert smallest(range(4), lambda some: False) == ([], True)
    assert smallest([], lambda some: True) == ([], True)


def test_a_search_that_runs_out_says_so():
    count = []

    def shows(some):
        count.append(1)
        return {0, 31} <= set(some)

    found, known = smallest(range(32), shows, tries=6)
    assert not known
    assert {0, 31} <= set(found)
    assert len(count) <= 6


def test_several_are_tried_at_once():
    rounds = []

    def first(candidates):
        rounds.append(len(candidates))
        return next((i for i, some in enumerate(candidates) if {2, 9} <= set(some)), None)

    found, known = smallest(range(12), lambda some: {2, 9} <= set(some), first=first)
    assert (found, known) == ([2, 9], True)
    assert max(rounds) > 2
