# SPDX-License-Identifier: Apache-2.0
"""A model whose inputs change their sizes: when to compile again, and for which sizes.

Four forms can run a call: the model as it is (``eager``), code for all sizes (``all``), code for a
range of sizes (``range``), and code for one size (``exact``). The last three cost their
compilation. It is a problem of renting or buying (Karlin et al., Competitive Snoopy Caching,
Algorithmica 3, 1988):

* nothing serves a size yet, and no gain is known: code is made when the calls so far have taken as
  long as it costs, so that a process that ends before loses nothing over eager mode;
* the gain of a form is not known, but another form serves: it is made when the calls that are
  expected take many times as long;
* else: when gain per call, times the calls that are expected, exceeds the cost. A size is expected
  as often as in an earlier process, less the calls so far, or as often again as it was called.

The check of code at a size is a cost as well: a size is given to code when its calls pay for that.
Code for all sizes leaves open the dimensions that were seen to change, from 2 on. Ranges are powers
of two in these. Torch's own guards hold the code to them, and a call outside runs as it is until
code pays.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.base import compat, whole_file
from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.base.trees import convert, tensors_in
from pytest_udftorch.base.units import time_text
from pytest_udftorch.errors import JournalError
from pytest_udftorch.measure.planning.executor import Executor, Run
from pytest_udftorch.measure.planning.executors import make, resolve
from pytest_udftorch.measure.planning.identity import device_name, fingerprint, home
from pytest_udftorch.measure.planning.pairs import judge_call, recompile_limits

EAGER: Final = "eager"
ALL: Final = "all"
RANGE: Final = "range"
EXACT: Final = "exact"
FORMS: Final = (EAGER, ALL, RANGE, EXACT)

#: Calls of a form at a size that are timed.
SAMPLES: Final = 5
#: Of the calls of a size, one in so many may go to a form that seems to be slower, to time it.
ASIDE: Final = 8
#: A form whose gain is not known is made beside one that serves when the calls that are expected
#: take so many times as long as it costs: then it costs a tenth at most.
EXPLORE: Final = 10
#: Seconds that a compilation is expected to take until one has been seen.
COMPILE_SECONDS: Final = 5.0
#: Sizes from whose times the ratio of two forms is known.
_RECENT: Final = 16
#: Writing the statistics takes at most this part of the time.
_WRITING: Final = 0.01
#: The largest size of a dimension in code for all sizes.
UNBOUNDED: Final = 2**62

#: Sizes of all tensors among the inputs.
Size = tuple[tuple[int, ...], ...]
#: The least and the largest size of each dimension of each tensor.
Ranges = tuple[tuple[tuple[int, int], ...], ...]


@dataclass
class Seen:
    """What is known of one size.

    Attributes:
        calls: of this process.
        before: calls in an earlier process, on average.
        ns: form -> its timed calls.
    """

    calls: int = 0
    before: float = 0.0
    ns: dict[str, list[int]] = field(default_factory=dict)

    def time(self, form: str) -> float | None:
        """Return the median time of a form."""
        return statistics.median_low(self.ns[form]) if self.ns.get(form) else None

    def fastest(self, available: Collection[str]) -> float | None:
        """Return the least time of the available forms."""
        return min((t for f in available if (t := self.time(f)) is not None), default=None)

    @property
    def expected(self) -> float:
        """Calls that are still to come."""
        return max(self.before - self.calls, self.calls)


def varying(sizes: Iterable[Size]) -> frozenset[tuple[int, int]]:
    """Return the dimensions, as tensor and dimension, in which sizes of one rank differ."""
    first, *others = sizes
    return frozenset(
        (t, d)
        for t, shape in enumerate(first)
        for d, size in enumerate(shape)
        if any(other[t][d] != size for other in others)
    )


def ranges(size: Size, dynamic: Collection[tuple[int, int]]) -> Ranges | None:
    """Return the range of a size: powers of two where sizes vary.

    It is None where nothing varies, and where a size that varies is 0 or 1: torch compiles these
    apart.
    """
    if not dynamic or any(size[t][d] < 2 for t, d in dynamic):
        return None

    def one(t: int, d: int, n: int) -> tuple[int, int]:
        low = 1 << (n.bit_length() - 1)
        return (low, 2 * low - 1) if (t, d) in dynamic else (n, n)

    return tuple(tuple(one(t, d, n) for d, n in enumerate(shape)) for t, shape in enumerate(size))


def unbounded(size: Size, dynamic: Collection[tuple[int, int]]) -> Ranges | None:
    """Return the limits of code for all sizes: from 2 on where sizes vary, else a size alone.

    It is None where nothing varies, and where a size that varies is 0 or 1.
    """
    if not dynamic or any(size[t][d] < 2 for t, d in dynamic):
        return None
    return tuple(
        tuple((2, UNBOUNDED) if (t, d) in dynamic else (n, n) for d, n in enumerate(shape))
        for t, shape in enumerate(size)
    )


def within(size: Size, limits: Ranges) -> bool:
    """Whether a size lies in a range."""
    return [len(shape) for shape in size] == [len(shape) for shape in limits] and all(
        low <= n <= high
        for shape, limit in zip(size, limits, strict=True)
        for n, (low, high) in zip(shape, limit, strict=True)
    )


@dataclass
class Knowledge:
    """What calls and compilations have shown.

    Attributes:
        sizes: of all processes.
        compile_ns: form -> what compilations of it have taken.
        first_ns: what a compilation is expected to take until one has been seen.
        wasted_ns: what compilations have taken in this process whose code is not used.
        checks: how many times as long as a call of eager mode the checks of code have taken.
    """

    sizes: dict[Size, Seen] = field(default_factory=dict)
    compile_ns: dict[str, list[int]] = field(default_factory=dict)
    first_ns: float = COMPILE_SECONDS * 1e9
    wasted_ns: float = 0.0
    checks: list[float] = field(default_factory=list)

    def cost(self, form: str) -> float:
        """Return what compiling is expected to take."""
        known = self.compile_ns.get(form) or [
            n for all_of in self.compile_ns.values() for n in all_of
        ]
        return statistics.median(known) if known else self.first_ns

    def ratio(self, form: str) -> float | None:
        """Return the time of a form over eager's, the median over sizes; None if not known."""
        found = [
            mine / eager
            for seen in self.sizes.values()
            if (mine := seen.time(form)) is not None and (eager := seen.time(EAGER))
        ]
        return statistics.median(found[-_RECENT:]) if found else None

    def _guess(self, form: str) -> float | None:
        """Return the least ratio of another form of code; None if none is known."""
        others = (self.ratio(other) for other in FORMS if other not in (form, EAGER))
        return min((ratio for ratio in others if ratio is not None), default=None)

    def net_ns(self, form: str, covered: Iterable[Size], available: Collection[str]) -> float:
        """Return what making a form is expected to save, less its cost; above 0 it pays.

        Args:
            form: ``all``, ``range`` or ``exact``.
            covered: the sizes that it would run.
            available: the forms that these sizes have now.
        """
        sizes = [self.sizes[s] for s in covered]
        cost, ratio = self.cost(form), self.ratio(form)
        now = [(seen, t) for seen in sizes if (t := seen.fastest(available)) is not None]
        if ratio is None:
            to_come = sum(seen.expected * took for seen, took in now)
            if set(available) != {EAGER}:
                return to_come - EXPLORE * cost
            ratio = self._guess(form)
            if ratio is None:
                spent = sum(seen.calls * took for seen, took in now)
                cost += self.wasted_ns
                return max(spent - cost, to_come - EXPLORE * cost)
        check = statistics.median(self.checks) if self.checks else 0.0
        saved = 0.0
        for seen, took in now:
            then = seen.time(form)
            eager = seen.time(EAGER)
            if then is None and eager is not None:
                then = ratio * eager
            if then is not None:
                saved += max(0.0, seen.expected * (took - then) - check * (eager or 0.0))
        return saved - cost

    def choose(
        self, covered: Mapping[str, Sequence[Size]], available: Collection[str]
    ) -> str | None:
        """Return the form to make before a call, or None.

        Args:
            covered: form that can be made -> the sizes that it would run.
            available: the forms that the size of the call has now.
        """
        gains = {f: self.net_ns(f, s, available) for f, s in covered.items() if f not in available}
        best = max(gains, key=lambda f: gains[f], default=None)
        return best if best is not None and gains[best] > 0 else None

    def pays_check(self, form: str, size: Size) -> bool:
        """Whether the calls of a size pay for checking there code that serves other sizes."""
        ratio = self.ratio(form)
        if ratio is None or not self.checks:
            return True
        return self.sizes[size].expected * (1 - ratio) > statistics.median(self.checks)

    def run_by(self, size: Size, available: Collection[str]) -> str:
        """Return the form for a call: the fastest, or one that has to be timed.

        A form without times at this size is expected to take the time that it takes at other sizes.
        """
        seen = self.sizes[size]
        eager = seen.time(EAGER)
        if eager is None:
            return EAGER
        times: dict[str, float] = {}
        for form in FORMS:
            if form in available:
                took = seen.time(form)
                if took is None and (ratio := self.ratio(form)) is not None:
                    took = ratio * eager
                if took is None:
                    return form
                times[form] = took
        for form in times:
            known = len(seen.ns.get(form, ()))
            if known < SAMPLES and ASIDE * (known + 1) <= seen.calls:
                return form
        return min(times, key=lambda f: times[f])


