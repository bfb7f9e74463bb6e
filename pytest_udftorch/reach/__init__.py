# SPDX-License-Identifier: Apache-2.0
"""Which operators a session reaches."""

from typing import TYPE_CHECKING

from pytest_udftorch import names_from

if TYPE_CHECKING:
    from pytest_udftorch.reach.table import ReachError, load, markdown

__all__ = ["ReachError", "load", "markdown"]
__getattr__ = names_from(__name__, dict.fromkeys(__all__, "table"))
