# SPDX-License-Identifier: Apache-2.0
"""Eager CUDA operators: the kernels that a session registers for them, and their counts."""

from typing import TYPE_CHECKING

from pytest_udftorch import names_from

if TYPE_CHECKING:
    from pytest_udftorch.cuda.table import BARE, reached

__all__ = ["BARE", "reached"]
__getattr__ = names_from(__name__, dict.fromkeys(__all__, "table"))
