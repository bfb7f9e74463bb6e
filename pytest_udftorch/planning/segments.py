# SPDX-License-Identifier: Apache-2.0
"""Cut a traced model into units, and take any run of units out as a module of its own.

A cut lies between two nodes where exactly one value is alive, so that one tensor crosses each
boundary. A unit is what lies between neighbouring cuts. A segment is one or more neighbouring
units, and a region of its own for a compiler.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from pytest_udftorch import compat
from pytest_udftorch.errors import UdfError
from pytest_udftorch.planning.fusion import UntraceableModelError, trace


class SegmentError(UdfError):
    """The model does not contain the segment that was asked for."""


class Units:
    """A traced model with its cuts.

    Args:
        model: traceable; its parameters are shared.
        inputs: example inputs, which the nodes are timed on; see ``limit``.
        limit: the most units. If there are more, those cuts are kept that divide the time of
            an eager pass most evenly.
        bounds: the cuts of a stored plan; without them, cuts are chosen.

    Raises:
        UntraceableModelError: FX cannot follow the model, or its trace does not run on the
            inputs, for instance because it took the branch of an input that is not given.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Sequence[Any],
        limit: int = 8,
        *,
        bounds: Sequence[int] | None = None,
    ) -> None:
        self.traced = trace(model)
        self._nodes: list[fx.Node] = list(self.traced.graph.nodes)
        self.body = [n for n in self._nodes if n.op not in ("placeholder", "get_attr", "output")]
        if bounds is not None:
            self.bounds = list(bounds)
            return
        try:
            weights = self._weights(inputs)
        except Exception as error:
            first = str(error).strip().splitlines() or ["no message"]
            raise UntraceableModelError(
                f"torch.fx's trace of {type(model).__name__} does not run on these inputs "
                f"({type(error).__name__}: {first[0][:300]}). A trace keeps one branch, and takes "
                "every input as given. Executors that need no trace can still run the model."
            ) from error
        places = self._choose(self._cuts(), [weights[n] for n in self.body], limit)
        self.bounds = [0, *places, len(self.body)]

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.bounds) - 1

    @property
    def names(self) -> list[str]:
        """Each unit's first and last node."""
        return [
            f"{self.body[a].name}..{self.body[b - 1].name}"
            for a, b in itertools.pairwise(self.bounds)
            if a < b  # a model that returns its input has no node
        ]

    @property
    def fingerprint(self) -> str:
        """Digest of the graph, the cuts, and the shapes of parameters and buffers."""
        digest = hashlib.sha256(self.traced.code.encode())
        digest.update(repr(self.bounds).encode())
        for name, value in sorted(self.traced.state_dict().items()):
            digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        return digest.hexdigest()

    def _weights(self, inputs: Sequence[Any]) -> dict[fx.Node, float]:
        """Return each node's weight: its time in the second of two eager passes, in ns."""
        weights: dict[fx.Node, float] = {}
        on_cuda = any(isinstance(t, torch.Tensor) and t.is_cuda for t in inputs)

        class Weigher(fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                before = time.perf_counter_ns()
                result = super().run_node(n)
                if on_cuda:
                    torch.cuda.synchronize()
                weights[n] = float(time.perf_counter_ns() - before)
                return result

        with torch.no_grad():
            for _ in range(2):
                Weigher(self.traced).run(*[_clone(t) for t in inputs])
        return weights

    def _belongs(self, before: fx.Node, after: fx.Node) -> bool:
        """Whether ``after`` is an epilogue of ``before``, and no cut should part the two."""

        def module(node: fx.Node) -> nn.Module | None:
            is_module = node.op == "call_module"
            return self.traced.get_submodule(str(node.target)) if is_module else None

        mine = module(after)
        if mine is None:
            # Sums, activations and reshapes called as functions; a concatenation may begin a unit.
            return after.target is not torch.cat
        norm, convolution, pooling = compat.layer_kinds()
        if isinstance(mine, norm):
            return isinstance(module(before), convolution)
        return not isinstance(mine, (convolution, nn.Linear, pooling))

    def _cuts(self) -> list[int]:
        """Return each k such that one value is alive between body[k - 1] and body[k]."""
        body, end = self.body, len(self.body)
        position = {n: k for k, n in enumerate(body)}
        last_use = {}
        for node in self._nodes:
            if node.op in ("get_attr", "output"):
                continue
            uses = [position.get(user, end) for user in node.users]
            last_use[node] = max(uses, default=-1)
        cuts = []
        for k in range(1, end):
            alive = [n for n, last in last_use.items() if position.get(n, -1) < k <= last]
            if alive == [body[k - 1]] and not self._belongs(body[k - 1], body[k]):
                cuts.append(k)
        return cuts

    @staticmethod
    def _choose(cuts: list[int], weights: list[float], limit: int) -> list[int]:
        """Keep at most ``limit - 1`` cuts, the nearest to equal shares of the weight."""
        if len(cuts) < limit:
            return cuts
        total = sum(weights)
        before = [sum(weights[:k]) for k in cuts]
        chosen: set[int] = set()
        for share in range(1, limit):
            target = total * share / limit
            chosen.add(min(range(len(cuts)), key=lambda i: abs(before[i] - target)))
        return [cuts[i] for i in sorted(chosen)]

    def segment(self, first: int, stop: int) -> fx.GraphModule:
        """Return units ``first`` to ``stop - 1`` as one module that shares the parameters.

        Raises:
            SegmentError: there are no such units.
        """
        if not 0 <= first < stop <= len(self):
            raise SegmentError(f"units {first} to {stop} of {len(self)}: give 0 <= first < stop.")
        nodes = self.body[self.bounds[first] : self.bounds[stop]]
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        if first == 0:
            for node in self._nodes:
                if node.op == "placeholder":
                    copies[node] = graph.node_copy(node)
        else:
            crossing = self.body[self.bounds[first] - 1]
            copies[crossing] = graph.placeholder(crossing.name)

        def lookup(node: fx.Node) -> fx.Node:
            if node not in copies and node.op == "get_attr":
                copies[node] = graph.node_copy(node)
            return copies[node]

        for node in nodes:
            copies[node] = graph.node_copy(node, lookup)
        if stop == len(self):
            output = next(n for n in self._nodes if n.op == "output")
            graph.output(fx.map_arg(output.args[0], lookup))
        else:
            graph.output(copies[nodes[-1]])
        graph.lint()
        return fx.GraphModule(self.traced, graph)

    def activations(self, inputs: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the inputs of each unit in one eager pass, as detached copies."""
        found: list[tuple[Any, ...]] = []
        values: tuple[Any, ...] = tuple(_clone(t) for t in inputs)
        with torch.no_grad():
            for unit in range(len(self)):
                found.append(tuple(_clone(t) for t in values))
                values = (self.segment(unit, unit + 1)(*values),)
        return found


def _clone(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
