# SPDX-License-Identifier: Apache-2.0
"""Ways to break a model's invariance: ``same`` names the way and the operator of each.

``test_same.py`` has the model without faults, of which no way may differ. The slow form tries all.
"""

from __future__ import annotations

import pytest

from benches.data.planted_sameness import FAULTS
from benches.experiments.planted_sameness import judged

#: Every so manieth fault is tried in each run of the suite.
SOME = 4


def check(name):
    found = judged(name)
    assert sorted(found["differ"]) == sorted(FAULTS[name].ways)
    for way, operator in found["operators"].items():
        assert operator in FAULTS[name].operators, way
    assert found["named"]


@pytest.mark.parametrize("name", [*FAULTS][::SOME])
def test_a_fault_is_named_by_its_ways_and_its_operator(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_named_by_its_ways_and_its_operator(name):
    check(name)


def test_there_are_forty_faults():
    assert len(FAULTS) >= 40
