# SPDX-License-Identifier: Apache-2.0
"""Graphs that are rewritten, and the test that two programs are equal: see docs/rewriting.md."""

from pytest_udftorch.errors import EquivalenceError
from pytest_udftorch.rewrite.boxes import Box, Equivalence, assert_equivalent, equivalence

__all__ = [
    "Box",
    "Equivalence",
    "EquivalenceError",
    "assert_equivalent",
    "equivalence",
]
