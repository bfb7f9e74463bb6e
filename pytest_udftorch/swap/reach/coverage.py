# SPDX-License-Identifier: Apache-2.0
"""Coverage: which evaluations of transcendental functions in a run a session swaps.

A run is recorded: every operator that it calls below autograd, with shapes, dtypes and strides.
``definitions`` says which functions each evaluates by its definition, and how often. Then each
such call is repeated on the recorded values, once under the functions of libm and once for each
family of functions (exp, exp2 and expm1 are one) with the family swapped for functions that are
wrong by a quarter and more (``table.write_probe``). An element of the result that keeps its bits,
although torch's decomposition of the operator says that it depends on the family, was computed by
other code: that evaluation is not swapped. Elements that the definition changes by no more than
rounding may hide do not count; where none is left, the first tensor is amplified. Nothing here
reads the lists of what sessions override. Of compiled code, ``generated`` says what is repeated.

Where torch has no decomposition, every element is taken to depend on every family. An operator
that mixes elements (softmax, attention) may change everywhere if one evaluation does; the table of
reach looks at such operators element by element.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import OperatorWatch
from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.base.store import store
from pytest_udftorch.base.tensor_contents import contents, is_real
from pytest_udftorch.errors import CoverageError
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.observe.recording import strided_copy
from pytest_udftorch.swap.operators import definitions
from pytest_udftorch.swap.operators.overload import is_view
from pytest_udftorch.swap.reach.table import write_gpu_probe, write_probe
from pytest_udftorch.swap.session.binder import binder
from pytest_udftorch.swap.session.session import patched, trace
from pytest_udftorch.swap.toolchain.cache import cache_folder, fill, turn
from pytest_udftorch.swap.toolchain.environment import describe
from pytest_udftorch.swap.toolchain.progress import tell

FORMAT: Final = "udftorch-coverage-1"

#: The functions of these dtypes that a session swaps are float32's.
_SWAPPED_DTYPES: Final = ("float32", "bfloat16", "float16")

_INLINED: Final = "its code calls no symbol: the function is inlined, or code is generated"
_DOUBLE: Final = "computes in double precision"
_WIDE: Final = "float64 and complex stay stock: no library has functions for them"
_ON_CUDA: Final = "no session overrides the operator on CUDA"
_GENERATED: Final = "the generated code has the function inlined"
_STOCK: Final = "a generated kernel calls {}"
_UNSEEN: Final = "a swap would not show in the run's values; NaN, for one, hides everything"
_OTHER: Final = "calls {}, but the result does not depend on it in the elements that count"


@dataclass(frozen=True)
class CoverageRow:
    """One operator of a run, in one dtype.

    Attributes:
        operator: the overload (``aten::gelu``).
        dtype: of its first tensor.
        calls: how often the run calls it.
        evaluations: function -> how often the calls evaluate it, by definition.
        swapped: function -> how many of these evaluations a session swaps.
        reasons: why the rest is not swapped; empty if nothing is left.
        generated: whether it is code that torch.compile generated, and no call of an operator.
    """

    operator: str
    dtype: str
    calls: int
    evaluations: dict[str, int]
    swapped: dict[str, float]
    reasons: tuple[str, ...] = ()
    generated: bool = False

    @property
    def share(self) -> float:
        """The share of its evaluations that a session swaps, from 0 to 1."""
        return sum(self.swapped.values()) / sum(self.evaluations.values())


@dataclass(frozen=True, repr=False)
class Coverage(Result):
    """What a session swaps of a run.

    Attributes:
        rows: the operators that evaluate a function, those with most evaluations first.
        unknown: operators of the run whose definition is not known, or evaluates nothing although
            they call math symbols; and these symbols.
        operators: how many different operators the run called.
    """

    rows: tuple[CoverageRow, ...]
    unknown: dict[str, tuple[str, ...]] = field(default_factory=dict)
    operators: int = 0

    @property
    def evaluations(self) -> int:
        """How often the run evaluates a function."""
        return sum(sum(row.evaluations.values()) for row in self.rows)

    @property
    def share(self) -> float:
        """The share of all evaluations that a session swaps, from 0 to 1; 1 if there are none."""
        total = self.evaluations
        return sum(sum(r.swapped.values()) for r in self.rows) / total if total else 1.0

    @property
    def complete(self) -> bool:
        """Whether every evaluation is swapped, and every operator's definition known."""
        return not self.unknown and all(row.share == 1.0 for row in self.rows)

    def _shown(self) -> Shown:
        rows = [
            (
                row.operator + (", generated" if row.generated else ""),
                row.dtype,
                f"{row.calls:,}",
                ", ".join(sorted(row.evaluations)),
                f"{sum(row.evaluations.values()):,}",
                percent(row.share),
                "; ".join(row.reasons),
            )
            for row in self.rows
        ]
        header = ("operator", "dtype", "calls", "functions", "evaluations", "swapped", "why")
        notes = []
        for name, symbols in self.unknown.items():
            calls = f"; it calls {', '.join(symbols)}" if symbols else "; it calls no symbol"
            notes.append(f"{name}: the definition is not known{calls}")
        title = (
            f"{counted(self.share, self.evaluations)}; {self._rest()}{self._uncounted()}"
            f"{self.operators} different operators were called."
        )
        return Shown(title, header, rows, notes)

    def _uncounted(self) -> str:
        """Name the operators that call functions, nobody knows how often."""
        names = [name for name, symbols in self.unknown.items() if symbols]
        return f"what {', '.join(names)} evaluates is not known; " if names else ""

    def _rest(self) -> str:
        """Name the operator with most evaluations that are not swapped."""
        left = [
            (sum(r.evaluations.values()) - sum(r.swapped.values()), r.operator) for r in self.rows
        ]
        missed = [one for one in left if one[0] > 0]
        if not missed:
            return ""
        return f"{max(missed)[1]} keeps most of the rest; "

    def document(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "share": self.share,
            "evaluations": self.evaluations,
            "operators": self.operators,
            "rows": [asdict(row) for row in self.rows],
            "unknown": {name: list(symbols) for name, symbols in self.unknown.items()},
        }


