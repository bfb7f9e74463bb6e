# SPDX-License-Identifier: Apache-2.0
"""The first operator that makes a NaN, an infinity or a subnormal number from clean inputs."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import OperatorWatch
from pytest_udftorch.base.result import Result
from pytest_udftorch.diagnose.runs.sides import Side, side
from pytest_udftorch.diagnose.runs.work import Work, made_of, run
from pytest_udftorch.errors import DiagnosisError, nearest
from pytest_udftorch.swap.observe.layers import Place, Whereabouts
from pytest_udftorch.swap.observe.recorder import Recording, Stopped
from pytest_udftorch.swap.observe.recording import effects, results
from pytest_udftorch.swap.observe.source_line import source_line
from pytest_udftorch.swap.operators.overload import is_view, says_numbers

Special = Literal["nan", "inf", "subnormal"]

#: The backend that runs decomposed operators one by one.
_DECOMPOSED: Final = "aot_eager_decomp_partition"

_WORDS: Final = {"nan": "a NaN", "inf": "an infinity", "subnormal": "a subnormal number"}


@dataclass(frozen=True)
class Input:
    """An argument of the operator.

    Attributes:
        name: of the argument, by its schema.
        shape: its sizes; empty for a number.
        least: its smallest number.
        largest: its largest number.
        value: what it has at the place of the special number, where the shapes fit; or None.
    """

    name: str
    shape: tuple[int, ...]
    least: float
    largest: float
    value: float | None = None


@dataclass(frozen=True, repr=False)
class Origin(Result):
    """Where the first special number of a run came from.

    Attributes:
        kind: ``nan``, ``inf`` or ``subnormal``.
        operator: the overload; empty if there was none.
        place: its layer, phase and step.
        call: its position among the operators of the run.
        elements: how many of its outputs' elements are special, and how many there are.
        index: of the first one.
        value: that one.
        inputs: the arguments that are tensors of numbers.
        came_in: whether the run began with one: then ``operator`` is the first that got it.
        calls: how many operators were looked at.
        note: what else is to be said of it.
        source: the line of the model or test that calls it; empty if unknown.
    """

    kind: Special
    operator: str = ""
    place: Place | None = None
    call: int | None = None
    elements: tuple[int, int] = (0, 0)
    index: tuple[int, ...] = ()
    value: float = math.nan
    inputs: tuple[Input, ...] = ()
    came_in: bool = False
    calls: int = 0
    note: str = ""
    source: str = ""

    @property
    def found(self) -> bool:
        """Whether the run has one."""
        return bool(self.operator)

    def text(self) -> str:
        """Return a report for a terminal."""
        what = _WORDS[self.kind]
        if not self.found:
            return f"None of {self.calls:,} operators made {what} from clean inputs.{self.note}"
        if self.came_in:
            head = f"The run begins with {what}: {self.operator} in {self.place} gets it first."
        else:
            some, every = self.elements
            head = (
                f"{self.operator} in {self.place} made the first: {what} in {some:,} of {every:,} "
                f"elements, the first one at {list(self.index)}: {self.value:g}"
            )
        lines = [head, *([f"  at {self.source}"] if self.source else [])]
        for one in self.inputs:
            there = "" if one.value is None else f"; there: {one.value:.9g}"
            shape = "x".join(map(str, one.shape)) or "a number"
            lines.append(f"  {one.name}: {shape}, from {one.least:.9g} to {one.largest:.9g}{there}")
        if self.note:
            lines.append(self.note.strip())
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """Return everything as plain data."""
        place = self.place
        where = None if place is None else dict(zip(("layer", "phase", "step"), place, strict=True))
        return {"format": "udftorch-origin-1", **asdict(self), "place": where}


def _special(kind: Special, tensor: Any) -> Any:
    """Return which elements are special, or None for what has no such numbers."""
    import torch

    # Other subclasses (FakeTensor) may have no numbers.
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_floating_point():
        return None
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    if kind == "nan":
        return tensor.isnan()
    if kind == "inf":
        return tensor.isinf()
    return (tensor != 0) & (tensor.abs() < torch.finfo(tensor.dtype).tiny)


def _has(kind: Special, value: Any) -> bool:
    """Tell whether an argument holds a special number."""
    if isinstance(value, float):
        return math.isnan(value) if kind == "nan" else kind == "inf" and math.isinf(value)
    mask = _special(kind, value)
    return mask is not None and bool(mask.any())


class _Watcher(OperatorWatch):
    """Looks for the first special number; with ``stop`` it ends the run there."""

    def __init__(self, kind: Special, where: Whereabouts, stop: bool = True) -> None:
        self.kind, self.stop = kind, stop
        self.recording = Recording()
        self.where = where
        self.calls = 0
        self.origin: Origin | None = None
        self.made = False

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator between looks at its inputs and outputs."""
        kind, leaves = self.kind, compat.pytree().tree_leaves
        place = self.where.now()
        if self.made or is_view(func) or not says_numbers(func):
            return func(*args, **kwargs)
        known = effects(func)
        over = {id(t) for p in known.overwritten for t in leaves(p.of(args, kwargs))}
        given = [v for v in leaves((args, kwargs)) if id(v) not in over]
        # What is written in place is gone afterwards.
        before = _described(kind, func, args, kwargs) if known.written else None
        clean = before is None or not any(_has(kind, v) for v in given)
        returned = func(*args, **kwargs)
        self.calls += 1
        made = results(func, args, kwargs, returned)
        bad = next((t for t in made if _has(kind, t)), None)
        if bad is None or not clean:
            return returned
        unclean = before is None and any(_has(kind, v) for v in given)
        if unclean and self.origin is not None:
            return returned
        self._found(func, place, bad, before or (args, kwargs), came_in=unclean)
        return returned

    def _found(self, func: Any, place: Place, bad: Any, arguments: Any, *, came_in: bool) -> None:
        if came_in:
            # Numbers such as the -inf of a mask taint what follows; one that is made later
            # from clean inputs counts more.
            self.origin = self.origin or self._origin(func, place, bad, arguments, True)
            return
        self.origin = self._origin(func, place, bad, arguments, False)
        self.made = True
        if self.stop:
            raise Stopped

    def _origin(self, func: Any, place: Place, bad: Any, arguments: Any, came_in: bool) -> Origin:
        mask = _special(self.kind, bad)
        index = tuple(int(i) for i in mask.nonzero()[0])
        inputs = _inputs(func, arguments[0], arguments[1], bad.shape, index)
        return Origin(
            self.kind, str(func.name()), place, self.calls - 1, (int(mask.sum()), mask.numel()),
            index, float(bad[index]), inputs, came_in, self.calls, source=source_line(),
        )  # fmt: skip


