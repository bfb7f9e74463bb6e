# SPDX-License-Identifier: Apache-2.0
"""Code of ours between the operators of a thread and their kernels: modes of torch's dispatcher.

Below autograd every operator passes by, also in backward passes that the thread starts. Operators
on subclasses that are made of other tensors pass by as the operators on those tensors, and
higher-order operators (``torch.cond``) as those that their functions call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar, Self, TypeAlias

from pytest_udftorch.base import compat
from pytest_udftorch.base.tensor_contents import contents, is_wrapper, kind

#: Takes an operator's overload and its arguments by position and by name; returns the result.
Call: TypeAlias = Callable[[Any, Any, Any], Any]


@functools.cache
def _mode(compiles: bool) -> Any:
    """Return the class of modes, made on first use because it needs torch."""
    import torch

    excludes_zeros = compat.excludes_zeros()

    class Mode(compat.dispatch_mode()):  # type: ignore[misc]
        # Without it torch refuses to run torch.cond and the like under a mode.
        supports_higher_order_operators = True

        def __init__(self, call: Call, passed: Callable[[Any], None] | None) -> None:
            super().__init__()
            self._call, self._passed = call, passed

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Tell torch.compile whether it may compile under this mode."""
            return compiles

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if compat.is_higher_order(func):
                if self._passed is not None:
                    self._passed(func)
                return _followed(self, func, args, kwargs or {})
            # Another mode outside of this one has to see the subclass itself.
            if types and any(map(is_wrapper, types)) and not compat.is_in_mode():
                return NotImplemented  # then torch asks the subclass, still under this mode
            if excludes_zeros():
                # In forward derivatives torch would hand its efficient zeros, which have no memory,
                # to kernels that read them.
                args = tuple(map(_with_memory, args))
            if args and isinstance(args[0], int | float | complex) and _views_tensor(func):
                # torch unwraps a number in a tensor for modes, and refuses it as what a view is of.
                args = (torch.tensor(args[0]), *args[1:])
            return self._call(func, args, kwargs or {})

    return Mode


def _with_memory(value: Any) -> Any:
    """Return an argument of an operator with ordinary zeros for efficient ones."""
    import torch

    if isinstance(value, list | tuple):
        return type(value)(map(_with_memory, value))
    if isinstance(value, torch.Tensor) and kind(value) == "zeros":
        (value,) = contents(value) or (value,)
    return value


@functools.cache
def _views_tensor(func: Any) -> bool:
    schema = compat.overload_schema(func)
    first = schema.arguments[0] if schema.arguments else None
    return first is not None and first.alias_info is not None and str(first.type) == "Tensor"


def _followed(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Call a higher-order operator with the mode entered while its functions run."""

    def entered(value: Any) -> Any:
        if not callable(value):
            return value

        @functools.wraps(value)
        def inside(*own: Any, **named: Any) -> Any:
            with mode:
                return value(*own, **named)

        return inside

    args, kwargs = compat.pytree().tree_map(entered, (args, kwargs))
    return func(*args, **kwargs)


def watching(
    call: Call, *, compiles: bool = False, passed: Callable[[Any], None] | None = None
) -> Any:
    """Return a mode that hands every operator called inside it to ``call``.

    The operators that ``call`` itself calls go to the kernels, or to the mode outside of this one.

    Args:
        call: computes the operator, or something else in its place.
        compiles: let torch.compile compile under the mode.
        passed: is told of higher-order operators, of which ``call`` sees the functions alone.
    """
    return _mode(compiles)(call, passed)


class OperatorWatch:
    """Gets every operator called while it is entered, in :meth:`call`.

    Attributes:
        compiles: whether torch.compile may compile inside; else what it would compile runs eagerly.
    """

    compiles: ClassVar[bool] = False

    #: Those that are entered. Each refers to this object, which keeps none of them afterwards.
    _modes: tuple[Any, ...] = ()
    _stances: tuple[Any, ...] = ()

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator, or something else in its place; see :data:`Call`."""
        raise NotImplementedError

    def passed(self, operator: Any) -> None:
        """Hear of a higher-order operator, of whose functions alone the operators are seen."""

    def __enter__(self) -> Self:
        import torch

        eager: Any = torch.compiler
        # Where torch refuses to compile under a mode, code that asks for a whole graph would fail.
        stance = nullcontext() if self.compiles else eager.set_stance("force_eager")
        mode = watching(self.call, compiles=self.compiles, passed=self.passed)
        stance.__enter__()
        mode.__enter__()
        self._modes, self._stances = (*self._modes, mode), (*self._stances, stance)
        return self

    def __exit__(self, *exception: Any) -> None:
        (*others, mode), (*before, stance) = self._modes, self._stances
        self._modes, self._stances = tuple(others), tuple(before)
        mode.__exit__(*exception)
        stance.__exit__(*exception)


class _Function(OperatorWatch):
    def __init__(self, call: Call) -> None:
        self._function = call

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        return self._function(func, args, kwargs)


def watching_eagerly(call: Call) -> OperatorWatch:
    """Return what :func:`watching` does, under which code that torch.compile got runs eagerly."""
    return _Function(call)
