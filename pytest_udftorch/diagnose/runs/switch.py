# SPDX-License-Identifier: Apache-2.0
"""Other functions for chosen operators of a run, by the layers that call them.

Below autograd every operator passes by on its way to the kernel. Before one that is to have other
functions, sessions of these open over the one that is open anyway; before the next operator that
evaluates any of the functions in question, they close. So what an operator gets is exactly what it
would get in a session, with a session's proofs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from pytest_udftorch.base.dispatch_mode import watching_eagerly
from pytest_udftorch.base.source_line import source_line
from pytest_udftorch.swap.compiled.follower import follower
from pytest_udftorch.swap.library.description import UdfLibrary, find_library
from pytest_udftorch.swap.observe.layers import Place, Whereabouts
from pytest_udftorch.swap.operators.definitions import evaluations, signature
from pytest_udftorch.swap.operators.overload import is_view
from pytest_udftorch.swap.session.binder import binder
from pytest_udftorch.swap.session.session import Session, patched

_STOCK: Final = "std"

#: The layer of a site that stands for all layers.
EVERY: Final = "every layer"

Choice = TypeVar("Choice")


@dataclass(frozen=True, order=True)
class Unit:
    """What is swapped at once.

    Attributes:
        function: torch's name, or that of an operator of the library.
        layer: the path of the module; ``optimizer`` or ``no module`` outside of all.
        operator: the overload that calls it (``aten::gelu``).
        source: the line of code that calls it first; empty if unknown. Units that differ in it
            alone are equal.
    """

    function: str
    layer: str
    operator: str
    source: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Return ``exp in encoder.0, aten::_softmax``."""
        return f"{self.function} in {self.layer}, {self.operator}"


class Site(NamedTuple):
    """Where a function is evaluated.

    Attributes:
        function: torch's name.
        layer: the path of the module; ``no module`` outside of all, ``every layer`` if layers
            are not told apart.
    """

    function: str
    layer: str

    def __str__(self) -> str:
        """Return ``exp in encoder.0``."""
        return f"{self.function} in {self.layer}"


#: Site -> the name of the library that computes it.
Assignment = Mapping[Site, str]

#: What is done with a call: the layer, the operator, its arguments by position and by name.
Call = Callable[[str, Any, Any, Any], Any]


def layer_of(place: Place) -> str:
    """Return the layer of an operator; outside of modules, what runs instead."""
    return place.layer or (place.phase if place.phase == "optimizer" else "no module")


@contextlib.contextmanager
def layered(call: Call) -> Iterator[None]:
    """Hand the operators of this thread, and of backward passes that it starts, to a function."""
    where = Whereabouts()

    def with_layer(func: Any, args: Any, kwargs: Any) -> Any:
        return call(layer_of(where.now()), func, args, kwargs)

    with where, watching_eagerly(with_layer):
        yield


@contextlib.contextmanager
def switched(
    chosen: Callable[[str, Any, Any, Any], Choice | None],
    opened: Callable[[Choice], contextlib.AbstractContextManager[None]],
) -> Iterator[None]:
    """Open sessions before operators that are to have other functions, until the end.

    Args:
        chosen: what an operator is to have; empty for what is open anyway, and None where it does
            not matter, because the operator evaluates none of the functions in question.
        opened: opens the sessions of a choice that is not empty.
    """
    now: Choice | None = None
    with contextlib.ExitStack() as sessions:

        def call(layer: str, func: Any, args: Any, kwargs: Any) -> Any:
            nonlocal now
            wanted = chosen(layer, func, args, kwargs)
            if wanted is not None and (wanted or now) and wanted != now:
                sessions.close()
                now = None
                if wanted:
                    sessions.enter_context(opened(wanted))
                now = wanted
            return func(*args, **kwargs)

        with layered(call):
            yield


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


