# SPDX-License-Identifier: Apache-2.0
"""Overrides of operators in torch's dispatcher: registered, layered by session, and removed.

An :class:`Override` stands for one overload at one dispatch key. The kernel that it replaces, the
stock kernel, stays below it, and the dispatcher returns to that kernel afterwards. The latest
session that names an overload decides it, as with functions. Sessions may close in any order.

torch changes its table of kernels without a lock against threads that are calling the same
operator. Open and close sessions only while no other thread is inside the operator, or exclusively.
A kernel that a thread has entered stays alive.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol

from pytest_udftorch.base import compat
from pytest_udftorch.errors import RestoreError, SwapError
from pytest_udftorch.swap.overrides.stack import Stacked


class Role(IntEnum):
    """How a kernel uses the author's function; the values are those of udf_operator.h."""

    AS_IS = 0
    FUNCTIONAL = 1
    IN_PLACE = 2
    OUT = 3


class Mode(IntEnum):
    """What overrides do when a thread calls them; the values are those of udf_operator.h."""

    NORMAL = 0
    #: Count the call, and raise an exception instead of calling the function.
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

    def register(self) -> None:
        """Note the stock kernel, and register the override above it."""

    def unregister(self) -> None:
        """Remove the override."""

    def hits(self) -> int:
        """Return how many calls of this thread a probe ended, for all overrides of this kind."""

    def recursions(self) -> int:
        """Return how many calls of this thread were refused, for all overrides of this kind."""


# Modes -------------------------------------------------------------------------------


class Thread(threading.local):
    """What overrides in Python know about a thread."""

    mode = Mode.NORMAL
    hits = recursions = 0

    def __init__(self) -> None:
        self.frames: list[Frame] = []


class Reached(BaseException):
    """Ends a call that a probe was waiting for."""


@dataclass
class Frame:
    """A call of an override in Python; ``stock`` is true while it calls the stock kernel."""

    override: Any
    stock: bool = False


#: The state of the calling thread.
thread: Final = Thread()


def _set_mode(mode: int) -> int:
    before, thread.mode = thread.mode, Mode(mode)
    return before


#: A function for each kind of override; it sets the mode of this thread and returns the old one.
mode_setters: Final[list[Callable[[int], int]]] = [_set_mode]


@contextlib.contextmanager
def mode(wanted: Mode) -> Iterator[None]:
    """Change what overrides do when this thread calls them."""
    setters = tuple(mode_setters)
    before = [set_one(wanted) for set_one in setters]
    try:
        yield
    finally:
        # In reverse order: a library that was loaded twice has two setters of one mode.
        for set_one, old in reversed(list(zip(setters, before, strict=True))):
            set_one(old)


def bypass() -> contextlib.AbstractContextManager[None]:
    """Send this thread's calls to the stock kernels."""
    return mode(Mode.BYPASS)


def implement(space: str, key: str, kernels: Mapping[str, Callable[..., Any]]) -> Any:
    """Register kernels in the dispatcher; ``compat.destroy`` removes them.

    Args:
        space: namespace of the operators (``aten``).
        key: dispatch key.
        kernels: overload in it (``log.out``) -> kernel.

    Raises:
        RuntimeError: torch rejects one of the kernels; then none of them is registered.
    """
    import torch

    kind: Any = torch.library.Library
    library = kind(space, "IMPL", key)
    try:
        with warnings.catch_warnings():
            # torch 2.11 warns about the first one in a process.
            warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
            for name, kernel in kernels.items():
                # The default of torch 2.11 refuses an operator that a session below overrides.
                library.impl(name, kernel, allow_override=True)
    except BaseException:
        compat.destroy(library)
        raise
    return library


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


class Overrides(Stacked[Layer]):
    """The layers of a process's open sessions, and what is registered for them."""

    def __init__(self) -> None:
        super().__init__()
        self._registered: dict[tuple[str, str], Override] = {}

    def registered(self) -> list[Override]:
        """Return the overrides that are in the dispatcher now."""
        with self.lock:
            return list(self._registered.values())

    def _wanted(self) -> dict[tuple[str, str], Override]:
        wanted: dict[tuple[str, str], Override] = {}
        for _, layer in self._layers:
            if isinstance(layer, StockOperators):
                wanted = {at: o for at, o in wanted.items() if not layer.hides(o.spec)}
            else:
                wanted.update({(o.spec.operator, o.spec.key): o for o in layer})
        return wanted

    def _apply(self) -> None:
        wanted = self._wanted()
        # Remove all before registering any, so that an override finds the stock kernel below it.
        for at, override in list(self._registered.items()):
            if wanted.get(at) is not override:
                try:
                    override.unregister()
                except RuntimeError as error:
                    raise RestoreError(
                        f"torch did not remove the override of {at[0]} at {at[1]}: {error}"
                    ) from error
                del self._registered[at]
        for at, override in wanted.items():
            if at not in self._registered:
                try:
                    override.register()
                except RuntimeError as error:
                    raise SwapError(
                        f"torch rejects a kernel for {at[0]} at {at[1]}: {error}. Another "
                        "tool may have registered one, or the operator has no stock kernel."
                    ) from error
                self._registered[at] = override


#: The overrides of this process.
overrides: Final = Overrides()
