# SPDX-License-Identifier: Apache-2.0
"""An operator that torch composes, and a library composes of others: above autograd and below."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_udftorch import operator_udf, patched, stock
from pytest_udftorch.base import compat
from pytest_udftorch.errors import OperatorError
from pytest_udftorch.swap.overrides import schemas

NAME = "aten::scaled_dot_product_attention"
KEYS = ("AutogradCPU", "CPU")


def library(keys=KEYS):
    """Return one that composes attention as torch does on GPUs that have no fused form of it."""

    @operator_udf(NAME, dispatch_keys=keys)
    def composed(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *,
                 scale=None, enable_gqa=False):  # fmt: skip
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        if scale is not None:
            return stock(*given, scale=scale, enable_gqa=enable_gqa)
        return torch.ops.aten._scaled_dot_product_attention_math(*given, enable_gqa=enable_gqa)[0]

    return composed


@pytest.fixture(autouse=True)
def on_cpus(monkeypatch):
    """Let the CPU do what the contract does on GPUs."""
    monkeypatch.setitem(schemas.ABOVE_AUTOGRAD, (NAME, "AutogradCPU"), "CPU")


def tensors():
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(2, 4, 9, 8, generator=draw).requires_grad_() for _ in range(3)]


def results(call=F.scaled_dot_product_attention, **given):
    q, k, v = tensors()
    y = call(q, k, v, **given)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), (q, k, v))]


def compiled():
    """Return compiled attention, and the list that gets its graphs."""

    def call(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def kept(graph, _):
        graphs.append(graph)
        return compat.boxed(graph.forward)

    graphs = []
    backend = compat.aot_backend(kept, kept)
    return torch.compile(call, backend=backend, fullgraph=True), graphs


def is_composed(graphs):
    """Tell whether graphs have the products of attention and no fused form; they agree in it."""
    names = [{str(node.target) for node in graph.graph.nodes} for graph in graphs]
    products = {"aten.bmm.default" in those for those in names}
    fused = {any("flash" in name for name in those) for those in names}
    assert (products, fused) in (({True}, {False}), ({False}, {True})), names
    return products == {True}


def same(one, other):
    return all(map(torch.equal, one, other))


def test_the_composition_has_values_and_gradients():
    fused = results()
    with sdpa_kernel([SDPBackend.MATH]):
        want = results()
    with patched(library()):
        assert same(results(), want)
        assert same(results(scale=0.3), results(scale=0.3))
    assert same(results(), fused)
    assert not same(want, fused)


def test_stock_is_torchs_choice():
    fused = results(scale=0.3)
    with patched(library()):
        assert same(results(scale=0.3), fused)


def test_it_is_reached_in_inference_mode():
    with sdpa_kernel([SDPBackend.MATH]):
        want = results()[0]
    with patched(library()), torch.inference_mode():
        q, k, v = (t.detach().clone() for t in tensors())
        assert torch.equal(F.scaled_dot_product_attention(q, k, v), want)


def test_graphs_and_transforms_see_what_it_calls():
    given = [t.detach() for t in tensors()]
    with patched(library()):
        traced = make_fx(F.scaled_dot_product_attention)(*given)
        assert torch.equal(traced(*given), F.scaled_dot_product_attention(*given))
        grads = torch.func.grad(
            lambda *t: F.scaled_dot_product_attention(*t).square().sum(), (0, 1, 2)
        )(*given)
        assert same(grads, results()[1:])
        call, graphs = compiled()
        # Products of stock: other code may call them in another layout, with other bits.
        for one, other in zip(results(call), results(), strict=True):
            torch.testing.assert_close(one, other)
    assert len(graphs) == 2  # forward and backward
    assert is_composed([traced, *graphs])


SCRIPT = """
import test_composed_anew as t

t.schemas.ABOVE_AUTOGRAD[t.NAME, "AutogradCPU"] = "CPU"
call, before = t.compiled()
t.results(call)
with t.patched(t.library()):
    call, inside = t.compiled()
    t.results(call)
call, after = t.compiled()
t.results(call)
print(*map(t.is_composed, (before, inside, after)))
"""


def test_a_process_that_compiled_before_its_first_session_sees_it_too():
    """The Python dispatcher remembers the kernels that it found."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=Path(__file__).parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["False", "True", "False"], done.stderr


def test_below_autograd_alone_it_is_refused():
    """The control: it would have no gradient."""
    with pytest.raises(OperatorError, match="by other operators"), patched(library(("CPU",))):
        pass


def test_other_operators_above_autograd_are_refused():
    @operator_udf("aten::exp", dispatch_keys=("AutogradCPU",))
    def exp(self):
        return self

    with pytest.raises(OperatorError, match="does not belong to a backend"), patched(exp):
        pass
