# SPDX-License-Identifier: Apache-2.0
import pytest

from pytest_udftorch import errors
from pytest_udftorch.measure.timing import statistics as samples


def test_interval_holds_the_median_and_orders_its_bounds():
    interval = samples.bootstrap([3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 2.5])
    assert interval.low <= interval.value == 3.0 <= interval.high
    assert 3.0 in interval
    assert 6.5 not in interval


def test_interval_is_reproducible_and_shrinks_with_less_spread():
    wide = samples.bootstrap([1.0, 9.0, 2.0, 8.0, 5.0, 4.0, 6.0])
    narrow = samples.bootstrap([4.9, 5.1, 5.0, 5.0, 5.05, 4.95, 5.0])
    assert wide == samples.bootstrap([1.0, 9.0, 2.0, 8.0, 5.0, 4.0, 6.0])
    assert narrow.high - narrow.low < wide.high - wide.low


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([10.0] * 10, [20.0] * 10, "faster"),
        ([20.0] * 10, [10.0] * 10, "slower"),
        ([10.0, 12.0] * 5, [12.0, 10.0] * 5, "within noise"),
        ([10.0] * 5, [20.0] * 5, "too few runs"),
    ],
)
def test_verdict(a, b, verdict):
    assert samples.compare(a, b) == verdict


def test_pairing_removes_a_common_drift():
    drift = [100.0 * (1 + k) for k in range(10)]
    assert samples.compare([0.9 * d for d in drift], drift) == "faster"


def test_spread_of_constant_values_is_zero():
    assert samples.spread([7.0] * 4) == 0.0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: samples.median([]), "at least one run"),
        (lambda: samples.ratio([1.0], [1.0, 2.0]), "one interleaved measurement"),
        (lambda: samples.compare([1.0], [1.0, 2.0]), "one interleaved measurement"),
        (lambda: samples.ratio([1.0], [0.0]), "too coarse"),
    ],
)
def test_errors_say_what_to_do(call, says):
    with pytest.raises(errors.MeasureError, match=says):
        call()