def counted(share: float, total: int) -> str:
    """Say what share of the evaluations that were counted is swapped."""
    if not total:
        return "No evaluation was counted"
    return f"{percent(share)} of {total:,} evaluations are swapped"


def percent(share: float) -> str:
    """Return a share as text that says 100 % of nothing less than the whole."""
    if share == 1.0:
        return "100 %"
    return f"{min(share, 0.9999):.2%}".replace("%", " %")


# Recording ---------------------------------------------------------------------------


@dataclass
class _Call:
    """A call of an operator with its arguments as they were before the first such call."""

    operator: Any
    args: Any
    kwargs: Any
    counts: definitions.Counts
    unknown: list[str]
    times: int = 1
    #: What computes it where it is generated code, which no dispatcher calls.
    repeat: Callable[[Any, Any], Any] | None = None
    #: Function -> the stock symbols through which generated code calls it all the same.
    stock: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def __call__(self, args: Any, kwargs: Any) -> Any:
        """Compute it from other arguments."""
        if self.repeat is not None:
            return self.repeat(args, kwargs)
        return self.operator(*args, **kwargs)


class _Recorder(OperatorWatch):
    """Records every operator called inside it, and tells ``also``."""

    compiles = True

    def __init__(self, also: Callable[[Any, Any, Any], None] | None = None) -> None:
        self._also = also
        self.calls: dict[tuple[Any, ...], _Call] = {}
        self.operators: set[str] = set()
        #: Operators whose definition evaluates nothing -> the math symbols that they called.
        self.against: dict[str, set[str]] = {}

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Note a call, and compute it."""
        self.operators.add(str(func.name()))
        if self._also is not None:
            self._also(func, args, kwargs)
        if is_view(func):
            return func(*args, **kwargs)
        call = self._note(func, args, kwargs)
        if call.counts or call.unknown:
            return func(*args, **kwargs)
        binder().marked()  # of before
        result = func(*args, **kwargs)
        if called := binder().marked():
            names = self.against.setdefault(str(func.name()), set())
            names.update(symbol.name for symbol in called)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any) -> _Call:
        key = definitions.signature(func, (args, kwargs))
        call = self.calls.get(key)
        if call is not None:
            call.times += 1
            return call
        counts, unknown = definitions.evaluations(func, args, kwargs)
        keep = counts or unknown
        kept = compat.pytree().tree_map(strided_copy, (args, kwargs)) if keep else ((), {})
        call = self.calls[key] = _Call(func, kept[0], kept[1], counts, unknown)
        return call


# Judging -----------------------------------------------------------------------------


def _gpus(call: _Call) -> list[int]:
    """Return the indices of the GPUs that a call works on."""
    import torch

    leaves = compat.pytree().tree_leaves((call.args, call.kwargs))
    found = {v.device for v in leaves if isinstance(v, torch.Tensor)}
    found |= {torch.device(v) for v in leaves if isinstance(v, torch.device)}
    return sorted(d.index or 0 for d in found if d.type == "cuda")


def _run(call: _Call) -> list[Any]:
    """Repeat a call on copies of its arguments; return the tensors that it made or wrote."""
    import torch

    args, kwargs = compat.pytree().tree_map(strided_copy, (call.args, call.kwargs))
    with compat.no_modes(), torch.no_grad(), torch.random.fork_rng(devices=_gpus(call)):
        torch.manual_seed(0)
        result = call(args, kwargs)
    found = _floats(result if result is not None else args)
    wide = any(t.dtype == torch.float64 for t in _floats((args, kwargs)))
    # The seeds of dropout that attention hands on within a session are no numbers.
    return [t for t in found if wide or t.dtype != torch.float64]


def _defined(call: _Call) -> list[Any] | None:
    """Compute a call by torch's decomposition; None if there is none for it."""
    import torch

    with compat.no_modes(), torch.no_grad(), torch.random.fork_rng(devices=_gpus(call)):
        torch.manual_seed(0)
        try:
            result = definitions.defined_result(call.operator, call.args, call.kwargs)
        except Exception:
            # It may read what is not there at this level; every element counts then.
            return None
    return None if result is None else _floats(result)


