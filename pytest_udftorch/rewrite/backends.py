# SPDX-License-Identifier: Apache-2.0
"""Backends of torch.compile that rewrite the graph, check the result, and report what they did.

AOTAutograd hands over graphs of ATen operators that write into nothing. The first call of a graph
has real inputs: it is where the graph is rewritten and the result checked. Until a candidate has
passed its check, and wherever it does not, the graph runs as it was.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from pytest_udftorch import compat
from pytest_udftorch.errors import PackageMissingError, RewriteError, RuleError, nearest
from pytest_udftorch.rewrite import graphs
from pytest_udftorch.rewrite.check import why_wrong
from pytest_udftorch.rewrite.report import GraphReport, count, picture
from pytest_udftorch.rewrite.templates import DEFAULT, TEMPLATES, chosen, rewrite

#: The reports of those who record, the innermost last.
_RECORDING: Final[list[list[GraphReport]]] = []


@contextlib.contextmanager
def recording() -> Iterator[list[GraphReport]]:
    """Collect the reports of all graphs that are rewritten in the block."""
    reports: list[GraphReport] = []
    _RECORDING.append(reports)
    try:
        yield reports
    finally:
        _RECORDING.remove(reports)


def announce(report: GraphReport) -> None:
    """Give a report to all who record."""
    for reports in _RECORDING:
        reports.append(report)


def _as_it_is(module: fx.GraphModule) -> Callable[..., Any]:
    return module


def _by_inductor(module: fx.GraphModule) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(module, dynamic=False)
    return compiled


@dataclass
class Candidate:
    """A graph that may take the place of another.

    Attributes:
        module: takes the same inputs.
        exact: whether it must give the same bits.
        fold: whether what depends on weights alone is computed once.
        make: makes of the module, without what was folded, what is called; by default it is
            called itself.
    """

    module: fx.GraphModule
    exact: bool
    fold: bool
    make: Callable[[fx.GraphModule], Callable[..., Any]] = _as_it_is


#: Makes a candidate of a graph, the real inputs of the call, and the numbers of the weights among
#: them; writes what it did into the report. None: there is nothing to gain.
Rewriter: TypeAlias = Callable[
    [fx.GraphModule, Sequence[Any], Collection[int], GraphReport], Candidate | None
]


class WeightState:
    """Which tensors the weights are, and how often they have been written by now."""

    def __init__(self, weights: Sequence[Any]) -> None:
        self._known: list[tuple[Any, int, int]] = [
            (weakref.ref(w), compat.write_count(w), w.data_ptr()) for w in weights
        ]

    def holds(self, weights: Sequence[Any]) -> bool:
        """Whether these are the same tensors, and have not been written since."""
        return len(self._known) == len(weights) and all(
            known() is w and (count, place) == (compat.write_count(w), w.data_ptr())
            for (known, count, place), w in zip(self._known, weights, strict=True)
        )


class _Runner:
    """Runs a candidate; what depends on weights alone is computed when the weights change."""

    def __init__(self, candidate: Candidate, inputs: Sequence[Any], held: Collection[int]) -> None:
        self.split = graphs.split_constants(candidate.module, held) if candidate.fold else None
        self.held = sorted(held)
        self.module = self.split[1] if self.split else candidate.module
        self.call = candidate.make(self.module)
        self._constants: tuple[Any, ...] = ()
        self._state: WeightState | None = None

    def _current(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the constants, computed anew if a weight is another tensor or was written."""
        assert self.split is not None
        weights = [inputs[number] for number in self.held]
        if self._state is None or not self._state.holds(weights):
            state = WeightState(weights)
            with torch.no_grad():
                self._constants = tuple(self.split[0](*inputs))
            self._state = state
        return self._constants

    def __call__(self, *inputs: Any) -> Any:
        if self.split is None:
            return self.call(*inputs)
        return self.call(*self._current(inputs), *inputs)


