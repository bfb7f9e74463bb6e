# SPDX-License-Identifier: Apache-2.0
"""Interpreted and compiled forms of a model: see docs/compile.md."""

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
from pytest_udftorch.timing.layers import PairInputError

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
