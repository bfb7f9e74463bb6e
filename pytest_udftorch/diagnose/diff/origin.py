# SPDX-License-Identifier: Apache-2.0
"""The first operator that makes a NaN, an infinity or a subnormal number from clean inputs."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple, get_args

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import OperatorWatch
from pytest_udftorch.base.result import Result
from pytest_udftorch.base.source_line import ForwardCalls, source_line, source_place
from pytest_udftorch.base.tensor_contents import hides, is_plain
from pytest_udftorch.diagnose.diff.special_numbers import (
    Ends,
    Special,
    is_special,
    real_or_text,
    special_part,
)
from pytest_udftorch.diagnose.runs.sides import Side, side
from pytest_udftorch.diagnose.runs.work import Work, made_of, run
from pytest_udftorch.errors import DiagnosisError, nearest
from pytest_udftorch.swap.observe.layers import Place, Whereabouts
from pytest_udftorch.swap.observe.recorder import Recording, Stopped
from pytest_udftorch.swap.observe.recording import effects, given, results, strided_copy
from pytest_udftorch.swap.operators.overload import is_view, says_numbers

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
        forward: in a backward pass, the operator whose gradient it computes and the line that calls
            that one; empty if unknown.
        unseen: what was not looked at, in words.
    """

    kind: Special
    operator: str = ""
    place: Place | None = None
    call: int | None = None
    elements: tuple[int, int] = (0, 0)
    index: tuple[int, ...] = ()
    value: complex = math.nan
    inputs: tuple[Input, ...] = ()
    came_in: bool = False
    calls: int = 0
    note: str = ""
    source: str = ""
    forward: str = ""
    unseen: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether the run has one."""
        return bool(self.operator)

    def text(self) -> str:
        """Return a report for a terminal."""
        what = _WORDS[self.kind]
        if not self.found:
            said = f"None of {self.calls:,} operators made {what} from clean inputs.{self.note}"
            return "\n".join([said, *self._unseen()])
        if self.came_in:
            head = f"The run begins with {what}: {self.operator} in {self.place} gets it first."
        else:
            some, every = self.elements
            head = (
                f"{self.operator} in {self.place} made the first: {what} in {some:,} of {every:,} "
                f"elements, the first one at {list(self.index)}: {self.value:g}"
            )
        lines = [head, *([f"  at {self.source}"] if self.source else [])]
        if self.forward:
            lines.append(f"  in the gradient of {self.forward}")
        for one in self.inputs:
            there = "" if one.value is None else f"; there: {one.value:.9g}"
            shape = "x".join(map(str, one.shape)) or "a number"
            lines.append(f"  {one.name}: {shape}, from {one.least:.9g} to {one.largest:.9g}{there}")
        if self.note:
            lines.append(self.note.strip())
        return "\n".join([*lines, *self._unseen()])

    def _unseen(self) -> list[str]:
        return [f"Not looked at: {', '.join(self.unseen)}."] if self.unseen else []

    def document(self) -> dict[str, Any]:
        """Return everything as plain data."""
        place = self.place
        where = None if place is None else dict(zip(("layer", "phase", "step"), place, strict=True))
        value = real_or_text(self.value) if self.found else self.value
        return {"format": "udftorch-origin-1", **asdict(self), "place": where, "value": value}


class _Watcher(OperatorWatch):
    """Looks for the first special number; with ``stop`` it ends the run there.

    Attributes:
        origin: the first that an operator made, or else the first that came in; or None.
        made: whether an operator made one from clean inputs.
        unseen: what was not looked at, in words.
    """

    def __init__(self, kind: Special, where: Whereabouts, stop: bool = True) -> None:
        self.kind, self.stop = kind, stop
        self.recording = Recording()
        self.where = where
        self.calls = 0
        self.origin: Origin | None = None
        self.made = False
        self.unseen: set[str] = set()
        self._forward = ForwardCalls()
        self._ends = Ends()
        self._origins: dict[tuple[Any, ...], int] = {}
        self._every: dict[int, Origin] = {}

    def passed(self, operator: Any) -> None:
        """Note an operator whose own arithmetic is not seen."""
        self.unseen.add(f"what {operator.name()} computes itself")

    def reached(self) -> Origin | None:
        """Return the first that ended in a result, a gradient or a parameter; None if none did."""
        ends = self._ends.end()
        return self._every[min(ends)] if ends else None

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator between looks at its inputs and outputs."""
        import torch

        place = self.where.now()
        if is_view(func) or not says_numbers(func):
            return func(*args, **kwargs)
        if torch.is_grad_enabled():
            self._forward.note(func)
        known = effects(func)
        got = given(func, args, kwargs)
        # What is written in place is gone afterwards.
        before = _described(func, args, kwargs) if known.written else None
        clean = before is None or not any(is_special(self.kind, v) for v in got)
        returned = func(*args, **kwargs)
        self.calls += 1
        outputs = [(t, self._found_in(t)) for t in results(func, args, kwargs, returned)]
        bad = next((found for _, found in outputs if found), None)
        tensors = _tensors(got)
        cause = self._ends.cause(tensors)
        if bad is not None and cause is None:
            if clean and before is None:
                clean = not any(is_special(self.kind, v) for v in got)
            cause = self._found(func, place, bad, before or (args, kwargs), came_in=not clean)
        backward = place.phase == "backward"
        told = [(t, bool(found) or self._became_nan(cause, t)) for t, found in outputs]
        self._ends.saw(func, tensors, told, cause, backward)
        return returned

    def _became_nan(self, cause: int | None, tensor: Any) -> bool:
        """Tell whether an infinity that an operator got may have become a NaN of its output."""
        return self.kind == "inf" and cause is not None and is_special("nan", tensor)

    def _found_in(self, tensor: Any) -> Any:
        if what := hides(tensor):
            self.unseen.add(f"tensors of the kind {what}")
        return special_part(self.kind, tensor)

    def _found(
        self, func: Any, place: Place, bad: Any, arguments: Any, *, came_in: bool
    ) -> int | None:
        """Keep an origin; return its number, or None if the number came in."""
        if came_in:
            # Numbers such as the -inf of a mask taint what follows; one that is made later
            # from clean inputs counts more.
            self.origin = self.origin or self._origin(func, place, bad, arguments, True)
            return None
        # Loops make the same again and again.
        key = func, place, source_place()
        if key not in self._origins:
            own = self._origin(func, place, bad, arguments, False)
            self._origins[key], self._every[self.calls] = self.calls, own
            self.origin = own if not self.made else self.origin
            self.made = True
        if self.stop:
            raise Stopped
        return self._origins[key]

    def _origin(self, func: Any, place: Place, bad: Any, arguments: Any, came_in: bool) -> Origin:
        part, mask = bad
        index = tuple(int(i) for i in mask.nonzero()[0])
        inputs = _inputs(func, arguments[0], arguments[1], part.shape, index)
        value = part[index].item()
        return Origin(
            self.kind, str(func.name()), place, self.calls - 1, (int(mask.sum()), mask.numel()),
            index, value, inputs, came_in, self.calls, source=source_line(),
            forward=self._forward.running() if place.phase == "backward" else "",
        )  # fmt: skip


