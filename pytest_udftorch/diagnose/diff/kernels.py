# SPDX-License-Identifier: Apache-2.0
"""What the kernels of a compiled run take and give, as calls of a recording.

Inductor's generated code calls its own C++ kernels, kernels of libraries (``extern_kernels``) and
operators of ATen. The first are watched where the generated module holds them, the others by the
recorder of operators, which runs inside each compiled graph. Inductor tells which nodes of the
graph a kernel was made of, and these know their operators and layers.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.diagnose.runs.sides import Side
from pytest_udftorch.diagnose.runs.work import Work, run
from pytest_udftorch.errors import RunError
from pytest_udftorch.swap.observe.digests import TensorNote, note_of
from pytest_udftorch.swap.observe.layers import Place
from pytest_udftorch.swap.observe.recorder import (
    KERNELS,
    Call,
    Kept,
    Recording,
    Wanted,
    put_into,
    recorder,
)
from pytest_udftorch.swap.observe.recording import strided_copy

#: The name of the call that is a graph as a whole.
GRAPH: Final = f"{KERNELS}graph"

#: The backend whose kernels are seen.
BACKEND: Final = "inductor"

_KERNEL: Final = re.compile(r"^(\w+) = async_compile\.cpp_pybinding\((\[.*?\]), ", re.MULTILINE)
_ROOT: Final = re.compile(r"^L\['\w+'\]\.?")
_ITEM: Final = re.compile(r"\._modules\['([^']+)'\]")


def of_compiled(recording: Recording) -> bool:
    """Tell whether a recording holds kernels of compiled code."""
    return any(c.operator.startswith(KERNELS) for c in recording.calls)


@dataclass
class _Origin:
    """What a kernel was made of.

    Attributes:
        layers: whose operators it computes, in the graph's order.
        operators: as the model calls them.
    """

    layers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass
class _Graph:
    """A compiled graph.

    Attributes:
        title: ``graph 0, forward``.
        phase: forward or backward.
        origins: kernel -> what each of its calls in the graph was made of, in order.
        calls: of the kernels since the graph began, by name.
    """

    title: str
    phase: str
    origins: Mapping[str, Sequence[_Origin]]
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def next(self, kernel: str) -> _Origin:
        """Return what the next call of a kernel was made of."""
        known, at = self.origins.get(kernel, ()), self.calls[kernel]
        self.calls[kernel] += 1
        return known[min(at, len(known) - 1)] if known else _Origin()


def _layer(node: Any) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    if not stack:
        return ""
    path, kind = list(stack.values())[-1]
    kind = kind if isinstance(kind, str) else kind.__name__
    return _ROOT.sub("", _ITEM.sub(r".\1", path)) or kind.rpartition(".")[2]


def _origin(nodes: Sequence[Any]) -> _Origin:
    names = [node.meta.get("original_aten") for node in nodes]
    operators = [str(n.name()) for n in names if hasattr(n, "name")]
    layers = filter(None, map(_layer, nodes))
    return _Origin(tuple(dict.fromkeys(layers)), tuple(dict.fromkeys(operators)))


class _Watch:
    """Records the kernels of the graphs that are compiled while it is entered."""

    def __init__(self, hashed: str, wanted: Wanted) -> None:
        self._steps = 0
        self._place = Place("", "forward", 0)
        self._origins: dict[str, list[_Origin]] = defaultdict(list)
        self._defined: set[int] = set()
        self._mode = recorder(self, wanted, None, hashed, native=False)
        self._wanted = wanted
        self._graphs: dict[Any, int] = {}
        self.recording: Recording = self._mode.recording
        self._hashed = hashed

    # What the recorder of operators asks for.

    def now(self) -> Place:
        """Return where the operator that is being called belongs."""
        return self._place

    def tell(self, listener: Any) -> None:
        """Nobody else has to know."""

    def place(self, layer: int, phase: int, step: int) -> Place:
        """No recorder knows places by numbers here."""
        raise NotImplementedError

    # Compiling.

    @contextlib.contextmanager
    def entered(self) -> Iterator[_Watch]:
        """Watch what is compiled, and what that computes."""
        from torch.optim import optimizer

        def stepped(*_: Any) -> None:
            self._steps += 1

        handle = optimizer.register_optimizer_step_post_hook(stepped)
        with (
            compat.around_generated_kernels(self._made),
            compat.around_compiled_graphs(self._graph),
        ):
            try:
                yield self
            finally:
                handle.remove()

    def _made(self, kernel: str, nodes: Sequence[Any]) -> None:
        self._origins[kernel].append(_origin(nodes))

    def _graph(self, compile_graph: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before, outer = len(compat.inductor_modules()), self._origins
        self._origins = defaultdict(list)
        try:
            made = compile_graph(*args, **kwargs)
        finally:
            origins, self._origins = self._origins, outer
        if not compat.is_generated(made):
            return made
        phase = "backward" if kwargs.get("is_backward") else "forward"
        number = self._graphs.setdefault(kwargs.get("graph_id"), len(self._graphs))
        graph = _Graph(f"graph {number}, {phase}", phase, origins)
        for module in compat.inductor_modules()[before:]:
            self._watch(module, graph)
        compat.around_calls(made, partial(self._called, graph))
        return made

    def _watch(self, module: Any, graph: _Graph) -> None:
        """Put what notes its arguments in the place of everything that a module computes with."""
        names = vars(module)
        source = compat.source_of(module)
        for name, types in _KERNEL.findall(source):
            if name in names:
                constant = ["const" in kind for kind in ast.literal_eval(types)]
                names[name] = partial(self._kernel, names[name], graph, name, constant)
        if "extern_kernels" in names:
            names["extern_kernels"] = _Extern(names["extern_kernels"], partial(self._extern, graph))
        for name in [n for n in names if n.startswith("empty_strided_")]:
            names[name] = partial(self._empty, names[name])

    # Running.

    def _called(self, graph: _Graph, call: Callable[[Any], Any], inputs: Any) -> Any:
        tensors = _tensors(inputs)
        notes = self._notes(tensors)
        self._defined = {t.data_ptr() for t in tensors}
        graph.calls.clear()
        before, self._place = self._place, Place("", graph.phase, self._steps)
        self._mode.digests.forget()
        try:
            with self._mode:
                returned = call(inputs)
            self._append(GRAPH, notes, self._notes(_tensors(returned)), graph.title)
        finally:
            self._place = before
        return returned

    def _kernel(
        self, kernel: Any, graph: _Graph, name: str, constant: Sequence[bool], *args: Any
    ) -> Any:
        origin = graph.next(name)
        pairs = list(zip(args, constant, strict=False))
        # What lies in memory that nothing wrote yet is no input.
        inputs = [t for t, c in pairs if _is_tensor(t) and (c or t.data_ptr() in self._defined)]
        outputs = [t for t, c in pairs if _is_tensor(t) and not c]
        notes, copies = self._notes(inputs), self._copies(inputs)
        returned = kernel(*args)
        self._defined |= {t.data_ptr() for t in outputs}
        for tensor in outputs:
            self._mode.digests.wrote(tensor)
        with self._in(origin, graph):
            text = f"{graph.title}: {', '.join(origin.operators)}"
            self._exchanged(f"{KERNELS}{name}", copies, outputs)
            self._append(f"{KERNELS}{name}", notes, self._notes(outputs), text)
        return returned

    def _copies(self, tensors: Sequence[Any]) -> list[Any] | None:
        """Return copies of what the next call gets, if its values are kept."""
        if len(self.recording.calls) not in self._wanted.keep:
            return None
        with compat.no_modes():
            return [strided_copy(t) for t in tensors]

    def _exchanged(self, name: str, copies: list[Any] | None, outputs: Sequence[Any]) -> None:
        """Keep what a kernel gave, and put what another run gave in its place."""
        at = len(self.recording.calls)
        with compat.no_modes():
            if copies is not None:
                own = [strided_copy(t) for t in outputs]
                self.recording.kept[at] = Kept(name, tuple(copies), {}, own)
            for target, value in zip(outputs, self._wanted.put.get(at, outputs), strict=True):
                if target is not value:
                    put_into(target, value, None)
                    self._mode.digests.wrote(target)

    def _extern(self, graph: _Graph, name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        with self._in(graph.next(f"extern_kernels.{name}"), graph):
            returned = function(*args, **kwargs)
        self._defined |= {t.data_ptr() for t in _tensors((kwargs.get("out"), returned))}
        return returned

    def _empty(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        self._defined.discard(made.data_ptr())
        return made

    @contextlib.contextmanager
    def _in(self, origin: _Origin, graph: _Graph) -> Iterator[None]:
        before = self._place
        self._place = Place(" + ".join(origin.layers), graph.phase, self._steps)
        try:
            yield
        finally:
            self._place = before

    def _notes(self, tensors: Sequence[Any]) -> tuple[TensorNote, ...]:
        with compat.no_modes():
            return tuple(note_of(t, None, self._hashed) for t in tensors)

    def _append(
        self, name: str, inputs: tuple[TensorNote, ...], outputs: tuple[TensorNote, ...], text: str
    ) -> None:
        self.recording.calls.append(Call(name, self._place, inputs, outputs, text))


class _Extern:
    """Calls of a namespace of functions, each of which goes through another."""

    def __init__(self, functions: Any, around: Callable[..., Any]) -> None:
        self._functions, self._around = functions, around

    def __getattr__(self, name: str) -> Any:
        return partial(self._around, name, getattr(self._functions, name))


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _tensors(values: Any) -> list[Any]:
    return [t for t in compat.pytree().tree_leaves(values) if _is_tensor(t)]


def run_with_kernels(work: Work, one: Side, wanted: Wanted | None = None) -> Recording:
    """Run a compiled side once and record what its kernels take and give.

    A kernel's values are kept, and others put in their place, as an operator's; those of a whole
    graph are not. Nothing is taken from caches of compiled code, and those of this process are
    emptied.

    Raises:
        RunError: the run fails, or nothing of it is compiled.
        PrivateNameError: this torch's Inductor lacks a name that is needed.
    """
    import torch

    torch.compiler.reset()
    try:
        with compat.without_graph_cache():
            watch = _Watch(work.hashed, wanted or Wanted())
            with watch.entered():
                found = run(work, one)
    except RunError as error:
        if error.recording is not None:
            error.recording.calls = watch.recording.calls
            error.recording.kept = watch.recording.kept
        raise
    finally:
        torch.compiler.reset()
    found.calls, found.kept = watch.recording.calls, watch.recording.kept
    if not of_compiled(found):
        raise RunError(
            f"Inductor compiled no graph in the run of {one.name!r}, so it has no kernels to see: "
            "Dynamo could capture nothing, or what it captured computes nothing. "
            "TORCH_LOGS=graph_breaks says why. Record an eager side."
        )
    return found
