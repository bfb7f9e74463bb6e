# SPDX-License-Identifier: Apache-2.0
"""Code of ours between the operators of a thread and their kernels: modes of torch's dispatcher.

Below autograd every operator passes by, also in backward passes that the thread starts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeAlias

from pytest_udftorch.base import compat

#: Takes an operator's overload and its arguments by position and by name; returns the result.
Call: TypeAlias = Callable[[Any, Any, Any], Any]


@functools.cache
def _mode(compiles: bool) -> Any:
    """Return the class of modes, made on first use because it needs torch."""

    class Mode(compat.dispatch_mode()):  # type: ignore[misc]
        def __init__(self, call: Call) -> None:
            super().__init__()
            self._call = call

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Tell torch.compile whether it may compile under this mode."""
            return compiles

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return self._call(func, args, kwargs or {})

    return Mode


def watching(call: Call, *, compiles: bool = False) -> Any:
    """Return a mode that hands every operator called inside it to ``call``.

    The operators that ``call`` itself calls go to the kernels, or to the mode outside of this one.

    Args:
        call: computes the operator, or something else in its place.
        compiles: let torch.compile compile under the mode.
    """
    return _mode(compiles)(call)


class OperatorWatch:
    """Gets every operator called while it is entered, in :meth:`call`.

    Attributes:
        compiles: whether torch.compile may compile inside.
    """

    compiles: ClassVar[bool] = False

    #: Those that are entered. Each refers to this object, which keeps none of them afterwards.
    _modes: tuple[Any, ...] = ()

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator, or something else in its place; see :data:`Call`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        mode = watching(self.call, compiles=self.compiles)
        mode.__enter__()
        self._modes = (*self._modes, mode)
        return self

    def __exit__(self, *exception: Any) -> None:
        *others, mode = self._modes
        self._modes = tuple(others)
        mode.__exit__(*exception)
