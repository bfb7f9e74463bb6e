# SPDX-License-Identifier: Apache-2.0
"""Compilers that warn: what they say is noted, and ends no search.

TorchInductor warns, for instance, where it does not compute softmax in one pass, and where TF32 is
off. A program that makes errors of warnings, such as a test suite, would lose the graph by that.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.base import compat
from pytest_udftorch.measure.rewrite import graphs

aten: Any = torch.ops.aten
pytree: Any = compat.pytree()

#: Operator -> the number that leaves a tensor as it is.
_NEUTRAL: Final = {aten.add: 0, aten.sub: 0, aten.mul: 1, aten.div: 1, aten.pow: 1}


@contextlib.contextmanager
def noted_warnings(notes: list[str]) -> Iterator[None]:
    """Add what the block warns of to notes, each text once; nothing is raised or printed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            said = (f"warning: {' '.join(str(w.message).split())[:300]}" for w in caught)
            notes += [text for text in dict.fromkeys(said) if text not in notes]


def _inductor(graph: fx.GraphModule, examples: Sequence[Any]) -> Any:
    """Backend of torch.compile: TorchInductor, without its warnings."""
    with noted_warnings([]):
        return compat.inductor_backend()(graph, examples)


def by_inductor(module: fx.GraphModule) -> Callable[..., Any]:
    """Return a graph that TorchInductor compiles when it is first called, and warns of nothing."""
    compiled: Callable[..., Any] = torch.compile(module, backend=_inductor, dynamic=False)
    returned = graphs.outputs(module.graph)
    own = [n for n, node in enumerate(returned) if _may_be_its_input(node)]
    if not own:
        return compiled

    def call(*inputs: Any) -> Any:
        found, form = pytree.tree_flatten(compiled(*inputs))
        for n in own:
            others = (*inputs, *found[:n], *found[n + 1 :])
            if any(_shares(found[n], t) for t in others):
                found[n] = found[n].clone()
        return pytree.tree_unflatten(found, form)

    return call


def _may_be_its_input(node: Any) -> bool:
    """Tell whether TorchInductor may return another tensor in place of a result: x for ``x * 1``.

    It may where what a tensor is combined with is neutral, or is a constant tensor.
    """
    packet = getattr(getattr(node, "target", None), "overloadpacket", None)
    if packet not in _NEUTRAL:
        return False
    inputs = graphs.placeholders(node.graph)
    tensors = [n for n in node.all_input_nodes if graphs.depends(n, inputs)]
    numbers = [a for a in node.args if not isinstance(a, fx.Node)]
    return len(tensors) == 1 and all(a == _NEUTRAL[packet] for a in numbers)


def _shares(one: torch.Tensor, other: Any) -> bool:
    if not isinstance(other, torch.Tensor):
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
