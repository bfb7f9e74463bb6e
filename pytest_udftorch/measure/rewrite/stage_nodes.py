# SPDX-License-Identifier: Apache-2.0
"""Chains of stages in graphs: where they are, and how others take their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.base import compat
from pytest_udftorch.measure.rewrite.graphs import (
    aten,
    calls,
    outputs,
    packet_name,
    placeholders,
    value,
)
from pytest_udftorch.measure.rewrite.mutants import Setting, placed
from pytest_udftorch.measure.rewrite.stages import (
    LENGTH,
    Chain,
    Other,
    Problem,
    Stage,
    parts_of,
    prepared,
)

_POOLS: Final = {"avg_pool2d": 2, "avg_pool3d": 3}
#: Number of dimensions -> how images lie whose channels come last.
_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Link:
    """A stage in a graph.

    Attributes:
        stage: it; kernel and offset are numbers of ``tensors``.
        source: the node of the images that it takes.
        node: of its result.
        tensors: the nodes of kernel and offset.
    """

    stage: Stage
    source: fx.Node
    node: fx.Node
    tensors: tuple[fx.Node, ...] = ()


def _plain(rank: int) -> Setting:
    return Setting((1,) * rank, (0,) * rank, (1,) * rank)


def _wide(given: Any, rank: int) -> tuple[int, ...]:
    numbers = (given,) if isinstance(given, int) else tuple(given)
    return numbers * rank if len(numbers) == 1 else numbers


def _convolution(node: fx.Node) -> Link:
    args: tuple[Any, ...] = node.args
    x, w, bias = args[:3]
    rank = value(w).dim() - 2
    stride, padding, dilation = (_wide(p, rank) for p in args[3:6])
    setting = Setting(stride, padding, dilation, args[8])
    kind = "transposed" if args[6] else "convolution"
    edges = tuple((0, n) for n in _wide(args[7], rank)) if args[6] else ()
    stage = Stage(kind, setting, tuple(value(w).shape[2:]), 0, None if bias is None else 1, edges)
    return Link(stage, x, node, (w,) if bias is None else (w, bias))


def _average(node: fx.Node) -> Link | None:
    """Return a pool by averages whose windows all divide by the same number."""
    args: list[Any] = [*node.args, *([], 0, False, True, None)[len(node.args) - 2 :]]
    x, size, stride, padding, ceil, padded, divisor = args
    rank = _POOLS[packet_name(node)]
    padding = _wide(padding, rank)
    if ceil or divisor or (any(padding) and not padded) or value(x).dim() != rank + 2:
        return None
    setting = Setting(_wide(stride or size, rank), padding, (1,) * rank)
    return Link(Stage("average", setting, _wide(size, rank)), x, node)


def _average_of_lines(node: fx.Node) -> Link | None:
    """Return ``avg_pool1d``, which reaches a graph as a pool of images of one row."""
    pool: Any = node.args[0]
    if packet_name(pool) != "avg_pool2d" or packet_name(pool.args[0]) != "unsqueeze":
        return None
    link, lines = _average(pool), pool.args[0].args[0]
    alone = len(pool.users) == len(pool.args[0].users) == 1 and value(lines).dim() == 3
    if link is None or not alone or value(node).dim() != 3 or value(pool).shape[2] != 1:
        return None
    s = link.stage.setting
    setting = Setting(s.stride[1:], s.padding[1:], (1,))
    return Link(Stage("average", setting, link.stage.size[1:]), lines, node)


def _edges(node: fx.Node) -> Link | None:
    args: list[Any] = [*node.args]
    x, shape = args[0], value(node).shape
    rank = len(shape) - 2
    edges = [(0, 0)] * rank
    if packet_name(node) == "slice":
        given: list[Any] = [*args[1:], *(0, None, None, 1)[len(args) - 1 :]]
        dim, start, _, step = given
        dim %= len(shape)
        whole = value(x).shape[dim]
        start = 0 if start is None else start + whole * (start < 0)
        if dim < 2 or step != 1:
            return None
        edges[dim - 2] = (-start, start + shape[dim] - whole)
    else:
        pads = args[1]
        if len(pads) > 2 * rank or (len(args) > 2 and args[2]):
            return None
        for number in range(len(pads) // 2):
            edges[rank - 1 - number] = (pads[2 * number], pads[2 * number + 1])
    return Link(Stage("edges", _plain(rank), edges=tuple(edges)), x, node)


def _link(node: fx.Node) -> Link | None:
    """Return the stage that ends with a node, or None."""
    name, tensor = packet_name(node), value(node)
    if node.kwargs or not isinstance(tensor, torch.Tensor) or tensor.dim() not in (3, 4, 5):
        return None
    if not tensor.is_floating_point():
        return None
    if name == "convolution":
        return _convolution(node)
    if name in _POOLS:
        return _average(node)
    if name == "squeeze":
        return _average_of_lines(node)
    return _edges(node) if name in ("slice", "constant_pad_nd") else None


@dataclass(frozen=True)
class Found:
    """A chain in a graph.

    Attributes:
        links: its stages.
    """

    links: tuple[Link, ...]

    @property
    def node(self) -> fx.Node:
        """The node of its result."""
        return self.links[-1].node

    def inputs(self) -> list[fx.Node]:
        """Return the nodes of the images, and of kernels and offsets."""
        return [self.links[0].source, *(t for link in self.links for t in link.tensors)]

    def problem(self) -> Problem:
        """Return what decides by which chains it can be replaced."""
        stages, at = [], 0
        for link in self.links:
            s = link.stage
            kernel = None if s.kernel is None else at
            offset = None if s.offset is None else at + 1
            stages.append(replace(s, kernel=kernel, offset=offset))
            at += len(link.tensors)
        image, *tensors = (tuple(value(n).shape) for n in self.inputs())
        return Problem(tuple(stages), image, tuple(tensors))

    def replace(self, other: Other, chain: Chain) -> None:
        """Put another chain in its place."""

        def program(x: Any, *tensors: Any) -> tuple[Any, ...]:
            mine, kernels = prepared(other.chain, tensors)
            return parts_of(replace(other, chain=mine), chain, x, kernels, tensors)

        graph = self.node.graph
        parts = inserted(self.node, self.inputs(), program)
        with graph.inserting_before(self.node):
            new = parts[0]
            if other.wrong:
                new = graph.call_function(placed, (parts[0], other.wrong, *parts[1:]))
            like, form = value(self.node), _LAST.get(value(self.node).dim())
            last = form and not like.is_contiguous() and like.is_contiguous(memory_format=form)
            # What follows, or the caller, is given channels last as before.
            if last and (other.wrong or value(new).stride() != like.stride()):
                new = graph.call_function(aten.clone.default, (new,), {"memory_format": form})
            new.meta = dict(self.node.meta)
        self.node.replace_all_uses_with(new)
        graph.eliminate_dead_code()


def inserted(
    node: fx.Node, inputs: Sequence[fx.Node], program: Callable[..., tuple[Any, ...]]
) -> list[fx.Node]:
    """Put a program of nodes before another node, and return the nodes of its results."""
    fakes = map(value, inputs)
    like = [torch.empty_strided(f.shape, f.stride(), dtype=f.dtype, device=f.device) for f in fakes]
    traced = compat.aten_graph(program, like).graph
    known = dict(zip(placeholders(traced), inputs, strict=True))
    with node.graph.inserting_before(node):
        for call in calls(traced):
            known[call] = node.graph.node_copy(call, known.__getitem__)
    return [known[n] for n in outputs(traced)]


def found_chains(graph: fx.Graph) -> Iterator[Found]:
    """Return the chains of a graph; none share a stage.

    Each has a convolution. A single stage is a chain if it is a transposed convolution; for others
    there are mutants of one operator.
    """
    links = {link.node: link for link in map(_link, calls(graph)) if link is not None}
    taken: set[fx.Node] = set()
    for node in reversed(calls(graph)):
        if node not in links or node in taken:
            continue
        if packet_name(node) == "slice" and any(u.op == "output" for u in node.users):
            continue  # the caller is given a view, which has the strides of the whole
        chain: list[Link] = [links[node]]
        while len(chain) < LENGTH:
            before = links.get(chain[0].source)
            if before is None or before.node in taken or len(before.node.users) > 1:
                break
            chain.insert(0, before)
        if _worth(chain):
            taken |= {link.node for link in chain}
            yield Found(tuple(chain))


def _worth(chain: Sequence[Link]) -> bool:
    kinds = [link.stage.kind for link in chain]
    if kinds == ["transposed"]:
        return True
    return len(kinds) > 1 and ("convolution" in kinds or "transposed" in kinds)
