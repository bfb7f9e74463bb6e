# SPDX-License-Identifier: Apache-2.0
"""One library for a run, and functions of another one in chosen layers and operators.

Below autograd every operator passes by on its way to the kernel. Before one that is to have other
functions, a session of these functions opens over the one that is open anyway; before the next
operator that calls any swapped function, it closes. So what an operator gets is exactly what it
would get in a session, with a session's proofs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pytest_udftorch import compat
from pytest_udftorch.blame.trial import Unit
from pytest_udftorch.diff.layers import Place, Whereabouts
from pytest_udftorch.library.description import UdfLibrary, find_library
from pytest_udftorch.reach.definitions import evaluations, is_view
from pytest_udftorch.session.binder import binder
from pytest_udftorch.session.session import Session, patched

_STOCK: Final = "std"


def layer_of(place: Place) -> str:
    """Return the layer of an operator; outside of modules, what runs instead."""
    return place.layer or (place.phase if place.phase == "optimizer" else "no module")


class Pair:
    """Two libraries, of which the second one's functions are put into runs of the first.

    Attributes:
        a: the library that runs.
        b: the one whose functions are put in.
    """

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = find_library(a), find_library(b)

    @property
    def names(self) -> frozenset[str]:
        """The functions, and operators, in which the two can differ."""
        return frozenset(n for one in (self.a, self.b) if not one.stock for n in one.names)

    def opened(self, one: UdfLibrary) -> Session:
        """Return a session of a whole library."""
        return patched(one.folder if not one.stock else _STOCK, ranks="ignore")

    @contextlib.contextmanager
    def with_b(self, names: frozenset[str]) -> Iterator[None]:
        """Let b decide some functions, in a session of a; those that b lacks become stock."""
        own = names & frozenset(self.b.names) if not self.b.stock else frozenset()
        with contextlib.ExitStack() as stack:
            if own:
                stack.enter_context(patched(self.b.folder, sorted(own), ranks="ignore"))
            if names - own:
                stack.enter_context(patched(_STOCK, sorted(names - own), ranks="ignore"))
            yield


class _Watching:
    """A mode that knows where every operator is called."""

    def __init__(self) -> None:
        watching = self

        class Watch(compat.dispatch_mode()):  # type: ignore[misc]
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                place = watching.where.now()
                return watching.call(layer_of(place), func, args, kwargs or {})

        self.where = Whereabouts()
        self._mode = Watch()

    def call(self, layer: str, func: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Watch the operators of this thread, and those of backward passes that it starts."""
        with self.where, self._mode:
            yield


class Switch(_Watching):
    """Gives chosen operators the functions of b."""

    def __init__(self, pair: Pair, chosen: frozenset[Unit], known: frozenset[Unit]) -> None:
        super().__init__()
        self._pair = pair
        self._wanted: dict[tuple[str, str], frozenset[str]] = {
            (u.layer, u.operator): frozenset() for u in known
        }
        for unit in chosen:
            at = (unit.layer, unit.operator)
            self._wanted[at] = self._wanted.get(at, frozenset()) | {unit.function}
        self._now: frozenset[str] = frozenset()
        self._open = contextlib.ExitStack()

    def call(self, layer: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator under the functions that it is to have."""
        # Others call no swapped function, so it does not matter what is open.
        wanted = self._wanted.get((layer, str(func.name())))
        if wanted is not None and wanted != self._now:
            self._open.close()
            self._now = frozenset()
            if wanted:
                self._open.enter_context(self._pair.with_b(wanted))
            self._now = wanted
        return func(*args, **kwargs)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Switch until the end, whatever happens."""
        with self._open, super().active():
            yield


class Scout(_Watching):
    """Lists the functions that every operator calls, by the layers that call it."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__()
        self._names = names
        self._defined: dict[str, frozenset[str]] = {}
        self.units: dict[Unit, None] = {}

    def call(self, layer: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator and see which functions it calls."""
        name = str(func.name())
        bound = binder()
        bound.marked()
        returned = func(*args, **kwargs)
        called = {s.function for s in bound.marked()}
        if "sincos" in called:
            called |= {"sin", "cos"}
        if not is_view(func):
            # Kernels of a session (gelu, LSTM, random numbers) call functions through no symbol.
            called |= self._by_definition(name, func, args, kwargs)
        if {name, name.removesuffix(".default")} & self._names:
            called.add(name if name in self._names else name.removesuffix(".default"))
        for function in sorted(called & self._names):
            self.units.setdefault(Unit(function, layer, name))
        return returned

    def _by_definition(self, name: str, func: Any, args: Any, kwargs: Any) -> frozenset[str]:
        if name not in self._defined:
            counts, _ = evaluations(func, args, kwargs)
            self._defined[name] = frozenset(counts)
        return self._defined[name]

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Watch, with every call of a function marked."""
        with binder().marking(), super().active():
            yield


def units_by_place(units: Mapping[Unit, None]) -> list[Unit]:
    """Return units in the order in which their places first run, those of a place together."""
    places = {(u.layer, u.operator): i for i, u in reversed(list(enumerate(units)))}
    return sorted(units, key=lambda u: (places[u.layer, u.operator], u.function))
