# SPDX-License-Identifier: Apache-2.0
"""``approx``: what it lets pass, what it says, and what it refuses."""

import numpy as np
import pytest
import torch

from pytest_udftorch.errors import CheckError
from pytest_udftorch.prove import approx

X = np.linspace(-4, 4, 101, dtype=np.float32)


def moved(values, steps, at=7):
    result = values.copy()
    result.view(np.uint32)[at] += steps
    return result


@pytest.mark.parametrize(
    ("steps", "ulp", "equal"), [(0, 0, True), (1, 0, False), (2, 2, True), (3, 2, False)]
)
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_it_allows_that_many_steps_on_either_side(steps, ulp, equal, kind):
    got = kind(moved(X, steps))
    assert (got == approx(kind(X), ulp=ulp)) is equal
    assert (approx(kind(X), ulp=ulp) == got) is equal
    assert (got != approx(kind(X), ulp=ulp)) is not equal


def test_zeros_and_nans_compare_as_numbers():
    special = np.array([0.0, np.nan, np.inf], np.float32)
    assert np.array([-0.0, -np.nan, np.inf], np.float32) == approx(special, ulp=0)
    assert np.array([0.0, 1.0, np.inf], np.float32) != approx(special, ulp=2**31)


def test_the_message_shows_the_worst_element_and_who_is_nearer_the_truth(pytester):
    pytester.makepyfile(
        """
        import numpy as np
        import torch
        from pytest_udftorch.prove import approx

        want = torch.ones(10)
        got = want.clone()
        got.view(torch.int32)[3] += 5
        got.view(torch.int32)[4] += 1

        def test_plain():
            assert got == approx(want, ulp=2)

        def test_truth():
            truth = want.double()
            truth[3] = 2
            assert got == approx(want, ulp=2, truth=truth)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:benchmark", "-p", "no:hypothesispytest")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "E *1 of 10 float32 elements are farther than 2 ULP from what is expected.",
            "E *Worst at index 3:",
            "E *got    0x3f800005 *1.0000006",
            "E *want   0x3f800000 *1",
            "E *5 ULP apart",
            "E *truth  2; nearer at this element: got",
            "E *Nearer to the truth: got in 1 elements, want in 1.",
        ]
    )


def test_what_cannot_be_compared_is_an_error():
    with pytest.raises(CheckError, match=r"float64.*does not correspond to float32"):
        assert approx(X.astype(np.float64)) == X
    with pytest.raises(CheckError, match="truth has the shape"):
        approx(X, ulp=0, truth=np.zeros(3)).differences(moved(X, 1))
    with pytest.raises(CheckError, match="could not fail"):
        assert X[:0] == approx(X[:0])


@pytest.mark.parametrize("ulp", [-1, 0.5, True, "1", None])
def test_another_ulp_than_a_count_is_an_error(ulp):
    with pytest.raises(CheckError, match="not a number of steps"):
        approx(X, ulp=ulp)
