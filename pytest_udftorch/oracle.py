# SPDX-License-Identifier: Apache-2.0
"""Which layers to compile: see docs/compile.md."""

from pytest_udftorch.planning.oracle import Plan, PlanInputsError, oracle
from pytest_udftorch.planning.plans import PlanFileError, PlanMismatchError
from pytest_udftorch.planning.search import OracleOptionError
from pytest_udftorch.planning.search_record import JournalError

__all__ = [
    "JournalError",
    "OracleOptionError",
    "Plan",
    "PlanFileError",
    "PlanInputsError",
    "PlanMismatchError",
    "oracle",
]
