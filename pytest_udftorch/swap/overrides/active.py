# SPDX-License-Identifier: Apache-2.0
"""What open sessions ask of compilers and of eager CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pytest_udftorch.swap.overrides.undo import Undo
from pytest_udftorch.swap.toolchain.selection import Part, cuda_doubles

#: What ``Active.id`` is while nothing is swapped.
STOCK: Final = "stock"


@dataclass(frozen=True)
class Active:
    """The functions and operators of the open sessions.

    Attributes:
        id: a name made from the content of the functions and the overridden operators;
            ``stock`` if there are none.
        parts: the builds that the functions come from, and the forms asked for on GPUs.
        composites: the builds that activations as whole functions come from. Eager CPU operators
            alone have them; compiled code calls these operators, which are in ``operators``.
        operators: overridden overloads (``aten::log.out``), sorted. Compiled code calls them
            through the dispatcher, so it does not depend on which UDF is there.
    """

    id: str = STOCK
    parts: tuple[Part, ...] = ()
    operators: tuple[str, ...] = ()
    composites: tuple[Part, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """What must be the same for compiled code to be kept."""
        return (self.id, *(part.cuda_form for part in self.parts))

    @property
    def functions(self) -> frozenset[str]:
        """Torch's names of the float32 functions."""
        keys = (key for part in self.parts for key in part.functions)
        return frozenset(name for name, dtype in keys if dtype == "float32")

    @property
    def doubles(self) -> frozenset[str]:
        """Torch's names of the float64 functions that GPUs can get."""
        return frozenset(name for part in self.parts for name, _ in cuda_doubles(part))


#: Changes an imported module through an :class:`Undo`, which can take the change back.
Change = Callable[[Any, Active, Undo], None]