def with_units(
    pair: Pair, chosen: Collection[Unit], known: Collection[Unit]
) -> contextlib.AbstractContextManager[None]:
    """Give chosen units the functions of b while entered.

    Args:
        pair: both libraries; a session of a is open.
        chosen: the units that get those of b.
        known: every unit of the run. What is in no unit calls no function in question.
    """
    wanted: dict[tuple[str, str], frozenset[str]] = {
        (u.layer, u.operator): frozenset() for u in known
    }
    for unit in chosen:
        at = (unit.layer, unit.operator)
        wanted[at] = wanted.get(at, frozenset()) | {unit.function}
    return switched(
        lambda layer, func, args, kwargs: wanted.get((layer, str(func.name()))), pair.with_b
    )


class Scout:
    """Lists the functions that every operator calls, by the layers that call it.

    Attributes:
        units: the units in the order in which they first run.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._defined: dict[str, frozenset[str]] = {}
        self.units: dict[Unit, None] = {}

    def _call(self, layer: str, func: Any, args: Any, kwargs: Any) -> Any:
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
            unit = Unit(function, layer, name)
            if unit not in self.units:
                self.units[replace(unit, source=source_line())] = None
        return returned

    def _by_definition(self, name: str, func: Any, args: Any, kwargs: Any) -> frozenset[str]:
        if name not in self._defined:
            counts, _ = evaluations(func, args, kwargs)
            self._defined[name] = frozenset(counts)
        return self._defined[name]

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Watch, with every call of a function marked."""
        with binder().marking(), layered(self._call):
            yield


def units_by_place(units: Mapping[Unit, None]) -> list[Unit]:
    """Return units in the order in which their places first run, those of a place together."""
    places = {(u.layer, u.operator): i for i, u in reversed(list(enumerate(units)))}
    return sorted(units, key=lambda u: (places[u.layer, u.operator], u.function))


class _Functions:
    """The functions that operators evaluate, by definition, looked up once for each shape."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._known: dict[Any, dict[str, int]] = {}

    def of(self, func: Any, args: Any, kwargs: Any) -> dict[str, int]:
        """Return function -> evaluations of a call."""
        if is_view(func):
            return {}
        key = signature(func, (args, kwargs))
        if key not in self._known:
            counts, _ = evaluations(func, args, kwargs)
            self._known[key] = {n: int(c) for n, c in counts.items() if n in self._names and c}
        return self._known[key]


@contextlib.contextmanager
def counting(names: Collection[str]) -> Iterator[dict[Site, int]]:
    """Count evaluations by function and layer while entered."""
    found: dict[Site, int] = {}
    functions = _Functions(names)

    def call(layer: str, func: Any, args: Any, kwargs: Any) -> Any:
        for name, count in functions.of(func, args, kwargs).items():
            site = Site(name, layer)
            found[site] = found.get(site, 0) + count
        return func(*args, **kwargs)

    with layered(call):
        yield found


@contextlib.contextmanager
def sessions(libraries: Mapping[str, str]) -> Iterator[None]:
    """Open a session of each library with the functions that it has."""
    by_library: dict[str, list[str]] = {}
    for function, library in sorted(libraries.items()):
        by_library.setdefault(library, []).append(function)
    with contextlib.ExitStack() as stack:
        for library, functions in sorted(by_library.items()):
            stack.enter_context(patched(find_library(library), functions, ranks="ignore"))
        yield


@contextlib.contextmanager
def assigned(assignment: Assignment) -> Iterator[None]:
    """Compute every site with its library while entered.

    Raises:
        UdfError: as from opening sessions.
    """
    by_layer: dict[str, dict[str, str]] = {}
    for site, library in assignment.items():
        by_layer.setdefault(site.layer, {})[site.function] = library
    functions = _Functions({s.function for s in assignment})

    def chosen(layer: str, func: Any, args: Any, kwargs: Any) -> dict[str, str] | None:
        libraries = by_layer.get(layer, by_layer.get(EVERY, {}))
        evaluated = functions.of(func, args, kwargs)
        return {n: libraries[n] for n in evaluated if n in libraries} or None

    with follower.eager_only(), switched(chosen, sessions):
        yield
