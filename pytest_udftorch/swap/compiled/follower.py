# SPDX-License-Identifier: Apache-2.0
"""Compilers that run inside the process follow the open sessions.

Whenever a session opens or closes, torch.compile (``inductor``), Triton (``triton``) and eager
CUDA (``cuda.operators``) learn which functions are active. This module imports neither torch nor
Triton. A module that is already imported is changed at once; an import hook changes the others
when they are imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Final

from pytest_udftorch.base import compat
from pytest_udftorch.errors import SessionBusyError
from pytest_udftorch.swap.overrides.active import STOCK, Active, Change
from pytest_udftorch.swap.overrides.import_hook import ImportHook
from pytest_udftorch.swap.overrides.undo import Undo
from pytest_udftorch.swap.toolchain.selection import Part, selection_id

#: The modules whose changes are those of eager operators.
_EAGER: Final = frozenset({"torch.cuda", "torch.library"})

# Raise it when Inductor is made to call operators in another way: its caches outlive this package.
_VERSION: Final = 2


def active_of(
    parts: Sequence[Part], operators: Sequence[str], composites: Sequence[Part] = ()
) -> Active:
    """Return what is active.

    Args:
        parts: the functions.
        operators: the overloads that are overridden.
        composites: the activations that are whole functions; their operators are among
            ``operators``.

    Raises:
        UdfError: see ``bitcode``.
    """
    name = selection_id(parts) if parts else STOCK
    names = tuple(sorted(set(operators)))
    if names:
        facts = f"{_VERSION} {' '.join(names)}"
        name += "+" + hashlib.sha256(facts.encode()).hexdigest()[:16]
    if composites:
        name += "+" + selection_id(composites)
    return Active(name, tuple(parts), names, tuple(composites))


class Follower:
    """The changes inside compilers for the functions that are active."""

    def __init__(self) -> None:
        self.active = Active()
        self._changes: dict[str, Change] = {}
        self._undo = Undo()
        self._hook: ImportHook | None = None
        #: Whether an interrupt left the compilers half changed.
        self.in_doubt = False
        #: The thread that is switching, and has told Dynamo not to compile; 0 for none.
        self._switching = 0
        #: Whether only eager operators follow.
        self._eager = False
        #: How often compilers were changed, and up to which change compiled code was dropped.
        self._changed = self._dropped = 0

    def serve(self, changes: Mapping[str, Change]) -> None:
        """Add the names of modules, each with the function that changes the module."""
        self._changes.update(changes)

    def follow(self, active: Active, *, wait: bool) -> None:
        """Make the compilers use what is active from now on; with nothing, restore everything.

        Code that was compiled before goes on to run until :meth:`drop_compiled`.

        Args:
            active: the functions and operators.
            wait: let a compilation that runs in another thread finish first.

        Raises:
            SessionBusyError: ``wait`` is false, and this thread or another one is compiling.
            UdfError: see ``bitcode``. After any error the compilers are as before.
        """
        if active.key == self.active.key and not self.in_doubt:
            return
        frames = sys.modules.get(compat.DYNAMO_FRAMES)
        if frames is None:
            self._switch(active)
            return
        compat.check_changed(frames)
        here = threading.get_ident()
        within = here == self._switching  # a signal handler, or the collector, inside a switch
        held = within or compat.is_compiling(frames)
        if held and not within and not wait:
            raise SessionBusyError(
                "torch.compile is compiling in this thread: a backend, or a hook of one, opens the "
                "session. The compiled code would mix the functions of two libraries. Open the "
                "session before the model is called."
            )
        taken, before = False, self._switching
        try:
            self._switching = here
            taken = frames.compile_lock.acquire(blocking=wait)
            if not taken:
                raise SessionBusyError(
                    "torch.compile is compiling in another thread. The compiled code would mix the "
                    "functions of two libraries. Open the session before that thread calls the "
                    "model, or after the call has returned."
                )
            self._switch(active)
        finally:
            self._switching = before
            # An interrupt can come between taking the lock and setting ``taken``.
            if taken or (not held and compat.is_compiling(frames)):
                frames.compile_lock.release()

    @contextlib.contextmanager
    def eager_only(self) -> Iterator[None]:
        """Let eager operators follow, and compilers only when this ends.

        For runs that open thousands of sessions and compile nothing.
        """
        before, self._eager = self._eager, True
        try:
            yield
        finally:
            self._eager = before
            if not before:
                self._switch(self.active)
                self.drop_compiled()

    def reset(self) -> None:
        """Restore everything and remove the import hook, whatever sessions are open."""
        self.follow(Active(), wait=True)
        self.drop_compiled()
        if self._hook is not None:
            sys.meta_path.remove(self._hook)
            self._hook = None

    def _switch(self, active: Active) -> None:
        before = self.active
        self.in_doubt = True
        try:
            self._change(active)
        except BaseException:
            self._change(before)
            self.in_doubt = False
            raise
        if not self._eager:
            self._changed += 1
        self.in_doubt = False

    def drop_compiled(self) -> None:
        """Drop the code that was compiled for what was active before, if there is some.

        Its callers hold no lock on the sessions. Dynamo takes locks of others for it, such as that
        of ``logging``, and a thread that holds one of these may wait for the sessions: a log
        handler or the garbage collector may open and close them.
        """
        changed = self._changed
        if changed != self._dropped:
            if compat.DYNAMO in sys.modules:
                sys.modules[compat.DYNAMO].reset()
            self._dropped = max(changed, self._dropped)

    def _change(self, active: Active) -> None:
        self._undo.run()
        self.active = active
        if active.id != STOCK:
            self._apply()
        self._undo.finish()

    def _apply(self) -> None:
        if self._hook is None:
            self._hook = ImportHook(self._imported, frozenset(self._changes))
            sys.meta_path.insert(0, self._hook)
        for name in self._changes:
            if name in sys.modules:
                self._imported(sys.modules[name])

    def _imported(self, module: ModuleType) -> None:
        if self.active.id != STOCK and (not self._eager or module.__name__ in _EAGER):
            compat.check_changed(module)
            self._changes[module.__name__](module, self.active, self._undo)


#: The follower of this process: its compilers use the functions of the open sessions.
follower: Final = Follower()
