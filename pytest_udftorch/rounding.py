# SPDX-License-Identifier: Apache-2.0
"""Assertions and the correct-rounding oracle.

See docs/verification.md.
"""

from __future__ import annotations

from pytest_udftorch.exact.approx import approx
from pytest_udftorch.exact.formats import FORMATS, MismatchError, UnsupportedDtypeError
from pytest_udftorch.exact.rounding import (
    NothingToCheckError,
    UnknownOracleFunctionError,
    assert_bitwise_same,
    assert_correctly_rounded,
    assert_ulp,
    correctly_rounded,
    ulp_distance,
    ulp_error,
)
from pytest_udftorch.exact.ziv import OracleMissingError, UndecidedError

__all__ = [
    "FORMATS",
    "MismatchError",
    "NothingToCheckError",
    "OracleMissingError",
    "UndecidedError",
    "UnknownOracleFunctionError",
    "UnsupportedDtypeError",
    "approx",
    "assert_bitwise_same",
    "assert_correctly_rounded",
    "assert_ulp",
    "correctly_rounded",
    "ulp_distance",
    "ulp_error",
]
