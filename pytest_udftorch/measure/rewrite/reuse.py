# SPDX-License-Identifier: Apache-2.0
"""Results written over inputs that nothing else reads, as eager models do with ``inplace=True``.

AOTAutograd makes a graph in which each operator writes new memory. On a CPU the first touch of new
memory costs more than many a pointwise operator.
"""

from __future__ import annotations

import copy
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.graphs import aten, packet_name, value

#: Pointwise overloads -> those that write over their first argument.
_OVER: Final[dict[Any, Any]] = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.clamp.default: aten.clamp_.default,
    aten.clamp_min.default: aten.clamp_min_.default,
    aten.div.Tensor: aten.div_.Tensor,
    aten.elu.default: aten.elu_.default,
    aten.hardsigmoid.default: aten.hardsigmoid_.default,
    aten.hardswish.default: aten.hardswish_.default,
    aten.hardtanh.default: aten.hardtanh_.default,
    aten.leaky_relu.default: aten.leaky_relu_.default,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.relu.default: aten.relu_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.silu.default: aten.silu_.default,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.tanh.default: aten.tanh_.default,
}


def _own(node: Any) -> bool:
    """Whether a node's result lies in memory that it alone made and one node alone reads."""
    return (
        isinstance(node, fx.Node)
        and node.op == "call_function"
        and packet_name(node) != ""
        and not graphs.is_view(node)
        and len(node.users) == 1
        and isinstance(value(node), torch.Tensor)
    )


def reusing(module: fx.GraphModule) -> fx.GraphModule:
    """Return a graph that computes the same and writes over results that are not read again.

    What the caller gives, and what he gets, is never written over.
    """
    made = fx.GraphModule(module, copy.deepcopy(module.graph))
    # Chosen first: an operator that writes over its argument looks like a view of it.
    chosen: list[fx.Node] = []
    for node in graphs.calls(made.graph):
        first = node.args[0] if node.args else None
        if node.target not in _OVER or not _own(first):
            continue
        mine, theirs = value(node), value(first)  # type: ignore[arg-type]
        alike = all(
            getattr(mine, what) == getattr(theirs, what) for what in ("shape", "dtype", "device")
        )
        if alike and mine.stride() == theirs.stride():
            chosen.append(node)
    for node in chosen:
        node.target = _OVER[node.target]
    made.recompile()
    return made
