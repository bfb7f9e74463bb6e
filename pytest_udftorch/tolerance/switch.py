# SPDX-License-Identifier: Apache-2.0
"""Give the functions of every layer another library, and count what the layers evaluate.

Below autograd every operator passes by on its way to the kernel. Before one that evaluates a
function whose library changes there, sessions open over the one that is open anyway.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pytest_udftorch import compat
from pytest_udftorch.compiled.follower import follower
from pytest_udftorch.diff.layers import Place, Whereabouts
from pytest_udftorch.library.description import find_library
from pytest_udftorch.reach.definitions import evaluations, is_view
from pytest_udftorch.session.session import patched


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


#: The layer of a site that stands for all layers.
EVERY = "every layer"

#: Site -> the name of the library that computes it.
Assignment = Mapping[Site, str]


def layer_of(place: Place) -> str:
    """Return the layer of an operator; outside of modules, what runs instead."""
    return place.layer or (place.phase if place.phase == "optimizer" else "no module")


def _mode(call: Callable[[Place, Any, Any, Any], Any], where: Whereabouts) -> Any:
    class Watch(compat.dispatch_mode()):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return call(where.now(), func, args, kwargs or {})

    return Watch()


class _Functions:
    """The functions that operators evaluate, by definition, looked up once for each shape."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._known: dict[Any, dict[str, int]] = {}

    def of(self, func: Any, args: Any, kwargs: Any) -> dict[str, int]:
        """Return function -> evaluations of a call."""
        import torch

        if is_view(func):
            return {}
        leaves = compat.pytree().tree_leaves((args, kwargs))
        key = (func, *(tuple(v.shape) if isinstance(v, torch.Tensor) else repr(v) for v in leaves))
        if key not in self._known:
            counts, _ = evaluations(func, args, kwargs)
            self._known[key] = {n: int(c) for n, c in counts.items() if n in self._names and c}
        return self._known[key]


@contextlib.contextmanager
def counting(names: Collection[str]) -> Iterator[dict[Site, int]]:
    """Count evaluations by function and layer while entered."""
    found: dict[Site, int] = {}
    functions = _Functions(names)

    def call(place: Place, func: Any, args: Any, kwargs: Any) -> Any:
        for name, count in functions.of(func, args, kwargs).items():
            site = Site(name, layer_of(place))
            found[site] = found.get(site, 0) + count
        return func(*args, **kwargs)

    where = Whereabouts()
    with where, _mode(call, where):
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
    now: dict[str, str] = {}
    where = Whereabouts()
    with contextlib.ExitStack() as open_now, follower.eager_only():

        def call(place: Place, func: Any, args: Any, kwargs: Any) -> Any:
            layer = by_layer.get(layer_of(place), by_layer.get(EVERY, {}))
            wanted = {n: layer[n] for n in functions.of(func, args, kwargs) if n in layer}
            # An operator that evaluates none of them does not care which sessions are open.
            if wanted and wanted != now:
                open_now.close()
                now.clear()
                open_now.enter_context(sessions(wanted))
                now.update(wanted)
            return func(*args, **kwargs)

        with where, _mode(call, where):
            yield
        open_now.close()
