# SPDX-License-Identifier: Apache-2.0
"""UDF libraries as their authors describe them, and the symbols of the functions."""

from typing import TYPE_CHECKING

from pytest_udftorch import names_from

if TYPE_CHECKING:
    from pytest_udftorch.library.symbols import FUNCTIONS

__all__ = ["FUNCTIONS"]
__getattr__ = names_from(__name__, {"FUNCTIONS": "symbols"})