class _Rewritten:
    """One graph: rewritten and checked in its first call."""

    def __init__(
        self,
        name: str,
        original: fx.GraphModule,
        rewriter: Rewriter,
        weights: Sequence[Any],
        broken: str,
        strict: bool,
        ready: Callable[[], object],
    ) -> None:
        self.name, self.original, self.rewriter, self.strict = name, original, rewriter, strict
        self.ready = ready
        self.weights, self.broken = weights, broken
        self.run: Callable[..., Any] | None = None
        self.lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        if self.run is None:
            with self.lock:
                if self.run is None:
                    self.run = self._decided(inputs)
        return self.run(*inputs)

    def _decided(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        report = GraphReport(self.name)
        self.ready()
        try:
            with torch.no_grad():
                run = self._rewritten(inputs, report)
        except (PackageMissingError, RewriteError, RuleError):
            raise
        except Exception as error:
            first = (str(error).strip() or "no message").splitlines()[0][:200]
            report.left_alone = f"rewriting failed: {type(error).__name__}: {first}"
            run = self.original
        reasons = [report.left_alone]
        if self.broken:
            reasons.append(f"Dynamo had to break the graph behind it: {self.broken}")
            report.notes.append(reasons[-1])
        why = "; ".join(filter(None, reasons))
        announce(report)
        if self.strict and why:
            raise RewriteError(
                f"{self.name} leaves a part of the model alone: {why}. Change the model, or leave "
                "strict out: that part then runs as it is."
            )
        return run

    def _rewritten(self, inputs: Sequence[Any], report: GraphReport) -> Callable[..., Any]:
        calls = graphs.calls(self.original.graph)
        reasons = [why for why in map(graphs.why_opaque, calls) if why is not None]
        if not all(isinstance(value, torch.Tensor) for value in inputs):
            reasons.append("its sizes are symbols; compile with dynamic=False")
        plain = (torch.Tensor, torch.nn.Parameter)
        if any(isinstance(value, torch.Tensor) and type(value) not in plain for value in inputs):
            reasons.append("an input is of a subclass of Tensor")
        if reasons:
            report.left_alone = "; ".join(dict.fromkeys(reasons))
            return self.original
        report.before = count(self.original)
        report.pictures["before"] = picture(self.original)
        held = {
            n
            for n, value in enumerate(inputs)
            if not value.is_inference() and any(known() is value for known in self.weights)
        }
        candidate = self.rewriter(copy.deepcopy(self.original), inputs, held, report)
        if candidate is None:
            return self.original
        graphs.unalias(candidate.module, self.original)
        candidate.module.graph.lint()
        candidate.module.recompile()
        runner = _Runner(candidate, inputs, held)
        problem, report.check = why_wrong(self.original, runner, inputs, held, candidate.exact)
        if problem is not None:
            report.left_alone = f"the rewritten graph does not pass its check: {problem}"
            return self.original
        report.constants = runner.split[2] if runner.split else 0
        report.after = count(runner.module)
        old = frozenset(n.name for n in self.original.graph.nodes)
        report.pictures["after"] = picture(runner.module, old)
        return runner


def _weights(module: fx.GraphModule, examples: Sequence[Any]) -> list[Any]:
    """Return references to parameters and buffers among a graph's inputs."""
    names = [n.name for n in graphs.placeholders(module.graph)]
    return [
        weakref.ref(value)
        for name, value in zip(names, examples, strict=True)
        if isinstance(value, torch.nn.Parameter)
        or (isinstance(value, torch.Tensor) and "_buffers_" in name)
    ]


def _left_alone(
    name: str, why: str, strict: bool, ready: Callable[[], object]
) -> Callable[..., Any]:
    def keep(module: fx.GraphModule, examples: Sequence[Any]) -> Any:
        announce(GraphReport(name, left_alone=why))
        if strict:
            raise RewriteError(
                f"{name} leaves a graph alone: {why}. Leave strict out: the graph then runs as it "
                "is."
            )
        first = functools.cache(ready)

        def forward(*inputs: Any) -> Any:
            first()
            return module.forward(*inputs)

        return compat.boxed(forward)

    return keep


def compile_graph(
    name: str,
    rewriter: Rewriter,
    module: fx.GraphModule,
    examples: Sequence[Any],
    strict: bool = False,
    ready: Callable[[], object] = lambda: None,
) -> Callable[..., Any]:
    """Compile one graph of Dynamo with a rewriter: what a backend of torch.compile does.

    ``ready`` checks the options. It is called before the first call of every graph, of those that
    are left alone too, so that a wrong option never goes unnoticed.
    """
    weights = _weights(module, examples)
    broken = compat.graph_break_after(module)

    def inference(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
        return compat.boxed(_Rewritten(name, graph, rewriter, weights, broken, strict, ready))

    training = _left_alone(
        name, "gradients are wanted; call it under torch.no_grad()", strict, ready
    )
    backend = compat.aot_backend(inference, training)
    compiled: Callable[..., Any] = backend(module, examples)
    return compiled


def settings(
    name: str, given: Mapping[str, Any] | None, known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a backend, with defaults for those that are not given.

    Raises:
        RewriteError: there is no such option.
    """
    for option in given or {}:
        if option not in known:
            raise RewriteError(
                f"{name} has no option {option!r}. {nearest(str(option), known)} Options are given "
                f"as torch.compile(model, backend={name!r}, options={{...}})."
            )
    return {**known, **(given or {})}


def templates(
    module: fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Backend ``udf_templates``: rewriting by patterns that are always replaced.

    Options are ``templates``, the names of those to apply, and ``strict``.
    """
    wanted = settings("udf_templates", options, {"templates": DEFAULT, "strict": False})
    names = chosen(wanted["templates"])

    def rewriter(
        graph: fx.GraphModule, inputs: Sequence[Any], held: Collection[int], report: GraphReport
    ) -> Candidate | None:
        graph, report.fired = rewrite(graph, held, names)
        return Candidate(
            graph,
            all(TEMPLATES[name].exact for name in names),
            "fold" in names,
            _by_inductor if "fusion" in names else _as_it_is,
        )

    return compile_graph("udf_templates", rewriter, module, examples, wanted["strict"])
