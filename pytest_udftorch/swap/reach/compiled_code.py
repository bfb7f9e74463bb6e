# SPDX-License-Identifier: Apache-2.0
"""What torch.compile generates in a run: the operators that it computes itself, and its kernels.

Inductor gets graphs of ATen operators. Some of them it leaves to the dispatcher, where the recorder
of ``counted`` sees them when the graph runs. For the others it generates code. Each of these that
evaluates a function is compiled again, as an operator that is the whole of a graph, under the
session that judges it; and the shared objects of the run's own fused kernels say which functions
they still call.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.swap.compiled.follower import follower
from pytest_udftorch.swap.native.runtime import runtime
from pytest_udftorch.swap.observe.recording import strided_copy
from pytest_udftorch.swap.operators import definitions
from pytest_udftorch.swap.operators.overload import is_view, name_of
from pytest_udftorch.swap.session.binder import binder

#: An operator's name, and the shapes and dtypes of its tensors.
_Key = tuple[Any, ...]

#: The symbol of libm's joint call stands for two functions.
_JOINT: Final = {"sincos": ("sin", "cos")}


def _tensors(value: Any) -> list[Any]:
    import torch

    return [t for t in compat.pytree().tree_leaves(value) if isinstance(t, torch.Tensor)]


def key_of(operator: Any, args: Any, kwargs: Any) -> _Key:
    """Return what a call through the dispatcher and its node in a graph have in common.

    The dispatcher may see the overload with ``out=``.
    """
    read = {name: value for name, value in kwargs.items() if name != "out"}
    shapes = tuple((tuple(t.shape), str(t.dtype)) for t in _tensors((args, read)))
    return (name_of(operator), shapes)


@dataclass
class Graph:
    """A graph that was compiled.

    Attributes:
        module: the graph as Inductor got it.
        kernels: the shared objects of its kernels; empty where they are not C++.
        inputs: copies of what its first recorded call got.
        calls: how often it was called.
        left: what its calls left to the dispatcher.
    """

    module: Any
    kernels: tuple[Path, ...] = ()
    inputs: list[Any] | None = None
    calls: int = 0
    left: set[_Key] = field(default_factory=set)


class Graphs:
    """The graphs that are compiled while it watches, and what they leave to the dispatcher."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        #: Whether calls count.
        self.recording = False
        self._running: list[Graph] = []

    def add(self, module: Any, kernels: Sequence[Path], compiled: Any) -> None:
        """Take a compiled graph, and look at its calls from now on."""
        graph = Graph(module, tuple(kernels))
        self.graphs.append(graph)

        def watched(call: Callable[[Any], Any], inputs: Any) -> Any:
            if not self.recording:
                return call(inputs)
            if graph.inputs is None:
                with compat.no_modes():
                    graph.inputs = [strided_copy(value) for value in inputs]
            graph.calls += 1
            self._running.append(graph)
            try:
                return call(inputs)
            finally:
                self._running.pop()

        compat.around_calls(compiled, watched)

    def left(self, operator: Any, args: Any, kwargs: Any) -> None:
        """Take a call that the recorder saw."""
        if self._running:
            self._running[-1].left.add(key_of(operator, args, kwargs))


