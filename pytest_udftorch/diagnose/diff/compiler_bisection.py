# SPDX-License-Identifier: Apache-2.0
"""Compare a compiled run by its results, and find what in the compiler makes the difference.

Nothing sees the operators inside compiled code, so the results are compared: outputs, loss,
gradients, parameters. Where they differ, the run is repeated with less and less of the compiler
(Dynamo alone, AOTAutograd, its decompositions, Inductor), then with one option of Inductor changed,
then with operators left to ATen's kernels: neither decomposed nor lowered. The smallest set of
operators that removes the difference is found by delta debugging; if there is none, the smallest
set of operators and settings. If there is none of these either, the kernels tell where it begins.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.base.delta_debugging import smallest
from pytest_udftorch.diagnose.diff.alignment import same_result
from pytest_udftorch.diagnose.diff.record import execute
from pytest_udftorch.diagnose.runs.sides import Side
from pytest_udftorch.diagnose.runs.work import Work, run
from pytest_udftorch.errors import DiagnosisError, PrivateNameError, RunError
from pytest_udftorch.prove.judge.double_precision import DoublePrecision
from pytest_udftorch.swap.observe.recorder import Recording, overload_of

#: Parts of the compiler, each with all before it, and what the first that differs stands for.
STAGES: Final[Mapping[str, str]] = {
    "eager": "Dynamo",
    "aot_eager": "AOTAutograd",
    "aot_eager_decomp_partition": "the decompositions",
    "inductor": "Inductor's code",
}

#: The stage where the search ended before one was known.
UNKNOWN: Final = "the compiler"

#: The stage of a difference with which the compiler has nothing to do.
UNCOMPILED: Final = "without the compiler"

#: Settings of Inductor that may remove a difference, in words.
_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "emulate_precision_casts": {"emulate_precision_casts": True},
    "division_rounding": {"eager_numerics.division_rounding": True},
    "no contraction": {"cpp.enable_floating_point_contract_flag": "off"},
    "no fusion": {"max_fusion_size": 1, "epilogue_fusion": False},
    "no patterns": {"pattern_matcher": False},
    "no layout optimization": {"layout_optimization": False},
    "fallback_random": {"fallback_random": True},
}

#: Results whose errors are told, at most.
_SHOWN: Final = 5

#: Runs of compiled code in one search, at most.
COMPILES: Final = 60


@dataclass(frozen=True)
class ResultError:
    """How far a result is from what the model gives in float64, relative to its norm.

    Attributes:
        a: of a's.
        b: of b's.
    """

    a: float
    b: float


@dataclass(frozen=True)
class Bisection:
    """What in the compiler makes results differ.

    Attributes:
        side: the name of the compiled side.
        stage: the first part of the compiler with which the results differ.
        settings: those that remove the difference, each alone.
        operators: the smallest set found that removes it when left to ATen's kernels, with those
            of ``together`` if there are any; empty if that takes no operator, or leaving all to
            them does not.
        together: settings that remove it together, or with the operators; empty if operators alone
            do.
        kernel: if nothing removes it, the first kernel that gets only tensors of the eager run and
            gives one that is not of it, with its layers; empty if none is known.
        layers: operator -> the layers that call it in the eager run.
        errors: name of a result -> its errors, where it differs and float64 gives a truth.
        no_truth: why there is none, if it is so.
        compiles: runs of compiled code that this took.
        finished: whether the search ended before its runs or its time were used up.
        interrupted: whether Ctrl-C ended it.
    """

    side: str
    stage: str
    settings: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    kernel: str = ""
    layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    errors: Mapping[str, ResultError] = field(default_factory=dict)
    no_truth: str = ""
    compiles: int = 0
    finished: bool = True
    interrupted: bool = False

    def best(self) -> str:
        """Return the best answer in a few words; empty if there is none yet."""
        causes = [*self.operators, *self.together]
        if causes:
            return f"{causes[0]} and {len(causes) - 1} more" if len(causes) > 1 else causes[0]
        if self.settings:
            return f"the setting {self.settings[0]}"
        return "" if self.stage == UNKNOWN else self.stage

    def verdict(self, a: str, b: str) -> str:
        """Return the answer in a line; ``a`` and ``b`` are the names of the sides."""
        if self.stage == UNCOMPILED:
            return "Not the compiler: the sides differ without it, too."
        if self.operators or self.together or not self.settings:
            said = f"The compiler: {self.best() or 'it'} makes the difference"
        else:
            said = f"The compiler: {self.settings[0]} removes the difference"
        if not self.finished:
            said += ", as far as the search came"
        if not self.errors:
            return f"{said}."
        worst = max(self.errors.values(), key=lambda e: max(e.a, e.b))
        return f"{said}; {worst.a:.2g} ({a}) and {worst.b:.2g} ({b}) of the norm from the truth."

    def paragraph(self, a: str, b: str) -> str:
        """Return a paragraph; ``a`` and ``b`` are the names of the sides."""
        lines = [f"The results differ with {self.stage}, and not before."]
        if self.stage == UNKNOWN:
            lines = ["The search ended before the first stage of the compiler was known."]
        if self.stage == UNCOMPILED:
            return (
                f"The results differ {UNCOMPILED}, too. Compare the sides without it first, which "
                "names the operator."
            )
        if self.settings:
            lines.append(f"  Any of these settings removes it: {', '.join(self.settings)}.")
        for name in self.operators:
            layers = self.layers.get(name, ())
            shown = ", ".join(layers[:4]) + (" and others" if len(layers) > 4 else "")
            lines.append(f"  {name} ({shown})" if shown else f"  {name}")
        lines += [f"  {name} (a setting)" for name in self.together]
        if self.operators or self.together:
            lines.append(f"  {self._proof()}")
        elif not self.finished:
            lines.append(f"  The search ended after {self.compiles} runs of compiled code.")
        elif not self.settings:
            lines.append(
                "  No setting removes it, leaving operators to ATen does not either, and all of "
                "that together does not."
            )
            if self.kernel:
                lines.append(
                    f"  {self.kernel} is the first kernel that gets only tensors of the eager run "
                    "and gives another. Nothing can be put in its place, so there is no proof."
                )
        if self.no_truth:
            lines.append(f"  No truth: {self.no_truth}.")
        for name, one in self.errors.items():
            nearer = "both alike" if math.isclose(one.a, one.b, rel_tol=0.05) else None
            nearer = nearer or (f"{a} is nearer" if one.a < one.b else f"{b} is nearer")
            lines.append(
                f"  {name}: {one.a:.2g} ({a}) and {one.b:.2g} ({b}) of its norm from the truth "
                f"(float64); {nearer}"
            )
        return "\n".join(lines)

    def _proof(self) -> str:
        """Return the sentence on what removes the difference."""
        several = len(self.operators) > 1
        left = f"{'these' if several else 'this'} left to ATen's kernels" if self.operators else ""
        if self.together:
            left = " and ".join(filter(None, (left, "so set")))
        if self.finished:
            return f"Proof: with {left}, nothing differs any more; with any fewer it does."
        return (
            f"With {left}, nothing differs any more; a smaller set was not found in "
            f"{self.compiles} runs of compiled code. More seconds= (--seconds) may find one."
        )


@contextlib.contextmanager
def left_to_aten(operators: Sequence[str]) -> Iterator[None]:
    """Let Inductor neither decompose nor lower these overloads (``aten::gelu``)."""
    decomposition = importlib.import_module(compat.INDUCTOR_DECOMPOSITION)
    lowering = importlib.import_module(compat.INDUCTOR_LOWERING)
    for module in (decomposition, lowering):
        compat.check_changed(module)
    table, lowered = decomposition.decompositions, lowering.lowerings
    before, lowered_before = dict(table), dict(lowered)
    try:
        for overload in filter(None, map(overload_of, operators)):
            table.pop(overload, None)
            lowered[overload] = lowering.fallback_handler(overload)
        decomposition.fast_random_decomps.cache_clear()
        yield
    finally:
        table.clear()
        table.update(before)
        lowered.clear()
        lowered.update(lowered_before)
        decomposition.fast_random_decomps.cache_clear()


def _settings(values: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Return a context with settings of Inductor; those that this torch lacks are left out."""
    config = importlib.import_module(compat.INDUCTOR_CONFIG)
    known = {}
    for name, value in values.items():
        owner: Any = config
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part, None)
        if owner is not None and hasattr(owner, last):
            known[name] = value
    found: AbstractContextManager[Any] = config.patch(known)
    return found


