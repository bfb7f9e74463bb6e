# SPDX-License-Identifier: Apache-2.0
"""Which layers to compile.

See docs/compile.md.
"""

from __future__ import annotations

from pytest_udftorch.planning.oracle import (
    JournalError,
    OracleOptionError,
    Plan,
    PlanInputsError,
    oracle,
)
from pytest_udftorch.planning.plans import (
    PlanFileError,
    PlanMismatchError,
)

__all__ = [
    "JournalError",
    "OracleOptionError",
    "Plan",
    "PlanFileError",
    "PlanInputsError",
    "PlanMismatchError",
    "oracle",
]
