# SPDX-License-Identifier: Apache-2.0
"""Speed of corem's forms against what PyTorch calls and against other libraries.

Contenders take turns; the table has a row for each of them, in seconds per element.
"""

import numpy as np
import pytest

import pytest_udftorch
from benches import rows
from benches.experiments import speed


@pytest.fixture(scope="module")
def harness():
    return speed.Harness()


@pytest.mark.parametrize("level", list(speed.levels()))
@pytest.mark.parametrize("function", pytest_udftorch.find_library("corem").function_names)
def test_speed_of_forms(benchmark, harness, function, level):
    field = speed.contenders(function, level)
    inputs = speed.sample(function, speed.L1_ELEMENTS)
    times = speed.times(harness, field, inputs, rounds=9)
    rows.add(benchmark, times, ns_per_element=speed.summary(times))
    assert {"corem"} < set(times)


def test_speed_of_operators(benchmark):
    times = {
        f"{operator}, {library}": values
        for operator, libraries in speed.operator_times(7)
        for library, values in libraries.items()
    }
    rows.add(benchmark, times)
    assert set(times) == {f"{o}, {lib}" for o in speed.operators() for lib in ("std", "corem")}


@pytest.mark.parametrize("function", ["exp", "hypot"])
def test_the_harness_calls_the_contender(harness, function):
    """A contender that computes something else must show in the output array."""
    inputs = speed.sample(function, 64)
    results = {}
    for library in ("corem", "canary"):
        address = pytest_udftorch.build_library(library).forms(function, "float32")["array"]
        output = np.zeros_like(inputs[0])
        harness.time_ns(speed.Contender(library, "array", address), inputs, output, 1)
        results[library] = output.view(np.uint32)
    assert np.array_equal(results["corem"] ^ 1, results["canary"])
