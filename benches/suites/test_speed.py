# SPDX-License-Identifier: Apache-2.0
"""Speed of corem's forms against what PyTorch calls and against other libraries.

Each bench times corem's array form as pytest-benchmark does; the interleaved comparison
with every contender rides in ``extra_info``.
"""

import numpy as np
import pytest

import pytest_udftorch
from benches.experiments import speed


@pytest.fixture(scope="module")
def harness():
    return speed.Harness()


@pytest.mark.parametrize("level", list(speed.levels()))
@pytest.mark.parametrize("function", pytest_udftorch.find_library("corem").function_names)
def test_speed_of_forms(benchmark, harness, function, level):
    field = speed.contenders(function, level)
    inputs = speed.sample(function, speed.L1_ELEMENTS)
    output = np.empty_like(inputs[0])
    repeats = 50
    benchmark.extra_info["ns_per_element"] = speed.measure(harness, field, inputs, rounds=9)
    benchmark.extra_info["elements"] = output.size * repeats
    benchmark.pedantic(
        harness.time_ns, args=(field[0], inputs, output, repeats), rounds=9, warmup_rounds=1
    )
    assert {"corem"} < set(benchmark.extra_info["ns_per_element"])


def test_speed_of_operators(benchmark):
    benchmark.extra_info["operators"] = benchmark.pedantic(
        speed.measure_operators, args=(7,), rounds=1
    )
    assert all(row["std_ns"] > 0 for row in benchmark.extra_info["operators"].values())


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