def _floats(result: Any) -> list[Any]:
    import torch

    leaves = compat.pytree().tree_leaves(result)
    parts = [p for t in leaves if isinstance(t, torch.Tensor) for p in contents(t) or ()]
    return [p.detach() for p in parts if p.is_floating_point() or p.is_complex()]


def _changed(before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """Return, for each tensor, which elements differ; NaN is the same as NaN."""
    return [(a != b) & ~((a != a) & (b != b)) for a, b in zip(before, after, strict=True)]


def _share(got: Sequence[Any], expected: Sequence[Any] | None) -> float:
    """Return which share of the elements that should change did."""
    import torch

    if expected is None or [e.shape for e in expected] != [g.shape for g in got]:
        expected = [torch.ones_like(found) for found in got]
    hit = sum(int((g & e).sum()) for g, e in zip(got, expected, strict=True))
    return hit / sum(int(e.sum()) for e in expected)


def _library(neutral: bool, gpu: bool = False) -> Path | str:
    """Return the folder of a library of wrong functions, or of libm's, in the build cache.

    For a GPU, which has no libm, corem's functions take the place of libm's.

    Compilers that follow sessions would build anew for a library that lies elsewhere.
    """
    if gpu and neutral:
        return "corem"
    write = write_gpu_probe if gpu else write_probe
    # The library for GPUs includes corem's sources from where they lie.
    sources = str(find_library("corem").folder) if gpu else ""
    said = inspect.getsource(write) + repr(FUNCTIONS) + repr(neutral) + sources
    name = f"probe-{hashlib.sha256(said.encode()).hexdigest()[:16]}"

    def make(scratch: Path) -> dict[str, Any]:
        if gpu:
            write_gpu_probe(scratch / "library")
        else:
            write_probe(scratch / "library", "float32", neutral=neutral)
        return {}

    with turn():
        fill(cache_folder() / name, make)
    return cache_folder() / name / "library"


#: Factors of the first tensor: rounding may hide, in the recorded values, what a swap changes.
#: Powers of two would round alike.
_AMPLIFIED: Final = (1.0, 37.0, 1009.0)


def _amplified(call: _Call, factor: float) -> _Call:
    """Return a call whose first tensor of floating-point numbers is multiplied by a factor."""
    if factor == 1.0:
        return call

    left = [factor]

    def scaled(value: Any) -> Any:
        if left and is_real(value):
            return value * left.pop()
        return value

    args, kwargs = compat.pytree().tree_map(scaled, (call.args, call.kwargs))
    return replace(call, args=args, kwargs=kwargs)


@dataclass
class _Judged:
    """A call, what it gives under libm's functions, and by torch's decomposition."""

    call: _Call
    right: list[Any]
    defined: list[Any] | None

    @classmethod
    def of(cls, call: _Call) -> _Judged:
        """Run a call; the functions of libm have to be bound."""
        return cls(call, _run(call), _defined(call))

    def changed(self) -> tuple[list[Any], list[Any] | None]:
        """Return which elements changed, and which should have: None if all.

        A probe has to be bound. Where no definition says more, a result that is NaN shows nothing.
        """
        got = _changed(self.right, _run(self.call))
        after = None if self.defined is None else _defined(self.call)
        shown = None
        if any(bool(t.isnan().any()) for t in self.right):
            shown = [~t.isnan() for t in self.right]
        if self.defined is None or after is None or len(self.defined) != len(self.right):
            return got, shown
        if not any(bool(c.any()) for c in _changed(self.defined, after)):
            return got, shown  # the definition was not swapped either
        mixes = definitions.mixes(self.call.operator)
        return got, _decisive(self.defined, after, self.right, mixes)


class _Verdict:
    """What is known about one call and one family of functions, after some factors."""

    def __init__(self, mixes: bool) -> None:
        self.mixes = mixes
        self.got: list[Any] = []
        self.expected: list[Any] | None = []

    def add(self, got: list[Any], expected: list[Any] | None) -> None:
        """Take the elements that changed, and those that should have, with another factor."""
        if self.expected:  # where rounding hid a change, other values show it
            self.got = [a | b for a, b in zip(self.got, got, strict=True)]
        elif expected is None or any(bool(e.any()) for e in expected):
            self.got, self.expected = got, expected

    @property
    def share(self) -> float:
        """The share of the elements that changed of those that should have."""
        return 0.0 if self.unseen else _share(self.got, self.expected)

    @property
    def unseen(self) -> bool:
        """Whether no value so far would have changed."""
        return self.expected == []

    @property
    def final(self) -> bool:
        """Whether other values cannot change the verdict."""
        return self.expected is None or (
            bool(self.expected) and (not self.mixes or self.share == 1.0)
        )


def _judge(calls: Sequence[_Call]) -> tuple[dict[int, dict[str, float]], set[tuple[int, str]]]:
    """Return what is swapped of each call.

    Returns:
        for each call by its place, function -> the share of its evaluations swapped; and the places
        and functions of which the values show nothing, whose share is 0.
    """
    # Generated code that calls libm's functions would not show that it does so by itself.
    gpu = any(_gpus(call) or call.repeat for call in calls)
    wrong = _library(neutral=False, gpu=gpu)
    verdicts = {
        (i, family): _Verdict(definitions.mixes(call.operator))
        for i, call in enumerate(calls)
        for family in definitions.FAMILIES
        if any(call.counts[f] for f in family)
    }
    # The sessions of the caller, and what overrides change by themselves, have no part in it.
    with patched(_library(neutral=True, gpu=gpu), ranks="ignore"):
        for factor in _AMPLIFIED:
            left = [at for at, verdict in verdicts.items() if not verdict.final]
            chosen = sorted({i for i, _ in left})
            more = "" if factor == _AMPLIFIED[0] else f", values times {factor:g}"
            done = 0
            judged = {i: _Judged.of(_amplified(calls[i], factor)) for i in chosen}
            for family in dict.fromkeys(family for _, family in left):
                with patched(wrong, family, ranks="ignore"):
                    for i in (i for i, other in left if other == family):
                        done += 1
                        tell(f"evaluation {done} of {len(left)}{more}")
                        verdicts[i, family].add(*judged[i].changed())
    shares: dict[int, dict[str, float]] = {i: {} for i in range(len(calls))}
    unseen = set()
    for (i, family), verdict in verdicts.items():
        share = 0.0 if calls[i].stock.keys() & {*family} else verdict.share
        shares[i] |= {f: share for f in family if calls[i].counts[f]}
        unseen |= {(i, f) for f in family if calls[i].counts[f] and verdict.unseen}
    return shares, unseen


def _decisive(
    before: Sequence[Any], after: Sequence[Any], like: Sequence[Any], mixes: bool
) -> list[Any]:
    """Return which elements change by the definition, by more than rounding may hide.

    Both are in float32. Two units of the result's dtype may be the rounding of the result, and 64
    of float32 that of the operations before. Where elements are sums, the units are those of the
    largest.
    """
    import torch

    narrow = torch.finfo(torch.float32).eps
    found = []
    for b, a, t in zip(before, after, like, strict=True):
        size = b.abs()
        if mixes and b.numel():
            size = size.masked_fill(~b.isfinite(), 0.0).amax()
        tolerance = (2 * torch.finfo(t.dtype).eps + 64 * narrow) * size
        tolerance = tolerance.clamp_min(torch.finfo(t.dtype).tiny)
        found.append(((a - b).abs() > tolerance) | (a.isfinite() != b.isfinite()))
    return found


def _symbols(call: _Call) -> dict[str, int]:
    """Return the math symbols that a call goes through under the stock functions."""
    with trace() as symbols:
        _run(call)
    return symbols


def _reason(call: _Call, dtype: str, functions: Sequence[str]) -> str:
    """Return why a call is not swapped, from what it calls."""
    if dtype not in _SWAPPED_DTYPES:
        return _WIDE
    family = {f for group in definitions.FAMILIES if set(group) & set(functions) for f in group}
    if call.repeat is not None:
        called_names = sorted(n for f in family for n in call.stock.get(f, ()))
        why = _STOCK.format(", ".join(called_names)) if called_names else _GENERATED
        return f"{', '.join(functions)}: {why}"
    if _gpus(call):
        return f"{', '.join(functions)}: {_ON_CUDA}"
    known = binder().symbols
    called = {n: known[n] for n in _symbols(call)}
    named = ", ".join(functions)
    if any(s.dtype == "float64" and s.function in family for s in called.values()):
        return f"{named}: {_DOUBLE}"
    same = sorted(n for n, s in called.items() if s.function in family)
    if same:
        return f"{named}: {_OTHER.format(', '.join(same))}"
    return f"{named}: {_INLINED}"


def _dtype(call: _Call) -> str:
    found = _floats((call.args, call.kwargs)) or _run(call)
    return str(found[0].dtype).removeprefix("torch.") if found else "none"


def _recorded_under() -> contextlib.AbstractContextManager[Any]:
    """Return what a run is recorded in: on a GPU corem, for what operators hand to gradients."""
    import torch

    cuda: Any = torch.cuda
    return patched("corem", ranks="ignore") if cuda.is_initialized() else contextlib.nullcontext()


@dataclass
class _Recorded:
    """A run.

    Attributes:
        calls: its calls.
        operators: the names of all operators in it.
        against: operators whose definition evaluates nothing -> the math symbols that they called.
    """

    calls: list[_Call]
    operators: set[str]
    against: dict[str, set[str]]


def _recorded(step: Callable[[], Any]) -> _Recorded:
    """Return an eager run."""
    recorder = _Recorder()
    with _recorded_under(), binder().marking(apart=True), recorder:
        step()
    return _Recorded(list(recorder.calls.values()), recorder.operators, recorder.against)


def _recorded_compiled(step: Callable[[], Any]) -> _Recorded:
    """Return a run of compiled code, with the operators that code is generated for.

    Under corem, so that the code is that of a session. What it is compiled to is repeated later
    with other functions.
    """
    import torch

    from pytest_udftorch.swap.reach import compiled_code as generated

    torch.compiler.reset()  # code of before would not be seen
    with patched("corem", ranks="ignore"), generated.watching() as graphs:
        step()
        recorder = _Recorder(graphs.left)
        graphs.recording = True
        with binder().marking(apart=True), recorder:
            step()
        graphs.recording = False
        if not any(graph.calls for graph in graphs.graphs):
            raise CoverageError(
                "The run called no code that Inductor compiled, so there is nothing to judge. Give "
                "a callable that runs a model of torch.compile, or count without compiled=True."
            )
        found = [
            _Call(g.operator, g.args, g.kwargs, g.counts, g.unknown, g.times, g.repeat, g.stock)
            for g in generated.generated(graphs)
        ]
    names = {str(call.operator.name()) for call in found}
    calls = [*recorder.calls.values(), *found]
    return _Recorded(calls, recorder.operators | names, recorder.against)


def coverage(step: Callable[[], Any], *, compiled: bool = False) -> Coverage:
    """Find out which evaluations of transcendental functions in a run a session swaps.

    The run is recorded under what is active at the call (once CUDA is in use, and for compiled
    code, under corem), and judged under libraries that have every function of
    ``library.symbols.FUNCTIONS`` in float32. It is about operators, on the CPU and on GPUs.

    Args:
        step: runs what is to be judged, for instance a forward pass, a loss, a backward pass and
            a step of the optimizer.
        compiled: the run calls code of torch.compile, with the backend Inductor: also judge what
            is generated. The run is called twice then: once to compile.

    Raises:
        CoverageError: the run calls no operator, or no compiled code.
        UdfError: as from building and opening a session.
    """
    recorded = _recorded_compiled(step) if compiled else _recorded(step)
    if not recorded.operators:
        raise CoverageError(
            "The run called no operator of torch, so there is nothing to judge. Give a callable "
            "that runs the model."
        )
    calls = [call for call in recorded.calls if call.counts]
    shares, unseen = _judge(calls)
    rows: dict[tuple[str, str, bool], CoverageRow] = {}
    for i, call in enumerate(calls):
        dtype, made = _dtype(call), call.repeat is not None
        key = (str(call.operator.name()), dtype, made)
        row = rows.setdefault(key, CoverageRow(*key[:2], 0, {}, {}, generated=made))
        times, reasons = call.times, dict.fromkeys(row.reasons)
        evaluations, swapped = dict(row.evaluations), dict(row.swapped)
        for function, count in call.counts.items():
            evaluations[function] = evaluations.get(function, 0) + count * times
            share = shares[i].get(function, 0.0)
            swapped[function] = swapped.get(function, 0.0) + count * times * share
        left = sorted(f for f in call.counts if shares[i].get(f, 0.0) < 1.0)
        hidden = [f for f in left if (i, f) in unseen and not call.stock.keys() & {f}]
        if hidden:
            reasons[f"{', '.join(hidden)}: {_UNSEEN}"] = None
        if seen := [f for f in left if f not in hidden]:
            reasons[_reason(call, dtype, seen)] = None
        rows[key] = CoverageRow(
            *key[:2], row.calls + times, evaluations, swapped, tuple(reasons), made
        )
    unknown = {name: tuple(sorted(names)) for name, names in recorded.against.items()}
    for call in recorded.calls:
        for name in call.unknown:
            unknown.setdefault(name, tuple(sorted(_symbols(call))))
    ordered = sorted(rows.values(), key=lambda r: -sum(r.evaluations.values()))
    return Coverage(tuple(ordered), unknown, len(recorded.operators))


# Models from files -------------------------------------------------------------------


def training_step(model: Any, inputs: Any) -> Callable[[], None]:
    """Return a run: forward, mean of squares, backward, one step of AdamW.

    Args:
        model: a module.
        inputs: its positional arguments, or a dictionary of keyword arguments; one tensor stands
            for itself.
    """
    import torch

    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters) if parameters else None

    def step() -> None:
        if isinstance(inputs, Mapping):
            result = model(**inputs)
        elif isinstance(inputs, tuple | list):
            result = model(*inputs)
        else:
            result = model(inputs)
        loss: Any = sum(t.float().square().mean() for t in _live(result))
        if optimizer is not None and getattr(loss, "requires_grad", False):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return step


def _live(result: Any) -> list[Any]:
    import torch

    if isinstance(result, Mapping):
        loss = result.get("loss")
        result = [loss] if loss is not None else list(result.values())
    leaves = compat.pytree().tree_leaves(result)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]


def save_coverage(found: Mapping[str, Coverage], path: Path, command: str) -> None:
    """Write what :func:`coverage` found for named runs as JSON.

    Raises:
        CoverageError: the file cannot be written.
    """
    document = {
        "format": FORMAT,
        "command": command,
        "environment": describe(),
        "runs": {name: one.document() for name, one in found.items()},
    }
    store(path, document, CoverageError, "The coverage")
