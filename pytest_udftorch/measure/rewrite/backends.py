# SPDX-License-Identifier: Apache-2.0
"""Backends of torch.compile that rewrite the graph, check the result, and report what they did.

AOTAutograd hands over graphs of ATen operators that write into nothing. The first call of a graph
has real inputs: it is where the graph is rewritten, the result checked, and the time measured. The
graph runs as it was wherever a candidate does not pass its check, or was not measured to be faster.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from pytest_udftorch.base import compat
from pytest_udftorch.base.plain_data import shown
from pytest_udftorch.errors import PackageMissingError, RewriteError, nearest
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.bindings import by_bindings
from pytest_udftorch.measure.rewrite.check import why_wrong
from pytest_udftorch.measure.rewrite.compiler_warnings import by_inductor, noted_warnings
from pytest_udftorch.measure.rewrite.deadline import NEVER, Deadline, OutOfTime
from pytest_udftorch.measure.rewrite.gain import GAIN, ORIGINAL, kept, measured, why_not
from pytest_udftorch.measure.rewrite.report import GraphReport, count, picture
from pytest_udftorch.measure.rewrite.reuse import reusing
from pytest_udftorch.measure.rewrite.templates import (
    DEFAULT,
    FOLDED,
    TEMPLATES,
    Firing,
    chosen,
    rewrite,
)

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
    return by_bindings(reusing(module))


@dataclass
class Candidate:
    """A graph that may take the place of another.

    Attributes:
        module: takes the same inputs.
        exact: whether it must give the same bits.
        fold: whether what depends on weights alone is computed once.
        make: makes of the module, without what was folded, what is called; by default it is
            called itself.
        fired: the rules that lead to it from the graph as it was.
        before: a graph on the way to it, which it has to beat as well.
    """

    module: fx.GraphModule
    exact: bool
    fold: bool
    make: Callable[[fx.GraphModule], Callable[..., Any]] = _as_it_is
    fired: list[Firing] = field(default_factory=list)
    before: Candidate | None = None


#: Makes a candidate of a graph, the real inputs of the call, and the numbers of the weights among
#: them; writes what it did into the report, and returns the best that it has when the deadline
#: passes. None: there is nothing to gain.
Rewriter: TypeAlias = Callable[
    [fx.GraphModule, Sequence[Any], Collection[int], GraphReport, Deadline], Candidate | None
]

#: Seconds that a search on one graph may take, with its checks and measurements.
SECONDS: Final = 600.0
#: Which part of the time rewriting may take, and of what is then left the checks, so that what was
#: found can still be checked and measured.
_REWRITING, _CHECKING = 0.5, 0.6


class WeightState:
    """Which tensors the weights are, and how often they have been written by now."""

    def __init__(self, weights: Sequence[Any]) -> None:
        self._count = compat.write_counter()
        self._known: list[tuple[Any, int, int]] = [
            (weakref.ref(w), self._count(w), w.data_ptr()) for w in weights
        ]

    def holds(self, weights: Sequence[Any]) -> bool:
        """Whether these are the same tensors, and have not been written since."""
        if len(self._known) != len(weights):
            return False
        writes = self._count
        # In a plain loop: it runs before every call, over all weights of which constants are made.
        for (known, written, place), w in zip(self._known, weights, strict=True):
            if known() is not w or written != writes(w) or place != w.data_ptr():
                return False
        return True


class _Runner:
    """Runs a candidate; what depends on weights alone is computed when the weights change."""

    def __init__(self, candidate: Candidate, inputs: Sequence[Any], held: Collection[int]) -> None:
        self.split = graphs.split_constants(candidate.module, held) if candidate.fold else None
        # Only weights of which constants are made need to be looked at in every call.
        used = self._read() if self.split else frozenset()
        self.held = sorted(used & set(held))
        self.module = self.split[1] if self.split else candidate.module
        self.call = candidate.make(self.module)
        self._constants: tuple[Any, ...] = ()
        self._state: WeightState | None = None

    def _read(self) -> frozenset[int]:
        """Return the numbers of the inputs of which the constants are made."""
        assert self.split is not None
        taken = enumerate(graphs.placeholders(self.split[0].graph))
        return frozenset(number for number, node in taken if node.users)

    def folded(self) -> list[Firing]:
        """Return a firing for each tensor that is computed once."""
        if self.split is None:
            return []
        ends = graphs.outputs(self.split[0].graph)
        return [Firing(FOLDED, f"{node} is a constant") for node in ends]

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


@dataclass(frozen=True)
class Terms:
    """On what terms a backend replaces graphs.

    Attributes:
        strict: whether a part that is left alone is an error.
        gain: how many times as fast as the graph it came from a graph has to be; 0 keeps all.
        seconds: after which no step of the search on a graph is begun.
        ready: checks the options. It is called before the first call of every graph, of those that
            are left alone too, so that a wrong option never goes unnoticed.

    Raises:
        RewriteError: ``gain`` is no number, or below 0; ``seconds`` is no number above 0.
    """

    strict: bool = False
    gain: float = GAIN
    ready: Callable[[], object] = lambda: None
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        if isinstance(self.gain, bool) or not isinstance(self.gain, int | float) or self.gain < 0:
            raise RewriteError(
                f"gain={shown(self.gain)}: give how many times as fast a rewritten graph has to be "
                "to be kept, for instance 1.02, or 0 to keep it whatever its time."
            )
        Deadline(self.seconds)


class _Rewritten:
    """One graph: rewritten, checked and measured in its first call."""

    def __init__(
        self,
        name: str,
        original: fx.GraphModule,
        rewriter: Rewriter,
        weights: Sequence[Any],
        broken: str,
        terms: Terms,
    ) -> None:
        self.name, self.original, self.rewriter, self.terms = name, original, rewriter, terms
        self.weights, self.broken = weights, broken
        self.report = GraphReport(name)
        self.deadline = NEVER
        #: The identities of the inputs of the first call.
        self.taken: list[int] = []
        self.run: Callable[..., Any] | None = None
        self.lock = threading.Lock()

    @property
    def changed(self) -> bool:
        """Whether something else than the graph as it was runs."""
        return self.run is not None and self.run is not self.original

    def __call__(self, *inputs: Any) -> Any:
        if self.run is None:
            with self.lock:
                if self.run is None:
                    self.taken = [*map(id, inputs)]
                    self.run = self._decided(inputs)
        return self.run(*inputs)

    def _decided(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        report = self.report
        self.terms.ready()
        # The time of proving rules is not the graph's.
        self.deadline = Deadline(self.terms.seconds, report.cut)
        try:
            # AOTAutograd looks at each operator of the first call in a mode written in Python,
            # which would be timed too.
            with contextlib.ExitStack() as entered:
                entered.enter_context(compat.no_modes())
                entered.enter_context(torch.no_grad())
                entered.enter_context(noted_warnings(report.notes))
                # Searches draw numbers for what they measure; the model draws its own as before.
                entered.enter_context(graphs.own_numbers(inputs))
                run = self._rewritten(inputs, report)
        except (PackageMissingError, RewriteError):
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
        if self.terms.strict and why:
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
        candidate = self.rewriter(
            copy.deepcopy(self.original), inputs, held, report, self.deadline.share(_REWRITING)
        )
        if candidate is None:
            return self.original
        steps = {"rewritten": candidate}
        if candidate.before is not None:
            steps = {"simplified": candidate.before, **steps}
        runners: dict[str, _Runner] = {}
        checking = self.deadline.share(_CHECKING)
        for name, step in steps.items():
            try:
                runner, problem, check = self._checked(step, inputs, held, checking)
            except OutOfTime:
                break
            if problem is None:
                runners[name], report.check = runner, check
            elif step is candidate:
                report.check, report.fired = check, []
                report.left_alone = f"the rewritten graph does not pass its check: {problem}"
                return self.original
        report.fired = []
        if not runners:
            report.tried = candidate.fired
            return self.original
        last = next(reversed(runners.values()))
        if candidate.make is _as_it_is and not candidate.fired and not last.split:
            report.notes.append("no rule fired")
            return self.original
        name = self._fastest(runners, inputs, report)
        if name == ORIGINAL:
            report.tried = candidate.fired
            return self.original
        runner = runners[name]
        report.fired = [*steps[name].fired, *runner.folded()]
        report.tried = candidate.fired[len(steps[name].fired) :]
        report.constants = runner.split[2] if runner.split else 0
        report.after = count(runner.module)
        old = frozenset(n.name for n in self.original.graph.nodes)
        report.pictures["after"] = picture(runner.module, old)
        return runner

    def _checked(
        self,
        candidate: Candidate,
        inputs: Sequence[Any],
        held: Collection[int],
        deadline: Deadline,
    ) -> tuple[_Runner, str | None, str]:
        """Return what runs a candidate, why it may not, or None, and how it was judged.

        Raises:
            OutOfTime: the deadline has passed before it was judged.
        """
        graphs.unalias(candidate.module, self.original)
        candidate.module.graph.lint()
        candidate.module.recompile()
        runner = _Runner(candidate, inputs, held)
        judged = why_wrong(self.original, runner, inputs, held, candidate.exact, deadline)
        return runner, *judged

    def _fastest(
        self, runners: Mapping[str, _Runner], inputs: Sequence[Any], report: GraphReport
    ) -> str:
        """Return the name of the graph to run: one that was measured to be faster, or ORIGINAL."""
        last = list(runners)[-1]
        if self.deadline.passed("the measurement"):
            return ORIGINAL if self.terms.gain else last
        # The call as a whole is measured after this.
        timing = measured({ORIGINAL: self.original, **runners}, inputs, self.deadline.share(0.5))
        report.times_ns = {name: timing[name].median_ns for name in timing.timings}
        best = kept(timing, self.terms.gain)
        if best != last:
            report.not_kept = why_not(timing, last, best, self.terms.gain)
        return best


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


_USUAL: Final = Terms()


def compile_graph(
    name: str,
    rewriter: Rewriter,
    module: fx.GraphModule,
    examples: Sequence[Any],
    terms: Terms = _USUAL,
) -> Callable[..., Any]:
    """Compile one graph of Dynamo with a rewriter: what a backend of torch.compile does."""
    weights = _weights(module, examples)
    broken = compat.graph_break_after(module)
    made: list[_Rewritten] = []

    def inference(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
        made.append(_Rewritten(name, graph, rewriter, weights, broken, terms))
        return compat.boxed(made[-1])

    training = _left_alone(
        name, "gradients are wanted; call it under torch.no_grad()", terms.strict, terms.ready
    )
    backend = compat.aot_backend(inference, training)
    compiled: Callable[..., Any] = backend(module, examples)
    return _Whole(module, compiled, made[0]) if len(made) == 1 else compiled


class _Whole:
    """A graph of Dynamo: rewritten if that is faster when it is called, else as it was traced."""

    def __init__(
        self, module: fx.GraphModule, compiled: Callable[..., Any], inner: _Rewritten
    ) -> None:
        self.module, self.compiled, self.inner = module, compiled, inner
        self.run: Callable[..., Any] | None = None
        self.lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        if self.run is not None:
            return self.run(*inputs)
        with self.lock:
            found = self.compiled(*inputs)
            if self.run is None and self.inner.run is not None:
                self.run = self._decided(inputs)
        return found

    def _decided(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        traced: Callable[..., Any] = self.module.forward
        if not self.inner.changed:
            return traced
        # A graph that writes into its inputs has more results without writes; calling it again
        # and again would change them.
        pure = len(graphs.outputs(self.inner.original.graph)) == len(
            graphs.outputs(self.module.graph)
        )
        if not pure:
            return self.compiled
        rewritten = self._direct(inputs) or self.compiled
        if not self.inner.terms.gain:
            return rewritten
        report = self.inner.report
        deadline = self.inner.deadline
        if deadline.passed("the measurement of the whole call"):
            report.drop()
            return traced
        timing = measured({ORIGINAL: traced, "rewritten": rewritten}, inputs, deadline)
        report.called_ns = {name: timing[name].median_ns for name in timing.timings}
        if kept(timing, self.inner.terms.gain) != ORIGINAL:
            return rewritten
        report.not_kept = (
            f"called as a whole, {why_not(timing, 'rewritten', ORIGINAL, self.inner.terms.gain)}"
        )
        report.drop()
        return traced

    def _direct(self, inputs: Sequence[Any]) -> Callable[..., Any] | None:
        """Return what runs the rewritten graph without AOTAutograd around it, or None.

        There is nothing for that to do where the graph takes the inputs as they are, and returns
        tensors that share no memory with them or with each other.
        """
        inner = self.inner
        ends = graphs.outputs(inner.original.graph)
        bases = [graphs.base_of(n) if isinstance(n, fx.Node) else None for n in ends]
        alone = all(b is not None and b.op == "call_function" for b in bases)
        cast = any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
        if inner.taken != [*map(id, inputs)] or not alone or len({*bases}) < len(bases) or cast:
            return None
        run = inner.run
        assert run is not None

        def direct(*given: Any) -> Any:
            with torch.no_grad():
                return tuple(run(*given))

        return direct


#: Options that all backends have.
COMMON: Final[dict[str, Any]] = {"gain": GAIN, "seconds": SECONDS, "strict": False}


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

    Options are ``templates``, the names of those to apply, ``gain``, how many times as fast the
    graph has to become to be kept, ``seconds``, after which the search ends, and ``strict``.
    """
    known = {"templates": DEFAULT, **COMMON}
    wanted = settings("udf_templates", options, known)
    names = chosen(wanted["templates"])

    def rewriter(
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        held: Collection[int],
        report: GraphReport,
        deadline: Deadline,
    ) -> Candidate | None:
        graph, fired = rewrite(graph, held, names, deadline)
        return Candidate(
            graph,
            all(TEMPLATES[name].exact for name in names),
            "fold" in names,
            by_inductor if "fusion" in names else _as_it_is,
            fired,
        )

    return compile_graph("udf_templates", rewriter, module, examples, terms_of(wanted))


def terms_of(wanted: Mapping[str, Any], ready: Callable[[], object] = lambda: None) -> Terms:
    """Return the terms that a backend's options name; ``ready`` checks the others."""
    return Terms(wanted["strict"], wanted["gain"], ready, wanted["seconds"])


def simplified(graph: fx.GraphModule, held: Collection[int], deadline: Deadline) -> Candidate:
    """Return a graph with the templates of ``udf_templates`` applied, where other rules start."""
    module, fired = rewrite(graph, held, DEFAULT, deadline)
    return Candidate(module, exact=False, fold=True, fired=fired)


def further(
    start: Candidate, module: fx.GraphModule, fired: Sequence[Firing], exact: bool = False
) -> Candidate:
    """Return a candidate that rules made of a simplified graph; that itself if none fired."""
    if not fired:
        return start
    return Candidate(module, exact, True, fired=[*start.fired, *fired], before=start)
