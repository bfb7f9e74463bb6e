# SPDX-License-Identifier: Apache-2.0
"""How does a function get into torch, and back out?"""

from typing import TYPE_CHECKING

from pytest_udftorch.base.package import names_from

if TYPE_CHECKING:
    from pytest_udftorch.swap.library.symbols import FUNCTIONS
    from pytest_udftorch.swap.operators.table import BARE, reached
    from pytest_udftorch.swap.reach.coverage import (
        Coverage,
        CoverageRow,
        coverage,
        save_coverage,
        training_step,
    )
    from pytest_udftorch.swap.reach.evaluations import Evaluations, evaluations
    from pytest_udftorch.swap.reach.table import load, markdown
    from pytest_udftorch.swap.toolchain.compiler import Compiler, find_compiler
    from pytest_udftorch.swap.toolchain.cross import cross_library

__all__ = [
    "BARE",
    "FUNCTIONS",
    "Compiler",
    "Coverage",
    "CoverageRow",
    "Evaluations",
    "coverage",
    "cross_library",
    "evaluations",
    "find_compiler",
    "load",
    "markdown",
    "reached",
    "save_coverage",
    "training_step",
]
__getattr__ = names_from(
    __name__,
    {
        "BARE": "swap.operators.table",
        "Compiler": "swap.toolchain.compiler",
        "Coverage": "swap.reach.coverage",
        "CoverageRow": "swap.reach.coverage",
        "Evaluations": "swap.reach.evaluations",
        "FUNCTIONS": "swap.library.symbols",
        "coverage": "swap.reach.coverage",
        "cross_library": "swap.toolchain.cross",
        "evaluations": "swap.reach.evaluations",
        "find_compiler": "swap.toolchain.compiler",
        "load": "swap.reach.table",
        "markdown": "swap.reach.table",
        "reached": "swap.operators.table",
        "save_coverage": "swap.reach.coverage",
        "training_step": "swap.reach.coverage",
    },
)
