# SPDX-License-Identifier: Apache-2.0
"""The comparison with other machines counts what differs, and covers what it says."""

import itertools

import numpy as np
import pytest

from benches.experiments import other_machines
from pytest_udftorch import build_library, find_library


def test_a_wrong_twin_is_counted_and_shown():
    right = other_machines.native(build_library("corem"), "exp")
    wrong = other_machines.native(build_library("canary"), "exp")
    x = other_machines.strata(find_library("corem"), "exp")[:, ::64]
    same = other_machines.compare(right, right, iter([x]), 60)
    assert same == {"inputs": x.shape[1], "different": 0, "example": None}
    found = other_machines.compare(wrong, right, iter([x]), 60)
    assert 0 < found["different"] < x.shape[1]
    given, got, wanted = (int(word, 16) for word in found["example"])
    assert given in x
    assert got ^ wanted == 1


def test_any_nan_is_the_same_nan():
    encodings = np.array([0x7F800001, 0xFFC00000, 0x7F800000, 0xFF800000, 0], np.uint32)
    nan = other_machines.CANONICAL_NAN
    assert other_machines.canonical(encodings).tolist() == [nan, nan, 0x7F800000, 0xFF800000, 0]


@pytest.mark.parametrize("name", ["exp", "pow"])
def test_every_sign_and_exponent_is_among_the_inputs(name):
    for row in other_machines.strata(find_library("corem"), name):
        assert len(np.unique(row >> 23)) == 512


def test_the_first_chunks_are_spread_over_all_encodings():
    starts = [int(x[0, 0]) >> 24 for x in itertools.islice(other_machines.chunks(), 16)]
    gaps = np.diff(sorted(starts))
    assert len(set(starts)) == 16
    assert gaps.max() <= 2 * 16
