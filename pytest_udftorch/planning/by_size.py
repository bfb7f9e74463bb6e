# SPDX-License-Identifier: Apache-2.0
"""A model whose inputs change their sizes: when to compile again, and for which sizes.

Three forms can run a call: the model as it is (``eager``), code for a range of sizes (``range``),
and code for one size (``exact``). Each of the last two costs its compilation. They are made when
what is known says that they pay, a problem of renting or buying (Karlin et al., Competitive Snoopy
Caching, Algorithmica 3, 1988):

* nothing has been compiled yet: the second call of a size compiles, which shows cost and gain;
* the gain of a form is not known: it is made when the calls so far have taken as long as it costs;
* else: when gain per call, times the calls that are expected, exceeds the cost. A size is expected
  as often as in an earlier process, less the calls so far, or as often again as it was called.

Ranges are powers of two, for the dimensions that were seen to change. They are guards: torch's own
guards hold the code to them, and a call outside of every range runs as it is until code pays.
"""

from __future__ import annotations

import json
import math
import statistics
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch import compat, whole_file
from pytest_udftorch import plain_data as shapes
from pytest_udftorch.planning.executor import Executor, Run, convert, tensors_in
from pytest_udftorch.planning.executors import make, resolve
from pytest_udftorch.planning.identity import device_name, fingerprint, home
from pytest_udftorch.planning.pairs import judge_call, recompile_limits
from pytest_udftorch.planning.search_record import JournalError

EAGER: Final = "eager"
RANGE: Final = "range"
EXACT: Final = "exact"
FORMS: Final = (EAGER, RANGE, EXACT)

#: Calls of a form at a size that are timed.
SAMPLES: Final = 5

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
    """

    sizes: dict[Size, Seen] = field(default_factory=dict)
    compile_ns: dict[str, list[int]] = field(default_factory=dict)

    def cost(self, form: str) -> float | None:
        """Return what compiling is expected to take; None if nothing has been compiled yet."""
        known = self.compile_ns.get(form) or [
            n for all_of in self.compile_ns.values() for n in all_of
        ]
        return statistics.median(known) if known else None

    def ratio(self, form: str) -> float | None:
        """Return the time of a form over eager's, the median over sizes; None if not known."""
        found = [
            mine / eager
            for seen in self.sizes.values()
            if (mine := seen.time(form)) is not None and (eager := seen.time(EAGER))
        ]
        return statistics.median(found) if found else None

    def net_ns(self, form: str, covered: Iterable[Size], available: Collection[str]) -> float:
        """Return what making a form is expected to save, less its cost; above 0 it pays.

        Args:
            form: ``range`` or ``exact``.
            covered: the sizes that it would run.
            available: the forms that these sizes have now.
        """
        sizes = [self.sizes[s] for s in covered]
        cost, ratio = self.cost(form), self.ratio(form)
        if cost is None:
            return float(max(seen.calls for seen in sizes) >= 2)
        now = [(seen, seen.fastest(available)) for seen in sizes]
        if ratio is None:
            return sum(seen.calls * took for seen, took in now if took is not None) - cost
        saved = 0.0
        for seen, took in now:
            then = seen.time(form)
            eager = seen.time(EAGER)
            if then is None and eager is not None:
                then = ratio * eager
            if took is not None and then is not None:
                saved += seen.expected * (took - then)
        return saved - cost

    def choose(
        self, size: Size, covered: Mapping[str, Sequence[Size]], available: Collection[str]
    ) -> str | None:
        """Return the form to make before a call, or None.

        Args:
            size: of the call.
            covered: form that can be made -> the sizes that it would run.
            available: the forms that the size has now.
        """
        gains = {f: self.net_ns(f, s, available) for f, s in covered.items() if f not in available}
        if self.cost(EXACT) is None and len(covered.get(RANGE, ())) > 1:
            gains.pop(EXACT, None)
        best = max(gains, key=lambda f: gains[f], default=None)
        return best if best is not None and gains[best] > 0 else None

    def run_by(self, size: Size, available: Collection[str]) -> str:
        """Return the form for a call: one that is not timed yet, or the fastest."""
        seen = self.sizes[size]
        for form in reversed(FORMS):
            if form in available and len(seen.ns.get(form, ())) < SAMPLES:
                return form
        return min(available, key=lambda f: seen.time(f) or math.inf)


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
        form: ``range`` or ``exact``.
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