_LIST: Final = shapes.each(shapes.whole())
_NUMBERS: Final = shapes.mapping(shapes.text(), _LIST)
_SIZE: Final = shapes.record(
    {
        "size": shapes.each(_LIST),
        "calls": shapes.number(),
        "ns": _NUMBERS,
    },
    {},
    closed=True,
)
_FILE: Final = shapes.record(
    {
        "key": shapes.mapping(shapes.text(), shapes.text()),
        "processes": shapes.whole(),
        "sizes": shapes.each(_SIZE),
        "compile_ns": _NUMBERS,
    },
    {},
    closed=True,
)


def _read(path: Path, key: Mapping[str, str]) -> tuple[int, Knowledge]:
    """Return the processes that a file tells of, and what they have shown.

    Raises:
        JournalError: it is something else, or damaged.
    """
    try:
        found: Any = shapes.parse_json(shapes.read_file(path), finite=False)
        shapes.check_seal(found)
        found = {k: v for k, v in found.items() if k in ("key", "processes", "sizes", "compile_ns")}
        _FILE(found, "the statistics")
    except FileNotFoundError:
        return 0, Knowledge()
    except (OSError, shapes.Malformed, AttributeError) as error:
        raise JournalError(
            f"{path} holds no statistics of sizes, or is damaged, and is left alone ({error}). "
            "Name another file, or delete it."
        ) from error
    if found["key"] != dict(key):
        return 0, Knowledge()
    processes = max(1, found["processes"])
    sizes = {
        tuple(map(tuple, row["size"])): Seen(0, row["calls"] / processes, row["ns"])
        for row in found["sizes"]
    }
    return processes, Knowledge(sizes, found["compile_ns"])


