# SPDX-License-Identifier: Apache-2.0
"""How does a function get into torch, and back out?"""

from typing import TYPE_CHECKING

from pytest_udftorch.base.package import names_from

if TYPE_CHECKING:
    from pytest_udftorch.swap.library.symbols import FUNCTIONS as FUNCTIONS
    from pytest_udftorch.swap.reach.coverage import Coverage as Coverage
    from pytest_udftorch.swap.reach.coverage import coverage as coverage
    from pytest_udftorch.swap.reach.evaluations import Evaluations as Evaluations
    from pytest_udftorch.swap.reach.evaluations import evaluations as evaluations
else:
    __all__, __getattr__, __dir__ = names_from(
        __name__,
        {
            "swap.library.symbols": ["FUNCTIONS"],
            "swap.reach.coverage": ["Coverage", "coverage"],
            "swap.reach.evaluations": ["Evaluations", "evaluations"],
        },
    )
