# SPDX-License-Identifier: Apache-2.0
"""A lower bound on the time of every executor: see docs/compile.md."""

from pytest_udftorch.planning.roofline import Ceilings, Work, bound_ns, ceilings, work

__all__ = ["Ceilings", "Work", "bound_ns", "ceilings", "work"]