def _tensors(values: Any) -> list[Any]:
    import torch

    return [v for v in values if isinstance(v, torch.Tensor)]


def _described(func: Any, args: Any, kwargs: Any) -> Any:
    """Return copies of the arguments that a call writes into, among the others."""
    written = {
        id(t)
        for p in effects(func).written
        for t in compat.pytree().tree_leaves(p.of(args, kwargs))
    }

    def copied(value: Any) -> Any:
        return strided_copy(value) if id(value) in written else value

    return compat.pytree().tree_map(copied, (args, kwargs))


def _inputs(
    func: Any, args: Any, kwargs: Any, shape: Any, index: tuple[int, ...]
) -> tuple[Input, ...]:
    """Return what there is to say of arguments that are real numbers or hold them."""
    found = []
    for place, argument in enumerate(compat.overload_schema(func).arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(Input(argument.name, (), float(value), float(value)))
        if not is_plain(value) or not value.numel() or value.is_complex():
            continue
        if not (value.is_floating_point() or value.dim()):
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
    found: Origin = watcher.origin or Origin(kind, calls=watcher.calls)
    return replace(found, unseen=tuple(sorted(watcher.unseen)))


def _compiled(kind: Special, work: Work, one: Side) -> Origin:
    """Look at the operators that were compiled: as the model calls them, then decomposed."""
    import torch

    def bare(backend: str | None) -> Side:
        return replace(one, backend=backend, mode=None, options={})

    torch.compiler.reset()
    try:
        values = run(work, one, values=True).values
        dirty = [name for name, value in values.items() if is_special(kind, value)]
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


class Watched(NamedTuple):
    """What :func:`watching` has seen so far.

    Attributes:
        made: returns the first origin, or None if no operator made such a number from clean inputs.
        reached: the same of those that ended in a result, a gradient or a parameter: which no
            operator used, or which Python reads.
    """

    made: Callable[[], Origin | None]
    reached: Callable[[], Origin | None]


@contextlib.contextmanager
def watching(kind: Special) -> Iterator[Watched]:
    """Watch all operators of this thread; compiled code runs eagerly, so that they are seen.

    Yields:
        What is seen; ``reached`` is asked once, at the end.
    """
    where = Whereabouts()
    mode = _Watcher(kind, where, stop=False)
    with where, warnings.catch_warnings(), mode:
        # The wrapper of a compiled module calls hooks once more, which does no harm here.
        warnings.filterwarnings("ignore", ".*when there are global hooks on modules")
        yield Watched(lambda: mode.origin if mode.made else None, mode.reached)
