# SPDX-License-Identifier: Apache-2.0
"""How many bits of a model's results hold under rounding errors, and where they are lost."""

from typing import TYPE_CHECKING

from pytest_udftorch import names_from

if TYPE_CHECKING:
    from pytest_udftorch.sensitivity.digits import Bits
    from pytest_udftorch.sensitivity.find import sensitivity
    from pytest_udftorch.sensitivity.found import Digits, Sensitivity
    from pytest_udftorch.sensitivity.seeded import stochastic

__all__ = ["Bits", "Digits", "Sensitivity", "sensitivity", "stochastic"]
__getattr__ = names_from(
    __name__,
    {"Bits": "digits", "sensitivity": "find", "stochastic": "seeded"}
    | dict.fromkeys(("Digits", "Sensitivity"), "found"),
)
