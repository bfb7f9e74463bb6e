# SPDX-License-Identifier: Apache-2.0
"""Graphs of ATen operators: what their nodes are, what they cost, and how they are changed."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

import torch
from torch import fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pytest_udftorch.base import compat

aten: Final[Any] = torch.ops.aten
pytree: Any = compat.pytree()


def packet_name(node: fx.Node) -> str:
    """Return an ATen operator's name without its overload, or ""."""
    target: Any = node.target
    if _is_operator(target) and target.namespace == "aten":
        return str(target.overloadpacket.__name__)
    return ""


def _is_operator(target: Any) -> bool:
    return hasattr(target, "overloadpacket") and hasattr(target, "namespace")


def calls(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes that call something."""
    return [n for n in graph.nodes if n.op == "call_function"]


def value(node: fx.Node) -> Any:
    """Return the fake tensor of a node, or the list of those of several results."""
    return node.meta.get("val")


def tensors(node: fx.Node) -> list[Any]:
    """Return the fake tensors of a node's results."""
    return [v for v in pytree.tree_leaves(value(node)) if isinstance(v, torch.Tensor)]


def is_view(node: fx.Node) -> bool:
    """Whether a node computes nothing: its results are views, or parts, of its arguments."""
    if node.target is operator.getitem:
        return True
    target: Any = node.target
    if not packet_name(node):
        return False
    if packet_name(node) == "_unsafe_view":  # whose schema does not say so
        return True
    returns = compat.overload_schema(target).returns
    return bool(returns) and all(r.alias_info is not None for r in returns)


def why_opaque(node: fx.Node) -> str | None:
    """Return why nothing is known of what a node does, or None."""
    target: Any = node.target
    if target is operator.getitem:
        return None
    if not _is_operator(target):
        return f"{target} is no operator of a library"
    if target.namespace not in ("aten", "prims"):
        return f"{target} is a custom operator, whose effects are not known"
    if compat.overload_schema(target).is_mutable:
        return f"{target} writes into a tensor"
    return None


def draws(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def own_numbers(inputs: Iterable[Any]) -> contextlib.AbstractContextManager[None]:
    """Return a context that leaves the random numbers of the inputs' devices as they were."""
    on_gpu = {t.device for t in inputs if isinstance(t, torch.Tensor) and t.is_cuda}
    return torch.random.fork_rng(sorted(d.index or 0 for d in on_gpu))


def base_of(node: fx.Node) -> fx.Node:
    """Return the node whose memory a node's result lies in."""
    while node.op == "call_function" and is_view(node) and node.all_input_nodes:
        source = node.all_input_nodes[0]
        if _is_separate(source):
            break
        node = source
    return node


def _is_separate(node: fx.Node) -> bool:
    """Whether a node is a kernel that returns a tuple of tensors, each in memory of its own."""
    return bool(getattr(node.target, "separate", False))


def results(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that stand for the tensors which a kernel writes."""
    return list(node.users) if _is_separate(node) else [node]


def outputs(graph: fx.Graph) -> list[Any]:
    """Return what a graph returns, flat: nodes, and constants."""
    (end,) = (n for n in graph.nodes if n.op == "output")
    return list(pytree.tree_leaves(end.args))


def depends(node: fx.Node, on: Collection[fx.Node]) -> bool:
    """Whether a node is one of others, or computed from one."""
    waiting, seen = [node], {node}
    while waiting:
        new = waiting.pop()
        if new in on:
            return True
        more = [n for n in new.all_input_nodes if n not in seen]
        seen.update(more)
        waiting += more
    return False


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes of the inputs."""
    return [n for n in graph.nodes if n.op == "placeholder"]


class _Propagation(FakeTensorProp):
    """Runs a graph on fake tensors; tensors that the graph itself holds become fake ones, too."""

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        held = super().get_attr(target, args, kwargs)
        real = isinstance(held, torch.Tensor) and not hasattr(held, "fake_mode")
        return self._mode.from_tensor(held) if real else held


def propagate(module: fx.GraphModule) -> None:
    """Write the fake tensors of all nodes anew, from those of the inputs."""
    given = [value(n) for n in placeholders(module.graph)]
    modes = [v.fake_mode for v in given if hasattr(v, "fake_mode")]
    with torch.no_grad():
        prop = _Propagation(module, modes[0]) if modes else _Propagation(module)
        prop.propagate_dont_convert_inputs(*given)


def constant_nodes(graph: fx.Graph, held: Iterable[int]) -> set[fx.Node]:
    """Return the nodes that depend on nothing but inputs that keep their values.

    Args:
        graph: the graph.
        held: the numbers of these inputs.
    """
    given = placeholders(graph)
    found = {given[number] for number in held}
    for node in graph.nodes:
        if node.op == "get_attr":  # a tensor that the graph itself holds
            found.add(node)
        inputs = node.all_input_nodes
        pure = node.op == "call_function" and why_opaque(node) is None and not draws(node)
        if pure and all(n in found for n in inputs):
            found.add(node)
    return found


def split_constants(
    module: fx.GraphModule, held: Iterable[int]
) -> tuple[fx.GraphModule, fx.GraphModule, int] | None:
    """Take apart what depends on constant inputs alone.

    Returns:
        A graph of all inputs that gives the constants, a graph of constants and inputs that gives
        the rest, and the number of constants; or None if nothing can be computed beforehand.
    """
    graph = module.graph
    constant = constant_nodes(graph, held)
    ends = set(outputs(graph))
    # Views of a constant that are returned share their memory, so each is made in its call.
    for end in constant.intersection(ends):
        base = base_of(end)
        made = base.op == "call_function" and isinstance(value(base), torch.Tensor)
        while made and end is not base:
            constant.discard(end)
            end = end.all_input_nodes[0]
    border = [
        n
        for n in graph.nodes
        if n in constant
        and n.op == "call_function"
        and (n in ends or any(u not in constant and u.op != "output" for u in n.users))
        and isinstance(value(n), torch.Tensor)
    ]
    if all(base_of(n).op != "call_function" for n in border):
        return None  # views of weights alone
    before, after = fx.Graph(), fx.Graph()
    mine: dict[fx.Node, fx.Node] = {}
    theirs: dict[fx.Node, fx.Node] = {}
    for node in placeholders(graph):
        mine[node] = before.node_copy(node)
    for node in graph.nodes:
        if node in constant and node.op != "placeholder":
            mine[node] = before.node_copy(node, mine.__getitem__)
    before.output(tuple(mine[n] for n in border))
    for number, node in enumerate(border):
        theirs[node] = after.placeholder(f"constant_{number}")
        theirs[node].meta.update(node.meta)
    for node in placeholders(graph):
        theirs[node] = after.node_copy(node)
    for node in graph.nodes:
        if node.op != "placeholder" and node not in theirs:
            theirs[node] = after.node_copy(node, lambda n: theirs[n])
    # A caller may write into a result, and a constant has to keep its value.
    returned = {base_of(n) for n in outputs(after) if isinstance(n, fx.Node)}
    for node in (theirs[n] for n in border if theirs[n] in returned):
        with after.inserting_after(placeholders(after)[-1]):
            copied = after.call_function(aten.clone.default, (node,))
        copied.meta = dict(node.meta)
        node.replace_all_uses_with(copied, functools.partial(operator.is_not, copied))
    after.eliminate_dead_code()
    before.eliminate_dead_code()
    first, second = fx.GraphModule(module, before), fx.GraphModule(module, after)
    return first, second, len(border)


def unalias(module: fx.GraphModule, original: fx.GraphModule) -> None:
    """Copy outputs that share memory with an input, or with each other, if they did not before.

    A caller may write into a result, and must not write into anything else by that.
    """
    before, now = outputs(original.graph), outputs(module.graph)
    seen: set[Any] = set()
    (end,) = (n for n in module.graph.nodes if n.op == "output")
    new: list[Any] = []
    for was, node in zip(before, now, strict=True):
        if not isinstance(node, fx.Node):
            new.append(node)
            continue
        base = base_of(node)
        shared = base.op == "placeholder" or base in seen
        alone = (
            base_of(was).op == "call_function"
            and [base_of(b) for b in before if isinstance(b, fx.Node)].count(base_of(was)) == 1
        )
        if shared and alone:
            with module.graph.inserting_before(end):
                copied = module.graph.call_function(aten.clone.default, (node,))
            copied.meta = dict(node.meta)
            node = copied
        seen.add(base_of(node))
        new.append(node)
    end.args = (tuple(new),)


def replacing(
    graph: fx.Graph, make: Callable[[fx.Node], fx.Node | None]
) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Replace nodes, in order, by what ``make`` gives for them; yield each with what replaced it.

    ``make`` returns None to keep a node, and is called with the node as the point of insertion.
    """
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        with graph.inserting_before(node):
            new = make(node)
        if new is not None and new is not node:
            node.replace_all_uses_with(new)
            if "val" not in new.meta:
                new.meta = dict(node.meta)
            graph.erase_node(node)
            yield node, new
