# SPDX-License-Identifier: Apache-2.0
"""Which function, in which layer and operator, makes a test or a metric differ."""

from typing import TYPE_CHECKING

from pytest_udftorch import names_from

if TYPE_CHECKING:
    from pytest_udftorch.blame.find import blame, units_of
    from pytest_udftorch.blame.found import Blame, Cause
    from pytest_udftorch.blame.trial import Outcome, Unit

__all__ = ["Blame", "Cause", "Outcome", "Unit", "blame", "units_of"]
__getattr__ = names_from(
    __name__,
    {
        "blame": "find",
        "units_of": "find",
        "Blame": "found",
        "Cause": "found",
        "Outcome": "trial",
        "Unit": "trial",
    },
)
