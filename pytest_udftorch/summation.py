# SPDX-License-Identifier: Apache-2.0
"""The public names on orders of additions: read them, and compare them between batches."""

from pytest_udftorch.errors import SummationError
from pytest_udftorch.order.invariant import (
    Invariance,
    assert_batch_invariant,
    assert_position_invariant,
)
from pytest_udftorch.order.reveal import summation_tree
from pytest_udftorch.order.tree import SummationTree

__all__ = [
    "Invariance",
    "SummationError",
    "SummationTree",
    "assert_batch_invariant",
    "assert_position_invariant",
    "summation_tree",
]
