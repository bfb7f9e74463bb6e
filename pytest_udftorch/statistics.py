# SPDX-License-Identifier: Apache-2.0
"""Statistics of timings."""

from pytest_udftorch.timing.statistics import (
    FEWEST_RUNS,
    Interval,
    SampleError,
    Verdict,
    bootstrap,
    compare,
    median,
    ratio,
    spread,
)

__all__ = [
    "FEWEST_RUNS",
    "Interval",
    "SampleError",
    "Verdict",
    "bootstrap",
    "compare",
    "median",
    "ratio",
    "spread",
]
