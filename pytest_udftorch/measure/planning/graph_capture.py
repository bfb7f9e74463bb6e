# SPDX-License-Identifier: Apache-2.0
"""A model as one graph: FX's symbolic trace, or else what ``torch.export`` captures.

An exported graph holds ATen's operators. It belongs to the shapes, dtypes and flags that it was
made with, takes the leaves of the inputs, and returns the leaves of the result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from pytest_udftorch.base import compat
from pytest_udftorch.base.trees import tensors_in
from pytest_udftorch.errors import ExecutorError, UntraceableModelError
from pytest_udftorch.measure.planning.executor import quiet
from pytest_udftorch.measure.planning.fusion import refuse_hooks, trace

pytree: Any = compat.pytree()


@dataclass(frozen=True)
class Exported:
    """How an exported graph's leaves belong to the model's arguments and result.

    Attributes:
        given: the leaves of the inputs that the graph was made with: dtype and shape of a
            tensor, and the value of anything else.
        takes: structure of the positional arguments.
        returns: structure of the result.
    """

    given: tuple[Any, ...]
    takes: Any
    returns: Any

    def leaves(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the leaves of the model's inputs.

        Raises:
            ExecutorError: the graph was made for others.
        """
        leaves, structure = pytree.tree_flatten(inputs)
        found = tuple(map(_described, leaves))
        if structure != self.takes or found != self.given:
            raise ExecutorError(
                f"The units of this plan were exported for {', '.join(map(str, self.given))} and "
                f"are given {', '.join(map(str, found))}. Make a plan for these inputs too."
            )
        return tuple(leaves)

    def result(self, leaves: Sequence[Any]) -> Any:
        """Return the model's result."""
        return pytree.tree_unflatten(leaves, self.returns)


@dataclass(frozen=True)
class Captured:
    """A model as a graph module that shares its parameters.

    Attributes:
        graph: takes the model's positional arguments, or if it is exported their leaves.
        weights: each node's time in the second of two eager passes, in ns.
        tensors: the nodes whose result is a tensor.
        exported: None for a symbolic trace.
    """

    graph: fx.GraphModule
    weights: dict[fx.Node, float]
    tensors: frozenset[fx.Node]
    exported: Exported | None = None


def capture_graph(model: nn.Module, inputs: Sequence[Any]) -> Captured:
    """Return the model as a graph that has run on copies of the inputs.

    Raises:
        UntraceableModelError: the model has hooks; or FX cannot follow it, or its trace does not
            run on the inputs, and ``torch.export`` cannot capture it either.
    """
    if not isinstance(model, fx.GraphModule):
        refuse_hooks(model)
    given = tuple(inputs)
    try:
        traced = trace(model)
        return Captured(traced, *_timed(traced, given, f"torch.fx's trace of {_name(model)}"))
    except UntraceableModelError as error:
        reasons = []
        # Export follows Python itself; in strict mode Dynamo does, which takes other code.
        for strict in (False, True):
            try:
                graph, exported = _export(model, given, strict)
            except Exception as failure:
                reasons.append(f"{'in strict mode ' if strict else ''}{_first_line(failure)}")
                continue
            what = f"the exported graph of {_name(model)}"
            return Captured(graph, *_timed(graph, exported.leaves(given), what), exported)
        raise UntraceableModelError(
            f"{error} Neither can torch.export capture it: {'; '.join(reasons)}"
        ) from error


def _export(
    model: nn.Module, inputs: tuple[Any, ...], strict: bool
) -> tuple[fx.GraphModule, Exported]:
    with quiet(), torch.no_grad():
        program = torch.export.export(model, inputs, strict=strict)
        # ``Exported.leaves`` checks what the guards would.
        module = program.module(check_guards=False)
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in list(graph.nodes):
        # The notes hold the exporter's fake tensors.
        node.meta.clear()
        # These checks of dtypes follow from those of the inputs.
        if str(node.target).startswith("aten._assert_tensor_metadata"):
            graph.erase_node(node)
    leaves, takes = pytree.tree_flatten(inputs)
    given = tuple(map(_described, leaves))
    return fx.GraphModule(module, graph), Exported(given, takes, program.call_spec.out_spec)


def _timed(
    graph: fx.GraphModule, inputs: tuple[Any, ...], what: str
) -> tuple[dict[fx.Node, float], frozenset[fx.Node]]:
    """Return ``weights`` and ``tensors`` of :class:`Captured`."""
    weights: dict[fx.Node, float] = {}
    tensors: set[fx.Node] = set()
    on_cuda = any(t.is_cuda for t in tensors_in(inputs))

    class Weigher(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            before = time.perf_counter_ns()
            result = super().run_node(n)
            if on_cuda:
                torch.cuda.synchronize()
            weights[n] = float(time.perf_counter_ns() - before)
            if isinstance(result, torch.Tensor):
                tensors.add(n)
            return result

    try:
        with torch.no_grad():
            for _ in range(2):
                Weigher(graph).run(*[clone(t) for t in inputs])
    except Exception as error:
        raise UntraceableModelError(
            f"{what} does not run on these inputs ({_first_line(error)}). A trace keeps one "
            "branch, and takes every input as given. Executors that need no trace can still run "
            "the model."
        ) from error
    return weights, frozenset(tensors)


def clone(value: Any) -> Any:
    """Return a detached copy of a tensor; anything else unchanged."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _described(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"


def _name(model: nn.Module) -> str:
    return type(model).__name__


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0][:300]}"
