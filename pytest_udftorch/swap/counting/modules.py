# SPDX-License-Identifier: Apache-2.0
"""The names of modules, which only Python knows.

A layer is named after the class of the model that was called and its path in it:
``LeNet.features.3.elu``. So it has one name whatever other models are alive, in every process and
in every run. Models of one class share their names.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from pytest_udftorch.errors import UdfError
from pytest_udftorch.swap.counting.observer import Observer
from pytest_udftorch.swap.native.runtime import Cells


class ModuleNames:
    """While entered, names modules for the observer, which sees their calls."""

    def __init__(self, cells: Cells, observer: Observer) -> None:
        self._cells = cells
        self._observer = observer
        # id(module) -> id of its name, id(the root it was named under), and what tells its end
        self._known: dict[int, tuple[int, int, weakref.ref[Any]]] = {}
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        import torch
        from torch.fx import GraphModule

        self._graph = GraphModule
        if not self._observer.watch_modules(torch.nn.Module.__call__, self._find):
            raise UdfError(
                "Another tool put something that is not a Python function in the place of "
                "torch.nn.Module.__call__, so the profiler cannot see which module is being "
                "called. Close the other tool first."
            )

    def __exit__(self, *exception: object) -> None:
        self._observer.leave_modules()

    def _find(self, module: Any, caller: int) -> int:
        """Name a module at its first call, and the modules below it."""
        with self._lock:
            if id(module) not in self._known and not caller:
                self._walk(module)
            if id(module) not in self._known:
                if caller and isinstance(module, self._graph):
                    # Compiled from the module that is being called, but not part of it.
                    self._remember(module, caller, module)
                else:
                    self._name(module, type(module).__name__, module)
            return self._known[id(module)][0]

    def _walk(self, root: Any) -> None:
        """Name a root by its class, and everything below by its path from there."""
        below = {path.removeprefix("_orig_mod."): m for path, m in root.named_modules()}
        mine = {id(m) for m in below.values()}
        own = type(root).__name__
        if "_orig_mod" in below:  # a compiled module stands for the one in it
            inner = below.pop("_orig_mod")
            own = type(inner).__name__
            self._name(inner, own, root)
        fresh = {
            path: m
            for path, m in below.items()
            if path and (id(m) not in self._known or self._known[id(m)][1] in mine)
        }
        for path, m in fresh.items():
            self._name(m, f"{own}.{path}", root)
        self._name(root, own, root)

    def _name(self, module: Any, text: str, root: Any) -> None:
        self._remember(module, self._cells.intern(text), root)

    def _remember(self, module: Any, number: int, root: Any) -> None:
        key = id(module)
        self._known[key] = number, id(root), weakref.ref(module, lambda _: self._forget(key))
        self._observer.forget(key)

    def _forget(self, key: int) -> None:
        # The next module may get the same address.
        with self._lock:
            self._observer.forget(key)
            self._known.pop(key, None)
