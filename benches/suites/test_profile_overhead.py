# SPDX-License-Identifier: Apache-2.0
"""The profiler's cost in a small form; a verdict needs the many blocks of the stored one."""

from dataclasses import replace

import pytest

from benches import rows
from benches.experiments import profile_overhead, training
from benches.experiments.blocks import CLOCKS
from benches.render import profile as render_profile
from pytest_udftorch.measure.timing.statistics import Interval
from pytest_udftorch.swap.records import layout


@pytest.fixture(scope="module")
def task():
    lenet = training.lenet()
    return replace(lenet, samples=lenet.samples.thinned(5))


@pytest.mark.parametrize("library", profile_overhead.LIBRARIES)
def test_overhead_on_lenet(benchmark, task, library):
    profile_overhead.check_results(task, library, steps=2)
    size = profile_overhead.Size(6, 3, 1, 600.0)
    runs = {}
    found = profile_overhead.overhead(task, library, size, runs)
    rows.add(benchmark, runs, overhead=found)
    assert set(found["ratios"]) == {"off again", *profile_overhead.DEPTHS}
    for ratios in found["ratios"].values():
        assert all(ratios[c]["low"] <= ratios[c]["value"] <= ratios[c]["high"] for c in CLOCKS)


def test_memory_is_constant_and_events_go_to_disk(task):
    for depth, sizes in profile_overhead.memory(task, 2).items():
        assert sizes["many"] == sizes["few"]
        if depth == "events":
            assert sizes["file_many"] > 2 * sizes["file_few"]
            # Events wait for the disk in a ring of 2^17.
            assert sizes["few"] >= 2**17 * layout.EVENT.itemsize
        else:
            assert sizes["file_many"] == sizes["file_few"]


def test_figures_are_kept_after_each_library(task):
    kept = []
    small = profile_overhead.Size(6, 1, 1, 0.0)
    found = profile_overhead.run(
        [task], {"lenet": small}, lambda f: kept.append(list(f["models"]["lenet"]["libraries"]))
    )
    assert kept == [["std"], ["std", "corem"]]
    for library in found["models"]["lenet"]["libraries"].values():
        assert library["blocks"] == 6  # the fewest, although the time was over


def test_nothing_is_left_when_off():
    found = profile_overhead.builds()
    assert found["same"]
    assert not found["ordinary_names_profiler"]
    assert found["instrumented_names_profiler"]


def test_a_verdict_needs_the_whole_interval_on_one_side():
    verdict = profile_overhead.verdict
    assert verdict(Interval(1.002, 0.999, 1.009), 1.01, 30) == "within"
    assert verdict(Interval(1.002, 0.99, 1.011), 1.01, 30) == "cannot tell"
    assert verdict(Interval(1.03, 1.011, 1.05), 1.01, 30) == "above"
    assert verdict(Interval(1.002, 0.999, 1.009), 1.01, 5) == "too few blocks"


def test_the_table_states_bounds_control_and_verdicts():
    cost, none = (
        {"value": 1 + x, "low": 1 + x - 0.003, "high": 1 + x + 0.003} for x in (0.004, 0.0)
    )
    ratios = {
        name: {"wall": cost, "cpu": cost, "verdict": "within"} for name in profile_overhead.DEPTHS
    }
    ratios["off again"] = {"wall": none, "cpu": none}
    figures = {
        "bounds": profile_overhead.BOUNDS,
        "builds": {
            "sha256_before": "0" * 64, "sha256_after": "0" * 64, "same": True,
            "ordinary_names_profiler": False, "instrumented_names_profiler": True,
        },
        "models": {
            "lenet": {
                "label": "LeNet", "data": "digits",
                "memory": {
                    d: {"few": 1 << 20, "many": 1 << 20, "file_few": 5000, "file_many": 9000}
                    for d in ("counters", "events")
                },
                "libraries": {
                    "std": {
                        "step_ns": 4e6, "blocks": 50, "ratios": ratios,
                    }
                },
            }
        },
    }  # fmt: skip
    text = "\n".join(render_profile.overhead(figures))
    assert "events, at most 5 %" in text
    assert "| +0.40 % (+0.10 to +0.70), within; processor time +0.40 % (+0.10 to +0.70) |" in text
    assert "| +0.00 % (-0.30 to +0.30); processor time" in text
    assert "| LeNet; digits | 1.00 MiB, the same | 1.00 MiB, the same | 4,000 bytes |" in text
