# SPDX-License-Identifier: Apache-2.0
"""A call once a module is imported. Each process of ``udftorch run`` loads this at its start."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class ImportHook(importlib.abc.MetaPathFinder):
    """Calls a function with each of the named modules once it has been imported."""

    def __init__(self, after: Callable[[ModuleType], None], names: frozenset[str]) -> None:
        self._after = after
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec that the other finders give, and add the call to it."""
        if fullname not in self._names:
            return None
        spec = None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)):
                break
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._after(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