class BySize:
    """A model that is compiled for the sizes where that pays; see :func:`by_size`.

    Attributes:
        compilations: in their order.
        knowledge: sizes and times.
    """

    def __init__(self, model: nn.Module, exact: Executor, statistics: Path | None) -> None:
        self.model, self.exact, self.path = model, exact, statistics
        self.compilations: list[Compilation] = []
        self.knowledge = Knowledge()
        self._processes = 0
        self._key: dict[str, str] | None = None
        self._family: Any = None
        self._lock = threading.RLock()
        self._unwritten = 0

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
                form, call = self._form(size, inputs)
                seen = self.knowledge.sizes[size]
                seen.calls += 1
                measured = len(seen.ns.get(form, ())) < SAMPLES
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
            self._processes, self.knowledge = _read(self.path, self._key)

    def _made(self, size: Size) -> dict[str, Compilation]:
        """Return the forms that have code for a size, the latest of each."""
        return {
            c.form: c for c in self.compilations if c.call is not None and within(size, c.limits)
        }

    def _form(self, size: Size, inputs: tuple[Any, ...]) -> tuple[str, Run]:
        known = self.knowledge
        seen = known.sizes.setdefault(size, Seen())
        made = self._made(size)
        available = {EAGER, *made}
        tried = {c.form for c in self.compilations if c.problem and within(size, c.limits)}
        if seen.ns.get(EAGER):
            here = tuple(tuple((n, n) for n in shape) for shape in size)
            limits = {EXACT: here}
            if wider := ranges(size, varying(known.sizes)):
                limits[RANGE] = wider
            covered = {
                form: [s for s in known.sizes if within(s, limit)]
                for form, limit in limits.items()
                if form not in tried
            }
            form = known.choose(size, covered, available)
            if form is not None:
                self._compile(form, limits[form], inputs)
                made = self._made(size)
        for form in list(made):
            if not self._holds(made[form], size, inputs):
                del made[form]
        form = known.run_by(size, {EAGER, *made})
        if form == EAGER:
            return form, self.model
        found = made[form].call
        assert found is not None
        return form, found

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
        self.knowledge.compile_ns.setdefault(form, []).append(made.ns)

    def _holds(self, made: Compilation, size: Size, inputs: tuple[Any, ...]) -> bool:
        """Whether the code passes its check at this size; it is tried at each size once."""
        if size in made.checked:
            return True
        assert made.call is not None
        try:
            # Code that does not serve this size must say so, and not be compiled unseen.
            with torch.compiler.set_stance("fail_on_recompile"):
                problem = judge_call(self.model, inputs, made.call)
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        if problem:
            made.problem, made.call = problem, None
            return False
        made.checked.add(size)
        return True

    def _noted(self) -> None:
        """Write the statistics when as many calls again have been made as at the last time."""
        if self.path is None:
            return
        with self._lock:
            self._unwritten += 1
            total = sum(seen.calls for seen in self.knowledge.sizes.values())
            if 2 * self._unwritten >= total:
                self.save()

    def save(self) -> None:
        """Write the statistics to their file; a later process starts from them.

        Raises:
            JournalError: they cannot be written.
        """
        if self.path is None or self._key is None:
            return
        with self._lock:
            self._unwritten = 0
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

    def report(self) -> dict[str, Any]:
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
                compat.mark_dynamic(marked, dimension, low, high)
        return marked

    found: tuple[Any, ...] = convert(inputs, mark)
    return found


def by_size(
    model: nn.Module, *, executor: str | Executor = "compile", statistics: str | Path | None = None
) -> BySize:
    """Compile a model for the sizes of its inputs, where that pays within the calls expected.

    Each compiled form is checked at each size, in its first call there, as the members of a model
    pair are. A form that does not pass is not used.

    Args:
        model: in evaluation mode.
        executor: makes the code for one size; code for a range is always torch.compile's.
        statistics: a file in which sizes, times and compilations are kept for later processes, or
            None.

    Returns:
        A callable of the model's arguments. It runs without gradients.

    Raises:
        UnknownExecutorError: no such executor.
    """
    path = None if statistics is None else Path(statistics)
    if path is not None and not path.parent.is_dir():
        raise JournalError(f"{path.parent}, the folder of the statistics, does not exist. Make it.")
    return BySize(model, resolve(executor), path)
