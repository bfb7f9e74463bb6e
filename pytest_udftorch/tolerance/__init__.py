# SPDX-License-Identifier: Apache-2.0
"""How many bits each function of each layer needs."""

from typing import TYPE_CHECKING

from pytest_udftorch import names_from

if TYPE_CHECKING:
    from pytest_udftorch.tolerance.find import LADDER, tolerance
    from pytest_udftorch.tolerance.found import Need, Tolerance
    from pytest_udftorch.tolerance.switch import Site, assigned

__all__ = ["LADDER", "Need", "Site", "Tolerance", "assigned", "tolerance"]
__getattr__ = names_from(
    __name__,
    dict.fromkeys(("LADDER", "tolerance"), "find")
    | dict.fromkeys(("Need", "Tolerance"), "found")
    | dict.fromkeys(("Site", "assigned"), "switch"),
)
