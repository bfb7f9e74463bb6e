# SPDX-License-Identifier: Apache-2.0
"""Which layer, phase and step an operator belongs to.

Hooks that torch calls for every module say which layer runs. A gradient belongs to the layer whose
forward operator made the node of autograd's graph that computes it; torch.fx pairs them the same
way. Hooks of every optimizer tell its step apart.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final, NamedTuple

from pytest_udftorch.base import compat
from pytest_udftorch.swap.observe.native_recorder import NativeRecorder

#: Phases of a step.
PHASES: Final = ("forward", "backward", "optimizer")


class Place(NamedTuple):
    """Where an operator is called.

    Attributes:
        layer: the path of the module, the root's class for the root itself; empty outside.
        phase: forward, backward, or optimizer.
        step: how many steps of an optimizer ended before.
    """

    layer: str
    phase: str
    step: int

    def __str__(self) -> str:
        """Return ``layer4.1.bn2, backward, step 2``."""
        parts = [self.layer or "no module"]
        if self.phase != "forward":
            parts.append(self.phase)
        if self.step:
            parts.append(f"step {self.step}")
        return ", ".join(parts)


class Whereabouts:
    """While entered, knows which layer of which step runs in each thread."""

    def __init__(self) -> None:
        self._stacks = threading.local()
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._roots: dict[str, int] = {}
        self._nodes: dict[int, str] = {}
        self._optimizing = 0
        self._steps = 0
        self._handles: list[Any] = []
        self._numbers: dict[str, int] = {}
        self._listener: NativeRecorder | None = None
        # Asked for at every operator.
        self._running, self._next = compat.running_node(), compat.next_node()

    def __enter__(self) -> Whereabouts:
        from torch.nn.modules import module
        from torch.optim import optimizer

        self._handles = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
            optimizer.register_optimizer_step_pre_hook(self._begin_step),
            optimizer.register_optimizer_step_post_hook(self._end_step),
        ]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()

    def tell(self, listener: NativeRecorder | None) -> None:
        """Tell a recorder in C++ from now on which layer runs; None: nobody any more."""
        self._listener = listener
        if listener is not None:
            stack = self._stack()
            listener.layer(self._number(stack[-1]) if stack else -1)
            listener.step(bool(self._optimizing), self._steps)

    def _number(self, layer: str) -> int:
        return self._numbers.setdefault(layer, len(self._numbers))

    def place(self, layer: int, phase: int, step: int) -> Place:
        """Return the place that such a recorder knows by numbers."""
        return Place(list(self._numbers)[layer] if layer >= 0 else "", PHASES[phase], step)

    def _stack(self) -> list[str]:
        if not hasattr(self._stacks, "names"):
            self._stacks.names = []
        names: list[str] = self._stacks.names
        return names

    def _enter(self, module: Any, *_: Any) -> None:
        stack = self._stack()
        if module not in self._names:
            self._name(module, inside=stack[-1] if stack else "")
        name = self._names[module]
        stack.append(name)
        if self._listener is not None:
            self._listener.layer(self._number(name))

    def _leave(self, *_: Any) -> None:
        stack = self._stack()
        if stack:
            stack.pop()
            if self._listener is not None:
                self._listener.layer(self._number(stack[-1]) if stack else -1)

    def _name(self, root: Any, inside: str) -> None:
        """Name a module that is called first, and those below it."""
        kind = type(getattr(root, "_orig_mod", root)).__name__  # of a compiled module
        number = self._roots[kind] = self._roots.get(kind, 0) + 1
        own = kind if number == 1 else f"{kind}#{number}"
        prefix = "" if len(self._roots) == 1 and number == 1 and not inside else f"{own}."
        for path, module in root.named_modules():
            text = "" if path == "_orig_mod" else path.removeprefix("_orig_mod.")
            self._names.setdefault(module, f"{prefix}{text}" if text else own)

    def _begin_step(self, *_: Any) -> None:
        self._optimizing += 1
        self._tell_step()

    def _end_step(self, *_: Any) -> None:
        self._optimizing -= 1
        self._steps += not self._optimizing
        self._tell_step()

    def _tell_step(self) -> None:
        if self._listener is not None:
            self._listener.step(bool(self._optimizing), self._steps)

    def now(self) -> Place:
        """Return where the operator that is being called belongs."""
        stack = self._stack()
        node = self._running()
        if node is not None and not stack:
            return Place(self._nodes.get(compat.node_number(node), ""), "backward", self._steps)
        layer = stack[-1] if stack else ""
        if layer:
            # Autograd numbers the node of an operator before it calls the kernel.
            self._nodes[self._next() - 1] = layer
        phase = "optimizer" if self._optimizing else "forward" if node is None else "backward"
        return Place(layer, phase, self._steps)
