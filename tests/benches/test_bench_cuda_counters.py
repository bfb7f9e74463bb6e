# SPDX-License-Identifier: Apache-2.0
"""Figures of Nsight Compute are read by name, and a page that lacks some is refused."""

from __future__ import annotations

import pytest

from benches import stored
from benches.experiments import cuda_counters


def page(kernels, metrics=None):
    """The raw page of ncu as CSV: what ncu says, names, units, kernels."""
    metrics = list(cuda_counters.METRICS.values()) if metrics is None else metrics
    rows = [["ID", *metrics], ["", *["" for _ in metrics]]]
    rows += [[str(at), *(f"{1000 * (at + 1):,}" for _ in metrics)] for at in range(kernels)]
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    return "\n".join(["==PROF== Connected to process 7", *lines])


def test_instructions_are_per_element_and_rows_in_the_operators_order():
    found = cuda_counters.parse(page(len(cuda_counters.OPERATORS)), elements=32 * 500)
    assert list(found) == list(cuda_counters.OPERATORS)
    assert found["exp"] == dict.fromkeys(cuda_counters.METRICS, 1000.0) | {
        "instructions": 2.0, "double_instructions": 2.0,
    }  # fmt: skip
    assert found["tanh"]["time_ns"] == 2000.0


def test_kernels_too_few_or_metrics_missing_are_an_error():
    count = len(cuda_counters.OPERATORS)
    with pytest.raises(cuda_counters.CountersError, match=f"shows {count - 1} kernels"):
        cuda_counters.parse(page(count - 1), 32)
    with pytest.raises(cuda_counters.CountersError, match="shows 0 kernels"):
        cuda_counters.parse("Segmentation fault", 32)
    metrics = list(cuda_counters.METRICS.values())[1:]
    with pytest.raises(cuda_counters.CountersError, match="does not show gpu__time_duration"):
        cuda_counters.parse(page(count, metrics), 32)


def test_what_the_page_says_of_the_counters_is_stored():
    """docs/swap/cuda.md draws conclusions from the figures: they hold."""
    document = stored.load(stored.RESULTS / "cuda_counters.json")
    found = document["operators"]
    assert set(found) == set(cuda_counters.OPERATORS)
    for name in ("exp", "tanh", "asin", "acos"):
        assert 30 < found[name]["instructions"] < 45
        assert found[name]["memory_percent"] > 80
    for name in ("tan", "atan", "atanh"):
        assert 40 < found[name]["instructions"] < 48
    for name in ("asinh", "acosh"):
        assert 50 <= found[name]["instructions"] <= 60
    for name in ("erfc", "softplus", "logsigmoid"):
        assert 70 < found[name]["instructions"] < 80
        assert 45 < found[name]["memory_percent"] < 55
    for name in ("erf", "gelu"):
        assert found[name]["instructions"] < 50
        assert found[name]["double_instructions"] > found[name]["instructions"] / 2
        assert found[name]["memory_percent"] < 80
    for name in ("exp", "tanh", "erf", "erfc", "mish"):
        assert 55 < found[name]["issue_percent"] < 78
    assert all(one["threads"] > 30 for one in found.values())
