# SPDX-License-Identifier: Apache-2.0
"""The base executors of a process, and how a name becomes an executor."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_udftorch.base.plain_data import shown
from pytest_udftorch.errors import ExecutorError, nearest
from pytest_udftorch.measure.planning.executor import Executor
from pytest_udftorch.measure.planning.executors.variations import VARIATIONS, vary


class Registry:
    """Base executors by name.

    Args:
        shipped: this package's executors, which cannot be removed.
    """

    def __init__(self, shipped: Sequence[Executor]) -> None:
        self._shipped = {executor.name: executor for executor in shipped}
        self._bases = dict(self._shipped)

    def registered(self) -> list[str]:
        """Return the names of the base executors."""
        return list(self._bases)

    def register(self, executor: Executor) -> None:
        """Add a base executor.

        Raises:
            ExecutorError: this is not an executor, or its name is taken or contains ``+``.
        """
        if not isinstance(executor, Executor):
            raise ExecutorError(
                f"{executor!r} is not an executor. Give register(Executor(name, make))."
            )
        if executor.name in self._bases or "+" in executor.name:
            raise ExecutorError(
                f"{executor.name!r} cannot be registered: a name must be new and must not contain "
                f"'+', which separates variations. Taken: {', '.join(self._bases)}."
            )
        self._bases[executor.name] = executor

    def unregister(self, name: str) -> None:
        """Remove an executor that :meth:`register` added.

        Raises:
            ExecutorError: there is no such executor, or it is one of this package's.
        """
        if name in self._shipped:
            raise ExecutorError(
                f"{name!r} is one of this package's executors and cannot be removed. Leave it out "
                "of the names you give."
            )
        if name not in self._bases:
            raise self._unknown(name)
        del self._bases[name]

    def _unknown(self, name: str) -> ExecutorError:
        return ExecutorError(f"No executor {name!r}. {nearest(name, self._bases)}")

    def reset(self) -> None:
        """Remove all executors that :meth:`register` added."""
        self._bases = dict(self._shipped)

    def resolve(self, name: str | Executor) -> Executor:
        """Return the executor of a name such as ``compile+channels_last+cudagraph``.

        Raises:
            ExecutorError: an unknown base or variation, a variation given twice, or what
                is neither a name nor an executor.
        """
        if isinstance(name, Executor):
            return name
        if not isinstance(name, str):
            raise ExecutorError(
                f"{shown(name)} is not an executor. Give a name, such as 'compile', or an Executor."
            )
        base, *variations = name.split("+")
        if base not in self._bases:
            raise self._unknown(base)
        for variation in variations:
            if variation not in VARIATIONS or variations.count(variation) > 1:
                raise ExecutorError(
                    f"{variation!r} in {name!r} is not a variation, or is given twice. "
                    f"{nearest(variation, VARIATIONS)}"
                )
        if not variations:
            return self._bases[base]
        return vary(self._bases[base], name, variations)
