# SPDX-License-Identifier: Apache-2.0
"""The backend ``udf_fusion``."""

from __future__ import annotations

import copy
import functools
import graphlib
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.backends import (
    COMMON,
    Candidate,
    compile_graph,
    further,
    settings,
    simplified,
    terms_of,
)
from pytest_udftorch.measure.rewrite.deadline import NEVER, Deadline
from pytest_udftorch.measure.rewrite.fusion.cells import is_sum
from pytest_udftorch.measure.rewrite.fusion.chains import ChainKernel, chains
from pytest_udftorch.measure.rewrite.fusion.kernels import callable_of
from pytest_udftorch.measure.rewrite.fusion.outer import OuterKernel, outer_kernel
from pytest_udftorch.measure.rewrite.fusion.plans import Kernel, Plan, Planner
from pytest_udftorch.measure.rewrite.fusion.rows import RowKernel, decompose, regions
from pytest_udftorch.measure.rewrite.report import GraphReport
from pytest_udftorch.measure.rewrite.templates import Firing

OPTIONS: Final[dict[str, Any]] = {"sparse": 0.0, **COMMON}


def _template(kernel: Kernel) -> str:
    """Return SystemDS' name of what a kernel is."""
    if isinstance(kernel, OuterKernel):
        return "Outer"
    if isinstance(kernel, ChainKernel):
        return "MMChain"
    if isinstance(kernel, RowKernel):
        return "Row"
    return "MultiAggregate" if sum(map(is_sum, kernel.roots)) > 1 else "Cell"


def _planned(
    graph: fx.Graph, constant: set[fx.Node], deadline: Deadline
) -> tuple[list[Kernel], Plan | None]:
    """Return the kernels that run row by row, and the plan for the rest.

    What depends on weights alone is computed once, so that no kernel may compute it in each call.
    """
    rows: list[Kernel] = [k for k in chains(graph) if constant.isdisjoint({k.first, *k.roots})]
    taken = {n for k in rows for n in k.body}
    rows += [k for k in regions(graph) if (constant | taken).isdisjoint(k.body)]
    plan = Planner(graph, constant | {n for k in rows for n in k.body}).best(deadline)
    if not _runs([*rows, *(plan.kernels if plan else ())]):
        return [], Planner(graph, constant).best(deadline)
    return rows, plan


def _in_rows(module: fx.GraphModule, held: Collection[int], deadline: Deadline) -> fx.GraphModule:
    """Return a graph with softmax written as rows' sums, if kernels for rows take all of these."""
    written = copy.deepcopy(module)
    made = decompose(written)
    rows, _ = _planned(written.graph, graphs.constant_nodes(written.graph, held), deadline)
    return written if made <= {n for k in rows for n in k.body} else copy.deepcopy(module)


def _runs(kernels: Sequence[Kernel]) -> bool:
    """Whether no kernel waits for what waits for it."""
    owner = {root: number for number, kernel in enumerate(kernels) for root in kernel.roots}

    @functools.cache
    def needed(node: fx.Node) -> frozenset[int]:
        if node in owner:
            return frozenset({owner[node]})
        return frozenset().union(*map(needed, node.all_input_nodes))

    waits = {
        number: frozenset().union(*map(needed, kernel.inputs))
        for number, kernel in enumerate(kernels)
    }
    try:
        graphlib.TopologicalSorter(waits).prepare()
    except graphlib.CycleError:
        return False
    return True


def assembled(
    graph: fx.Graph, kernels: Sequence[Kernel], deadline: Deadline = NEVER
) -> tuple[fx.Graph, list[Firing]]:
    """Return a graph that calls kernels in place of the nodes that they compute.

    What is not compiled when the deadline passes is computed as it was.
    """
    new = fx.Graph()
    mine: dict[fx.Node, fx.Node] = {n: new.node_copy(n) for n in graphs.placeholders(graph)}
    owner = {root: i for i, kernel in enumerate(kernels) for root in kernel.roots}
    fired: list[Firing] = []

    @functools.cache
    def left_out(number: int) -> bool:
        return deadline.passed("kernels")

    def emit_kernel(number: int) -> None:
        kernel = kernels[number]
        function = callable_of(kernel, number)
        for node in kernel.reads:
            emit(node)
        call = new.call_function(function, tuple(mine[n] for n in kernel.reads))
        call.meta["val"] = tuple(graphs.value(root) for root in kernel.roots)
        for place, root in enumerate(kernel.roots):
            mine[root] = new.call_function(operator.getitem, (call, place))
            mine[root].meta = dict(root.meta)
        body = dict.fromkeys([*kernel.body, *kernel.roots])
        where = f"{call.name}: {', '.join(n.name for n in body)}"
        fired.append(Firing(_template(kernel), where))

    def emit(node: fx.Node) -> None:
        if node in mine:
            return
        if node in owner and not left_out(owner[node]):
            emit_kernel(owner[node])
            return
        for needed in node.all_input_nodes:
            emit(needed)
        mine[node] = new.node_copy(node, mine.__getitem__)

    (end,) = (n for n in graph.nodes if n.op == "output")
    emit(end)
    return new, fired


def fusion(
    module: fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Backend ``udf_fusion``: pointwise operators and sums in as few passes as the costs say.

    Options are ``sparse``, ``gain``, ``seconds`` and ``strict``. ``gain`` is how many times as fast
    the whole graph has to become for its kernels to be kept; 0 keeps them all. When ``seconds``
    have passed, the best plan so far is taken, with the kernels that are compiled by then.
    ``sparse`` is the largest part
    of elements other than zero with which a matrix counts as sparse; 0, the default, takes none for
    sparse. In ``(x * f(u @ v)).sum()`` the product is computed only where a sparse x is not zero.
    Where x is zero and f infinite or NaN, eager mode gives NaN and this does not. The templates
    that ``udf_templates`` applies are applied first.
    """
    wanted = settings("udf_fusion", options, OPTIONS)

    def rewriter(
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        held: Collection[int],
        report: GraphReport,
        deadline: Deadline,
    ) -> Candidate | None:
        start = simplified(graph, held, deadline)
        graph = _in_rows(start.module, held, deadline.share(0.3))
        constant = graphs.constant_nodes(graph.graph, held)
        rows, plan = _planned(graph.graph, constant, deadline.share(0.5))
        if not rows and plan is None:
            report.notes.append("there is nothing to fuse")
            return start
        given = dict(zip(graphs.placeholders(graph.graph), inputs, strict=True))

        def filled(node: fx.Node) -> float:
            tensor: torch.Tensor = given[node]
            return float((tensor != 0).sum()) / max(tensor.numel(), 1)

        chosen = [*rows, *(plan.kernels if plan else ())]
        # One operator alone is torch's.
        chosen = [k for k in chosen if len({*k.body, *k.roots}) > 1]
        kernels = [outer_kernel(k, filled, wanted["sparse"]) for k in chosen]
        new, fired = assembled(graph.graph, kernels, deadline)
        estimated = sum(k.cost_ns() for k in chosen) / 1000
        searched = plan or Plan((), 0.0, 0, 0, 0)
        report.notes.append(
            f"plans: {searched.enumerated:,} enumerated, {searched.pruned:,} pruned, "
            f"{searched.evaluated:,} evaluated; {len(kernels)} kernels, estimated "
            f"{estimated:,.0f} us"
        )
        return further(start, fx.GraphModule(graph, new), fired)

    return compile_graph("udf_fusion", rewriter, module, examples, terms_of(wanted))
