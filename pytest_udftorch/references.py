# SPDX-License-Identifier: Apache-2.0
"""References that share no code with a UDF."""

from __future__ import annotations

from pytest_udftorch.verify.reference.checker import (
    Inputs,
    LlvmLibc,
    ReferenceBuildError,
    ReferenceMissingError,
    generator,
    llvmlibc,
)

__all__ = [
    "Inputs",
    "LlvmLibc",
    "ReferenceBuildError",
    "ReferenceMissingError",
    "generator",
    "llvmlibc",
]
