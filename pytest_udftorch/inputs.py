# SPDX-License-Identifier: Apache-2.0
"""Inputs worth testing.

See docs/verification.md.
"""

from __future__ import annotations

from pytest_udftorch.exact.strategies import (
    HardCasesError,
    by_encoding,
    float32_inputs,
    hard_cases,
    near_half_pi,
    near_thresholds,
    read_hard_cases,
    sample,
    structured,
    thresholds,
)

__all__ = [
    "HardCasesError",
    "by_encoding",
    "float32_inputs",
    "hard_cases",
    "near_half_pi",
    "near_thresholds",
    "read_hard_cases",
    "sample",
    "structured",
    "thresholds",
]