@contextlib.contextmanager
def _without(units: Sequence[str]) -> Iterator[None]:
    """Change some of the settings, and leave some operators to ATen's kernels."""
    values = {k: v for name in units if name in _SETTINGS for k, v in _SETTINGS[name].items()}
    with _settings(values), left_to_aten([name for name in units if name not in _SETTINGS]):
        yield


@dataclass(frozen=True)
class Budget:
    """How long a search of a compiler may take, and whom it tells how far it is.

    Attributes:
        seconds: from now on; None: as long as it takes. The run that is going on is ended first.
        tell: gets a line before each run of compiled code; or None.
        keeps: whether Ctrl-C ends the search with what was found, instead of being raised.
    """

    seconds: float | None = None
    tell: Callable[[str], None] | None = None
    keeps: bool = False
    began: float = field(default_factory=time.monotonic)

    def check(self) -> None:
        """End the search if the time is up."""
        if self.seconds is not None and time.monotonic() - self.began > self.seconds:
            raise _TimeUp


class _TimeUp(BaseException):
    """Ends a search whose time is up; no code that runs may catch it."""


class Compiled:
    """A comparison in which at least one side is compiled.

    Attributes:
        a: the run of the first side.
        b: the run of the second side.
    """

    def __init__(self, work: Work, a: Side, b: Side, budget: Budget | None = None) -> None:
        if work.batch is not None:
            raise DiagnosisError(
                "A row alone cannot be compared with compiled code yet: only results are seen. "
                "Compare eager sides."
            )
        self._work, self._sides = work, (a, b)
        self._subject = b if b.compiled else a
        self._budget = budget or Budget()
        self._found = Bisection(self._subject.name, UNKNOWN)
        self._plain = Recording()
        self.compiles = 0
        self.a, self.b = (self._run(one, values=True) for one in (a, b))

    def _run(
        self, one: Side, around: Callable[[], AbstractContextManager[Any]] | None = None,
        values: bool = False, what: str = "", fresh: bool = True,
    ) -> Recording:  # fmt: skip
        import torch

        if one.record is not None:
            return execute(self._work, one)
        if not one.compiled:
            return run(self._work, one, values=values)
        if what:
            self._budget.check()
        if fresh:
            self.compiles += 1
            torch.compiler.reset()
        self._tell(f"compiled run {self.compiles}, {what or f'{one.name} as it is'}")
        own = one.around

        @contextlib.contextmanager
        def both() -> Iterator[None]:
            with contextlib.ExitStack() as stack:
                # A cache knows neither of decompositions nor of lowerings.
                stack.enter_context(_settings({"fx_graph_cache": False}))
                for make in (own, around):
                    if make is not None:
                        stack.enter_context(make())
                yield

        return run(self._work, replace(one, around=both), values=values)

    def close(self) -> None:
        """Let torch.compile forget what it has compiled here."""
        import torch

        torch.compiler.reset()

    def _tell(self, what: str) -> None:
        if self._budget.tell is not None:
            best = self._found.best()
            self._budget.tell(f"{what}; best so far: {best}" if best else what)

    def unrepeatable(self) -> str | None:
        """Return the name of a side that differs from itself, or None."""
        for one, first in zip(self._sides, (self.a, self.b), strict=True):
            # The code is compiled already: it runs again as it is.
            if one.record is None and not same_result(first, self._run(one, fresh=False)):
                return one.name
        return None

    def bisected(self) -> Bisection:
        """Find what in the compiler makes the results differ; at least the best so far.

        Raises:
            KeyboardInterrupt: unless the budget keeps what was found until then.
        """
        self._found = Bisection(self._subject.name, UNKNOWN)
        try:
            self._search()
        except _TimeUp:
            self._found = replace(self._found, finished=False)
        except KeyboardInterrupt:
            if not self._budget.keeps:
                raise
            self._found = replace(self._found, finished=False, interrupted=True)
        found = self._found
        return replace(found, layers=self._layers(found.operators), compiles=self.compiles)

    def _layers(self, operators: Sequence[str]) -> dict[str, tuple[str, ...]]:
        return {
            name: tuple(
                dict.fromkeys(
                    str(c.place) for c in self._plain.calls if _functional(c.operator) == name
                )
            )
            for name in operators
        }

    def _search(self) -> None:
        """Narrow down the cause; what is known so far stands in ``_found``."""
        other = self.a if self._subject is self._sides[1] else self.b
        subject = self._subject
        errors = self._errors()
        self._found = replace(self._found, errors=errors)
        stage = self._stage(other)
        self._found = replace(self._found, stage=stage)
        if stage not in (STAGES["inductor"], STAGES["aot_eager_decomp_partition"]):
            return

        def removed(around: Callable[[], AbstractContextManager[Any]], what: str) -> bool:
            try:
                return same_result(other, self._run(subject, around, what=what))
            except RunError:  # the compiler refuses this combination
                return False

        # No setting of Inductor's code changes what differs before it.
        for name, values in _SETTINGS.items() if stage == STAGES["inductor"] else ():
            if removed(partial(_settings, values), f"with the setting {name}"):
                self._found = replace(self._found, settings=(*self._found.settings, name))

        def smaller(
            around: Callable[[Sequence[str]], AbstractContextManager[Any]], some: Sequence[str]
        ) -> bool:
            gone = removed(lambda: around(some), f"{len(some)} left to ATen or changed")
            if gone:
                self._keep(some, finished=False)
            return gone

        names = list(dict.fromkeys(_functional(c.operator) for c in self._plain.calls))
        best, finished = smallest(names, partial(smaller, left_to_aten), self._left())
        if not best and not self._found.settings:
            # Causes that act together: what removes one of them leaves the others.
            units = [*_SETTINGS, *names]
            best, finished = smallest(units, partial(smaller, _without), self._left())
        self._keep(best, finished=finished)
        if not best and not self._found.settings:
            self._found = replace(self._found, kernel=self._kernel())

    def _keep(self, some: Sequence[str], *, finished: bool) -> None:
        """Note the smallest set that is known to remove the difference."""
        self._found = replace(
            self._found,
            operators=tuple(n for n in some if n not in _SETTINGS),
            together=tuple(n for n in some if n in _SETTINGS),
            finished=finished,
        )

    def _left(self) -> int:
        """Return how many more runs of compiled code the search may take."""
        return max(1, COMPILES - self.compiles)

    def _kernel(self) -> str:
        """Return the first kernel that makes a tensor the eager run lacks of those it has."""
        from pytest_udftorch.diagnose.diff.kernels import BACKEND, GRAPH, run_with_kernels

        if self._subject.backend != BACKEND:
            return ""
        self.compiles += 1
        try:
            recording = run_with_kernels(self._work, self._subject)
        except (RunError, PrivateNameError):
            return ""
        eager = self._plain.calls
        known = {n.digest for c in eager for n in (*c.inputs, *c.outputs)}
        for call in recording.calls:
            got, gave = ({n.digest for n in notes} for notes in (call.inputs, call.outputs))
            if got and got <= known and not gave <= known and call.operator != GRAPH:
                return f"{call.operator} ({call.place})"
        return ""

    def _stage(self, other: Recording) -> str:
        self._plain = run(self._work, replace(self._subject, backend=None, mode=None, options={}))
        if not same_result(other, self._plain):
            return UNCOMPILED
        for backend, words in STAGES.items():
            if backend == self._subject.backend:
                return words
            less = replace(self._subject, backend=backend, mode=None, options={})
            if not same_result(other, self._run(less, what=f"with {words} and no more")):
                return words
        return f"the backend {self._subject.backend}"

    def _errors(self) -> dict[str, ResultError]:
        """Hold the results that differ against those of the model in float64."""
        from pytest_udftorch.swap.observe.digests import relative, same_bits

        wide = replace(
            self._subject, backend=None, mode=None, options={}, dtype="float64", autocast=None
        )
        truth, why = _in_float64(self._work, wide)
        self._found = replace(self._found, no_truth=why)
        found: dict[str, ResultError] = {}
        for name, note in self.a.result.items():
            three = [values.get(name) for values in (self.a.values, self.b.values, truth)]
            known = [t for t in three if t is not None and t.is_floating_point()]
            if len(known) < 3 or len(found) >= _SHOWN or same_bits(note, self.b.result[name]):
                continue
            flat = [t.double().cpu().reshape(-1).numpy() for t in known]
            found[name] = ResultError(relative(flat[0], flat[2]), relative(flat[1], flat[2]))
        return found


def _in_float64(work: Work, wide: Side) -> tuple[dict[str, Any], str]:
    """Run a side in float64; return what it gives, or nothing and the reason."""
    mode = DoublePrecision()

    def mode_of(_: Any) -> DoublePrecision:
        return mode

    try:
        values = run(work, wide, values=True, mode_of=mode_of).values
    except DiagnosisError:
        if wide.dtype is None:
            raise
        # A callable makes its numbers itself, which the mode widens.
        return _in_float64(work, replace(wide, dtype=None))
    except RunError as error:
        return {}, f"it does not run in float64 ({error.__cause__ or error})"
    if mode.drew:
        return {}, f"{mode.drew} draws random numbers, which are others in float64"
    if mode.left:
        return {}, f"{mode.left} leaves float64"
    return values, ""


def _functional(name: str) -> str:
    """Return the overload into which AOTAutograd turns one that writes in place."""
    base, _, overload = name.partition(".")
    if base.endswith("_") and not base.endswith("__"):
        base = base[:-1]
    return f"{base}.{overload}" if overload else base
