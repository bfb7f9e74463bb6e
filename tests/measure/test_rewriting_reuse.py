# SPDX-License-Identifier: Apache-2.0
"""Rewritten graphs write over results that nothing reads again, and over nothing else."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch.measure.rewrite import backends, graphs
from pytest_udftorch.measure.rewrite.bindings import _FUNCTIONS, by_bindings
from pytest_udftorch.measure.rewrite.reuse import reusing

X, W = torch.randn(2, 3, 6, 6), torch.randn(3, 3, 3, 3)


def reused(function, *inputs):
    """Return the names of the operators that write over something, and check results and inputs."""
    seen = []

    def rewriter(graph, inputs, held, report, deadline):
        seen.append((graph, inputs))

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(
            function,
            backend=lambda m, e: backends.compile_graph("seen", rewriter, m, e),
            dynamic=False,
        )(*inputs)
        ((graph, taken),) = seen
        before = [t.clone() for t in taken]
        made = reusing(graph)
        bound = by_bindings(reusing(graph))
        for call in (made, bound):
            for _ in range(2):
                for mine, wanted in zip(call(*taken), graph(*taken), strict=True):
                    assert torch.equal(mine, wanted)
        assert all(map(torch.equal, taken, before))
    names = [graphs.packet_name(n) for n in graphs.calls(made.graph)]
    assert not any(
        name.endswith("_") for name in map(graphs.packet_name, graphs.calls(graph.graph))
    )
    return [name for name in names if name.endswith("_")]


@pytest.mark.parametrize(
    ("function", "over"),
    [
        (lambda x, w: (F.conv2d(x, w).relu() + 1,), ["relu_", "add_"]),
        (lambda x, w: (F.conv2d(x, w) + F.conv2d(x, w + 1),), ["add_"]),
        (lambda x, w: (x.relu() * 2,), ["mul_"]),  # never what the caller gave
        (lambda x, w: (x.exp(), x.exp().tanh()), ["tanh_"]),
    ],
)
def test_what_is_not_read_again_is_written_over(function, over):
    assert reused(function, X, W) == over


def kept_and_used(x, w):
    y = F.conv2d(x, w)
    return y, y.relu()


def used_twice(x, w):
    y = F.conv2d(x, w)
    return (y.relu() - y.exp(),)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x.relu(),),
        lambda x, w: (x[:1].relu(),),
        lambda x, w: (x.expand(2, 2, 3, 6, 6).relu(),),
        kept_and_used,
        lambda x, w: (x.mean(1, keepdim=True) + x,),  # broadcast
        lambda x, w: (x.mean(0) + x.double(), (x > 0) * x),  # another dtype, then bool
    ],
)
def test_what_is_still_read_or_lies_otherwise_is_not(function):
    assert reused(function, X, W) == []


def test_a_result_that_two_read_is_not_written_over():
    # The difference may lie over the first, which nothing else reads.
    assert reused(used_twice, X, W) == ["sub_"]


def test_the_control_writing_over_what_is_read_again_gives_other_results():
    seen = []

    def rewriter(graph, inputs, held, report, deadline):
        seen.append(graph)

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(
            used_twice, backend=lambda m, e: backends.compile_graph("seen", rewriter, m, e)
        )(X, W)
        wanted = seen[0](X, W)
        for node in graphs.calls(seen[0].graph):
            if graphs.packet_name(node) == "relu":
                node.target = torch.ops.aten.relu_.default
        seen[0].recompile()
        assert not torch.equal(seen[0](X, W)[0], wanted[0])


def examples():
    """Arguments of every function that bindings call, in the order of the schemas."""
    x, y = torch.rand(3, 3) + 0.5, torch.rand(3, 3) + 0.5
    image, kernel = torch.rand(1, 2, 4, 4), torch.rand(2, 2, 3, 3)
    two = ["add", "div", "eq", "ge", "gt", "le", "lt", "maximum", "minimum", "mm", "mul", "ne"]
    two += ["pow", "rsub", "sub"]
    given = {name: (x, y) for name in two}
    return given | {
        "addmm": (x[0], x, y),
        "amax": (x, [1], True),
        "amin": (x, [1], True),
        "bmm": (x[None], y[None]),
        "cat": ([x, y], 1),
        "clamp": (x, 0.6, 0.8),
        "clamp_": (x, 0.6, 0.8),
        "clamp_min": (x, 0.7),
        "clamp_min_": (x, 0.7),
        "convolution": (image, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        "native_batch_norm": (image, None, None, torch.rand(2), torch.rand(2), False, 0.1, 1e-5),
        "native_layer_norm": (x, [3], y[0], None, 1e-5),
        "permute": (x, [1, 0]),
        "transpose": (x, 0, 1),
        "unsqueeze": (x, 1),
        "where": (x > y, x, y),
    }


@pytest.mark.parametrize("name", sorted(_FUNCTIONS))
def test_bindings_call_the_same_operators(name):
    given = examples().get(name, (torch.rand(3, 3) + 0.5,))

    def fresh():
        return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, given)

    schema = getattr(torch.ops.aten, name)
    for mine, wanted in zip(
        torch.utils._pytree.tree_leaves(getattr(torch, name)(*fresh())),
        torch.utils._pytree.tree_leaves(schema(*fresh())),
        strict=True,
    ):
        assert torch.equal(mine, wanted)
    # The control: the arguments matter.
    assert type(getattr(torch, name)) is type(torch.relu)


def test_bindings_are_what_runs():
    seen = []

    def rewriter(graph, inputs, held, report, deadline):
        seen.append(graph)

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(
            lambda x, w: F.conv2d(x, w).relu().view(2, -1),
            backend=lambda m, e: backends.compile_graph("seen", rewriter, m, e),
        )(X, W)
    made = by_bindings(reusing(seen[0]))
    targets = [n.target for n in made.graph.nodes if n.op in ("call_function", "call_method")]
    assert targets == [torch.convolution, torch.relu_, "view"]
    assert "torch.ops" not in made.code
    assert "torch.ops.aten" in seen[0].code
