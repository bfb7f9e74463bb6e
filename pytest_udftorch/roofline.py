# SPDX-License-Identifier: Apache-2.0
"""A lower bound for every executor.

See docs/compile.md.
"""

from __future__ import annotations

from pytest_udftorch.planning.roofline import (
    Ceilings,
    Work,
    bound_ns,
    ceilings,
    work,
)

__all__ = ["Ceilings", "Work", "bound_ns", "ceilings", "work"]
