# SPDX-License-Identifier: Apache-2.0
"""The research's tables, in their small form: few samples, few blocks, two seeds."""

import math
from dataclasses import replace

import pytest

from benches import rows
from benches.experiments import (
    profile_accuracy,
    profile_counting,
    profile_operations,
    profile_time,
    training,
)
from benches.experiments.profile_accuracy import Plan
from benches.render import profile as render_profile


def few(task, step):
    return replace(task, samples=task.samples.thinned(step))


def test_counting_on_lenet():
    """One log and four exp operators in each of the passes that the loop counted."""
    task = few(training.lenet(), 10)
    found = profile_counting.run(task, 1)
    for library in found["libraries"].values():
        passes = library["passes"]
        assert passes == 8 + 1
        assert library["operator_calls"] == {"log": passes, "exp": 4 * passes}
        assert library["full_size"] == {"log": 12_100, "exp": 48_400}
    assert "12,100 | 12,100 | 12,100" in "\n".join(render_profile.counting(found))


def test_operations():
    tasks = [training.lenet(), training.resnet(width=4, batch=10), training.transformer()]
    found = profile_operations.run(tasks)
    for model in found["models"].values():
        for kinds in model["ratios"].values():
            one, call = kinds["for one evaluated"], kinds["for one symbol called"]
            assert 1 < one["fma"] < call["fma"]
    assert render_profile.operations(found)


def test_time_share(benchmark):
    tasks = [training.lenet(), training.transformer(layers=1, batch=4)]
    sizes = {task.name: (2, 2) for task in tasks}
    runs = {}
    found = profile_time.run(tasks, sizes, runs)
    rows.add(benchmark, runs, time_share=found)
    for model in found["models"].values():
        for library in model["libraries"].values():
            assert 0 < library["profiler"]["value"] < 1
            assert sum(library["functions"].values()) <= 1
    assert render_profile.time_share(found)


def test_accuracy_over_seeds():
    plans = [
        Plan("lenet", epochs=2, thinned=8),
        Plan("resnet", epochs=1, width=2, thinned=6),
    ]
    found = profile_accuracy.run(plans, 2)
    for model in found["models"].values():
        assert all(n > 0 for n in model["parameters_different"]["corem"])
        assert all(0 < a <= 1 for values in model["accuracy"].values() for a in values)
    assert render_profile.accuracy(found)


def test_a_difference_is_found_where_there_is_one():
    """Against scipy.stats.ttest_rel, and with pairs that leave no doubt."""
    from scipy.stats import ttest_rel

    first, second = [0.91, 0.93, 0.90, 0.94, 0.92], [0.95, 0.96, 0.94, 0.97, 0.97]
    found = profile_accuracy.paired(first, second)
    interval = ttest_rel(second, first).confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx((interval.low, interval.high))
    assert found["low"] > 0
    assert found["sign_flip_p"] == 2 / 32
    same = profile_accuracy.paired(first, first)
    assert (same["low"], same["high"], same["sign_flip_p"]) == (0, 0, 1)
    mixed = profile_accuracy.paired([0.0] * 4, [0.1, -0.1, 0.1, -0.1])
    assert mixed["low"] < 0 < mixed["high"]
    assert math.isclose(mixed["mean"], 0, abs_tol=1e-12)
    with pytest.raises(ValueError, match="spread"):
        profile_accuracy.paired([1.0], [2.0])
