# SPDX-License-Identifier: Apache-2.0
"""Why gradients of micro-batches are no nodes of the tree of the whole batch's.

The gradient of an expert has as many terms as rows are routed to it.
"""

from __future__ import annotations

from typing import Any, Final

from pytest_udftorch.base.dispatch_mode import OperatorWatch
from pytest_udftorch.reproduce.agreement.parting import First
from pytest_udftorch.reproduce.agreement.subject import Subject
from pytest_udftorch.swap.observe.layers import Whereabouts
from pytest_udftorch.swap.operators.overload import name_of

#: Operators that choose rows by numbers.
_ROUTES: Final = frozenset({"_grouped_mm", "nonzero"})


class _Routes(OperatorWatch):
    """Notes the first operator that chooses rows by numbers."""

    def __init__(self, where: Whereabouts) -> None:
        self._where = where
        self.first: First | None = None

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.first is None and name_of(func) in _ROUTES:
            self.first = First(str(func.name()), self._where.now().layer)
        return func(*args, **kwargs)


def cut_across(one: Subject) -> First | None:
    """Return the operator that routes rows; None if there is none."""
    where = Whereabouts()
    watch = _Routes(where)
    with one.training(), where, watch:
        one.call()
    return watch.first
