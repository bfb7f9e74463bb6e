# SPDX-License-Identifier: Apache-2.0
"""Overrides of operators, layered by session.

An :class:`Override` stands for one overload at one dispatch key, whose board in the dispatcher
(``switchboard``) calls it. The latest session that names an overload decides it, as with functions.
Sessions may close in any order. Below them are the kernels of the functions that the open sessions
swap, for operators that no symbol leads into.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol

from pytest_udftorch.swap.overrides.stack import Same, Stacked
from pytest_udftorch.swap.overrides.switchboard import Place, Target, native, switchboard


class Role(IntEnum):
    """How a kernel uses the author's function; the values are those of udf_operator.h."""

    AS_IS = 0
    FUNCTIONAL = 1
    IN_PLACE = 2
    OUT = 3


class Mode(IntEnum):
    """What boards do when a thread calls them; the values are those of board.h."""

    NORMAL = 0
    #: Count a call that has a target, and raise an exception instead of running it.
    PROBE = 1
    #: Go to the stock kernel.
    BYPASS = 2


@dataclass(frozen=True)
class Spec:
    """What an override stands for.

    Attributes:
        declared: the name that the library gives the UDF.
        operator: the overload that is overridden (``aten::log.out``).
        key: dispatch key (``CPU``).
        role: how the author's function is used.
        author: the overload whose type the function has.
        meta: the functional overload, whose meta kernel gives the result's shape and dtype; empty
            where the function is used as it is.
        dtypes: names; a call with a tensor of another dtype goes to the stock kernel. Empty for
            all dtypes.
    """

    declared: str
    operator: str
    key: str
    role: Role
    author: str
    meta: str = ""
    dtypes: tuple[str, ...] = ()


class Override(Protocol):
    """One overload at one dispatch key."""

    spec: Spec
    #: Number under which its calls are profiled, or -1.
    counter: int

    def target(self) -> Target:
        """Make what the override's board calls.

        The override does not keep it: a target in Python keeps the override.
        """

    def recursions(self) -> int:
        """Return how many calls of this thread were refused, for all overrides of this kind."""


# Modes -------------------------------------------------------------------------------


class Thread(threading.local):
    """What overrides in Python know about a thread."""

    recursions = 0

    def __init__(self) -> None:
        self.frames: list[Frame] = []


@dataclass
class Frame:
    """A call of an override in Python; ``stock`` is true while it calls the stock kernel."""

    override: Any
    stock: bool = False


#: The state of the calling thread.
thread: Final = Thread()


def set_mode(wanted: Mode) -> Mode:
    """Change what boards do when this thread calls them; return what they did."""
    if not switchboard.is_used:
        return Mode.NORMAL
    return Mode(native().mode(wanted))


def mode_now() -> Mode:
    """Return what boards do when this thread calls them."""
    return Mode(native().mode_now()) if switchboard.is_used else Mode.NORMAL


def hits() -> int:
    """Return how many calls of this thread a probe ended."""
    return int(native().hits())


@contextlib.contextmanager
def mode(wanted: Mode) -> Iterator[None]:
    """Change what boards do when this thread calls them."""
    before = set_mode(wanted)
    try:
        yield
    finally:
        set_mode(before)


def bypass() -> contextlib.AbstractContextManager[None]:
    """Send this thread's calls to the stock kernels."""
    return mode(Mode.BYPASS)


# Layers ------------------------------------------------------------------------------


@dataclass(frozen=True)
class StockOperators:
    """A layer that hides the overrides below it.

    Attributes:
        names: names of overloads, or names that libraries declare; None for every operator.
    """

    names: frozenset[str] | None

    def hides(self, spec: Spec) -> bool:
        """Tell whether the layer names an override."""
        return self.names is None or bool(self.names & {spec.declared, spec.operator})


Layer = Sequence[Override] | StockOperators


@dataclass(frozen=True, eq=False)
class Kernels:
    """The targets by which operators of a device get the functions of the open sessions."""

    targets: tuple[Target, ...]


class Overrides(Stacked[Layer]):
    """The layers of a process's open sessions, and the kernels of their functions."""

    def __init__(self) -> None:
        super().__init__()
        #: Device -> the kernels of the functions that are active there.
        self._kernels: dict[str, Kernels] = {}

    def registered(self) -> list[Override]:
        """Return the overrides that boards call now."""
        with self.lock:
            return list(self._wanted().values())

    def serve(self, device: str, kernels: Kernels | None) -> None:
        """Let boards call the kernels of a device below the layers; None for none."""
        with self.lock:
            if kernels is None:
                self._kernels.pop(device, None)
            else:
                self._kernels[device] = kernels
            self.settle()

    def _wanted(self) -> dict[Place, Override]:
        wanted: dict[Place, Override] = {}
        for _, layer in self._layers:
            if isinstance(layer, StockOperators):
                wanted = {at: o for at, o in wanted.items() if not layer.hides(o.spec)}
            else:
                wanted.update({(o.spec.operator, o.spec.key): o for o in layer})
        return wanted

    def _targets(self) -> Iterator[Target]:
        """Yield what boards call. An operator that has a UDF of its own keeps that UDF."""
        wanted = self._wanted()
        for kernels in self._kernels.values():
            for target in kernels.targets:
                name, key = target.place
                if not {target.place, (name, key.removeprefix("Autograd"))} & wanted.keys():
                    yield target
        yield from (override.target() for override in wanted.values())

    def _apply(self) -> None:
        layers = [layer for _, layer in self._layers if isinstance(layer, StockOperators) or layer]
        if not self._kernels and all(isinstance(layer, StockOperators) for layer in layers):
            switchboard.switch(None, tuple)
            return
        switchboard.open()
        key = tuple(map(Same, (*self._kernels.values(), *layers)))
        switchboard.switch(key, lambda: list(self._targets()))


#: The overrides of this process.
overrides: Final = Overrides()
