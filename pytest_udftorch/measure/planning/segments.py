# SPDX-License-Identifier: Apache-2.0
"""Cut a captured model into units, and take any run of units out as a module of its own.

A cut lies between two nodes where exactly one value is alive, so that one tensor crosses each
boundary. In an exported graph one *activation* is alive there, and what depends on no parameter
(a mask) or is already an output crosses beside it. A unit is what lies between neighbouring cuts.
A segment is one or more neighbouring units, and a region of its own for a compiler.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import fx, nn

from pytest_udftorch.base import compat
from pytest_udftorch.errors import PlanError
from pytest_udftorch.measure.planning.graph_capture import capture_graph, clone

#: Operators of an exported graph that a unit may begin with. At least one of the first lies
#: between the start of a residual block and its sum.
_PRODUCTS: Final = frozenset(
    {
        *(f"aten.conv{n}d" for n in (1, 2, 3)),
        *(f"aten.conv_transpose{n}d" for n in (1, 2, 3)),
        *(f"aten.{name}" for name in ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm")),
        *("aten.einsum", "aten.convolution", "aten.scaled_dot_product_attention"),
    }
)
_OTHER_BEGINNINGS: Final = frozenset(
    {"aten.cat", "aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d"}
)


def _place(node: fx.Node) -> str:
    """Return the layer that a node is or lies in, or the function that it calls outside of any."""
    if node.op == "call_module":
        return str(node.target)
    stack = list(node.meta.get("nn_module_stack", {}).values())
    inside = str(stack[-1][0]) if stack else ""
    function = node.name.rstrip("_0123456789")
    return inside.removeprefix("L['self'].") or f"{function}()"


class Units:
    """A captured model with its cuts.

    Args:
        model: can be captured; its parameters are shared.
        inputs: example inputs, which the nodes are timed on; see ``limit``.
        limit: the most units. If there are more, those cuts are kept that divide the time of
            an eager pass most evenly.
        bounds: the cuts of a stored plan; without them, cuts are chosen.

    Raises:
        UntraceableModelError: the model cannot be captured; see ``captured``.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Sequence[Any],
        limit: int = 8,
        *,
        bounds: Sequence[int] | None = None,
    ) -> None:
        captured = capture_graph(model, inputs)
        self.traced, self.exported = captured.graph, captured.exported
        self._nodes: list[fx.Node] = list(self.traced.graph.nodes)
        self.body = [n for n in self._nodes if n.op not in ("placeholder", "get_attr", "output")]
        self._position = {n: k for k, n in enumerate(self.body)}
        self._last_use = {
            node: max((self._position.get(user, len(self.body)) for user in node.users), default=-1)
            for node in self._nodes
            if node.op not in ("get_attr", "output")
        }
        if bounds is not None:
            self.bounds = list(bounds)
            return
        cuts = self._cuts() if self.exported is None else self._exported_cuts(captured.tensors)
        places = self._choose(cuts, [captured.weights[n] for n in self.body], limit)
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
    def layers(self) -> list[list[str]]:
        """Each unit's first and last layer, as the model names it, or the function called."""
        return [
            [_place(self.body[a]), _place(self.body[b - 1])]
            for a, b in itertools.pairwise(self.bounds)
            if a < b
        ]

    @property
    def fingerprint(self) -> str:
        """Digest of the graph, the cuts, and the shapes of parameters and buffers."""
        digest = hashlib.sha256(self.traced.code.encode())
        digest.update(repr(self.bounds).encode())
        for name, value in sorted(self.traced.state_dict().items()):
            digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        return digest.hexdigest()

    def _alive(self, k: int) -> list[fx.Node]:
        """Return the values made before ``body[k]`` and used there or later."""
        place = self._position
        return [n for n, last in self._last_use.items() if place.get(n, -1) < k <= last]

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
        body = self.body
        return [
            k
            for k in range(1, len(body))
            if self._alive(k) == [body[k - 1]] and not self._belongs(body[k - 1], body[k])
        ]

    def _exported_cuts(self, tensors: frozenset[fx.Node]) -> list[int]:
        """Return each k such that one activation is alive between body[k - 1] and body[k].

        An activation depends on a parameter, and something other than the result still uses it.
        All else may cross too: inputs, masks and tables of positions, and finished outputs.
        """
        parameters = {name for name, _ in self.traced.named_parameters(remove_duplicate=False)}
        last_work: dict[fx.Node, int] = {}
        for node in self._nodes:
            given = node.op == "get_attr" and str(node.target) in parameters
            if given or any(source in last_work for source in node.all_input_nodes):
                users = (self._position.get(user, -1) for user in node.users)
                last_work[node] = max(users, default=-1)
        cuts: dict[fx.Node, int] = {}
        for k in range(1, len(self.body)):
            alive = self._alive(k)
            active = [n for n in alive if last_work.get(n, -1) >= k]
            if len(active) == 1 and tensors.issuperset(alive):
                value = active[0]
                if self._begins(k, last_work[value]):
                    # Masks that are made between two layers belong to the first.
                    cuts[value] = k
        return list(cuts.values())

    def _begins(self, k: int, last: int) -> bool:
        """Whether a layer begins at ``body[k]``, or a residual block that ends at ``body[last]``.

        Norms and activations written out as arithmetic thus stay with the layer before them.
        """
        if _operator(self.body[k]) in _PRODUCTS | _OTHER_BEGINNINGS:
            return True
        return any(_operator(n) in _PRODUCTS for n in self.body[k:last])

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
            PlanError: there are no such units.
        """
        if not 0 <= first < stop <= len(self):
            raise PlanError(f"units {first} to {stop} of {len(self)}: give 0 <= first < stop.")
        nodes = self.body[self.bounds[first] : self.bounds[stop]]
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        if first == 0:
            for node in self._nodes:
                if node.op == "placeholder":
                    copies[node] = graph.node_copy(node)
        else:
            for node in self._alive(self.bounds[first]):
                copies[node] = graph.placeholder(node.name)

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
            leaving = tuple(copies[node] for node in self._alive(self.bounds[stop]))
            graph.output(leaving if self.several(stop) else leaving[0])
        graph.lint()
        return fx.GraphModule(self.traced, graph)

    def several(self, unit: int) -> bool:
        """Whether several values cross from the unit before into this one, as a tuple."""
        return len(self._alive(self.bounds[unit])) != 1

    def step(self, call: Callable[..., Any], first: int, stop: int) -> Callable[..., Any]:
        """Return a segment's callable as a link of a chain.

        The first link takes the model's inputs, the others what the link before returns, and the
        last one returns the model's result.
        """
        begins = self.exported if first == 0 else None
        ends = self.exported if stop == len(self) else None
        spreads = first > 0 and self.several(first)
        if begins is None and ends is None and not spreads:
            return call

        def run(*values: Any) -> Any:
            if begins is not None:
                values = begins.leaves(values)
            elif spreads:
                values = values[0]
            result = call(*values)
            return result if ends is None else ends.result(result)

        return run

    def activations(self, inputs: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the arguments of each unit in one eager pass, as detached copies."""
        found: list[tuple[Any, ...]] = []
        values = tuple(inputs) if self.exported is None else self.exported.leaves(tuple(inputs))
        values = tuple(clone(t) for t in values)
        with torch.no_grad():
            for unit in range(len(self)):
                found.append(tuple(clone(t) for t in values))
                result = self.segment(unit, unit + 1)(*values)
                values = result if unit + 1 < len(self) and self.several(unit + 1) else (result,)
        return found


def _operator(node: fx.Node) -> str:
    """Return the name of a node's operator without its overload, ``aten.add`` for instance."""
    return str(node.target).rpartition(".")[0]
