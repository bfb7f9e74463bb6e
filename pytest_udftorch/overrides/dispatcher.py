# SPDX-License-Identifier: Apache-2.0
"""Overrides of operators in torch's dispatcher: put in, layered by session, taken out.

An :class:`Override` stands for one overload at one dispatch key. The kernel that is there when it
is put in, the stock kernel, stays below it, and the dispatcher goes back to it afterwards. The
latest session that names an overload decides it, as for functions; sessions may close in any
order.

torch changes its table of kernels without a lock against threads that are calling the same
operator. Open and close sessions while no other thread is inside it. A kernel that a thread has
entered stays alive.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol

from pytest_udftorch import compat
from pytest_udftorch.errors import (
    RestoreError,
    SwapReachedNothingError,
)
from pytest_udftorch.overrides.stacked import Stacked


class Role(IntEnum):
    """What a kernel makes of the author's function; as in llvm/operator/udf_operator.h."""

    AS_IS = 0
    FUNCTIONAL = 1
    IN_PLACE = 2
    OUT = 3


class Mode(IntEnum):
    """What overrides do when they are called on a thread; as in udf_operator.h."""

    NORMAL = 0
    #: Count the call and leave by an exception instead of calling the function.
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
        role: what is made of the author's function.
        author: the overload that the function has the type of.
        meta: the functional overload, whose meta kernel says what the result is; empty
            where the function is taken as it is.
        dtypes: names; calls with tensors of another go to the stock kernel. Empty for all.
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
        """Note the stock kernel, and put the override before it."""

    def unregister(self) -> None:
        """Take it out."""

    def hits(self) -> int:
        """Return how many calls of this thread a probe ended, of any override of its kind."""

    def recursions(self) -> int:
        """Return how many calls of this thread were refused, of any override of its kind."""


# Modes -------------------------------------------------------------------------------


class Thread(threading.local):
    """What overrides in Python know of a thread."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.mode = Mode.NORMAL
        self.hits = 0
        self.recursions = 0


class Reached(BaseException):
    """Ends a call that a probe was waiting for."""


@dataclass
class Frame:
    """A call of an override in Python; ``stock`` while that calls its stock kernel."""

    override: Any
    stock: bool = False


#: The one of the calling thread.
thread: Final = Thread()


def _set_mode(mode: int) -> int:
    before, thread.mode = thread.mode, Mode(mode)
    return before


#: Set the mode of this thread and return the one before: one for each kind of override.
mode_setters: Final[list[Callable[[int], int]]] = [_set_mode]


@contextlib.contextmanager
def mode(wanted: Mode) -> Iterator[None]:
    """Let this thread's calls of overrides do something else."""
    setters = tuple(mode_setters)
    before = [set_one(wanted) for set_one in setters]
    try:
        yield
    finally:
        # The last first: a library that was loaded twice has two setters of one mode.
        for set_one, old in reversed(list(zip(setters, before, strict=True))):
            set_one(old)


def bypass() -> contextlib.AbstractContextManager[None]:
    """Let this thread's calls go to the stock kernels."""
    return mode(Mode.BYPASS)


def implement(space: str, key: str, kernels: Mapping[str, Callable[..., Any]]) -> Any:
    """Put kernels into the dispatcher; ``compat.destroy`` takes them out again.

    Args:
        space: namespace of the operators (``aten``).
        key: dispatch key.
        kernels: overload in it (``log.out``) -> what is called.

    Raises:
        RuntimeError: torch rejects one of them; then it has none of them.
    """
    import torch

    kind: Any = torch.library.Library
    library = kind(space, "IMPL", key)
    try:
        with warnings.catch_warnings():
            # torch 2.11 warns of the first in a process.
            warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
            for name, kernel in kernels.items():
                library.impl(name, kernel)
    except BaseException:
        compat.destroy(library)
        raise
    return library


# Layers ------------------------------------------------------------------------------


@dataclass(frozen=True)
class StockOperators:
    """A layer below which overrides do not show.

    Attributes:
        names: of overloads, or as libraries declare them; None for every operator.
    """

    names: frozenset[str] | None

    def hides(self, spec: Spec) -> bool:
        """Tell whether an override is one of those named."""
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
        # All out before any goes in: what an override takes for stock is stock.
        for at, override in list(self._registered.items()):
            if wanted.get(at) is not override:
                try:
                    override.unregister()
                except RuntimeError as error:
                    raise RestoreError(
                        f"torch did not let go of the override of {at[0]} at {at[1]}: {error}"
                    ) from error
                del self._registered[at]
        for at, override in wanted.items():
            if at not in self._registered:
                try:
                    override.register()
                except RuntimeError as error:
                    raise SwapReachedNothingError(
                        f"torch rejects a kernel for {at[0]} at {at[1]}: {error}. Another "
                        "tool may have one there, or the operator has no stock kernel."
                    ) from error
                self._registered[at] = override


#: Those of this process.
overrides: Final = Overrides()


def _after_fork() -> None:
    # Another thread of the parent may have held the lock; it does not exist in the child.
    overrides.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
