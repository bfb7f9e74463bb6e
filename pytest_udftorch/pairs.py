# SPDX-License-Identifier: Apache-2.0
"""Interpreted and compiled forms of a model.

See docs/compile.md.
"""

from __future__ import annotations

from pytest_udftorch.planning.pairs import (
    Accuracy,
    DisagreementError,
    Member,
    MemberFailedError,
    ModelPair,
    NoReferenceError,
    accuracy,
    model_pair,
    reference,
)
from pytest_udftorch.timing.layers import (
    PairInputError,
)

__all__ = [
    "Accuracy",
    "DisagreementError",
    "Member",
    "MemberFailedError",
    "ModelPair",
    "NoReferenceError",
    "PairInputError",
    "accuracy",
    "model_pair",
    "reference",
]
