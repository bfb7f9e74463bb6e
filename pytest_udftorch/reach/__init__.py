# SPDX-License-Identifier: Apache-2.0
"""Which operators a session reaches."""

from typing import TYPE_CHECKING

from pytest_udftorch import names_from

if TYPE_CHECKING:
    from pytest_udftorch.reach.counted import (
        Coverage,
        CoverageRow,
        coverage,
        save_coverage,
        training_step,
    )
    from pytest_udftorch.reach.evaluated import Evaluations, evaluations
    from pytest_udftorch.reach.table import ReachError, load, markdown

__all__ = [
    "Coverage",
    "CoverageRow",
    "Evaluations",
    "ReachError",
    "coverage",
    "evaluations",
    "load",
    "markdown",
    "save_coverage",
    "training_step",
]
__getattr__ = names_from(
    __name__,
    dict.fromkeys(__all__, "counted")
    | dict.fromkeys(("Evaluations", "evaluations"), "evaluated")
    | dict.fromkeys(("ReachError", "load", "markdown"), "table"),
)