@contextlib.contextmanager
def watching() -> Iterator[Graphs]:
    """Watch the graphs that Inductor compiles; results of its caches are watched, too."""
    found = Graphs()

    def around(compile_graph: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        kept = compat.copied_graph(module)  # Inductor changes its own
        before = len(compat.inductor_modules())
        made = compile_graph(module, *args, **kwargs)
        if compat.is_generated(made):
            found.add(kept, _kernels(compat.inductor_modules()[before:]), made)
        return made

    with compat.around_compiled_graphs(around):
        yield found


def _kernels(modules: Sequence[Any]) -> list[Path]:
    """Return the shared objects of the kernels in modules of generated code."""
    owners = (getattr(v, "__self__", None) for m in modules for v in vars(m).values())
    files = (getattr(owner, "__file__", None) for owner in owners)
    return [Path(f) for f in dict.fromkeys(files) if f and f.endswith(".so") and "_fused" not in f]


@functools.cache
def called_by(kernel: Path) -> dict[str, frozenset[str]]:
    """Return float32 function -> the stock symbols through which a shared object calls it."""
    symbols = binder().symbols
    _, slots = runtime().find_in_file(kernel, list(symbols))
    found: dict[str, set[str]] = {}
    for name in {slot.symbol for slot in slots}:
        if symbols[name].dtype == "float32":
            for function in _JOINT.get(symbols[name].function, (symbols[name].function,)):
                found.setdefault(function, set()).add(name)
    return {function: frozenset(names) for function, names in found.items()}


@dataclass
class Generated:
    """An operator of a graph that Inductor generates code for.

    Attributes:
        operator: the overload.
        args: its arguments.
        kwargs: likewise.
        counts: the functions that it evaluates.
        unknown: operators in it whose definition is not known.
        times: how often the run computes it.
        repeat: computes it by generated code under the open sessions, from other arguments.
        stock: function -> the stock symbols through which the run's own kernels call it.
    """

    operator: Any
    args: Any
    kwargs: Any
    counts: definitions.Counts
    unknown: list[str]
    times: int
    repeat: Callable[[Any, Any], Any]
    stock: dict[str, frozenset[str]]


class _Together:
    """Operators that are compiled as one graph, once for each set of active functions."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any]] = []
        self._made: dict[tuple[str, ...], Callable[..., Any]] = {}
        #: How many tensors each operator makes.
        self._sizes: list[int] = []

    def add(self, operator: Any, args: Any, kwargs: Any) -> Callable[[Any, Any], Any]:
        """Add an operator; return what computes it."""
        self.calls.append((operator, args, kwargs))
        return functools.partial(self._result, len(self.calls) - 1)

    def _result(self, place: int, args: Any, kwargs: Any) -> Any:
        given = [_tensors((a, k)) for _, a, k in self.calls]
        given[place] = _tensors((args, kwargs))
        tensors = [t for some in given for t in some]
        key = follower.active.key
        if key not in self._made:
            self._made[key] = compat.inductor_compiled(self._compute, tensors)
        results = self._made[key](*tensors)
        start = sum(self._sizes[:place])
        return list(results[start : start + self._sizes[place]])

    def _compute(self, *tensors: Any) -> Any:
        """Compute all operators; return their results."""
        import torch

        left, tree = iter(tensors), compat.pytree()
        results, self._sizes = [], []
        for operator, args, kwargs in self.calls:
            leaves, structure = tree.tree_flatten((args, kwargs))
            mine = [next(left) if isinstance(v, torch.Tensor) else v for v in leaves]
            args, kwargs = tree.tree_unflatten(mine, structure)
            made = _tensors(operator(*args, **kwargs))
            results += made
            self._sizes.append(len(made))
        return tuple(results)


def generated(graphs: Graphs) -> Iterator[Generated]:
    """Yield the operators of graphs that were called, without those left to the dispatcher."""
    groups: dict[tuple[tuple[str, ...], ...], _Together] = {}
    for graph in graphs.graphs:
        if graph.inputs is None:
            continue
        stock: dict[str, frozenset[str]] = {}
        for kernel in graph.kernels:
            for function, names in called_by(kernel).items():
                stock[function] = stock.get(function, frozenset()) | names
        for operator, args, kwargs in compat.graph_calls(graph.module, graph.inputs):
            if key_of(operator, args, kwargs) in graph.left or is_view(operator):
                continue
            counts, unknown = definitions.evaluations(operator, args, kwargs)
            if not counts and not unknown:
                continue
            kind = tuple(family for family, _ in definitions.families(counts))
            repeat = groups.setdefault(kind, _Together()).add(operator, args, kwargs)
            yield Generated(operator, args, kwargs, counts, unknown, graph.calls, repeat, stock)
