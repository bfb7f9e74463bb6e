# SPDX-License-Identifier: Apache-2.0
"""Functions of sparse CSR tensors, computed where these are not zero.

Dynamo does not trace functions of sparse tensors, so no backend of torch.compile sees them. They
are traced here with dense tensors without elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, ParamSpec, TypeVar

import torch
from torch import fx

from pytest_udftorch.base import compat
from pytest_udftorch.errors import RewriteError
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.backends import announce
from pytest_udftorch.measure.rewrite.check import why_wrong
from pytest_udftorch.measure.rewrite.fusion.backend import assembled
from pytest_udftorch.measure.rewrite.fusion.outer import OuterKernel, outer_kernel
from pytest_udftorch.measure.rewrite.fusion.plans import Kernel, Planner
from pytest_udftorch.measure.rewrite.report import GraphReport, count, picture
from pytest_udftorch.swap.compiled.follower import follower

pytree: Any = compat.pytree()
_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")
#: The most elements of a matrix that is made dense for the check of the first call.
CHECKED: Final = 2**27


def _is_csr(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.sparse_csr


def _key(inputs: Sequence[Any]) -> tuple[object, ...]:
    """Return what must be the same for a kernel to be used again."""
    tensors = (
        (t.layout, t.dtype, tuple(t.shape), None if _is_csr(t) else t.stride()) for t in inputs
    )
    return (follower.active.key, *tensors)


def _planned(graph: fx.Graph, sparse: Sequence[bool]) -> tuple[str, list[Kernel]]:
    """Return why the sparse inputs cannot stay sparse, or "", and the kernels."""
    given = graphs.placeholders(graph)
    matrices = {n for n, is_sparse in zip(given, sparse, strict=True) if is_sparse}
    plan = Planner(graph).best()
    if plan is None:
        return "there is nothing to fuse", []
    kernels = [outer_kernel(k, lambda _: 0.0, 1.0, matrices) for k in plan.kernels]
    outer = [k for k in kernels if isinstance(k, OuterKernel)]
    served = {n for k in outer for n in k.body}
    for node in matrices:
        if not all(u in served for u in node.users):
            return f"{node.name} is sparse, and used where its zeros count", []
    made = {root for k in outer for root in k.sparse_roots}
    if any(u.op != "output" for root in made for u in root.users):
        return "an intermediate matrix would be sparse", []
    return "", kernels


class _Fused:
    """A function, and the kernels for the inputs that it has met."""

    def __init__(self, function: Callable[..., Any], strict: bool) -> None:
        self.function, self.strict = function, strict
        self.known: dict[tuple[object, ...], Callable[..., Any]] = {}

    def __call__(self, *inputs: Any) -> Any:
        tensors = all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in inputs)
        if not tensors or not any(map(_is_csr, inputs)):
            return self.function(*inputs)
        if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
            return self.function(*inputs)
        key = _key(inputs)
        if key not in self.known:
            self.known[key] = self._decided(inputs)
        return self.known[key](*inputs)

    def _decided(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        report = GraphReport("udf_fusion")
        run = None
        try:
            with torch.no_grad():
                run = self._fused(inputs, report)
        except Exception as error:
            first = (str(error).strip() or "no message").splitlines()[0][:200]
            report.left_alone = f"rewriting failed: {type(error).__name__}: {first}"
        announce(report)
        if run is None and self.strict:
            raise RewriteError(
                f"fused() leaves the function alone: {report.left_alone}. Change the function, or "
                "leave strict out: it then runs as it is."
            )
        return run or self.function

    def _fused(self, inputs: Sequence[Any], report: GraphReport) -> Callable[..., Any] | None:
        if max(t.numel() for t in inputs) > CHECKED:
            report.left_alone = "a matrix is too large to check the result with a dense one"
            return None
        sparse = [_is_csr(t) for t in inputs]
        hollow = [torch.empty(t.shape, dtype=t.dtype) if _is_csr(t) else t for t in inputs]
        original = compat.aten_graph(self.function, hollow)
        reasons = [why for why in map(graphs.why_opaque, graphs.calls(original.graph)) if why]
        if reasons:
            report.left_alone = "; ".join(dict.fromkeys(reasons))
            return None
        report.before = count(original)
        report.pictures["before"] = picture(original)
        report.left_alone, kernels = _planned(original.graph, sparse)
        if report.left_alone:
            return None
        graph, report.fired = assembled(original.graph, kernels)
        module = fx.GraphModule(original, graph)

        def candidate(*dense: torch.Tensor) -> Any:
            given = (t.to_sparse_csr() if s else t for t, s in zip(dense, sparse, strict=True))
            found = pytree.tree_leaves(module(*given))
            return [t.to_dense() if _is_csr(t) else t for t in found]

        dense = [t.to_dense() if s else t for t, s in zip(inputs, sparse, strict=True)]
        problem, report.check = why_wrong(original, candidate, dense, (), exact=False)
        if problem is not None:
            report.left_alone = f"the rewritten graph does not pass its check: {problem}"
            return None
        old = frozenset(n.name for n in original.graph.nodes)
        report.pictures["after"] = picture(module, old)
        return module


def fused(function: Callable[_Given, _Found], *, strict: bool = False) -> Callable[_Given, _Found]:
    """Return a function that computes with sparse CSR tensors where these are not zero.

    With a CSR tensor x of R x C elements, u and v are multiplied, and f evaluated, only for the
    elements that x stores: in sums, ``(x * f(u @ v)).sum()``, in products, ``(x * f(u @ v)) @ w``,
    also with the transpose, and elementwise. ``x * f(u @ v)`` is a CSR tensor with x's indices, and
    ``y + x * f(u @ v)`` a dense one, if y is. Further CSR tensors of x's shape may lie beside it.
    All arguments are tensors on the CPU, of float32, float64 or bfloat16. The first call with new
    shapes compiles, and compares the result with that for a dense x. Where x has no element and f
    is infinite or NaN, a dense x gives NaN and this does not.

    Args:
        function: takes tensors, and returns a tensor or a tuple of tensors.
        strict: whether a function that is left alone is an error.

    Returns:
        The function. Calls without CSR tensors, calls with gradients, and functions for which there
        is no such kernel run as they are. ``recording()`` collects the reports.

    Raises:
        RewriteError: when it is called, with ``strict``, and cannot be fused.
    """
    called = _Fused(function, strict)

    @functools.wraps(function)
    def run(*inputs: _Given.args, **others: _Given.kwargs) -> _Found:
        found: _Found = function(*inputs, **others) if others else called(*inputs)
        return found

    return run
