# SPDX-License-Identifier: Apache-2.0
"""Backend ``udf_compiler``: a graph computed by another project's compiler, and checked.

The compiler is an executor. It is given the graph with the weights inside, so that it may fold
them and lay them out as it likes. When a weight is written or replaced, it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx, nn

from pytest_udftorch.base.interrupts import undisturbed
from pytest_udftorch.measure.planning.executor import Executor
from pytest_udftorch.measure.planning.executors import resolve
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.backends import (
    COMMON,
    Candidate,
    WeightState,
    compile_graph,
    settings,
    terms_of,
)
from pytest_udftorch.measure.rewrite.deadline import Deadline
from pytest_udftorch.measure.rewrite.report import GraphReport

DEFAULT: Final = "onnxruntime"


class _Bound(nn.Module):
    """A graph with some of its inputs inside."""

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Any], held: Collection[int]):
        super().__init__()
        self.module = module
        self.held = sorted(held)
        self.count = len(inputs)
        for number in self.held:
            self.register_buffer(f"weight_{number}", inputs[number].detach())

    def forward(self, *given: Any) -> Any:
        """Run the graph."""
        others = iter(given)
        held = set(self.held)
        return self.module(
            *(
                getattr(self, f"weight_{n}") if n in held else next(others)
                for n in range(self.count)
            )
        )


class _Compiled:
    """A graph as an executor runs it."""

    def __init__(self, executor: Executor, module: fx.GraphModule, held: Collection[int]) -> None:
        self.executor, self.module, self.held = executor, module, sorted(held)
        self.made: tuple[WeightState, Callable[..., Any]] | None = None
        self.strides = [
            tuple(value.stride()) if isinstance(value, torch.Tensor) else None
            for node in graphs.outputs(module.graph)
            for value in [graphs.value(node) if isinstance(node, fx.Node) else None]
        ]

    def __call__(self, *inputs: Any) -> Any:
        held = set(self.held)
        others = tuple(value for n, value in enumerate(inputs) if n not in held)
        weights = [inputs[n] for n in self.held]
        if self.made is None or not self.made[0].holds(weights):
            self.executor.check(others)
            state, bound = WeightState(weights), _Bound(self.module, inputs, self.held)

            def make() -> Callable[..., Any]:
                with torch.no_grad():
                    return self.executor.make_callable(bound, others)

            # In this thread torch runs compiled code, and refuses to export.
            self.made = state, undisturbed(make)
        found = self.made[1](*others)
        return tuple(map(self._as_before, found, self.strides))

    @staticmethod
    def _as_before(value: Any, strides: tuple[int, ...] | None) -> Any:
        """Return a result in the layout that Dynamo has been promised."""
        if strides is None or not isinstance(value, torch.Tensor) or value.stride() == strides:
            return value
        if len(strides) != value.dim():
            return value
        like = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
        return like.copy_(value)


def compiler(
    module: fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Backend ``udf_compiler``: each graph is computed by an executor, if it is right and faster.

    Options are ``executor``, the name of one, ``gain``, how many times as fast as the graph it has
    to be to be kept, ``seconds``, after which neither check nor measurement is begun, and
    ``strict``.
    """
    known = {"executor": DEFAULT, **COMMON}
    wanted = settings("udf_compiler", options, known)

    def rewriter(
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        held: Collection[int],
        report: GraphReport,
        deadline: Deadline,
    ) -> Candidate:
        executor = resolve(wanted["executor"])
        report.notes.append(f"compiled by {executor.name}")
        return Candidate(
            graph, exact=False, fold=False, make=lambda made: _Compiled(executor, made, held)
        )

    terms = terms_of(wanted, lambda: resolve(wanted["executor"]))
    return compile_graph("udf_compiler", rewriter, module, examples, terms)
