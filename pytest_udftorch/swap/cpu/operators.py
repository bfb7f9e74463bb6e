# SPDX-License-Identifier: Apache-2.0
"""Eager CPU operators under a session: what no symbol leads into is overridden.

Sessions reach most CPU operators through the symbols that libtorch calls. Where libtorch has a
function inlined, or oneDNN generates the code, the boards (``overrides.switchboard``) call kernels
of a session that swaps the function, at the dispatch key CPU. Autograd, autocast and functorch work
above that key and notice nothing.

``operators.rows`` has the formulas, overloads and functions; ``loops`` compiles them for the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any, Final

from pytest_udftorch.base.newest import Newest
from pytest_udftorch.swap.cpu import (
    attention,
    composites,
    direct,
    narrow,
    pointwise,
    recurrent,
    variates,
)
from pytest_udftorch.swap.cpu.loops import Loops
from pytest_udftorch.swap.operators.rows import ROWS
from pytest_udftorch.swap.overrides import dispatcher
from pytest_udftorch.swap.overrides.active import Active, Change
from pytest_udftorch.swap.overrides.switchboard import switchboard
from pytest_udftorch.swap.overrides.undo import Undo

#: Operators that map elements.
_POINTWISE: Final = tuple(op for row in ROWS for op in row.cpu)

#: Those that compiled code computes with functions of its own.
_LEFT: Final = tuple(op for row in ROWS if row.left_compiled for op in row.cpu)


def overloads(functions: frozenset[str]) -> list[str]:
    """Return the names of the overloads that a session of these functions overrides."""
    found = {n for op in _POINTWISE if op.functions & functions for n in pointwise.overloads(op)}
    if functions & attention.FUNCTIONS:
        found |= {attention.FORWARD, attention.BACKWARD}
    if functions & recurrent.FUNCTIONS:
        found |= {recurrent.FORWARD, recurrent.BACKWARD}
    if functions & variates.FUNCTIONS:
        found |= set(variates.OVERLOADS)
    return sorted(found)


def left_by_compilers(functions: Set[str]) -> list[str]:
    """Return the operators that compiled code calls, since its own code has other functions.

    Args:
        functions: of the sessions.
    """
    called = (op for op in _LEFT if op.functions & functions)
    return [f"aten::{op.functional}" for op in called]


def kernels(loops: Loops) -> dict[str, dict[str, Callable[..., Any]]]:
    """Return dispatch key -> overload -> kernel, for operators that hold one of the functions."""
    found: dict[str, Callable[..., Any]] = {}
    for op in _POINTWISE:
        if op.functions & loops.held and loops.can(op.functions):
            found |= pointwise.pointwise_kernels(loops, op)
    if attention.FUNCTIONS & loops.held and loops.can(attention.FUNCTIONS):
        found |= attention.attention_kernels(loops)
    if variates.FUNCTIONS & loops.held and loops.can(variates.FUNCTIONS):
        found |= variates.kernels(loops)
    found |= narrow.narrow_kernels(loops, found)
    found |= composites.composite_kernels(loops, found)
    if not recurrent.FUNCTIONS & loops.held or not loops.can(recurrent.FUNCTIONS):
        return {"CPU": found}
    layers = recurrent.kernels(loops)
    return {**layers, "CPU": found | layers["CPU"]}


def _computed(loops: Loops, names: Iterable[str]) -> dict[str, int]:
    """Return overload -> a bit for each dtype, by its number, that its kernel computes."""
    bits = {
        n: sum(1 << at for at in pointwise.numbers_of(op).values())
        for op in _POINTWISE
        for n in pointwise.overloads(op)
    }
    every = sum(1 << at for at in pointwise.numbers().values())
    whole = {*overloads(loops.held), *composites.composite_overloads(loops.composites)}
    return {n: bits.get(n, every) if n in whole else narrow.computed(loops, n) for n in names}


def _made(loops: Loops) -> dispatcher.Kernels:
    """Return the targets of the kernels of one set of functions."""
    cpp = direct.load()
    targets = []
    for key, found in kernels(loops).items():
        bits = _computed(loops, found) if key == "CPU" else {}
        for name, kernel in found.items():
            place = f"aten::{name}", key
            target = switchboard.python(place, kernel)
            if cpp is not None and name in bits:
                target = switchboard.above(place, target, cpp.target, bits[name])
            targets.append(target)
    return dispatcher.Kernels(tuple(targets))


#: So many sets of functions keep their kernels.
_SETS: Final = 16


class CpuOperators:
    """What boards of the CPU call for the open sessions; the one instance is ``cpu_operators``."""

    def __init__(self) -> None:
        #: The loops of the open sessions, for operators of a library that call functions.
        self.loops: Loops | None = None
        #: What is told of these loops, before the boards call other kernels.
        self.users: list[Callable[[Loops | None], None]] = []
        self._made: Newest[object, tuple[Loops, dispatcher.Kernels]] = Newest(_SETS)

    def change(self, module: Any, active: Active, undo: Undo) -> None:
        """Override the operators; one that has a UDF of its own keeps it.

        Args:
            module: the module ``torch.library``.
            active: the functions.
            undo: gives the operators back their stock kernels.
        """
        if not active.functions and not active.composites:
            return
        undo.at_last(self.reset)
        switchboard.open()
        found = self._made.get(active.key)
        if found is None:
            loops = Loops(active)
            found = self._made[active.key] = loops, _made(loops)
        loops, made = found
        self._use(loops)
        dispatcher.overrides.serve("cpu", made)

    def forget(self) -> None:
        """Make the kernels anew for the next session."""
        self._made.clear()

    def reset(self) -> None:
        """Give the operators back their stock kernels, whatever sessions are open."""
        self._use(None)
        dispatcher.overrides.serve("cpu", None)

    def _use(self, loops: Loops | None) -> None:
        self.loops = loops
        for use in self.users:
            use(loops)


#: The overrides of this process.
cpu_operators: Final = CpuOperators()

CHANGES: Final[dict[str, Change]] = {"torch.library": cpu_operators.change}
