# SPDX-License-Identifier: Apache-2.0
"""Operators called by torch's generated bindings, which read arguments in C++.

A call of an overload such as ``torch.ops.aten.convolution.default`` goes through Python and a
boxed call, which takes a few microseconds longer. That decides where kernels are short.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import fx

from pytest_udftorch.measure.rewrite import graphs

#: Operators whose functions in ``torch`` have the arguments of their schemas, in this order.
_FUNCTIONS: Final = frozenset(
    """
    abs add addmm amax amin bmm cat clamp clamp_ clamp_min clamp_min_ convolution cos div
    erf exp expm1 eq ge gt le log log1p lt maximum minimum mm mul native_batch_norm
    native_layer_norm ne neg permute pow reciprocal relu relu_ rsqrt rsub sigmoid sigmoid_ sin
    sqrt square sub t tanh tanh_ transpose unsqueeze where
    """.split()  # noqa: SIM905 - a list of so many names would be harder to read
)
#: Those that are methods of tensors alone.
_METHODS: Final = frozenset({"add_", "div_", "expand", "mul_", "sub_", "view"})


def by_bindings(module: fx.GraphModule) -> fx.GraphModule:
    """Have a graph call torch's own functions where they take the same arguments.

    The graph is changed; it is not rewritten after this.
    """
    for node in graphs.calls(module.graph):
        name = graphs.packet_name(node)
        if name in _FUNCTIONS:
            node.target = getattr(torch, name)
        elif name in _METHODS and not node.kwargs:
            node.op, node.target = "call_method", name
    module.recompile()
    return module