@dataclass
class Compilation:
    """One compilation.

    Attributes:
        form: ``all``, ``range`` or ``exact``.
        limits: the sizes that it serves.
        ns: what it took, the first call included.
        problem: why its result is not used, or "".
    """

    form: str
    limits: Ranges
    ns: int
    problem: str = ""
    call: Run | None = field(default=None, repr=False)
    checked: set[Size] = field(default_factory=set, repr=False)


@dataclass
class _Settled:
    """What runs the calls of a size until they are so many."""

    call: Run
    seen: Seen
    until: int


class BySize(Result):
    """A model that is compiled for the sizes where that pays; see :func:`by_size`.

    Attributes:
        compilations: in their order.
        knowledge: sizes and times.
    """

    def __init__(
        self,
        model: nn.Module,
        exact: Executor,
        statistics: Path | None,
        compile_seconds: float = COMPILE_SECONDS,
    ) -> None:
        self.model, self.exact, self.path = model, exact, statistics
        self.compilations: list[Compilation] = []
        self.knowledge = Knowledge(first_ns=compile_seconds * 1e9)
        self._processes = 0
        self._key: dict[str, str] | None = None
        self._family: Any = None
        self._lock = threading.RLock()
        self._settled: dict[Size, _Settled] = {}
        #: What the calls of this process, or of those that are expected, take as code stands.
        self._work_ns: dict[Size, float] = {}
        self._total_ns = 0.0
        self._calls = 0
        self._choose_at = 0.0
        self._written = time.perf_counter_ns()
        self._write_ns = 0

    def __call__(self, *inputs: Any) -> Any:
        """Run the model, without gradients.

        Raises:
            JournalError: the statistics cannot be read or written.
        """
        with torch.no_grad():
            tensors = tensors_in(inputs)
            size: Size = tuple(tuple(t.shape) for t in tensors)
            family = [(t.dtype, t.device, t.dim()) for t in tensors]
            with self._lock:
                if self._key is None:
                    self._open(inputs, family)
                if family != self._family:  # nothing is known of other kinds of inputs
                    return self.model(*inputs)
                self._calls += 1
                settled = self._settled.get(size)
                if settled is not None and settled.seen.calls < settled.until:
                    settled.seen.calls += 1
                    form, call, seen, measured = EAGER, settled.call, settled.seen, False
                else:
                    form, call = self._form(size, inputs)
                    seen = self.knowledge.sizes[size]
                    seen.calls += 1
                    measured = len(seen.ns.get(form, ())) < SAMPLES
                    if not measured:
                        self._settled[size] = _Settled(call, seen, seen.calls + seen.calls // 4)
            if not measured:
                result = call(*inputs)
            else:
                wait = torch.cuda.synchronize if tensors and tensors[0].is_cuda else _nothing
                wait()
                before = time.perf_counter_ns()
                result = call(*inputs)
                wait()
                took = time.perf_counter_ns() - before
                with self._lock:
                    seen.ns.setdefault(form, []).append(took)
            if self.path is not None:
                self._noted()
            return result

    def _open(self, inputs: Sequence[Any], family: Any) -> None:
        self._family = family
        self._key = {
            "model": fingerprint(self.model, None),
            "inputs": ", ".join(f"{dtype} of {rank}" for dtype, _, rank in family),
            "device": device_name(home(inputs)),
            "torch": torch.__version__,
            "threads": str(torch.get_num_threads()),
            "executor": self.exact.name,
        }
        if self.path is not None:
            first_ns = self.knowledge.first_ns
            self._processes, self.knowledge = _read(self.path, self._key)
            self.knowledge.first_ns = first_ns
            for size in self.knowledge.sizes:
                self._weigh(size)

    def _weigh(self, size: Size) -> None:
        """Bring up to date how long the calls of a size take that are made or expected."""
        seen = self.knowledge.sizes[size]
        took = seen.fastest({EAGER, *self._made(size)}) or 0.0
        work = max(seen.calls, seen.expected) * took
        self._total_ns += work - self._work_ns.get(size, 0.0)
        self._work_ns[size] = work

    def _made(self, size: Size) -> dict[str, Compilation]:
        """Return the forms that have code for a size, the latest of each."""
        return {
            c.form: c for c in self.compilations if c.call is not None and within(size, c.limits)
        }

    def _form(self, size: Size, inputs: tuple[Any, ...]) -> tuple[str, Run]:
        known = self.knowledge
        seen = known.sizes.setdefault(size, Seen())
        self._weigh(size)
        # Choosing looks at all sizes, so it is left out where calls are too few to pay for
        # anything, and until they are more by an eighth.
        if seen.ns.get(EAGER) and self._calls >= self._choose_at:
            least = min(map(known.cost, (ALL, RANGE, EXACT)))
            if self._total_ns > least:
                self._choose_at = self._calls * 1.125
                self._choose(size, inputs)
        made = self._made(size)
        for form in list(made):
            served = size in made[form].checked or known.pays_check(form, size)
            if not served or not self._holds(made[form], size, inputs):
                del made[form]
        form = known.run_by(size, {EAGER, *made})
        if form == EAGER:
            return form, self.model
        found = made[form].call
        assert found is not None
        return form, found

    def _choose(self, size: Size, inputs: tuple[Any, ...]) -> None:
        """Make a form for a size, if that is expected to pay."""
        known = self.knowledge
        tried = {c.form for c in self.compilations if c.problem and within(size, c.limits)}
        varied = varying(known.sizes)
        limits = {
            ALL: unbounded(size, varied),
            RANGE: ranges(size, varied),
            EXACT: tuple(tuple((n, n) for n in shape) for shape in size),
        }
        covered = {
            form: [s for s in known.sizes if within(s, limit)]
            for form, limit in limits.items()
            if limit is not None and form not in tried
        }
        form = known.choose(covered, {EAGER, *self._made(size)})
        if form is not None:
            chosen = limits[form]
            assert chosen is not None
            self._compile(form, chosen, inputs)
            self._settled.clear()
            for other in known.sizes:
                self._weigh(other)

    def _compile(self, form: str, limits: Ranges, inputs: tuple[Any, ...]) -> None:
        made = Compilation(form, limits, 0)
        self.compilations.append(made)
        before = time.perf_counter_ns()
        try:
            with recompile_limits():
                if form == EXACT:
                    made.call = _exact(self.exact, self.model, inputs)
                    made.call(*inputs)
                else:
                    made.call = torch.compile(self.model, dynamic=False)
                    made.call(*_marked(inputs, limits))
            if inputs and (tensors := tensors_in(inputs)) and tensors[0].is_cuda:
                torch.cuda.synchronize()
        except Exception as error:
            made.call = None
            first = (str(error).strip() or "no message").splitlines()[0][:200]
            made.problem = f"{type(error).__name__}: {first}"
        made.ns = time.perf_counter_ns() - before
        if made.problem:
            self.knowledge.wasted_ns += made.ns
        self.knowledge.compile_ns.setdefault(form, []).append(made.ns)

    def _holds(self, made: Compilation, size: Size, inputs: tuple[Any, ...]) -> bool:
        """Whether the code passes its check at this size; it is tried at each size once."""
        if size in made.checked:
            return True
        assert made.call is not None
        before = time.perf_counter_ns()
        try:
            # Code that does not serve this size must say so, and not be compiled unseen.
            with torch.compiler.set_stance("fail_on_recompile"):
                problem = judge_call(self.model, inputs, made.call)
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        took = time.perf_counter_ns() - before
        if eager := self.knowledge.sizes[size].time(EAGER):
            self.knowledge.checks = [*self.knowledge.checks[-_RECENT:], took / eager]
        if problem:
            made.problem, made.call = problem, None
            self.knowledge.wasted_ns += made.ns
            self._settled.clear()
            return False
        made.checked.add(size)
        return True

    def _noted(self) -> None:
        """Write the statistics when the calls since the last time took long beside writing."""
        with self._lock:
            now = time.perf_counter_ns()
            if self._write_ns <= _WRITING * (now - self._written):
                self.save()
                self._write_ns = time.perf_counter_ns() - now
                self._written = now + self._write_ns

    def save(self) -> None:
        """Write the statistics to their file; a later process starts from them.

        Raises:
            JournalError: they cannot be written.
        """
        if self.path is None or self._key is None:
            return
        with self._lock:
            content = {
                "key": self._key,
                "processes": self._processes + 1,
                "sizes": [
                    {
                        "size": [list(shape) for shape in size],
                        "calls": round(seen.before * self._processes) + seen.calls,
                        "ns": {f: ns[-SAMPLES:] for f, ns in seen.ns.items()},
                    }
                    for size, seen in self.knowledge.sizes.items()
                ],
                "compile_ns": {f: ns[-64:] for f, ns in self.knowledge.compile_ns.items()},
            }
            try:
                whole_file.write(self.path, json.dumps(shapes.sealed(content), indent=1) + "\n")
            except OSError as error:
                raise JournalError(
                    f"{self.path} cannot be written ({error.strerror}). Name a file in a folder "
                    "that may be written to and has room."
                ) from error

    def _shown(self) -> Shown:
        rows = []
        for size, seen in self.knowledge.sizes.items():
            times = [(form, seen.time(form)) for form in FORMS]
            shapes_text = " ".join("x".join(map(str, shape)) or "()" for shape in size)
            shown = ", ".join(f"{form} {time_text(ns)}" for form, ns in times if ns is not None)
            rows.append((shapes_text, f"{seen.calls:,}", shown))
        title = f"{self._calls:,} calls, {len(self.compilations)} compilations"
        return Shown(title, ("size", "calls", "median times"), rows)

    def document(self) -> dict[str, Any]:
        """Return sizes with calls and median times by form, and all compilations."""
        return {
            "sizes": [
                {
                    "size": [list(shape) for shape in size],
                    "calls": seen.calls,
                    "ns": {f: seen.time(f) for f in FORMS if seen.time(f) is not None},
                }
                for size, seen in self.knowledge.sizes.items()
            ],
            "compilations": [
                {"form": c.form, "limits": c.limits, "ns": c.ns, "problem": c.problem}
                for c in self.compilations
            ],
        }


def _nothing() -> None:
    pass


def _exact(executor: Executor, model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    # torch.compile keeps the model as it is, and its code follows the weights.
    if executor.name.startswith("compile") and "+" not in executor.name:
        executor.check(inputs)
        return executor.make_callable(model, inputs)
    return make(executor, model, inputs)


def _marked(inputs: tuple[Any, ...], limits: Ranges) -> tuple[Any, ...]:
    """Return the inputs with the dimensions marked that have a range; the caller's stay as is."""
    own = iter(limits)

    def mark(tensor: torch.Tensor) -> torch.Tensor:
        marked = tensor.detach()
        for dimension, (low, high) in enumerate(next(own)):
            if low != high:
                most = None if high == UNBOUNDED else high
                compat.mark_dynamic(marked, dimension, low, most)
        return marked

    found: tuple[Any, ...] = convert(inputs, mark)
    return found


def by_size(
    model: nn.Module,
    *,
    executor: str | Executor = "compile",
    statistics: str | Path | None = None,
    compile_seconds: float = COMPILE_SECONDS,
) -> BySize:
    """Compile a model for the sizes of its inputs, where that pays within the calls expected.

    Each compiled form is checked at each size, in its first call there, as the members of a model
    pair are. A form that does not pass is not used.

    Args:
        model: in evaluation mode.
        executor: makes the code for one size; code for more sizes is always torch.compile's.
        statistics: a file in which sizes, times and compilations are kept for later processes, or
            None.
        compile_seconds: what a compilation is expected to take until one has been seen. Nothing is
            compiled before calls have taken as long, or are expected to take ten times as long.

    Returns:
        A callable of the model's arguments. It runs without gradients.

    Raises:
        ExecutorError: no such executor.
    """
    path = None if statistics is None else Path(statistics)
    if path is not None and not path.parent.is_dir():
        raise JournalError(f"{path.parent}, the folder of the statistics, does not exist. Make it.")
    return BySize(model, resolve(executor), path, compile_seconds)