def _described(kind: Special, func: Any, args: Any, kwargs: Any) -> Any:
    """Return copies of the arguments that a call writes into, among the others."""
    from pytest_udftorch.swap.observe.recording import strided_copy

    written = {id(p.of(args, kwargs)) for p in effects(func).written}
    copied = [strided_copy(a) if id(a) in written else a for a in args]
    return copied, kwargs


def _inputs(
    func: Any, args: Any, kwargs: Any, shape: Any, index: tuple[int, ...]
) -> tuple[Input, ...]:
    import torch

    found = []
    for place, argument in enumerate(compat.overload_schema(func).arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(Input(argument.name, (), float(value), float(value)))
        if not isinstance(value, torch.Tensor) or not value.numel():
            continue
        if value.layout is not torch.strided or not (value.is_floating_point() or value.dim()):
            continue
        numbers = value.detach().double()
        there = None
        try:
            there = float(numbers.expand(shape)[index])
        except RuntimeError:  # sums and products have other shapes
            there = None
        least, largest = (float(v) for v in numbers.aminmax())
        found.append(Input(argument.name, tuple(value.shape), least, largest, there))
    return tuple(found)


# Each option of a run is a parameter.
def first_origin(  # noqa: PLR0913
    kind: Special,
    model: Any = None,
    inputs: Any = (),
    *,
    on: Side | str = "eager",
    make: Callable[[], Any] | None = None,
    train: bool | None = None,
    steps: int = 1,
    loss: Callable[[Any], Any] | None = None,
    optimizer: Callable[[list[Any]], Any] | None = None,
    seed: int = 0,
) -> Origin:
    """Find the first operator that makes a special number from clean inputs.

    Every operator counts, products, divisions and casts included, in the forward and the backward
    pass and in the optimizer. An argument that is such a number itself (a mask's ``-inf``) is not
    clean. If no operator makes one, but the run began with one, the first that got it is named.

    Args:
        kind: ``nan``, ``inf`` or ``subnormal``.
        model: as in :func:`first_difference`, and so are the others.
        inputs: see there.
        on: the side that runs.
        make: see there.
        train: see there.
        steps: see there.
        loss: see there.
        optimizer: see there.
        seed: see there.

    Raises:
        DiagnosisError: there is no such kind, or nothing to run.
        RunError: the run fails.
        UdfError: as from opening a session of the side's library.
    """
    if kind not in get_args(Special):
        raise DiagnosisError(
            f"There is no origin of {kind!r}. {nearest(str(kind), get_args(Special))}"
        )
    one = side(on)
    own = made_of(make, model, inputs, one)
    work = Work(own, seed, train, steps, loss, optimizer)
    return _compiled(kind, work, one) if one.compiled else _watched(kind, work, one)


def _watched(kind: Special, work: Work, one: Side) -> Origin:
    watched: list[Any] = []

    def mode_of(where: Whereabouts) -> Any:
        watched.append(_Watcher(kind, where))
        return watched[-1]

    run(work, one, mode_of=mode_of)
    (watcher,) = watched
    found: Origin | None = watcher.origin
    return found if found is not None else Origin(kind, calls=watcher.calls)


def _compiled(kind: Special, work: Work, one: Side) -> Origin:
    """Look at the operators that were compiled: as the model calls them, then decomposed."""
    import torch

    def bare(backend: str | None) -> Side:
        return replace(one, backend=backend, mode=None, options={})

    torch.compiler.reset()
    try:
        values = run(work, one, values=True).values
        dirty = [name for name, value in values.items() if _has(kind, value)]
        eager = _watched(kind, work, bare(None))
        if not dirty:
            less = " The same operators run eagerly do, where it does not reach the results."
            note = f" Nothing that {one.name} gives has one.{less if eager.found else ''}"
            return Origin(kind, calls=eager.calls, note=note)
        gives = f"{one.name} has one in {dirty[0]}"
        if eager.found:
            return replace(eager, note=f"So it is when the operators run eagerly; {gives}.")
        torch.compiler.reset()
        parts = _watched(kind, work, bare(_DECOMPOSED))
        if parts.found:
            note = f"The operator is one of a decomposition, and eager code makes none; {gives}."
            return replace(parts, note=note)
    finally:
        torch.compiler.reset()
    note = f" But {gives}: generated code alone makes it. Compare it with eager."
    return Origin(kind, calls=eager.calls, note=note)


@contextlib.contextmanager
def watching(kind: Special) -> Iterator[Callable[[], Origin | None]]:
    """Watch all operators of this thread; compiled code runs eagerly, so that they are seen.

    Yields:
        A function that returns the first origin, or None if none made such a number from clean
        inputs.
    """
    import torch

    where = Whereabouts()
    mode = _Watcher(kind, where, stop=False)
    stance: Any = torch.compiler
    with where, stance.set_stance("force_eager"), warnings.catch_warnings(), mode:
        # The wrapper of a compiled module calls hooks once more, which does no harm here.
        warnings.filterwarnings("ignore", ".*when there are global hooks on modules")
        yield lambda: mode.origin if mode.made else None
